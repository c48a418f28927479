"""Estimators of pyspark.ml: each partition is learned by its own model, and these become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark import keyword_only
from pyspark.ml.classification import ProbabilisticClassifier
from pyspark.ml.regression import Regressor
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame

from streamsvm_spark.columns import mapped
from streamsvm_spark.files import Files
from streamsvm_spark.models import BudgetedSVMClassificationModel, BudgetedSVMRegressionModel, SVMModel
from streamsvm_spark.parameters import CLASSIFIERS, REGRESSORS, FitParams
from streamsvm_spark.parts import PARTS, Part, Task, merge_parts
from streamsvm_spark.refits import refit

__all__ = ["BudgetedSVMClassifier", "BudgetedSVMRegressor"]


class _Estimator(FitParams, DefaultParamsReadable, DefaultParamsWritable):
    """The fit that the estimators have in common."""

    _learners: Mapping[str, type]
    _model: type[SVMModel]
    _classes: bool

    def _begin(self, given: dict[str, Any]) -> None:
        self._setDefault(learner="bsca", budget=500, gamma="scale", rounds=1, passes=1, options={}, seed=0, handleInvalid="error")
        self._set(**{name: value for name, value in given.items() if value is not None})  # None is as if it were not given

    def fitParquet(self, path: str, inputCols: Sequence[str] | None = None, partitions: int | None = None) -> Any:
        """Fit the rows of Parquet files, which the workers read by Arrow themselves: the faster way, where a table is such files.

        Parameters
        ----------
        path
            A file or a folder that all workers can read: a path, or a URL of a file system that Arrow knows, as
            ``s3://bucket/rows`` or ``hdfs://host/rows``. Names that begin with "." or "_" are passed over.
        inputCols
            Columns of numbers that are the features, in this order. None: the one column ``featuresCol``, of arrays or vectors.
        partitions
            Each has whole row groups, in the order of the names of the files. None: as many as Spark has cores, or a multiple of
            it where they would be of more than 128 MiB. The same files and number of partitions give the same model.

        Returns
        -------
        The model, as of ``fit``.

        Raises
        ------
        ValueError
            As of ``fit``; or there is no such file or column.
        """
        return self._fit_rows(Files(path, {**self._names(), **({"features": inputCols} if inputCols else {})}, partitions))

    def _fit(self, dataset: DataFrame) -> Any:
        return self._fit_rows(self._columns_of(dataset))

    def _fit_rows(self, rows: DataFrame | Files) -> Any:
        kind = self._kind(self._learners)
        skip = self.getHandleInvalid() == "skip"
        task = Task(kind, self._parameters_of(kind), self.getPasses(), skip, self._classes, self.getSeed())
        learner = merge_parts([Part(*row) for row in mapped(rows, task, PARTS).collect()])
        for _ in range(1, self.getRounds()):
            refit(rows, learner, skip, self._classes)
        return self._copyValues(self._model(learner))


class BudgetedSVMClassifier(_Estimator, ProbabilisticClassifier):
    """A kernel support vector machine within a budget of support vectors, for rows of any number.

    In the first round each partition is learned by its own model, in the order of its rows, and the models become one, whose
    coefficients are fitted to a sample of all rows. Each round more fits them by all rows of all partitions, and calibrates
    probabilities by these. The same rows in the same partitions give the same model, whatever the order in which partitions end.

    Parameters
    ----------
    featuresCol, labelCol, predictionCol, rawPredictionCol, probabilityCol, weightCol, thresholds
        As of the classifiers of pyspark.ml. Features are vectors, dense or sparse, or arrays of numbers; labels are 0, 1, ...
    learner
        ``"bsca"`` (`streamsvm.BSCAClassifier`), ``"bsgd"`` (`streamsvm.BSGDClassifier`) or ``"linear"``
        (`streamsvm.learners.OnlineLinearSVC`, for two classes and features of about unit variance); and the rules that these are
        compared with, for two classes: ``"stoptron"``, ``"rbp"``, ``"forgetron"``, ``"projectron"``, ``"projectron++"``,
        ``"bpas"``, ``"bogd"``, ``"nogd"``.
    budget
        Support vectors, at most. A linear model has none, and refuses a budget or gamma that is set.
    gamma, C, seed
        Of the learner. ``C`` is for ``"bsca"``, ``"linear"`` and ``"bpas"``; without one the learner's own is used.
    rounds
        1 to read each row once. The second round gains most: see the guide.
    passes
        Passes of the first round over the rows of a partition, which for more than one are kept on the worker's disk meanwhile.
    handleInvalid
        What happens to rows with nulls, or numbers that are not finite: ``"error"`` or ``"skip"``.
    options
        More parameters of the learner, by their names.

    Raises
    ------
    ValueError
        By ``fit``: a parameter is out of its range, or rows cannot be learned. The message says which, and what to do.

    Notes
    -----
    A worker needs the memory of its model and of a batch of rows (``spark.sql.execution.arrow.maxRecordsPerBatch``). A partition
    sends to the driver one model, some ``budget * (4 d + 260)`` bytes for d features, and 2,000 rows, or as many as fit 1 MiB. Of
    a linear learner it sends ``16 d`` bytes.

    A round after the first is one step of Newton's method on the squared hinge loss, with the penalty .1 |f|^2 / 2 whatever C is.
    It reads the rows twice (cache a frame that is expensive to make), O(budget^2) a row; a partition sends some
    ``8 outputs budget^2`` bytes, and those of 32 partitions are added up by a worker. For a linear model read d for the budget:
    beyond some 8,000 features a second round is refused.

    References
    ----------
    As of the learner and of `merge_with`; Mangasarian (2002), A finite Newton method for classification.
    """

    _learners = CLASSIFIERS
    _model = BudgetedSVMClassificationModel
    _classes = True

    @keyword_only
    def __init__(
        self,
        *,
        learner: str = "bsca",
        budget: int = 500,
        gamma: float | str = "scale",
        C: float | None = None,
        rounds: int = 1,
        passes: int = 1,
        seed: int = 0,
        featuresCol: str = "features",
        labelCol: str = "label",
        predictionCol: str = "prediction",
        rawPredictionCol: str = "rawPrediction",
        probabilityCol: str = "probability",
        weightCol: str | None = None,
        thresholds: list[float] | None = None,
        handleInvalid: str = "error",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._begin(self._input_kwargs)


class BudgetedSVMRegressor(_Estimator, Regressor):
    """A kernel support vector regression within a budget of support vectors, for rows of any number.

    Parameters
    ----------
    featuresCol, labelCol, predictionCol, weightCol
        As of the regressors of pyspark.ml. Targets are of about unit variance: pyspark.ml.feature.StandardScaler scales them.
    learner
        ``"bsca"`` (`streamsvm.BSCARegressor`), ``"bsgd"`` (`streamsvm.BSGDRegressor`) or ``"linear"``
        (`streamsvm.learners.OnlineLinearSVR`).
    budget, gamma, C, seed, rounds, passes, handleInvalid, options
        As of `BudgetedSVMClassifier`, with squares for the loss of later rounds; ``options={"epsilon": 0.1}``, say.

    Raises
    ------
    ValueError
        As of `BudgetedSVMClassifier`.

    References
    ----------
    As of `BSCARegressor` and `merge_with`.
    """

    _learners = REGRESSORS
    _model = BudgetedSVMRegressionModel
    _classes = False

    @keyword_only
    def __init__(
        self,
        *,
        learner: str = "bsca",
        budget: int = 500,
        gamma: float | str = "scale",
        C: float | None = None,
        rounds: int = 1,
        passes: int = 1,
        seed: int = 0,
        featuresCol: str = "features",
        labelCol: str = "label",
        predictionCol: str = "prediction",
        weightCol: str | None = None,
        handleInvalid: str = "error",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._begin(self._input_kwargs)
