"""Predictors equal the saved models: learners, batch machines, transformers before them and wrappers around them."""

import math

import numpy as np
import pytest
from river import base, compose, linear_model, preprocessing
from scipy import sparse

import edge_models
import streamsvm
from edge_models import MAKERS, NAMES, bsgd, fitted, learned, of_table, problem, rows
from problems import learned_by
from refused import refused
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, SVMClassifier, SVMRegressor, edge
from streamsvm.batch import CSMOClassifier, CSMOOneClass, batch_adapter
from streamsvm.edge.program import Column
from streamsvm.export.convert import make_program
from streamsvm.export.formats import export
from streamsvm.learners.preprocessing import BoundedTargetScaler
from streamsvm.learners.thresholds import TunedThresholdClassifier
from streamsvm.stream.tables import TableEncoder

BAND = 1e-4


def save_and_load(model, tmp_path):
    path = tmp_path / "model.safetensors"
    streamsvm.save(model, path)
    return edge.load(path)


def check(model, predictor, rows):
    """Assert that a predictor equals a model on rows; labels only if rounding does not decide about them."""
    final = model[-1] if isinstance(model, compose.Pipeline) else model
    for x in rows:
        if isinstance(final, base.AnomalyDetector):
            assert predictor.predict_one(x) == pytest.approx(model.score_one(x), abs=1e-4)
            continue
        expected, prediction = model.predict_one(x), predictor.predict_one(x)
        if not isinstance(final, base.Classifier):
            assert prediction == pytest.approx(expected, rel=1e-4, abs=1e-4)
            continue
        f = predictor.decision_function_one(x)
        values = sorted(f.values() if isinstance(f, dict) else [0.0, abs(f)])
        if values[-1] - values[-2] > BAND:
            assert prediction == expected
            assert type(prediction) is type(expected)
        p, q = model.predict_proba_one(x), predictor.predict_proba_one(x)
        assert p.keys() == q.keys()
        assert all(q[label] == pytest.approx(p[label], abs=1e-3) for label in p)


MACHINES = [name for name in MAKERS if name.startswith(("CSMO", "HSS", "Hierarchical", "OutOfCore"))]
TESTED_ELSEWHERE = "names of", "costs of", "tuned"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MACHINES and not name.startswith(TESTED_ELSEWHERE)])
def test_predictors_equal_their_models(name, tmp_path):
    """Before a release, models with other parameters, too."""
    model, xs = MAKERS[name](), [x for x, _ in rows(100, 0, seed=1)]
    if name.startswith("table"):
        xs = [{**x, "city": ("Paris", " Paris ", "Prag", "", 7.0)[i % 5]} for i, x in enumerate(xs)] + [{"a": 1.0}, {}]
    predictor = save_and_load(model, tmp_path)
    check(model, predictor, [x for x in xs if "a" in x and "c" in x] if name.startswith("scaler") else xs)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", [BSGDClassifier, BSCAClassifier, SVMClassifier, SVMRegressor, BSCARegressor])
def test_predictors_of_models_with_few_rows(kind, n, tmp_path):
    classes = 0 if "Regressor" in kind.__name__ else 2
    model = learned(kind(seed=0), n, classes)
    check(model, save_and_load(model, tmp_path), [x for x, _ in rows(20, classes, seed=1)])


# Batch and linear machines -----------------------------------------------------------------------------------------------------


def make_predictor(model):
    return edge.Predictor(make_program(model))


@pytest.mark.parametrize("name", MACHINES)
def test_predictors_equal_their_batch_machines(name):
    model, (X, _) = MAKERS[name](), problem(4 if name.endswith("4") else 2)
    predictor = make_predictor(model)
    if not hasattr(model, "decision_function"):
        np.testing.assert_allclose(predictor.predict_many(X), model.predict(X), rtol=1e-4, atol=1e-4)
        return
    f = model.decision_function(X)
    np.testing.assert_allclose(predictor.decision_function_many(X), f, rtol=1e-4, atol=1e-4)
    is_clear = np.abs(f).min(axis=-1) > BAND if f.ndim > 1 else np.abs(f) > BAND
    assert is_clear.mean() > 0.9
    assert (predictor.predict_many(X) == model.predict(X))[is_clear].all()
    assert type(predictor.predict_one(dict(enumerate(X[0])))) is (int if isinstance(model, CSMOOneClass) else str)


def test_machines_fitted_on_sparse_rows():
    X, y = problem(2)
    X[np.abs(X) < 0.7] = 0.0
    model = CSMOClassifier().fit(sparse.csr_array(X), y)
    np.testing.assert_allclose(
        make_predictor(model).decision_function_many(X), model.decision_function(sparse.csr_array(X)), atol=1e-4
    )


# Transformers before learners, and wrappers around them ------------------------------------------------------------------------


@pytest.mark.parametrize("values", [("abc", "d"), (True, False), (1.0, 2.5), ("", "x"), (" a", "a"), (1, "b")], ids=str)
def test_one_hot_encoders(values, tmp_path):
    model = compose.Pipeline(preprocessing.OneHotEncoder(), bsgd())
    for i in range(60):
        model.learn_one({"field": values[i % 2], "size": i % 3}, i % 2)
    check(
        model, save_and_load(model, tmp_path), [{"field": value, "size": i} for i in range(3) for value in (*values, "unknown")]
    )


@pytest.mark.parametrize(
    ("values", "reason"),
    [((None, "a"), "learned None of 'field'"), ((math.nan, "a"), "learned nan of"), ((True, "true"), "two values of a field")],
)
def test_one_hot_encoders_with_ambiguous_values_are_refused(values, reason):
    model = compose.Pipeline(preprocessing.OneHotEncoder(), bsgd())
    for i in range(10):
        model.learn_one({"field": values[i % 2]}, i % 2)
    refused(reason, make_predictor, model, error=edge.ExportError)


@pytest.mark.parametrize(
    "model",
    [
        preprocessing.TargetStandardScaler(preprocessing.StandardScaler() | BSCARegressor(budget=30, seed=0)),
        BoundedTargetScaler(preprocessing.StandardScaler() | BSCARegressor(budget=30, seed=0)),
        preprocessing.MinMaxScaler() | BoundedTargetScaler(preprocessing.StandardScaler() | BSCARegressor(budget=30, seed=0)),
        preprocessing.TargetStandardScaler(BoundedTargetScaler(BSCARegressor(budget=30, seed=0))),
        TunedThresholdClassifier(preprocessing.StandardScaler() | BSCAClassifier(budget=30, seed=0)),
    ],
    ids=str,
)
def test_wrapped_models(model, tmp_path):
    pairs = [(x, y) for x, y in rows(300, 2 if isinstance(model, base.Classifier) else 0)]
    learned_by(model, pairs)
    predictor = save_and_load(model, tmp_path)
    assert predictor.metadata["rows"] == 300
    for x, _ in pairs[:50]:
        assert predictor.predict_one(x) == pytest.approx(model.predict_one(x), abs=1e-4)


def test_tuned_thresholds(tmp_path):
    model, labels = edge_models.tuned(), set()
    predictor = save_and_load(model, tmp_path)
    for x, _ in rows(200, 2, seed=1):
        expected, p = model.predict_one(x), model.predict_proba_one(x)[1]
        labels.add(expected)
        if abs(p - model.threshold) > BAND:
            assert predictor.predict_one(x) == expected
    assert labels == {0, 1}


def test_hashed_feature_names(tmp_path):
    model = BSGDClassifier(budget=20, max_features=3, overflow="hash", seed=0)
    learned_by(model, rows(200, 2))
    check(model, save_and_load(model, tmp_path), [x for x, _ in rows(50, 2, seed=1)] + [{"new": 2.0, "a": 1.0}])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (BSGDClassifier, "has not learned yet"),
        (CSMOClassifier, "has not learned yet"),
        (lambda: learned(linear_model.LogisticRegression(), 5, 2), "a LogisticRegression cannot be exported"),
        (lambda: learned(preprocessing.Normalizer() | bsgd(), 5, 2), "a Normalizer before the model cannot be exported"),
        (lambda: learned(compose.Pipeline(TableEncoder(when_missing="indicator"), bsgd()), 5, 2), "when_missing='indicator'"),
        (
            lambda: learned(batch_adapter(CSMOClassifier()), 300, 2),
            r"a BatchClassifier cannot be exported.*to_budget\(500\)",
        ),
        (
            lambda: CSMOClassifier(kernel="precomputed").fit(np.eye(40), np.arange(40) % 2),
            "'precomputed' cannot be exported",
        ),
    ],
)
def test_unsupported_models_are_refused_by_name(make, reason, tmp_path):
    model = make()
    refused(reason, make_predictor, model, error=edge.ExportError)
    if not isinstance(model, CSMOClassifier):
        with pytest.raises(edge.ExportError, match=f"model.safetensors: it holds no program to predict by: .*{reason}"):
            save_and_load(model, tmp_path)


def test_infinite_numbers_count_as_missing(tmp_path):
    model = learned(BSGDClassifier(budget=20, seed=0), 200, 2)
    predictor = save_and_load(model, tmp_path)
    names = predictor.columns
    X = np.array([[math.nan, 1.0, 2.0, 3.0, 4.0], [math.inf, 1.0, 2.0, 3.0, 4.0]])
    expected = model.decision_function_one(dict(zip(names[1:], X[0, 1:].tolist(), strict=True)))
    np.testing.assert_allclose(predictor.decision_function_many(X), expected, rtol=1e-6)
    assert predictor.decision_function_one({"b": 1.0, "c": 2.0, "d": 3.0, "e": 4.0, "a": None}) == pytest.approx(expected)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_are_read_by_column_name(library, tmp_path):
    model, xs = of_table(2)
    predictor = save_and_load(model, tmp_path)
    table = {"city": [x.get("city") for x in xs], "other": list(range(100))}
    table = {name: [x.get(name) for x in xs] for name in "edcba"} | {**table, "city": [str(city) for city in table["city"]]}
    module = pytest.importorskip(library)
    frame = module.table(table) if library == "pyarrow" else module.DataFrame(table)
    expected = [predictor.predict_one({name: values[i] for name, values in table.items()}) for i in range(100)]
    assert predictor.predict_many(frame).tolist() == expected


@pytest.mark.parametrize(
    ("X", "reason"),
    [(np.zeros((2, 3)), r"shape \(2, 3\), not \(rows, 5\): the columns are a, b, c, d, e"), ([["a"]], "array of numbers")],
)
def test_invalid_arrays_are_refused(X, reason, tmp_path):
    predictor = save_and_load(learned(bsgd(), 50, 2), tmp_path)
    refused(reason, predictor.predict_many, X)
    refused("feature 'a' is 'x', a str: it must be a number", predictor.predict_one, {"a": "x"})
    assert predictor.predict_many(np.empty((0, 5))).shape == (0,)


def test_feature_names_may_be_numbers(tmp_path):
    model = edge_models.labelled((0, 1), np.int64(3))
    predictor = save_and_load(model, tmp_path)
    assert [type(name) for name in predictor.columns] == [int]
    check(model, predictor, [{3: 0.0}, {np.int64(3): 1.0}])
    model.learn_one({math.inf: 1.0}, 1)
    refused("inf has a name that is neither a text nor a finite number", save_and_load, model, tmp_path, error=edge.ExportError)
    assert streamsvm.load(tmp_path / "model.safetensors").n_learned == 21


def test_labels_keep_trailing_zero_bytes(tmp_path):
    predictor = save_and_load(edge_models.labelled(("b\0", "b")), tmp_path)
    predictions = [predictor.predict_one({"a": value}) for value in (0.0, 1.0)]
    assert predictor.predict_many([[0.0], [1.0]]).tolist() == predictions == ["b\0", "b"]


def test_one_vs_one_models_return_a_value_per_pair():
    model, (X, _) = fitted(CSMOClassifier(decision_function_shape="ovo"), 3), problem(3)
    pair_values = make_predictor(model).decision_function_one(dict(enumerate(X[0])))
    assert pair_values == pytest.approx(model.decision_function(X[:1])[0], abs=1e-4)
    label_values = make_predictor(fitted(CSMOClassifier(), 3)).decision_function_one(dict(enumerate(X[0])))
    assert list(label_values) == ["maybe", "no", "yes"]


@pytest.mark.parametrize("labels", [(b"a", b"b"), ((1, 2), (3, 4))], ids=str)
def test_labels_that_json_cannot_hold_are_refused(labels, tmp_path):
    model = edge_models.labelled(labels)
    path = tmp_path / "model.safetensors"
    model.save(path)
    assert streamsvm.load(path).predict_one({"a": 1.0}) == model.predict_one({"a": 1.0})
    reason = "is a name or a label: it must be a text, number or bool"
    refused(f"it holds no program to predict by: .*{reason}", edge.load, path, error=edge.ExportError)
    for form in ("numpy", "json"):
        refused(reason, export, model, form, tmp_path, error=edge.ExportError)


@pytest.mark.parametrize("name", ["x" * 3000, 10**400], ids=["long", "large"])
def test_names_that_are_too_long_or_too_large_are_refused(name, tmp_path):
    X, y = problem(2)
    machine = CSMOClassifier().fit(X, y)
    program = make_program(machine)
    program.columns[0] = Column(name, name)
    refused("more than 2,048|that no float holds", program.serialise, error=edge.ExportError)
