"""Tests of `CascadeSVC` in one process and in Spark: same optimum as one fit, reproducible bytes, correct duality gap."""

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.classification import OneVsRest
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from sklearn.exceptions import ConvergenceWarning

import streamsvm
from refused import raises
from spark_frames import LocalFrame, make_vector_frame, serialize_model, stack_vectors
from streamsvm.batch import CSMOClassifier
from streamsvm_spark import CascadeSVC, CascadeSVCModel, RowsError, cascade
from streamsvm_spark.cascade_tasks import ReadTask, read_results


@pytest.fixture
def fit_locally(monkeypatch):
    """Return a function that fits a cascade in one process, with tasks in random order."""
    monkeypatch.setattr(cascade, "F", SimpleNamespace(shiftright=lambda name, level: lambda part: part >> level))

    def fit(X, y, parts, w=None, rounds=50, tol=1e-3, max_candidates=100_000, seed=0, again=None, **machine):
        rng = np.random.default_rng(seed)
        columns = {"features": pa.array(list(X.astype(float))), "label": pa.array(y.astype(float))}
        columns |= {} if w is None else {"weight": pa.array(w)}
        table = pa.table(columns)
        partitions = [table.take(pa.array(part)).to_batches(100) if len(part) else [] for part in parts]
        read = [
            batch for batches in LocalFrame(partitions, rng).mapInArrow(ReadTask(False), None).partitions for batch in batches
        ]
        _, facts = read_results(batch for batch in read if batch.column("part")[0].as_py() is None)
        rows = [batch for batch in read if batch.column("part")[0].as_py() is not None]
        cached = [[batch for batch in rows if batch.column("part")[0].as_py() == number] for number in range(len(parts))]
        frame = LocalFrame(cached, rng, again)
        assert cascade._check_partitions(facts) == X.shape[1]
        return cascade._Cascade(frame, facts, machine, tol, max_candidates).fit(rounds)

    return fit


def make_rows(seed, n=400):
    """Return rows of two overlapping classes with about a quarter of duplicates, labels and weights."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    X[rng.integers(n, size=n // 4)] = X[rng.integers(n, size=n // 4)]
    y = X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=n) > 0.0
    return X, y, rng.choice([0.5, 1.0, 3.0], n)


def compute_objectives(model, X, y, w, C):
    """Return the dual and the primal objective of a machine over all rows."""
    b, K = np.zeros(len(X)), None
    b[model.support_] = model.dual_coef_[0]
    f = model.decision_function(X)
    K = f - model.intercept_[0]  # the kernel matrix times b
    s = np.where(y, 1.0, -1.0)
    square = 0.5 * b @ K
    return square - np.abs(b).sum(), square + C * w @ np.maximum(1.0 - s * f, 0.0)


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize(
    "machine",
    [
        {"C": 1.0, "kernel": "rbf", "gamma": 0.5},
        {"C": 30.0, "kernel": "rbf", "gamma": 2.0},
        {"C": 0.1, "kernel": "linear", "gamma": 1.0},
        {"C": 1.0, "kernel": "poly", "gamma": 0.5, "degree": 2, "coef0": 1.0},
    ],
    ids=lambda machine: f"{machine['kernel']}-{machine['C']:g}",
)
@pytest.mark.parametrize("order", ["random", "by class"])
def test_cascade_equals_a_fit_of_all_rows(fit_locally, machine, parts, order):
    X, y, w = make_rows(parts)
    numbers = np.arange(400) if order == "random" else np.argsort(y, kind="stable")
    X, y, w = X[numbers], y[numbers], w[numbers]
    # Tolerances so small that decision values differ by at most half of atol, with any rounding.
    expected = CSMOClassifier(**machine, tol=2e-5).fit(X, y, w)
    model = fit_locally(X, y, np.array_split(np.arange(400), parts), w, tol=6e-5, **machine)
    assert model.objective_ == pytest.approx(expected.objective_, rel=1e-6)
    assert model.objective_ >= expected.objective_ - 1e-6 * abs(expected.objective_)
    assert model.duality_gap_ <= 1e-4 * abs(expected.objective_)
    np.testing.assert_allclose(model.decision_function(X), expected.decision_function(X), atol=1e-3)
    assert (model.fit_status_, model.rounds_[-1, 2]) == (0, 0)
    np.testing.assert_array_equal(X[model.support_], model.support_vectors_)
    assert compute_objectives(model, X, y, w, machine["C"]) == pytest.approx(
        (model.objective_, model.objective_ * -1 + model.duality_gap_), rel=1e-9
    )
    rounds = model.rounds_[:, 3]
    assert (np.diff(rounds) <= 1e-9 * abs(rounds[-1])).all()


def test_cascade_of_binary_features_equals_a_fit_of_all_rows(fit_locally):
    rng = np.random.default_rng(0)
    X = (rng.random((300, 70)) < 0.3).astype(np.float32)
    y = X[:, :9].sum(axis=1) > 2.5
    expected = CSMOClassifier(C=2.0, gamma=0.1, tol=5e-5).fit(X, y)
    model = fit_locally(X, y, np.array_split(np.arange(300), 3), tol=1e-4, C=2.0, gamma=0.1)
    np.testing.assert_allclose(model.decision_function(X), expected.decision_function(X), atol=1e-3)


def test_duality_gap_bounds_the_distance_to_the_optimum(fit_locally):
    X, y, w = make_rows(7)
    parts = np.array_split(np.arange(400), 4)
    best = CSMOClassifier(C=10.0, gamma=2.0, tol=5e-5).fit(X, y, w).objective_
    with pytest.warns(ConvergenceWarning, match=r"ended after 1 rounds, while \d+ rows violate .*: raise maxIter"):
        model = fit_locally(X, y, parts, w, rounds=1, C=10.0, gamma=2.0)
    assert model.fit_status_ == 1
    assert model.gap_ > 1e-3
    assert model.objective_ - model.duality_gap_ < best < model.objective_ - 1e-4 * abs(best)
    dual, primal = compute_objectives(model, X, y, w, 10.0)
    assert (model.objective_, model.duality_gap_) == pytest.approx((dual, primal + dual), rel=1e-9)


def test_bytes_do_not_depend_on_arrival_order(fit_locally):
    X, y, w = make_rows(3)
    parts = np.array_split(np.arange(400), 5)
    first = fit_locally(X, y, parts, w, seed=1, C=5.0, gamma=1.0)
    assert serialize_model(first) == serialize_model(fit_locally(X, y, parts, w, seed=2, C=5.0, gamma=1.0))
    assert len(first.rounds_) > 1


def test_empty_partitions_change_nothing(fit_locally):
    X, y, w = make_rows(4)
    parts = np.array_split(np.arange(400), 3)
    empty = np.arange(0)
    model = fit_locally(X, y, [empty, parts[0], empty, parts[1], empty, empty, parts[2], empty], w, C=5.0, gamma=1.0, tol=1e-4)
    expected = CSMOClassifier(C=5.0, gamma=1.0, tol=5e-5).fit(X, y, w)
    assert model.objective_ == pytest.approx(expected.objective_, rel=1e-6)
    np.testing.assert_array_equal(X[model.support_], model.support_vectors_)


def test_max_candidates_limits_the_rows_of_the_driver(fit_locally):
    X, y, w = make_rows(5)
    parts = np.array_split(np.arange(400), 4)
    expected = CSMOClassifier(C=5.0, gamma=1.0, tol=5e-5).fit(X, y, w)
    n = len(expected.support_)
    assert n < 250
    model = fit_locally(X, y, parts, w, C=5.0, gamma=1.0, tol=1e-4, max_candidates=n + 20)
    assert model.objective_ == pytest.approx(expected.objective_, rel=1e-6)
    assert model.rounds_[:, 0].max() <= n + 20
    with pytest.warns(ConvergenceWarning, match="raise maxCandidates"):
        model = fit_locally(X, y, parts, w, C=5.0, gamma=1.0, tol=1e-4, max_candidates=n + 1)
    assert model.gap_ > 1e-4
    assert model.objective_ - model.duality_gap_ < expected.objective_ < model.objective_
    with pytest.raises(RowsError, match="support vectors, but the driver holds at most 20 rows: raise maxCandidates"):
        fit_locally(X, y, parts, w, C=5.0, gamma=1.0, max_candidates=20)


def test_rows_that_change_between_readings_are_refused(fit_locally):
    X, y, w = make_rows(6)

    readings = itertools.count()

    def shuffle_batches(partitions):
        n = next(readings)
        batch_orders = [[np.roll(np.arange(len(batch)), n) for batch in batches] for batches in partitions]
        return [
            [
                batch.set_column(2, "x", batch.column("x").take(pa.array(order)))
                for batch, order in zip(batches, orders, strict=True)
            ]
            for batches, orders in zip(partitions, batch_orders, strict=True)
        ]

    with pytest.raises(RowsError, match="rows or their order changed"):
        fit_locally(X, y, np.array_split(np.arange(400), 3), w, C=5.0, gamma=1.0, again=shuffle_batches)


def test_invalid_frames_are_refused(fit_locally):
    X, y, _ = make_rows(6)
    halves = [np.arange(200), np.arange(200, 400)]
    raises("all rows have the label 1: a classifier needs at least two", fit_locally, X, np.ones(400), halves, error=RowsError)
    raises("no rows to learn", fit_locally, X, y, halves, w=np.zeros(400), error=RowsError)
    raises("vectors have no features", fit_locally, X[:, :0], y, halves, error=RowsError)
    lists = [{"part": part, "rows": 1, "width": 2 + part, "labels": [True, True]} for part in range(2)]
    raises("vectors have 2 features in partition 0 and 3 in partition 1", cascade._check_partitions, lists, error=RowsError)
    with pytest.raises(RowsError, match="partition 1: C times the rows' weights is 0 or infinite"):
        fit_locally(X, y, halves, w=np.where(np.arange(400) == 300, 1e-300, 1.0), C=1e-300, gamma=1.0)


# In Spark --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fit(spark):
    X, y, w = make_rows(8, 500)
    frame = make_vector_frame(spark, X, y, 5, w=w).cache()
    yield SimpleNamespace(X=X, y=y, w=w, frame=frame, model=CascadeSVC(C=5.0, weightCol="w", tol=1e-4).fit(frame))
    frame.unpersist()


def test_fits_in_spark_and_in_one_process_are_equal(fit_locally, fit):
    gamma = CSMOClassifier().fit(fit.X, fit.y, fit.w)._kernel.gamma
    learner = fit.model.learner()
    assert learner.gamma == pytest.approx(gamma, rel=1e-12)
    local_model = fit_locally(
        fit.X, fit.y, np.array_split(np.arange(500), 5), fit.w, tol=1e-4, C=5.0, kernel="rbf", gamma=learner.gamma, degree=3,
        coef0=0.0,
    )  # fmt: skip
    assert serialize_model(local_model) == serialize_model(learner)
    assert (fit.model.n_rounds, fit.model.objective, fit.model.gap) == (
        len(learner.rounds_), learner.objective_, learner.duality_gap_,
    )  # fmt: skip


def test_late_partition_does_not_change_the_bytes(spark, fit):
    def delay_batches(batches):
        for batch in batches:
            time.sleep(0.2 if batch.column("label")[0].as_py() else 0.0)
            yield batch

    delayed = fit.frame.mapInArrow(delay_batches, fit.frame.schema)
    again = CascadeSVC(C=5.0, weightCol="w", tol=1e-4).fit(delayed)
    assert serialize_model(again.learner()) == serialize_model(fit.model.learner())


def test_cascade_model_predicts_as_its_learner_and_is_saved(spark, fit, tmp_path):
    predicted = fit.model.transform(fit.frame).toPandas()
    learner = fit.model.learner()
    f = learner.decision_function(fit.X)
    np.testing.assert_array_equal(predicted.prediction, learner.predict(fit.X))
    # Products of single rows, of Arrow batches and of all rows sum in different orders.
    np.testing.assert_allclose(stack_vectors(predicted.rawPrediction), np.column_stack([-f, f]), rtol=1e-11)
    assert fit.model.predict(predicted.features[0]) == predicted.prediction[0]
    raw = fit.model.predictRaw(predicted.features[0])
    np.testing.assert_allclose(raw.toArray(), predicted.rawPrediction[0].toArray(), rtol=1e-12)
    assert (fit.model.numFeatures, fit.model.numClasses) == (3, 2)
    assert BinaryClassificationEvaluator().evaluate(fit.model.transform(fit.frame)) > 0.9
    fit.model.write().save(str(tmp_path / "model"))
    again = CascadeSVCModel.load(str(tmp_path / "model"))
    assert serialize_model(again.learner()) == serialize_model(learner)
    assert (again.uid, again.n_rounds, again.gap) == (fit.model.uid, fit.model.n_rounds, fit.model.gap)
    assert again.transform(fit.frame).collect() == fit.model.transform(fit.frame).collect()
    learner.save(tmp_path / "alone.safetensors")
    np.testing.assert_array_equal(streamsvm.load(tmp_path / "alone.safetensors").decision_function(fit.X), f)
    budgeted = learner.to_budget(40)
    assert (np.asarray(budgeted.predict_many(fit.X)) == learner.predict(fit.X)).mean() > 0.9


def test_saved_estimator_learns_one_vs_rest(spark, rows, tmp_path):
    X, _, y, _ = rows
    estimator = CascadeSVC(C=2.0, gamma=0.5, kernel="rbf", tol=1e-2, maxIter=9, maxCandidates=500)
    estimator.save(str(tmp_path / "estimator"))
    again = CascadeSVC.load(str(tmp_path / "estimator"))
    assert again.extractParamMap() == estimator.extractParamMap()
    frame = make_vector_frame(spark, X, y, 2)
    raises(r"partition \d: a label is 2: .*OneVsRest", again.fit, frame, error=RowsError)
    model = OneVsRest(classifier=again).fit(frame)
    predicted = model.transform(frame).toPandas()
    assert (predicted.prediction == y).mean() > 0.9


def test_invalid_rows_are_refused_or_skipped(spark, fit):
    X, y = fit.X.copy(), fit.y
    X[410, 1] = np.nan
    frame = make_vector_frame(spark, X, y, 5)
    with pytest.raises(RowsError, match="partition 4: 1 of 100 rows of a batch cannot be used; .* handleInvalid='skip'"):
        CascadeSVC().fit(frame)
    learner = CascadeSVC(gamma="auto", tol=1e-4, handleInvalid="skip").fit(frame).learner()
    is_valid = np.arange(500) != 410
    expected = CSMOClassifier(gamma=1.0 / 3.0, tol=5e-5).fit(X[is_valid], y[is_valid])
    assert learner.objective_ == pytest.approx(expected.objective_, rel=1e-6)
    np.testing.assert_array_equal(X[learner.support_], learner.support_vectors_)
