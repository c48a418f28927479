"""Tests of the ``learner`` parameter of the estimators."""

import numpy as np
import pytest

from spark_frames import make_vector_frame, serialize_model, stack_vectors
from streamsvm.learners import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.learners.refit import LineSearch, NormalEquations, take_step
from streamsvm.stream.merging import merge_models
from streamsvm_spark import BudgetedSVMClassificationModel, BudgetedSVMClassifier, BudgetedSVMRegressor, RowsError, estimators
from streamsvm_spark.parameters import CLASSIFIERS


@pytest.fixture(scope="module")
def linear_rows(rows):
    X, _, _, _ = rows
    return X, (X[:, 0] - 0.5 * X[:, 2] > 0.2).astype(int)


@pytest.mark.parametrize("kind", [OnlineLinearSVC, OnlineLinearSVR])
def test_linear_fit_equals_merged_fits_of_the_partitions(spark, rows, linear_rows, kind):
    X, y = linear_rows if kind is OnlineLinearSVC else (rows[0], rows[3])
    estimator = BudgetedSVMClassifier if kind is OnlineLinearSVC else BudgetedSVMRegressor
    models = []
    for part in np.array_split(np.arange(600), 4):
        models.append(kind(C=0.5, max_features=3))
        models[-1].learn_many(X[part], y[part].astype(float))
    merged = merge_models(models)
    frame = make_vector_frame(spark, X, y)
    assert serialize_model(estimator(learner="linear", C=0.5).fit(frame).learner()) == serialize_model(merged)
    step = NormalEquations.from_rows(merged, X, y.astype(float)).compute_step(merged)
    take_step(merged, step, LineSearch.from_rows(merged, step, X, y.astype(float)))
    again = estimator(learner="linear", C=0.5, rounds=2).fit(frame).learner()
    np.testing.assert_allclose(again.coefficients, merged.coefficients, rtol=1e-6)
    assert again.intercept == pytest.approx(merged.intercept, rel=1e-6)


def test_saved_linear_model_predicts_as_its_learner(spark, linear_rows, tmp_path):
    X, y = linear_rows
    frame = make_vector_frame(spark, X, y)
    model = BudgetedSVMClassifier(learner="linear", rounds=2).fit(frame)
    model.write().save(str(tmp_path / "model"))
    loaded = BudgetedSVMClassificationModel.read().load(str(tmp_path / "model"))
    learner, predicted = model.learner(), loaded.transform(frame).toPandas()
    assert serialize_model(loaded.learner()) == serialize_model(learner)
    f = learner.decision_function_many(X)
    np.testing.assert_array_equal(stack_vectors(predicted.rawPrediction), np.column_stack([-f, f]))
    np.testing.assert_array_equal(stack_vectors(predicted.probability), learner.predict_proba_many(X))
    np.testing.assert_array_equal(predicted.prediction, learner.predict_many(X))
    assert (predicted.prediction == y).mean() > 0.95


@pytest.mark.parametrize("name", ["rbp", "projectron++", "nogd"])  # removes support vectors, projects them, uses landmarks
def test_other_budgeted_learners_are_fitted(spark, linear_rows, name):
    X, y = linear_rows
    model = BudgetedSVMClassifier(learner=name, budget=30, gamma=0.1, rounds=2).fit(make_vector_frame(spark, X, y, 2)).learner()
    assert type(model) is CLASSIFIERS[name]
    assert 0 < model.n_support <= 30
    assert (model.predict_many(X) == y).mean() > 0.85


def test_too_many_features_for_a_second_round_are_refused(spark, linear_rows, monkeypatch):
    monkeypatch.setattr(estimators, "_MAX_SUM_BYTES", 100)
    with pytest.raises(RowsError, match="with 4 features and 1 outputs: use rounds=1, or fewer features"):
        BudgetedSVMClassifier(learner="linear", rounds=2).fit(make_vector_frame(spark, *linear_rows, 2))


def test_three_classes_need_one_vs_rest(spark, rows):
    with pytest.raises(RowsError, match="more labels than the 2 of OnlineLinearSVC"):
        BudgetedSVMClassifier(learner="linear").fit(make_vector_frame(spark, rows[0], rows[2], 2))
