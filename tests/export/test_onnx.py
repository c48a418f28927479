"""ONNX models answer as the programs do that they are made of."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from river import compose, preprocessing

from edge_models import FORESTS, MEMORIES, OF_EACH, labelled, matrix, outside, program
from refused import refused
from streamsvm import BSCARegressor, BSGDClassifier, SVMClassifier, edge
from streamsvm.edge.program import run_program
from streamsvm.export.convert import make_program
from streamsvm.export.onnx import write_onnx
from streamsvm.export.pipelines import count_scaling_steps, find_fields_lost_in_float32
from streamsvm.export.quantise import quantise_program
from streamsvm.learners.preprocessing import BoundedScaler


def session(given, tmp_path, **how):
    write_onnx(given, tmp_path / "model.onnx", **how)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(tmp_path / "model.onnx", options)


def check(given, tmp_path, **how):
    X = matrix(given)
    found = session(given, tmp_path, **how)
    names = [output.name for output in found.get_outputs()]
    double = found.get_inputs()[0].type == "tensor(double)"
    answers = dict(zip(names, found.run(names, {"X": X.astype(np.float64) if double else X}), strict=True))
    predictor, (f, choice) = edge.Predictor(given), run_program(given, X.astype(np.float64))
    size = np.abs(f).max()
    decisions = answers["variable" if given.answer.kind == "number" else "decision"]
    np.testing.assert_allclose(decisions.reshape(f.shape), f, rtol=2e-4, atol=2e-4 * max(size, 1.0))
    with_probabilities = ["probabilities"] if given.answer.calibration is not None else []
    expected = {"class": ["label", *with_probabilities, "decision"], "number": ["variable"], "anomaly": ["score", "decision"]}
    assert names == expected[given.answer.kind]
    for output in found.get_outputs():
        assert output.shape == ["rows", *answers[output.name].shape[1:]]
    if given.answer.kind == "anomaly":
        np.testing.assert_allclose(answers["score"], predictor.predict_many(X), atol=2e-4)
    if given.answer.kind == "class":
        far = outside(given, f, choice)
        assert far.mean() > 0.8
        assert (answers["label"].tolist() == predictor.predict_many(X).astype(answers["label"].dtype))[far].all()
    if given.answer.calibration is not None:
        np.testing.assert_allclose(answers["probabilities"], predictor.predict_proba_many(X), atol=1e-3)


CASES = [(name, {}) for name in (*OF_EACH, *MEMORIES, *FORESTS)]
CASES += [(name, {"inputs": "double"}) for name in FORESTS]


@pytest.mark.parametrize(("name", "how"), CASES, ids=str)
def test_every_model_answers_alike(name, how, tmp_path):
    given = program(name)
    if any(step.op == "trees" for step in given.steps):
        refused("not supported in ONNX: model.to_budget", write_onnx, given, tmp_path / "model.onnx", error=edge.ExportError)
        return
    check(given, tmp_path, **how)


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in OF_EACH if name.startswith("scaler ")),
        *("SVMClassifier 0 of 3", "KernelRLSRegressor 0 of 0", "CSMOClassifier 0 of 4", "table of 2"),
    ],
)
def test_rows_may_be_double(name, tmp_path):
    given = program(name)
    assert find_fields_lost_in_float32(given) == []
    check(given, tmp_path, inputs="double")
    found = session(given, tmp_path, inputs="double")
    assert found.get_inputs()[0].type == "tensor(double)"
    X = np.full((3, len(given.columns)), 1e300)
    X[1], X[2, ::2] = -1e300, 1.0
    assert np.isfinite(found.run(None, {"X": X})[-1]).all()


@pytest.mark.parametrize("north", [5.4e6, 1e8])
@pytest.mark.parametrize(
    "front",
    [None, BoundedScaler(), preprocessing.MaxAbsScaler(), compose.Select("v", "north") | preprocessing.StandardScaler()],
    ids=str,
)
def test_what_float32_cannot_hold_is_taken_as_double(front, north, tmp_path):
    """A northing in metres, of rows within 2 m."""
    rng = np.random.default_rng(1)
    rows = [{"north": north + float(rng.uniform(0, 2)), "v": float(rng.normal())} for _ in range(300)]
    learner = BSGDClassifier(budget=20, seed=0)
    model = learner if front is None else front.clone() | learner
    for x in rows:
        model.learn_one(x, x["north"] > north + 1.0)
    given = make_program(model)
    assert find_fields_lost_in_float32(given) == ["north"]
    X = np.array([[x[column.field] for column in given.columns] for x in rows])
    label, *_ = session(given, tmp_path).run(None, {"X": X})
    assert label.tolist() == [model.predict_one(x) for x in rows]
    label, *_ = session(given, tmp_path, inputs="float").run(None, {"X": X.astype(np.float32)})
    assert label.tolist() != [model.predict_one(x) for x in rows]


def test_only_the_front_is_double(tmp_path):
    given = program("scaler 0")
    write_onnx(given, tmp_path / "single.onnx")
    write_onnx(given, tmp_path / "double.onnx", inputs="double")
    of = onnx.TensorProto
    types = [
        {constant.data_type for constant in onnx.load(tmp_path / name).graph.initializer} - {of.INT64}
        for name in ("single.onnx", "double.onnx")
    ]
    assert types == [{of.FLOAT}, {of.FLOAT, of.DOUBLE}]
    assert count_scaling_steps(given) == 1
    more = (tmp_path / "double.onnx").stat().st_size - (tmp_path / "single.onnx").stat().st_size
    assert 0 < more < 300


@pytest.mark.parametrize("name", ["BSGDClassifier 0 of 3", "KernelRLSRegressor 0 of 0", "CSMOClassifier 2 of 2", *MEMORIES])
def test_vectors_of_few_bits_answer_alike(name, tmp_path):
    check(quantise_program(program(name), 8), tmp_path)


def test_a_forest_of_times_answers_alike(tmp_path):
    """Times of which float32 has one in 128 seconds: features of a forest are in the front of the graph, too."""
    rng, model = np.random.default_rng(0), SVMClassifier(seed=0)
    X = np.column_stack([1.7e9 + rng.uniform(0.0, 200.0, 900), rng.normal(size=900)])
    model.learn_many(X[:600], (X[:600, 0] > 1.7e9 + 90.0).tolist())
    given = make_program(model)
    assert (count_scaling_steps(given), find_fields_lost_in_float32(given)) == (4, ["0"])
    found = session(given, tmp_path).run(None, {"X": X[600:]})[-1]
    np.testing.assert_allclose(found, model.decision_function_many(X[600:]), atol=1e-3)


def without_vectors():
    model = BSCARegressor(budget=5)
    model.learn_one({"a": 0.0}, 0.0)
    return make_program(model)


@pytest.mark.parametrize(
    ("make", "how", "reason"),
    [
        (without_vectors, {"inputs": "half"}, "inputs must be 'auto', 'float' or 'double', not 'half'"),
        (lambda: make_program(labelled(("\ud800", "b"))), {}, "is no text that ONNX can hold"),
        (lambda: make_program(labelled([1, "1", 2])), {}, "two labels are one text in ONNX"),
    ],
)
def test_what_cannot_be_said_is_refused(make, how, reason, tmp_path):
    refused(reason, write_onnx, make(), tmp_path / "model.onnx", **how, error=edge.ExportError)
    assert list(tmp_path.iterdir()) == []
    refused("was not written", write_onnx, without_vectors(), tmp_path / "none" / "model.onnx", error=edge.ExportError)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ((0.1, 16777217.0), [0.1, 16777217.0]),
        ((2**70, 5), [str(2**70), "5"]),
        ((2**63 - 1, -(2**63)), [2**63 - 1, -(2**63)]),
        ((True, "b"), ["True", "b"]),
    ],
)
def test_labels_are_what_they_were(labels, found, tmp_path):
    opened = session(make_program(labelled(labels)), tmp_path)
    answers = opened.run(None, {"X": np.array([[0.0], [1.0]], np.float32)})
    assert answers[0].tolist() == found
    named = json.loads(opened.get_modelmeta().custom_metadata_map["labels"])
    assert [named[place] for place in answers[1].argmax(axis=1)] == found


@pytest.mark.parametrize(
    ("labels", "dtype"), [((0, 1), np.int64), ((False, True), np.bool_), ((0.5, 2.0), np.float64), (("a", "b"), np.object_)]
)
def test_outputs_come_as_users_of_skl2onnx_expect(labels, dtype, tmp_path):
    """By place: labels, probabilities [rows, labels], and decision values last; of a regressor [rows, 1]."""
    X = np.array([[0.0], [1.0], [1.0]], np.float32)
    model = labelled(labels)
    label, probabilities, decision = session(make_program(model), tmp_path).run(None, {"X": X})
    assert label.dtype == dtype
    assert label.tolist() == [labels[0], labels[1], labels[1]]
    rows = [{"a": float(x)} for x in X[:, 0]]
    expected = [list(model.predict_proba_one(x).values()) for x in rows]
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert probabilities.dtype == decision.dtype == np.float32
    np.testing.assert_allclose(decision, [model.decision_function_one(x) for x in rows], atol=1e-5)

    regressor = BSCARegressor(budget=5)
    regressor.learn_one({"a": 0.0}, 1.0)
    [variable] = session(make_program(regressor), tmp_path).run(None, {"X": X})
    assert variable.shape == (3, 1)
    np.testing.assert_allclose(variable[:, 0], [regressor.predict_one(x) for x in rows], atol=1e-5)


def test_a_label_without_another(tmp_path):
    X = np.array([[0.0], [1.0]], np.float32)
    label, probabilities, decision = session(make_program(labelled(("a", "a"))), tmp_path).run(None, {"X": X})
    assert label.tolist() == ["a", "a"]
    assert probabilities.tolist() == [[1.0], [1.0]]
    assert decision.shape == (2,)


@pytest.mark.parametrize("name", ["CSMOClassifier 0 of 2", "CSMOClassifier 1 of 2", "CSMORegressor", "OutOfCoreLinearSVC"])
def test_rows_that_are_very_large(name, tmp_path):
    X = np.full((3, 5), 3e38, np.float32)
    X[1, ::2] = X[2, 0] = -3e38
    X[2, 1:] = 1e30
    assert np.isfinite(session(program(name), tmp_path).run(None, {"X": X})[-1]).all()


def test_all_nodes_have_names_of_their_own(tmp_path):
    """By which converters to float16 find them."""
    write_onnx(program("SVMClassifier 0 of 3"), tmp_path / "model.onnx")
    names = [node.name for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
