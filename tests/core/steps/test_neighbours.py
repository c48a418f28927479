"""The distances of the kNN expert, its feature weights, and its nearest rows, computed by hand."""

import numpy as np
import pytest

from streamsvm.core.memory.neighbours import N_NEAREST
from streamsvm.core.steps.neighbours import compute_distances, compute_factors, find_nearest


@pytest.mark.parametrize("n", [0, 1, 12, 13, 14, 60, 300])
@pytest.mark.parametrize("values", [1, 4, 1000])
def test_nearest_rows_are_sorted_and_ties_go_to_the_first(n, values):
    distances = np.random.default_rng(n).integers(values, size=n + 3).astype(np.float32) / np.float32(8.0)
    distances[n:] = 0.0  # beyond the stored rows
    nearest, nearest_distances = np.full(N_NEAREST, -7), np.full(N_NEAREST, -7.0)
    expected = sorted(range(n), key=lambda i: (distances[i], i))[:13]
    assert find_nearest(distances, n, nearest, nearest_distances) == len(expected)
    assert nearest.tolist() == expected + [-7] * (13 - len(expected))
    assert nearest_distances.tolist() == distances[expected].tolist() + [-7.0] * (13 - len(expected))


def test_distances_that_round_alike_are_ties():
    distances = np.array([1.0 + 1e-6, 1.0, 2.0 - 1e-4, 0.5, 2.0, 1.0 - 1e-4], np.float32)
    nearest, nearest_distances = np.zeros(N_NEAREST, np.int64), np.zeros(N_NEAREST)
    assert find_nearest(distances, 6, nearest, nearest_distances) == 6
    assert nearest[:6].tolist() == [3, 0, 1, 5, 2, 4]
    assert nearest_distances[:6].tolist() == distances[nearest[:6]].tolist()


@pytest.mark.parametrize(("n", "n_features", "stride"), [(0, 3, 16), (5, 0, 16), (5, 1, 16), (16, 3, 16), (19, 4, 32)])
def test_distances_are_weighted_sums_of_capped_differences(n, n_features, stride):
    rng = np.random.default_rng(n)
    rows = rng.integers(-16, 17, size=(n_features, stride)).astype(np.float32) / 8.0
    row = rng.integers(-16, 17, size=n_features + 2).astype(np.float32) / 8.0
    factors = np.array(
        [rng.integers(0, 5, size=n_features + 2) / 4.0, [0.5, 1.0, 1.5, 0.25, 1.0, 1.0][: n_features + 2]], np.float32
    )
    out = np.full(stride, -7.0, np.float32)
    compute_distances(row, factors, np.concatenate([rows.ravel(), np.full(9, np.nan, np.float32)]), n_features, stride, n, out)
    for i in range(n):
        assert out[i] == sum(factors[0, j] * min(abs(row[j] - rows[j, i]), factors[1, j]) for j in range(n_features))
    assert (out[n:] == -7.0).all()


@pytest.mark.parametrize(
    ("relevance", "n_updates", "damping", "weights"),
    [
        ([0.5, 0.25, 0.0, -0.5], 51.0, [], [1.0, 0.6, 0.2, 0.2]),
        ([0.5, 0.25, 0.0, -0.5], 50.0, [], [1.0] * 4),  # too few updates
        ([-0.5, -0.25, 0.0, -1.0], 51.0, [], [1.0] * 4),  # no relevant feature
        ([0.1, 0.1, 0.1, 0.1], 1e9, [], [1.0] * 4),
        ([0.5, 0.25, 0.0, -0.5], 51.0, [0.0, 0.5, 0.5, 0.98], [1.0, 0.3, 0.1, 0.004]),
    ],
)
def test_feature_weights_follow_relevance_and_are_at_least_a_fifth(relevance, n_updates, damping, weights):
    units, factors = np.array([1.0, 4.0, 0.5, 2.0, 1.0], np.float32), np.full((2, 5), -7.0, np.float32)
    compute_factors(np.array([*relevance, 9.0]), units, 4, n_updates, 0.2, np.array(damping), factors)
    np.testing.assert_allclose(factors[0], [*(np.array(weights) / units[:4]), -7.0], rtol=1e-6)
    np.testing.assert_array_equal(factors[1], [*units[:4], -7.0])


def test_constant_feature_has_weight_0():
    factors = np.full((2, 2), -7.0, np.float32)
    compute_factors(np.array([0.5, 0.1]), np.array([0.0, 1e-30], np.float32), 2, 100.0, 0.05, np.zeros(0), factors)
    assert factors[:, 0].tolist() == [0.0, 0.0]
    assert np.isfinite(factors).all()
    assert factors[1, 1] > 0.0
