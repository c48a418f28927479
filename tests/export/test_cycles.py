"""Models of dates with cycles predict the same in every format: a program takes seconds, and computes the phases itself."""

import math

import numpy as np
import onnxruntime
import pytest
from river import preprocessing

from c_compilers import needs_compiler
from c_model import CModel
from streamsvm import BSGDClassifier, SVMClassifier, SVMRegressor, edge
from streamsvm.edge.operations import check_step, evaluate_step
from streamsvm.edge.step import Step
from streamsvm.export.convert import make_program
from streamsvm.export.onnx import write_onnx
from streamsvm.stream.tables import TableEncoder
from streamsvm.stream.tables.dates import encode_cycle

OPTIONS = {
    "one date": {"cycles": ["day", "week"]},
    "cycles of one column": {"cycles": ["since:year", "at:day"], "when_missing": "drop"},
    "with a scaler": {"cycles": "day", "scaler": "standard"},
    "with a range": {"cycles": "week", "scaler": preprocessing.MinMaxScaler()},
}


def make_rows(n=400):
    """Return rows with dates that float32 holds exactly, gaps, a number and a category, and whether it is day."""
    rng = np.random.default_rng(0)
    times = 128.0 * rng.integers(13_000_000, 13_100_000, n)
    rows = [{"z": rng.normal(), "at": at, "since": -at, "city": rng.choice(["Oslo", "Rome"])} for at in times.tolist()]
    for i in range(0, n, 7):
        rows[i][["z", "at", "since"][i % 3]] = None
    return rows, [(7 <= at / 3600 % 24 < 19) for at in times.tolist()]


def train(name, learner):
    model, (rows, y) = TableEncoder("city:category,at:date,since:date", **OPTIONS[name]) | learner, make_rows()
    for x, label in zip(rows, y, strict=True):
        model.learn_one(x, label)
    return model, make_program(model), rows


@pytest.mark.parametrize(
    "learner", [BSGDClassifier(budget=30, seed=0), SVMClassifier(seed=0, effort="low"), SVMRegressor(seed=0)]
)
@pytest.mark.parametrize("name", OPTIONS)
def test_phases_are_computed_from_seconds(tmp_path, name, learner):
    model, program, rows = train(name, learner.clone())
    predictor = edge.Predictor(program)
    assert [column.name for column in program.columns if column.field in ("at", "since")] == ["at", "since"]
    X = np.array([predictor.encode_row(x) for x in rows])
    expected = [model.predict_one(x) for x in rows]
    write_onnx(program, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert session.get_inputs()[0].type == "tensor(double)"
    outputs = session.run(None, {"X": X})
    if isinstance(learner, SVMRegressor):
        assert predictor.predict_many(X) == pytest.approx(expected, abs=1e-5)
        assert outputs[0].ravel() == pytest.approx(expected, abs=1e-4)
        return
    probabilities = [model.predict_proba_one(x)[True] for x in rows]
    assert predictor.predict_many(X).tolist() == outputs[0].tolist() == expected
    assert predictor.predict_proba_many(X)[:, 1] == pytest.approx(probabilities, abs=1e-5)
    assert outputs[1][:, 1] == pytest.approx(probabilities, abs=1e-5)


@needs_compiler
@pytest.mark.parametrize("name", ["one date", "cycles of one column"])
def test_phases_in_c(name):
    model, program, rows = train(name, BSGDClassifier(budget=30, seed=0))
    X = np.array([edge.Predictor(program).encode_row(x) for x in rows])
    probabilities = [model.predict_proba_one(x)[True] for x in rows]
    assert CModel(program).predict_proba_many(X)[:, 1] == pytest.approx(probabilities, abs=1e-4)


def test_a_phase_is_that_of_the_encoder():
    times = np.array([[0.0, 5.5, -1e9, 1.7e9 + 0.25, 4e9, math.nan]]).T
    step = Step("cycles", (0,), {"periods": np.array([0.0, 604_800.0, 604_800.0]), "offsets": np.array([0.0, 0.0, 0.25])})
    assert check_step(step, 3) == 3
    out = evaluate_step(step, np.repeat(times, 3, axis=1))
    assert np.array_equal(out[:, :1], times, equal_nan=True)
    for row, (time,) in zip(out[:-1], times, strict=False):
        assert row[1:] == pytest.approx(encode_cycle(time, "week"), abs=1e-12)
    assert np.isnan(out[-1]).all()


@pytest.mark.parametrize(("name", "value"), [("periods", -1.0), ("periods", 0.5), ("periods", 1e10), ("offsets", 2.0)])
def test_invalid_cycles_are_refused(name, value):
    arrays = {"periods": np.array([86_400.0]), "offsets": np.zeros(1)} | {name: np.array([value])}
    with pytest.raises(edge.ExportError, match="of a step 'cycles' are out of their range"):
        check_step(Step("cycles", (0,), arrays), 1)
