"""Estimators of pyspark.ml that learn each partition with its own model and merge the models."""

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
from streamsvm_spark.columns import RowsError, arrow_schema, collect_results, convert_batch, map_partitions
from streamsvm_spark.models import BudgetedSVMClassificationModel, BudgetedSVMRegressionModel, SVMModel
from streamsvm_spark.parameters import CLASSIFIERS, REGRESSORS, FitParams
from streamsvm_spark.parts import (
    PARTITION_RESULT_SCHEMA,
    LearnTask,
    PartitionResult,
    load_learner,
    merge_parts,
    serialize_learner,
)

_SUMS_SCHEMA = "part int, sums binary"
_MAX_SUM_BYTES = 2**30  # of sums in one Arrow column, whose offsets have 32 bits
_PARTITIONS_PER_GROUP = 32  # maximum number of partitions whose sums one worker adds


class _SumTask(NamedTuple):
    """The task that sums the normal equations of a partition's rows, or their losses along a step (line search)."""

    file: bytes  # the model
    step: np.ndarray | None  # float64 [outputs, B]; None for the normal equations
    skip: bool
    classes: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the batches of a partition, with the columns of `LearnTask`, and yield a batch with one row: the sums."""
        sums = {"part": TaskContext.get().partitionId(), "sums": self.compute_sums(batches).tobytes()}
        yield pa.RecordBatch.from_pylist([sums], arrow_schema(_SUMS_SCHEMA))

    def compute_sums(self, batches: Iterator[pa.RecordBatch]) -> np.ndarray:
        """Return sums over the rows of all Arrow ``batches`` of a partition, joined to one flat array, for one step of Newton's
        method. Without a step, these are the sums of the normal equations, from which the step is computed; with a step, the sums
        of losses along it, for the line search.
        """
        model = load_learner(self.file)
        sums: Any = NormalEquations.zeros(model) if self.step is None else LineSearch.zeros()
        for batch in batches:
            rows = convert_batch(batch, skip=self.skip, classes=self.classes)
            if not len(rows.X):
                continue
            if self.step is None:
                sums.add(NormalEquations.from_rows(model, rows.X, rows.y, rows.w))
            else:
                sums.add(LineSearch.from_rows(model, self.step, rows.X, rows.y, rows.w))
        return np.concatenate([array.ravel() for array in sums])


def _add_group(results: pa.Table) -> pa.Table:
    """Add up the sums in ``results``, an Arrow table with a row for each partition of a group, in the order of partitions, so
    that rounding does not depend on arrival order. Return a table with one row, or the rows of failed partitions if there are
    any.
    """
    problems = results.filter(results.column("problem").is_valid())
    if len(problems):
        return problems
    first = results.column("part").to_numpy().min()
    sums = {"part": int(first), "sums": _sum_results(results.sort_by("part")).tobytes(), "problem": None}
    return pa.Table.from_pylist([sums], results.schema)


def _sum_results(results: pa.Table) -> np.ndarray:
    first, *remaining = results.column("sums")
    total = np.frombuffer(first.as_buffer()).copy()
    for sums in remaining:
        total += np.frombuffer(sums.as_buffer())
    return total


def refit_coefficients(rows: DataFrame, learner: Any, skip: bool, classes: bool) -> None:
    """Improve the coefficients of ``learner`` in place by one step of Newton's method over the rows of all partitions; its
    support vectors stay fixed. With ``skip``, invalid rows are left out instead of raising an error. With ``classes``, labels
    must be 0, 1, ...

    The rows are read twice, once for the direction of the step and once for its size. Workers add the sums of groups of
    partitions, ``8 outputs B (B + 1)`` bytes each, and the driver adds the sums of groups. Raises RowsError if rows are invalid,
    or if the sums of a partition exceed the limit of an Arrow column.
    """
    basis = make_basis(learner)
    outputs, n = basis.coefficients.shape
    if not n:
        return
    sum_bytes = 8 * n * (n + 1) * outputs
    if sum_bytes > _MAX_SUM_BYTES // 2:
        is_kernel = isinstance(basis, SupportVectorBasis)
        unit, remedy = ("support vectors", "a smaller budget") if is_kernel else ("features", "fewer features")
        raise RowsError(
            f"a second round would send {sum_bytes:,} bytes per partition, with {n:,} {unit} and {outputs} outputs: "
            f"use rounds=1, or {remedy}"
        )
    file = serialize_learner(learner)
    width = max(2, min(_PARTITIONS_PER_GROUP, _MAX_SUM_BYTES // sum_bytes))
    parts = map_partitions(rows, _SumTask(file, None, skip, classes), _SUMS_SCHEMA)
    groups = parts.groupBy(F.floor(F.col("part") / width).alias("group")).applyInArrow(_add_group, parts.schema)
    A, g = np.split(_sum_results(collect_results(groups)), [outputs * n * n])
    step = NormalEquations(A.reshape(-1, n, n), g.reshape(-1, n)).compute_step(learner)
    losses = _sum_results(collect_results(map_partitions(rows, _SumTask(file, step, skip, classes), _SUMS_SCHEMA)))
    take_step(learner, step, LineSearch(losses.reshape(LineSearch.zeros().sums.shape)))


class _Estimator(FitParams, DefaultParamsReadable, DefaultParamsWritable):
    """Base class of the estimators, with their fit."""

    _learners: Mapping[str, type]
    _model: type[SVMModel]
    _classes: bool

    def _set_parameters(self, arguments: dict[str, Any]) -> None:
        """Set the parameters of this estimator from the constructor's ``arguments``. Arguments with the value None are left out
        and get their defaults.
        """
        self._setDefault(learner="bsca", budget=500, gamma="scale", rounds=1, passes=1, options={}, seed=0, handleInvalid="error")
        self._set(**{name: value for name, value in arguments.items() if value is not None})

    def _fit(self, dataset: DataFrame) -> Any:
        rows, learner_class = self._select_columns(dataset), self._find_learner_class(self._learners)
        skip = self.getHandleInvalid() == "skip"
        task = LearnTask(
            learner_class, self._collect_parameters(learner_class), self.getPasses(), skip, self._classes, self.getSeed()
        )
        learner = merge_parts(
            [PartitionResult(**row) for row in collect_results(map_partitions(rows, task, PARTITION_RESULT_SCHEMA)).to_pylist()]
        )
        for _ in range(1, self.getRounds()):
            refit_coefficients(rows, learner, skip, self._classes)
        return self._copyValues(self._model(learner))


class BudgetedSVMClassifier(_Estimator, ProbabilisticClassifier):
    """A kernel support vector classifier with a budget of support vectors, for any number of rows.

    In the first round, each partition is learned by its own model, in the order of its rows. The models are merged into one,
    whose coefficients are fitted to a sample of all rows. Each further round fits the coefficients to all rows of all
    partitions, and calibrates the probabilities on them. The same rows in the same partitions give the same model, in any order
    of completion.

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
        Number of passes of the first round over the rows of a partition. For more than one, the worker stores the rows on disk.
    featuresCol, labelCol, predictionCol, rawPredictionCol, probabilityCol, weightCol, thresholds
        As in the classifiers of pyspark.ml. Features are vectors, dense or sparse, or arrays of numbers. Labels are 0, 1, ...
    handleInvalid
        Treatment of rows with nulls or numbers that are not finite: ``"error"`` or ``"skip"``.
    options
        Further parameters of the learner, by name.

    Raises
    ------
    ValueError
        From ``fit``: a parameter is out of its range, or rows are invalid. The message names the problem and the remedy.

    Notes
    -----
    A worker needs memory for its model and for a batch of rows (``spark.sql.execution.arrow.maxRecordsPerBatch``). A partition
    sends one model to the driver, about ``budget * (4 d + 260)`` bytes for d features, and a sample of at most 2,000 rows or 1
    MiB. For a linear learner it sends ``16 d`` bytes.

    A round after the first is one step of Newton's method on the squared hinge loss, with the penalty .1 |f|^2 / 2 for any C. It
    reads the rows twice, so cache a frame that is expensive to compute, and costs O(budget^2) per row. A partition sends about
    ``8 outputs budget^2`` bytes, and a worker adds those of 32 partitions. For a linear model, replace the budget by d; a second
    round raises an error beyond about 8,000 features.

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
        self._set_parameters(self._input_kwargs)


class BudgetedSVMRegressor(_Estimator, Regressor):
    """A kernel support vector regressor with a budget of support vectors, for any number of rows.

    It is fitted as `BudgetedSVMClassifier` describes, with the squared error as the loss of later rounds.

    Parameters
    ----------
    learner
        Kind of learner: ``"bsca"`` (`streamsvm.BSCARegressor`), ``"bsgd"`` (`streamsvm.BSGDRegressor`) or ``"linear"``
        (`streamsvm.learners.OnlineLinearSVR`).
    budget, gamma, C, rounds, passes, seed
        As in `BudgetedSVMClassifier`.
    featuresCol, labelCol, predictionCol, weightCol
        As in the regressors of pyspark.ml. Targets should have about unit variance; scale them with
        pyspark.ml.feature.StandardScaler.
    handleInvalid
        Treatment of rows with nulls or numbers that are not finite: ``"error"`` or ``"skip"``.
    options
        Further parameters of the learner, by name, such as ``options={"epsilon": 0.1}``.

    Raises
    ------
    ValueError
        From ``fit``: a parameter is out of its range, or rows are invalid. The message names the problem and the remedy.

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
        self._set_parameters(self._input_kwargs)
