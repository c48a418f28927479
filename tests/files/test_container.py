"""The container of model files: readable by the safetensors library, and refused if it is inconsistent."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors import safe_open
from safetensors.numpy import load

from refused import raises
from streamsvm.files.container import DTYPES, CorruptFileError, pack_container, unpack_container

KINDS = st.sampled_from([dtype for name, dtype in DTYPES.items() if name != "C64"])


@given(
    st.dictionaries(
        st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8).filter(lambda name: name != "sha256"),
        KINDS.flatmap(lambda kind: arrays(kind, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))),
        max_size=4,
    ),
    st.dictionaries(st.sampled_from("abc"), st.text(max_size=20)),
)
def test_safetensors_library_reads_containers(arrays, strings):
    data = pack_container(arrays, strings)
    loaded = unpack_container(data)
    theirs = load(data)
    assert hashlib.sha256(data[:-32]).digest() == theirs.pop("sha256").tobytes() == data[-32:]
    assert loaded.arrays.keys() == theirs.keys() == arrays.keys()
    for name, array in arrays.items():
        for read in (loaded.arrays[name], theirs[name]):
            assert read.dtype == array.dtype
            assert read.shape == array.shape
            assert read.tobytes() == array.tobytes()
    assert {name: loaded.strings[name] for name in strings} == strings
    assert pack_container(dict(reversed(arrays.items())), dict(reversed(strings.items()))) == data


def test_strings_are_safetensors_metadata(tmp_path):
    path = tmp_path / "file.safetensors"
    path.write_bytes(pack_container({"a": np.arange(3)}, {"kind": "numbers"}))
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"kind": "numbers", "format": "streamsvm", "version": "1"}


def test_arrays_are_aligned_to_their_item_size():
    data = pack_container({"a": np.arange(3, dtype=np.int8), "b": np.arange(5, dtype=np.float32), "c": np.arange(3.0)}, {})
    loaded = unpack_container(data).arrays
    start = np.frombuffer(data, np.uint8).ctypes.data
    assert [(array.ctypes.data - start) % array.itemsize for array in loaded.values()] == [0, 0, 0]
    assert int.from_bytes(data[:8], "little") % 8 == 0


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([None]), np.zeros(1, "f8,i4"), np.zeros(1, "M8[s]"), np.zeros(1, "c16")]
)
def test_unsupported_dtypes_are_refused(array):
    raises("cannot be saved", pack_container, {"a": array}, {})


def test_every_changed_bit_is_detected():
    data = pack_container({"a": np.arange(4.0)}, {"kind": "numbers"})
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            with pytest.raises(CorruptFileError):
                unpack_container(bytes(changed))
    for size in range(len(data)):
        with pytest.raises(CorruptFileError):
            unpack_container(data[:size])


def crafted(header, buffer=b"", length=None):
    """Return the bytes of a file with this header and buffer, and a valid checksum."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = (len(text) if length is None else length).to_bytes(8, "little") + text + buffer
    return data + hashlib.sha256(data).digest()


META = {"format": "streamsvm", "version": "1"}
SUM = {"dtype": "U8", "shape": [32], "data_offsets": [8, 40]}
GOOD = {"__metadata__": META, "a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}, "sha256": SUM}


def changed(**entry):
    return {**GOOD, "a": {**GOOD["a"], **entry}}


@pytest.mark.parametrize(
    "header",
    [
        changed(dtype="F128"),
        changed(dtype=["F64"]),
        changed(shape=[2]),
        changed(shape=[-1]),
        changed(shape=[1.0]),
        changed(shape=[True]),
        changed(shape=[2**62, 4]),
        changed(shape=[1] * 33),
        changed(shape=1),
        changed(shape="1"),
        changed(data_offsets=[0, 16]),
        changed(data_offsets=[-8, 0]),
        changed(data_offsets=[8, 16]),
        changed(data_offsets=[0.0, 8.0]),
        changed(data_offsets=[0]),
        {**GOOD, "b": GOOD["a"]},
        {**GOOD, "b": {"dtype": "F64", "shape": [0], "data_offsets": [3, 3]}},
        {"__metadata__": META, "a": GOOD["a"]},
        {"__metadata__": META, "a": GOOD["a"], "other": SUM},
        {**GOOD, "__metadata__": {}},
        {**GOOD, "__metadata__": {**META, "format": "other"}},
        {**GOOD, "__metadata__": {**META, "version": "one"}},
        {**GOOD, "__metadata__": {**META, "more": 1}},
        {},
        3,
        b"",
        b"{",
        b"\xff\xfe",
        b'{"a":NaN}',
        b'{"__metadata__":{"format":"streamsvm","version":"1"},"__metadata__":{}}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
    ids=lambda header: repr(header)[:60],
)
def test_inconsistent_headers_are_refused(header):
    with pytest.raises(CorruptFileError):
        unpack_container(crafted(header, bytes(8)))


@pytest.mark.parametrize("length", [0, 1, 2**20, 2**26 + 1, 2**63, 2**64 - 1])
def test_wrong_header_lengths_are_refused(length):
    with pytest.raises(CorruptFileError):
        unpack_container(crafted(GOOD, bytes(8), length))


def test_bools_other_than_0_and_1_are_refused():
    header = {**GOOD, "a": {"dtype": "BOOL", "shape": [8], "data_offsets": [0, 8]}}
    assert unpack_container(crafted(header, bytes([0, 1] * 4))).arrays["a"].tolist() == [False, True] * 4
    raises("bools", unpack_container, crafted(header, bytes([2] * 8)), error=CorruptFileError)
