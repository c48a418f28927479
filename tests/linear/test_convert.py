"""Tests of the conversion of LIBSVM text to block files; expected numbers are parsed by Python."""

import gzip
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from sklearn.datasets import load_svmlight_file

from lists import OF_RELEASE
from refused import refused
from streamsvm.linear import BlockFile, write_blocks
from streamsvm.linear.convert import parse_libsvm

MIN_MEMORY = 4 * 32 * 4096  # bytes: gives the smallest blocks and chunks


NUMBER = st.one_of(
    st.floats(-(2.0**100), 2.0**100, width=32).map(repr),
    st.integers(-(10**25), 10**25).map(str),
    st.from_regex(r"[+-]?([0-9]{1,25}\.?[0-9]{0,25}|\.[0-9]{1,25})([eE][+-]?[0-9]{1,2})?", fullmatch=True).filter(
        lambda text: abs(float(text)) < 1e38
    ),
)


@settings(max_examples=300 if OF_RELEASE else 30 if config.DISABLE_JIT else 100)
@given(NUMBER, NUMBER)
def test_numbers_are_parsed_as_python_does(label, value):
    block = parse_libsvm(f"{label} 3:{value}\n".encode(), 1, "rows", 0)
    assert block.labels.tolist() == [float(label)]
    assert block.values.tolist() == [np.float32(float(value))]


VALUE = st.integers(-99, 99).map(lambda k: k / 8) | st.sampled_from(["+.5", "1.", "1e-99", "007", "0." + 30 * "1"])
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["+1", "-1", "0", "2.5", ".5"]),
        st.dictionaries(st.integers(1, 50), VALUE, max_size=8),
        st.sampled_from(["", " ", "\t", " # 5:1 a comment", "\r"]),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=20 if config.DISABLE_JIT else 100)
@given(ROWS, st.booleans())
def test_each_line_becomes_a_row(rows, ends_with_newline):
    lines = [" ".join([label, *(f"{index}:{pairs[index]}" for index in sorted(pairs))]) + rest for label, pairs, rest in rows]
    text = "\n\n".join(["# the first line", *lines]) + ("\n" if ends_with_newline else "")
    block = parse_libsvm(text.encode(), 1, "rows", 0)
    assert block.labels.tolist() == [float(label) for label, *_ in rows]
    assert block.indices.tolist() == [index - 1 for _, pairs, _ in rows for index in sorted(pairs)]
    assert block.values.tolist() == [np.float32(float(pairs[index])) for _, pairs, _ in rows for index in sorted(pairs)]
    assert block.starts.tolist() == np.cumsum([0, *(len(pairs) for _, pairs, _ in rows)]).tolist()


def make_random_text(n, seed=0):
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        indices = np.sort(rng.choice(40, rng.integers(0, 9), replace=False)) + 1
        pairs = " ".join(f"{i}:{rng.normal():.4g}" for i in indices)
        lines.append(f"{rng.integers(0, 2)} {pairs}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("compressed", [False, True])
def test_large_files_are_read_in_chunks(tmp_path, compressed):
    text = make_random_text(1500 if config.DISABLE_JIT else 4000)
    path = tmp_path / ("rows.txt.gz" if compressed else "rows.txt")
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    shape = write_blocks(path, tmp_path / "rows", memory_limit=MIN_MEMORY)
    X, y = load_svmlight_file(str(path), zero_based=False)
    with BlockFile(tmp_path / "rows") as file:
        assert file.shape == shape == X.shape
        assert len(file) > (1 if config.DISABLE_JIT else 5)
        blocks = [file.read_block(number) for number in range(len(file))]
        assert file.meta["source"]["name"] == path.name
    np.testing.assert_array_equal(np.concatenate([block.labels for block in blocks]), y)
    np.testing.assert_array_equal(np.concatenate([block.values for block in blocks]), X.data.astype(np.float32))
    np.testing.assert_array_equal(np.concatenate([block.indices for block in blocks]), X.indices)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("spam 1:1", "a line must start with a numeric label"),
        ("1:1 2:1", "must begin with a label"),
        ("1 1", "'1' is not index:value"),
        ("1 1:", "'1:' is not index:value"),
        ("1 qid:3 1:1", "'qid:3' is not index:value"),
        ("1 1:1_0", "'1:1_0' is not index:value"),
        ("1 -1:1", "indices start at 1"),
        ("1 1:nan", "finite in float32"),
        ("1 1:1\0", "is not index:value"),
        ("1 2:1 1:1", "indices must ascend"),
        ("1 2:1 2:1", "an index comes twice"),
        ("1 0:1", "zero_based=True"),
        ("1 2147483647:1", "indices must be at most 2,147,483,646"),
        ("1 99999999999999999999999:1", "indices must be at most 2,147,483,646"),
        ("1 1:1e39", "finite in float32"),
        ("1e400 1:1", "finite in float32"),
    ],
)
def test_errors_name_the_invalid_line(tmp_path, line, message):
    path = tmp_path / "rows.txt"
    path.write_text(make_random_text(1500) + f"{line}\n" + make_random_text(10))
    refused(rf"rows.txt, line 1,501, at '.*{message}", write_blocks, path, tmp_path / "rows", memory_limit=MIN_MEMORY)
    assert [file.name for file in tmp_path.iterdir()] == ["rows.txt"]


def test_unreadable_files_raise_an_error(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("# nothing\n\n")
    refused("has no rows", write_blocks, path, tmp_path / "rows")
    path.write_bytes(os.urandom(10_000))
    refused("rows.txt, line", write_blocks, path, tmp_path / "rows")
    path.write_text("1 " + " ".join(f"{k}:1" for k in range(1, 50_000)))
    with pytest.raises(ValueError, match=r"line 1 is longer than 131,072 bytes: raise memory_limit"):
        write_blocks(path, tmp_path / "rows", memory_limit=MIN_MEMORY)
    assert write_blocks(path, tmp_path / "rows") == (1, 49_999)
    compressed = tmp_path / "rows.gz"
    compressed.write_bytes(gzip.compress(make_random_text(500).encode())[:-100])
    refused("cannot be decompressed", write_blocks, compressed, tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        write_blocks(tmp_path / "none", tmp_path / "other")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows", "rows.gz", "rows.txt"]


def test_byte_order_mark_is_skipped(tmp_path):
    (tmp_path / "rows.txt").write_bytes("\ufeff1 1:1\r\n0 1:2\r\n".encode())
    assert write_blocks(tmp_path / "rows.txt", tmp_path / "rows") == (2, 1)


def test_zero_based_indices_are_accepted(tmp_path):
    (tmp_path / "rows.txt").write_text("1 0:1 3:2\n0 1:1\n")
    assert write_blocks(tmp_path / "rows.txt", tmp_path / "rows", zero_based=True) == (2, 4)


@pytest.mark.parametrize("name", ["rows", "rows.partial", "rows.first", "rows.first.partial"])
def test_source_is_not_overwritten(tmp_path, name):
    text = "1 1:1\n0 1:-1\n"
    (tmp_path / name).write_text(text)
    refused("would be overwritten", write_blocks, tmp_path / name, tmp_path / "rows")
    assert (tmp_path / name).read_text() == text
