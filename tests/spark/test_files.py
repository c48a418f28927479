"""Parquet files that workers read themselves: the same models and predictions as of frames, and what is refused."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PythonException

from refused import raises
from spark_frames import framed, of_file
from streamsvm_spark import BudgetedSVMClassifier, BudgetedSVMRegressor, RowsError, files
from streamsvm_spark.files import Files, Piece, _partitions_of, _paths_and_sizes, _pieces_of_file, _read_batches, _system_of


@pytest.fixture(scope="module")
def table(rows):
    X, y, _, _ = rows
    offsets = pa.array(np.arange(0, X.size + 1, 3, dtype=np.int32))
    features = pa.ListArray.from_arrays(offsets, pa.array(X.ravel()))
    columns = {"features": features, "label": y, "w": np.arange(600) % 3, "n": np.arange(600)}
    return pa.table({**columns, **{f"x{i}": X[:, i] for i in range(3)}})


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    """Two files of two row groups of 150 rows each, and what is no file of theirs."""
    path = tmp_path_factory.mktemp("rows")
    (path / "b").mkdir()
    parquet.write_table(table.slice(0, 300), path / "a.parquet", row_group_size=150)
    parquet.write_table(table.slice(300), path / "b" / "c.parquet", row_group_size=150)
    (path / "_SUCCESS").touch()
    (path / ".hidden").mkdir()
    (path / ".hidden" / "d.parquet").write_text("nothing")
    return path


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_fit_is_that_of_a_frame_of_the_same_partitions(spark, rows, folder, rounds):
    X, y, _, _ = rows
    estimator = BudgetedSVMClassifier(budget=30, rounds=rounds, seed=3)
    model = estimator.fit(framed(spark, X, y, 4))
    found = estimator.fitParquet(folder, partitions=4)
    if rounds == 1:
        assert of_file(found.learner()) == of_file(model.learner())
    else:  # sums of other batches
        np.testing.assert_allclose(found.learner().coefficients, model.learner().coefficients, rtol=1e-6, atol=1e-8)
    by_columns = estimator.fitParquet(f"file://{folder}", inputCols=["x0", "x1", "x2"], partitions=4)
    assert of_file(by_columns.learner()) == of_file(found.learner())
    assert estimator.fitParquet(folder).learner().n_learned == 600


def test_weights_and_targets(spark, rows, folder):
    X, y, _, _ = rows
    w = np.arange(600) % 3
    estimator = BudgetedSVMRegressor(budget=30, weightCol="w")
    expected = estimator.fit(framed(spark, X, y, 1, w=w))
    assert of_file(estimator.fitParquet(folder, partitions=1).learner()) == of_file(expected.learner())
    model = estimator.fitParquet(folder)
    assert w @ np.square(model.learner().predict_many(X) - y) < 0.8 * w @ np.square(y - y.mean())


def test_predictions_are_those_of_a_frame(spark, folder):
    model = BudgetedSVMClassifier(budget=30).fitParquet(folder)
    expected = model.transform(spark.read.option("recursiveFileLookup", True).parquet(str(folder))).orderBy("n").toPandas()
    found = model.transformParquet(folder, ["n", "features"], partitions=2)
    assert found.columns == ["n", "features", "rawPrediction", "probability", "prediction"]
    found = found.toPandas()
    assert found.n.tolist() == list(range(600))
    for name in ("rawPrediction", "probability", "prediction"):
        assert found[name].tolist() == expected[name].tolist()
    only = model.copy({model.rawPredictionCol: "", model.probabilityCol: ""})
    alone = only.transformParquet(folder / "a.parquet", inputCols=["x0", "x1", "x2"]).toPandas()
    assert list(alone) == ["prediction"]
    assert alone.prediction.tolist() == expected.prediction.tolist()[:300]
    raises("a column of the files is named 'prediction'", model.transformParquet, folder, ["prediction"])


def test_vectors_that_spark_wrote(spark, rows, tmp_path):
    X, y, _, _ = rows
    frame = framed(spark, X, y, 2)
    frame.write.parquet(str(tmp_path / "rows"))
    model = BudgetedSVMClassifier(budget=30).fitParquet(tmp_path / "rows", partitions=2)
    assert of_file(model.learner()) == of_file(BudgetedSVMClassifier(budget=30).fit(frame).learner())
    assert model.transformParquet(tmp_path / "rows").count() == 600


def test_rows_that_cannot_be_used(spark, table, tmp_path):
    values = table.column("x1").to_pylist()
    values[450] = None
    parquet.write_table(table.set_column(table.column_names.index("x1"), "x1", [values]), tmp_path / "a.parquet")
    columns = ["x0", "x1", "x2"]
    with pytest.raises(RowsError, match="partition 0: 1 of .* rows of a batch cannot be used; .* handleInvalid='skip'"):
        BudgetedSVMClassifier(budget=30).fitParquet(tmp_path, inputCols=columns)
    model = BudgetedSVMClassifier(budget=30, handleInvalid="skip").fitParquet(tmp_path, inputCols=columns)
    assert model.learner().n_learned == 599
    found = model.transformParquet(tmp_path, ["n"], inputCols=columns).toPandas()
    assert found.n.tolist() == [n for n in range(600) if n != 450]
    with pytest.raises(PythonException, match="one of its features is not finite"):
        model.setHandleInvalid("error").transformParquet(tmp_path, inputCols=columns).count()


def test_what_is_refused(spark, folder, table, tmp_path, monkeypatch):
    svm = BudgetedSVMClassifier(budget=30)
    for path, how, reason in (
        (tmp_path / "nowhere", {}, "there is no .*nowhere"),
        (tmp_path, {}, "there is no file in"),
        ("other://host/rows", {}, "other://host/rows is in no file system that Arrow reads .* fit the frame"),
        (folder, {"inputCols": ["x0", "a"]}, "has no column 'a': it has features, label"),
        (folder, {"partitions": 0}, "partitions must be at least 1, not 0"),
    ):
        raises(reason, svm.fitParquet, path, **how)
    with monkeypatch.context() as patch:
        patch.setattr(files, "is_remote", lambda: True)
        raises("Spark Connect does not say .*: give partitions", svm.fitParquet, folder)
    parquet.write_table(table.append_column("text", pa.array(["a"] * 600)), tmp_path / "a.parquet")
    raises("the feature 'text' is of type string", svm.fitParquet, tmp_path, inputCols=["text"], error=RowsError)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and nothing")
    raises(r"b\.parquet is no Parquet file", svm.fitParquet, tmp_path)
    parquet.write_table(table.slice(0, 0), tmp_path / "b.parquet")
    assert svm.fitParquet(tmp_path).learner().n_learned == 600
    (tmp_path / "a.parquet").unlink()
    raises("have no rows", svm.fitParquet, tmp_path)


def test_a_file_that_is_written_anew_meanwhile(spark, table, tmp_path):
    parquet.write_table(table, tmp_path / "a.parquet")
    found = Files(tmp_path, {"label": "label"}).mapped(lambda batches: batches, "label long")
    assert found.count() == 600
    parquet.write_table(table.slice(0, 100), tmp_path / "a.parquet")
    raises(r"a\.parquet has been written anew", found.count, error=PythonException)


def test_partitions_have_about_as_many_rows():
    pieces = [Piece("a", 1, i, rows, 1) for i, rows in enumerate([10, 10, 10, 10, 30, 10])]
    assert [[piece.group for piece in part] for part in _partitions_of(pieces, 2)] == [[0, 1, 2, 3], [4, 5]]
    assert [len(part) for part in _partitions_of(pieces, 100)] == [1] * 6
    assert len(_partitions_of(pieces, 1)) == 1


def batches_of(path, columns):
    system, root = _system_of(str(path))
    names = [name for name in columns.values() if isinstance(name, str)]
    pieces = [piece for found in _paths_and_sizes(system, root, str(path)) for piece in _pieces_of_file(system, *found, names)]
    return list(_read_batches(str(path), pieces, columns))


def test_links_to_folders_above_and_to_nothing_are_refused(table, tmp_path):
    parquet.write_table(table, tmp_path / "a.parquet")
    for name in ("one", "two"):  # two of them have 2^40 paths, of each of which Arrow would read the file
        (tmp_path / name).symlink_to(tmp_path)
    raises("is a link to a folder that it is in", batches_of, tmp_path, {"label": "label"})
    for name in ("one", "two"):
        (tmp_path / name).unlink()
    (tmp_path / "b.parquet").symlink_to(tmp_path / "nowhere")
    raises("b.parquet is a link to nothing", batches_of, tmp_path, {"label": "label"})


def test_the_error_of_a_corrupt_file_names_it(table, tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(table.select(["label"]), path, write_page_checksum=True, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    page = whole.index(table.column("label").chunk(0).buffers()[1].to_pybytes()[:400])
    path.write_bytes(whole[:page] + bytes([whole[page] ^ 1]) + whole[page + 1 :])  # another label, no other error
    raises(r"a\.parquet cannot be read, in row group 0", batches_of, tmp_path, {"label": "label"}, error=OSError)
    end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    path.write_bytes(whole[:end] + b"\xff" * 20 + whole[end + 20 :])
    raises(r"a\.parquet cannot be read", batches_of, tmp_path, {"label": "label"})


def test_two_columns_of_one_name_are_refused(tmp_path):
    parquet.write_table(pa.Table.from_arrays([pa.array([1.0])] * 2, names=["x", "x"]), tmp_path / "a.parquet")
    raises("has 2 columns 'x'", batches_of, tmp_path, {"label": "x"})


def test_wide_rows_come_in_smaller_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_VALUES", 1000)
    parquet.write_table(pa.table({"x": [[0.0] * 100] * 50, "y": [0] * 50}), tmp_path / "a.parquet")
    assert max(map(len, batches_of(tmp_path, {"features": "x"}))) == 10
    assert max(map(len, batches_of(tmp_path, {"label": "y"}))) == 50


def test_kept_columns_of_several_types_and_nulls_of_a_second_file(spark, table, tmp_path):
    (tmp_path / "kept").mkdir()
    parquet.write_table(table, tmp_path / "rows.parquet")
    model = BudgetedSVMClassifier(budget=30).fitParquet(tmp_path / "rows.parquet")
    when = pa.array([datetime(2020, 1, 1, tzinfo=UTC)] * 300, pa.timestamp("us", "UTC"))
    first, second = table.slice(0, 300).append_column("t", when), table.slice(300).append_column("t", when)
    schema = first.schema.set(first.schema.get_field_index("n"), pa.field("n", pa.int64(), nullable=False))
    parquet.write_table(first.cast(schema), tmp_path / "kept" / "a.parquet")
    nulls = second.set_column(second.schema.get_field_index("n"), "n", pa.nulls(300, pa.int64()))
    parquet.write_table(nulls, tmp_path / "kept" / "b.parquet")
    found = model.transformParquet(tmp_path / "kept", ["n", "t", "n"]).select("n", "t").toPandas()
    assert found.n.isna().sum() == 300
    assert set(found.t.dt.year) <= {2019, 2020}
    with pytest.raises(ValueError, match="a column of the files is named 'label'"):
        model.copy({model.predictionCol: "Label"}).transformParquet(tmp_path / "kept", ["label"])
    nothing = {model.predictionCol: "", model.rawPredictionCol: "", model.probabilityCol: ""}
    raises("no column is added", model.copy(nothing).transformParquet, tmp_path / "kept", ["n"])
