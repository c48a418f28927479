"""Moments of a feature that follow a stream, against a twin with lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refused import refused
from streamsvm.core.memory.moments import MOSTLY_EQUAL, N_FIRST, N_MOMENTS, WAS_RESET, check_moments, learn_stream_value

BOUND, HORIZON = 8.0, 950.0


class Twin:
    """The same with lists and words."""

    def __init__(self, levels):
        self.levels, self.first, self.held = levels, [], []
        self.n, self.mean, self.squares = 0.0, 0.0, 0.0
        self.before = None  # mean and reach of the level before
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
            for other in [*sorted(self.held), value]:
                self.add(other)
            self.held = []
            return
        self.held.append(value)
        if self.levels and self.constant and len(self.held) == 2:
            self.before, self.first, self.held = (self.mean, 1e-300), self.held, []
            self.begin(self.first)
            return
        if not self.levels and self.constant and len(self.held) == 8 and len(set(self.held)) == 1:
            for other in self.held:
                self.add(other)
            self.held = []
        run = 8 if self.levels else N_FIRST
        if len(self.held) < run:
            return
        held, self.held = sorted(self.held), []
        if not self.levels and len(set(held)) == 1:
            return
        old = self.n, self.mean, self.squares
        constant, reach = self.constant, self.reach
        back = self.before is not None and abs(held[run // 2] - self.before[0]) < self.before[1] > 1e-300
        one_side = held[0] > self.mean or held[-1] <= self.mean
        again = self.renewed == 0 or (self.renewed == 1 and back) or (self.levels and self.n >= 900)
        if constant or (one_side and again):
            self.begin(held)
            if not constant or abs(old[1] - self.mean) > self.reach:
                if self.squares > 0.0:
                    variance = (self.before[1] / BOUND) ** 2 if back else old[2] / old[0]
                    self.squares = max(self.squares, run * variance)
                self.before, self.anew = (old[1], max(reach, 1e-300)), True
                self.first = held
                self.renewed = 0 if constant else min(self.renewed + 1, 2)
                return
            self.n, self.mean, self.squares = old
        for other in held:
            self.add(other)
        if one_side:
            self.renewed = 2


def followed(values, levels=False):
    moments, first = np.zeros(N_MOMENTS), np.zeros(N_FIRST, np.float64)
    for value in values:
        learn_stream_value(moments, first, float(value), BOUND, HORIZON, levels)
        check_moments(moments[None])
    return moments


lengths, spreads = st.sampled_from((1, 5, 8, 31, 32, 40, 200, 920)), st.sampled_from((0.0, 1e-3, 1.0, 50.0))
pieces = st.lists(st.tuples(lengths, st.sampled_from((0.0, 3.0, -1e3, 1e6)), spreads), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None)
@given(pieces, st.booleans(), st.integers(0, 99))
def test_it_is_the_twin_with_lists(pieces, levels, seed):
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
def test_a_new_level_is_known_after_a_few_values(start, level):
    values = level + np.random.default_rng(0).normal(size=N_FIRST)
    moments = followed([*start, *values])
    assert moments[0] == N_FIRST
    assert abs(moments[1] - level) < 1.0
    assert 0.5 < np.sqrt(moments[2] / moments[0]) < 2.0


def test_two_levels_that_alternate_are_described_by_both():
    rng = np.random.default_rng(2)
    moments = followed(np.concatenate([100.0 * (i % 2) + rng.normal(size=100) for i in range(20)]))
    assert 30.0 < np.sqrt(moments[2] / moments[0]) < 70.0


@pytest.mark.parametrize(("level", "spread", "length"), [(0.0, 1.0, 100), (1e4, 500.0, 50), (0.0, 1e3, N_FIRST)])
def test_a_level_that_comes_back_has_its_scale_again(level, spread, length):
    rng = np.random.default_rng(6)
    outage = level + spread * rng.normal(size=length)
    moments = followed([*(200.0 + rng.normal(size=300)), *outage, *(200.0 + rng.normal(size=100))])
    assert abs(moments[1] - 200.0) < 25.0
    assert np.sqrt(moments[2] / moments[0]) < 25.0


@pytest.mark.parametrize("length", [N_FIRST, 2 * N_FIRST, 100])
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_a_flag_that_changes_after_whole_runs_counts(length, start):
    flags = np.repeat(np.arange(10) % 2 == start, length).astype(float)
    moments = followed(flags)
    assert 0.3 < moments[1] < 0.7
    assert 0.4 < np.sqrt(moments[2] / moments[0]) < 0.6


def test_a_feature_that_is_missing_for_long_keeps_its_scale():
    rng = np.random.default_rng(3)
    here = 1e3 + rng.normal(size=300)
    there = followed([*here, *np.zeros(1000)])
    np.testing.assert_array_equal(there[:3], followed(here)[:3])
    assert followed([*here, *np.zeros(1000)], levels=True)[1] == 0.0  # a target is 0 then


def test_glitches_and_rare_values_are_no_level():
    rng = np.random.default_rng(4)
    moments = followed([*rng.normal(size=200), *np.full(N_FIRST - 1, 1e6), *rng.normal(size=200)])
    assert abs(moments[1]) < 50.0
    assert moments[WAS_RESET] == 0.0
    moments = followed([0.0] * 100 + [1.0, 0.0] * 3 + [0.0] * 100)
    assert moments[MOSTLY_EQUAL] == 1.0
    assert 0.0 < moments[1] < 0.1


@pytest.mark.parametrize(
    ("column", "value"),
    [(0, -1.0), (0, 1e30), (2, -1.0), (3, 32.0), (3, -1.0), (3, 0.5), (4, 2.0), (5, 0.5), (5, 3.0), (6, -1.0)],
)
def test_moments_that_are_none_are_refused(column, value):
    moments = np.zeros((2, N_MOMENTS))
    moments[1, column] = value
    refused("the snapshot is corrupt", check_moments, moments)
