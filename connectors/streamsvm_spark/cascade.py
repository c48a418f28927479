"""CascadeSVC, an exact support vector classifier for the rows of many partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pyspark import StorageLevel, keyword_only
from pyspark.ml.classification import ClassificationModel, Classifier
from pyspark.ml.linalg import DenseVector, Vector, VectorUDT
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType
from sklearn.exceptions import ConvergenceWarning

from streamsvm.batch import CSMOClassifier
from streamsvm.core.checks import check_number, check_one_of
from streamsvm.core.warning import collect_warnings, warn
from streamsvm_spark.cascade_tasks import (
    SCHEMA,
    CandidateRows,
    ReadTask,
    ScanTask,
    SolveTask,
    ValueMoments,
    fit_machine,
    read_results,
)
from streamsvm_spark.columns import RowsError, check_widths, map_partitions
from streamsvm_spark.models import SVMModel
from streamsvm_spark.parameters import CascadeParams


class CascadeSVCModel(SVMModel, ClassificationModel):
    """The model of a `CascadeSVC`.

    ``transform`` adds the prediction and the raw prediction: the decision values of both classes, each the negative of the
    other. To omit a column, set its name to "". ``learner()`` returns the `streamsvm.batch.CSMOClassifier`.
    """

    _columns: ClassVar[dict[str, DataType]] = {"rawPredictionCol": VectorUDT(), "predictionCol": DoubleType()}

    @staticmethod
    def _check_learner(learner: Any) -> None:
        if not isinstance(learner, CSMOClassifier) or learner.classes_.tolist() != [0, 1]:
            raise ValueError(f"a {type(learner).__name__} is not a CSMOClassifier with the labels 0 and 1")

    @property
    def numClasses(self) -> int:
        """The number of classes of this model, always 2."""
        return 2

    @property
    def objective(self) -> float:
        """The dual objective of the fitted machine, which the fit minimises; the optimum is at most ``gap`` lower."""
        return float(self.learner().objective_)

    @property
    def gap(self) -> float:
        """The duality gap of the fitted machine over all training rows: the primal objective minus the dual objective."""
        return float(self.learner().duality_gap_)

    @property
    def n_rounds(self) -> int:
        """The number of rounds of the cascade fit: scans of all partitions for rows that violate the optimality conditions."""
        return len(self.history)

    @property
    def history(self) -> np.ndarray:
        """Statistics of each round of the fit, float64 [rounds, 5]: the numbers of rows on the driver, of support vectors and of
        violating rows in partitions, the dual objective, and the duality gap.
        """
        return np.asarray(self.learner().rounds_)

    def predictRaw(self, value: Vector) -> DenseVector:
        """Return the decision values of the two classes for the vector ``value``; one is the negative of the other."""
        return DenseVector(self._predict_vector("rawPredictionCol", value))

    @staticmethod
    def _compute_outputs(learner: Any, X: np.ndarray, keys: list[str], settings: Any) -> dict[str, np.ndarray]:  # noqa: ARG004 - other models use it
        f = learner.decision_function(X) if len(X) else np.empty(0)
        return {"rawPredictionCol": np.column_stack([-f, f]), "predictionCol": (f > 0.0).astype(np.float64)}


_KERNELS = ("rbf", "linear", "poly")
_MAX_GROWTH = 5  # new rows of a round per support vector: most of a larger number would be dropped again
_MIN_NEW_ROWS = 5000  # limit of new rows of a round if there are few support vectors


class CascadeSVC(CascadeParams, Classifier, DefaultParamsReadable, DefaultParamsWritable):
    """A support vector classifier of two classes, solved exactly over the rows of many partitions.

    Problem and solution are those of `streamsvm.batch.CSMOClassifier` on all rows, up to the tolerance. Each partition solves its
    own rows. Their support vectors go up a binary tree, where two sets at a time are solved again, in the order of the
    partitions, and the driver solves the last set. Then rounds follow: the driver sends its support vectors to all partitions,
    which return rows that violate the optimality conditions, and solves again with these rows added. The fit ends when no row
    violates the conditions. The same rows in the same partitions give the same bytes, in any order of completion.

    Parameters
    ----------
    C
        Upper bound of the dual coefficients, above 0; it is multiplied by the weight of the row.
    kernel
        ``"rbf"``, ``"linear"`` or ``"poly"``, as in `streamsvm.batch.CSMOClassifier`.
    gamma
        Factor gamma of the kernel: a number of at least 0, ``"scale"`` or ``"auto"``. ``"scale"`` is one over the sum of the
        features' variances about their common mean, over all rows. ``"auto"`` is one over the number of features.
    degree, coef0
        Degree and constant term of the kernel ``"poly"``; ``coef0`` is at least 0.
    tol
        A row violates the optimality conditions if its margin is too small by more than this; also the tolerance of the driver's
        solver.
    maxIter
        Maximum number of rounds.
    maxCandidates
        Maximum number of rows on the driver: support vectors, and rows that may become support vectors.
    featuresCol, labelCol, predictionCol, rawPredictionCol, weightCol
        Names of columns, as in the classifiers of pyspark.ml. Features are vectors, dense or sparse, or arrays of numbers.
        Labels are 0 and 1. For more classes, use ``pyspark.ml.classification.OneVsRest(classifier=CascadeSVC())``.
    handleInvalid
        Treatment of rows with nulls or numbers that are not finite: ``"error"`` or ``"skip"``.

    Raises
    ------
    ValueError
        From ``fit``: a parameter is out of its range, rows are invalid or have only one class, or there are more support
        vectors than ``maxCandidates``. The message names the problem and the remedy.

    Warns
    -----
    ConvergenceWarning
        The fit ended before the optimum. The message contains an upper bound of the remaining gap.

    Notes
    -----
    A fit reads the DataFrame once. During the fit, Spark caches its rows as float32 (``MEMORY_AND_DISK``), and each round reads
    this cache. If a part of the cache is lost, and the order of rows changes between two readings, the fit raises an error.

    A worker needs memory to solve a partition: 30 bytes for each feature of each row, plus 200 MB. If that is too much, use more
    partitions. The driver needs as much for ``maxCandidates`` rows. It receives the support vectors of the last set and the
    violating rows, usually once each, with ``4 d + 40`` bytes for d features. A round sends all support vectors to each worker.

    The driver alone solves the problem of all support vectors, so the cascade pays off for many rows and few support vectors.

    Unlike in the paper, the sets of partitions are not solved again in each round: rows that violate the optimality conditions,
    or nearly do, go directly to the driver.

    References
    ----------
    [^1]: Graf, H. P., Cosatto, E., Bottou, L., Durdanovic, I., Vapnik, V. (2004). Parallel support vector machines: the cascade
        SVM. NIPS 17.
    """

    @keyword_only
    def __init__(
        self,
        *,
        C: float = 1.0,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        tol: float = 1e-3,
        maxIter: int = 30,
        maxCandidates: int = 100_000,
        featuresCol: str = "features",
        labelCol: str = "label",
        predictionCol: str = "prediction",
        rawPredictionCol: str = "rawPrediction",
        weightCol: str | None = None,
        handleInvalid: str = "error",
    ) -> None:
        super().__init__()
        self._setDefault(
            C=1.0, kernel="rbf", gamma="scale", degree=3, coef0=0.0, tol=1e-3, maxIter=30, maxCandidates=100_000,
            handleInvalid="error",
        )  # fmt: skip
        self._set(**self._input_kwargs)

    def _fit(self, dataset: DataFrame) -> CascadeSVCModel:
        self._check_parameters()
        rows = map_partitions(self._select_columns(dataset), ReadTask(self.getHandleInvalid() == "skip"), SCHEMA).persist(
            StorageLevel.MEMORY_AND_DISK
        )
        try:
            _, metadata = read_results(rows.filter("facts IS NOT NULL OR problem IS NOT NULL").toArrow().to_batches())
            width = _check_partitions(metadata)
            machine = self._make_machine_parameters(metadata, width)
            cascade = _Cascade(rows.filter("facts IS NULL"), metadata, machine, self.getTol(), self.getMaxCandidates())
            learner = cascade.fit(self.getMaxIter())
        finally:
            rows.unpersist()
        return self._copyValues(CascadeSVCModel(learner))

    def _check_parameters(self) -> None:
        """Raise a ValueError that names the parameter if a parameter of this estimator is out of its range."""
        check_number("maxIter", self.getMaxIter(), 1, inclusive=True, integer=True)
        check_number("maxCandidates", self.getMaxCandidates(), 2, inclusive=True, integer=True)
        check_number("C", self.getC(), 0.0)
        check_one_of("kernel", self.getKernel(), _KERNELS)  # for other kernels, the gap is not a bound
        check_number("coef0", self.getCoef0(), 0.0, inclusive=True)
        with collect_warnings():
            CSMOClassifier(**self._collect_parameters(self.getGamma()), tol=self.getTol()).fit([[0.0], [1.0]], [0, 1])

    def _collect_parameters(self, gamma: float | str) -> dict[str, Any]:
        parameters = {"C": self.getC(), "kernel": self.getKernel(), "degree": self.getDegree(), "coef0": self.getCoef0()}
        return {**parameters, "gamma": gamma}

    def _make_machine_parameters(self, metadata: Sequence[dict[str, Any]], width: int) -> dict[str, Any]:
        """Return the parameters of a `CSMOClassifier` as a dictionary, with gamma as a number. For ``gamma="scale"``, it is
        computed from the variance of the features, which follows from the ``metadata`` of all partitions; ``width`` is the number
        of features.
        """
        gamma = self.getGamma()
        if gamma == "auto":
            gamma = 1.0 / width
        elif gamma == "scale":
            moments = ValueMoments()
            for partition in metadata:
                moments = moments.merge(ValueMoments(*partition["moments"]))
            variance = moments.square / moments.weight
            gamma = 1.0 / (width * variance) if variance > 1e-15 * moments.mean**2 else 1.0
        return self._collect_parameters(gamma)


def _check_partitions(metadata: Sequence[dict[str, Any]]) -> int:
    """Check the ``metadata`` of all partitions, dictionaries with the numbers of rows and features, and the labels, and return
    the number of features. Raise a RowsError if it differs between partitions, there are no rows or features, or all rows have
    the same label.
    """
    filled = [partition for partition in metadata if partition["width"] is not None]
    if not filled:
        raise RowsError("no rows to learn: the frame is empty, or all its rows were skipped or have weight 0")
    first = filled[0]
    for partition in filled:
        check_widths(first["width"], partition["width"], (first["part"], partition["part"]))
    if not first["width"]:
        raise RowsError("vectors have no features")
    labels = [any(partition["labels"][label] for partition in filled) for label in (0, 1)]
    if not all(labels):
        raise RowsError(f"all rows have the label {labels.index(True)}: a classifier needs at least two")
    return int(first["width"])


class RoundResult(NamedTuple):
    """The results of a round, from all partitions."""

    new_rows: CandidateRows  # for the driver
    violators: int
    worst: float  # largest violation
    objective: float  # dual objective, to be minimised
    gap: float  # duality gap over all rows


class _Cascade:
    """A fit: the cached rows, the metadata of their partitions, and the parameters of the machine."""

    def __init__(
        self, rows: DataFrame, metadata: Sequence[dict[str, Any]], machine: dict[str, Any], tol: float, max_rows: int
    ) -> None:
        self._rows, self._machine, self._tol, self._max_rows = rows, machine, tol, max_rows
        self._counts = np.zeros(metadata[-1]["part"] + 1, np.int64)  # rows of each partition
        for partition in metadata:
            self._counts[partition["part"]] = partition["rows"]

    def fit(self, max_rounds: int) -> CSMOClassifier:
        """Fit a support vector machine to the rows of all partitions in at most ``max_rounds`` rounds, and return it. In each
        round, the driver adds rows that violate the optimality conditions, and solves again. Warns if some rows still violate
        them at the end.
        """
        rows, history = self._solve_tree(), []
        while True:
            learner, rows = fit_machine(rows, {**self._machine, "tol": self._tol})
            support = rows.select(rows.alpha > 0.0)
            n_parts = len(self._counts)
            limit = min(self._max_rows - len(support.row), max(_MAX_GROWTH * len(support.row), _MIN_NEW_ROWS, n_parts))
            result = self._scan_partitions(learner, rows, support, limit // n_parts)
            history.append([len(rows.row), len(support.row), result.violators, result.objective, result.gap])
            if not len(result.new_rows.row) or len(history) == max_rounds:
                break
            if len(rows.row) + len(result.new_rows.row) > self._max_rows:
                rows = support
            rows = CandidateRows.concatenate([rows, result.new_rows])
        first_rows = np.cumsum(self._counts) - self._counts
        n = int(self._counts.sum())
        learner.support_ = (first_rows[rows.part] + rows.row)[learner.support_].astype(np.int32 if n < 2**31 else np.int64)
        learner.shape_fit_ = (n, rows.X.shape[1])
        learner.objective_, learner.duality_gap_ = result.objective, result.gap
        learner.gap_ = max(float(learner.gap_), result.worst)
        learner.fit_status_ = int(learner.gap_ > self._tol)
        learner.rounds_ = np.array(history)
        if result.violators:
            self._warn_of_violators(result, len(history), max_rounds)
        return learner

    def _solve_tree(self) -> CandidateRows:
        """Solve the rows of each partition on Spark's workers, then join their support vectors in pairs and solve these, level by
        level, until one set is left. Return the support vectors of that set.
        """
        solve = SolveTask(self._machine, self._max_rows)
        sets, level, n = map_partitions(self._rows, solve, SCHEMA), 0, len(self._counts)
        while n > 1:
            level, n = level + 1, (n + 1) // 2
            sets = map_partitions(sets.repartitionById(n, F.shiftright("part", level)), solve, SCHEMA)
        return read_results(sets.toArrow().to_batches())[0]

    def _scan_partitions(self, learner: CSMOClassifier, rows: CandidateRows, support: CandidateRows, quota: int) -> RoundResult:
        """Search all partitions for rows that violate the optimality conditions of ``learner``. Return at most ``quota`` of these
        rows from each partition, with the number of violations, the objective and the duality gap. ``rows`` are the rows on the
        driver, ``support`` the learner's support vectors.
        """
        numbers = {int(part): rows.row[rows.part == part] for part in np.unique(rows.part)}
        bias = float(learner.intercept_[0])
        scan = ScanTask(support, bias, learner._kernel, numbers, self._tol, quota)
        new_rows, metadata = read_results(map_partitions(self._rows, scan, SCHEMA).toArrow().to_batches())
        if sum(partition["found"] for partition in metadata) != len(support.row):
            raise RowsError("rows or their order changed when Spark read the frame again: write or checkpoint it before the fit")
        bias_product = bias * float(support.alpha @ support.signs)
        half_norm = 0.5 * (sum(partition["product"] for partition in metadata) - bias_product)  # of the weights, squared
        objective = half_norm - float(support.alpha.sum())
        primal = half_norm + float(self._machine["C"]) * sum(partition["loss"] for partition in metadata)
        violators = sum(partition["violators"] for partition in metadata)
        worst = max(partition["worst"] for partition in metadata)
        return RoundResult(new_rows, violators, worst, objective, primal + objective)

    def _warn_of_violators(self, result: RoundResult, n_rounds: int, max_rounds: int) -> None:
        parameter = "maxIter" if n_rounds == max_rounds else "maxCandidates, as the driver's memory allows"
        warn(
            f"CascadeSVC ended after {n_rounds} rounds, while {result.violators:,} rows violate the optimality conditions, by up "
            f"to {result.worst:.3g}. The dual objective is {-result.objective:.6g}, and the optimum at most "
            f"{result.gap:.3g} higher: raise {parameter}",
            ConvergenceWarning,
        )
