"""The parameters of the estimators of Spark, and the learners that they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

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

T = TypeVar("T")
P = TypeVar("P", bound=Params)

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


def _to_gamma(value: Any) -> str | float:
    return value if isinstance(value, str) else TypeConverters.toFloat(value)


def _to_options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"options must be a dict of parameters by their names, not {value!r}")
    return dict(value)


def _refuse_value(value: Any) -> str:
    if value not in _INVALID:
        raise TypeError(f"handleInvalid must be 'error' or 'skip', not {value!r}")
    return str(value)


def _make_param(name: str, doc: str, converter: Callable[[Any], Any]) -> Param[Any]:
    return Param(Params._dummy(), name, doc, typeConverter=converter)


def _make_accessors(name: str, kind: type[T]) -> tuple[Callable[[Any], T], Callable[[P, T], P]]:  # noqa: ARG001 - for its type
    """Return the methods that get and set a parameter, as pyspark.ml names and describes them."""

    def get(self: Any) -> T:
        return self.getOrDefault(name)

    def set_(self: P, value: T) -> P:
        return self._set(**{name: value})

    for method, verb, text in ((get, "get", "Return"), (set_, "set", "Set")):
        method.__name__ = method.__qualname__ = f"{verb}{name[0].upper()}{name[1:]}"
        method.__doc__ = f"{text} the value of {name}."
    return get, set_


class ScoreParams(HasLabelCol, HasFeaturesCol, HasPredictionCol, HasHandleInvalid):
    """The parameters that estimators and models have."""

    handleInvalid: Param[str] = _make_param(
        "handleInvalid", "what happens to rows with nulls or numbers that are not finite: 'error' or 'skip'", _refuse_value
    )

    setHandleInvalid = _make_accessors("handleInvalid", str)[1]


class MachineParams(ScoreParams, HasWeightCol):
    """The parameters that all fits of a kernel machine have."""

    gamma: Param[Any] = _make_param("gamma", "of the kernel: a number, or 'scale'", _to_gamma)
    C: Param[float] = _make_param("C", "the largest coefficient of a row, before its weight", TypeConverters.toFloat)

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

    def setGamma(self, value: str | float) -> Self:
        """Set the value of gamma."""
        return self._set(gamma=value)

    def getC(self) -> float:
        """Return the value of C. A KeyError means that it is not set, so the learner uses its own default."""
        return self.getOrDefault(self.C)

    setC = _make_accessors("C", float)[1]
    setWeightCol = _make_accessors("weightCol", str)[1]

    def _columns_of(self, dataset: DataFrame) -> DataFrame:
        """Return the columns that are learned: features, label and, if rows are weighted, weight."""
        return dataset.select([column_of(dataset, column).alias(name) for name, column in self._parameter_names().items()])

    def _parameter_names(self) -> dict[str, str]:
        # Of those columns, in the frame.
        columns = {"features": self.getFeaturesCol(), "label": self.getLabelCol()}
        if self.isDefined(self.weightCol) and self.getWeightCol():
            columns["weight"] = self.getWeightCol()
        return columns


class FitParams(MachineParams, HasSeed):
    """The parameters of a fit of budgeted learners."""

    learner: Param[str] = _make_param("learner", "the learner: 'bsca', 'bsgd', 'linear', ...", TypeConverters.toString)
    budget: Param[int] = _make_param("budget", "support vectors, at most", TypeConverters.toInt)
    rounds: Param[int] = _make_param("rounds", "rounds over the rows of all partitions", TypeConverters.toInt)
    passes: Param[int] = _make_param("passes", "passes over the rows of each partition", TypeConverters.toInt)
    options: Param[dict[str, Any]] = _make_param(
        "options", "more parameters of the learner, by their names in streamsvm", _to_options
    )

    getLearner, setLearner = _make_accessors("learner", str)
    getBudget, setBudget = _make_accessors("budget", int)
    getRounds, setRounds = _make_accessors("rounds", int)
    getPasses, setPasses = _make_accessors("passes", int)

    def getOptions(self) -> dict[str, Any]:
        """Return the value of options."""
        return dict(self.getOrDefault(self.options))

    setOptions = _make_accessors("options", dict)[1]
    setSeed = _make_accessors("seed", int)[1]

    def _learner_kind(self, learners: Mapping[str, type]) -> type:
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

    kernel: Param[str] = _make_param("kernel", "the kernel: 'rbf', 'linear' or 'poly'", TypeConverters.toString)
    degree: Param[int] = _make_param("degree", "of the kernel 'poly'", TypeConverters.toInt)
    coef0: Param[float] = _make_param("coef0", "of the kernel 'poly'", TypeConverters.toFloat)
    maxCandidates: Param[int] = _make_param("maxCandidates", "rows that the driver holds, at most", TypeConverters.toInt)

    getKernel, setKernel = _make_accessors("kernel", str)
    getDegree, setDegree = _make_accessors("degree", int)
    getCoef0, setCoef0 = _make_accessors("coef0", float)
    getMaxCandidates, setMaxCandidates = _make_accessors("maxCandidates", int)
    setTol = _make_accessors("tol", float)[1]
    setMaxIter = _make_accessors("maxIter", int)[1]
