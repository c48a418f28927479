"""The learners that the estimators know by name, and those that they refuse."""

import numpy as np
import pytest

from spark_frames import framed, of_file, stacked
from streamsvm.learners import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.learners.refit import LineSearch, NormalEquations, take_step
from streamsvm.stream.merging import merge_models
from streamsvm_spark import BudgetedSVMClassificationModel, BudgetedSVMClassifier, BudgetedSVMRegressor, RowsError, estimators
from streamsvm_spark.parameters import CLASSIFIERS


@pytest.fixture(scope="module")
def signs(rows):
    X, _, _, _ = rows
    return X, (X[:, 0] - 0.5 * X[:, 2] > 0.2).astype(int)


@pytest.mark.parametrize("kind", [OnlineLinearSVC, OnlineLinearSVR])
def test_a_linear_fit_is_that_of_each_partition_merged(spark, rows, signs, kind):
    X, y = signs if kind is OnlineLinearSVC else (rows[0], rows[3])
    estimator = BudgetedSVMClassifier if kind is OnlineLinearSVC else BudgetedSVMRegressor
    models = []
    for some in np.array_split(np.arange(600), 4):
        models.append(kind(C=0.5, max_features=3))
        models[-1].learn_many(X[some], y[some].astype(float))
    one = merge_models(models)
    frame = framed(spark, X, y)
    assert of_file(estimator(learner="linear", C=0.5).fit(frame).learner()) == of_file(one)
    step = NormalEquations.from_rows(one, X, y.astype(float)).compute_step(one)
    take_step(one, step, LineSearch.from_rows(one, step, X, y.astype(float)))
    again = estimator(learner="linear", C=0.5, rounds=2).fit(frame).learner()
    np.testing.assert_allclose(again.coefficients, one.coefficients, rtol=1e-6)
    assert again.intercept == pytest.approx(one.intercept, rel=1e-6)


def test_a_linear_model_answers_and_is_saved(spark, signs, tmp_path):
    X, y = signs
    frame = framed(spark, X, y)
    model = BudgetedSVMClassifier(learner="linear", rounds=2).fit(frame)
    model.write().save(str(tmp_path / "model"))
    loaded = BudgetedSVMClassificationModel.read().load(str(tmp_path / "model"))
    learner, found = model.learner(), loaded.transform(frame).toPandas()
    assert of_file(loaded.learner()) == of_file(learner)
    f = learner.decision_function_many(X)
    np.testing.assert_array_equal(stacked(found.rawPrediction), np.column_stack([-f, f]))
    np.testing.assert_array_equal(stacked(found.probability), learner.predict_proba_many(X))
    np.testing.assert_array_equal(found.prediction, learner.predict_many(X))
    assert (found.prediction == y).mean() > 0.95


@pytest.mark.parametrize("name", ["rbp", "projectron++", "nogd"])  # of those that remove, project, and have landmarks
def test_rules_of_the_family(spark, signs, name):
    X, y = signs
    model = BudgetedSVMClassifier(learner=name, budget=30, gamma=0.1, rounds=2).fit(framed(spark, X, y, 2)).learner()
    assert type(model) is CLASSIFIERS[name]
    assert 0 < model.n_support <= 30
    assert (model.predict_many(X) == y).mean() > 0.85


def test_too_many_features_for_a_second_round_are_refused(spark, signs, monkeypatch):
    monkeypatch.setattr(estimators, "_MAX_SUM_BYTES", 100)
    with pytest.raises(RowsError, match="with 4 features and 1 outputs: use rounds=1, or fewer features"):
        BudgetedSVMClassifier(learner="linear", rounds=2).fit(framed(spark, *signs, 2))


def test_three_classes_need_one_vs_rest(spark, rows):
    with pytest.raises(RowsError, match="more labels than the 2 of OnlineLinearSVC"):
        BudgetedSVMClassifier(learner="linear").fit(framed(spark, rows[0], rows[2], 2))
