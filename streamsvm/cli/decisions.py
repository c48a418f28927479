"""What a model decides by, as flags say it: a threshold, costs of labels, an interval; and what predictions say beside it."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

from river import base, compose

from streamsvm.cli import CommandError, UsageError, printable
from streamsvm.cli.parsing import make_metrics, parse_positive
from streamsvm.explanations import explain_one
from streamsvm.files.messages import names_of
from streamsvm.files.river_metrics import metrics
from streamsvm.learners.conformal import ConformalClassifier, ConformalRegressor
from streamsvm.learners.costs import CostSensitiveClassifier, checked_costs, costs_of_threshold
from streamsvm.learners.thresholds import TunedThresholdClassifier
from streamsvm.stream.answers import PROBABILITIES, ExtraFields, calibrated_answer
from streamsvm.stream.rows import gives_probabilities, learner_of, listed, steps_of

#: Makes of a learner one that decides as flags say.
Decide = Callable[[Any], Any]


def decide_of(arguments: argparse.Namespace, text_format: str | None, regression: bool, learns: bool) -> Decide:
    """Return what makes of a learner one that decides by ``--threshold``, ``--costs`` and ``--interval``.

    Only a model that ``learns`` can tune a threshold, or learn how wide an interval must be. A UsageError says that flags exclude
    each other, or the value of one is none.
    """
    threshold, costs, level = arguments.threshold, arguments.costs, getattr(arguments, "interval", None)
    flag = "--threshold" if threshold is not None else "--costs"
    if threshold is not None and costs is not None:
        raise UsageError("--threshold and --costs both say which label is predicted: leave one out")
    if regression and (threshold is not None or costs is not None):
        raise UsageError(f"{flag} is about labels, and a number is predicted: leave it out")
    positive = parse_positive(arguments.positive, text_format)
    decides: list[Decide] = []
    if threshold is not None:
        decides.append(_by_threshold(threshold, positive, arguments.positive is not None, learns))
    if costs is not None:
        decides.append(_by_costs(costs, text_format))
    if level is not None:
        decides.append(lambda model: (ConformalRegressor if regression else ConformalClassifier)(model, level))

    def decide(model: Any) -> Any:
        for wrap in decides:
            model = wrap(model)
        return model

    return decide


def decision_flag(arguments: argparse.Namespace) -> str:
    """Return the flag that says which label is predicted, with its value; "" where none does."""
    for name in ("threshold", "costs"):
        if (value := getattr(arguments, name)) is not None:
            return f"--{name} {value}"
    return ""


def _by_threshold(text: str, positive: Any, is_named: bool, learns: bool) -> Decide:
    try:
        number = float(text)
    except ValueError:
        number = None
    if number is not None:
        if not is_named:
            raise UsageError(
                f"--threshold {text} is the probability of one label from which on it is predicted: --positive LABEL"
            )
        try:
            costs = costs_of_threshold(positive, number)
        except ValueError as error:
            raise UsageError(f"--threshold {text}: {error}") from None
        return lambda model: CostSensitiveClassifier(model, costs)
    if not learns:
        raise UsageError(f"--threshold {text}: it is tuned while rows are learned; give a number here, or --threshold to learn")
    names = {name.lower(): name for name in metrics.__all__} | {"balanced": "BalancedAccuracy"}
    try:
        [metric] = make_metrics(names.get(text.lower(), text), 1000, None)
    except UsageError as error:
        raise UsageError(f"--threshold {text}: {str(error).partition(': ')[2]}") from None
    if isinstance(metric, str):
        raise UsageError(f"--threshold {text}: it must be a number, or a metric of labels, such as f1, balanced or mcc")
    if isinstance(metric, metrics.base.BinaryMetric):
        if not is_named:
            raise UsageError(f"--threshold {text}: which label is it about? --positive LABEL")
        parameters = {name: value for name, value in metric._get_params().items() if name != "cm"}
        metric = type(metric)(**{**parameters, "pos_val": positive})

    def tune(model: Any) -> Any:
        try:
            return TunedThresholdClassifier(model, copy.deepcopy(metric))
        except ValueError as error:
            raise UsageError(f"--threshold {text}: {error}") from None

    return tune


def _by_costs(text: str, text_format: str | None) -> Decide:
    costs: dict[Any, float] = {}
    try:
        for part in names_of(text):
            label, equals, cost = part.rpartition("=")
            if not equals:
                raise ValueError(f"{part} is no LABEL=COST")
            if (named := parse_positive(label, text_format)) in costs:
                raise ValueError(f"{label} stands there twice")
            costs[named] = float(cost)
        checked_costs(costs)
    except ValueError as error:
        raise UsageError(f"--costs {text}: {error}") from None
    return lambda model: CostSensitiveClassifier(model, costs)


def check_predicts(model: Any, place: Any) -> None:
    """Raise a CommandError unless the model of a place predicts labels or numbers row by row."""
    last = steps_of(model)[1]
    if not isinstance(last, base.Classifier | base.Regressor):
        raise CommandError(f"{place} holds a {type(last).__name__}, which predicts no label and no number of a row")


def decided_model(model: Any, decide: Decide, flag: str, abstain: float = 0.0) -> Any:
    """Return a model that has learned, with its last step deciding as a flag says, and no longer as it was learned.

    A CommandError says that it is no classifier with probabilities, or does not know a label that flags name.
    """
    last = steps_of(model)[1]
    if (asked := flag or f"--abstain {abstain:g}" * bool(abstain)) and not _has_probabilities(last):
        raise CommandError(f"{asked} chooses labels by their probabilities, and a {type(last).__name__} has none")
    if not flag:
        return model
    known = getattr(learner_of(last), "labels", None)
    costs = getattr(decide(learner_of(last)), "costs", {})
    if known and (unknown := [label for label in costs if label not in known]):
        raise CommandError(f"{flag}: the model has not learned the label {unknown[0]!r}, only {listed(known, 10)}")
    return _deciding_anew(model, decide)


def positive_of(text: str | None, model: Any, text_format: str | None) -> Any:
    """Return the positive label: the one that a flag names, or the one whose threshold or cost the model has; else None.

    A CommandError says that the model has not learned the label that the flag names, or predicts numbers.
    """
    known = getattr(learner_of(model), "labels", None)
    if text is not None:
        if isinstance(learner_of(model), base.Regressor):
            raise CommandError(f"--positive {text}: the model predicts numbers, no labels")
        positive = parse_positive(text, text_format)
        if known and positive not in known:
            raise CommandError(f"--positive {text}: the model has not learned the label {positive!r}, only {listed(known, 10)}")
        return positive
    last = steps_of(model)[1]
    while not isinstance(last, CostSensitiveClassifier | TunedThresholdClassifier):
        if not isinstance(last, ConformalClassifier):
            return None
        last = steps_of(last.classifier)[1]
    found = list(last.costs) if isinstance(last, CostSensitiveClassifier) else [getattr(last.metric, "pos_val", None)]
    return found[0] if len(found) == 1 and (not known or found[0] in known) else None


def _deciding_anew(model: Any, decide: Decide) -> Any:
    """Return a model with its classifier deciding anew; what says how sure it is stays round that."""
    if isinstance(model, compose.Pipeline):
        name, last = next(reversed(model.steps.items()))
        model.steps[name] = _deciding_anew(last, decide)
    elif isinstance(model, CostSensitiveClassifier | TunedThresholdClassifier):
        return _deciding_anew(model.classifier, decide)
    elif isinstance(model, ConformalClassifier):
        model.classifier = _deciding_anew(model.classifier, decide)
    else:
        return decide(model)
    return model


def _has_probabilities(last: Any) -> bool:
    return isinstance(last, base.Classifier) and gives_probabilities(last)


def answers_of(model: Any, probabilities: bool, explained: int | None) -> list[ExtraFields]:
    """Return what predictions of a model say beside the label, as flags ask for it, and what it is sure of.

    A CommandError says that the model has no probabilities, or explains nothing.
    """
    found = []
    last = steps_of(model)[1]
    if probabilities:
        if not _has_probabilities(last):
            raise CommandError(f"--probabilities: a {type(last).__name__} has none")
        found.append(PROBABILITIES)
    if (sure := calibrated_answer(model)) is not None:
        found.append(sure)
    if explained is not None:
        if not hasattr(learner_of(model), "explain_one"):
            raise CommandError(f"--explain: a {type(learner_of(model)).__name__} explains no decision")

        def why(model: Any, x: Any) -> list[Any]:
            parts = list(explain_one(model, x).contributions.items())[:explained]
            return [{printable(str(name)): float(f"{size:.6g}") for name, size in parts}]

        found.append(ExtraFields(("why",), why))
    return found
