"""Cluster trees and approximate neighbours."""

import numpy as np
import pytest

from streamsvm.batch.hss.compression import find_approximate_neighbors
from streamsvm.batch.hss.trees import ClusterTree


@pytest.mark.parametrize("n", [1, 2, 7, 100, 1000])
def test_every_row_is_in_one_leaf(n):
    X = np.random.default_rng(0).normal(size=(n, 3))
    tree = ClusterTree.grow(X, leaf_size=16)
    assert sorted(tree.order.tolist()) == list(range(n))
    leaves = tree.leaves
    assert sorted(tree.stops[leaves]) == [*sorted(tree.starts[leaves])[1:], n]
    assert ((tree.stops - tree.starts)[leaves] <= 16).all()
    for number, (left, right) in enumerate(tree.children):
        if left >= 0:
            assert right < left < number
            assert (tree.starts[left], tree.stops[right], tree.stops[left]) == (
                tree.starts[number],
                tree.stops[number],
                tree.starts[right],
            )
            assert tree.level[left] == tree.level[right] == tree.level[number] + 1


def test_outside_ranges_are_all_other_rows():
    tree = ClusterTree.grow(np.random.default_rng(0).normal(size=(100, 3)), leaf_size=16)
    for start, stop, level, outside in zip(tree.starts, tree.stops, tree.level, tree.list_outside_ranges(), strict=True):
        assert len(outside) == level
        rows = np.concatenate([np.arange(start, stop), *(np.arange(*part) for part in outside)])
        assert sorted(rows.tolist()) == list(range(100))


def test_equal_rows_are_cut_too():
    tree = ClusterTree.grow(np.ones((100, 2)), leaf_size=10)
    assert (tree.stops - tree.starts)[tree.leaves].max() <= 10


def test_leaves_contain_nearby_rows():
    rng = np.random.default_rng(0)
    X = rng.permutation(np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 7.0], [9.0, 7.0]], 32, axis=0)) + 0.1 * rng.normal(size=(128, 2))
    tree = ClusterTree.grow(X, leaf_size=32)
    for leaf in tree.leaves:
        assert np.ptp(X[tree.order[tree.starts[leaf] : tree.stops[leaf]]], axis=0).max() < 2.0


@pytest.mark.once
@pytest.mark.parametrize(("d", "min_recall"), [(2, 0.95), (10, 0.5)])
def test_most_neighbours_are_found(d, min_recall):
    X = np.random.default_rng(0).normal(size=(2000, d)).astype(np.float32)
    near = find_approximate_neighbors(X, 40, trees=4)
    assert near.shape == (2000, 40)
    distances = np.square(X[:, None] - X[None]).sum(axis=2)
    true = np.argsort(distances, axis=1)[:, :5]
    assert np.mean([np.isin(true[i], near[i]).mean() for i in range(2000)]) > min_recall


@pytest.mark.parametrize("n", [1, 3, 50, 97, 400])
def test_neighbours_of_few_rows(n):
    near = find_approximate_neighbors(np.ones((n, 2), np.float32), 64)
    assert len(near) == n
    assert near.min() >= 0
    assert near.max() < n


def test_neighbours_of_rows_without_order():
    X = np.full((1000, 2), np.nan, np.float32)  # compiled code must write within bounds for any input
    near = find_approximate_neighbors(X, 16)
    assert near.min() >= 0
    assert near.max() < 1000
