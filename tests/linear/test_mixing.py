"""Rows that come sorted are dealt to blocks at random: all of them, as they were, and nothing is left beside them."""

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


def problem(dense=False, n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 12)).astype(np.float32)
    if not dense:
        X[rng.random(X.shape) < 0.7] = 0.0
        X[rng.random(n) < 0.05] = 0.0
    return X, np.sort(rng.random(n) < 0.2).astype(float)


def written(path, X, labels, memory=20_000, dense=False, block_bytes=2000, parts=7):
    with open_shuffling_writer(path, dense=dense, block_bytes=block_bytes, memory=memory) as writer:
        for rows in np.array_split(np.arange(len(labels)), parts):
            writer.add(X[rows] if dense else sparse.csr_array(X[rows]), labels[rows])
        writer.meta = {"what": "rows"}


def read(path):
    """Its rows, labels and the numbers of their blocks, and the file."""
    X, labels, blocks, file = read_blocks(path)
    return X, labels, np.repeat(np.arange(len(blocks)), [len(block.labels) for block in blocks]), file


def means_of_blocks(owners, labels):
    """Of those that are not nearly empty, as the last one may be: of some 30 rows each."""
    counts = np.bincount(owners)
    return (np.bincount(owners, labels) / counts)[counts >= 15]


def in_order(X, labels):
    return sorted(map(tuple, np.column_stack([X, labels]).tolist()))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("memory", [500, 20_000, 10**7])
def test_rows_that_come_sorted_are_mixed(tmp_path, dense, memory):
    X, labels = problem(dense)
    written(tmp_path / "rows", X, labels, memory, dense)
    found, found_labels, owners, file = read(tmp_path / "rows")
    assert in_order(found, found_labels) == in_order(X, labels)
    assert file.meta == {"what": "rows"}
    assert file.label_counts == {0.0: int((labels == 0).sum()), 1.0: int((labels == 1).sum())}
    assert file.largest_block < 4000
    shares = means_of_blocks(owners, found_labels)
    assert len(shares) > 5
    assert np.abs(shares - labels.mean()).max() < 0.35
    assert shares.std() < 0.12
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_mixing_is_the_same_each_time(tmp_path):
    X, labels = problem()
    for name in ("one", "two"):
        written(tmp_path / name, X, labels)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("kind", ["classes", "targets", "constant", "one block"])
def test_rows_that_do_not_stay_as_they_come(tmp_path, kind):
    X, labels = problem()
    rng = np.random.default_rng(1)
    labels = {
        "classes": rng.permutation(labels),
        "targets": rng.normal(size=N) + 1e6,
        "constant": np.full(N, 1e20),
        "one block": labels,
    }[kind]
    written(tmp_path / "rows", X, labels, block_bytes=10**7 if kind == "one block" else 2000)
    found, found_labels, *_ = read(tmp_path / "rows")
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(found_labels, labels)


def test_targets_that_come_sorted_are_mixed(tmp_path):
    X, _ = problem()
    targets = np.sort(np.random.default_rng(1).normal(size=N)) + 1e3
    written(tmp_path / "rows", X, targets)
    found, found_labels, owners, *_ = read(tmp_path / "rows")
    assert in_order(found, found_labels) == in_order(X, targets)
    means = means_of_blocks(owners, found_labels)
    assert len(means) > 5
    assert means.std() < 0.4


def test_rows_of_all_sizes(tmp_path):
    # From empty ones to some that are larger than a buffer, and than a block.
    rng = np.random.default_rng(2)
    sizes = rng.choice([0, 1, 3, 40, 900], N // 3, p=[0.2, 0.3, 0.3, 0.15, 0.05])
    X = np.zeros((len(sizes), 1000), np.float32)
    for row, size in zip(X, sizes, strict=True):
        row[rng.choice(1000, size, replace=False)] = rng.normal(size=size)
    labels = np.repeat([3.0, -1.0], [len(sizes) // 2, len(sizes) - len(sizes) // 2])
    written(tmp_path / "rows", X, labels, memory=30_000)
    found, found_labels, *_ = read(tmp_path / "rows")
    assert not np.array_equal(found_labels, labels)
    assert in_order(found, found_labels) == in_order(X, labels)


@pytest.mark.parametrize("where", ["adding", "dealing", "gathering"])
def test_a_failure_leaves_no_files(tmp_path, where, monkeypatch):
    X, labels = problem()
    fail = Failing(None, 1, OSError(errno.ENOSPC, "No space left on device"))
    if where != "adding":
        owner, name = (block_writer, "select_rows") if where == "dealing" else (BlockFile, "read_all")
        monkeypatch.setattr(owner, name, fail)
    with pytest.raises((OSError, ValueError)):
        written(tmp_path / "rows", X, labels if where != "adding" else np.where(labels > 0.0, np.nan, labels))
    assert not list(tmp_path.iterdir())


@pytest.mark.once
def test_text_sorted_by_class_takes_the_passes_of_text_that_is_not(tmp_path):
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
        passes.append(sum(one.kind == "all" for one in model.history_))
    assert passes[0] <= 1.5 * passes[1]


@pytest.mark.skipif(config.DISABLE_JIT, reason="takes many rows, and compiled code that is quick")
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
    for run in range(4):  # the first one compiles; what threads of other tests take counts too, so the least is asked
        total = 0
        with open_shuffling_writer(tmp_path / "rows", dense=dense, block_bytes=limit // 16, memory=limit) as writer:
            for part in range(parts):
                own = rng.choice(sizes, 300)
                ends = np.concatenate([[0], np.cumsum(own)])
                X = sparse.csr_array((np.ones(ends[-1]), np.arange(ends[-1]) - np.repeat(ends[:-1], own), ends), (300, width))
                X = np.ones((300, width)) if dense else X
                for begin in range(0, 300, 10):
                    writer.add(X[begin : begin + 10], np.full(10, float(part > (parts // 3 if run else 0) + 10)))
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


def test_arrays_that_come_sorted_are_mixed(tmp_path):
    X, labels = problem(dense=True)
    model = OutOfCoreLinearSVC(memory_limit=200_000, work_folder=tmp_path).fit(X, labels)
    _, found, owners, *_ = read(tmp_path / "streamsvm-fit" / "rows")
    assert (np.diff(found) < 0.0).sum() > N // 10
    assert len(np.unique(owners)) >= 3
    assert model.duality_gap_ <= 1e-3 * model.objective_


def test_leftovers_of_a_process_that_was_killed_are_removed(tmp_path):
    X, labels = problem(dense=True)
    folder = tmp_path / "streamsvm-fit"
    folder.mkdir()
    for name in ("rows.first", "rows.first.partial", "rows.partial"):
        (folder / name).write_bytes(b"rows")
    with BlockFile(OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, labels) and folder / "rows") as file:
        assert file.shape == X.shape
    assert not list(folder.glob("rows.*"))
