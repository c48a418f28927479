"""Tests of shuffling: sorted rows are distributed to blocks at random, without loss and without leftover files."""

import errno
import tracemalloc

import numpy as np
import pytest
from numba import config
from scipy import sparse

from failing import Failing
from linear_problems import read_blocks
from streamsvm.linear import BlockFile, OutOfCoreLinearSVC, block_writer, write_blocks
from streamsvm.linear.block_writer import open_shuffling_writer

N = 600 if config.DISABLE_JIT else 3000


def make_sorted_rows(dense=False, n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 12)).astype(np.float32)
    if not dense:
        X[rng.random(X.shape) < 0.7] = 0.0
        X[rng.random(n) < 0.05] = 0.0
    return X, np.sort(rng.random(n) < 0.2).astype(float)


def write_shuffled(path, X, labels, memory=20_000, dense=False, block_bytes=2000, parts=7):
    with open_shuffling_writer(path, dense=dense, block_bytes=block_bytes, memory=memory) as writer:
        for part in np.array_split(np.arange(len(labels)), parts):
            writer.add(X[part] if dense else sparse.csr_array(X[part]), labels[part])
        writer.meta = {"contents": "rows"}


def read_rows(path):
    """Return a block file's rows, labels, the block number of each row, and the file."""
    X, labels, blocks, file = read_blocks(path)
    return X, labels, np.repeat(np.arange(len(blocks)), [len(block.labels) for block in blocks]), file


def compute_block_means(block_numbers, labels):
    """Return the mean label of each block with at least 15 rows. Most have about 30; the last may have fewer."""
    counts = np.bincount(block_numbers)
    return (np.bincount(block_numbers, labels) / counts)[counts >= 15]


def sort_rows(X, labels):
    return sorted(map(tuple, np.column_stack([X, labels]).tolist()))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("memory", [500, 20_000, 10**7])
def test_sorted_rows_are_shuffled(tmp_path, dense, memory):
    X, labels = make_sorted_rows(dense)
    write_shuffled(tmp_path / "rows", X, labels, memory, dense)
    rows_read, labels_read, block_numbers, file = read_rows(tmp_path / "rows")
    assert sort_rows(rows_read, labels_read) == sort_rows(X, labels)
    assert file.meta == {"contents": "rows"}
    assert file.label_counts == {0.0: int((labels == 0).sum()), 1.0: int((labels == 1).sum())}
    assert file.largest_block < 4000
    means = compute_block_means(block_numbers, labels_read)
    assert len(means) > 5
    assert np.abs(means - labels.mean()).max() < 0.35
    assert means.std() < 0.12
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_shuffling_is_reproducible(tmp_path):
    X, labels = make_sorted_rows()
    for name in ("one", "two"):
        write_shuffled(tmp_path / name, X, labels)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("kind", ["classes", "targets", "constant", "one block"])
def test_unsorted_rows_keep_their_order(tmp_path, kind):
    X, labels = make_sorted_rows()
    rng = np.random.default_rng(1)
    labels = {
        "classes": rng.permutation(labels),
        "targets": rng.normal(size=N) + 1e6,
        "constant": np.full(N, 1e20),
        "one block": labels,
    }[kind]
    write_shuffled(tmp_path / "rows", X, labels, block_bytes=10**7 if kind == "one block" else 2000)
    rows_read, labels_read, *_ = read_rows(tmp_path / "rows")
    np.testing.assert_array_equal(rows_read, X)
    np.testing.assert_array_equal(labels_read, labels)


def test_sorted_targets_are_shuffled(tmp_path):
    X, _ = make_sorted_rows()
    targets = np.sort(np.random.default_rng(1).normal(size=N)) + 1e3
    write_shuffled(tmp_path / "rows", X, targets)
    rows_read, labels_read, block_numbers, *_ = read_rows(tmp_path / "rows")
    assert sort_rows(rows_read, labels_read) == sort_rows(X, targets)
    means = compute_block_means(block_numbers, labels_read)
    assert len(means) > 5
    assert means.std() < 0.4


def test_rows_of_all_sizes_are_shuffled(tmp_path):
    # From empty rows to rows that are larger than the buffer and a block.
    rng = np.random.default_rng(2)
    sizes = rng.choice([0, 1, 3, 40, 900], N // 3, p=[0.2, 0.3, 0.3, 0.15, 0.05])
    X = np.zeros((len(sizes), 1000), np.float32)
    for row, size in zip(X, sizes, strict=True):
        row[rng.choice(1000, size, replace=False)] = rng.normal(size=size)
    labels = np.repeat([3.0, -1.0], [len(sizes) // 2, len(sizes) - len(sizes) // 2])
    write_shuffled(tmp_path / "rows", X, labels, memory=30_000)
    rows_read, labels_read, *_ = read_rows(tmp_path / "rows")
    assert not np.array_equal(labels_read, labels)
    assert sort_rows(rows_read, labels_read) == sort_rows(X, labels)


@pytest.mark.parametrize("stage", ["adding", "distributing", "gathering"])
def test_failure_leaves_no_files(tmp_path, stage, monkeypatch):
    X, labels = make_sorted_rows()
    fail = Failing(None, 1, OSError(errno.ENOSPC, "No space left on device"))
    if stage != "adding":
        owner, name = (block_writer, "select_rows") if stage == "distributing" else (BlockFile, "read_all")
        monkeypatch.setattr(owner, name, fail)
    with pytest.raises((OSError, ValueError)):
        write_shuffled(tmp_path / "rows", X, labels if stage != "adding" else np.where(labels > 0.0, np.nan, labels))
    assert not list(tmp_path.iterdir())


@pytest.mark.once
def test_sorted_text_needs_about_as_many_passes_as_shuffled_text(tmp_path):
    rng = np.random.default_rng(3)
    X = sparse.random_array((4 * N, 60), density=0.1, rng=rng, format="csr")
    y = np.asarray(X @ rng.normal(size=60)) + 0.3 * rng.normal(size=4 * N) > 0.5
    passes = []
    for name, order in (("sorted", np.argsort(y, kind="stable")), ("mixed", rng.permutation(4 * N))):
        lines = [
            f"{int(y[row])} "
            + " ".join(
                f"{j + 1}:{x:.6g}"
                for j, x in zip(*(part[X.indptr[row] : X.indptr[row + 1]] for part in (X.indices, X.data)), strict=True)
            )
            for row in order
        ]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
        write_blocks(tmp_path / f"{name}.txt", tmp_path / name, memory_limit=100_000)
        model = OutOfCoreLinearSVC(C=0.3, memory_limit=100_000).fit_file(tmp_path / name)
        passes.append(sum(entry.kind == "all" for entry in model.history_))
    assert passes[0] <= 1.5 * passes[1]


@pytest.mark.skipif(config.DISABLE_JIT, reason="needs many rows, and compiled code")
@pytest.mark.parametrize(
    ("sizes", "dense"),
    [
        ([30], False),
        ([30], True),
        pytest.param([0] * 300 + [2500], False, marks=pytest.mark.thorough),
    ],
)
def test_memory_stays_within_its_limit(tmp_path, sizes, dense):
    limit, rng = 200_000, np.random.default_rng(0)
    width, parts = 20 if dense else 3000, 30  # a few MB
    peaks = []
    for run in range(4):  # the first run compiles; threads of other tests allocate as well, so the smallest peak counts
        total = 0
        with open_shuffling_writer(tmp_path / "rows", dense=dense, block_bytes=limit // 16, memory=limit) as writer:
            for part in range(parts):
                own = rng.choice(sizes, 300)
                ends = np.concatenate([[0], np.cumsum(own)])
                X = sparse.csr_array((np.ones(ends[-1]), np.arange(ends[-1]) - np.repeat(ends[:-1], own), ends), (300, width))
                X = np.ones((300, width)) if dense else X
                for start in range(0, 300, 10):
                    writer.add(X[start : start + 10], np.full(10, float(part > (parts // 3 if run else 0) + 10)))
                total += 300
            del X, own, ends
            if run:
                tracemalloc.start()
        if run:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            if peaks[-1] <= 1.2 * limit:
                break
    with BlockFile(tmp_path / "rows") as file:
        assert file.shape[0] == total
    assert min(peaks) <= 1.2 * limit


def test_sorted_arrays_are_shuffled(tmp_path):
    X, labels = make_sorted_rows(dense=True)
    model = OutOfCoreLinearSVC(memory_limit=200_000, work_folder=tmp_path).fit(X, labels)
    _, labels_read, block_numbers, *_ = read_rows(tmp_path / "streamsvm-fit" / "rows")
    assert (np.diff(labels_read) < 0.0).sum() > N // 10
    assert len(np.unique(block_numbers)) >= 3
    assert model.duality_gap_ <= 1e-3 * model.objective_


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    X, labels = make_sorted_rows(dense=True)
    folder = tmp_path / "streamsvm-fit"
    folder.mkdir()
    for name in ("rows.first", "rows.first.partial", "rows.partial"):
        (folder / name).write_bytes(b"rows")
    with BlockFile(OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, labels) and folder / "rows") as file:
        assert file.shape == X.shape
    assert not list(folder.glob("rows.*"))
