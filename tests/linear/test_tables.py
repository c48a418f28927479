"""Tests of the conversion of CSV, Parquet and Arrow files to block files."""

import gzip
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numba import config
from pyarrow import csv, feather, parquet

from refused import refused
from streamsvm.linear import BlockFile, OutOfCoreLinearSVC, OutOfCoreLinearSVR, write_blocks

N = 100 if config.DISABLE_JIT else 3000
SMALL_MEMORY = 2**18


def make_table(labels="numbers", n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).round(3)
    y = X @ [1.0, -2.0, 0.5] + 0.2 * rng.normal(size=n) > 0.0
    values = {"numbers": y.astype(int), "names": np.where(y, "yes", "no"), "truth": y, "targets": X @ [1.0, -2.0, 0.5]}[labels]
    columns = {"a": X[:, 0], "label": values, "b": X[:, 1], "count": (10 * X[:, 2]).astype(int)}
    return pa.table(columns), np.column_stack([X[:, :2], columns["count"]]), values


def save_table(data, path):
    if ".csv" in path.name:
        csv.write_csv(data, path.with_suffix("") if path.suffix == ".gz" else path)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    elif path.suffix == ".parquet":
        parquet.write_table(data, path, row_group_size=1000)
    else:
        feather.write_feather(data, path, compression="uncompressed")
    return path


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "labels"),
    [
        *((f"rows.{suffix}", "names") for suffix in ("csv", "csv.gz", "parquet", "feather", "arrow")),
        *(
            pytest.param(name, labels, marks=pytest.mark.thorough)
            for name in ("rows.csv", "rows.parquet")
            for labels in ("numbers", "truth")
        ),
    ],
)
def test_fits_of_tables_and_arrays_agree(tmp_path, name, labels):
    data, X, y = make_table(labels)
    path = save_table(data, tmp_path / name)
    assert write_blocks(path, tmp_path / "rows", target="label", memory_limit=SMALL_MEMORY) == X.shape
    with BlockFile(tmp_path / "rows") as file:
        assert file.dense
        rows = np.concatenate([file.read_block(k).values.reshape(-1, 3) for k in range(len(file))])
        np.testing.assert_array_equal(rows, X.astype(np.float32))
    model = OutOfCoreLinearSVC(tol=1e-4, memory_limit=SMALL_MEMORY).fit_file(path, target="label")
    arrays = OutOfCoreLinearSVC(tol=1e-4).fit(X, y)
    rows = pd.DataFrame(X, columns=model.feature_names_in_)
    np.testing.assert_allclose(model.decision_function(rows), arrays.decision_function(X), rtol=0.02, atol=0.1)
    expected = y if labels == "numbers" else y.astype(str) if labels == "names" else y.astype(float)
    if (labels, ".csv" in name) == ("truth", True):
        expected = np.where(y, "true", "false")  # in CSV, a truth value is a text label
    assert (model.predict(rows) == expected).mean() > 0.9
    blocks = OutOfCoreLinearSVC(memory_limit=SMALL_MEMORY).fit_file(tmp_path / "rows")
    assert blocks.classes_.tolist() == model.classes_.tolist() == sorted(model.classes_.tolist())


def test_cells_are_parsed_as_in_streams_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    cells = [".5", "+1", '"2"', " 3 ", "1e-70", "0." + 30 * "3"]
    (tmp_path / "rows.csv").write_text("y,x\n" + "".join(f"{'ab'[k % 2]},{cell}\n" for k, cell in enumerate(cells * 3)))
    assert write_blocks(tmp_path / "rows.csv", tmp_path / "rows", target="y") == (18, 1)
    with BlockFile(tmp_path / "rows") as file:
        assert file.read_block(0).values.tolist() == [np.float32(float(cell.strip('"'))) for cell in cells] * 3
        assert file.meta["classes"] == ["a", "b"]


def test_regression_targets_of_a_table(tmp_path):
    data, X, y = make_table("targets")
    model = OutOfCoreLinearSVR(loss="squared_epsilon_insensitive", work_folder=tmp_path / "work")
    rows = pd.DataFrame(X, columns=["a", "b", "count"])
    assert model.fit_file(save_table(data, tmp_path / "rows.parquet"), target="label").score(rows, y) > 0.99
    second = model.fit_file(tmp_path / "rows.parquet", target="a")  # another column is parsed again
    assert second.coef_.shape == (3,)


def test_tables_with_many_zeros_become_sparse(tmp_path):
    rng = np.random.default_rng(0)
    X = np.where(rng.random((200, 10)) < 0.2, 1.0, 0.0)
    data = pa.table({**{f"f{k}": X[:, k] for k in range(10)}, "y": X[:, 0] > X[:, 1]})
    write_blocks(save_table(data, tmp_path / "rows.parquet"), tmp_path / "rows", target="y")
    with BlockFile(tmp_path / "rows") as file:
        assert not file.dense
        assert len(file.read_block(0).values) == int(X.sum())


def test_invalid_tables_are_refused(tmp_path):
    data, *_ = make_table(n=50)
    path = save_table(data, tmp_path / "rows.csv")
    lines = path.read_text().splitlines()
    wrong_path = tmp_path / "wrong.csv"

    def check_is_refused(message, text=None, target="label", source=wrong_path, limit=2**28):
        if text is not None:
            wrong_path.write_text(text)
        refused(message, write_blocks, source, tmp_path / "rows", target=target, memory_limit=limit)
        assert not (tmp_path / "rows").exists()

    check_is_refused(
        "no column None: name the column of labels with target=, one of a, label, b, count", source=path, target=None
    )
    check_is_refused("no column 'y'", source=path, target="y")
    check_is_refused("wrong.csv, line 52: column 'a' is 'spam', not a number", "\n".join([*lines, "spam,1,2,3"]))
    check_is_refused("line 2: column 'a' is 'spam', not a number", "\n".join([lines[0], *["spam,1,2,3"] * 20]))
    check_is_refused("line 52: column 'a' has no value", "\n".join([*lines, ",1,2,3"]))
    check_is_refused("line 52: column 'b' has no value", "\n".join([*lines, "1,1,nan,3"]))
    check_is_refused("line 52: the label is missing", "\n".join([*lines, "1,,2,3"]))
    check_is_refused("line 52: label nan is not a finite number", "\n".join([*lines, "1,nan,2,3"]))
    check_is_refused("line 52: column 'b' is inf, which is not finite", "\n".join([*lines, "1,1,inf,3"]))
    check_is_refused(r"line 52: column 'count' is -1e\+39, which is not finite", "\n".join([*lines, "1,1,2,-1e39"]))
    check_is_refused("line 1: two columns have one name", "a,label,a\n1,1,1\n1,0,1\n")
    wrong_path.write_bytes(b"a,label,\xff\n1,1,1\n")
    check_is_refused("wrong.csv, line 1: not UTF-8")
    wrong_path.write_text("\n".join([*lines, "1,spam,2,3"]))
    refused("must have two labels, but has [01], [01], spam", OutOfCoreLinearSVC().fit_file, wrong_path, target="label")
    check_is_refused("line 52: 2 cells for 4 columns", "\n".join([*lines, "1,2"]))
    check_is_refused("wrong.csv is empty", "")
    check_is_refused("has no rows", lines[0] + "\n")
    check_is_refused("has no columns except 'y'", "y\n1\n0\n", target="y")
    many_rows = "y,x\n" + "1,0.123456789\n" * 3000
    check_is_refused(
        "line 3,002: label 'spam' is a name, but earlier labels are numbers",
        many_rows + "spam,1\n",
        target="y",
        limit=SMALL_MEMORY,
    )
    check_is_refused("line 4: label 'xxx.*has 2,000 characters", f"y,x\na,1\nb,1\n{'x' * 2000},1\n", target="y")
    check_is_refused(
        "line 66: label 'name 64' exceeds the limit of 64 names",
        "y,x\n" + "\n".join(f"name {k},1" for k in range(70)),
        target="y",
    )
    strings = pa.table({"a": ["x", "y"], "label": [0, 1]})
    check_is_refused("row 1: column 'a' is 'x', not a number", source=save_table(strings, tmp_path / "strings.parquet"))
    (tmp_path / "foreign.parquet").write_bytes(b"no table at all")
    check_is_refused("foreign.parquet", source=tmp_path / "foreign.parquet")
    (tmp_path / "foreign.arrow").write_bytes(b"no table at all")
    check_is_refused("foreign.arrow", source=tmp_path / "foreign.arrow")


def test_too_long_row_is_refused(tmp_path):
    columns = {f"column number {k}": np.arange(4.0) for k in range(4000)}
    path = save_table(pa.table({**columns, "label": [0, 1, 0, 1]}), tmp_path / "rows.csv")
    with pytest.raises(ValueError, match="more than a sixteenth of memory_limit"):
        write_blocks(path, tmp_path / "rows", target="label", memory_limit=2**17)
    assert write_blocks(path, tmp_path / "rows", target="label") == (4, 4000)


@pytest.mark.parametrize(("name", "is_table"), [("ROWS.CSV", True), ("rows.csv.txt", False), ("rows.csv.bak", False)])
def test_file_extension_decides_whether_it_is_a_table(tmp_path, name, is_table):
    (tmp_path / name).write_text("y,x\n1,2\n0,1\n" if is_table else "1 1:2\n0 1:1\n")
    assert write_blocks(tmp_path / name, tmp_path / "blocks", target="y" if is_table else None) == (2, 1)


@pytest.mark.once
def test_columns_in_another_order_are_refused(tmp_path):
    data, X, _ = make_table()
    model = OutOfCoreLinearSVC().fit_file(save_table(data, tmp_path / "rows.csv"), target="label")
    frame = pd.DataFrame(X, columns=["a", "b", "count"])
    refused("feature names", model.predict, frame[["b", "a", "count"]])
    model.fit(X, X[:, 0] > 0.0)
    assert not hasattr(model, "feature_names_in_")
