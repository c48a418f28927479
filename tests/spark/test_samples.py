"""Tests of reservoir samples of partitions: they are uniform, and do not depend on the batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm_spark import parts
from streamsvm_spark.parts import Reservoir, Sample, combine_samples


def make_numbered_rows(n, start=0, width=1):
    """Return ``n`` rows whose features and labels are the row numbers, and weights of 1."""
    y = np.arange(start, start + n, dtype=float)
    return np.repeat(y[:, None], width, axis=1).astype(np.float32), y, np.ones(n)


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 30))
def test_samples_do_not_depend_on_the_batches(sizes, size):
    single_batch, many_batches, start = Reservoir(0, size), Reservoir(0, size), 0
    single_batch.add(*make_numbered_rows(sum(sizes)))
    for n in sizes:
        many_batches.add(*make_numbered_rows(n, start))
        start += n
    a, b = single_batch.get_sample(), many_batches.get_sample()
    assert a.y.tolist() == b.y.tolist()
    assert len(set(a.y)) == len(a.y) == min(size, sum(sizes))
    np.testing.assert_array_equal(a.X.ravel(), a.y)


def test_every_row_has_the_same_probability():
    counts = np.zeros(40)
    for seed in range(2000):
        reservoir = Reservoir(seed, 10)
        for start in range(0, 40, 8):
            reservoir.add(*make_numbered_rows(8, start))
        counts[reservoir.get_sample().y.astype(int)] += 1.0
    # Chi-squared with 39 degrees of freedom: larger with probability 1e-4.
    assert np.square((counts - 500.0) / np.sqrt(500.0 * 0.75)).sum() < 80.0


def test_bytes_of_a_sample_are_bounded(monkeypatch):
    monkeypatch.setattr(parts, "_MAX_PARTITION_SAMPLE_BYTES", 1000)
    reservoir = Reservoir(0, 2000)
    for start in range(0, 500, 50):
        reservoir.add(*make_numbered_rows(50, start, width=20))
    assert len(reservoir.get_sample().to_bytes()) <= 1000
    assert len(reservoir.get_sample().y) == 10


@pytest.mark.parametrize("n", [0, 1, 5])
def test_samples_are_restored_from_bytes(n):
    sample = Sample(*make_numbered_rows(n, width=3))
    restored = Sample.from_bytes(sample.to_bytes())
    for actual, expected in zip(restored, sample, strict=True):
        np.testing.assert_array_equal(actual.reshape(expected.shape), expected)


def test_weights_correct_for_sampling_rates(monkeypatch):
    monkeypatch.setattr(parts, "_MAX_SAMPLE_ROWS", 30)
    samples = [Sample(*make_numbered_rows(10)), Sample(*make_numbered_rows(10, 100)), Sample(*make_numbered_rows(10, 200))]
    samples[1].w[:] = 2.0
    combined = combine_samples(samples, [1000, 100, 10])
    counts = [((combined.y >= start) & (combined.y < start + 100)).sum() for start in (0, 100, 200)]
    assert counts == [10, 3, 1]
    weights = [
        combined.w[combined.y < 100][0],
        combined.w[(combined.y >= 100) & (combined.y < 200)][0] / 2.0,
        combined.w[combined.y >= 200][0],
    ]
    np.testing.assert_allclose(np.array(weights) * 1110 / 14, [1000 / 10, 100 / 3, 10 / 1])
    assert weights @ np.array(counts) == pytest.approx(14)
