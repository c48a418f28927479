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
        """Fit to the rows of Parquet files, which the workers read themselves with Arrow.

        If a table consists of such files, this is faster than ``fit``.

        Parameters
        ----------
        path
            A file or a folder that all workers can read: a path, or a URL of a file system that Arrow knows, such as
            ``s3://bucket/rows`` or ``hdfs://host/rows``. Names that begin with "." or "_" are skipped.
        inputCols
            Names of the columns of numbers that are the features, in this order. None uses the one column ``featuresCol``, of
            arrays or vectors.
        partitions
            Number of partitions. Each has whole row groups, in the order of the names of the files. None uses as many as Spark
            has cores, or a multiple of that if partitions would have more than 128 MiB. The same files and number of partitions
            give the same model.

        Returns
        -------
        The model, as from ``fit``.

        Raises
        ------
        ValueError
            There is no such file or column, or an error of ``fit``.
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
    """A kernel support vector machine within a budget of support vectors, for any number of rows.

    In the first round, each partition is learned by its own model, in the order of its rows. The models are merged into one,
    whose coefficients are fitted to a sample of all rows. Each further round fits the coefficients to all rows of all
    partitions, and calibrates the probabilities on them. The same rows in the same partitions give the same model, in whatever
    order the partitions end.

    Parameters
    ----------
    learner
        Kind of learner: ``"bsca"`` (`streamsvm.BSCAClassifier`), ``"bsgd"`` (`streamsvm.BSGDClassifier`) or ``"linear"``
        (`streamsvm.learners.OnlineLinearSVC`, for two classes and features of about unit variance). For comparison, for two
        classes: ``"stoptron"``, ``"rbp"``, ``"forgetron"``, ``"projectron"``, ``"projectron++"``, ``"bpas"``, ``"bogd"``,
        ``"nogd"``.
    budget
        Maximum number of support vectors. A linear model has none, and refuses a budget or gamma.
    gamma, C, seed
        Parameters of the learner. ``C`` is for ``"bsca"``, ``"linear"`` and ``"bpas"``; without it, they use their own default.
    rounds
        Number of rounds; 1 reads each row once. The second round gains most: see the guide.
    passes
        Number of passes of the first round over the rows of a partition. For more than one, the worker keeps the rows on its
        disk meanwhile.
    featuresCol, labelCol, predictionCol, rawPredictionCol, probabilityCol, weightCol, thresholds
        As in the classifiers of pyspark.ml. Features are vectors, dense or sparse, or arrays of numbers. Labels are 0, 1, ...
    handleInvalid
        What happens to rows with nulls, or with numbers that are not finite: ``"error"`` or ``"skip"``.
    options
        Further parameters of the learner, by name.

    Raises
    ------
    ValueError
        From ``fit``: a parameter is out of its range, or rows cannot be learned. The message says which one, and what to do.

    Notes
    -----
    A worker needs memory for its model and for a batch of rows (``spark.sql.execution.arrow.maxRecordsPerBatch``). A partition
    sends one model to the driver, about ``budget * (4 d + 260)`` bytes for d features, and 2,000 rows, or as many as fit into 1
    MiB. For a linear learner it sends ``16 d`` bytes.

    A round after the first is one step of Newton's method on the squared hinge loss, with the penalty .1 |f|^2 / 2 whatever C
    is. It reads the rows twice, so cache a frame that is expensive to make, and costs O(budget^2) a row. A partition sends
    about ``8 outputs budget^2`` bytes, and a worker adds up those of 32 partitions. For a linear model, read d in the place of
    the budget; a second round is refused beyond about 8,000 features.

    References
    ----------
    Those of the learner and of `merge_with`; Mangasarian (2002), A finite Newton method for classification.
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
    """Kernel support vector regression within a budget of support vectors, for any number of rows.

    It is fitted as `BudgetedSVMClassifier` describes, with the squared error as the loss of later rounds.

    Parameters
    ----------
    learner
        Kind of learner: ``"bsca"`` (`streamsvm.BSCARegressor`), ``"bsgd"`` (`streamsvm.BSGDRegressor`) or ``"linear"``
        (`streamsvm.learners.OnlineLinearSVR`).
    budget, gamma, C, rounds, passes, seed
        As in `BudgetedSVMClassifier`.
    featuresCol, labelCol, predictionCol, weightCol
        As in the regressors of pyspark.ml. Targets should have about unit variance, to which pyspark.ml.feature.StandardScaler
        scales them.
    handleInvalid
        What happens to rows with nulls, or with numbers that are not finite: ``"error"`` or ``"skip"``.
    options
        Further parameters of the learner, by name, such as ``options={"epsilon": 0.1}``.

    Raises
    ------
    ValueError
        From ``fit``: a parameter is out of its range, or rows cannot be learned. The message says which one, and what to do.

    References
    ----------
    Those of `BSCARegressor` and `merge_with`.
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
