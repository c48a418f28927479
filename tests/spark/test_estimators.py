"""Estimators of pyspark.ml on two cores: the same model as by hand, whatever comes back first, and what is refused."""

import numpy as np
import pytest
from pyspark.errors import PythonException
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import Classifier
from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

from refused import raises
from spark_frames import framed, of_file, stacked
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier
from streamsvm.learners.refit import LineSearch, NormalEquations, take_step
from streamsvm_spark import (
    BudgetedSVMClassificationModel,
    BudgetedSVMClassifier,
    BudgetedSVMRegressor,
    CascadeSVC,
    RowsError,
    estimators,
)
from streamsvm_spark.parts import Reservoir, combine_samples


@pytest.fixture(scope="module")
def frame(spark, rows):
    """The rows with labels of two classes, in four partitions."""
    return framed(spark, *rows[:2])


@pytest.mark.parametrize(("name", "kind", "passes"), [("bsca", BSCAClassifier, 2), ("bsgd", BSGDClassifier, 1)])
def test_a_fit_is_that_of_each_partition_merged(frame, rows, name, kind, passes):
    X, y, _, _ = rows
    estimator = BudgetedSVMClassifier(learner=name, budget=30, gamma=0.5, seed=3, passes=passes)
    model = estimator.fit(frame)
    models, samples = [], []
    for part, some in enumerate(np.array_split(np.arange(600), 4)):
        models.append(kind(30, gamma=0.5, seed=3, max_features=3))
        for _ in range(passes):
            for batch in np.array_split(some, [100]):
                models[-1].learn_many(X[batch], y[batch].astype(float))
        reservoir = Reservoir([3, part])
        reservoir.add(X[some], y[some].astype(float), np.ones(150))
        samples.append(reservoir.get_sample())
    models[0].merge_with(*models[1:], rows=combine_samples(samples, [150] * 4))
    assert of_file(model.learner()) == of_file(models[0])
    assert of_file(estimator.fit(frame).learner()) == of_file(model.learner())


@pytest.mark.parametrize(("classes", "width"), [(2, 32), (3, 2)])
def test_more_rounds_fit_coefficients_by_all_rows(spark, rows, classes, width, monkeypatch):
    monkeypatch.setattr(estimators, "_PARTITIONS_PER_GROUP", width)  # so that four partitions are two groups, or one
    X, y = rows[0], rows[classes - 1]
    estimator = BudgetedSVMClassifier(budget=30, gamma=0.5, rounds=3)
    learner = estimator.copy({estimator.rounds: 1}).fit(framed(spark, X, y)).learner()
    before = (learner.predict_many(X) == y).mean()
    for _ in range(2):
        step = NormalEquations.from_rows(learner, X, y.astype(float)).compute_step(learner)
        take_step(learner, step, LineSearch.from_rows(learner, step, X, y.astype(float)))
    model = estimator.fit(framed(spark, X, y))
    np.testing.assert_allclose(model.learner().coefficients, learner.coefficients, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(model.learner().predict_proba_many(X), learner.predict_proba_many(X), atol=1e-6)
    assert (model.learner().predict_many(X) == y).mean() >= before - 0.01  # of rows that the merge has fitted, all but a few
    assert of_file(estimator.fit(framed(spark, X, y)).learner()) == of_file(model.learner())


def test_more_rounds_of_targets_and_weights(spark, rows):
    X, _, _, y = rows
    w = (np.arange(600) % 3).astype(float)
    model = BudgetedSVMRegressor(budget=30, rounds=2, weightCol="w").fit(framed(spark, X, y, w=w)).learner()
    learner = BudgetedSVMRegressor(budget=30, weightCol="w").fit(framed(spark, X, y, w=w)).learner()
    step = NormalEquations.from_rows(learner, X, y, w).compute_step(learner)
    take_step(learner, step, LineSearch.from_rows(learner, step, X, y, w))
    np.testing.assert_allclose(model.coefficients, learner.coefficients, rtol=1e-6, atol=1e-8)
    assert w @ np.square(model.predict_many(X) - y) < 0.1 * w @ np.square(y - y.mean())


def test_sums_that_arrow_does_not_take_are_refused(frame, monkeypatch):
    monkeypatch.setattr(estimators, "_MAX_SUM_BYTES", 1000)
    with pytest.raises(RowsError, match="a second round would send .* bytes per partition, .* rounds=1"):
        BudgetedSVMClassifier(budget=30, rounds=2).fit(frame)


@pytest.mark.parametrize(("classes", "first"), [(2, 1), (3, 1)])
def test_what_is_predicted(spark, rows, classes, first):
    X, y = rows[0], rows[classes - 1]
    start = np.argmax(y == first)  # the label that comes first, whatever it is, moves no column
    X, y = X[start:], y[start:]
    frame = framed(spark, X, y).withColumn("other", F.lit("kept"))
    model = BudgetedSVMClassifier(budget=50, gamma=0.5).fit(frame)
    assert (model.numClasses, model.numFeatures) == (classes, 3)
    found = model.transform(frame).toPandas()
    assert list(found) == ["features", "label", "other", "rawPrediction", "probability", "prediction"]
    assert set(found.other) == {"kept"}
    learner = model.learner()
    assert learner.labels[0] == first
    order = np.argsort(learner.labels) if classes > 2 else [0, 1]
    np.testing.assert_array_equal(found.prediction, learner.predict_many(X))
    np.testing.assert_array_equal(found.prediction, stacked(found.probability).argmax(axis=1))
    np.testing.assert_array_equal(stacked(found.probability), learner.predict_proba_many(X)[:, order])
    raw, f = stacked(found.rawPrediction), learner.decision_function_many(X)
    np.testing.assert_array_equal(raw, np.column_stack([-f, f]) if classes == 2 else f[:, order])
    assert model.predict(found.features[0]) == found.prediction[0]
    assert model.predictRaw(found.features[0]) == found.rawPrediction[0]
    assert model.predictProbability(found.features[0]) == found.probability[0]
    assert (found.prediction == found.label).mean() > 0.85


@pytest.mark.parametrize("kind", ["arrays", "sparse"])
def test_rows_of_parquet_are_predicted_in_every_column(spark, rows, tmp_path, kind):
    X, y, _, _ = rows
    given = [None if i == 7 else x.tolist() if kind == "arrays" else Vectors.dense(x.tolist()) for i, x in enumerate(X)]
    if kind == "sparse":
        given[::2] = [None if v is None else Vectors.sparse(3, dict(enumerate(v.toArray()))) for v in given[::2]]
    features = ArrayType(DoubleType()) if kind == "arrays" else VectorUDT()
    schema = StructType([StructField("x", features), StructField("label", DoubleType())])
    spark.createDataFrame(list(zip(given, y.astype(float).tolist(), strict=True)), schema).write.parquet(str(tmp_path / "rows"))
    frame = spark.read.parquet(str(tmp_path / "rows"))
    model = BudgetedSVMClassifier(budget=30, featuresCol="x", handleInvalid="skip").fit(frame)
    model.transform(frame).write.parquet(str(tmp_path / "predicted"))
    found = spark.read.parquet(str(tmp_path / "predicted")).toPandas()
    X_found = np.stack(found.x.map(lambda v: np.asarray(v if kind == "arrays" else v.toArray(), np.float32)))
    assert len(X_found) == 599
    np.testing.assert_array_equal(found.prediction, model.learner().predict_many(X_found))
    np.testing.assert_array_equal(stacked(found.probability), model.learner().predict_proba_many(X_found))
    with pytest.raises(RowsError, match="in the first of them, its features are null"):
        BudgetedSVMClassifier(budget=30, featuresCol="x").fit(frame)


def test_regression(spark, rows):
    X, _, _, y = rows
    estimator = BudgetedSVMRegressor(budget=50, options={"epsilon": 0.05})
    model = estimator.fit(framed(spark, X, y, 1))
    by_hand = BSCARegressor(50, epsilon=0.05, seed=0, max_features=3)
    by_hand.learn_many(X, y)
    assert of_file(model.learner()) == of_file(by_hand)
    found = model.transform(framed(spark, X, y)).toPandas()
    np.testing.assert_array_equal(found.prediction, by_hand.predict_many(X))


def test_weights(spark, rows):
    X, y, _, _ = rows
    w = np.where(np.arange(600) % 3, 1.0, 0.0)
    model = BudgetedSVMClassifier(budget=30, weightCol="w").fit(framed(spark, X, y, 1, w=w))
    other = BudgetedSVMClassifier(budget=30).fit(framed(spark, X[w > 0], y[w > 0], 1))
    assert model.learner().n_learned == 400
    np.testing.assert_array_equal(model.learner().decision_function_many(X), other.learner().decision_function_many(X))


def test_in_sql(spark, frame, rows):
    model = BudgetedSVMClassifier(budget=30).fit(frame)
    spark.udf.register("svm", model.udf())
    frame.createOrReplaceTempView("rows")
    found = [row.p for row in spark.sql("SELECT svm(features) AS p FROM rows").collect()]
    assert found == model.learner().predict_many(rows[0]).tolist()


def test_thresholds_and_columns_that_are_not_wanted(frame):
    model = BudgetedSVMClassifier(budget=30, thresholds=[0.0, 1.0], probabilityCol="", rawPredictionCol="").fit(frame)
    found = model.transform(frame)
    assert found.columns == ["features", "label", "prediction"]
    assert {row.prediction for row in found.collect()} == {0.0}
    raises("thresholds must be 2 positive numbers", model.setThresholds([1.0]).transform, frame)


def test_in_a_pipeline_with_texts_and_across_folds(spark, rows, tmp_path):
    X, y, _, _ = rows
    given = [(*map(float, x), "yes" if label else "no") for x, label in zip(X, y, strict=True)]
    frame = spark.createDataFrame(spark.sparkContext.parallelize(given, 4), ["a", "b", "c", "text"])
    svm = BudgetedSVMClassifier(budget=30, featuresCol="scaled")
    stages = [
        StringIndexer(inputCol="text", outputCol="label"),
        VectorAssembler(inputCols=["a", "b", "c"], outputCol="raw"),
        StandardScaler(inputCol="raw", outputCol="scaled"),
        svm,
    ]
    grid = ParamGridBuilder().addGrid(svm.gamma, [0.01, 0.5]).build()
    how = {"estimatorParamMaps": grid, "evaluator": BinaryClassificationEvaluator(), "numFolds": 2, "seed": 1}
    folds = CrossValidator(estimator=Pipeline(stages=stages), **how).fit(frame)
    assert folds.avgMetrics[1] > folds.avgMetrics[0]
    best = folds.bestModel
    assert best.stages[-1].learner().effective_gamma == 0.5
    best.save(str(tmp_path / "best"))
    found = PipelineModel.load(str(tmp_path / "best"))
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    assert evaluator.evaluate(found.transform(frame)) == evaluator.evaluate(best.transform(frame)) > 0.9


def test_what_is_saved(spark, frame, tmp_path):
    estimator = BudgetedSVMClassifier(budget=30, gamma=0.5, C=2.0, options={"tol": 0.1})
    estimator.save(str(tmp_path / "estimator"))
    again = BudgetedSVMClassifier.load(str(tmp_path / "estimator"))
    assert again.uid == estimator.uid
    assert again.extractParamMap() == estimator.extractParamMap()
    model = again.fit(frame)
    model.write().save(str(tmp_path / "model"))
    found = BudgetedSVMClassificationModel.load(str(tmp_path / "model"))
    assert found.uid == model.uid
    assert of_file(found.learner()) == of_file(model.learner())
    assert (found.learner().C, found.learner().tol) == (2.0, 0.1)
    assert found.transform(frame).collect() == model.transform(frame).collect()
    assert not any(BudgetedSVMClassifier(C=None, thresholds=None).isSet(name) for name in ("C", "thresholds"))
    assert isinstance(estimator, Classifier)
    assert estimator.setParams(budget=20).getBudget() == 20
    raises("BudgetedSVMClassifier has no parameter 'bugdet': explainParams", estimator.setParams, bugdet=20, error=TypeError)
    copy = model.copy({model.predictionCol: "p"})
    assert copy.transform(frame).columns[-1] == "p"
    for content in ("select 1 x", "select cast(null as binary) learner", "select cast('' as binary) learner where false"):
        spark.sql(content).coalesce(1).write.mode("overwrite").parquet(str(tmp_path / "model" / "data"))
        raises("is not a model, or is incomplete", BudgetedSVMClassificationModel.load, str(tmp_path / "model"))


BUDGETED = [
    ({"learner": "svc"}, "unknown learner='svc': it must be one of 'bsca', 'bsgd', 'linear'"),
    ({"learner": "pegasos"}, "learner='pegasos' cannot learn partitions: it has no budget, .*: use 'bsgd'"),
    ({"learner": "fogd"}, "learner='fogd' cannot learn partitions: .* use 'nogd'"),
    ({"learner": "svm"}, "learner='svm' cannot learn partitions: .* use 'bsca'"),
    ({"learner": "linear", "budget": 100}, "OnlineLinearSVC has no parameter 'budget'"),
    ({"learner": "rbp", "C": 2.0}, "RBP has no parameter 'C'"),
    ({"learner": "bsgd", "C": 1.0}, "BSGDClassifier has no parameter 'C'; its parameters: .*l2"),
    ({"budget": 0}, "budget"),
    ({"gamma": -1.0}, "gamma"),
    ({"passes": 0}, "passes must be at least 1, not 0"),
    ({"rounds": 0}, "rounds must be at least 1, not 0"),
    ({"options": {"budget": 3}}, "budget is set twice"),
    ({"options": {"max_features": 3}}, "no parameter 'max_features'"),
]
CASCADE = [
    *(({"C": C}, "C must be a finite number above 0") for C in (0.0, float("inf"))),
    ({"gamma": -1.0}, "gamma"),
    ({"gamma": "wide"}, "gamma must be"),
    ({"kernel": "sigmoid"}, "kernel must be"),
    ({"kernel": "poly", "coef0": -1.0}, "coef0 must be"),
    ({"degree": -1}, "degree"),
    ({"tol": 0.0}, "tol"),
    ({"maxIter": 0}, "maxIter must be an integer at least 1"),
    ({"maxCandidates": 1}, "maxCandidates must be an integer at least 2"),
]


def test_parameters_that_are_refused_before_a_row_is_read(spark):
    frame = spark.createDataFrame([("no", "rows")], ["features", "label"])
    for kind, cases in ((BudgetedSVMClassifier, BUDGETED), (CascadeSVC, CASCADE)):
        for parameters, reason in cases:
            with pytest.raises(ValueError, match=reason):
                kind(**parameters).fit(frame)
    raises("unknown learner='rbp'", BudgetedSVMRegressor(learner="rbp").fit, frame)


def test_rows_that_are_refused_and_rows_that_are_skipped(spark, rows):
    X, y, _, _ = rows
    X = X.copy()
    X[450, 1] = np.nan
    frame = framed(spark, X, y)
    with pytest.raises(RowsError, match="partition 3: 1 of 100 rows of a batch cannot be used; .* handleInvalid='skip'"):
        BudgetedSVMClassifier(budget=30).fit(frame)
    model = BudgetedSVMClassifier(budget=30, handleInvalid="skip").fit(frame)
    assert model.learner().n_learned == 599
    predicted = model.transform(frame).toPandas().prediction
    np.testing.assert_array_equal(predicted, model.learner().predict_many(np.delete(X, 450, axis=0)))
    by_function = [row.p for row in frame.select(model.udf()("features").alias("p")).collect()]
    assert by_function.pop(450) is None
    assert by_function == predicted.tolist()
    with pytest.raises(
        PythonException, match="1 of .* rows of a batch cannot be used; in the first of them, one of its features is not finite"
    ):
        model.setHandleInvalid("error").transform(frame).collect()
    with pytest.raises(PythonException, match="vectors have 2 features, but the model has 3"):
        model.transform(framed(spark, X[:5, :2], y[:5])).collect()
    for name in ("label", "Label"):  # Spark would put the prediction in the place of the label
        raises(f"already has a column '{name}'", model.copy({model.predictionCol: name}).transform, frame)
    with pytest.raises(ValueError, match="probabilityCol and predictionCol are both 'p'"):
        model.copy({model.predictionCol: "p", model.probabilityCol: "p"}).transform(frame)


def test_partitions_without_rows_or_of_one_class_and_no_rows_at_all(spark, rows):
    X, y, _, _ = rows
    order = np.argsort(y, kind="stable")
    sorted_rows = framed(spark, X[order], y[order], 2)
    model = BudgetedSVMClassifier(budget=60).fit(sorted_rows)
    assert model.numClasses == 2
    with_empty = sorted_rows.union(sorted_rows.filter("label > 5"))
    assert of_file(BudgetedSVMClassifier(budget=60).fit(with_empty).learner()) == of_file(model.learner())
    raises("no rows to learn", BudgetedSVMClassifier().fit, sorted_rows.filter("label > 5"), error=RowsError)
