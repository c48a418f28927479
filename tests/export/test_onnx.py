"""ONNX models predict as the programs that they are exported from."""

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


def open_session(original, tmp_path, **options):
    write_onnx(original, tmp_path / "model.onnx", **options)
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(tmp_path / "model.onnx", session_options)


def check(original, tmp_path, **options):
    X = matrix(original)
    onnx_session = open_session(original, tmp_path, **options)
    names = [output.name for output in onnx_session.get_outputs()]
    is_double = onnx_session.get_inputs()[0].type == "tensor(double)"
    outputs = dict(zip(names, onnx_session.run(names, {"X": X.astype(np.float64) if is_double else X}), strict=True))
    predictor, (f, choice) = edge.Predictor(original), run_program(original, X.astype(np.float64))
    size = np.abs(f).max()
    decisions = outputs["variable" if original.answer.kind == "number" else "decision"]
    np.testing.assert_allclose(decisions.reshape(f.shape), f, rtol=2e-4, atol=2e-4 * max(size, 1.0))
    with_probabilities = ["probabilities"] if original.answer.calibration is not None else []
    expected = {"class": ["label", *with_probabilities, "decision"], "number": ["variable"], "anomaly": ["score", "decision"]}
    assert names == expected[original.answer.kind]
    for output in onnx_session.get_outputs():
        assert output.shape == ["rows", *outputs[output.name].shape[1:]]
    if original.answer.kind == "anomaly":
        np.testing.assert_allclose(outputs["score"], predictor.predict_many(X), atol=2e-4)
    if original.answer.kind == "class":
        is_clear = outside(original, f, choice)
        assert is_clear.mean() > 0.8
        assert (outputs["label"].tolist() == predictor.predict_many(X).astype(outputs["label"].dtype))[is_clear].all()
    if original.answer.calibration is not None:
        np.testing.assert_allclose(outputs["probabilities"], predictor.predict_proba_many(X), atol=1e-3)


CASES = [(name, {}) for name in (*OF_EACH, *MEMORIES, *FORESTS)]
CASES += [(name, {"inputs": "double"}) for name in FORESTS]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_onnx_predicts_as_every_program(name, options, tmp_path):
    original = program(name)
    if any(step.op == "trees" for step in original.steps):
        refused("not supported in ONNX: model.to_budget", write_onnx, original, tmp_path / "model.onnx", error=edge.ExportError)
        return
    check(original, tmp_path, **options)


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in OF_EACH if name.startswith("scaler ")),
        *("SVMClassifier 0 of 3", "KernelRLSRegressor 0 of 0", "CSMOClassifier 0 of 4", "table of 2"),
    ],
)
def test_rows_may_be_float64(name, tmp_path):
    original = program(name)
    assert find_fields_lost_in_float32(original) == []
    check(original, tmp_path, inputs="double")
    onnx_session = open_session(original, tmp_path, inputs="double")
    assert onnx_session.get_inputs()[0].type == "tensor(double)"
    X = np.full((3, len(original.columns)), 1e300)
    X[1], X[2, ::2] = -1e300, 1.0
    assert np.isfinite(onnx_session.run(None, {"X": X})[-1]).all()


@pytest.mark.parametrize("north", [5.4e6, 1e8])
@pytest.mark.parametrize(
    "transformer",
    [None, BoundedScaler(), preprocessing.MaxAbsScaler(), compose.Select("v", "north") | preprocessing.StandardScaler()],
    ids=str,
)
def test_features_that_lose_precision_in_float32_are_float64(transformer, north, tmp_path):
    """A northing in metres; all rows are within 2 m."""
    rng = np.random.default_rng(1)
    rows = [{"north": north + float(rng.uniform(0, 2)), "v": float(rng.normal())} for _ in range(300)]
    learner = BSGDClassifier(budget=20, seed=0)
    model = learner if transformer is None else transformer.clone() | learner
    for x in rows:
        model.learn_one(x, x["north"] > north + 1.0)
    exported = make_program(model)
    assert find_fields_lost_in_float32(exported) == ["north"]
    X = np.array([[x[column.field] for column in exported.columns] for x in rows])
    label, *_ = open_session(exported, tmp_path).run(None, {"X": X})
    assert label.tolist() == [model.predict_one(x) for x in rows]
    label, *_ = open_session(exported, tmp_path, inputs="float").run(None, {"X": X.astype(np.float32)})
    assert label.tolist() != [model.predict_one(x) for x in rows]


def test_only_scaling_steps_are_float64(tmp_path):
    original = program("scaler 0")
    write_onnx(original, tmp_path / "single.onnx")
    write_onnx(original, tmp_path / "double.onnx", inputs="double")
    onnx_types = onnx.TensorProto
    types = [
        {constant.data_type for constant in onnx.load(tmp_path / name).graph.initializer} - {onnx_types.INT64}
        for name in ("single.onnx", "double.onnx")
    ]
    assert types == [{onnx_types.FLOAT}, {onnx_types.FLOAT, onnx_types.DOUBLE}]
    assert count_scaling_steps(original) == 1
    extra_bytes = (tmp_path / "double.onnx").stat().st_size - (tmp_path / "single.onnx").stat().st_size
    assert 0 < extra_bytes < 300


@pytest.mark.parametrize("name", ["BSGDClassifier 0 of 3", "KernelRLSRegressor 0 of 0", "CSMOClassifier 2 of 2", *MEMORIES])
def test_onnx_predicts_as_quantised_programs(name, tmp_path):
    check(quantise_program(program(name), 8), tmp_path)


def test_timestamps_in_a_forest_are_float64(tmp_path):
    """float32 rounds these timestamps to 128 seconds; features of a forest are also scaled in float64."""
    rng, model = np.random.default_rng(0), SVMClassifier(seed=0)
    X = np.column_stack([1.7e9 + rng.uniform(0.0, 200.0, 900), rng.normal(size=900)])
    model.learn_many(X[:600], (X[:600, 0] > 1.7e9 + 90.0).tolist())
    exported = make_program(model)
    assert (count_scaling_steps(exported), find_fields_lost_in_float32(exported)) == (4, ["0"])
    decisions = open_session(exported, tmp_path).run(None, {"X": X[600:]})[-1]
    np.testing.assert_allclose(decisions, model.decision_function_many(X[600:]), atol=1e-3)


def without_vectors():
    model = BSCARegressor(budget=5)
    model.learn_one({"a": 0.0}, 0.0)
    return make_program(model)


@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (without_vectors, {"inputs": "half"}, "inputs must be 'auto', 'float' or 'double', not 'half'"),
        (lambda: make_program(labelled(("\ud800", "b"))), {}, "is not a text that ONNX can hold"),
        (lambda: make_program(labelled([1, "1", 2])), {}, "two labels are one text in ONNX"),
    ],
)
def test_unsupported_inputs_and_labels_are_refused(make, options, reason, tmp_path):
    refused(reason, write_onnx, make(), tmp_path / "model.onnx", **options, error=edge.ExportError)
    assert list(tmp_path.iterdir()) == []
    refused("was not written", write_onnx, without_vectors(), tmp_path / "none" / "model.onnx", error=edge.ExportError)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ((0.1, 16777217.0), [0.1, 16777217.0]),
        ((2**70, 5), [str(2**70), "5"]),
        ((2**63 - 1, -(2**63)), [2**63 - 1, -(2**63)]),
        ((True, "b"), ["True", "b"]),
    ],
)
def test_labels_keep_their_values_or_become_text(labels, expected, tmp_path):
    onnx_session = open_session(make_program(labelled(labels)), tmp_path)
    outputs = onnx_session.run(None, {"X": np.array([[0.0], [1.0]], np.float32)})
    assert outputs[0].tolist() == expected
    label_names = json.loads(onnx_session.get_modelmeta().custom_metadata_map["labels"])
    assert [label_names[index] for index in outputs[1].argmax(axis=1)] == expected


@pytest.mark.parametrize(
    ("labels", "dtype"), [((0, 1), np.int64), ((False, True), np.bool_), ((0.5, 2.0), np.float64), (("a", "b"), np.object_)]
)
def test_outputs_have_the_order_of_skl2onnx(labels, dtype, tmp_path):
    """Labels come first, probabilities [rows, labels] next, decision values last; a regressor has one output [rows, 1]."""
    X = np.array([[0.0], [1.0], [1.0]], np.float32)
    model = labelled(labels)
    label, probabilities, decision = open_session(make_program(model), tmp_path).run(None, {"X": X})
    assert label.dtype == dtype
    assert label.tolist() == [labels[0], labels[1], labels[1]]
    rows = [{"a": float(x)} for x in X[:, 0]]
    expected = [list(model.predict_proba_one(x).values()) for x in rows]
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert probabilities.dtype == decision.dtype == np.float32
    np.testing.assert_allclose(decision, [model.decision_function_one(x) for x in rows], atol=1e-5)

    regressor = BSCARegressor(budget=5)
    regressor.learn_one({"a": 0.0}, 1.0)
    [variable] = open_session(make_program(regressor), tmp_path).run(None, {"X": X})
    assert variable.shape == (3, 1)
    np.testing.assert_allclose(variable[:, 0], [regressor.predict_one(x) for x in rows], atol=1e-5)


def test_a_single_label(tmp_path):
    X = np.array([[0.0], [1.0]], np.float32)
    label, probabilities, decision = open_session(make_program(labelled(("a", "a"))), tmp_path).run(None, {"X": X})
    assert label.tolist() == ["a", "a"]
    assert probabilities.tolist() == [[1.0], [1.0]]
    assert decision.shape == (2,)


@pytest.mark.parametrize("name", ["CSMOClassifier 0 of 2", "CSMOClassifier 1 of 2", "CSMORegressor", "OutOfCoreLinearSVC"])
def test_very_large_rows_have_finite_decisions(name, tmp_path):
    X = np.full((3, 5), 3e38, np.float32)
    X[1, ::2] = X[2, 0] = -3e38
    X[2, 1:] = 1e30
    assert np.isfinite(open_session(program(name), tmp_path).run(None, {"X": X})[-1]).all()


def test_nodes_have_unique_names(tmp_path):
    """Converters to float16 need them."""
    write_onnx(program("SVMClassifier 0 of 3"), tmp_path / "model.onnx")
    names = [node.name for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
