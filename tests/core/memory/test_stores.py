"""All stores: their arrays do not overlap, and snapshots of other sizes are refused."""

import numpy as np
import pytest

from refused import refused
from streamsvm.core.memory import forest, neighbours
from streamsvm.core.memory.forest import ForestStore
from streamsvm.core.memory.neighbours import NeighbourStore
from streamsvm.core.memory.support_vectors import SupportVectorStore
from streamsvm.core.memory.weights import WeightStore


@pytest.mark.parametrize(
    "store",
    [ForestStore(20, 17, 2), NeighbourStore(20, 17), SupportVectorStore(20, 17, 3, gram=True, window=5), WeightStore(17)],
    ids=lambda store: type(store).__name__,
)
def test_arrays_of_a_block_do_not_overlap(store):
    arrays = [array if array.dtype.names is None else array.view(np.uint64) for array in store.views[1:]]
    for number, array in enumerate(arrays, 1):
        array[...] = number
    assert all((array == number).all() for number, array in enumerate(arrays, 1))
    if isinstance(store, SupportVectorStore):  # loops along its columns use SIMD code
        assert all(array.ctypes.data % 64 == 0 for array in store.views[1:])
        assert store.budget == 20
    ends = [array.ctypes.data + array.nbytes - store.block.ctypes.data for array in store.views]
    assert max(ends) == ends[-1] == store.nbytes


@pytest.mark.parametrize(
    ("module", "store", "other_stores"),
    [
        (forest, ForestStore(120, 5, 3), [ForestStore(240, 5, 3), ForestStore(120, 5, 12)]),
        (neighbours, NeighbourStore(32, 5), [NeighbourStore(48, 5), NeighbourStore(32, 17)]),
    ],
)
def test_snapshots_of_other_sizes_are_refused(module, store, other_stores):
    before = store.snapshot()
    for bad in (b"", before[:-1], before + b"\0", *(other_store.snapshot() for other_store in other_stores)):
        refused("does not fit a store|the store's", store.restore, bad)
    for place in (store._layout.header.itemsize, module.STATE_END - 1):
        refused("beyond the (header|rows)", store.restore, before[:place] + b"\1" + before[place + 1 :])
    assert store.snapshot() == before
