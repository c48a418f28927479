"""Tests of `write_rows`, which writes the rows of a stream to a block file."""

import numpy as np
import pytest
from river import datasets

from refused import refused
from streamsvm.linear import BlockFile, OutOfCoreLinearSVC, OutOfCoreLinearSVR, block_file, write_rows
from streamsvm.stream.tables.chunk import Row


@pytest.mark.once
def test_fits_of_streams_and_arrays_agree(tmp_path):
    rows = list(datasets.Phishing())
    names = sorted(rows[0][0])
    X, y = np.array([[x[name] for name in names] for x, _ in rows]), np.array([label for _, label in rows])
    assert write_rows(datasets.Phishing(), tmp_path / "rows", memory_limit=2**18) == X.shape
    with BlockFile(tmp_path / "rows") as file:
        assert len(file) > 3
    model = OutOfCoreLinearSVC(tol=1e-4).fit_file(tmp_path / "rows")
    assert model.feature_names_in_.tolist() == names
    import pandas as pd

    frame = pd.DataFrame(X, columns=names)
    np.testing.assert_allclose(
        model.decision_function(frame), OutOfCoreLinearSVC(tol=1e-4).fit(X, y).decision_function(X), atol=0.05
    )
    assert (model.predict(frame) == y).mean() > 0.85


def test_new_features_become_columns(tmp_path):
    rows = [
        Row({"a": 1.0, "b": 2.0}, "yes"),
        Row({"c": 3.0}, "no"),
        Row({}, "no"),
        Row({"a": -1.0}),
        Row({"b": 0.5, "a": 1}, "yes"),
    ]
    assert write_rows(rows, tmp_path / "rows") == (4, 3)
    with BlockFile(tmp_path / "rows") as file:
        block = file.read_block(0)
        assert block.labels.tolist() == [0.0, 1.0, 1.0, 0.0]
        assert block.starts.tolist() == [0, 2, 3, 3, 5]
        assert block.indices.tolist() == [0, 1, 2, 0, 1]
        assert block.values.tolist() == [1.0, 2.0, 3.0, 1.0, 0.5]
        assert file.meta == {"names": ["a", "b", "c"], "classes": ["yes", "no"]}
    assert OutOfCoreLinearSVC().fit_file(tmp_path / "rows").classes_.tolist() == ["no", "yes"]
    rows = [({k: 1.0, k + 1: 2.0}, k / 10) for k in range(100)]
    assert write_rows(rows, tmp_path / "rows", max_features=20, overflow="hash") == (100, 20)
    assert OutOfCoreLinearSVR(loss="squared_epsilon_insensitive").fit_file(tmp_path / "rows").coef_.shape == (20,)
    assert write_rows(rows, tmp_path / "rows", max_features=20, overflow="ignore") == (100, 20)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (({"a": "spam"}, 1), "row 2: feature 'a' is 'spam'"),
        (({"a": 1e39}, 1), "row 2: feature 'a' is 1e"),
        (({"a": 1.0, "b": 1.0, "c": 1.0}, 1), "row 2: feature 'c' has no column left"),
        (([1.0], 1), "row 2: a row must be a mapping"),
        (({"a": 1.0}, "spam"), "row 2: label 'spam' is a name, but earlier labels are numbers"),
        (({"a": 1.0}, float("inf")), "row 2: label inf is not a finite number"),
        (({"a": 1.0}, [1]), "row 2: label .* is not a finite number"),
    ],
)
def test_errors_name_the_invalid_row(tmp_path, row, message):
    rows = [({"a": 1.0}, 0), ({"b": 1.0}, True), row]
    refused(message, write_rows, rows, tmp_path / "rows", max_features=2)
    assert list(tmp_path.iterdir()) == []


def test_streams_without_labelled_rows_are_refused(tmp_path):
    for rows in ([], [({"a": 1.0}, None)]):
        refused("no rows have a label", write_rows, rows, tmp_path / "rows")
    for settings in ({"max_features": 0}, {"overflow": "drop"}):
        refused(f"{next(iter(settings))} must be", write_rows, [({"a": 1.0}, 1)], tmp_path / "rows", **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [b"bytes", ("a", 1), 1.5, True])
def test_unsupported_feature_names_are_not_saved(tmp_path, name):
    assert write_rows([({name: 1.0, "b": 2.0}, True), ({"b": 1.0}, False)], tmp_path / "rows") == (2, 2)
    with BlockFile(tmp_path / "rows") as file:
        assert file.meta["names"] is None


def test_too_long_feature_names_are_not_saved(tmp_path, monkeypatch):
    # An error at the end of a long stream would lose all of its rows, so this is only a warning.
    monkeypatch.setattr(block_file, "MAX_JSON_BYTES", 2**20 + 2**21)
    rows = ((dict.fromkeys((f"{'x' * 1000}{100 * i + j}" for j in range(100)), 1.0), i % 2) for i in range(30))
    with pytest.warns(UserWarning, match="are too long to be stored"):
        assert write_rows(rows, tmp_path / "rows") == (30, 3000)
    with BlockFile(tmp_path / "rows") as file:
        assert file.meta["names"] is None


def test_hashed_columns_have_no_feature_names(tmp_path):
    write_rows([({f"f{i}": 1.0, "a": -1.0}, i % 2) for i in range(20)], tmp_path / "rows", max_features=4, overflow="hash")
    model = OutOfCoreLinearSVC().fit_file(tmp_path / "rows")
    assert model.n_features_in_ == 4
    assert not hasattr(model, "feature_names_in_")
