"""Exported models take columns in the order of the table, however it was read, or else in natural order."""

import json
import pickle

import numpy as np
import onnxruntime
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from river import preprocessing

import streamsvm
from c_compilers import needs_compiler
from c_model import CModel
from edge_models import OF_EACH, matrix, program
from learners_in_c import assert_equal
from refused import raises, refused
from streamsvm import BSCAClassifier, BSGDClassifier, SVMClassifier, edge
from streamsvm.export.c.learning import restore_state, serialise_state, write_learning_c
from streamsvm.export.convert import make_program, sort_columns
from streamsvm.export.formats import export
from streamsvm.learners.costs import CostSensitiveClassifier
from streamsvm.learners.linear import OnlineLinearSVC
from streamsvm.stream import CheckpointFolder, CSVSource, DelayedLabels, DelayedLearningLoop, JoinedSource, LearningLoop
from streamsvm.stream.open import open_source
from streamsvm.stream.tables import TableEncoder

NAMES = ["f10", "income", "f2", "Age", "f1"]
NATURAL = ["Age", "f1", "f2", "f10", "income"]


def table(n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    return pd.DataFrame(X, columns=NAMES), (X[:, 0] + 0.5 * X[:, 2] > 0.2).tolist()


def to_dicts(frame):
    return [dict(zip(frame.columns, map(float, row), strict=True)) for row in frame.to_numpy()]


def list_columns(model):
    return [column.name for column in make_program(model).columns]


def learn_from_frame(model):
    frame, y = table()
    model.learn_many(frame, y)
    return model, NAMES


def learn_from_dicts(model):
    for x, y in zip(to_dicts(table()[0]), table()[1], strict=True):
        model.learn_one(x, y)
    return model, NATURAL


MODELS = {
    "bsgd": lambda: BSGDClassifier(20, seed=0),
    "ensemble": lambda: SVMClassifier("low", seed=0),
    "linear": lambda: OnlineLinearSVC(max_features=100),
    "scaler": lambda: preprocessing.StandardScaler() | BSCAClassifier(20, scaling=None, seed=0),
    "encoder": lambda: TableEncoder() | BSGDClassifier(20, seed=0),
}


@needs_compiler
@pytest.mark.parametrize(
    ("name", "learn"),
    [*((name, learn_from_frame) for name in MODELS), *((name, learn_from_dicts) for name in ("bsgd", "encoder"))],
)
def test_all_formats_take_columns_in_the_same_order(name, learn, tmp_path):
    model, names = learn(MODELS[name]())
    assert list_columns(model) == names
    frame = table(300, seed=1)[0]
    X, expected = frame[names].to_numpy(np.float32), [model.predict_one(x) for x in to_dicts(frame)]
    for to in ("numpy", "onnx", "json", "c"):
        export(model, to, tmp_path)
    predictor = edge.load(tmp_path / "model.safetensors")
    assert predictor.columns == names
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["columns"]) == names
    assert json.loads(metadata["facts"])["order"] == ("table" if names == NAMES else "natural")
    assert [column[0] for column in json.loads((tmp_path / "model.json").read_text())["columns"]] == names
    header = (tmp_path / "model.h").read_text()
    assert f"in the {'order of the table' if names == NAMES else 'natural order of their names'}" in header
    assert all(f"x[{index}]  {column}\n" in header for index, column in enumerate(names))
    for predictions in (
        predictor.predict_many(X),
        session.run(["label"], {"X": X})[0],
        CModel(make_program(model)).predict_many(X),
    ):
        assert np.count_nonzero(np.asarray(predictions) != expected) <= 1  # rounding
    streamsvm.save(model, tmp_path / "saved")
    assert edge.load(tmp_path / "saved").columns == list_columns(streamsvm.load(tmp_path / "saved")) == names


@pytest.mark.parametrize("name", [name for name in OF_EACH if not name.startswith("H")])
def test_a_program_with_sorted_columns_is_equivalent_and_as_large(name):
    original, rng = program(name), np.random.default_rng(0)
    fields = list(dict.fromkeys(column.field for column in original.columns))
    sorted_program = sort_columns(original, [fields[i] for i in rng.permutation(len(fields))])
    order = [original.columns.index(column) for column in sorted_program.columns]
    assert sorted(order) == list(range(len(original.columns)))
    X = matrix(original)
    a, b = (edge.Predictor(part).decision_function_many(rows) for part, rows in ((original, X), (sorted_program, X[:, order])))
    np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9 * max(np.abs(a).max(), 1.0))
    assert sorted_program.nbytes == original.nbytes


def write_rows(tmp_path, suffix):
    frame, y = table()
    frame = frame.assign(y=y)
    frame.loc[:100, "income"] = np.nan  # a column that first has values later keeps its position
    path = tmp_path / f"rows.{suffix}"
    if suffix == "jsonl":
        path.write_text("\n".join(json.dumps({k: v for k, v in x.items() if v == v}) for x in frame.to_dict("records")))
    else:
        getattr(frame, {"csv": "to_csv", "parquet": "to_parquet"}[suffix])(path, index=False)
    return path


@pytest.mark.parametrize("encoder", [True, False])
@pytest.mark.parametrize(("suffix", "names"), [("csv", NAMES), ("parquet", NAMES), ("jsonl", NATURAL)])
def test_columns_have_the_order_of_the_source(suffix, names, encoder, tmp_path):
    learner = BSGDClassifier(20, seed=0)
    model = TableEncoder() | learner if encoder else learner
    with open_source(f"{write_rows(tmp_path, suffix)}", label="y") as source:
        LearningLoop(source, model).run()
    assert list_columns(model) == names


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.Table.from_pandas])
def test_columns_have_the_order_of_the_frame(kind):
    frame, y = table()
    wrapped = CostSensitiveClassifier(BSGDClassifier(20), costs={True: 1.5})
    tables = (streamsvm.table_model(frame.assign(y=y), label="y", learner=learner) for learner in (BSGDClassifier(20), wrapped))
    for model in (BSGDClassifier(20), *tables):
        model.learn_many(kind(frame), y)
        assert list_columns(model) == NAMES


def test_columns_have_the_order_of_the_array():
    X, y = np.random.default_rng(0).normal(size=(60, 12)), [0, 1] * 30
    model = BSGDClassifier(20)
    model.learn_many(X, y)
    assert list_columns(model) == list(range(12))


def test_encoded_columns_stand_at_the_position_of_their_source_column():
    rows = [{"size": i % 7, "town": f"t{i % 6 * 2}", "age": i % 5, "y": i % 3 == 0} for i in range(400)]
    model = streamsvm.table_model(pd.DataFrame(rows), label="y", learner=BSGDClassifier(20))
    model.learn_many(pd.DataFrame(rows))
    assert list_columns(model) == ["size", *(f"town=t{i}" for i in (0, 2, 4, 6, 8, 10)), "age"]


def test_delayed_labels_keep_the_order(tmp_path):
    frame, y = table()
    times = np.arange(len(frame), dtype=float)
    frame.assign(id=times, at=times).to_csv(tmp_path / "rows.csv", index=False)
    pd.DataFrame({"id": times, "at": times + 3.5, "y": y}).to_csv(tmp_path / "labels.csv", index=False)
    model = BSGDClassifier(20)
    with CSVSource(tmp_path / "rows.csv") as rows, CSVSource(tmp_path / "labels.csv", "y") as labels:
        source = JoinedSource(rows, labels, key="id", time="at")
        DelayedLearningLoop(source, model, delayed=DelayedLabels()).run()
    assert list_columns(model) == NAMES


def test_an_interrupted_run_resumes_to_the_same_bytes(tmp_path):
    path = write_rows(tmp_path, "csv")
    for name, limits in (("whole", [None]), ("parts", [30, 90, None])):
        for limit in limits:
            with CSVSource(path, "y") as source, CheckpointFolder(tmp_path / name) as folder:
                LearningLoop(source, BSGDClassifier(20, seed=0), checkpoints=folder).run(limit)
    a, b = (max((tmp_path / name).glob("*.ckpt")).read_bytes() for name in ("whole", "parts"))
    assert a == b


def test_copies_and_merged_models_keep_the_order_and_clones_do_not():
    model, _ = learn_from_frame(BSGDClassifier(20))
    assert list_columns(pickle.loads(pickle.dumps(model))) == NAMES
    merged = learn_from_dicts(BSGDClassifier(20))[0]
    merged.merge_with(model)
    assert list_columns(merged) == NAMES
    assert list_columns(learn_from_dicts(model.clone())[0]) == NATURAL


def test_models_saved_without_an_order_have_the_natural_one():
    model, _ = learn_from_frame(BSGDClassifier(20))
    state = model.__getstate__()
    assert state.pop("order") == NAMES
    old_model = BSGDClassifier.__new__(BSGDClassifier)
    old_model.__setstate__(state)
    assert list_columns(old_model) == NATURAL
    assert make_program(old_model).metadata["order"] == "natural"
    for order in ("f10", [*NAMES, "f10"], [f"n{i}" for i in range(3000)], ["n" * 2000]):
        raises("the order of", BSGDClassifier.__new__(BSGDClassifier).__setstate__, state | {"order": order})


def test_a_refused_batch_sets_no_order():
    frame, y = table()
    model = BSGDClassifier(20)
    bad = frame.astype(float)
    bad.iloc[7, 2] = np.inf
    refused("row 7: feature 'f2'", model.learn_many, bad, y)
    model.learn_many(frame[NATURAL], y)
    assert list_columns(model) == NATURAL


def test_the_first_order_stays_and_new_names_follow():
    model, _ = learn_from_frame(BSGDClassifier(20))
    frame, y = table()
    model.learn_many(frame[frame.columns[::-1]].assign(b10=1.0, b9=2.0), y)
    assert list_columns(model) == [*NAMES, "b9", "b10"]


def test_hashed_columns_are_not_reordered():
    model = BSGDClassifier(20, max_features=3, overflow="hash")
    frame, y = table()
    model.learn_many(frame, y)
    assert list_columns(model) == ["Age", "f1", "f10"]
    assert make_program(model).metadata["order"] == "model"
    X = to_dicts(frame)
    assert [edge.Predictor(make_program(model)).predict_one(x) for x in X] == [model.predict_one(x) for x in X]


@pytest.mark.parametrize("learn", [learn_from_frame, learn_from_dicts])
def test_a_learner_in_c_takes_columns_in_the_same_order(learn, tmp_path):
    model, names = learn(BSGDClassifier(20, gamma=0.5))
    write_learning_c(model, tmp_path)
    header = (tmp_path / "model_learn.h").read_text()
    assert all(f"x[{index}]  {name}\n" in header for index, name in enumerate(names))
    assert_equal(restore_state(model, serialise_state(model)), model, 1e-12)
    first = np.frombuffer(serialise_state(model), np.float32)
    vector = [model.support_vectors[0][model.feature_names.index(name)] for name in names]
    assert any((first[i : i + 5] == np.array(vector, np.float32)).all() for i in range(len(first) - 4))
