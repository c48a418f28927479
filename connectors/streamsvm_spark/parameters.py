"""The parameters of the Spark estimators, and their conversion to parameters of learners."""

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
from streamsvm_spark.columns import select_column

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

_NO_BUDGET = "it has no budget, so a partition may need a support vector for each row"
#: Learners whose models cannot be merged: the reason, and an alternative.
_UNSUPPORTED = {
    "perceptron": f"{_NO_BUDGET}: use 'rbp', a perceptron with a budget",
    "ogd": f"{_NO_BUDGET}: use 'bsgd'",
    "pegasos": f"{_NO_BUDGET}: use 'bsgd', which is Pegasos with a budget",
    "fogd": "its random frequencies depend on the feature scale of each partition: use 'nogd'",
    "krls": "each partition has its own landmarks and inverse matrix: use 'bsca' with rounds=2, which ends with least squares",
    "svm": "the stacking weights of each partition belong to its own experts: use 'bsca'",
}

_RESERVED_PARAMETERS = {"max_features"}  # the length of the vectors
_INVALID_POLICIES = ("error", "skip")


def _to_gamma(value: Any) -> str | float:
    return value if isinstance(value, str) else TypeConverters.toFloat(value)


def _to_options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"options must be a dict of parameter names to values, not {value!r}")
    return dict(value)


def _to_invalid_policy(value: Any) -> str:
    if value not in _INVALID_POLICIES:
        raise TypeError(f"handleInvalid must be 'error' or 'skip', not {value!r}")
    return str(value)


def _make_param(name: str, doc: str, converter: Callable[[Any], Any]) -> Param[Any]:
    return Param(Params._dummy(), name, doc, typeConverter=converter)


def _make_accessors(name: str, kind: type[T]) -> tuple[Callable[[Any], T], Callable[[P, T], P]]:  # noqa: ARG001 - for its type
    """Return the getter and the setter method of the Spark parameter ``name``, whose value has the type ``kind``, with the names
    and docstrings that pyspark.ml uses.
    """

    def get(self: Any) -> T:
        return self.getOrDefault(name)

    def set_(self: P, value: T) -> P:
        return self._set(**{name: value})

    for method, verb, text in ((get, "get", "Return"), (set_, "set", "Set")):
        method.__name__ = method.__qualname__ = f"{verb}{name[0].upper()}{name[1:]}"
        method.__doc__ = f"{text} the value of {name}."
    return get, set_


class ScoreParams(HasLabelCol, HasFeaturesCol, HasPredictionCol, HasHandleInvalid):
    """The parameters of both estimators and models."""

    handleInvalid: Param[str] = _make_param(
        "handleInvalid", "treatment of rows with nulls or numbers that are not finite: 'error' or 'skip'", _to_invalid_policy
    )

    setHandleInvalid = _make_accessors("handleInvalid", str)[1]


class MachineParams(ScoreParams, HasWeightCol):
    """The parameters of all estimators."""

    gamma: Param[Any] = _make_param("gamma", "kernel parameter: a number, or 'scale'", _to_gamma)
    C: Param[float] = _make_param("C", "upper bound of the dual coefficients, before the row's weight", TypeConverters.toFloat)

    @keyword_only
    def setParams(self, **params: Any) -> Self:
        """Set parameters of this estimator by the names that they have in the constructor, and return it. Raise a TypeError for
        an unknown name.
        """
        for name in params:
            if not self.hasParam(name):
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}: explainParams() lists all parameters")
        return self._set(**params)

    def getGamma(self) -> str | float:
        """Return the value of the kernel parameter gamma: a number or "scale" (for some estimators also "auto")."""
        return self.getOrDefault(self.gamma)

    def setGamma(self, value: str | float) -> Self:
        """Set the kernel parameter gamma to a number or "scale" (for some estimators also "auto"), and return the estimator."""
        return self._set(gamma=value)

    def getC(self) -> float:
        """Return the value of C, the upper bound of the dual coefficients. Raise a KeyError if it is not set, so that the learner
        uses its own default.
        """
        return self.getOrDefault(self.C)

    setC = _make_accessors("C", float)[1]
    setWeightCol = _make_accessors("weightCol", str)[1]

    def _select_columns(self, dataset: DataFrame) -> DataFrame:
        """Return a Spark frame with only the columns to learn from, renamed to ``features``, ``label`` and, if there is a weight
        column, ``weight``.
        """
        return dataset.select([select_column(dataset, column).alias(name) for name, column in self._get_column_names().items()])

    def _get_column_names(self) -> dict[str, str]:
        """Return the names that the columns to learn from have in the user's frame: a dictionary with the keys "features",
        "label" and, if rows have weights, "weight".
        """
        columns = {"features": self.getFeaturesCol(), "label": self.getLabelCol()}
        if self.isDefined(self.weightCol) and self.getWeightCol():
            columns["weight"] = self.getWeightCol()
        return columns


class FitParams(MachineParams, HasSeed):
    """The parameters of the estimators with budgeted learners."""

    learner: Param[str] = _make_param("learner", "the learner: 'bsca', 'bsgd', 'linear', ...", TypeConverters.toString)
    budget: Param[int] = _make_param("budget", "maximum number of support vectors", TypeConverters.toInt)
    rounds: Param[int] = _make_param("rounds", "number of rounds over the rows of all partitions", TypeConverters.toInt)
    passes: Param[int] = _make_param("passes", "number of passes over the rows of each partition", TypeConverters.toInt)
    options: Param[dict[str, Any]] = _make_param(
        "options", "further parameters of the learner, by their names in streamsvm", _to_options
    )

    getLearner, setLearner = _make_accessors("learner", str)
    getBudget, setBudget = _make_accessors("budget", int)
    getRounds, setRounds = _make_accessors("rounds", int)
    getPasses, setPasses = _make_accessors("passes", int)

    def getOptions(self) -> dict[str, Any]:
        """Return the further parameters of the learner that were set with ``options``, as a new dictionary."""
        return dict(self.getOrDefault(self.options))

    setOptions = _make_accessors("options", dict)[1]
    setSeed = _make_accessors("seed", int)[1]

    def _find_learner_class(self, learners: Mapping[str, type]) -> type:
        """Return the class of the learner that the parameter ``learner`` names, from the dictionary ``learners``. Raise a
        ValueError if the name is unknown, or models of that class cannot be merged.
        """
        name = self.getLearner()
        if name in _UNSUPPORTED:
            raise ValueError(f"learner={name!r} cannot learn partitions: {_UNSUPPORTED[name]}")
        if name not in learners:
            raise ValueError(f"unknown learner={name!r}: it must be one of {', '.join(map(repr, learners))}")
        return learners[name]

    def _collect_parameters(self, learner_class: type) -> dict[str, Any]:
        """Return the constructor parameters for the learner of class ``learner_class`` that each partition creates, as a
        dictionary. Raise a ValueError if the class lacks one of them, a value is invalid, or a parameter is set both directly and
        in ``options``.
        """
        names = inspect.signature(learner_class).parameters.keys() - _RESERVED_PARAMETERS
        own = {"seed": self.getSeed()} if "seed" in names else {}  # deterministic learners have no seed
        for param in (self.budget, self.gamma, self.C):
            if self.isSet(param) or (self.isDefined(param) and param.name in names):
                own[param.name] = self.getOrDefault(param)
        options = self.getOptions()
        if duplicates := own.keys() & options.keys():
            raise ValueError(f"{min(duplicates)} is set twice: as a parameter of the estimator, and in options")
        for name in (own | options).keys() - names:
            raise ValueError(f"{learner_class.__name__} has no parameter {name!r}; its parameters: {', '.join(sorted(names))}")
        for name, number in {"rounds": self.getRounds(), "passes": self.getPasses()}.items():
            if number < 1:
                raise ValueError(f"{name} must be at least 1, not {number}")
        parameters = {**own, **options}
        learner_class(**parameters)  # raises for an invalid value here, instead of in a partition
        return parameters


class CascadeParams(MachineParams, HasTol, HasMaxIter):
    """The parameters of `CascadeSVC`."""

    kernel: Param[str] = _make_param("kernel", "the kernel: 'rbf', 'linear' or 'poly'", TypeConverters.toString)
    degree: Param[int] = _make_param("degree", "degree of the kernel 'poly'", TypeConverters.toInt)
    coef0: Param[float] = _make_param("coef0", "constant term of the kernel 'poly'", TypeConverters.toFloat)
    maxCandidates: Param[int] = _make_param("maxCandidates", "maximum number of rows on the driver", TypeConverters.toInt)

    getKernel, setKernel = _make_accessors("kernel", str)
    getDegree, setDegree = _make_accessors("degree", int)
    getCoef0, setCoef0 = _make_accessors("coef0", float)
    getMaxCandidates, setMaxCandidates = _make_accessors("maxCandidates", int)
    setTol = _make_accessors("tol", float)[1]
    setMaxIter = _make_accessors("maxIter", int)[1]
