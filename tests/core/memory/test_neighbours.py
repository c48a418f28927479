"""The store of nearest neighbours: its size, its ring buffer, its snapshots, and refusal of corrupt ones."""

import numpy as np
import pytest

from refused import refused
from spoilt import check_spoilt
from streamsvm.core.memory import neighbours as memory
from streamsvm.core.memory.neighbours import NeighbourStore
from streamsvm.core.steps import neighbours


def learn(store, x, target, weight=1.0):
    """Learn a row that was predicted wrongly, with features of standard deviation 1."""
    v, laid = store.views, int(store.views.header[0]["row_width"])
    v.row[:laid], v.units[:laid] = x[:laid], 1.0
    neighbours.find_neighbours(store.block, neighbours.MIN_WEIGHT_CLASSIFICATION, np.zeros(0))
    neighbours._learn_row(store.block, target, weight, True, False)


def grown(store, features):
    store.used = features
    neighbours._add_features(store.block)
    return store


def make_store(n, rows=32, max_features=5, features=2):
    """Create a store that has learned n rows: row i has the features i and -i, and the weight i + 1."""
    store = grown(NeighbourStore(rows, max_features), features)
    for i in range(n):
        learn(store, np.array([i, -i] + [0.0] * (features - 2), np.float32), float(i % 3), float(i + 1))
    return store


def weights(store):
    return store.views.weights[: store.n_rows].tolist()


def test_store_size_equals_documented_formula():
    for rows, features in ((16, 1), (2000, 20), (100, 64), (4000, 300), (4000, 10_000)):
        N, D = -(-rows // 16) * 16, -(-features // 16) * 16
        store = NeighbourStore(rows, features)
        assert 700 < store.nbytes - 4 * min(N * D, 128_000) - 12 * N - 24 * D < 1_100
        assert store.nbytes == store.block.nbytes == NeighbourStore.compute_nbytes(D, rows=rows)
        assert NeighbourStore(rows, features, columns=2).nbytes == NeighbourStore.compute_nbytes(2, rows=rows)
    assert store.nbytes < 1_000_000


def test_invalid_sizes_are_refused():
    refused("rows must be an integer between 16", NeighbourStore, 15, 3)
    refused("max_features must be an integer between 1", NeighbourStore, 16, 0)


@pytest.mark.parametrize(("laid", "stride"), [(0, 2000), (1, 2000), (64, 2000), (65, 1968), (512, 240)])
def test_stride_decreases_with_features(laid, stride):
    assert memory.compute_stride(128_000, 2000, laid) == stride
    assert grown(NeighbourStore(2000, 600), laid).stride == stride


def test_oldest_row_is_replaced():
    store = make_store(40)
    assert (store.n_rows, store.stride, store.views.header[0]["next_slot"]) == (32, 32, 8)
    assert weights(store) == [*range(33, 41), *range(9, 33)]
    assert store.vectors[:, 0].tolist() == [w - 1.0 for w in weights(store)]
    assert store.vectors[:, 1].tolist() == [1.0 - w for w in weights(store)]


@pytest.mark.parametrize(
    ("n", "rows", "cells", "features", "stride"),
    [(7, 32, 64, 4, 16), (32, 32, 64, 4, 16), (40, 32, 64, 4, 16), (20, 48, 96, 3, 32), (50, 48, 96, 3, 32)],
)
def test_new_features_keep_the_latest_rows(n, rows, cells, features, stride, monkeypatch):
    monkeypatch.setattr(memory, "MAX_CELLS", cells)
    store = grown(make_store(n, rows), features)
    kept = min(n, stride)
    assert (store.stride, store.n_rows, store.views.header[0]["next_slot"]) == (stride, kept, 0)
    assert weights(store) == list(range(n - kept + 1, n + 1))
    assert store.views.targets[:kept].tolist() == [float((w - 1) % 3) for w in range(n - kept + 1, n + 1)]
    w = np.array(weights(store))
    np.testing.assert_array_equal(store.vectors, np.column_stack([w - 1.0, 1.0 - w] + [0.0 * w] * (features - 2)))
    NeighbourStore(rows, 5).restore(store.snapshot())  # the memory after the rows is zeros
    learn(store, np.ones(features, np.float32), 1.0, 99.0)
    assert weights(store)[0 if kept == stride else kept] == 99.0


@pytest.mark.parametrize("n", [0, 40])
@pytest.mark.parametrize(("here", "there"), [(2, 16), (16, 2)])
def test_copy_with_other_columns_keeps_slots(n, here, there):
    store = grown(NeighbourStore(32, 5, columns=here), 2)
    for i in range(n):
        learn(store, np.array([i, -i], np.float32), float(i % 3), float(i + 1))
    store.views.relevance[:2] = [0.5, -0.25]
    copy = NeighbourStore(32, 5, columns=there)
    copy.copy_from(store)
    assert weights(copy) == weights(store)
    np.testing.assert_array_equal(copy.vectors, store.vectors)
    assert copy.views.relevance[:2].tolist() == [0.5, -0.25]
    again = NeighbourStore(32, 5, columns=here)
    again.copy_from(copy)
    assert again.snapshot() == store.snapshot()


@pytest.mark.parametrize("n", [0, 7, 32, 40])
@pytest.mark.parametrize("rows", [32, 64])
def test_copy_begins_with_the_oldest_row(n, rows):
    store, copy = make_store(n), NeighbourStore(rows, 5)
    store.views.relevance[:2], store.views.header["n_correct"] = [0.5, -0.25], 3
    copy.copy_from(store)
    oldest = max(n - 32, 0)
    assert weights(copy) == list(range(oldest + 1, n + 1))
    assert copy.vectors[:, 0].tolist() == list(range(oldest, n))
    assert copy.views.targets[: copy.n_rows].tolist() == [float(i % 3) for i in range(oldest, n)]
    assert copy.views.relevance.tolist() == store.views.relevance.tolist()
    for name in ("used", "row_width", "n_rows", "n_correct", "n_informative"):
        assert copy.views.header[0][name] == store.views.header[0][name]
    for i in range(rows + 3 - copy.n_rows):  # later rows replace the oldest in turn
        learn(copy, np.ones(2, np.float32), 1.0, 100.0 + i)
    assert weights(copy)[:4] == [100.0 + rows - min(n, 32) + i for i in range(3)] + [max(n - 32, 0) + 4.0 if n > 3 else 103.0 - n]


@pytest.mark.parametrize("n", [0, 7, 40])
def test_restored_store_continues_like_the_original(n):
    store, copy = make_store(n), NeighbourStore(32, 5)
    copy.restore(store.snapshot())
    assert copy.snapshot() == store.snapshot()
    rng = np.random.default_rng(0)
    for i in range(30):
        x = rng.normal(size=2).astype(np.float32)
        for one in (store, copy):
            learn(one, x, float(i % 2), 2.0)
    assert copy.snapshot() == store.snapshot()
    assert copy.views.header[0]["n_informative"] > 0.0


HEADERS = {
    "the snapshot's .* is .*, the store's": {"columns": [32], "cells": [528], "rows": [16]},
    "of -?[16] features": {"used": [-1, 6]},
    "2 of 1 features": {"used": [1]},
    "(-1|3) of 2 features": {"row_width": [-1, 3]},
    "hold numbers beyond": {"row_width": [1]},
    "(-1|33) rows": {"n_rows": [-1, 33]},
    "(31|32) rows, where there is room for 32": {
        "n_rows": [31],
        "next_slot": [-1, 32],
        "n_correct": [-1, 2**62],
        "n_informative": [-1.0, np.nan, 2.0**62],
    },
}
NUMBERS = {
    "corrupt: .* hold numbers beyond": {
        ("cells", 7): [1.0],
        ("cells", 64): [1.0],
        ("targets", 7): [1.0],
        ("weights", 7): [1.0],
        ("relevance", 2): [1.0],
    },
    "corrupt: .* hold (nan|-?inf|-?2|-1)": {
        ("cells", 0): [np.nan, -np.inf, 2e30],
        ("targets", 0): [np.nan, -2e30],
        ("weights", 0): [-1.0, 2e9, np.nan],
        ("relevance", 0): [np.nan, -2e100],
    },
}


@pytest.mark.parametrize(("n", "wrong"), [(40, HEADERS), (7, NUMBERS)])
def test_corrupt_snapshots_are_refused(n, wrong):
    check_spoilt(make_store(n), make_store(5), wrong)


def test_only_512_features_are_stored():
    store = grown(NeighbourStore(16, 600), 513)
    assert (store.used, store.views.header[0]["row_width"], store.vectors.shape) == (513, 512, (0, 512))
    fresh = NeighbourStore(16, 600)
    fresh.restore(store.snapshot())
    store.views.header["row_width"] = 513
    refused("513 of 513 features", fresh.restore, store.snapshot())
