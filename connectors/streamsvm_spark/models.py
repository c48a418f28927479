"""Models of pyspark.ml: they predict batches of rows by the learner, which each worker reads once."""

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
from streamsvm_spark.columns import MOST_CLASSES, RowsError, arrays_of, column_of, rows_of
from streamsvm_spark.parameters import ScoreParams
from streamsvm_spark.parts import bytes_of, find_learner, shared_learner_of

_DATA = "data"  # the folder of a saved model that holds the learner


class SVMModel(ScoreParams, MLReadable[Any], MLWritable):
    """A model that predicts frames by a learner of streamsvm, whose features are numbered 0, 1, ...; the base of all models."""

    _columns: ClassVar[dict[str, DataType]]  # of the columns that it adds, the types, by the parameters that name them

    def __init__(self, learner: Any = None) -> None:
        super().__init__()
        self._setDefault(handleInvalid="error")
        if learner is not None:
            self._check_learner(learner)
        self._file = b"" if learner is None else bytes_of(learner)

    @staticmethod
    def _check_learner(learner: Any) -> None:
        """Raise a ValueError where the learner does not predict what this model does, or has features without numbers."""
        names = set(getattr(learner, "feature_names", ()))
        if names != set(range(len(names))):
            raise ValueError(
                f"the learner has the features {short_repr(sorted(names, key=str))}, and entries of vectors are "
                "numbered from 0 on: "
                "take a learner that has learned rows with all of these"
            )

    def learner(self) -> Any:
        """Return the model as a learner of streamsvm.

        You can save and export it, and it can continue learning.
        """
        return find_learner(self._file)

    @property
    def numFeatures(self) -> int:
        """The number of features."""
        return _features_of(shared_learner_of(self._file))

    def predict(self, value: Vector) -> float:
        """Predict the row of one vector."""
        return float(self._answer_of("predictionCol", value))

    def _answer_of(self, key: str, value: Vector) -> Any:
        X = np.asarray(value.toArray(), np.float32)[None]
        return self._answers_of(_checked_learner(shared_learner_of(self._file), X), X, [key], self._answer_settings())[key][0]

    def _answer_settings(self) -> Any:
        """Return what `_answers_of` needs besides the learner."""
        return None

    @staticmethod
    def _answers_of(learner: Any, X: np.ndarray, keys: list[str], settings: Any) -> dict[str, np.ndarray]:
        """Return what is predicted of rows, float32 [n, features], by those parameters that name the columns asked for."""
        raise NotImplementedError

    def _transform(self, dataset: DataFrame) -> DataFrame:
        names = self._added_columns()
        # Names that are equal then are one to Spark, which would put a column in the place of the other.
        folded = str if dataset.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower
        if taken := [name for name in names.values() if folded(name) in set(map(folded, dataset.columns))]:
            raise ValueError(f"the frame has a column {taken[0]!r} already: drop it, or give another name")
        if not names:
            return dataset
        features, answers = f"{self.uid}_features", f"{self.uid}_answers"  # the answers of one function, which is called once
        # Spark 4.2 fails where a function of Python reads a Parquet table that has vectors, in this column or another one: unless
        # it computes a column first.
        found = dataset.withColumn(features, column_of(dataset, self.getFeaturesCol()))
        found = found.withColumn(answers, self._answer_function(list(names))(F.col(features))).drop(features)
        if self.getHandleInvalid() == "skip":
            found = found.filter(F.col(answers).isNotNull())
        return found.withColumns({name: self._column_of(key, F.col(answers)[key]) for key, name in names.items()}).drop(answers)

    def _added_columns(self) -> dict[str, str]:
        """Return the names of the columns that are added, by the parameters that name them."""
        names = {key: name for key in self._columns if (name := self.getOrDefault(key))}
        of_names = {name: key for key, name in names.items()}
        if len(of_names) < len(names):
            key, name = next((key, name) for key, name in names.items() if of_names[name] != key)
            raise ValueError(f"{key} and {of_names[name]} are both {name!r}: give them different names")
        return names

    def _column_of(self, key: str, column: Column) -> Column:
        # From Python come arrays, which Spark reads faster than vectors.
        return array_to_vector(column) if self._columns[key] == VectorUDT() else column

    def udf(self) -> Any:
        """Return a Spark function from features to the prediction.

        ``spark.udf.register("predict", model.udf())`` makes it available in SQL: ``SELECT predict(features) FROM rows``. With
        ``handleInvalid="skip"``, it is null for a row that cannot be used.
        """
        function = self._answer_function(["predictionCol"]).func
        return F.arrow_udf(lambda features: function(features).field("predictionCol"), DoubleType())

    def _answer_function(self, keys: list[str]) -> Any:
        skip, file = self.getHandleInvalid() == "skip", self._file
        of_rows, settings = type(self)._answers_of, self._answer_settings()
        kinds = {key: ArrayType(DoubleType(), False) if self._columns[key] == VectorUDT() else self._columns[key] for key in keys}
        returned = StructType([StructField(key, kind) for key, kind in kinds.items()])
        kind = to_arrow_type(returned)

        def answers(features: pa.Array) -> pa.Array:
            learner, rows = shared_learner_of(file), rows_of(features, skip=skip)
            found = of_rows(_checked_learner(learner, rows.X), rows.X, keys, settings)
            columns = [arrays_of(found[key]) if found[key].ndim > 1 else pa.array(found[key]) for key in keys]
            made = pa.StructArray.from_arrays(
                [c.cast(field.type) for c, field in zip(columns, kind, strict=True)], fields=list(kind)
            )
            if len(rows.X) == len(rows.kept):
                return made
            places = np.cumsum(rows.kept) - 1
            return made.take(pa.array(places, mask=~rows.kept))  # null where a row is skipped

        return F.arrow_udf(answers, returned)

    def write(self) -> MLWriter:
        """Return the writer of the model: ``model.write().overwrite().save(path)``."""
        return _ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Return the reader of a model: ``Model.read().load(path)``."""
        return _ModelReader(cls)


def _checked_learner(learner: Any, X: np.ndarray) -> Any:
    if len(X) and X.shape[1] != (features := _features_of(learner)):
        raise RowsError(f"vectors are of {X.shape[1]} features, and the model of {features}")
    return learner


def _features_of(learner: Any) -> int:
    return learner.n_features_in_ if isinstance(learner, SklearnEstimator) else len(learner.feature_names)


class BudgetedSVMClassificationModel(SVMModel, ProbabilisticClassificationModel):
    """The model of a `BudgetedSVMClassifier`.

    ``transform`` adds the prediction, the raw prediction and the probabilities. The raw prediction has a decision value for
    each class; with two classes, that of the first is the negative of that of the second. A column whose name is set to "" is
    not added.
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
            raise ValueError(f"a {type(learner).__name__} is no classifier of streamsvm.learners: it has no labels")
        if not labels or not all(
            isinstance(x, int | float | np.number) and 0 <= x < MOST_CLASSES and x == int(x) for x in labels
        ):
            raise ValueError(f"the labels of the learner are {short_repr(labels)}: they must be some of 0, 1, and so on")

    @property
    def numClasses(self) -> int:
        """The number of classes: one more than the largest label that was learned, and at least 2."""
        return _classes_of(shared_learner_of(self._file))

    def predictRaw(self, value: Vector) -> DenseVector:
        """Return the decision value of each class."""
        return DenseVector(self._answer_of("rawPredictionCol", value))

    def predictProbability(self, value: Vector) -> DenseVector:
        """Return the probability of each class."""
        return DenseVector(self._answer_of("probabilityCol", value))

    def _answer_settings(self) -> Any:
        if not self.isDefined(self.thresholds):
            return None
        thresholds = np.array(self.getThresholds(), np.float64)
        if len(thresholds) != self.numClasses or not (thresholds >= 0.0).all() or (thresholds == 0.0).sum() > 1:
            raise ValueError(f"thresholds must be {self.numClasses} numbers of at least 0, of which one may be 0: {thresholds}")
        return thresholds

    @staticmethod
    def _answers_of(learner: Any, X: np.ndarray, keys: list[str], settings: Any) -> dict[str, np.ndarray]:
        classes, labels, found = _classes_of(learner), _columns_of(learner), {}
        by_thresholds = settings is not None and "predictionCol" in keys
        if "probabilityCol" in keys or by_thresholds:
            found["probabilityCol"] = p = np.zeros((len(X), classes))
            p[:, labels] = learner.predict_proba_many(X)
        if "rawPredictionCol" in keys:
            found["rawPredictionCol"] = f = np.full((len(X), classes), -np.inf)
            decisions = learner.decision_function_many(X)
            f[:, labels] = decisions if decisions.ndim > 1 else np.column_stack([-decisions, decisions])[:, : len(labels)]
        if by_thresholds:
            with np.errstate(divide="ignore", invalid="ignore"):
                found["predictionCol"] = np.nan_to_num(p / settings, nan=0.0, posinf=np.inf).argmax(axis=1).astype(np.float64)
        elif "predictionCol" in keys:
            found["predictionCol"] = np.asarray(learner.predict_many(X), np.float64)
        return found


def _columns_of(learner: Any) -> list[int]:
    # The labels in the order of the columns of probabilities, and of decision values: of two, the negative one first.
    labels = sorted(map(int, learner.labels), key=lambda label: label == learner.positive_label)
    if len(labels) == 1 and labels[0] < 2:
        return [0, 1]
    return labels if len(labels) < 3 else [int(label) for label in learner.labels]


def _classes_of(learner: Any) -> int:
    return max(int(max(learner.labels)) + 1, 2)


class BudgetedSVMRegressionModel(SVMModel, RegressionModel):
    """The model of a `BudgetedSVMRegressor`. ``transform`` adds the prediction."""

    _columns: ClassVar[dict[str, DataType]] = {"predictionCol": DoubleType()}

    @staticmethod
    def _check_learner(learner: Any) -> None:
        SVMModel._check_learner(learner)
        if not isinstance(learner, base.Regressor):
            raise ValueError(f"a {type(learner).__name__} is no regressor")

    @staticmethod
    def _answers_of(learner: Any, X: np.ndarray, keys: list[str], settings: Any) -> dict[str, np.ndarray]:  # noqa: ARG004 - of classes
        return {"predictionCol": np.asarray(learner.predict_many(X), np.float64)}


class _ModelWriter(MLWriter):
    """Writes a model: its parameters as all models of pyspark.ml, its learner as a frame of one file."""

    def __init__(self, model: SVMModel) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:
        spark = self.sparkSession
        DefaultParamsWriter.saveMetadata(self._model, path, spark)
        frame = spark.createDataFrame([(bytearray(self._model._file),)], "learner binary")
        frame.coalesce(1).write.parquet(os.path.join(path, _DATA))  # noqa: PTH118 - a URL


class _ModelReader(MLReader[Any]):
    """Reads what `_ModelWriter` has written. Nothing in it can run."""

    def __init__(self, kind: type[SVMModel]) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> SVMModel:
        spark = self.sparkSession
        metadata = DefaultParamsReader.loadMetadata(path, spark, f"{self._kind.__module__}.{self._kind.__name__}")
        rows = spark.read.parquet(os.path.join(path, _DATA)).collect()  # noqa: PTH118 - a URL
        if len(rows) != 1 or not isinstance(rows[0].asDict().get("learner"), bytes | bytearray):
            raise ValueError(f"{path} is no model, or not wholly written: its folder {_DATA} must have one learner")
        model = self._kind(find_learner(bytes(rows[0].learner), path))
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model
