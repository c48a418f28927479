"""An exported model takes numbers in the order of the table, whatever read it, and in the natural one where there is none."""

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


def dicts(frame):
    return [dict(zip(frame.columns, map(float, row), strict=True)) for row in frame.to_numpy()]


def columns_of(model):
    return [column.name for column in make_program(model).columns]


def learned_from_frame(model):
    frame, y = table()
    model.learn_many(frame, y)
    return model, NAMES


def learned_from_dicts(model):
    for x, y in zip(dicts(table()[0]), table()[1], strict=True):
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
    [*((name, learned_from_frame) for name in MODELS), *((name, learned_from_dicts) for name in ("bsgd", "encoder"))],
)
def test_all_forms_take_the_same_order(name, learn, tmp_path):
    model, names = learn(MODELS[name]())
    assert columns_of(model) == names
    frame = table(300, seed=1)[0]
    X, expected = frame[names].to_numpy(np.float32), [model.predict_one(x) for x in dicts(frame)]
    for form in ("numpy", "onnx", "json", "c"):
        export(model, form, tmp_path)
    predictor = edge.load(tmp_path / "model.safetensors")
    assert predictor.columns == names
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["columns"]) == names
    assert json.loads(facts["facts"])["order"] == ("table" if names == NAMES else "natural")
    assert [column[0] for column in json.loads((tmp_path / "model.json").read_text())["columns"]] == names
    header = (tmp_path / "model.h").read_text()
    assert f"in the {'order of the table' if names == NAMES else 'natural order of their names'}" in header
    assert all(f"x[{place}]  {each}\n" in header for place, each in enumerate(names))
    for found in (predictor.predict_many(X), session.run(["label"], {"X": X})[0], CModel(make_program(model)).predict_many(X)):
        assert np.count_nonzero(np.asarray(found) != expected) <= 1  # rounding
    streamsvm.save(model, tmp_path / "saved")
    assert edge.load(tmp_path / "saved").columns == columns_of(streamsvm.load(tmp_path / "saved")) == names


@pytest.mark.parametrize("name", [name for name in OF_EACH if not name.startswith("H")])
def test_a_program_in_another_order_says_the_same_and_is_no_larger(name):
    given, rng = program(name), np.random.default_rng(0)
    fields = list(dict.fromkeys(column.field for column in given.columns))
    found = sort_columns(given, [fields[i] for i in rng.permutation(len(fields))])
    places = [given.columns.index(column) for column in found.columns]
    assert sorted(places) == list(range(len(given.columns)))
    X = matrix(given)
    a, b = (edge.Predictor(each).decision_function_many(rows) for each, rows in ((given, X), (found, X[:, places])))
    np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9 * max(np.abs(a).max(), 1.0))
    assert found.nbytes == given.nbytes


def written(tmp_path, form):
    frame, y = table()
    frame = frame.assign(y=y)
    frame.loc[:100, "income"] = np.nan  # what comes late is in its place all the same
    path = tmp_path / f"rows.{form}"
    if form == "jsonl":
        path.write_text("\n".join(json.dumps({k: v for k, v in x.items() if v == v}) for x in frame.to_dict("records")))
    else:
        getattr(frame, {"csv": "to_csv", "parquet": "to_parquet"}[form])(path, index=False)
    return path


@pytest.mark.parametrize("encoder", [True, False])
@pytest.mark.parametrize(("form", "names"), [("csv", NAMES), ("parquet", NAMES), ("jsonl", NATURAL)])
def test_the_order_is_that_of_the_source(form, names, encoder, tmp_path):
    learner = BSGDClassifier(20, seed=0)
    model = TableEncoder() | learner if encoder else learner
    with open_source(f"{written(tmp_path, form)}", label="y") as source:
        LearningLoop(source, model).run()
    assert columns_of(model) == names


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.Table.from_pandas])
def test_the_order_is_that_of_the_frame(kind):
    frame, y = table()
    wrapped = CostSensitiveClassifier(BSGDClassifier(20), costs={True: 1.5})
    tables = (streamsvm.table_model(frame.assign(y=y), label="y", learner=learner) for learner in (BSGDClassifier(20), wrapped))
    for model in (BSGDClassifier(20), *tables):
        model.learn_many(kind(frame), y)
        assert columns_of(model) == NAMES


def test_an_array_has_its_own_order():
    X, y = np.random.default_rng(0).normal(size=(60, 12)), [0, 1] * 30
    model = BSGDClassifier(20)
    model.learn_many(X, y)
    assert columns_of(model) == list(range(12))


def test_what_a_column_becomes_stands_in_its_place():
    rows = [{"size": i % 7, "town": f"t{i % 6 * 2}", "age": i % 5, "y": i % 3 == 0} for i in range(400)]
    model = streamsvm.table_model(pd.DataFrame(rows), label="y", learner=BSGDClassifier(20))
    model.learn_many(pd.DataFrame(rows))
    assert columns_of(model) == ["size", *(f"town=t{i}" for i in (0, 2, 4, 6, 8, 10)), "age"]


def test_labels_that_come_later_leave_the_order(tmp_path):
    frame, y = table()
    times = np.arange(len(frame), dtype=float)
    frame.assign(id=times, at=times).to_csv(tmp_path / "rows.csv", index=False)
    pd.DataFrame({"id": times, "at": times + 3.5, "y": y}).to_csv(tmp_path / "labels.csv", index=False)
    model = BSGDClassifier(20)
    with CSVSource(tmp_path / "rows.csv") as rows, CSVSource(tmp_path / "labels.csv", "y") as labels:
        source = JoinedSource(rows, labels, key="id", time="at")
        DelayedLearningLoop(source, model, delayed=DelayedLabels()).run()
    assert columns_of(model) == NAMES


def test_a_run_that_was_ended_goes_on_to_the_same_bytes(tmp_path):
    path = written(tmp_path, "csv")
    for name, parts in (("whole", [None]), ("parts", [30, 90, None])):
        for most in parts:
            with CSVSource(path, "y") as source, CheckpointFolder(tmp_path / name) as folder:
                LearningLoop(source, BSGDClassifier(20, seed=0), checkpoints=folder).run(most)
    a, b = (max((tmp_path / name).glob("*.ckpt")).read_bytes() for name in ("whole", "parts"))
    assert a == b


def test_copies_and_merged_models_have_the_order_and_new_ones_none():
    model, _ = learned_from_frame(BSGDClassifier(20))
    assert columns_of(pickle.loads(pickle.dumps(model))) == NAMES
    other = learned_from_dicts(BSGDClassifier(20))[0]
    other.merge_with(model)
    assert columns_of(other) == NAMES
    assert columns_of(learned_from_dicts(model.clone())[0]) == NATURAL


def test_models_that_were_saved_before_have_the_natural_order():
    model, _ = learned_from_frame(BSGDClassifier(20))
    state = model.__getstate__()
    assert state.pop("order") == NAMES
    before = BSGDClassifier.__new__(BSGDClassifier)
    before.__setstate__(state)
    assert columns_of(before) == NATURAL
    assert make_program(before).metadata["order"] == "natural"
    for order in ("f10", [*NAMES, "f10"], [f"n{i}" for i in range(3000)], ["n" * 2000]):
        raises("the order of", BSGDClassifier.__new__(BSGDClassifier).__setstate__, state | {"order": order})


def test_a_batch_that_is_refused_leaves_no_order():
    frame, y = table()
    model = BSGDClassifier(20)
    bad = frame.astype(float)
    bad.iloc[7, 2] = np.inf
    refused("row 7: feature 'f2'", model.learn_many, bad, y)
    model.learn_many(frame[NATURAL], y)
    assert columns_of(model) == NATURAL


def test_the_first_order_stays_and_other_names_follow():
    model, _ = learned_from_frame(BSGDClassifier(20))
    frame, y = table()
    model.learn_many(frame[frame.columns[::-1]].assign(b10=1.0, b9=2.0), y)
    assert columns_of(model) == [*NAMES, "b9", "b10"]


def test_names_that_are_hashed_stay_where_their_hashes_are():
    model = BSGDClassifier(20, max_features=3, overflow="hash")
    frame, y = table()
    model.learn_many(frame, y)
    assert columns_of(model) == ["Age", "f1", "f10"]
    assert make_program(model).metadata["order"] == "model"
    X = dicts(frame)
    assert [edge.Predictor(make_program(model)).predict_one(x) for x in X] == [model.predict_one(x) for x in X]


@pytest.mark.parametrize("learn", [learned_from_frame, learned_from_dicts])
def test_a_learner_in_c_takes_the_same_order(learn, tmp_path):
    model, names = learn(BSGDClassifier(20, gamma=0.5))
    write_learning_c(model, tmp_path)
    header = (tmp_path / "model_learn.h").read_text()
    assert all(f"x[{place}]  {name}\n" in header for place, name in enumerate(names))
    assert_equal(restore_state(model, serialise_state(model)), model, 1e-12)
    first = np.frombuffer(serialise_state(model), np.float32)
    vector = [model.support_vectors[0][model.feature_names.index(name)] for name in names]
    assert any((first[i : i + 5] == np.array(vector, np.float32)).all() for i in range(len(first) - 4))
