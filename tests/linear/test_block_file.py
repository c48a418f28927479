"""Block files: what is written is read, and what is not whole is refused."""

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


def some_rows(n=60, d=7, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32) * (rng.random((n, d)) < 0.4)
    return sparse.csr_array(X), rng.integers(0, 2, n).astype(float)


def written(path, X, labels, **settings):
    with BlockWriter(path, **settings) as writer:
        writer.add(X, labels)
    return path


def read(path):
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
def test_written_rows_are_read(tmp_path_factory, sizes, d, dense, block_bytes, seed):
    path = tmp_path_factory.mktemp("blocks") / "rows"
    parts = [some_rows(n, d, seed + k) for k, n in enumerate(sizes)]
    with BlockWriter(path, dense=dense, block_bytes=block_bytes) as writer:
        for k, (X, labels) in enumerate(parts):
            writer.add(X.toarray() if k % 2 else X, labels)
    X, labels, file = read(path)
    expected, targets = np.vstack([X.toarray() for X, _ in parts]), np.concatenate([y for _, y in parts])
    np.testing.assert_array_equal(X, expected)
    np.testing.assert_array_equal(labels, targets)
    assert (file.shape, file.dense) == ((sum(sizes), d), dense)
    assert file.label_counts == {label: int((targets == label).sum()) for label in np.unique(targets)}
    assert file.mean_square == pytest.approx(np.square(expected.astype(float)).sum() / sum(sizes))
    assert file.mean_label == pytest.approx(np.abs(targets).mean())
    assert [file.name for file in path.parent.iterdir()] == ["rows"]


def test_blocks_are_about_as_large_as_asked_for(tmp_path):
    X, labels = some_rows(5000)
    with BlockFile(written(tmp_path / "rows", X, labels, block_bytes=10_000)) as file:
        assert 0.8 * file.nbytes / 10_000 < len(file) < 1.2 * file.nbytes / 10_000
        assert file.largest_block <= 10_100
    with BlockFile(written(tmp_path / "rows", X, labels, block_bytes=1)) as file:
        assert len(file) == 5000  # a row is read whole


def test_numbers_of_rows_are_saved(tmp_path):
    X, labels = some_rows()
    with BlockWriter(tmp_path / "rows", with_row_numbers=True, block_bytes=500) as writer:
        writer.add(X, labels, 3 * np.arange(60, dtype=np.uint64))
        refused("labels and row_numbers must have one value per row \\(60\\)", writer.add, X, labels)
    with BlockFile(tmp_path / "rows") as file:
        numbers = np.concatenate([file.read_block(number).row_numbers for number in range(len(file))])
    np.testing.assert_array_equal(numbers, 3 * np.arange(60))


def test_duplicates_add_up_and_order_is_made(tmp_path):
    X = sparse.coo_array(([1.0, 2.0, 4.0], ([0, 0, 0], [2, 1, 2])), shape=(1, 3))
    found, *_ = read(written(tmp_path / "rows", X, np.ones(1)))
    assert found.tolist() == [[0.0, 2.0, 5.0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_values_that_are_not_finite_are_refused(tmp_path, value):
    for X, labels in (([[value]], [1.0]), ([[1.0]], [value if value != 1e39 else np.nan])):
        refused("not finite", written, tmp_path / "rows", np.array(X), np.array(labels))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.once
def test_every_corrupt_byte_is_noticed(tmp_path):
    path = written(tmp_path / "rows", *some_rows(20), block_bytes=300)
    whole, (X, labels, _) = path.read_bytes(), read(path)
    rng = np.random.default_rng(0)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << int(rng.integers(8)))]) + whole[at + 1 :])
        try:
            found, targets, _ = read(path)
        except BlockFileError as error:
            assert str(path) in str(error)
        else:  # between blocks nothing is written
            np.testing.assert_array_equal(found, X)
            np.testing.assert_array_equal(targets, labels)


@pytest.mark.once
@settings(max_examples=100)
@given(data=st.data())
def test_no_file_is_taken_for_another(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("blocks") / "rows"
    whole = written(path, *some_rows(20, seed=1), block_bytes=300).read_bytes()
    kind = data.draw(st.sampled_from(["cut", "longer", "mixed", "foreign"]))
    if kind == "cut":
        other = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif kind == "longer":
        other = whole + data.draw(st.binary(min_size=1, max_size=99))
    elif kind == "foreign":
        other = data.draw(st.binary(max_size=300))
    else:
        at = data.draw(st.integers(0, 60))
        other = whole[:at] + data.draw(st.binary(min_size=8, max_size=8)) + whole[at + 8 :]
        if other == whole:
            return
    path.write_bytes(other)
    with pytest.raises(BlockFileError):
        read(path)


@pytest.mark.parametrize(
    "about",
    [
        *({"mean_square": 10**400}, {"mean_label": -1.0}, {"meta": 5}, {"labels": 5}, []),
        *({"labels": [[1.0, n]]} for n in (float("inf"), 19)),
        *({"labels": labels} for labels in ([[1.0, -3], [0.0, 23]], [[float("nan"), 20]])),
    ],
    ids=str,
)
def test_the_json_of_a_file_is_checked(tmp_path, monkeypatch, about):
    from streamsvm.linear import block_writer

    good = {"labels": [[1.0, 20]], "mean_square": 1.0, "mean_label": 1.0, "meta": {}}
    text = json.dumps(good | about if about else about)
    monkeypatch.setattr(block_writer.json, "dumps", lambda _: text)
    written(tmp_path / "rows", *some_rows(20))
    refused("contradicts itself", BlockFile, tmp_path / "rows", error=BlockFileError)


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path):
    path = written(tmp_path / "rows", *some_rows(), block_bytes=300)
    whole = path.read_bytes()
    with BlockFile(path) as file:
        file.read_block(1)
        path.write_bytes(whole[: len(whole) // 2])
        for number in range(len(file)):
            refused("was changed while it was read", file.read_block, number, error=BlockFileError)
        path.write_bytes(whole)
        os.utime(path, ns=(1, 1))
        refused("was changed while it was read", file.read_block, 0, error=BlockFileError)


def test_a_full_disk_leaves_no_file(tmp_path):
    written(tmp_path / "rows", *some_rows())
    before, limits = (tmp_path / "rows").read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match="while rows were written.*rows.partial"):
            written(tmp_path / "rows", *some_rows(5000), block_bytes=300)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.name for file in tmp_path.iterdir()] == ["rows"]
    assert (tmp_path / "rows").read_bytes() == before


def test_rows_that_do_not_fit_together_are_refused(tmp_path):
    X, labels = some_rows()
    with BlockWriter(tmp_path / "rows", dense=True) as writer:
        writer.add(X, labels)
        refused("X must have 7 features", writer.add, X[:, :3], labels)
        refused("one value per row \\(60\\), not shape", writer.add, X, labels[:-1])
    assert read(tmp_path / "rows")[0].shape == (60, 7)
    writer = BlockWriter(tmp_path / "other")
    writer.meta = {"much": "x" * 2**26}
    with pytest.raises(ValueError, match="meta takes"), writer:
        writer.add(X, labels)
    with pytest.raises(FileNotFoundError):
        BlockFile(tmp_path / "other")
