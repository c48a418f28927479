"""Tests of sample weights in block files, in their sources and in the solvers, against repeated rows."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from linear_problems import SMALL_MEMORY, compute_objective, draw_weights, make_classes
from refused import refused
from streamsvm.linear import BlockFile, BlockWriter, OutOfCoreLinearSVC, block_file, write_blocks, write_rows
from streamsvm.linear.block_writer import open_shuffling_writer

MANY_BLOCKS_MEMORY = 80_000  # bytes: gives many blocks, and a working set of several blocks


@pytest.mark.once
@pytest.mark.parametrize("balanced", [None, "balanced"])
def test_integer_weights_equal_repeated_rows(balanced):
    X, y = make_classes(200, dense=True)
    weights = np.random.default_rng(1).integers(0, 4, 200)
    settings = {"class_weight": balanced, "tol": 1e-7, "memory_limit": MANY_BLOCKS_MEMORY}
    weighted = OutOfCoreLinearSVC(**settings).fit(X, y, weights)
    repeated = OutOfCoreLinearSVC(**settings).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.decision_function(X), repeated.decision_function(X), atol=2e-3)
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-6)


@pytest.mark.once
def test_equal_weights_scale_c():
    X, y = make_classes(300)
    first, second = (OutOfCoreLinearSVC(memory_limit=MANY_BLOCKS_MEMORY).fit(X, y, sample_weight=w) for w in (None, np.ones(300)))
    assert second.objective_ == pytest.approx(first.objective_, rel=1.5e-3)
    once, twice = (OutOfCoreLinearSVC(C=C, tol=1e-6).fit(X, y, w) for C, w in ((2.0, None), (1.0, np.full(300, 2.0))))
    assert once.objective_ == pytest.approx(twice.objective_, rel=2e-6)


@pytest.mark.once
def test_saved_solution_is_reused_only_with_equal_weights(tmp_path):
    X, y = make_classes(500)
    weights = draw_weights(500)
    settings = {"work_folder": tmp_path, "memory_limit": SMALL_MEMORY}
    models = OutOfCoreLinearSVC(**settings).fit_path(X, y, [0.1, 1.0], sample_weight=weights)
    again = OutOfCoreLinearSVC(**settings).fit(X, y, weights)
    np.testing.assert_array_equal(again.coef_, models[1].coef_)
    reversed_model = OutOfCoreLinearSVC(**settings).fit(X, y, weights[::-1])  # other weights: the saved state is not used
    assert reversed_model.objective_ == pytest.approx(compute_objective(reversed_model, X, y, weights[::-1]), rel=1e-6)


@pytest.mark.parametrize("dense", [False, True])
def test_block_files_return_the_written_weights(tmp_path, dense):
    X, y = make_classes(300, dense=dense)
    weights = draw_weights(300)
    with open_shuffling_writer(tmp_path / "rows", dense=dense, weighted=True, block_bytes=2000, memory=20_000) as writer:
        for start in range(0, 300, 70):
            stop = min(start + 70, 300)
            writer.add(X[start:stop], y[start:stop].astype(float), weights=weights[start:stop])
    is_positive = weights > 0.0
    with BlockFile(tmp_path / "rows") as file:
        assert file.weighted
        assert file.shape == (is_positive.sum(), X.shape[1])
        assert file.weights == pytest.approx((weights[is_positive].min(), weights.max(), weights[is_positive].mean()))
        assert file.label_weights == pytest.approx({label: weights[y == label].sum() for label in (-1.0, 1.0)})
        assert file.label_counts == {label: (is_positive & (y == label)).sum() for label in (-1.0, 1.0)}
        blocks = [file.read_block(number) for number in range(len(file))]
    np.testing.assert_array_equal(np.concatenate([block.weights for block in blocks]), weights[is_positive])
    np.testing.assert_array_equal(np.concatenate([block.labels for block in blocks]), y[is_positive])


@pytest.mark.parametrize("dense", [False, True])
def test_shuffled_rows_keep_their_weights(tmp_path, dense):
    X, y = make_classes(400, dense=True)
    order = np.argsort(y)
    X, y = X[order].astype(np.float32), y[order].astype(float)
    weights = np.arange(400.0)
    with open_shuffling_writer(tmp_path / "rows", dense=dense, weighted=True, block_bytes=2000, memory=20_000) as writer:
        writer.add(X if dense else sparse.csr_array(X), y, weights=weights)
    with BlockFile(tmp_path / "rows") as file:
        blocks = [file.read_block(number) for number in range(len(file))]
        rows = np.concatenate([block.weights for block in blocks]).astype(int)
        assert not (np.diff(rows) > 0).all()
        assert sorted(rows.tolist()) == list(range(1, 400))
        np.testing.assert_array_equal(np.concatenate([block.labels for block in blocks]), y[rows])
        values = np.concatenate([block.values for block in blocks])
        np.testing.assert_array_equal(values, X[rows][X[rows] != 0.0] if not dense else X[rows].reshape(-1))
        assert len(file) > 3


def test_files_without_weights_have_version_1(tmp_path):
    with BlockWriter(tmp_path / "rows") as writer:
        writer.add(np.eye(2), np.array([0.0, 1.0]))
    with BlockWriter(tmp_path / "weighted", weighted=True) as writer:
        writer.add(np.eye(2), np.array([0.0, 1.0]), weights=np.array([0.5, 2.0]))
    headers = [block_file.HEADER.unpack_from((tmp_path / name).read_bytes()) for name in ("rows", "weighted")]
    assert [header[1] for header in headers] == [1, 2]
    assert "weights" not in (tmp_path / "rows").read_bytes().decode("latin1")
    with BlockFile(tmp_path / "rows") as file:
        assert (file.weighted, file.weights, file.read_block(0).weights.size) == (False, (1.0, 1.0, 1.0), 0)


@pytest.mark.once
@pytest.mark.parametrize("name", ["rows.txt", "rows.csv", "rows.parquet", "stream"])
def test_all_sources_accept_weights(tmp_path, name):
    X, y = make_classes(200)
    dense, weights = X.toarray().astype(np.float32), draw_weights(200).astype(np.float32).astype(float)
    path, blocks, columns = tmp_path / name, tmp_path / "blocks", {f"x{k}": dense[:, k] for k in range(dense.shape[1])}
    data = pa.table({**columns, "y": y, "w": weights})
    if name == "rows.txt":
        dump_svmlight_file(dense.astype(float), y, str(path), zero_based=False)
        weights_path = tmp_path / "weights"
        weights_path.write_text("".join(f"{weight!r}\n" for weight in weights.tolist()) + "\n")
        options = {"weight": weights_path}
    elif name == "stream":
        rows = (
            (dict(enumerate(row)), label, w) for row, label, w in zip(dense.tolist(), y.tolist(), weights.tolist(), strict=True)
        )
        assert write_rows(rows, blocks) == (np.count_nonzero(weights), dense.shape[1])
    else:
        (csv.write_csv if name.endswith("csv") else parquet.write_table)(data, path)
        options = {"target": "y", "weight": "w"}
    if name != "stream":
        assert write_blocks(path, blocks, **options)[0] == np.count_nonzero(weights)
        direct = OutOfCoreLinearSVC(tol=1e-6, work_folder=tmp_path).fit_file(path, **options)
        again = OutOfCoreLinearSVC(tol=1e-6, work_folder=tmp_path).fit_file(path, **options)
        np.testing.assert_array_equal(direct.coef_, again.coef_)
    with BlockFile(blocks) as file:
        np.testing.assert_array_equal(file.read_block(0).weights, weights[weights > 0.0])
    model = OutOfCoreLinearSVC(tol=1e-6).fit_file(blocks)
    arrays = OutOfCoreLinearSVC(tol=1e-6).fit(dense, y, weights)
    assert model.objective_ == pytest.approx(arrays.objective_, rel=2e-6)
    refused("contains the weights of its rows", OutOfCoreLinearSVC().fit_file, blocks, weight="w")


def test_invalid_weights_are_refused_and_leave_the_model_unchanged(tmp_path):
    X, y = make_classes(60)
    model = OutOfCoreLinearSVC().fit(X, y)
    before = model.coef_.copy()
    for match, weights in (
        ("zero", np.zeros(60)),
        ("[Nn]egative", -np.ones(60)),
        ("NaN", np.full(60, np.nan)),
        ("shape|inconsistent", np.ones(59)),
        ("class 1 has no row whose sample_weight", (y < 0).astype(float)),
        ("C times the weight of class -1 times the weight of a row, 1e-40", np.where(np.arange(60) == 0, 1e-40, 1.0)),
    ):
        refused(match, model.fit, X, y, weights)
        np.testing.assert_array_equal(model.coef_, before)
    path, weights_path = tmp_path / "rows.txt", tmp_path / "weights"
    path.write_text("1 1:1\n-1 1:2\n1 1:3\n")
    for match, text in (
        ("weights, line 2: 'x' is not a weight", "1\nx\n1\n"),
        ("weights, line 1: '-1' is not a weight", "-1\n1\n1\n"),
        ("weights, line 3: 'nan'", "1\n1\nnan\n"),
        ("ends after 2 weights", "1\n1\n"),
        ("more weights than .* has rows \\(3\\)", "1\n1\n1\n1\n"),
        ("no rows with a weight above 0", "0\n0\n0\n"),
    ):
        weights_path.write_text(text)
        refused(match, write_blocks, path, tmp_path / "blocks", weight=weights_path)
    table = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"a": [1.0, 2.0], "y": [0, 1], "w": [1.0, -1.0]}), table)
    for match, options in (
        ("row 2: column 'w' is -1, but", {"weight": "w"}),
        ("no column 'v' for weights", {"weight": "v"}),
        ("no column 'y' for weights .besides", {"weight": "y"}),
    ):
        refused(match, write_blocks, table, tmp_path / "blocks", target="y", **options)
    for match, rows in (
        ("row 1: w must be", [({0: 1.0}, 0, 1.0), ({0: 1.0}, 1, -1.0)]),
        ("row 1 has 2 parts, but the first row has 3", [({0: 1.0}, 0, 1.0), ({0: 1.0}, 1)]),
        ("no rows have a label and a weight above 0", [({0: 1.0}, 0, 0.0)]),
    ):
        refused(match, write_rows, rows, tmp_path / "blocks")
    with BlockWriter(tmp_path / "blocks", weighted=True) as writer:
        for match, weights in (("one value per row .2., not shape", [1.0]), ("row 1 has the weight -1", [1.0, -1.0])):
            refused(match, writer.add, np.eye(2), np.zeros(2), weights=weights)
    with BlockWriter(tmp_path / "blocks") as writer, pytest.raises(ValueError, match="weighted=True"):
        writer.add(np.eye(2), np.zeros(2), weights=[1.0, 1.0])
