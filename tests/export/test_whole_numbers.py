"""Models that have learned whole numbers behind an encoder or a scaler predict the same in every format.

A threshold of a forest is often a whole number itself, so that a value that float32 shifts by one bit reaches another leaf.
"""

import itertools
import math

import numpy as np
import onnxruntime
import pytest
from river import preprocessing

from c_compilers import needs_compiler
from c_model import CModel
from lists import OF_RELEASE, first, in_turn
from streamsvm import BSGDClassifier, SVMClassifier, SVMRegressor, edge
from streamsvm.export.convert import make_program
from streamsvm.export.onnx import write_onnx
from streamsvm.export.pipelines import find_fields_lost_in_float32
from streamsvm.export.quantise import quantise_program
from streamsvm.export.reduce import reduce_program
from streamsvm.stream.tables import TableEncoder

N_ROWS = 600
FRONTS = {
    "encoder": lambda: TableEncoder("kind:category"),
    "encoder that leaves gaps": lambda: TableEncoder("kind:category", when_missing="drop"),
    "encoder with a scaler": lambda: TableEncoder("kind:category", scaler="standard"),
    "encoder with a range": lambda: TableEncoder("kind:category", scaler=preprocessing.MinMaxScaler()),
    "scaler": preprocessing.StandardScaler,
}


def make_table(front, labels, seed=0, n=2 * N_ROWS):
    """Return rows with four columns of whole numbers, and labels or targets; behind an encoder, a category and gaps, too."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 20, size=(n, 4))
    f = X[:, 0] * X[:, 1] + 3 * X[:, 2] - 110 * (X[:, 3] > 15)
    y = f.tolist() if labels == 0 else [f"l{label}" for label in np.digitize(f, np.quantile(f, np.arange(1, labels) / labels))]
    rows = [dict(zip("abcd", map(int, row), strict=True)) for row in X]
    if front != "scaler":
        rows = [{name: None if rng.random() < 0.15 else value for name, value in x.items()} for x in rows]
        rows = [{**x, "kind": rng.choice(["red", "blue", "green"])} for x in rows]
    return rows, y


def train(front, labels, learner):
    """Return the program of a pipeline that has learned the first rows, its pipeline, and the other rows."""
    model, (rows, y) = FRONTS[front]() | learner, make_table(front, labels)
    for x, label in zip(rows[:N_ROWS], y, strict=False):
        model.learn_one(x, label)
    return make_program(model), model, rows[N_ROWS:]


def predict_onnx(program, X, path):
    """Return the labels (None for regression) and probabilities, or the numbers, that ONNX predicts for rows."""
    write_onnx(program, path)
    session = onnxruntime.InferenceSession(path)
    assert session.get_inputs()[0].type == "tensor(float)"
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, {"X": X.astype(np.float32)}), strict=True))
    return outputs.get("label"), outputs.get("probabilities", outputs.get("variable"))


def predict_c(program, X):
    compiled = CModel(program)
    if program.answer.kind == "number":
        return None, compiled.predict_many(X)
    return compiled.predict_many(X), compiled.predict_proba_many(X)


def predict_numpy(program, X):
    predictor = edge.Predictor(program)
    if program.answer.kind == "number":
        return None, predictor.predict_many(X)
    return predictor.predict_many(X), predictor.predict_proba_many(X)


def assert_same(predictions, expected, rounding=1e-5):
    labels, values = predictions
    if labels is not None:
        assert np.asarray(labels).tolist() == np.asarray(expected[0]).tolist()
    differences = np.abs(np.reshape(values, np.shape(expected[1])) - expected[1]).reshape(len(values), -1).max(axis=1)
    # Two distances to neighbours may be on both sides of a rounding step: in a row of a thousand.
    assert (differences > rounding).mean() <= 0.002


CASES = list(itertools.product(FRONTS, (2, 0, 3))) if OF_RELEASE else in_turn(FRONTS, 2, 0, 3)


@needs_compiler
@pytest.mark.parametrize("case", first(2, CASES), ids=str)
def test_every_format_predicts_as_the_model(case, tmp_path):
    """Behind each front with two, no or three labels in turn; before a release, behind each with all of them."""
    front, labels = case
    program, model, rows = train(front, labels, SVMClassifier(seed=0) if labels else SVMRegressor(seed=0))
    X = np.array([edge.Predictor(program).encode_row(x) for x in rows])
    predicted = [model.predict_one(x) for x in rows]
    if labels:
        p = [[model.predict_proba_one(x)[label] for label in program.answer.labels] for x in rows]
        expected, rounding = (predicted, np.array(p)), 1e-5
    else:
        expected, rounding = (None, np.array(predicted)), 1e-5 * np.std(predicted)
    assert [edge.Predictor(program).predict_one(x) for x in rows[:20]] == pytest.approx(predicted[:20], abs=rounding)
    for predictions in (predict_numpy(program, X), predict_onnx(program, X, tmp_path / "m.onnx"), predict_c(program, X)):
        assert_same(predictions, expected, rounding)


@needs_compiler
@pytest.mark.parametrize("made_smaller", first(1, ["quantised", "reduced"]))
def test_smaller_programs_predict_the_same_in_every_format(made_smaller, tmp_path):
    program, _, rows = train("encoder", 2, SVMClassifier(seed=0))
    X = np.array([edge.Predictor(program).encode_row(x) for x in rows])
    small = quantise_program(program, 16) if made_smaller == "quantised" else reduce_program(program, 60_000, X).program
    expected = predict_numpy(small, X)
    for predictions in (predict_onnx(small, X, tmp_path / "m.onnx"), predict_c(small, X)):
        assert_same(predictions, expected, 1e-4)


@pytest.mark.parametrize("seconds", [0.01, 30.0])
def test_rows_with_dates_are_float64_in_onnx(seconds, tmp_path):
    """float32 rounds dates to 128 seconds, and pressures of 1013.04 to about 6e-5."""
    rng, model = np.random.default_rng(0), TableEncoder() | BSGDClassifier(budget=20, seed=0)
    centre = 1.7e9 if seconds > 1.0 else 1013.0
    times = centre + seconds * rng.integers(-20, 20, N_ROWS)
    for time in times.tolist():
        model.learn_one({"time": time, "n": 1.0}, time > centre)
    program = make_program(model)
    assert find_fields_lost_in_float32(program, 1e-4) == ["time"]
    write_onnx(program, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    X = np.array([edge.Predictor(program).encode_row({"time": time, "n": 1.0}) for time in times.tolist()])
    assert session.run(["label"], {"X": X})[0].tolist() == [
        model.predict_one({"time": time, "n": 1.0}) for time in times.tolist()
    ]


def test_missing_numbers_are_filled_in_the_order_of_the_table():
    model, rng = TableEncoder() | BSGDClassifier(budget=20, seed=0), np.random.default_rng(0)
    for _ in range(100):
        values = rng.integers(0, 9, 2).tolist()
        model.learn_one({"z": values[0] + 100, "a": None if values[1] > 7 else values[1]}, sum(values) > 8)
    model["BSGDClassifier"].note_columns(["z", "a"])
    program = make_program(model)
    means = {name: mean for name, (_, mean) in model["TableEncoder"].column_state.means.items()}
    assert (program.steps[0].op, [column.name for column in program.columns]) == ("fill", ["z", "a"])
    assert program.steps[0].arrays["values"].tolist() == [means["z"], means["a"]]
    predictor = edge.Predictor(program)
    for z, a in ((math.nan, 3.0), (102.0, math.nan), (math.nan, math.nan)):
        row = {"z": None if z != z else z, "a": None if a != a else a}
        assert predictor.predict_many(np.array([[z, a]]))[0] == model.predict_one(row)
        assert predictor.predict_proba_many(np.array([[z, a]]))[0, 1] == pytest.approx(
            model.predict_proba_one(row)[True], abs=1e-5
        )
