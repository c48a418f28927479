"""Cascades in one process, and in Spark: the machine of all rows, the same bytes whatever comes first, and honest bounds."""

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
from spark_frames import LocalFrame, framed, of_file, stacked
from streamsvm.batch import CSMOClassifier
from streamsvm.core.kernels import MACHINE_KERNELS, Kernel
from streamsvm_spark import CascadeSVC, CascadeSVCModel, RowsError, cascade
from streamsvm_spark.cascade_tasks import CandidateRows, ReadTask, compute_decision_values, make_kernel_sums, read_results


@pytest.fixture
def local(monkeypatch):
    """Fit a cascade in one process."""
    monkeypatch.setattr(cascade, "F", SimpleNamespace(shiftright=lambda name, level: lambda part: part >> level))

    def fit(X, y, parts, w=None, rounds=50, tol=1e-3, most=100_000, seed=0, again=None, **machine):
        rng = np.random.default_rng(seed)
        columns = {"features": pa.array(list(X.astype(float))), "label": pa.array(y.astype(float))}
        columns |= {} if w is None else {"weight": pa.array(w)}
        table = pa.table(columns)
        partitions = [table.take(pa.array(some)).to_batches(100) if len(some) else [] for some in parts]
        read = [
            batch for batches in LocalFrame(partitions, rng).mapInArrow(ReadTask(False), None).partitions for batch in batches
        ]
        _, facts = read_results(batch for batch in read if batch.column("part")[0].as_py() is None)
        rows = [batch for batch in read if batch.column("part")[0].as_py() is not None]
        cached = [[batch for batch in rows if batch.column("part")[0].as_py() == number] for number in range(len(parts))]
        frame = LocalFrame(cached, rng, again)
        assert cascade._check_partitions(facts) == X.shape[1]
        return cascade._Cascade(frame, facts, machine, tol, most).fit(rounds)

    return fit


def random_set(seed, n=400):
    """Rows of two classes that overlap, a quarter of them twice."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    X[rng.integers(n, size=n // 4)] = X[rng.integers(n, size=n // 4)]
    y = X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=n) > 0.0
    return X, y, rng.choice([0.5, 1.0, 3.0], n)


def objectives(model, X, y, w, C):
    """The dual and the primal objective of a machine over all rows, by the formulas."""
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
def test_it_is_the_machine_of_all_rows(local, machine, parts, order):
    X, y, w = random_set(parts)
    numbers = np.arange(400) if order == "random" else np.argsort(y, kind="stable")
    X, y, w = X[numbers], y[numbers], w[numbers]
    # Both so exact that the decision values differ by half of what is allowed, however a processor rounds.
    whole = CSMOClassifier(**machine, tol=2e-5).fit(X, y, w)
    found = local(X, y, np.array_split(np.arange(400), parts), w, tol=6e-5, **machine)
    assert found.objective_ == pytest.approx(whole.objective_, rel=1e-6)
    assert found.objective_ >= whole.objective_ - 1e-6 * abs(whole.objective_)
    assert found.duality_gap_ <= 1e-4 * abs(whole.objective_)
    np.testing.assert_allclose(found.decision_function(X), whole.decision_function(X), atol=1e-3)
    assert (found.fit_status_, found.rounds_[-1, 2]) == (0, 0)
    np.testing.assert_array_equal(X[found.support_], found.support_vectors_)
    assert objectives(found, X, y, w, machine["C"]) == pytest.approx(
        (found.objective_, found.objective_ * -1 + found.duality_gap_), rel=1e-9
    )
    rounds = found.rounds_[:, 3]
    assert (np.diff(rounds) <= 1e-9 * abs(rounds[-1])).all()


def test_bits_are_compared_as_numbers_are(local):
    rng = np.random.default_rng(0)
    X = (rng.random((300, 70)) < 0.3).astype(np.float32)
    y = X[:, :9].sum(axis=1) > 2.5
    whole = CSMOClassifier(C=2.0, gamma=0.1, tol=5e-5).fit(X, y)
    found = local(X, y, np.array_split(np.arange(300), 3), tol=1e-4, C=2.0, gamma=0.1)
    np.testing.assert_allclose(found.decision_function(X), whole.decision_function(X), atol=1e-3)


@pytest.mark.parametrize("case", ["near", "some are far", "large coefficients", "all are far"])
def test_values_are_exact_near_the_margin_and_close_elsewhere(case):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 5)).astype(np.float32)
    X[:3] *= 30.0 if case == "some are far" else 1.0
    X[297:] *= 30.0 if case == "some are far" else 1.0
    gamma = 50.0 if case == "all are far" else 0.2
    alpha = rng.random(300) * {"large coefficients": 1e4, "all are far": 3.0}.get(case, 0.5)
    y = rng.random(300) < 0.5
    all_rows = CandidateRows(np.zeros(300, np.int32), np.arange(300), X, y, np.ones(300), alpha)
    support, rows = all_rows.select(np.arange(200)), all_rows.select(np.arange(100, 300))
    kernel = Kernel(MACHINE_KERNELS["rbf"], gamma, 0.0, 1)
    distances = np.square(rows.X[:, None].astype(float) - support.X[None]).sum(axis=2)
    f = 0.3 + np.exp(-gamma * distances) @ (support.alpha * support.signs)
    found = compute_decision_values(make_kernel_sums(support, kernel), 0.3, rows, 0.05)
    within = 1.0 - rows.signs * f > -0.05
    assert 20 < within.sum() < 180
    np.testing.assert_allclose(found[within], f[within], rtol=1e-10, atol=1e-10)
    assert (1.0 - rows.signs * found <= -0.05)[~within].all()
    assert np.abs(found - f).max() > 1e-9  # float32 is used where it may be


def test_the_gap_bounds_how_far_the_optimum_is(local):
    X, y, w = random_set(7)
    parts = np.array_split(np.arange(400), 4)
    best = CSMOClassifier(C=10.0, gamma=2.0, tol=5e-5).fit(X, y, w).objective_
    with pytest.warns(ConvergenceWarning, match=r"ended after 1 rounds, while \d+ rows violate .*: raise maxIter"):
        found = local(X, y, parts, w, rounds=1, C=10.0, gamma=2.0)
    assert found.fit_status_ == 1
    assert found.gap_ > 1e-3
    assert found.objective_ - found.duality_gap_ < best < found.objective_ - 1e-4 * abs(best)
    dual, primal = objectives(found, X, y, w, 10.0)
    assert (found.objective_, found.duality_gap_) == pytest.approx((dual, primal + dual), rel=1e-9)


def test_the_same_bytes_whatever_comes_first(local):
    X, y, w = random_set(3)
    parts = np.array_split(np.arange(400), 5)
    one = local(X, y, parts, w, seed=1, C=5.0, gamma=1.0)
    assert of_file(one) == of_file(local(X, y, parts, w, seed=2, C=5.0, gamma=1.0))
    assert len(one.rounds_) > 1


def test_empty_partitions_change_nothing(local):
    X, y, w = random_set(4)
    some = np.array_split(np.arange(400), 3)
    none = np.arange(0)
    found = local(X, y, [none, some[0], none, some[1], none, none, some[2], none], w, C=5.0, gamma=1.0, tol=1e-4)
    whole = CSMOClassifier(C=5.0, gamma=1.0, tol=5e-5).fit(X, y, w)
    assert found.objective_ == pytest.approx(whole.objective_, rel=1e-6)
    np.testing.assert_array_equal(X[found.support_], found.support_vectors_)


def test_a_driver_with_little_room(local):
    X, y, w = random_set(5)
    parts = np.array_split(np.arange(400), 4)
    whole = CSMOClassifier(C=5.0, gamma=1.0, tol=5e-5).fit(X, y, w)
    n = len(whole.support_)
    assert n < 250
    found = local(X, y, parts, w, C=5.0, gamma=1.0, tol=1e-4, most=n + 20)
    assert found.objective_ == pytest.approx(whole.objective_, rel=1e-6)
    assert found.rounds_[:, 0].max() <= n + 20
    with pytest.warns(ConvergenceWarning, match="raise maxCandidates"):
        found = local(X, y, parts, w, C=5.0, gamma=1.0, tol=1e-4, most=n + 1)
    assert found.gap_ > 1e-4
    assert found.objective_ - found.duality_gap_ < whole.objective_ < found.objective_
    with pytest.raises(RowsError, match="support vectors, but the driver holds at most 20 rows: raise maxCandidates"):
        local(X, y, parts, w, C=5.0, gamma=1.0, most=20)


def test_rows_that_are_others_at_each_reading_are_refused(local):
    X, y, w = random_set(6)

    readings = itertools.count()

    def moved(partitions):
        n = next(readings)
        orders_of = [[np.roll(np.arange(len(batch)), n) for batch in batches] for batches in partitions]
        return [
            [
                batch.set_column(2, "x", batch.column("x").take(pa.array(order)))
                for batch, order in zip(batches, orders, strict=True)
            ]
            for batches, orders in zip(partitions, orders_of, strict=True)
        ]

    with pytest.raises(RowsError, match="rows or their order changed"):
        local(X, y, np.array_split(np.arange(400), 3), w, C=5.0, gamma=1.0, again=moved)


def test_frames_that_are_refused(local):
    X, y, _ = random_set(6)
    halves = [np.arange(200), np.arange(200, 400)]
    raises("all rows have the label 1: a classifier needs at least two", local, X, np.ones(400), halves, error=RowsError)
    raises("no rows to learn", local, X, y, halves, w=np.zeros(400), error=RowsError)
    raises("vectors have no features", local, X[:, :0], y, halves, error=RowsError)
    lists = [{"part": part, "rows": 1, "width": 2 + part, "labels": [True, True]} for part in range(2)]
    raises("vectors have 2 features in partition 0 and 3 in partition 1", cascade._check_partitions, lists, error=RowsError)
    with pytest.raises(RowsError, match="partition 1: C times the rows' weights is 0 or infinite"):
        local(X, y, halves, w=np.where(np.arange(400) == 300, 1e-300, 1.0), C=1e-300, gamma=1.0)


# In Spark --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fit(spark):
    X, y, w = random_set(8, 500)
    frame = framed(spark, X, y, 5, w=w).cache()
    yield SimpleNamespace(X=X, y=y, w=w, frame=frame, model=CascadeSVC(C=5.0, weightCol="w", tol=1e-4).fit(frame))
    frame.unpersist()


def test_a_fit_in_spark_is_that_in_one_process(local, fit):
    gamma = CSMOClassifier().fit(fit.X, fit.y, fit.w)._kernel.gamma
    learner = fit.model.learner()
    assert learner.gamma == pytest.approx(gamma, rel=1e-12)
    by_hand = local(
        fit.X, fit.y, np.array_split(np.arange(500), 5), fit.w, tol=1e-4, C=5.0, kernel="rbf", gamma=learner.gamma, degree=3,
        coef0=0.0,
    )  # fmt: skip
    assert of_file(by_hand) == of_file(learner)
    assert (fit.model.n_rounds, fit.model.objective, fit.model.gap) == (
        len(learner.rounds_), learner.objective_, learner.duality_gap_,
    )  # fmt: skip


def test_a_partition_that_is_late_changes_no_byte(spark, fit):
    def late(batches):
        for batch in batches:
            time.sleep(0.2 if batch.column("label")[0].as_py() else 0.0)
            yield batch

    delayed = fit.frame.mapInArrow(late, fit.frame.schema)
    again = CascadeSVC(C=5.0, weightCol="w", tol=1e-4).fit(delayed)
    assert of_file(again.learner()) == of_file(fit.model.learner())


def test_what_is_predicted(spark, fit, tmp_path):
    found = fit.model.transform(fit.frame).toPandas()
    learner = fit.model.learner()
    f = learner.decision_function(fit.X)
    np.testing.assert_array_equal(found.prediction, learner.predict(fit.X))
    # A product of one row, or of a batch of Arrow, with the vectors adds up in another order than that of all rows.
    np.testing.assert_allclose(stacked(found.rawPrediction), np.column_stack([-f, f]), rtol=1e-11)
    assert fit.model.predict(found.features[0]) == found.prediction[0]
    raw = fit.model.predictRaw(found.features[0])
    np.testing.assert_allclose(raw.toArray(), found.rawPrediction[0].toArray(), rtol=1e-12)
    assert (fit.model.numFeatures, fit.model.numClasses) == (3, 2)
    assert BinaryClassificationEvaluator().evaluate(fit.model.transform(fit.frame)) > 0.9
    fit.model.write().save(str(tmp_path / "model"))
    again = CascadeSVCModel.load(str(tmp_path / "model"))
    assert of_file(again.learner()) == of_file(learner)
    assert (again.uid, again.n_rounds, again.gap) == (fit.model.uid, fit.model.n_rounds, fit.model.gap)
    assert again.transform(fit.frame).collect() == fit.model.transform(fit.frame).collect()
    learner.save(tmp_path / "alone.safetensors")
    np.testing.assert_array_equal(streamsvm.load(tmp_path / "alone.safetensors").decision_function(fit.X), f)
    budgeted = learner.to_budget(40)
    assert (np.asarray(budgeted.predict_many(fit.X)) == learner.predict(fit.X)).mean() > 0.9


def test_an_estimator_is_saved_and_learns_several_classes_by_one_against_the_rest(spark, rows, tmp_path):
    X, _, y, _ = rows
    estimator = CascadeSVC(C=2.0, gamma=0.5, kernel="rbf", tol=1e-2, maxIter=9, maxCandidates=500)
    estimator.save(str(tmp_path / "estimator"))
    again = CascadeSVC.load(str(tmp_path / "estimator"))
    assert again.extractParamMap() == estimator.extractParamMap()
    frame = framed(spark, X, y, 2)
    raises(r"partition \d: a label is 2: .*OneVsRest", again.fit, frame, error=RowsError)
    model = OneVsRest(classifier=again).fit(frame)
    found = model.transform(frame).toPandas()
    assert (found.prediction == y).mean() > 0.9


def test_rows_that_are_refused_and_rows_that_are_skipped(spark, fit):
    X, y = fit.X.copy(), fit.y
    X[410, 1] = np.nan
    frame = framed(spark, X, y, 5)
    with pytest.raises(RowsError, match="partition 4: 1 of 100 rows of a batch cannot be used; .* handleInvalid='skip'"):
        CascadeSVC().fit(frame)
    learner = CascadeSVC(gamma="auto", tol=1e-4, handleInvalid="skip").fit(frame).learner()
    kept = np.arange(500) != 410
    whole = CSMOClassifier(gamma=1.0 / 3.0, tol=5e-5).fit(X[kept], y[kept])
    assert learner.objective_ == pytest.approx(whole.objective_, rel=1e-6)
    np.testing.assert_array_equal(X[learner.support_], learner.support_vectors_)
