"""Tests of the pyspark.ml estimators on two cores: same model as a plain fit of the parts, persistence, refused input."""

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
from spark_frames import make_vector_frame, serialize_model, stack_vectors
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
    """Return the rows with labels of two classes, in four partitions."""
    return make_vector_frame(spark, *rows[:2])


@pytest.mark.parametrize(("name", "kind", "passes"), [("bsca", BSCAClassifier, 2), ("bsgd", BSGDClassifier, 1)])
def test_fit_equals_merged_fits_of_the_partitions(frame, rows, name, kind, passes):
    X, y, _, _ = rows
    estimator = BudgetedSVMClassifier(learner=name, budget=30, gamma=0.5, seed=3, passes=passes)
    model = estimator.fit(frame)
    models, samples = [], []
    for part, numbers in enumerate(np.array_split(np.arange(600), 4)):
        models.append(kind(30, gamma=0.5, seed=3, max_features=3))
        for _ in range(passes):
            for batch in np.array_split(numbers, [100]):
                models[-1].learn_many(X[batch], y[batch].astype(float))
        reservoir = Reservoir([3, part])
        reservoir.add(X[numbers], y[numbers].astype(float), np.ones(150))
        samples.append(reservoir.get_sample())
    models[0].merge_with(*models[1:], rows=combine_samples(samples, [150] * 4))
    assert serialize_model(model.learner()) == serialize_model(models[0])
    assert serialize_model(estimator.fit(frame).learner()) == serialize_model(model.learner())


@pytest.mark.parametrize(("classes", "width"), [(2, 32), (3, 2)])
def test_second_round_refits_coefficients_to_all_rows(spark, rows, classes, width, monkeypatch):
    monkeypatch.setattr(estimators, "_PARTITIONS_PER_GROUP", width)  # four partitions form one group or two
    X, y = rows[0], rows[classes - 1]
    estimator = BudgetedSVMClassifier(budget=30, gamma=0.5, rounds=3)
    learner = estimator.copy({estimator.rounds: 1}).fit(make_vector_frame(spark, X, y)).learner()
    before = (learner.predict_many(X) == y).mean()
    for _ in range(2):
        step = NormalEquations.from_rows(learner, X, y.astype(float)).compute_step(learner)
        take_step(learner, step, LineSearch.from_rows(learner, step, X, y.astype(float)))
    model = estimator.fit(make_vector_frame(spark, X, y))
    np.testing.assert_allclose(model.learner().coefficients, learner.coefficients, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(model.learner().predict_proba_many(X), learner.predict_proba_many(X), atol=1e-6)
    assert (model.learner().predict_many(X) == y).mean() >= before - 0.01  # accuracy stays about that of the merged model
    assert serialize_model(estimator.fit(make_vector_frame(spark, X, y)).learner()) == serialize_model(model.learner())


def test_second_round_refits_weighted_regression(spark, rows):
    X, _, _, y = rows
    w = (np.arange(600) % 3).astype(float)
    model = BudgetedSVMRegressor(budget=30, rounds=2, weightCol="w").fit(make_vector_frame(spark, X, y, w=w)).learner()
    learner = BudgetedSVMRegressor(budget=30, weightCol="w").fit(make_vector_frame(spark, X, y, w=w)).learner()
    step = NormalEquations.from_rows(learner, X, y, w).compute_step(learner)
    take_step(learner, step, LineSearch.from_rows(learner, step, X, y, w))
    np.testing.assert_allclose(model.coefficients, learner.coefficients, rtol=1e-6, atol=1e-8)
    assert w @ np.square(model.predict_many(X) - y) < 0.1 * w @ np.square(y - y.mean())


def test_sums_that_exceed_the_arrow_limit_are_refused(frame, monkeypatch):
    monkeypatch.setattr(estimators, "_MAX_SUM_BYTES", 1000)
    with pytest.raises(RowsError, match="a second round would send .* bytes per partition, .* rounds=1"):
        BudgetedSVMClassifier(budget=30, rounds=2).fit(frame)


@pytest.mark.parametrize(("classes", "first"), [(2, 1), (3, 1)])
def test_classifier_output_columns_equal_its_learner(spark, rows, classes, first):
    X, y = rows[0], rows[classes - 1]
    start = np.argmax(y == first)  # the first label of the rows must not change the column order
    X, y = X[start:], y[start:]
    frame = make_vector_frame(spark, X, y).withColumn("other", F.lit("kept"))
    model = BudgetedSVMClassifier(budget=50, gamma=0.5).fit(frame)
    assert (model.numClasses, model.numFeatures) == (classes, 3)
    predicted = model.transform(frame).toPandas()
    assert list(predicted) == ["features", "label", "other", "rawPrediction", "probability", "prediction"]
    assert set(predicted.other) == {"kept"}
    learner = model.learner()
    assert learner.labels[0] == (first if classes > 2 else 0)
    order = np.argsort(learner.labels) if classes > 2 else [0, 1]
    np.testing.assert_array_equal(predicted.prediction, learner.predict_many(X))
    np.testing.assert_array_equal(predicted.prediction, stack_vectors(predicted.probability).argmax(axis=1))
    np.testing.assert_array_equal(stack_vectors(predicted.probability), learner.predict_proba_many(X)[:, order])
    raw, f = stack_vectors(predicted.rawPrediction), learner.decision_function_many(X)
    np.testing.assert_array_equal(raw, np.column_stack([-f, f]) if classes == 2 else f[:, order])
    assert model.predict(predicted.features[0]) == predicted.prediction[0]
    assert model.predictRaw(predicted.features[0]) == predicted.rawPrediction[0]
    assert model.predictProbability(predicted.features[0]) == predicted.probability[0]
    assert (predicted.prediction == predicted.label).mean() > 0.85


@pytest.mark.parametrize("kind", ["arrays", "sparse"])
def test_parquet_rows_are_predicted(spark, rows, tmp_path, kind):
    X, y, _, _ = rows
    vectors = [None if i == 7 else x.tolist() if kind == "arrays" else Vectors.dense(x.tolist()) for i, x in enumerate(X)]
    if kind == "sparse":
        vectors[::2] = [None if v is None else Vectors.sparse(3, dict(enumerate(v.toArray()))) for v in vectors[::2]]
    features = ArrayType(DoubleType()) if kind == "arrays" else VectorUDT()
    schema = StructType([StructField("x", features), StructField("label", DoubleType())])
    spark.createDataFrame(list(zip(vectors, y.astype(float).tolist(), strict=True)), schema).write.parquet(str(tmp_path / "rows"))
    frame = spark.read.parquet(str(tmp_path / "rows"))
    model = BudgetedSVMClassifier(budget=30, featuresCol="x", handleInvalid="skip").fit(frame)
    model.transform(frame).write.parquet(str(tmp_path / "predicted"))
    predicted = spark.read.parquet(str(tmp_path / "predicted")).toPandas()
    X_read = np.stack(predicted.x.map(lambda v: np.asarray(v if kind == "arrays" else v.toArray(), np.float32)))
    assert len(X_read) == 599
    np.testing.assert_array_equal(predicted.prediction, model.learner().predict_many(X_read))
    np.testing.assert_array_equal(stack_vectors(predicted.probability), model.learner().predict_proba_many(X_read))
    with pytest.raises(RowsError, match="in the first of them, its features are null"):
        BudgetedSVMClassifier(budget=30, featuresCol="x").fit(frame)


def test_regressor_equals_a_plain_fit(spark, rows):
    X, _, _, y = rows
    estimator = BudgetedSVMRegressor(budget=50, options={"epsilon": 0.05})
    model = estimator.fit(make_vector_frame(spark, X, y, 1))
    expected = BSCARegressor(50, epsilon=0.05, seed=0, max_features=3)
    expected.learn_many(X, y)
    assert serialize_model(model.learner()) == serialize_model(expected)
    predicted = model.transform(make_vector_frame(spark, X, y)).toPandas()
    np.testing.assert_array_equal(predicted.prediction, expected.predict_many(X))


def test_rows_with_weight_0_are_not_learned(spark, rows):
    X, y, _, _ = rows
    w = np.where(np.arange(600) % 3, 1.0, 0.0)
    model = BudgetedSVMClassifier(budget=30, weightCol="w").fit(make_vector_frame(spark, X, y, 1, w=w))
    without_zeros = BudgetedSVMClassifier(budget=30).fit(make_vector_frame(spark, X[w > 0], y[w > 0], 1))
    assert model.learner().n_learned == 400
    np.testing.assert_array_equal(model.learner().decision_function_many(X), without_zeros.learner().decision_function_many(X))


def test_udf_predicts_in_sql(spark, frame, rows):
    model = BudgetedSVMClassifier(budget=30).fit(frame)
    spark.udf.register("svm", model.udf())
    frame.createOrReplaceTempView("rows")
    predicted = [row.p for row in spark.sql("SELECT svm(features) AS p FROM rows").collect()]
    assert predicted == model.learner().predict_many(rows[0]).tolist()


def test_thresholds_and_disabled_output_columns_are_respected(frame):
    model = BudgetedSVMClassifier(budget=30, thresholds=[0.0, 1.0], probabilityCol="", rawPredictionCol="").fit(frame)
    result = model.transform(frame)
    assert result.columns == ["features", "label", "prediction"]
    assert {row.prediction for row in result.collect()} == {0.0}
    raises("thresholds must be 2 positive numbers", model.setThresholds([1.0]).transform, frame)


def test_pipeline_with_text_labels_in_cross_validation(spark, rows, tmp_path):
    X, y, _, _ = rows
    rows_with_text = [(*map(float, x), "yes" if label else "no") for x, label in zip(X, y, strict=True)]
    frame = spark.createDataFrame(spark.sparkContext.parallelize(rows_with_text, 4), ["a", "b", "c", "text"])
    svm = BudgetedSVMClassifier(budget=30, featuresCol="scaled")
    stages = [
        StringIndexer(inputCol="text", outputCol="label"),
        VectorAssembler(inputCols=["a", "b", "c"], outputCol="raw"),
        StandardScaler(inputCol="raw", outputCol="scaled"),
        svm,
    ]
    grid = ParamGridBuilder().addGrid(svm.gamma, [0.01, 0.5]).build()
    settings = {"estimatorParamMaps": grid, "evaluator": BinaryClassificationEvaluator(), "numFolds": 2, "seed": 1}
    folds = CrossValidator(estimator=Pipeline(stages=stages), **settings).fit(frame)
    assert folds.avgMetrics[1] > folds.avgMetrics[0]
    best = folds.bestModel
    assert best.stages[-1].learner().effective_gamma == 0.5
    best.save(str(tmp_path / "best"))
    loaded = PipelineModel.load(str(tmp_path / "best"))
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    assert evaluator.evaluate(loaded.transform(frame)) == evaluator.evaluate(best.transform(frame)) > 0.9


def test_saved_estimators_and_models_are_loaded(spark, frame, tmp_path):
    estimator = BudgetedSVMClassifier(budget=30, gamma=0.5, C=2.0, options={"tol": 0.1})
    estimator.save(str(tmp_path / "estimator"))
    again = BudgetedSVMClassifier.load(str(tmp_path / "estimator"))
    assert again.uid == estimator.uid
    assert again.extractParamMap() == estimator.extractParamMap()
    model = again.fit(frame)
    model.write().save(str(tmp_path / "model"))
    loaded = BudgetedSVMClassificationModel.load(str(tmp_path / "model"))
    assert loaded.uid == model.uid
    assert serialize_model(loaded.learner()) == serialize_model(model.learner())
    assert (loaded.learner().C, loaded.learner().tol) == (2.0, 0.1)
    assert loaded.transform(frame).collect() == model.transform(frame).collect()
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


def test_invalid_parameters_are_refused_before_reading_rows(spark):
    frame = spark.createDataFrame([("no", "rows")], ["features", "label"])
    for kind, cases in ((BudgetedSVMClassifier, BUDGETED), (CascadeSVC, CASCADE)):
        for parameters, reason in cases:
            with pytest.raises(ValueError, match=reason):
                kind(**parameters).fit(frame)
    raises("unknown learner='rbp'", BudgetedSVMRegressor(learner="rbp").fit, frame)


def test_invalid_rows_are_refused_or_skipped(spark, rows):
    X, y, _, _ = rows
    X = X.copy()
    X[450, 1] = np.nan
    frame = make_vector_frame(spark, X, y)
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
        model.transform(make_vector_frame(spark, X[:5, :2], y[:5])).collect()
    for name in ("label", "Label"):  # Spark would overwrite the label with the prediction
        raises(f"already has a column '{name}'", model.copy({model.predictionCol: name}).transform, frame)
    with pytest.raises(ValueError, match="probabilityCol and predictionCol are both 'p'"):
        model.copy({model.predictionCol: "p", model.probabilityCol: "p"}).transform(frame)


def test_empty_partitions_do_not_change_the_model(spark, rows):
    X, y, _, _ = rows
    order = np.argsort(y, kind="stable")
    sorted_rows = make_vector_frame(spark, X[order], y[order], 2)
    model = BudgetedSVMClassifier(budget=60).fit(sorted_rows)
    assert model.numClasses == 2
    with_empty = sorted_rows.union(sorted_rows.filter("label > 5"))
    assert serialize_model(BudgetedSVMClassifier(budget=60).fit(with_empty).learner()) == serialize_model(model.learner())
    raises("no rows to learn", BudgetedSVMClassifier().fit, sorted_rows.filter("label > 5"), error=RowsError)
