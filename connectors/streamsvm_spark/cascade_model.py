"""The model of a cascade."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pyspark.ml.classification import ClassificationModel
from pyspark.ml.linalg import DenseVector, Vector, VectorUDT
from pyspark.sql.types import DataType, DoubleType

from streamsvm.batch import CSMOClassifier
from streamsvm_spark.models import SVMModel

__all__ = ["CascadeSVCModel"]


class CascadeSVCModel(SVMModel, ClassificationModel):
    """The model of a `CascadeSVC`.

    ``transform`` adds the prediction and the raw prediction, which has the decision values of both classes; each is the
    negative of the other. A column whose name is set to "" is not added. ``learner()`` is the `streamsvm.batch.CSMOClassifier`.
    """

    _columns: ClassVar[dict[str, DataType]] = {"rawPredictionCol": VectorUDT(), "predictionCol": DoubleType()}

    @staticmethod
    def _check(learner: Any) -> None:
        if not isinstance(learner, CSMOClassifier) or learner.classes_.tolist() != [0, 1]:
            raise ValueError(f"a {type(learner).__name__} is no CSMOClassifier of the labels 0 and 1")

    @property
    def numClasses(self) -> int:
        """The number of classes: 2."""
        return 2

    @property
    def objective(self) -> float:
        """The dual objective, which is minimised; that of the optimum is at most ``gap`` lower."""
        return float(self.learner().objective_)

    @property
    def gap(self) -> float:
        """The duality gap over all rows: the primal objective minus the dual objective."""
        return float(self.learner().duality_gap_)

    @property
    def n_rounds(self) -> int:
        """The number of rounds of the fit."""
        return len(self.history)

    @property
    def history(self) -> np.ndarray:
        """The rounds of the fit, float64 [rounds, 5].

        Each row has the rows that the driver held, the support vectors, the violating rows in partitions, the dual objective,
        and the duality gap.
        """
        return np.asarray(self.learner().rounds_)

    def predictRaw(self, value: Vector) -> DenseVector:
        """Return the decision value of each class."""
        return DenseVector(self._answer("rawPredictionCol", value))

    @staticmethod
    def _answers(learner: Any, X: np.ndarray, keys: list[str], settings: Any) -> dict[str, np.ndarray]:  # noqa: ARG004 - of others
        f = learner.decision_function(X) if len(X) else np.empty(0)
        return {"rawPredictionCol": np.column_stack([-f, f]), "predictionCol": (f > 0.0).astype(np.float64)}
