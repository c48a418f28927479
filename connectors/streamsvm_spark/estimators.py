"""Estimators of pyspark.ml: each partition is learned by its own model, and these become one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import TaskContext, keyword_only
from pyspark.ml.classification import ProbabilisticClassifier
from pyspark.ml.regression import Regressor
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamsvm.learners.refit import LineSearch, NormalEquations, SupportVectorBasis, make_basis, take_step
from streamsvm_spark.columns import RowsError, arrow_schema, collect_results, map_partitions, rows_of_batch
from streamsvm_spark.models import BudgetedSVMClassificationModel, BudgetedSVMRegressionModel, SVMModel
from streamsvm_spark.parameters import CLASSIFIERS, REGRESSORS, FitParams
from streamsvm_spark.parts import PARTS, PartitionResult, Task, bytes_of, find_learner, merge_parts

_SUMS = "part int, sums binary"
_MOST_BYTES = 2**30  # of sums that meet in one Arrow column, whose offsets are of 32 bits
_WIDTH = 32  # partitions whose sums a worker adds up, at most


class _SumTask(NamedTuple):
    """The task of each partition: it adds up the equations of its rows, or the trial of a step."""

    file: bytes  # the model
    step: np.ndarray | None  # float64 [outputs, B]; None where the equations are asked for
    skip: bool
    classes: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the batches of a partition, with the columns of `Task`; `_SUMS` is what comes back, one row."""
        sums = {"part": TaskContext.get().partitionId(), "sums": self.of(batches).tobytes()}
        yield pa.RecordBatch.from_pylist([sums], arrow_schema(_SUMS))

    def of(self, batches: Iterator[pa.RecordBatch]) -> np.ndarray:
        """Return the sums of the rows, in one array. Memory is that of a batch and of the sums."""
        model = find_learner(self.file)
        sums: Any = NormalEquations.zeros(model) if self.step is None else LineSearch.zeros()
        for batch in batches:
            rows = rows_of_batch(batch, skip=self.skip, classes=self.classes)
            if not len(rows.X):
                continue
            if self.step is None:
                sums.add(NormalEquations.from_rows(model, rows.X, rows.y, rows.w))
            else:
                sums.add(LineSearch.from_rows(model, self.step, rows.X, rows.y, rows.w))
        return np.concatenate([array.ravel() for array in sums])


def _add_group(results: pa.Table) -> pa.Table:
    # Summed in the order of partitions, so that the result does not depend on the order in which they end.
    problems = results.filter(results.column("problem").is_valid())
    if len(problems):
        return problems
    first = results.column("part").to_numpy().min()
    sums = {"part": int(first), "sums": _sum_results(results.sort_by("part")).tobytes(), "problem": None}
    return pa.Table.from_pylist([sums], results.schema)


def _sum_results(results: pa.Table) -> np.ndarray:
    first, *others = results.column("sums")
    total = np.frombuffer(first.as_buffer()).copy()
    for sums in others:
        total += np.frombuffer(sums.as_buffer())
    return total


def refit(rows: DataFrame, learner: Any, skip: bool, classes: bool) -> None:
    """Fit the coefficients of a learner once more, by the rows of all partitions: a step of Newton's method.

    The rows are read twice, once for the direction of the step, once for its size. Some partitions' sums of
    ``8 outputs B (B + 1)`` bytes are added up on a worker, those of such groups on the driver. A RowsError says that rows cannot
    be learned, or that the sums of a partition are more than Arrow takes in a column.
    """
    basis = make_basis(learner)
    outputs, n = basis.coefficients.shape
    if not n:
        return
    bytes_of_sums = 8 * n * (n + 1) * outputs
    if bytes_of_sums > _MOST_BYTES // 2:
        kernel = isinstance(basis, SupportVectorBasis)
        what, less = ("support vectors", "a smaller budget") if kernel else ("features", "fewer features")
        raise RowsError(
            f"a second round sends {bytes_of_sums:,} bytes for each partition, with {n:,} {what} and {outputs} outputs: take "
            f"rounds=1, or {less}"
        )
    file = bytes_of(learner)
    width = max(2, min(_WIDTH, _MOST_BYTES // bytes_of_sums))
    parts = map_partitions(rows, _SumTask(file, None, skip, classes), _SUMS)
    groups = parts.groupBy(F.floor(F.col("part") / width).alias("group")).applyInArrow(_add_group, parts.schema)
    A, g = np.split(_sum_results(collect_results(groups)), [outputs * n * n])
    step = NormalEquations(A.reshape(-1, n, n), g.reshape(-1, n)).compute_step(learner)
    tried = _sum_results(collect_results(map_partitions(rows, _SumTask(file, step, skip, classes), _SUMS)))
    take_step(learner, step, LineSearch(tried.reshape(LineSearch.zeros().sums.shape)))


class _Estimator(FitParams, DefaultParamsReadable, DefaultParamsWritable):
    """The fit that the estimators have in common."""

    _learners: Mapping[str, type]
    _model: type[SVMModel]
    _classes: bool

    def _set_given(self, given: dict[str, Any]) -> None:
        self._setDefault(learner="bsca", budget=500, gamma="scale", rounds=1, passes=1, options={}, seed=0, handleInvalid="error")
        self._set(**{name: value for name, value in given.items() if value is not None})  # None is as if it were not given

    def _fit(self, dataset: DataFrame) -> Any:
        rows, kind = self._columns_of(dataset), self._learner_kind(self._learners)
        skip = self.getHandleInvalid() == "skip"
        task = Task(kind, self._parameters_of(kind), self.getPasses(), skip, self._classes, self.getSeed())
        learner = merge_parts([PartitionResult(**row) for row in collect_results(map_partitions(rows, task, PARTS)).to_pylist()])
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
        self._set_given(self._input_kwargs)


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
        self._set_given(self._input_kwargs)
