"""The parameters of the estimators of Spark, and the learners that they make."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Self

from pyspark import keyword_only
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasHandleInvalid,
    HasLabelCol,
    HasMaxIter,
    HasPredictionCol,
    HasSeed,
    HasTol,
    HasWeightCol,
)
from pyspark.sql import DataFrame

from streamsvm.learners import (
    BOGD,
    BPAS,
    NOGD,
    RBP,
    Forgetron,
    OnlineLinearSVC,
    OnlineLinearSVR,
    Projectron,
    ProjectronPP,
    Stoptron,
)
from streamsvm.learners.bsca import BSCAClassifier, BSCARegressor
from streamsvm.learners.bsgd import BSGDClassifier, BSGDRegressor
from streamsvm_spark.columns import column_of

#: Learners by name.
CLASSIFIERS: Mapping[str, type] = {
    "bsca": BSCAClassifier,
    "bsgd": BSGDClassifier,
    "linear": OnlineLinearSVC,
    "stoptron": Stoptron,
    "rbp": RBP,
    "forgetron": Forgetron,
    "projectron": Projectron,
    "projectron++": ProjectronPP,
    "bpas": BPAS,
    "bogd": BOGD,
    "nogd": NOGD,
}
REGRESSORS: Mapping[str, type] = {"bsca": BSCARegressor, "bsgd": BSGDRegressor, "linear": OnlineLinearSVR}

_NO_BUDGET = "it has no budget, and a partition may need a support vector for each row"
#: Learners whose models do not become one: why, and what to take instead.
_REFUSED = {
    "perceptron": f"{_NO_BUDGET}: take 'rbp', a perceptron within a budget",
    "ogd": f"{_NO_BUDGET}: take 'bsgd'",
    "pegasos": f"{_NO_BUDGET}: take 'bsgd', which is Pegasos within a budget",
    "fogd": "its coefficients are those of frequencies, which belong to the scale that each partition has found: take 'nogd'",
    "krls": "the landmarks and the inverse of each partition are its own: take 'bsca' with rounds=2, which ends in least squares",
    "svm": "the stack of each partition is fitted to the decision values of its own experts: take 'bsca'",
}

_OWN = {"max_features"}  # is what vectors have
_INVALID = ("error", "skip")


def _gamma(value: Any) -> str | float:
    return value if isinstance(value, str) else TypeConverters.toFloat(value)


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"options must be a dict of parameters by their names, not {value!r}")
    return dict(value)


def _invalid(value: Any) -> str:
    if value not in _INVALID:
        raise TypeError(f"handleInvalid must be 'error' or 'skip', not {value!r}")
    return str(value)


class ScoreParams(HasLabelCol, HasFeaturesCol, HasPredictionCol, HasHandleInvalid):
    """The parameters that estimators and models have."""

    handleInvalid: Param[str] = Param(
        Params._dummy(),
        "handleInvalid",
        "what happens to rows with nulls or numbers that are not finite: 'error' or 'skip'",
        typeConverter=_invalid,
    )

    def setHandleInvalid(self, value: str) -> Self:
        """Set the value of handleInvalid."""
        return self._set(handleInvalid=value)


class MachineParams(ScoreParams, HasWeightCol):
    """The parameters that all fits of a kernel machine have."""

    gamma: Param[Any] = Param(Params._dummy(), "gamma", "of the kernel: a number, or 'scale'", typeConverter=_gamma)
    C: Param[float] = Param(
        Params._dummy(), "C", "the largest coefficient of a row, before its weight", typeConverter=TypeConverters.toFloat
    )

    @keyword_only
    def setParams(self, **params: Any) -> Self:
        """Set parameters by the names that the constructor has."""
        for name in params:
            if not self.hasParam(name):
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}: explainParams() shows those that it has")
        return self._set(**params)

    def getGamma(self) -> str | float:
        """Return the value of gamma."""
        return self.getOrDefault(self.gamma)

    def getC(self) -> float:
        """Return the value of C. A KeyError means that it is not set, so the learner uses its own default."""
        return self.getOrDefault(self.C)

    def setGamma(self, value: str | float) -> Self:
        """Set the value of gamma."""
        return self._set(gamma=value)

    def setC(self, value: float) -> Self:
        """Set the value of C."""
        return self._set(C=value)

    def setWeightCol(self, value: str) -> Self:
        """Set the value of weightCol."""
        return self._set(weightCol=value)

    def _columns_of(self, dataset: DataFrame) -> DataFrame:
        """Return the columns that are learned: features, label and, if rows are weighted, weight."""
        return dataset.select([column_of(dataset, column).alias(name) for name, column in self._names().items()])

    def _names(self) -> dict[str, str]:
        # Of those columns, in the frame.
        columns = {"features": self.getFeaturesCol(), "label": self.getLabelCol()}
        if self.isDefined(self.weightCol) and self.getWeightCol():
            columns["weight"] = self.getWeightCol()
        return columns


class FitParams(MachineParams, HasSeed):
    """The parameters of a fit of budgeted learners."""

    learner: Param[str] = Param(
        Params._dummy(), "learner", "the learner: 'bsca', 'bsgd', 'linear', ...", typeConverter=TypeConverters.toString
    )
    budget: Param[int] = Param(Params._dummy(), "budget", "support vectors, at most", typeConverter=TypeConverters.toInt)
    rounds: Param[int] = Param(
        Params._dummy(), "rounds", "rounds over the rows of all partitions", typeConverter=TypeConverters.toInt
    )
    passes: Param[int] = Param(
        Params._dummy(), "passes", "passes over the rows of each partition", typeConverter=TypeConverters.toInt
    )
    options: Param[dict[str, Any]] = Param(
        Params._dummy(), "options", "more parameters of the learner, by their names in streamsvm", typeConverter=_options
    )

    def getLearner(self) -> str:
        """Return the value of learner."""
        return self.getOrDefault(self.learner)

    def getBudget(self) -> int:
        """Return the value of budget."""
        return self.getOrDefault(self.budget)

    def getRounds(self) -> int:
        """Return the value of rounds."""
        return self.getOrDefault(self.rounds)

    def getPasses(self) -> int:
        """Return the value of passes."""
        return self.getOrDefault(self.passes)

    def getOptions(self) -> dict[str, Any]:
        """Return the value of options."""
        return dict(self.getOrDefault(self.options))

    def setLearner(self, value: str) -> Self:
        """Set the value of learner."""
        return self._set(learner=value)

    def setBudget(self, value: int) -> Self:
        """Set the value of budget."""
        return self._set(budget=value)

    def setRounds(self, value: int) -> Self:
        """Set the value of rounds."""
        return self._set(rounds=value)

    def setPasses(self, value: int) -> Self:
        """Set the value of passes."""
        return self._set(passes=value)

    def setOptions(self, value: dict[str, Any]) -> Self:
        """Set the value of options."""
        return self._set(options=value)

    def setSeed(self, value: int) -> Self:
        """Set the value of seed."""
        return self._set(seed=value)

    def _kind(self, learners: Mapping[str, type]) -> type:
        name = self.getLearner()
        if name in _REFUSED:
            raise ValueError(f"learner={name!r} does not learn partitions: {_REFUSED[name]}")
        if name not in learners:
            raise ValueError(f"learner={name!r} is none: it is one of {', '.join(map(repr, learners))}")
        return learners[name]

    def _parameters_of(self, kind: type) -> dict[str, Any]:
        """Return the parameters of a learner; ValueError where it does not have them, or refuses a value."""
        known = inspect.signature(kind).parameters.keys() - _OWN
        given = {"seed": self.getSeed()} if "seed" in known else {}  # of a learner without chance, any seed is right
        for param in (self.budget, self.gamma, self.C):
            if self.isSet(param) or (self.isDefined(param) and param.name in known):
                given[param.name] = self.getOrDefault(param)
        options = self.getOptions()
        if both := given.keys() & options.keys():
            raise ValueError(f"{min(both)} is given twice: as a parameter of the estimator, and in options")
        for name in (given | options).keys() - known:
            raise ValueError(f"{kind.__name__} has no parameter {name!r} to set: it has {', '.join(sorted(known))}")
        for name, number in {"rounds": self.getRounds(), "passes": self.getPasses()}.items():
            if number < 1:
                raise ValueError(f"{name} must be at least 1, not {number}")
        parameters = {**given, **options}
        kind(**parameters)  # which refuses what is wrong here, not in a partition
        return parameters


class CascadeParams(MachineParams, HasTol, HasMaxIter):
    """The parameters of a cascade."""

    kernel: Param[str] = Param(
        Params._dummy(), "kernel", "the kernel: 'rbf', 'linear' or 'poly'", typeConverter=TypeConverters.toString
    )
    degree: Param[int] = Param(Params._dummy(), "degree", "of the kernel 'poly'", typeConverter=TypeConverters.toInt)
    coef0: Param[float] = Param(Params._dummy(), "coef0", "of the kernel 'poly'", typeConverter=TypeConverters.toFloat)
    maxCandidates: Param[int] = Param(
        Params._dummy(), "maxCandidates", "rows that the driver holds, at most", typeConverter=TypeConverters.toInt
    )

    def getKernel(self) -> str:
        """Return the value of kernel."""
        return self.getOrDefault(self.kernel)

    def getDegree(self) -> int:
        """Return the value of degree."""
        return self.getOrDefault(self.degree)

    def getCoef0(self) -> float:
        """Return the value of coef0."""
        return self.getOrDefault(self.coef0)

    def getMaxCandidates(self) -> int:
        """Return the value of maxCandidates."""
        return self.getOrDefault(self.maxCandidates)

    def setKernel(self, value: str) -> Self:
        """Set the value of kernel."""
        return self._set(kernel=value)

    def setDegree(self, value: int) -> Self:
        """Set the value of degree."""
        return self._set(degree=value)

    def setCoef0(self, value: float) -> Self:
        """Set the value of coef0."""
        return self._set(coef0=value)

    def setMaxCandidates(self, value: int) -> Self:
        """Set the value of maxCandidates."""
        return self._set(maxCandidates=value)

    def setTol(self, value: float) -> Self:
        """Set the value of tol."""
        return self._set(tol=value)

    def setMaxIter(self, value: int) -> Self:
        """Set the value of maxIter."""
        return self._set(maxIter=value)
