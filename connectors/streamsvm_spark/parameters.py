"""The parameters of the estimators of Spark, and the learners that they make."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Self

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasHandleInvalid, HasLabelCol, HasPredictionCol, HasSeed, HasWeightCol

from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, BSGDRegressor

__all__ = ["CLASSIFIERS", "REGRESSORS", "FitParams", "ScoreParams"]

CLASSIFIERS = {"bsca": BSCAClassifier, "bsgd": BSGDClassifier}
REGRESSORS = {"bsca": BSCARegressor, "bsgd": BSGDRegressor}

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


class FitParams(ScoreParams, HasWeightCol, HasSeed):
    """The parameters of a fit."""

    learner: Param[str] = Param(
        Params._dummy(), "learner", "the learner: 'bsca' or 'bsgd'", typeConverter=TypeConverters.toString
    )
    budget: Param[int] = Param(Params._dummy(), "budget", "support vectors, at most", typeConverter=TypeConverters.toInt)
    gamma: Param[Any] = Param(Params._dummy(), "gamma", "of the kernel: a number, or 'scale'", typeConverter=_gamma)
    C: Param[float] = Param(
        Params._dummy(), "C", "the largest coefficient of a row, of the learner 'bsca'", typeConverter=TypeConverters.toFloat
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

    def getGamma(self) -> str | float:
        """Return the value of gamma."""
        return self.getOrDefault(self.gamma)

    def getC(self) -> float:
        """Return the value of C; a KeyError if it is not set, and the learner's own is used."""
        return self.getOrDefault(self.C)

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

    def setGamma(self, value: str | float) -> Self:
        """Set the value of gamma."""
        return self._set(gamma=value)

    def setC(self, value: float) -> Self:
        """Set the value of C."""
        return self._set(C=value)

    def setPasses(self, value: int) -> Self:
        """Set the value of passes."""
        return self._set(passes=value)

    def setOptions(self, value: dict[str, Any]) -> Self:
        """Set the value of options."""
        return self._set(options=value)

    def setSeed(self, value: int) -> Self:
        """Set the value of seed."""
        return self._set(seed=value)

    def setWeightCol(self, value: str) -> Self:
        """Set the value of weightCol."""
        return self._set(weightCol=value)

    def _kind(self, learners: Mapping[str, type]) -> type:
        name = self.getLearner()
        if name not in learners:
            raise ValueError(f"learner={name!r} is none: it is one of {', '.join(map(repr, learners))}")
        return learners[name]

    def _parameters_of(self, kind: type) -> dict[str, Any]:
        """Return the parameters of a learner; ValueError where it does not have them, or refuses a value."""
        given = {"budget": self.getBudget(), "gamma": self.getGamma(), "seed": self.getSeed()}
        if self.isDefined(self.C):
            given["C"] = self.getC()
        options = self.getOptions()
        if both := given.keys() & options.keys():
            raise ValueError(f"{min(both)} is given twice: as a parameter of the estimator, and in options")
        known = inspect.signature(kind).parameters.keys() - _OWN
        for name in (given | options).keys() - known:
            raise ValueError(f"{kind.__name__} has no parameter {name!r} to set: it has {', '.join(sorted(known))}")
        if self.getPasses() < 1:
            raise ValueError(f"passes must be at least 1, not {self.getPasses()}")
        parameters = {**given, **options}
        kind(**parameters)  # which refuses what is wrong here, not in a partition
        return parameters
