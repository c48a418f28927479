"""Models of pyspark.ml, which predict batches of rows with a learner that each worker loads once."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark.ml.classification import ProbabilisticClassificationModel
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import DenseVector, Vector, VectorUDT
from pyspark.ml.regression import RegressionModel
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, DoubleType, StructField, StructType
from river import base

from streamsvm.core.sklearn_base import SklearnEstimator
from streamsvm.files.messages import short_repr
from streamsvm_spark.columns import MAX_CLASSES, RowsError, convert_rows, make_array_column, select_column
from streamsvm_spark.parameters import ScoreParams
from streamsvm_spark.parts import load_learner, load_shared_learner, serialize_learner

_LEARNER_FOLDER = "data"  # in the folder of a saved model


class SVMModel(ScoreParams, MLReadable[Any], MLWritable):
    """Base class of models that predict DataFrames with a learner of streamsvm, whose features are named 0, 1, ..."""

    _columns: ClassVar[dict[str, DataType]]  # types of the columns that it adds, by the parameters that name them

    def __init__(self, learner: Any = None) -> None:
        super().__init__()
        self._setDefault(handleInvalid="error")
        if learner is not None:
            self._check_learner(learner)
        self._file = b"" if learner is None else serialize_learner(learner)

    @staticmethod
    def _check_learner(learner: Any) -> None:
        """Raise a ValueError if ``learner`` does not suit this kind of model: it is a classifier instead of a regressor or vice
        versa, or its features are not named 0, 1, ...
        """
        names = set(getattr(learner, "feature_names", ()))
        if names != set(range(len(names))):
            raise ValueError(
                f"the learner has the features {short_repr(sorted(names, key=str))}, but entries of vectors are "
                "numbered from 0: use a learner that has learned rows with these features"
            )

    def learner(self) -> Any:
        """Return a copy of the fitted streamsvm learner inside this model, which you can save and export, and which can continue
        learning.
        """
        return load_learner(self._file)

    @property
    def numFeatures(self) -> int:
        """The number of features of the vectors that this model predicts."""
        return _count_features(load_shared_learner(self._file))

    def predict(self, value: Vector) -> float:
        """Return the predicted label or target of one vector, as float."""
        return float(self._predict_vector("predictionCol", value))

    def _predict_vector(self, key: str, value: Vector) -> Any:
        """Compute one output for one vector, such as its prediction or probabilities. ``key`` is the parameter that names the
        output column, such as "predictionCol".
        """
        X = np.asarray(value.toArray(), np.float32)[None]
        return self._compute_outputs(_check_width(load_shared_learner(self._file), X), X, [key], self._get_output_settings())[
            key
        ][0]

    def _get_output_settings(self) -> Any:
        """Return settings that `_compute_outputs` needs on the workers besides the learner, such as thresholds; None by
        default.
        """
        return None

    @staticmethod
    def _compute_outputs(learner: Any, X: np.ndarray, keys: list[str], settings: Any) -> dict[str, np.ndarray]:
        """Compute output columns for the rows X float32 [n, features] with ``learner``. Return a dictionary from each of the
        ``keys``, parameters that name columns, such as "predictionCol", to an array [n, ...]. ``settings`` are further settings
        of the model, such as thresholds. Subclasses define this method.
        """
        raise NotImplementedError

    def _transform(self, dataset: DataFrame) -> DataFrame:
        names = self._added_columns()
        # If Spark ignores case, a column whose name differs in case only would be replaced.
        normalize = str if dataset.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower
        if duplicates := [name for name in names.values() if normalize(name) in set(map(normalize, dataset.columns))]:
            raise ValueError(f"the frame already has a column {duplicates[0]!r}: drop it, or choose another name")
        if not names:
            return dataset
        # All outputs are fields of one column, so that the function is called once.
        features, outputs = f"{self.uid}_features", f"{self.uid}_answers"
        # Spark 4.2 fails if a Python function reads a Parquet table with a column of vectors, unless a column is computed first.
        result = dataset.withColumn(features, select_column(dataset, self.getFeaturesCol()))
        result = result.withColumn(outputs, self._make_output_function(list(names))(F.col(features))).drop(features)
        if self.getHandleInvalid() == "skip":
            result = result.filter(F.col(outputs).isNotNull())
        return result.withColumns({name: self._to_column(key, F.col(outputs)[key]) for key, name in names.items()}).drop(outputs)

    def _added_columns(self) -> dict[str, str]:
        """Return the output columns that `transform` adds, as a dictionary from the parameter, such as "predictionCol", to the
        column's name. Raise a ValueError if two have the same name.
        """
        names = {key: name for key in self._columns if (name := self.getOrDefault(key))}
        keys = {name: key for key, name in names.items()}
        if len(keys) < len(names):
            key, name = next((key, name) for key, name in names.items() if keys[name] != key)
            raise ValueError(f"{key} and {keys[name]} are both {name!r}: choose different names")
        return names

    def _to_column(self, key: str, column: Column) -> Column:
        # Python returns arrays, which Spark reads faster than vectors.
        return array_to_vector(column) if self._columns[key] == VectorUDT() else column

    def udf(self) -> Any:
        """Return a Spark user-defined function that maps a column of feature vectors to predictions, for use in SQL or
        expressions.

        ``spark.udf.register("predict", model.udf())`` makes it available in SQL: ``SELECT predict(features) FROM rows``. With
        ``handleInvalid="skip"``, the result is null for invalid rows.
        """
        function = self._make_output_function(["predictionCol"]).func
        return F.arrow_udf(lambda features: function(features).field("predictionCol"), DoubleType())

    def _make_output_function(self, keys: list[str]) -> Any:
        """Return a Spark user-defined function that maps a column of feature vectors to a struct of output columns. ``keys`` are
        the parameters that name these columns, such as "predictionCol".
        """
        skip, file = self.getHandleInvalid() == "skip", self._file
        compute_outputs, settings = type(self)._compute_outputs, self._get_output_settings()
        types = {key: ArrayType(DoubleType(), False) if self._columns[key] == VectorUDT() else self._columns[key] for key in keys}
        spark_type = StructType([StructField(key, column_type) for key, column_type in types.items()])
        arrow_type = to_arrow_type(spark_type)

        def predict_features(features: pa.Array) -> pa.Array:
            learner, rows = load_shared_learner(file), convert_rows(features, skip=skip)
            outputs = compute_outputs(_check_width(learner, rows.X), rows.X, keys, settings)
            columns = [make_array_column(outputs[key]) if outputs[key].ndim > 1 else pa.array(outputs[key]) for key in keys]
            struct = pa.StructArray.from_arrays(
                [column.cast(field.type) for column, field in zip(columns, arrow_type, strict=True)], fields=list(arrow_type)
            )
            if len(rows.X) == len(rows.valid):
                return struct
            positions = np.cumsum(rows.valid) - 1
            return struct.take(pa.array(positions, mask=~rows.valid))  # null for skipped rows

        return F.arrow_udf(predict_features, spark_type)

    def write(self) -> MLWriter:
        """Return an object that saves this model: ``model.write().overwrite().save(path)``."""
        return _ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Return an object that loads a saved model of this class: ``Model.read().load(path)``."""
        return _ModelReader(cls)


def _check_width(learner: Any, X: np.ndarray) -> Any:
    """Return ``learner`` if it has as many features as the rows X [n, features]; otherwise raise a RowsError. Without rows, there
    is nothing to check.
    """
    if len(X) and X.shape[1] != (n_features := _count_features(learner)):
        raise RowsError(f"vectors have {X.shape[1]} features, but the model has {n_features}")
    return learner


def _count_features(learner: Any) -> int:
    return learner.n_features_in_ if isinstance(learner, SklearnEstimator) else len(learner.feature_names)


class BudgetedSVMClassificationModel(SVMModel, ProbabilisticClassificationModel):
    """The model of a `BudgetedSVMClassifier`.

    ``transform`` adds the prediction, the raw prediction and the probabilities. The raw prediction has a decision value for
    each class; with two classes, one is the negative of the other. To omit a column, set its name to "".
    """

    _columns: ClassVar[dict[str, DataType]] = {
        "rawPredictionCol": VectorUDT(),
        "probabilityCol": VectorUDT(),
        "predictionCol": DoubleType(),
    }

    @staticmethod
    def _check_learner(learner: Any) -> None:
        SVMModel._check_learner(learner)
        labels = getattr(learner, "labels", None)
        if labels is None:
            raise ValueError(f"a {type(learner).__name__} is not a classifier of streamsvm.learners: it has no labels")
        if not labels or not all(isinstance(x, int | float | np.number) and 0 <= x < MAX_CLASSES and x == int(x) for x in labels):
            raise ValueError(f"the labels of the learner are {short_repr(labels)}: they must be integers from 0")

    @property
    def numClasses(self) -> int:
        """The number of classes of this model: the largest learned label plus one, at least 2."""
        return _count_classes(load_shared_learner(self._file))

    def predictRaw(self, value: Vector) -> DenseVector:
        """Return the decision value of each class for the vector ``value``, as a vector [classes]."""
        return DenseVector(self._predict_vector("rawPredictionCol", value))

    def predictProbability(self, value: Vector) -> DenseVector:
        """Return the probability of each class for the vector ``value``, as a vector [classes]."""
        return DenseVector(self._predict_vector("probabilityCol", value))

    def _get_output_settings(self) -> Any:
        if not self.isDefined(self.thresholds):
            return None
        thresholds = np.array(self.getThresholds(), np.float64)
        if len(thresholds) != self.numClasses or not (thresholds >= 0.0).all() or (thresholds == 0.0).sum() > 1:
            raise ValueError(f"thresholds must be {self.numClasses} positive numbers, except that one may be 0: {thresholds}")
        return thresholds

    @staticmethod
    def _compute_outputs(learner: Any, X: np.ndarray, keys: list[str], settings: Any) -> dict[str, np.ndarray]:
        n_classes, columns, outputs = _count_classes(learner), _find_class_columns(learner), {}
        use_thresholds = settings is not None and "predictionCol" in keys
        if "probabilityCol" in keys or use_thresholds:
            outputs["probabilityCol"] = p = np.zeros((len(X), n_classes))
            p[:, columns] = learner.predict_proba_many(X)
        if "rawPredictionCol" in keys:
            outputs["rawPredictionCol"] = f = np.full((len(X), n_classes), -np.inf)
            decisions = learner.decision_function_many(X)
            f[:, columns] = decisions if decisions.ndim > 1 else np.column_stack([-decisions, decisions])[:, : len(columns)]
        if use_thresholds:
            with np.errstate(divide="ignore", invalid="ignore"):
                outputs["predictionCol"] = np.nan_to_num(p / settings, nan=0.0, posinf=np.inf).argmax(axis=1).astype(np.float64)
        elif "predictionCol" in keys:
            outputs["predictionCol"] = np.asarray(learner.predict_many(X), np.float64)
        return outputs


def _find_class_columns(learner: Any) -> list[int]:
    """Return the labels as integers, in the order of the columns of the learner's probabilities and decision values. Of two
    labels, the negative class is first.
    """
    labels = sorted(map(int, learner.labels), key=lambda label: label == learner.positive_label)
    if len(labels) == 1 and labels[0] < 2:
        return [0, 1]
    return labels if len(labels) < 3 else [int(label) for label in learner.labels]


def _count_classes(learner: Any) -> int:
    return max(int(max(learner.labels)) + 1, 2)


class BudgetedSVMRegressionModel(SVMModel, RegressionModel):
    """The model of a `BudgetedSVMRegressor`. ``transform`` adds the prediction."""

    _columns: ClassVar[dict[str, DataType]] = {"predictionCol": DoubleType()}

    @staticmethod
    def _check_learner(learner: Any) -> None:
        SVMModel._check_learner(learner)
        if not isinstance(learner, base.Regressor):
            raise ValueError(f"a {type(learner).__name__} is not a regressor")

    @staticmethod
    def _compute_outputs(learner: Any, X: np.ndarray, keys: list[str], settings: Any) -> dict[str, np.ndarray]:  # noqa: ARG004 - classifiers use it
        return {"predictionCol": np.asarray(learner.predict_many(X), np.float64)}


class _ModelWriter(MLWriter):
    """Writes a model: the parameters like all models of pyspark.ml, and the learner as a DataFrame in one file."""

    def __init__(self, model: SVMModel) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:
        spark = self.sparkSession
        DefaultParamsWriter.saveMetadata(self._model, path, spark)
        frame = spark.createDataFrame([(bytearray(self._model._file),)], "learner binary")
        frame.coalesce(1).write.parquet(os.path.join(path, _LEARNER_FOLDER))  # noqa: PTH118 - a URL


class _ModelReader(MLReader[Any]):
    """Reads a model written by `_ModelWriter`, without executing code from the file."""

    def __init__(self, model_class: type[SVMModel]) -> None:
        super().__init__()
        self._model_class = model_class

    def load(self, path: str) -> SVMModel:
        spark = self.sparkSession
        metadata = DefaultParamsReader.loadMetadata(path, spark, f"{self._model_class.__module__}.{self._model_class.__name__}")
        rows = spark.read.parquet(os.path.join(path, _LEARNER_FOLDER)).collect()  # noqa: PTH118 - a URL
        if len(rows) != 1 or not isinstance(rows[0].asDict().get("learner"), bytes | bytearray):
            raise ValueError(f"{path} is not a model, or is incomplete: its folder {_LEARNER_FOLDER} must contain one learner")
        model = self._model_class(load_learner(bytes(rows[0].learner), path))
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model
