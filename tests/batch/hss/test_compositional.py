"""Partition trees, and matrices of compositional kernels on them, against their definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

import naive_batch
from streamsvm.batch.hss.compositional import RIDGE, compose_matrix
from streamsvm.batch.hss.trees import find_leaf, grow_tree
from streamsvm.core.kernels import KERNELS, Kernel

SLOW = config.DISABLE_JIT


def leaves_of(cuts, X):
    return [find_leaf(x, 0, cuts.right, cuts.cut, cuts.axes, cuts.thresholds) for x in X]


@settings(max_examples=5 if SLOW else 60, deadline=None)
@given(
    n=st.integers(1, 200), d=st.integers(1, 4), leaf_size=st.integers(2, 40), levels=st.integers(1, 5), seed=st.integers(0, 99)
)
def test_a_tree_partitions_the_rows_and_finds_their_leaves(n, d, leaf_size, levels, seed):
    X = np.random.default_rng(seed).integers(0, levels, size=(n, d)).astype(float)  # many equal values
    cuts = grow_tree(X, leaf_size, seed)
    assert sorted(cuts.order.tolist()) == list(range(n))
    sizes = (cuts.stops - cuts.starts)[cuts.leaves]
    assert sizes.sum() == n
    assert 0 < sizes.min() <= sizes.max() <= leaf_size
    assert cuts.cut[cuts.leaves].tolist() == list(range(len(cuts.leaves)))
    for node, right in enumerate(cuts.right):
        if right >= 0:
            assert (cuts.starts[node], cuts.stops[node]) == (cuts.starts[node + 1], cuts.stops[right])
            assert cuts.stops[node + 1] == cuts.starts[right]
    Z = X[cuts.order]
    own = np.repeat(np.arange(len(sizes)), sizes)
    for place, leaf in enumerate(leaves_of(cuts, Z)):
        node = 0
        while leaf != own[place] and cuts.right[node] >= 0:  # only where a cut goes through rows that are equal along its axis
            right = cuts.right[node]
            values = Z @ cuts.axes[cuts.cut[node]]
            goes_left = values[place] <= cuts.thresholds[cuts.cut[node]]
            if goes_left != (place < cuts.starts[right]):
                below, above = values[cuts.starts[node] : cuts.starts[right]], values[cuts.starts[right] : cuts.stops[node]]
                assert below.max() >= above.min() - 1e-12
                break
            node = node + 1 if goes_left else right


def test_different_rows_find_their_leaves():
    X = np.random.default_rng(0).normal(size=(500, 3))
    cuts = grow_tree(X, 20, 1)
    expected = np.repeat(np.arange(len(cuts.leaves)), (cuts.stops - cuts.starts)[cuts.leaves])
    assert leaves_of(cuts, X[cuts.order]) == expected.tolist()


def test_trees_depend_on_the_seed_only():
    X = np.random.default_rng(0).normal(size=(100, 3))
    first, again, different = grow_tree(X, 10, 1), grow_tree(X, 10, 1), grow_tree(X, 10, 2)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert np.abs(np.sum(first.axes[0] * different.axes[0])) < 1.0 - 1e-6


def parts(matrix, cuts):
    """Return the skeletons of all nodes, and the dense matrix that the blocks and interpolations represent."""
    skeletons = [matrix.skeletons[p : p + r] for p, r in zip(matrix.skeleton_starts, matrix.ranks, strict=True)]

    def block(flat, place, rows, columns):
        return flat[place : place + rows * columns].reshape(rows, columns).astype(float)

    def build(node):
        """Return the matrix of the node's rows, and their interpolation from its skeleton."""
        rank = int(matrix.ranks[node])
        if cuts.right[node] < 0:
            m = int(cuts.stops[node] - cuts.starts[node])
            own = block(matrix.blocks, matrix.block_starts[node], m, m)
            return own, block(matrix.interpolations, matrix.interpolation_starts[node], m, rank)
        a, b = node + 1, int(cuts.right[node])
        (A, P), (B, Q) = build(a), build(b)
        between = P @ block(matrix.blocks, matrix.block_starts[node], P.shape[1], Q.shape[1]) @ Q.T
        R = block(matrix.interpolations, matrix.interpolation_starts[node], P.shape[1] + Q.shape[1], rank)
        return np.block([[A, between], [between.T, B]]), np.vstack([P @ R[: P.shape[1]], Q @ R[P.shape[1] :]])

    return skeletons, build(0)[0]


@pytest.mark.parametrize("name", KERNELS)
def test_the_matrix_matches_its_definition(name):
    X = np.random.default_rng(0).normal(size=(60, 2))
    cuts = grow_tree(X, 16, 3)
    X = X[cuts.order]
    matrix = compose_matrix(X, cuts, Kernel(KERNELS[name], 0.4, 1.0, 2), 5, 7)
    skeletons, product = parts(matrix, cuts)
    for node, skeleton in enumerate(skeletons):
        assert len(skeleton) == (min(5, cuts.stops[node] - cuts.starts[node]) if node else 0)
        assert len(set(skeleton.tolist())) == len(skeleton)
        assert ((skeleton >= cuts.starts[node]) & (skeleton < cuts.stops[node])).all()
    expected = naive_batch.compositional(X, cuts, skeletons, RIDGE, kernel=name, gamma=0.4, coef0=1.0, degree=2)
    np.testing.assert_allclose(product, expected, atol=2e-5 * np.abs(expected).max())
    assert np.linalg.eigvalsh(product).min() > -1e-5 * np.abs(product).max()


@pytest.mark.parametrize("gamma", [1e-12, 1e12])
def test_kernels_of_all_ones_and_of_the_identity(gamma):
    X = np.random.default_rng(0).normal(size=(60, 2))
    cuts = grow_tree(X, 16, 3)
    _, product = parts(compose_matrix(X[cuts.order], cuts, Kernel(KERNELS["rbf"], gamma, 0.0, 3), 5, 7), cuts)
    np.testing.assert_allclose(product, np.ones((60, 60)) if gamma < 1.0 else np.eye(60), atol=1e-3)
