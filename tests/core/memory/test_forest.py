"""The store of a rolling forest: its size, copies with other sizes, snapshots, and what no store wrote is refused."""

import numpy as np
import pytest

from refused import refused
from streamsvm.core.memory import forest as memory
from streamsvm.core.memory.forest import HEADER, LEAVES, NODES, TREES, ForestStore
from streamsvm.core.steps import forest, forest_of_numbers
from streamsvm.core.steps.forest_growth import grow_tree

pytestmark = pytest.mark.once  # interpreted, each state takes half a second


def learn(store, n, seed=0, labels=3):
    """Learn n rows of whole numbers in the features in use, and their labels; as the committee does, but for asking."""
    rng, v, damping = np.random.default_rng(seed), store.views, np.zeros(100)
    damping[1] = 0.5
    for _ in range(n):
        h = v.header[0]
        place = int(h["learned"] % h["places"])
        v.row[: store.used] = rng.integers(9, size=store.used)
        v.rows[place, : store.used] = v.row[: store.used]
        v.labels[place] = int(v.row[0] + rng.integers(2)) % labels
        h["learned"] += 1
        forest.walk_trees(store.block)
        forest._teach_trees(store.block, damping, place, int(v.labels[place]))
        grow_tree(store.block, damping)
    return store


def learn_numbers(store, n, seed=0):
    """Learn n rows of whole numbers behind the three columns that are added, and their targets."""
    rng, v = np.random.default_rng(seed), store.views
    for _ in range(n):
        h = v.header[0]
        place, width = int(h["learned"] % h["places"]), 3 + store.used
        v.row[:width] = rng.integers(9, size=width)
        v.rows[place, :width] = v.row[:width]
        v.numbers[:, place] = v.row[3] - 4.0, v.row[4] - 4.0
        h["learned"] += 1
        forest.walk_trees(store.block)
        for kind in range(2):
            forest_of_numbers._teach_trees(store.block, kind, float(v.numbers[kind, place]))
        grow_tree(store.block, np.zeros(1))
    return store


def made(n=0, rows=120, max_features=5, labels=3, columns=None, used=3):
    store = ForestStore(rows, max_features, labels, columns=columns)
    store.used = used
    return learn(store, n) if labels else learn_numbers(store, n)


def test_store_size_is_what_its_formula_says():
    for rows, features, labels in ((12, 1, 2), (2400, 16, 2), (2400, 64, 26), (2400, 300, 100), (2400, 10_000, 2), (2400, 16, 0)):
        N, D, K = rows, -(-features // 16) * 16, labels
        store = ForestStore(rows, features, labels)
        kept = min(D, 512) + (0 if K else 3)
        places = min(N, 153_600 // kept)
        about = 4 * min(N * kept, 153_600) + (6 if K else 14) * places + 32 * kept**0.5 * (K + 8) + 259_000
        assert abs(store.nbytes - about) < 0.03 * about
        assert store.nbytes == store.block.nbytes == ForestStore.nbytes_of(rows, D, labels)
        assert ForestStore(rows, features, labels, columns=2).nbytes == ForestStore.nbytes_of(rows, 2, labels)


def test_sizes_are_checked():
    refused("rows must be an integer between 12", ForestStore, 11, 3, 2)
    refused("max_features must be an integer between 1", ForestStore, 12, 0, 2)


def test_arrays_of_a_block_do_not_overlap():
    store = ForestStore(20, 17, 2)
    for number, array in enumerate(store.views[1:], 1):
        array[...] = number
    assert all((array == number).all() for number, array in enumerate(store.views[1:], 1))
    ends = [array.ctypes.data + array.nbytes - store.block.ctypes.data for array in store.views]
    assert max(ends) == ends[-1] == store.nbytes


@pytest.mark.parametrize("n", [0, 5, 60, 300])
@pytest.mark.parametrize(("columns", "labels"), [(4, 8), (16, 3), (16, 8)])
def test_a_store_with_more_columns_or_labels_goes_on_alike(n, columns, labels):
    store, other = made(n, columns=4), ForestStore(120, 5, labels, columns=columns)
    other.take(store)
    learn(store, 50, seed=1), learn(other, 50, seed=1)
    assert other.views.header[0]["columns"] == columns
    if labels == 3:  # with more labels, it is more work to choose a test
        for number in range(TREES):
            for ours, theirs in zip(other.tree(number), store.tree(number), strict=True):
                np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(other.views.errors, store.views.errors)
    ForestStore(120, 5, labels, columns=columns).restore(other.snapshot())


@pytest.mark.parametrize("n", [5, 60, 300])
def test_of_more_features_there_is_room_for_fewer_rows_and_the_latest_stay(n, monkeypatch):
    monkeypatch.setattr(memory, "MOST_CELLS", 120 * 4)
    store, other = made(n, columns=4), ForestStore(120, 5, 3, columns=16)
    other.take(store)
    assert other.views.rows.shape == (30, 16)
    held = min(n, 30)
    for row in range(n - held, n):
        np.testing.assert_array_equal(other.views.rows[row % 30, :4], store.views.rows[row % 120])
        assert other.views.labels[row % 30] == store.views.labels[row % 120]
    again = ForestStore(120, 5, 3, columns=16)
    again.restore(other.snapshot())
    learn(again, 100), learn(other, 100)
    assert again.snapshot() == other.snapshot()
    assert other.grown > 1


@pytest.mark.parametrize("n", [0, 7, 60, 300])
def test_a_store_of_numbers_is_copied_and_restored(n, monkeypatch):
    store, other = made(n, labels=0, columns=4), ForestStore(120, 5, 0, columns=16)
    other.take(store)
    again = ForestStore(120, 5, 0, columns=16)
    again.restore(other.snapshot())
    for each in (store, other, again):
        learn_numbers(each, 150, seed=1)
    assert again.snapshot() == other.snapshot()
    for number in range(TREES):
        for ours, theirs in zip(other.tree(number), store.tree(number), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    monkeypatch.setattr(memory, "MOST_CELLS", 40 * 8)
    fewer = ForestStore(120, 5, 0, columns=5)
    fewer.take(store)
    assert fewer.views.numbers.shape == (2, 40)
    ForestStore(120, 5, 0, columns=5).restore(fewer.snapshot())
    assert learn_numbers(fewer, 100).grown > store.grown


def test_labels_that_are_swapped_are_swapped_everywhere():
    store = learn(made(), 200, labels=2)
    before, v = store.snapshot(), store.views
    counts, labels = v.counts.copy(), v.labels.copy()
    store.swap_labels()
    np.testing.assert_array_equal(v.labels, 1 - labels)
    np.testing.assert_array_equal(v.counts, counts[:, :, [1, 0, 2]])
    assert store.snapshot() != before
    ForestStore(120, 5, 3).restore(store.snapshot())
    store.swap_labels()
    assert store.snapshot() == before


@pytest.mark.parametrize("n", [0, 7, 40, 200])
def test_a_store_that_is_restored_goes_on_as_the_other(n):
    store, other = made(n), ForestStore(120, 5, 3)
    other.restore(store.snapshot())
    assert other.snapshot() == store.snapshot()
    for each in (store, other):
        learn(each, 150, seed=1)
    assert other.snapshot() == store.snapshot()
    assert other.grown > 3


def of_phase(phase, labels=3):
    """A store whose tree is at this point: of many features, so that it takes long."""
    store = made(100, max_features=64, used=64, labels=labels)
    for seed in range(500):
        if store.views.header[0]["phase"] == phase:
            return store
        learn(store, 1, seed=seed) if labels else learn_numbers(store, 1, seed=seed)
    raise AssertionError(phase)


def change(name, value, place=None):
    def changed(store):
        if place is None:
            store.views.header[name] = value
        else:
            getattr(store.views, name)[place] = value

    return changed


def of_node(link=None, threshold=None, leaf=None, inner=True):
    """Change the first node of the first tree that is inner, or a leaf."""

    def changed(store):
        first = int(store.views.slots[0]) * NODES
        thresholds = store.views.nodes.view(np.float32)[:, 1]
        node = first if inner else first + int(np.flatnonzero(thresholds[first : first + NODES] == np.inf)[0])
        if link is not None:
            store.views.nodes[node, 0] = link(int(store.views.nodes[node, 0]), first)
        if threshold is not None:
            thresholds[node] = threshold
        if leaf is not None:
            number = int(store.views.slots[0]) * LEAVES + (int(store.views.nodes[node, 0]) >> 16)
            store.views.leaves[number, leaf[0]] = leaf[1]

    return changed


def check_refusal(phase, labels, made_by, match):
    """A snapshot that was valid is refused once it is changed, and the store that refuses it stays as it is."""
    store, other = of_phase(phase, labels), ForestStore(120, 64, labels)
    other.restore(store.snapshot())
    made_by(store)
    before = other.snapshot()
    refused(match, other.restore, store._saved.tobytes())
    assert other.snapshot() == before


NOWHERE, LEAF, STANDS = "leads nowhere", "no label, row or count", "does not say where the work"


@pytest.mark.parametrize(
    ("made_by", "match"),
    [
        (change("columns", 32), "the snapshot's columns is 32, the store's 64"),
        (change("places", 16), "the snapshot's places is 16, the store's 120"),
        (change("labels", 2), "the snapshot's labels is 2"),
        (change("kept", 16), "the snapshot's kept is 16"),
        (change("tests", 5), "the snapshot's tests is 5"),
        (change("used", -1), "of a forest with -1 features"),
        (change("used", 65), "of a forest with 65 features"),
        (change("used", 3), "rows hold numbers beyond"),
        (change("learned", -1), "rows does not fit"),
        (change("learned", 5), "does not fit the store"),
        (change("learned", 2**62), "rows does not fit"),
        (change("grown", -1), "does not fit"),
        (change("begun", 2**40), "does not fit"),
        (change("rows", np.nan, (0, 0)), "rows hold nan"),
        (change("rows", np.inf, (0, 0)), "rows hold inf"),
        (change("labels", 3, 0), "labels or numbers that there are not"),
        (change("labels", -1, 0), "labels hold -1"),
        (change("fractions", 2, 0), "fractions hold 2"),
        (change("anchors", np.nan, 0), "anchors hold nan"),
        (change("slots", 5, 3), "share a slot"),
        (change("slots", 17, 3), "slots hold 17"),
        (change("slots", -1, 3), "slots hold -1"),
        (change("sizes", 0, 3), "sizes hold 0"),
        (change("sizes", 1201, 3), "sizes hold 1201"),
        (change("errors", np.nan, 3), "errors hold nan"),
        (change("errors", 1.5, 3), "misses more rows than there are"),
        (change("votes", 0.0, 3), "votes hold 0"),
        (change("votes", np.inf, 3), "votes hold inf"),
        (change("ages", -3, 3), "ages hold -3"),
        (of_node(threshold=np.nan), NOWHERE),
        (of_node(threshold=-np.inf), NOWHERE),
        (of_node(threshold=np.inf), NOWHERE),
        (of_node(threshold=0.5, inner=False), NOWHERE),
        (of_node(link=lambda link, first: link - (link & 0xFFFF) + first), NOWHERE),  # its own child
        (of_node(link=lambda link, first: link - (link & 0xFFFF) + first + NODES - 1), NOWHERE),  # beyond the tree
        (of_node(link=lambda link, _: link - (link & 0xFFFF) + 0xFFFF), NOWHERE),  # beyond all trees
        (of_node(link=lambda link, _: link | 64 << 16), NOWHERE),  # a feature that is not there
        (of_node(link=lambda link, _: link | -(2**31)), NOWHERE),
        (of_node(link=lambda link, _: link + 1, inner=False), NOWHERE),
        (of_node(link=lambda link, _: link | 1 << 30, inner=False), NOWHERE),
        (of_node(link=lambda link, _: link & 0xFFFF | 600 << 16, inner=False), NOWHERE),
        (of_node(leaf=(0, 3), inner=False), LEAF),
        (of_node(leaf=(1, -1), inner=False), LEAF),
        (of_node(leaf=(2, 120), inner=False), LEAF),
        (of_node(leaf=(2, -1), inner=False), LEAF),
        (of_node(leaf=(3, 121), inner=False), LEAF),
        (of_node(leaf=(3, 121 << 8), inner=False), LEAF),
        (of_node(leaf=(3, -1), inner=False), LEAF),
        (change("phase", 5), STANDS),
        (change("phase", -1), STANDS),
        (change("drawn", -1), STANDS),
        (change("drawn", 101), STANDS),
        (change("tried", -1), STANDS),
        (change("tried", 1000), STANDS),
        (change("members", 120, (0, 0)), STANDS),
        (change("members", 3, (1, 0)), STANDS),
        (change("members", -1, (1, 0)), "members hold -1"),
        (change("features", 64, 0), STANDS),
        (change("features", -1, 0), "features hold -1"),
        (change("equal", 2, 0), "equal hold 2"),
        (change("thresholds", np.nan, 0), "thresholds hold nan"),
        (change("node", -1), "a tree has|" + STANDS),
        (change("node", 1201), "a tree has|" + STANDS),
    ],
)
def test_snapshots_that_compiled_code_could_not_trust_are_refused(made_by, match):
    check_refusal(memory.COUNTING, 3, made_by, match)


@pytest.mark.parametrize(
    ("made_by", "match"),
    [
        (change("labels", 3), "the snapshot's labels is 3, the store's 0"),
        (change("numbered", 5), "the snapshot's numbered is 5"),
        (change("summed", 0), "the snapshot's summed is 0"),
        (change("added", 0), "the snapshot's added is 0"),
        (change("missed", np.nan), "labels or numbers that there are not"),
        (change("missed", 21.0), "labels or numbers that there are not"),
        (change("numbers", np.nan, (1, 0)), "numbers hold nan"),
        (change("numbers", -21.0, (0, 0)), "numbers hold -21"),
        (change("sums", np.inf, 0), "sums hold inf"),
        (change("labels", 1, 0), "labels or numbers that there are not"),
        (of_node(leaf=(1, 0x7FFF), inner=False), "a mean or a count"),  # no number
        (of_node(leaf=(1, 0x42FF), inner=False), "a mean or a count"),  # 127
        (of_node(leaf=(3, 0x42FF), inner=False), "a mean or a count"),
        (of_node(leaf=(3, -0x4100), inner=False), "a mean or a count"),
        (of_node(link=lambda link, _: link | 67 << 16), NOWHERE),
        (change("cursor", 1000), STANDS),
        (change("cursor", -1), STANDS),
        (change("features", 67, 0), STANDS),
        (change("members", 1, (1, 0)), STANDS),
    ],
)
def test_snapshots_of_numbers_that_compiled_code_could_not_trust_are_refused(made_by, match):
    check_refusal(memory.COUNTING, 0, made_by, match)


@pytest.mark.parametrize(
    ("phase", "made_by"),
    [
        (memory.DRAWING, change("cursor", 101)),
        (memory.DRAWING, change("cursor", -1)),
        (memory.OPENING, change("counts", 1, (0, 0, 0))),
        (memory.COUNTING, change("cursor", -1)),
        (memory.COUNTING, change("leaf", -1)),
        (memory.COUNTING, change("leaf", 1000)),
        (memory.OPENING, change("leaf", 0)),  # all nodes so far with children, which are not there
        (memory.COUNTING, change("cursor", 120)),
        (memory.COUNTING, change("step", 0)),
        (memory.COUNTING, change("tried", 0)),
        (memory.COUNTING, change("counts", 1, (-1, 0, 0))),
        (memory.COUNTING, change("waiting", 110, (slice(None), memory.END))),
        (memory.COUNTING, change("waiting", 110, (slice(None), memory.BEGIN))),
        (memory.COUNTING, change("waiting", 29, (slice(None), memory.DEEP))),
        (memory.COUNTING, change("waiting", 2, (slice(None), memory.MIXED))),
        (memory.DIVIDING, change("first", -1)),
        (memory.DIVIDING, change("last", 120)),
        (memory.DIVIDING, change("last", -5)),
        (memory.DIVIDING, change("best", 1000)),
        (memory.DIVIDING, change("best", -1)),
        (memory.DIVIDING, change("left", 3)),
        (memory.DIVIDING, change("right", -3)),
        (memory.DIVIDING, change("node", 1000)),
    ],
)
def test_work_that_stands_nowhere_is_refused(phase, made_by):
    check_refusal(phase, 3, made_by, f"a tree has|{STANDS}")


@pytest.mark.parametrize("labels", [0, 3])
def test_a_tree_of_leaves_alone_is_refused(labels):
    store = of_phase(memory.OPENING, labels)
    v, first, n = store.views, int(store.views.slots[TREES]) * NODES, NODES - 10
    v.nodes[first : first + n, 0] = np.arange(first, first + n)
    v.nodes.view(np.float32)[first : first + n, 1] = np.inf
    v.leaves[:] = 0
    v.header["node"] = v.header["leaf"] = n  # which would go on in the leaves of the next tree
    v.sizes[v.slots[TREES]], v.waiting[n:] = NODES - 1, (0, 9, 1, 3)
    refused(STANDS, ForestStore(120, 64, labels).restore, store._saved.tobytes())


def test_other_bytes_are_refused():
    store = made(7)
    before = store.snapshot()
    for bad in (b"", before[:-1], before + b"\0", ForestStore(240, 5, 3).snapshot(), ForestStore(120, 5, 12).snapshot()):
        refused("does not fit a store|the store's", store.restore, bad)
    for place in (HEADER.itemsize, memory.STATE_END - 1):
        refused("beyond the header", store.restore, before[:place] + b"\1" + before[place + 1 :])
    assert store.snapshot() == before
