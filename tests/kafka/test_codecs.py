import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm.stream.endpoints import Row
from streamsvm_kafka import Float32Codec, JSONCodec
from streamsvm_kafka.codecs import MAX_MESSAGE_BYTES

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(
    st.dictionaries(st.text(min_size=1).filter(lambda name: name != "y"), finite | st.booleans() | st.text()), st.integers(-5, 5)
)
def test_json_gives_back_what_was_written(x, y):
    codec = JSONCodec("y")
    assert codec.decode(codec.encode(Row(x, y))) == Row(x, y)


@given(st.lists(finite, min_size=3, max_size=3), st.none() | finite)
def test_float32_gives_back_what_was_written(features, y):
    codec = Float32Codec(3)
    assert codec.decode(codec.encode(Row(dict(enumerate(features)), y))) == Row(dict(enumerate(features)), y)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_value_error(value):
    for codec in (JSONCodec("y"), Float32Codec(3)):
        try:
            row = codec.decode(value)
        except ValueError:
            continue
        assert isinstance(row, Row)


def test_json_without_a_label():
    assert JSONCodec("y").decode(b'{"a": 1}') == Row({"a": 1}, None)
    assert JSONCodec("y").decode(b'{"a": 1, "y": null}') == Row({"a": 1}, None)
    assert JSONCodec(None).decode(b'{"a": 1, "y": 2}') == Row({"a": 1, "y": 2}, None)


def test_json_null_is_a_missing_feature():
    assert JSONCodec("y").decode(b'{"a": null, "b": 0, "y": 0}') == Row({"b": 0}, 0)


def test_json_writes_numpy_numbers():
    assert JSONCodec("y").encode(Row({"a": np.float32(0.5)}, np.int64(1))) == b'{"a":0.5,"y":1}'


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not JSON"),
        (b'{"a": 1', "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"3", "got int"),
        (b"null", "got NoneType"),
        (b'{"a": {"b": 1}}', "'a' holds an object"),
        (b'{"y": [1]}', "'y' holds an object or an array"),
        (b" " * (MAX_MESSAGE_BYTES + 1), f"{MAX_MESSAGE_BYTES + 1} bytes"),
    ],
    ids=lambda item: item[:20] if isinstance(item, bytes) else None,
)
def test_json_refuses(value, reason):
    with pytest.raises(ValueError, match=reason):
        JSONCodec("y").decode(value)


@pytest.mark.parametrize(
    ("codec", "row", "reason"),
    [
        (JSONCodec("y"), Row({"y": 1}, 1), "of the label and of a feature"),
        (JSONCodec(None), Row({"a": 1}, 1), "no name for it"),
        (JSONCodec("y"), Row({0: 1}, 1), "cannot be written as JSON"),
        (Float32Codec(2), Row({2: 1.0}), "feature 2 is not one of 0 to 1"),
        (Float32Codec(2), Row({}, 2**24 + 1), "label 16777217 is not a number that float32 holds exactly"),
        (Float32Codec(2), Row({}, np.int64(2**24 + 1)), "label .*16777217.* is not a number that float32 holds exactly"),
        (Float32Codec(2), Row({0: "hot"}), "cannot be written as float32"),
        (Float32Codec(2), Row({0: 1e300}), "cannot be written as float32"),
    ],
)
def test_codecs_refuse_to_write(codec, row, reason):
    with pytest.raises(ValueError, match=reason):
        codec.encode(row)


def test_float32_reads_numpy_rows():
    codec = Float32Codec(2)
    assert codec.decode(np.array([1.5, -2, 1], "<f4").tobytes()) == Row({0: 1.5, 1: -2.0}, 1)
    assert isinstance(codec.decode(np.array([1.5, -2, 1], "<f4").tobytes()).y, int)
    assert codec.decode(np.array([1.5, -2, np.nan], "<f4").tobytes()).y is None
    assert codec.decode(np.array([1.5, -2, 0.5], "<f4").tobytes()).y == 0.5
    assert math.isinf(codec.decode(struct.pack("<3f", math.inf, 0, math.inf)).y)


def test_float32_writes_a_missing_feature_as_nan():
    assert Float32Codec(2).encode(Row({1: 2.0}, 1)) == struct.pack("<3f", math.nan, 2, 1)
    assert Float32Codec(2).decode(Float32Codec(2).encode(Row({1: 2.0}, 1))) == Row({1: 2.0}, 1)


@pytest.mark.parametrize("size", [0, 8, 11, 13, 24])
def test_float32_refuses_other_lengths(size):
    with pytest.raises(ValueError, match=f"{size} bytes; 2 features and a label as float32 take 12"):
        Float32Codec(2).decode(bytes(size))


@pytest.mark.parametrize("n_features", [0, -1, MAX_MESSAGE_BYTES // 4])
def test_float32_refuses_sizes(n_features):
    with pytest.raises(ValueError, match="n_features must be"):
        Float32Codec(n_features)
