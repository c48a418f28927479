"""Moments of a feature in a stream, against a slow reference implementation with lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refused import refused
from streamsvm.core.memory.moments import MOSTLY_EQUAL, N_FIRST, N_MOMENTS, WAS_RESET, check_moments, learn_stream_value

BOUND, HORIZON = 8.0, 950.0


class Twin:
    """The reference implementation."""

    def __init__(self, levels):
        self.levels, self.first, self.held = levels, [], []
        self.n, self.mean, self.squares = 0.0, 0.0, 0.0
        self.before = None  # mean and outlier distance of the previous level
        self.renewed, self.anew = 0, False

    def begin(self, values):
        values = np.sort(np.array(values, np.float64))
        middle = np.median(values)
        off = np.sort(np.abs(values - middle))
        deviation = np.median(off) or (off[len(off) - 1 - (off > 0).sum() // 2] if off.any() else 0.0)
        if len(values) >= 8:
            values = np.clip(values, middle - BOUND * 1.4826 * deviation, middle + BOUND * 1.4826 * deviation)
        self.n, self.mean, self.squares = len(values), values.mean(), ((values - values.mean()) ** 2).sum()

    @property
    def reach(self):
        return BOUND * np.sqrt(self.squares / self.n)

    @property
    def constant(self):
        return self.squares <= 1e-26 * self.n * self.mean**2

    def add(self, value):
        if self.constant:
            if value != self.mean:
                self.n, self.squares = N_FIRST, 0.0
        else:
            value = np.clip(value, self.mean - self.reach, self.mean + self.reach)
        if self.n >= HORIZON:
            self.squares *= (HORIZON - 1) / self.n
            self.n, self.renewed = HORIZON - 1, 0
        self.n += 1
        off = value - self.mean
        self.mean += off / self.n
        self.squares += off * (value - self.mean)

    def follow(self, value):
        if self.n < N_FIRST:
            self.first.append(value)
            self.begin(self.first)
            return
        if abs(value - self.mean) <= self.reach:
            for outlier in [*sorted(self.held), value]:
                self.add(outlier)
            self.held = []
            return
        self.held.append(value)
        if self.levels and self.constant and len(self.held) == 2:
            self.before, self.first, self.held = (self.mean, 1e-300), self.held, []
            self.begin(self.first)
            return
        if not self.levels and self.constant and len(self.held) == 8 and len(set(self.held)) == 1:
            for outlier in self.held:
                self.add(outlier)
            self.held = []
        run = 8 if self.levels else N_FIRST
        if len(self.held) < run:
            return
        outliers, self.held = sorted(self.held), []
        if not self.levels and len(set(outliers)) == 1:
            return
        old = self.n, self.mean, self.squares
        constant, reach = self.constant, self.reach
        back = self.before is not None and abs(outliers[run // 2] - self.before[0]) < self.before[1] > 1e-300
        one_side = outliers[0] > self.mean or outliers[-1] <= self.mean
        again = self.renewed == 0 or (self.renewed == 1 and back) or (self.levels and self.n >= 900)
        if constant or (one_side and again):
            self.begin(outliers)
            if not constant or abs(old[1] - self.mean) > self.reach:
                if self.squares > 0.0:
                    variance = (self.before[1] / BOUND) ** 2 if back else old[2] / old[0]
                    self.squares = max(self.squares, run * variance)
                self.before, self.anew = (old[1], max(reach, 1e-300)), True
                self.first = outliers
                self.renewed = 0 if constant else min(self.renewed + 1, 2)
                return
            self.n, self.mean, self.squares = old
        for outlier in outliers:
            self.add(outlier)
        if one_side:
            self.renewed = 2


def learn_values(values, levels=False):
    moments, first = np.zeros(N_MOMENTS), np.zeros(N_FIRST, np.float64)
    for value in values:
        learn_stream_value(moments, first, float(value), BOUND, HORIZON, levels)
        check_moments(moments[None])
    return moments


lengths, spreads = st.sampled_from((1, 5, 8, 31, 32, 40, 200, 920)), st.sampled_from((0.0, 1e-3, 1.0, 50.0))
pieces = st.lists(st.tuples(lengths, st.sampled_from((0.0, 3.0, -1e3, 1e6)), spreads), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None)
@given(pieces, st.booleans(), st.integers(0, 99))
def test_moments_equal_reference_implementation(pieces, levels, seed):
    rng, twin = np.random.default_rng(seed), Twin(levels)
    moments, first = np.zeros(N_MOMENTS), np.zeros(N_FIRST, np.float64)
    for n, level, spread in pieces:
        for value in (level + spread * rng.normal(size=n)).tolist():
            twin.follow(value)
            learn_stream_value(moments, first, value, BOUND, HORIZON, levels)
        assert moments[0] == twin.n
        np.testing.assert_allclose(moments[1], twin.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(moments[2], twin.squares, rtol=1e-6, atol=1e-12)
        assert (moments[3], moments[5], moments[WAS_RESET]) == (len(twin.held), twin.renewed, twin.anew)


@pytest.mark.parametrize("start", [np.zeros(400), np.full(400, -999.0), np.random.default_rng(1).normal(size=400)])
@pytest.mark.parametrize("level", [20.0, 1e3, -1e6])
def test_moments_are_reset_to_a_new_level(start, level):
    values = level + np.random.default_rng(0).normal(size=N_FIRST)
    moments = learn_values([*start, *values])
    assert moments[0] == N_FIRST
    assert abs(moments[1] - level) < 1.0
    assert 0.5 < np.sqrt(moments[2] / moments[0]) < 2.0


def test_alternating_levels_are_described_together():
    rng = np.random.default_rng(2)
    moments = learn_values(np.concatenate([100.0 * (i % 2) + rng.normal(size=100) for i in range(20)]))
    assert 30.0 < np.sqrt(moments[2] / moments[0]) < 70.0


@pytest.mark.parametrize(("level", "spread", "length"), [(0.0, 1.0, 100), (1e4, 500.0, 50), (0.0, 1e3, N_FIRST)])
def test_returning_level_has_its_previous_scale(level, spread, length):
    rng = np.random.default_rng(6)
    outage = level + spread * rng.normal(size=length)
    moments = learn_values([*(200.0 + rng.normal(size=300)), *outage, *(200.0 + rng.normal(size=100))])
    assert abs(moments[1] - 200.0) < 25.0
    assert np.sqrt(moments[2] / moments[0]) < 25.0


@pytest.mark.parametrize("length", [N_FIRST, 2 * N_FIRST, 100])
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_flag_with_long_constant_runs_varies(length, start):
    flags = np.repeat(np.arange(10) % 2 == start, length).astype(float)
    moments = learn_values(flags)
    assert 0.3 < moments[1] < 0.7
    assert 0.4 < np.sqrt(moments[2] / moments[0]) < 0.6


def test_scale_is_kept_while_values_are_missing():
    rng = np.random.default_rng(3)
    here = 1e3 + rng.normal(size=300)
    there = learn_values([*here, *np.zeros(1000)])
    np.testing.assert_array_equal(there[:3], learn_values(here)[:3])
    assert learn_values([*here, *np.zeros(1000)], levels=True)[1] == 0.0  # for a target, 0 is the new level


def test_outliers_and_rare_values_are_not_a_new_level():
    rng = np.random.default_rng(4)
    moments = learn_values([*rng.normal(size=200), *np.full(N_FIRST - 1, 1e6), *rng.normal(size=200)])
    assert abs(moments[1]) < 50.0
    assert moments[WAS_RESET] == 0.0
    moments = learn_values([0.0] * 100 + [1.0, 0.0] * 3 + [0.0] * 100)
    assert moments[MOSTLY_EQUAL] == 1.0
    assert 0.0 < moments[1] < 0.1


@pytest.mark.parametrize(
    ("column", "value"),
    [(0, -1.0), (0, 1e30), (2, -1.0), (3, 32.0), (3, -1.0), (3, 0.5), (4, 2.0), (5, 0.5), (5, 3.0), (6, -1.0)],
)
def test_invalid_moments_are_refused(column, value):
    moments = np.zeros((2, N_MOMENTS))
    moments[1, column] = value
    refused("the snapshot is corrupt", check_moments, moments)
