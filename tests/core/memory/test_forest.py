"""The store of a rolling forest: its size, copies with other sizes, snapshots, and refusal of corrupt ones."""

import numpy as np
import pytest

from refused import refused
from spoilt import check_spoilt
from streamsvm.core.memory import forest as memory
from streamsvm.core.memory.forest import NODES, TREES, ForestStore
from streamsvm.core.steps import forest
from streamsvm.core.steps.forest_growth import grow_tree

pytestmark = pytest.mark.once  # interpreted, each state takes half a second


def learn(store, n, seed=0, labels=3):
    """Learn n rows of integers in the features in use, and their labels, as an ensemble does, but without predictions."""
    rng, v, damping = np.random.default_rng(seed), store.views, np.zeros(100)
    damping[1] = 0.5
    for _ in range(n):
        h = v.header[0]
        place = int(h["n_learned"] % h["capacity"])
        v.row[: store.used] = rng.integers(9, size=store.used)
        v.rows[place, : store.used] = v.row[: store.used]
        v.labels[place] = int(v.row[0] + rng.integers(2)) % labels
        h["n_learned"] += 1
        forest._walk_trees(store.block)
        forest._update_leaves(store.block, damping, place, int(v.labels[place]))
        grow_tree(store.block, damping)
    return store


def learn_numbers(store, n, seed=0):
    """Learn n rows of integers after the three extra columns, and their targets."""
    rng, v = np.random.default_rng(seed), store.views
    for _ in range(n):
        h = v.header[0]
        place, width = int(h["n_learned"] % h["capacity"]), 3 + store.used
        v.row[:width] = rng.integers(9, size=width)
        v.rows[place, :width] = v.row[:width]
        v.numbers[:, place] = v.row[3] - 4.0, v.row[4] - 4.0
        h["n_learned"] += 1
        forest._walk_trees(store.block)
        for kind in range(2):
            forest._update_means(store.block, kind, float(v.numbers[kind, place]))
        grow_tree(store.block, np.zeros(1))
    return store


def make_store(n=0, rows=120, max_features=5, labels=3, columns=None, used=3):
    store = ForestStore(rows, max_features, labels, columns=columns)
    store.used = used
    return learn(store, n) if labels else learn_numbers(store, n)


def test_store_size_equals_documented_formula():
    for rows, features, labels in ((12, 1, 2), (2400, 16, 2), (2400, 64, 26), (2400, 300, 100), (2400, 10_000, 2), (2400, 16, 0)):
        N, D, K = rows, -(-features // 16) * 16, labels
        store = ForestStore(rows, features, labels)
        kept = min(D, 512) + (0 if K else 3)
        places = min(N, 153_600 // kept)
        about = 4 * min(N * kept, 153_600) + (6 if K else 14) * places + 32 * kept**0.5 * (K + 8) + 245_000
        assert abs(store.nbytes - about) < 0.03 * about
        assert store.nbytes == store.block.nbytes == ForestStore.compute_nbytes(D, rows=rows, labels=labels)
        assert ForestStore(rows, features, labels, columns=2).nbytes == ForestStore.compute_nbytes(2, rows=rows, labels=labels)


def test_invalid_sizes_are_refused():
    refused("rows must be an integer between 12", ForestStore, 11, 3, 2)
    refused("max_features must be an integer between 1", ForestStore, 12, 0, 2)


@pytest.mark.parametrize("n", [0, 300])
@pytest.mark.parametrize(("columns", "labels"), [(4, 8), (16, 3), (16, 8)])
def test_copy_with_more_columns_or_labels_grows_the_same_trees(n, columns, labels):
    store, second = make_store(n, columns=4), ForestStore(120, 5, labels, columns=columns)
    second.copy_from(store)
    learn(store, 50, seed=1), learn(second, 50, seed=1)
    assert second.views.header[0]["columns"] == columns
    if labels == 3:  # with more labels, the choice of a split takes more work
        for number in range(TREES):
            for ours, theirs in zip(second.get_tree(number), store.get_tree(number), strict=True):
                np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(second.views.errors, store.views.errors)
    ForestStore(120, 5, labels, columns=columns).restore(second.snapshot())


@pytest.mark.parametrize("n", [5, 300])
def test_copy_with_less_capacity_keeps_the_latest_rows(n, monkeypatch):
    monkeypatch.setattr(memory, "MAX_CELLS", 120 * 4)
    store, second = make_store(n, columns=4), ForestStore(120, 5, 3, columns=16)
    second.copy_from(store)
    assert second.views.rows.shape == (30, 16)
    n_rows = min(n, 30)
    for row in range(n - n_rows, n):
        np.testing.assert_array_equal(second.views.rows[row % 30, :4], store.views.rows[row % 120])
        assert second.views.labels[row % 30] == store.views.labels[row % 120]
    again = ForestStore(120, 5, 3, columns=16)
    again.restore(second.snapshot())
    learn(again, 100), learn(second, 100)
    assert again.snapshot() == second.snapshot()
    assert second.n_grown > 1


@pytest.mark.parametrize("n", [7, 300])
def test_regression_store_is_copied_and_restored(n, monkeypatch):
    store, second = make_store(n, labels=0, columns=4), ForestStore(120, 5, 0, columns=16)
    second.copy_from(store)
    again = ForestStore(120, 5, 0, columns=16)
    again.restore(second.snapshot())
    for one in (store, second, again):
        learn_numbers(one, 150, seed=1)
    assert again.snapshot() == second.snapshot()
    for number in range(TREES):
        for ours, theirs in zip(second.get_tree(number), store.get_tree(number), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    monkeypatch.setattr(memory, "MAX_CELLS", 40 * 8)
    fewer = ForestStore(120, 5, 0, columns=5)
    fewer.copy_from(store)
    assert fewer.views.numbers.shape == (2, 40)
    ForestStore(120, 5, 0, columns=5).restore(fewer.snapshot())
    assert learn_numbers(fewer, 100).n_grown > store.n_grown


def test_swap_labels_changes_rows_and_leaves():
    store = learn(make_store(), 200, labels=2)
    before, v = store.snapshot(), store.views
    labels = v.labels.copy()
    store.swap_labels()
    np.testing.assert_array_equal(v.labels, 1 - labels)
    assert store.snapshot() != before
    ForestStore(120, 5, 3).restore(store.snapshot())
    store.swap_labels()
    assert store.snapshot() == before


@pytest.mark.parametrize("n", [7, 200])
def test_restored_store_continues_like_the_original(n):
    store, second = make_store(n), ForestStore(120, 5, 3)
    second.restore(store.snapshot())
    assert second.snapshot() == store.snapshot()
    for one in (store, second):
        learn(one, 150, seed=1)
    assert second.snapshot() == store.snapshot()
    assert second.n_grown > 3


def of_node(link=None, threshold=None, leaf=None, inner=True):
    """Return a function that changes the first inner node, or the first leaf, of the first tree."""

    def changed(store):
        first = 0
        thresholds = store.views.nodes.view(np.float32)[:, 1]
        node = first if inner else first + int(np.flatnonzero(thresholds[first : first + NODES] == np.inf)[0])
        if link is not None:
            store.views.nodes[node, 0] = link(int(store.views.nodes[node, 0]), first)
        if threshold is not None:
            thresholds[node] = threshold
        if leaf is not None:
            number = int(store.views.nodes[node, 0]) >> 16
            store.views.leaves[number, leaf[0]] = leaf[1]

    return changed


NOWHERE, LEAF = "invalid child, feature or threshold", "invalid label, row or count"


OF_LABELS = {
    "the snapshot's .* is .*, the store's": {"columns": [32], "capacity": [16], "labels": [2], "row_width": [16], "tests": [5]},
    "of a forest with": {"used": [-1, 65]},
    "rows hold numbers beyond": {"used": [3]},
    "does not fit": {"n_learned": [-1, 2**62], "n_grown": [-1], "next_growth": [-1]},
    " hold ": {
        ("rows", (0, 0)): [np.nan, np.inf],
        ("labels", 0): [-1],
        ("fractions", 0): [2],
        ("anchors", 0): [np.nan],
        ("sizes", 3): [0, 1201],
        ("errors", 3): [np.nan],
        ("votes", 3): [0.0, np.inf],
        ("ages", 3): [-3],
    },
    "invalid labels, or an invalid last residual": {("labels", 0): [3]},
    "an error rate above 1": {("errors", 3): [1.5]},
    NOWHERE: [
        *(of_node(threshold=value) for value in (np.nan, -np.inf, np.inf)),
        of_node(threshold=0.5, inner=False),
        of_node(link=lambda link, first: link - (link & 0xFFFF) + first),  # its own child
        of_node(link=lambda link, first: link - (link & 0xFFFF) + first + NODES - 1),  # beyond the tree
        of_node(link=lambda link, _: link - (link & 0xFFFF) + 0xFFFF),  # beyond all trees
        of_node(link=lambda link, _: link | 64 << 16),  # a feature that does not exist
        of_node(link=lambda link, _: link | -(2**31)),
        of_node(link=lambda link, _: link + 1, inner=False),
        of_node(link=lambda link, _: link | 1 << 30, inner=False),
        of_node(link=lambda link, _: link & 0xFFFF | 600 << 16, inner=False),
    ],
    LEAF: [of_node(leaf=leaf, inner=False) for leaf in ((0, 3), (1, -1), (2, 120), (2, -1), (3, 121), (3, 121 << 8), (3, -1))],
}
OF_NUMBERS = {
    "the snapshot's .* is .*, the store's": {"labels": [3], "target_rows": [5], "extra_columns": [0]},
    "invalid labels, or an invalid last residual": {"last_residual": [np.nan, 21.0], ("labels", 0): [1]},
    " hold ": {("numbers", (1, 0)): [np.nan], ("numbers", (0, 0)): [-21.0]},
    "an invalid mean or count": [
        of_node(leaf=leaf, inner=False) for leaf in ((1, 0x7FFF), (1, 0x42FF), (3, 0x42FF), (3, -0x4100))
    ],
    NOWHERE: [of_node(link=lambda link, _: link | 67 << 16)],
}


@pytest.mark.parametrize(("labels", "wrong"), [(3, OF_LABELS), (0, OF_NUMBERS)])
def test_corrupt_snapshots_are_refused(labels, wrong):
    store, second = make_store(100, max_features=64, used=64, labels=labels), ForestStore(120, 64, labels)
    second.restore(store.snapshot())
    check_spoilt(store, second, wrong)
