"""The objects that flags stand for: models, metrics and labels, and how a model decides."""

from __future__ import annotations

import ast
import copy
import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from river import base, compose

from streamsvm.cli import CommandError, UsageError, escape_unprintable
from streamsvm.cli.arguments import as_usage_error
from streamsvm.core import budget
from streamsvm.core.checks import OnDrift
from streamsvm.explanations import explain_one
from streamsvm.files.messages import split_names
from streamsvm.files.river_metrics import metrics
from streamsvm.learners.bsca import BSCAClassifier, BSCARegressor
from streamsvm.learners.bsgd import BSGDClassifier, BSGDRegressor
from streamsvm.learners.conformal import ConformalClassifier, ConformalRegressor
from streamsvm.learners.costs import CostSensitiveClassifier, compute_threshold_costs, validate_costs
from streamsvm.learners.linear import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.learners.svm import SVMClassifier, SVMRegressor
from streamsvm.learners.thresholds import TunedThresholdClassifier
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.prediction_fields import PROBABILITIES, ComputedFields, make_conformal_fields
from streamsvm.stream.rows import (
    LabelRules,
    find_learner,
    format_names,
    has_probabilities,
    parse_label,
    parse_libsvm_label,
    split_pipeline,
)
from streamsvm.stream.scores.probability_scores import PROBABILITY_SCORES
from streamsvm.stream.scores.score_set import TABLES, ScoreSet
from streamsvm.stream.tables import TableEncoder, TableModel
from streamsvm.stream.tables.table_schema import TableSchema

#: The classifier and the regressor of each name.
LEARNERS: dict[str, tuple[Any, Any]] = {
    "auto": (SVMClassifier, SVMRegressor),
    "bsgd": (BSGDClassifier, BSGDRegressor),
    "bsca": (BSCAClassifier, BSCARegressor),
    "linear": (OnlineLinearSVC, OnlineLinearSVR),
}
# Standard deviations to which a scaled value is bounded where nothing else is asked for.
_DEVIATIONS = 8.0
_DEFAULT_BUDGET = 500
#: Detectors of river for any error.
_DETECTORS = "ADWIN", "KSWIN", "PageHinkley"
#: Errors of Python for a text that is not a literal.
_NO_LITERAL = ValueError, SyntaxError, TypeError, MemoryError, RecursionError
#: The strategies that keep a budget, by name.
_STRATEGIES = {name: getattr(budget, name) for name in budget.__all__ if name not in ("Refusal", "Strategy", "choose_strategy")}
#: Makes of a learner one that decides as flags say.
ModelWrapper = Callable[[Any], Any]


def make_model(
    text: str,
    regression: bool = False,
    scale: bool = False,
    scale_targets: bool = False,
    deviations: float | None = None,
    encoder: Mapping[str, Any] | None = None,
    schema: TableSchema | None = None,
    room: int | None = None,
    decide: ModelWrapper | None = None,
) -> Any:
    """Make the learner of ``NAME`` or ``NAME,KEY=VALUE,...``.

    With ``scale`` it scales its rows; if it cannot, or ``deviations`` are given, a `BoundedScaler` stands before it. The
    parameters ``encoder`` of a `TableEncoder` put that before the learner, and it scales the numbers; ``schema`` says how the
    table was read, and ``room`` the ``max_features`` of a resumed checkpoint. For a ``regression`` it is a regressor, with
    ``scale_targets`` within a `BoundedTargetScaler`. ``decide`` wraps it to decide otherwise. Raises UsageError if the learner or
    a parameter is unknown, or the learner refuses a value.
    """
    learner, settings = split_learner(text)
    kind = LEARNERS[learner][regression]
    valid = list(inspect.signature(kind).parameters)
    # With a fixed seed a run can be repeated to the byte.
    parameters: dict[str, Any] = {"seed": 0} if "seed" in valid else {}
    if "budget" in valid:
        parameters["budget"] = _DEFAULT_BUDGET
    within = "scaling" in valid and scale and deviations is None
    if "scaling" in valid:
        parameters["scaling"] = "auto" if within else None
    bound = _DEVIATIONS if deviations is None else deviations or None
    scaler = BoundedScaler(bound) if scale and not within else None
    with as_usage_error("--"):
        table = TableEncoder(**encoder, scaler=scaler) if encoder else None
    if room is not None and "max_features" in valid:
        parameters["max_features"] = room
    elif table is not None:  # so that no value of a category finds the model full
        parameters["max_features"] = table.compute_max_features(kind().max_features, 0 if schema is None else len(schema.columns))
    seen: set[str] = set()
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise UsageError(f"--learner {text}: {setting or 'nothing'} is no KEY=VALUE, and {learner} has {', '.join(valid)}")
        if name in seen:
            raise UsageError(f"--learner {text}: {name} stands there twice")
        seen.add(name)
        if name not in valid:
            near = difflib.get_close_matches(name, valid, 1, 0.75)
            advice = f"; is it {near[0]}?" if near else f": it has {', '.join(valid)}"
            raise UsageError(f"--learner {text}: {learner} has no parameter {name}{advice}")
        parameters[name] = _parse_value(text, value)
    with as_usage_error(f"--learner {text}: "):
        model = kind(**parameters)
    if regression and scale_targets and learner != "auto":
        model = BoundedTargetScaler(model, bound)
    if decide is not None:
        model = decide(model)
    if table is not None:
        return TableModel(table, model, schema=schema)
    return model if scaler is None else scaler | model


def split_learner(text: str) -> tuple[str, list[str]]:
    """Return the name of a learner and its settings, of ``NAME`` or ``NAME,KEY=VALUE,...``.

    Raises UsageError if there is no learner of that name.

    >>> split_learner("bsgd, budget=60, class_weight={0: 1.0, 1: 2.0}")
    ('bsgd', ['budget=60', 'class_weight={0: 1.0, 1: 2.0}'])
    """
    name, *settings = (part.strip() for part in _split_at_commas(text))
    if name not in LEARNERS:
        raise UsageError(f"--learner {text}: it begins with the name of a learner: {', '.join(LEARNERS)}")
    return name, settings


def _split_at_commas(text: str) -> list[str]:
    """Split a text at its commas, but for those in brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
            if letter == "," and depth <= 0:
                parts.append("")
                continue
        parts[-1] += letter
    return parts


def _parse_value(learner: str, text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except _NO_LITERAL:
        call = _parse_call(text)
    if call is None or call[0] not in _STRATEGIES:
        return text
    name, positional, named = call
    with as_usage_error(f"--learner {learner}: ", (TypeError, ValueError)):
        return _STRATEGIES[name](*positional, **named)


def _parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    """Split ``NAME`` or ``NAME(1, key="value")``, with literals only (nothing is run); None if the text is neither."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, [], {}
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            return None
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
        return node.func.id, [ast.literal_eval(value) for value in node.args], named
    except _NO_LITERAL:
        return None


def make_metrics(text: str, window: int, positive: Any, regression: bool = False) -> list[Any]:
    """Make the metrics of ``NAME,NAME(parameter=value),...``, with commas between them.

    Names of `PROBABILITY_SCORES` and `TABLES` without brackets stay names. Others become metrics of river. Raises UsageError if
    a metric is unknown or for the other kind of models, or `ScoreSet` refuses it.
    """
    found_metrics = [_metric_of(part.strip(), regression) for part in _split_at_commas(text)]
    with as_usage_error(f"--metric {text}: ", (Exception,)):  # river takes parameters as they are, until it computes with them
        ScoreSet(found_metrics, window, positive, regression=regression)
    return found_metrics


def _metric_of(text: str, regression: bool) -> Any:
    if text in PROBABILITY_SCORES.keys() | TABLES.keys() and not regression:
        return text
    call = _parse_call(text)
    kind = None if call is None else getattr(metrics, call[0], None)
    kinds: list[Any] = [metrics.base.ClassificationMetric, metrics.base.RegressionMetric]
    wanted, other = kinds[regression], kinds[not regression]
    if call is None or not (inspect.isclass(kind) and issubclass(kind, wanted)):
        models = "regressors; try MAE, RMSE or R2" if regression else "classifiers; try Accuracy, F1, 'FBeta(beta=2)' or ROCAUC"
        near = [] if regression else difflib.get_close_matches(text, PROBABILITY_SCORES, 1, 0.75)
        raise UsageError(
            f"--metric {text}: there is no such metric for {models}"
            + (f"; {text} goes with --regression" if not regression and inspect.isclass(kind) and issubclass(kind, other) else "")
            + (f". Is it {near[0]}?" if near else "")
        )
    with as_usage_error(f"--metric {text}: ", (Exception,)):  # as above
        return kind(*call[1], **call[2])


def make_drift(text: str | None, on_drift: OnDrift | None, regression: bool = False) -> DriftWatch | None:
    """Make the drift detector of ``NAME`` or ``NAME(parameter=value)``, or None; raise a UsageError if it is unknown."""
    if text is None:
        if on_drift is not None:
            raise UsageError(f"--on-drift {on_drift} is about drift, and there is no --drift DETECTOR that looks for it")
        return None
    from river import drift  # noqa: PLC0415 - takes a second, and few streams need it

    call = _parse_call(text)
    detectors = {name: getattr(drift, name) for name in _DETECTORS}
    detectors |= {} if regression else {name: getattr(drift.binary, name) for name in drift.binary.__all__}
    if call is None or call[0] not in detectors:
        hint = "; it is for errors of labels" if regression and call is not None and call[0] in drift.binary.__all__ else ""
        raise UsageError(f"--drift {text}: there is no such detector{hint}. Known are {', '.join(detectors)}")
    kind = detectors[call[0]]
    named = {"seed": 0} if "seed" in inspect.signature(kind).parameters else {}
    with as_usage_error(f"--drift {text}: ", (TypeError, ValueError)):
        return DriftWatch(kind(*call[1], **(named | call[2])), on_drift or "count")


def parse_classes(text: str | None, text_format: str | None) -> list[Any] | None:
    """The labels of ``--labels-are``, with commas between them, each parsed as the labels of the stream are; None if not given.

    Raises UsageError if they are fewer than two, or two are equal.

    >>> parse_classes("ham,spam,7", "csv")
    ['ham', 'spam', 7]
    """
    if text is None:
        return None
    with as_usage_error(f"--labels-are {text}: "):
        return LabelRules([parse_positive(label.strip(), text_format) for label in text.split(",")]).classes


def parse_positive(text: str | None, text_format: str | None) -> Any:
    """Parse the label of ``--positive`` as the labels of the stream; in quotes it is always text."""
    if text is None:
        return None
    if text[:1] in ("'", '"'):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
    return parse_libsvm_label(text) if text_format == "libsvm" else parse_label(text)


class DecisionFlags(NamedTuple):
    """The flags about which label is predicted, ``--threshold``, ``--costs``, ``--positive``, and about an ``--interval``."""

    threshold: str | None
    costs: str | None
    positive: str | None
    interval: float | None = None

    @property
    def flag(self) -> str:
        """The flag that says which label is predicted, with its value; "" if none does."""
        if self.threshold is not None:
            return f"--threshold {self.threshold}"
        return "" if self.costs is None else f"--costs {self.costs}"

    def make_wrapper(self, text_format: str | None, regression: bool, learns: bool) -> ModelWrapper:
        """Return a function that wraps a learner, so that it decides as the flags say.

        Only a model that ``learns`` can tune a threshold, or learn how wide an interval must be. Raises a UsageError if flags
        exclude each other, or the value of one is invalid.
        """
        if self.threshold is not None and self.costs is not None:
            raise UsageError("--threshold and --costs both say which label is predicted: leave one out")
        if regression and self.flag:
            raise UsageError(f"{self.flag.split()[0]} is about labels, and a number is predicted: leave it out")
        positive = parse_positive(self.positive, text_format)
        decides: list[ModelWrapper] = []
        if self.threshold is not None:
            decides.append(_by_threshold(self.threshold, positive, self.positive is not None, learns))
        if self.costs is not None:
            decides.append(_by_costs(self.costs, text_format))
        if (level := self.interval) is not None:
            decides.append(lambda model: (ConformalRegressor if regression else ConformalClassifier)(model, level))

        def decide(model: Any) -> Any:
            for wrap in decides:
                model = wrap(model)
            return model

        return decide


def _by_threshold(text: str, positive: Any, is_named: bool, learns: bool) -> ModelWrapper:
    try:
        number = float(text)
    except ValueError:
        number = None
    if number is not None:
        if not is_named:
            raise UsageError(
                f"--threshold {text} is the probability of one label from which on it is predicted: --positive LABEL"
            )
        with as_usage_error(f"--threshold {text}: "):
            costs = compute_threshold_costs(positive, number)
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
        with as_usage_error(f"--threshold {text}: "):
            return TunedThresholdClassifier(model, copy.deepcopy(metric))

    return tune


def _by_costs(text: str, text_format: str | None) -> ModelWrapper:
    costs: dict[Any, float] = {}
    with as_usage_error(f"--costs {text}: "):
        for part in split_names(text):
            label, equals, cost = part.rpartition("=")
            if not equals:
                raise ValueError(f"{part} is no LABEL=COST")
            if (named := parse_positive(label, text_format)) in costs:
                raise ValueError(f"{label} stands there twice")
            costs[named] = float(cost)
        validate_costs(costs)
    return lambda model: CostSensitiveClassifier(model, costs)


def check_predicts(model: Any, place: Any) -> None:
    """Raise a CommandError unless the model of a place predicts labels or numbers row by row."""
    last = split_pipeline(model)[1]
    if not isinstance(last, base.Classifier | base.Regressor):
        raise CommandError(f"{place} holds a {type(last).__name__}, which predicts no label and no number of a row")


def apply_decision(model: Any, decide: ModelWrapper, flag: str, abstain: float = 0.0) -> Any:
    """Let the last step of a model decide as a flag says, and return the model. Raises CommandError if it cannot."""
    last = split_pipeline(model)[1]
    if (asked := flag or f"--abstain {abstain:g}" * bool(abstain)) and not has_probabilities(last):
        raise CommandError(f"{asked} chooses labels by their probabilities, and a {type(last).__name__} has none")
    if not flag:
        return model
    labels = getattr(find_learner(last), "labels", None)
    costs = getattr(decide(find_learner(last)), "costs", {})
    if labels and (unknown := [label for label in costs if label not in labels]):
        raise CommandError(f"{flag}: the model has not learned the label {unknown[0]!r}, only {format_names(labels, 10)}")
    return _replace_decision(model, decide)


def find_positive_label(text: str | None, model: Any, text_format: str | None) -> Any:
    """Return the positive label: that of a flag, or whose threshold or cost the model has; else None. CommandError if unknown."""
    labels = getattr(find_learner(model), "labels", None)
    if text is not None:
        if isinstance(find_learner(model), base.Regressor):
            raise CommandError(f"--positive {text}: the model predicts numbers, no labels")
        positive = parse_positive(text, text_format)
        if labels and positive not in labels:
            raise CommandError(
                f"--positive {text}: the model has not learned the label {positive!r}, only {format_names(labels, 10)}"
            )
        return positive
    last = split_pipeline(model)[1]
    while not isinstance(last, CostSensitiveClassifier | TunedThresholdClassifier):
        if not isinstance(last, ConformalClassifier):
            return None
        last = split_pipeline(last.classifier)[1]
    candidates = list(last.costs) if isinstance(last, CostSensitiveClassifier) else [getattr(last.metric, "pos_val", None)]
    return candidates[0] if len(candidates) == 1 and (not labels or candidates[0] in labels) else None


def _replace_decision(model: Any, decide: ModelWrapper) -> Any:
    if isinstance(model, compose.Pipeline):
        name, last = next(reversed(model.steps.items()))
        model.steps[name] = _replace_decision(last, decide)
    elif isinstance(model, CostSensitiveClassifier | TunedThresholdClassifier):
        return _replace_decision(model.classifier, decide)
    elif isinstance(model, ConformalClassifier):
        model.classifier = _replace_decision(model.classifier, decide)
    else:
        return decide(model)
    return model


def make_extra_fields(model: Any, probabilities: bool, explained: int | None) -> list[ComputedFields]:
    """Return what predictions say beside the label, as flags ask for it; a CommandError where the model has no such thing."""
    fields = []
    last = split_pipeline(model)[1]
    if probabilities:
        if not has_probabilities(last):
            raise CommandError(f"--probabilities: a {type(last).__name__} has none")
        fields.append(PROBABILITIES)
    if (sure := make_conformal_fields(model)) is not None:
        fields.append(sure)
    if explained is not None:
        if not hasattr(find_learner(model), "explain_one"):
            raise CommandError(f"--explain: a {type(find_learner(model)).__name__} explains no decision")

        def why(model: Any, x: Any) -> list[Any]:
            parts = list(explain_one(model, x).contributions.items())[:explained]
            return [{escape_unprintable(str(name)): float(f"{size:.6g}") for name, size in parts}]

        fields.append(ComputedFields(("why",), why))
    return fields
