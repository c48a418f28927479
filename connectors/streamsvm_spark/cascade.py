"""An exact support vector classifier of rows of many partitions: a cascade of machines, and rounds until it is optimal."""

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
from streamsvm_spark.cascade_tasks import SCHEMA, Candidates, Moments, Read, Scan, Solve, fitted_machine, received_rows
from streamsvm_spark.columns import RowsError, check_widths, map_partitions
from streamsvm_spark.models import SVMModel
from streamsvm_spark.parameters import CascadeParams


class CascadeSVCModel(SVMModel, ClassificationModel):
    """The model of a `CascadeSVC`.

    ``transform`` adds the prediction and the raw prediction, which has the decision values of both classes; each is the
    negative of the other. A column whose name is set to "" is not added. ``learner()`` is the `streamsvm.batch.CSMOClassifier`.
    """

    _columns: ClassVar[dict[str, DataType]] = {"rawPredictionCol": VectorUDT(), "predictionCol": DoubleType()}

    @staticmethod
    def _check_learner(learner: Any) -> None:
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
        return DenseVector(self._answer_of("rawPredictionCol", value))

    @staticmethod
    def _answers_of(learner: Any, X: np.ndarray, keys: list[str], settings: Any) -> dict[str, np.ndarray]:  # noqa: ARG004 - of others
        f = learner.decision_function(X) if len(X) else np.empty(0)
        return {"rawPredictionCol": np.column_stack([-f, f]), "predictionCol": (f > 0.0).astype(np.float64)}


_KERNELS = ("rbf", "linear", "poly")
_GROWTH = 5  # new rows of a round, at most so many times the support vectors: of more, most would not stay
_LEAST = 5000  # such rows, whatever the support vectors


class CascadeSVC(CascadeParams, Classifier, DefaultParamsReadable, DefaultParamsWritable):
    """A support vector classifier of two classes, solved exactly over the rows of many partitions.

    The problem is that of `streamsvm.batch.CSMOClassifier` on all rows, and so is the machine, up to the tolerance. Each
    partition solves its own rows. Their support vectors go up a tree, in which two sets at a time are solved again, in the
    order of the partitions, and the driver solves the last set. Then rounds begin. In each round, all partitions get the
    driver's support vectors, and send rows that violate the conditions of the optimum, which the driver adds. If there is no
    such row, the machine is that of all rows. The same rows in the same partitions give the same bytes, in whatever order the
    partitions end.

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
        Amount by which the margin of a row may fall short before the row counts as violating the conditions of the optimum;
        also the gap of the driver's solution.
    maxIter
        Maximum number of rounds.
    maxCandidates
        Maximum number of rows that the driver holds: support vectors, and rows that may become support vectors.
    featuresCol, labelCol, predictionCol, rawPredictionCol, weightCol
        Names of columns, as in the classifiers of pyspark.ml. Features are vectors, dense or sparse, or arrays of numbers.
        Labels are 0 and 1. For more classes, use ``pyspark.ml.classification.OneVsRest(classifier=CascadeSVC())``.
    handleInvalid
        What happens to rows with nulls, or with numbers that are not finite: ``"error"`` or ``"skip"``.

    Raises
    ------
    ValueError
        From ``fit``: a parameter is out of its range, rows cannot be learned or are of one class, or there are more support
        vectors than ``maxCandidates``. The message says which of these it is, and what to do.

    Warns
    -----
    ConvergenceWarning
        The fit ended before the optimum. The message says how far the objective is from it at most.

    Notes
    -----
    A fit reads the frame once. Meanwhile, Spark caches its rows as float32 (``MEMORY_AND_DISK``), and each round reads this
    cache. A frame whose order changes from one reading to the next is refused if a part of its cache is lost.

    A worker needs memory to solve a partition: 30 bytes for each feature of each row, and 200 MB. If that is too much, use more
    partitions. The driver needs as much for ``maxCandidates`` rows. It receives the support vectors of the last set and then
    the violating rows, each once as a rule, with ``4 d + 40`` bytes for d features. A round sends all support vectors to each
    worker.

    The driver solves the problem of all support vectors of the optimum alone, so the cascade pays if there are many rows and
    few support vectors.

    Unlike in the paper, the sets of partitions are not solved again in each round: rows that violate optimality go to the
    driver immediately, and with them rows that nearly do.

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
        rows = map_partitions(self._columns_of(dataset), Read(self.getHandleInvalid() == "skip"), SCHEMA).persist(
            StorageLevel.MEMORY_AND_DISK
        )
        try:
            _, facts = received_rows(rows.filter("facts IS NOT NULL OR problem IS NOT NULL").toArrow().to_batches())
            width = _common_width(facts)
            candidates = rows.filter("facts IS NULL")
            cascade = _Cascade(candidates, facts, self._machine(facts, width), self.getTol(), self.getMaxCandidates())
            learner = cascade.learned(self.getMaxIter())
        finally:
            rows.unpersist()
        return self._copyValues(CascadeSVCModel(learner))

    def _check_parameters(self) -> None:
        """Raise a ValueError where a parameter is out of its range."""
        check_number("maxIter", self.getMaxIter(), 1, inclusive=True, integer=True)
        check_number("maxCandidates", self.getMaxCandidates(), 2, inclusive=True, integer=True)
        check_number("C", self.getC(), 0.0)
        check_one_of("kernel", self.getKernel(), _KERNELS)  # with others no gap bounds how far the optimum is
        check_number("coef0", self.getCoef0(), 0.0, inclusive=True)
        with collect_warnings():
            CSMOClassifier(**self._parameters_of(self.getGamma()), tol=self.getTol()).fit([[0.0], [1.0]], [0, 1])

    def _parameters_of(self, gamma: float | str) -> dict[str, Any]:
        of = {"C": self.getC(), "kernel": self.getKernel(), "degree": self.getDegree(), "coef0": self.getCoef0()}
        return {**of, "gamma": gamma}

    def _machine(self, facts: Sequence[dict[str, Any]], width: int) -> dict[str, Any]:
        """Return the parameters of the machine, gamma as a number."""
        gamma = self.getGamma()
        if gamma == "auto":
            gamma = 1.0 / width
        elif gamma == "scale":
            moments = Moments()
            for each in facts:
                moments = moments.with_(Moments(*each["moments"]))
            variance = moments.square / moments.weight
            gamma = 1.0 / (width * variance) if variance > 1e-15 * moments.mean**2 else 1.0
        return self._parameters_of(gamma)


def _common_width(facts: Sequence[dict[str, Any]]) -> int:
    """Return the number of features; RowsError where partitions differ, or all rows are of one class."""
    filled = [each for each in facts if each["width"] is not None]
    if not filled:
        raise RowsError("there is no row to learn: the frame is empty, or all its rows were skipped or have no weight")
    first = filled[0]
    for each in filled:
        check_widths(first["width"], each["width"], (first["part"], each["part"]))
    if not first["width"]:
        raise RowsError("vectors have no features: there is nothing to learn from")
    labels = [any(each["labels"][label] for each in filled) for label in (0, 1)]
    if not all(labels):
        raise RowsError(f"all rows have the label {labels.index(True)}: a classifier needs at least two")
    return int(first["width"])


class _Round(NamedTuple):
    """The findings of a round."""

    new: Candidates  # rows that the driver lacks
    violators: int
    worst: float
    objective: float  # of the dual, which is minimised
    gap: float  # the primal objective of all rows minus the dual one


class _Cascade:
    """A fit: the cached rows, what is known of their partitions, and the parameters of the machine."""

    def __init__(self, rows: DataFrame, facts: Sequence[dict[str, Any]], machine: dict[str, Any], tol: float, most: int) -> None:
        self._rows, self._machine, self._tol, self._most = rows, machine, tol, most
        self._counts = np.zeros(facts[-1]["part"] + 1, np.int64)  # rows of each partition
        for each in facts:
            self._counts[each["part"]] = each["rows"]

    def learned(self, rounds: int) -> CSMOClassifier:
        """Return the machine of all rows, up to the tolerance; of the last round if it is not reached."""
        held, history = self._last_set(), []
        while True:
            learner, held = fitted_machine(held, {**self._machine, "tol": self._tol})
            support = held.take(held.alpha > 0.0)
            parts = len(self._counts)
            room = min(self._most - len(support.row), max(_GROWTH * len(support.row), _LEAST, parts))
            found = self._scanned_rows(learner, held, support, room // parts)
            history.append([len(held.row), len(support.row), found.violators, found.objective, found.gap])
            if not len(found.new.row) or len(history) == rounds:
                break
            if len(held.row) + len(found.new.row) > self._most:
                held = support
            held = Candidates.of([held, found.new])
        first = np.cumsum(self._counts) - self._counts
        n = int(self._counts.sum())
        learner.support_ = (first[held.part] + held.row)[learner.support_].astype(np.int32 if n < 2**31 else np.int64)
        learner.shape_fit_ = (n, held.X.shape[1])
        learner.objective_, learner.duality_gap_ = found.objective, found.gap
        learner.gap_ = max(float(learner.gap_), found.worst)
        learner.fit_status_ = int(learner.gap_ > self._tol)
        learner.rounds_ = np.array(history)
        if found.violators:
            self._warn_of_round(found, len(history), rounds)
        return learner

    def _last_set(self) -> Candidates:
        """Return the support vectors of the last set of the tree."""
        solve = Solve(self._machine, self._most)
        sets, level, n = map_partitions(self._rows, solve, SCHEMA), 0, len(self._counts)
        while n > 1:
            level, n = level + 1, (n + 1) // 2
            sets = map_partitions(sets.repartitionById(n, F.shiftright("part", level)), solve, SCHEMA)
        return received_rows(sets.toArrow().to_batches())[0]

    def _scanned_rows(self, learner: CSMOClassifier, held: Candidates, support: Candidates, quota: int) -> _Round:
        numbers = {int(part): held.row[held.part == part] for part in np.unique(held.part)}
        bias = float(learner.intercept_[0])
        scan = Scan(support, bias, learner._kernel, numbers, self._tol, quota)
        new, facts = received_rows(map_partitions(self._rows, scan, SCHEMA).toArrow().to_batches())
        if sum(each["found"] for each in facts) != len(support.row):
            raise RowsError(
                "the frame gives other rows, or another order, each time it is read, and Spark has read it again: write it to a "
                "file, or checkpoint it, before the fit"
            )
        sums = support.alpha @ support.signs
        square = 0.5 * (sum(each["product"] for each in facts) - bias * float(sums))  # half the squared norm of the weights
        objective = square - float(support.alpha.sum())
        primal = square + float(self._machine["C"]) * sum(each["loss"] for each in facts)
        violators, worst = sum(each["violators"] for each in facts), max(each["worst"] for each in facts)
        return _Round(new, violators, worst, objective, primal + objective)

    def _warn_of_round(self, found: _Round, done: int, rounds: int) -> None:
        way = "maxIter" if done == rounds else "maxCandidates, as the driver's memory allows"
        warn(
            f"CascadeSVC ended after {done} rounds, while {found.violators:,} rows violate the conditions of the optimum, by up "
            f"to {found.worst:.3g}. The dual objective is {-found.objective:.6g}, and that of the optimum at most "
            f"{found.gap:.3g} more: raise {way}",
            ConvergenceWarning,
        )
