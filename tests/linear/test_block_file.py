"""Tests of block files: they return the rows that were written, and corrupt or truncated files raise an error."""

import json
import os
import resource

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from linear_problems import read_blocks
from refused import refused
from streamsvm.linear import BlockFile, BlockFileError, BlockWriter


def make_rows(n=60, d=7, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32) * (rng.random((n, d)) < 0.4)
    return sparse.csr_array(X), rng.integers(0, 2, n).astype(float)


def write_file(path, X, labels, **settings):
    with BlockWriter(path, **settings) as writer:
        writer.add(X, labels)
    return path


def read_file(path):
    X, labels, blocks, file = read_blocks(path)
    firsts = [block.first_row for block in blocks]
    assert firsts == np.cumsum([0, *(len(block.labels) for block in blocks)])[:-1].tolist()
    assert file.largest_block == max(sum(part.nbytes for part in block[1:]) for block in blocks)
    return X, labels, file


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any),
    d=st.integers(1, 9),
    dense=st.booleans(),
    block_bytes=st.integers(1, 4000),
    seed=st.integers(0, 99),
)
def test_reading_returns_the_written_rows(tmp_path_factory, sizes, d, dense, block_bytes, seed):
    path = tmp_path_factory.mktemp("blocks") / "rows"
    parts = [make_rows(n, d, seed + k) for k, n in enumerate(sizes)]
    with BlockWriter(path, dense=dense, block_bytes=block_bytes) as writer:
        for k, (X, labels) in enumerate(parts):
            writer.add(X.toarray() if k % 2 else X, labels)
    X, labels, file = read_file(path)
    expected, targets = np.vstack([X.toarray() for X, _ in parts]), np.concatenate([y for _, y in parts])
    np.testing.assert_array_equal(X, expected)
    np.testing.assert_array_equal(labels, targets)
    assert (file.shape, file.dense) == ((sum(sizes), d), dense)
    assert file.label_counts == {label: int((targets == label).sum()) for label in np.unique(targets)}
    assert file.mean_square == pytest.approx(np.square(expected.astype(float)).sum() / sum(sizes))
    assert file.mean_label == pytest.approx(np.abs(targets).mean())
    assert [file.name for file in path.parent.iterdir()] == ["rows"]


def test_block_sizes_follow_block_bytes(tmp_path):
    X, labels = make_rows(5000)
    with BlockFile(write_file(tmp_path / "rows", X, labels, block_bytes=10_000)) as file:
        assert 0.8 * file.nbytes / 10_000 < len(file) < 1.2 * file.nbytes / 10_000
        assert file.largest_block <= 10_100
    with BlockFile(write_file(tmp_path / "rows", X, labels, block_bytes=1)) as file:
        assert len(file) == 5000  # a row is never split


def test_row_numbers_are_saved(tmp_path):
    X, labels = make_rows()
    with BlockWriter(tmp_path / "rows", with_row_numbers=True, block_bytes=500) as writer:
        writer.add(X, labels, 3 * np.arange(60, dtype=np.uint64))
        refused("labels and row_numbers must have one value per row \\(60\\)", writer.add, X, labels)
    with BlockFile(tmp_path / "rows") as file:
        numbers = np.concatenate([file.read_block(number).row_numbers for number in range(len(file))])
    np.testing.assert_array_equal(numbers, 3 * np.arange(60))


def test_duplicate_entries_are_summed_and_indices_sorted(tmp_path):
    X = sparse.coo_array(([1.0, 2.0, 4.0], ([0, 0, 0], [2, 1, 2])), shape=(1, 3))
    rows, *_ = read_file(write_file(tmp_path / "rows", X, np.ones(1)))
    assert rows.tolist() == [[0.0, 2.0, 5.0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_non_finite_values_are_refused(tmp_path, value):
    for X, labels in (([[value]], [1.0]), ([[1.0]], [value if value != 1e39 else np.nan])):
        refused("not finite", write_file, tmp_path / "rows", np.array(X), np.array(labels))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.once
def test_corruption_of_any_byte_is_detected(tmp_path):
    path = write_file(tmp_path / "rows", *make_rows(20), block_bytes=300)
    contents, (X, labels, _) = path.read_bytes(), read_file(path)
    rng = np.random.default_rng(0)
    for position in range(len(contents)):
        path.write_bytes(
            contents[:position] + bytes([contents[position] ^ (1 << int(rng.integers(8)))]) + contents[position + 1 :]
        )
        try:
            rows, targets, _ = read_file(path)
        except BlockFileError as error:
            assert str(path) in str(error)
        else:  # the byte is padding between blocks
            np.testing.assert_array_equal(rows, X)
            np.testing.assert_array_equal(targets, labels)


@pytest.mark.once
@settings(max_examples=100)
@given(data=st.data())
def test_truncated_and_foreign_files_are_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("blocks") / "rows"
    contents = write_file(path, *make_rows(20, seed=1), block_bytes=300).read_bytes()
    kind = data.draw(st.sampled_from(["cut", "longer", "mixed", "foreign"]))
    if kind == "cut":
        corrupt = contents[: data.draw(st.integers(0, len(contents) - 1))]
    elif kind == "longer":
        corrupt = contents + data.draw(st.binary(min_size=1, max_size=99))
    elif kind == "foreign":
        corrupt = data.draw(st.binary(max_size=300))
    else:
        position = data.draw(st.integers(0, 60))
        corrupt = contents[:position] + data.draw(st.binary(min_size=8, max_size=8)) + contents[position + 8 :]
        if corrupt == contents:
            return
    path.write_bytes(corrupt)
    with pytest.raises(BlockFileError):
        read_file(path)


@pytest.mark.parametrize(
    "footer",
    [
        *({"mean_square": 10**400}, {"mean_label": -1.0}, {"meta": 5}, {"labels": 5}, []),
        *({"labels": [[1.0, n]]} for n in (float("inf"), 19)),
        *({"labels": labels} for labels in ([[1.0, -3], [0.0, 23]], [[float("nan"), 20]])),
    ],
    ids=str,
)
def test_json_footer_is_validated(tmp_path, monkeypatch, footer):
    from streamsvm.linear import block_writer

    valid_footer = {"labels": [[1.0, 20]], "mean_square": 1.0, "mean_label": 1.0, "meta": {}}
    text = json.dumps(valid_footer | footer if footer else footer)
    monkeypatch.setattr(block_writer.json, "dumps", lambda _: text)
    write_file(tmp_path / "rows", *make_rows(20))
    refused("contradicts itself", BlockFile, tmp_path / "rows", error=BlockFileError)


def test_changes_of_an_open_file_are_detected(tmp_path):
    path = write_file(tmp_path / "rows", *make_rows(), block_bytes=300)
    contents = path.read_bytes()
    with BlockFile(path) as file:
        file.read_block(1)
        path.write_bytes(contents[: len(contents) // 2])
        for number in range(len(file)):
            refused("was changed while it was read", file.read_block, number, error=BlockFileError)
        path.write_bytes(contents)
        os.utime(path, ns=(1, 1))
        refused("was changed while it was read", file.read_block, 0, error=BlockFileError)


def test_full_disk_leaves_no_new_file(tmp_path):
    write_file(tmp_path / "rows", *make_rows())
    before, limits = (tmp_path / "rows").read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match="while rows were written.*rows.partial"):
            write_file(tmp_path / "rows", *make_rows(5000), block_bytes=300)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.name for file in tmp_path.iterdir()] == ["rows"]
    assert (tmp_path / "rows").read_bytes() == before


@pytest.mark.once
def test_rows_of_inconsistent_shape_are_refused(tmp_path):
    X, labels = make_rows()
    with BlockWriter(tmp_path / "rows", dense=True) as writer:
        writer.add(X, labels)
        refused("X must have 7 features", writer.add, X[:, :3], labels)
        refused("one value per row \\(60\\), not shape", writer.add, X, labels[:-1])
    assert read_file(tmp_path / "rows")[0].shape == (60, 7)
    writer = BlockWriter(tmp_path / "other")
    writer.meta = {"much": "x" * 2**26}
    with pytest.raises(ValueError, match="meta takes"), writer:
        writer.add(X, labels)
    with pytest.raises(FileNotFoundError):
        BlockFile(tmp_path / "other")
