"""The store of support vectors: its size, its arrays, its snapshots, and refusal of corrupt ones."""

import numpy as np
import pytest
from numba import njit

from refused import refused
from spoilt import check_spoilt
from streamsvm.core.memory.slots import append_vector, remove_vector
from streamsvm.core.memory.support_vectors import SupportVectorStore, Views, views


def make_store():
    """Create a store of five support vectors with two of three features and two of four outputs."""
    store = SupportVectorStore(5, 3, 4)
    store.used, store.n_outputs = 2, 2
    for i in range(5):
        row = np.array([i % 3 + 0.5, -1.0, 0.0], np.float32)
        append_vector(store.block, row, float(np.square(row).sum()), 1.0)
    store.coefficients[:] = np.random.default_rng(0).normal(size=(2, 5))
    store.views.biases[:2] = 0.5
    store.views.means[:2] = 1.0
    return store


def test_store_size_equals_documented_formula():
    for budget, features, outputs, gram, window in (
        (1, 1, 1, False, 0),
        (100, 20, 1, False, 9),
        (15, 16, 3, True, 0),
        (500, 300, 2, False, 1000),
    ):
        S, D = -(-(budget + 1) // 16) // 2 * 32 + 16, -(-features // 16) * 16
        expected = 424 + 128 * ((outputs + 7) // 8) + 36 * S + 8 * outputs * S + 4 * D * S + 36 * D + (8 * S * S if gram else 0)
        expected += 8 * D * window + 24 * (-(-window // 8) * 8)
        assert SupportVectorStore(budget, features, outputs, gram, window).nbytes == expected


def test_snapshots_are_restored():
    store, copy = make_store(), SupportVectorStore(5, 3, 4)
    copy.restore(store.snapshot())
    assert copy.snapshot() == store.snapshot()
    np.testing.assert_array_equal(copy.vectors, store.vectors)


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        ("budget", b"\x07", "budget"),
        ("n_support", b"\xff" * 8, "support vectors"),
        ("n_support", b"\x06", "6 support vectors"),
        ("used", b"\x09", "features"),
        ("n_outputs", b"\x05", "outputs"),
        ("n_outputs", b"\xff" * 8, "outputs"),
        ("next_stamp", b"\x00", "corrupt: .*stamp"),
        ("next_stamp", b"\xff" * 7 + b"\x7f", "corrupt: .*stamp"),
        ("gamma", np.float64(0.0).tobytes(), "corrupt: its gamma is 0.0"),
        ("largest_norm", np.float64(0.0).tobytes(), "corrupt: its norms"),
        ("kernel", b"\x05", "corrupt: unknown kernel 5 of degree 0"),
        ("gamma", b"\xff" * 8, "corrupt: its gamma is nan"),
        (0, None, "snapshot of 0 bytes"),
    ],
)
def test_corrupt_headers_are_refused(place, value, match):
    store = make_store()
    before = store.snapshot()
    snapshot = bytearray(before)
    place = SupportVectorStore._layout.header.fields[place][1] if isinstance(place, str) else place
    snapshot = snapshot[:place] if value is None else snapshot[:place] + value + snapshot[place + len(value) :]
    refused(match, store.restore, bytes(snapshot))
    assert store.snapshot() == before


NUMBERS = {
    "corrupt: .* hold (-?3|-1|inf|nan)": {
        ("vectors", (0, 0)): [3e38],
        ("norms", 0): [-3e38],
        ("coefficients", (0, 0)): [np.inf],
        ("weights", 0): [-1.0, np.inf],
        ("biases", 0): [np.nan],
    },
    "corrupt: its norms": {("vectors", (0, 0)): [3e3]},
    "corrupt: the stamps of support vectors are repeated": {("stamps", 1): [0]},
    "corrupt: .* hold numbers beyond the part in use": {
        ("vectors", (0, 7)): [1.0],
        ("vectors", (2, 0)): [1.0],
        ("means", 2): [1.0],
        ("coefficients", (1, 8)): [1.0],
    },
}
WINDOWS = {
    ("window", (..., 0)): [2e18, np.nan],
    ("window_targets", 0): [-2e100],
    ("window_weights", 0): [-1.0],
    ("window_stamps", 0): [-2],
    ("gram", (..., 0)): [np.inf],
}


def test_corrupt_arrays_are_refused():
    check_spoilt(make_store(), SupportVectorStore(5, 3, 4), NUMBERS)
    store, copy = (SupportVectorStore(5, 3, gram=True, window=4) for _ in range(2))
    check_spoilt(store, copy, {"corrupt: (window.*|gram) hold": WINDOWS})


def test_compiled_code_sees_the_same_arrays():
    @njit
    def fill(block):
        v = views(block)
        v.window_targets[3] = v.header[0]["window"]
        v.vectors[16, 20] = 1.5
        v.cache[0]["options"][1] = 7
        return v.coefficients.shape[0] + v.gram.shape[1]

    store = SupportVectorStore(20, 17, 3, gram=True, window=5)
    assert fill(store.block) == 3 + store.views.norms.size
    assert (store.views.window_targets[3], store.views.vectors[16, 20], store.views.cache[0]["options"][1]) == (5.0, 1.5, 7)
    assert store.views._fields == Views._fields


def test_removed_support_vector_is_overwritten_with_zeros():
    store, copy = make_store(), SupportVectorStore(5, 3, 4)
    for _ in range(5):
        remove_vector(store.block, 0)
    copy.restore(store.snapshot())
    assert copy.n_support == 0
    assert not copy.views.vectors.any()
    assert not copy.views.coefficients.any()


def test_invalid_sizes_are_refused():
    for options, match in (
        ({"budget": 0}, "budget must be an integer between 1"),
        ({"max_features": 2**31}, "max_features must be an integer between 1 and 2\\^31 - 1"),
        ({"outputs": 1.5}, "outputs must be an integer"),
        ({"window": -1}, "window must be an integer between 0"),
    ):
        refused(match, SupportVectorStore, **{"budget": 5, "max_features": 3, **options})
