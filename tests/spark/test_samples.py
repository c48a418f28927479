"""Samples of the rows of partitions: every row has the same chance, whatever batches it comes in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm_spark import parts
from streamsvm_spark.parts import Reservoir, Sample, combine_samples


def numbered(n, start=0, width=1):
    """Rows whose features and labels are their numbers."""
    y = np.arange(start, start + n, dtype=float)
    return np.repeat(y[:, None], width, axis=1).astype(np.float32), y, np.ones(n)


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 30))
def test_batches_do_not_matter(sizes, size):
    whole, piecewise, start = Reservoir(0, size), Reservoir(0, size), 0
    whole.add(*numbered(sum(sizes)))
    for n in sizes:
        piecewise.add(*numbered(n, start))
        start += n
    a, b = whole.get_sample(), piecewise.get_sample()
    assert a.y.tolist() == b.y.tolist()
    assert len(set(a.y)) == len(a.y) == min(size, sum(sizes))
    np.testing.assert_array_equal(a.X.ravel(), a.y)


def test_each_row_has_the_same_chance():
    counts = np.zeros(40)
    for seed in range(2000):
        reservoir = Reservoir(seed, 10)
        for start in range(0, 40, 8):
            reservoir.add(*numbered(8, start))
        counts[reservoir.get_sample().y.astype(int)] += 1.0
    assert np.square((counts - 500.0) / np.sqrt(500.0 * 0.75)).sum() < 80.0  # chi-squared of 39 degrees: beyond it once in 10^4


def test_what_a_partition_sends_is_bounded(monkeypatch):
    monkeypatch.setattr(parts, "_MAX_PARTITION_SAMPLE_BYTES", 1000)
    reservoir = Reservoir(0, 2000)
    for start in range(0, 500, 50):
        reservoir.add(*numbered(50, start, width=20))
    assert len(reservoir.get_sample().to_bytes()) <= 1000
    assert len(reservoir.get_sample().y) == 10


@pytest.mark.parametrize("n", [0, 1, 5])
def test_bytes_and_back(n):
    sample = Sample(*numbered(n, width=3))
    found = Sample.from_bytes(sample.to_bytes())
    for one, other in zip(found, sample, strict=True):
        np.testing.assert_array_equal(one.reshape(other.shape), other)


def test_a_row_weighs_what_it_stands_for(monkeypatch):
    monkeypatch.setattr(parts, "_MAX_SAMPLE_ROWS", 30)
    samples = [Sample(*numbered(10)), Sample(*numbered(10, 100)), Sample(*numbered(10, 200))]
    samples[1].w[:] = 2.0
    found = combine_samples(samples, [1000, 100, 10])
    counts = [((found.y >= start) & (found.y < start + 100)).sum() for start in (0, 100, 200)]
    assert counts == [10, 3, 1]
    weights = [found.w[found.y < 100][0], found.w[(found.y >= 100) & (found.y < 200)][0] / 2.0, found.w[found.y >= 200][0]]
    np.testing.assert_allclose(np.array(weights) * 1110 / 14, [1000 / 10, 100 / 3, 10 / 1])
    assert weights @ np.array(counts) == pytest.approx(14)
