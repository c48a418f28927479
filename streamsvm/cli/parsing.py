"""Converts the values of flags to models, metrics, labels and decision rules."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from river import base, compose

from streamsvm.cli import CommandError, UsageError, escape_unprintable
from streamsvm.cli.arguments import as_usage_error
from streamsvm.core import budget
from streamsvm.core.checks import OnDrift
from streamsvm.explanations import explain_one
from streamsvm.files.messages import format_names, split_names, suggest_name
from streamsvm.files.river_metrics import metrics
from streamsvm.learners.bsca import BSCAClassifier, BSCARegressor
from streamsvm.learners.bsgd import BSGDClassifier, BSGDRegressor
from streamsvm.learners.conformal import ConformalClassifier
from streamsvm.learners.costs import CostSensitiveClassifier, compute_threshold_costs, validate_costs
from streamsvm.learners.keyed import KeyedClassifier, KeyedRegressor
from streamsvm.learners.linear import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.learners.svm import SVMClassifier, SVMRegressor
from streamsvm.learners.thresholds import TunedThresholdClassifier
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.prediction_fields import PROBABILITIES, ComputedFields, make_conformal_fields
from streamsvm.stream.rows import (
    LabelRules,
    detects_anomalies,
    find_learner,
    has_probabilities,
    parse_label,
    parse_libsvm_label,
    split_pipeline,
)
from streamsvm.stream.scores.probability_scores import PROBABILITY_SCORES
from streamsvm.stream.scores.score_set import TABLES, ScoreSet

#: The classifier and the regressor for each name of a learner.
LEARNERS: dict[str, tuple[Any, Any]] = {
    "auto": (SVMClassifier, SVMRegressor),
    "bsgd": (BSGDClassifier, BSGDRegressor),
    "bsca": (BSCAClassifier, BSCARegressor),
    "linear": (OnlineLinearSVC, OnlineLinearSVR),
}
#: The name of the learner that needs no labels.
ANOMALY = "anomaly"
#: Drift detectors of river that accept errors of regressions, too.
_DETECTORS = "ADWIN", "KSWIN", "PageHinkley"
#: Errors of `ast.literal_eval` for a text that is not a literal.
_NOT_LITERAL_ERRORS = ValueError, SyntaxError, TypeError, MemoryError, RecursionError
#: Budget maintenance strategies by name.
_STRATEGIES = {name: getattr(budget, name) for name in budget.__all__ if name not in ("Refusal", "Strategy", "choose_strategy")}
#: Wraps a learner so that it chooses labels as the flags say.
ModelWrapper = Callable[[Any], Any]


def parse_settings(flag: str, owner: str, settings: Iterable[str], valid_names: Sequence[str]) -> dict[str, Any]:
    """Parse the ``KEY=VALUE`` settings of a learner, or another ``owner``, to a dict of parameters. Raise a UsageError, which
    quotes the ``flag`` with its value, if a key is not in ``valid_names`` or given twice.
    """
    parameters: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            names = ", ".join(valid_names)
            raise UsageError(f"{flag}: {setting or 'nothing'} is not KEY=VALUE, and {owner} has {names}")
        if name in parameters:
            raise UsageError(f"{flag}: {name} is given twice")
        if name not in valid_names:
            advice = suggest_name(name, valid_names) or f": it has {', '.join(valid_names)}"
            raise UsageError(f"{flag}: {owner} has no parameter {name}{advice}")
        parameters[name] = _parse_value(flag, value)
    return parameters


def split_learner(text: str) -> tuple[str, list[str]]:
    """Split the value of ``--learner``, ``NAME`` or ``NAME,KEY=VALUE,...``, into the name of a learner and a list of its
    settings. Raise a UsageError if the name is unknown.

    >>> split_learner("bsgd, budget=60, class_weight={0: 1.0, 1: 2.0}")
    ('bsgd', ['budget=60', 'class_weight={0: 1.0, 1: 2.0}'])
    """
    name, *settings = split_settings(text)
    if name not in (names := [*LEARNERS, ANOMALY]):
        raise UsageError(f"--learner {text}: it begins with the name of a learner: {', '.join(names)}")
    return name, settings


def split_settings(text: str) -> list[str]:
    """Split a text at its commas, except those within brackets or quotes, into a list of texts without blanks around them."""
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
    return [part.strip() for part in parts]


def _parse_value(flag: str, text: str) -> Any:
    """Parse the text of a parameter's value in ``--learner NAME,KEY=VALUE``: a Python literal, or a budget strategy with
    parameters such as ``merge(nearest=3)``. Return any other text unchanged.
    """
    try:
        return ast.literal_eval(text)
    except _NOT_LITERAL_ERRORS:
        call = _parse_call(text)
    if call is None or call[0] not in _STRATEGIES:
        return text
    name, arguments, keywords = call
    with as_usage_error(f"{flag}: ", (TypeError, ValueError)):
        return _STRATEGIES[name](*arguments, **keywords)


def _parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    """Parse ``NAME`` or ``NAME(1, key="value")`` to name, list of arguments and dict of keywords; None for any other text."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, [], {}
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            return None
        keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
        return node.func.id, [ast.literal_eval(value) for value in node.args], keywords
    except _NOT_LITERAL_ERRORS:
        return None


def make_metrics(
    text: str, window: int, positive: Any, regression: bool = False, is_optional: bool = False
) -> tuple[list[Any], Any]:
    """Create the metrics of ``--metric NAME,NAME(parameter=value),...``. ``window`` is the number of rows of windowed values, and
    ``positive`` the positive label of binary metrics. Return the metrics and the positive label; with ``is_optional``, this is
    None if no metric has one.

    Names of `PROBABILITY_SCORES` and `TABLES` without brackets stay names; others become metrics of river. Raises UsageError if
    a metric is unknown or for the other kind of models, or `ScoreSet` refuses it.
    """
    parsed_metrics = [_make_metric(part, regression) for part in split_settings(text)]
    with as_usage_error(f"--metric {text}: ", (Exception,)):  # river checks parameters only when it computes with them
        scores = ScoreSet(parsed_metrics, window, None if is_optional else positive, regression=regression)
    return parsed_metrics, positive if scores.accepts_positive_label else None


def _make_metric(text: str, regression: bool) -> Any:
    """Create the metric for ``NAME`` or ``NAME(parameter=value)``: a river metric, or the name itself for one that river lacks.
    Raise a UsageError if no metric of classifiers (with ``regression``, of regressors) has the name.
    """
    if text in PROBABILITY_SCORES.keys() | TABLES.keys() and not regression:
        return text
    call = _parse_call(text)
    metric_class = None if call is None else getattr(metrics, call[0], None)
    bases: list[Any] = [metrics.base.ClassificationMetric, metrics.base.RegressionMetric]
    expected_base, other_base = bases[regression], bases[not regression]
    if call is None or not (inspect.isclass(metric_class) and issubclass(metric_class, expected_base)):
        is_regression_metric = inspect.isclass(metric_class) and issubclass(metric_class, other_base)
        models = "regressors; try MAE, RMSE or R2" if regression else "classifiers; try Accuracy, F1, 'FBeta(beta=2)' or ROCAUC"
        own_names = () if regression else (*PROBABILITY_SCORES, *TABLES)
        names = [name for name, kind in vars(metrics).items() if inspect.isclass(kind) and issubclass(kind, expected_base)]
        hint = f"; {text} goes with --regression" if not regression and is_regression_metric else ""
        hint += suggest_name(text, (*own_names, *names))
        raise UsageError(f"--metric {text}: there is no such metric for {models}{hint}")
    with as_usage_error(f"--metric {text}: ", (Exception,)):  # as above
        return metric_class(*call[1], **call[2])


def make_drift(text: str | None, on_drift: OnDrift | None, regression: bool = False) -> DriftWatch | None:
    """Create the concept drift detector of ``--drift``, whose value ``text`` is such as ``KSWIN(alpha=.01)``. ``on_drift`` names
    the reaction to a drift, such as ``"reset"``. Return None if ``text`` is missing. Raise a UsageError if the detector is
    unknown.
    """
    if text is None or text == "none":
        if on_drift is not None:
            raise UsageError(f"--on-drift {on_drift} is about drift, and no --drift DETECTOR detects it")
        return None
    from river import drift  # noqa: PLC0415 - the import takes a second, and few runs need it

    call = _parse_call(text)
    detectors = {name: getattr(drift, name) for name in _DETECTORS}
    detectors |= {} if regression else {name: getattr(drift.binary, name) for name in drift.binary.__all__}
    if call is None or call[0] not in detectors:
        hint = "; it is for errors of labels" if regression and call is not None and call[0] in drift.binary.__all__ else ""
        raise UsageError(f"--drift {text}: there is no such detector{hint}. Known are {', '.join(detectors)}")
    detector_class = detectors[call[0]]
    defaults = {"seed": 0} if "seed" in inspect.signature(detector_class).parameters else {}
    with as_usage_error(f"--drift {text}: ", (Exception,)):
        return DriftWatch(detector_class(*call[1], **(defaults | call[2])), on_drift or "count")


def parse_classes(text: str | None, text_format: str | None) -> list[Any] | None:
    """Split the value of ``--labels-are`` at commas, and return the list of labels, with numbers and texts told apart as in a
    source of the format ``text_format``. Return None if the flag is missing.

    Raises UsageError if there are fewer than two, or two are equal.

    >>> parse_classes("ham,spam,7", "csv")
    ['ham', 'spam', 7]
    """
    if text is None:
        return None
    with as_usage_error(f"--labels-are {text}: "):
        return LabelRules([parse_positive(label.strip(), text_format) for label in text.split(",")]).classes


def parse_positive(text: str | None, text_format: str | None) -> Any:
    """Parse the label of ``--positive`` like labels in the stream; in quotes, it is always text. Return None for None."""
    if text is None:
        return None
    if text[:1] in ("'", '"'):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
    return parse_libsvm_label(text) if text_format == "libsvm" else parse_label(text)


class DecisionFlags(NamedTuple):
    """The flags that determine which label is predicted, and the format of the rows whose labels they name."""

    threshold: str | None
    costs: str | None
    positive: str | None
    text_format: str | None = None

    @property
    def flag(self) -> str:
        """The flag ``--threshold`` or ``--costs`` with its value, for messages; "" if neither was given."""
        if self.threshold is not None:
            return f"--threshold {self.threshold}"
        return "" if self.costs is None else f"--costs {self.costs}"

    def make_wrapper(self, regression: bool = False, learns: bool = False) -> ModelWrapper:
        """Return a function that wraps a model, so that it predicts labels by ``--threshold`` or ``--costs``, if one is given.

        Only a command that ``learns`` can tune a threshold. Raises a UsageError if flags contradict each other, or a value is
        invalid.
        """
        if self.threshold is not None and self.costs is not None:
            raise UsageError("--threshold and --costs both say which label is predicted: leave one out")
        if not (learns or self.flag) and self.positive is not None:
            raise UsageError(f"--positive {self.positive} is the label of --threshold, which is missing: leave it out")
        if regression and self.flag:
            raise UsageError(f"{self.flag.split()[0]} is about labels, and a number is predicted: leave it out")
        positive = parse_positive(self.positive, self.text_format)
        if self.threshold is not None:
            return _make_threshold_wrapper(self.threshold, positive, self.positive is not None, learns)
        if self.costs is not None:
            return _make_costs_wrapper(self.costs, self.text_format)
        return lambda model: model


def add_key_models(text: str, model: Any) -> Any:
    """Return a ``model`` with small models of each key. ``text`` is the value of ``--key-models``: the name of the key and
    settings, such as ``device,max_keys=100000``.
    """
    key, *settings = split_names(text) or [""]
    if not key:
        raise UsageError(f"--key-models {text}: the name of one key, then max_keys=N and idle=N, such as device,max_keys=100000")
    parameters = parse_settings(f"--key-models {text}", "a key", settings, ["max_keys", "idle"])
    with as_usage_error(f"--key-models {text}: "):
        return (KeyedRegressor if isinstance(model, base.Regressor) else KeyedClassifier)(model, key, **parameters)


def _make_threshold_wrapper(text: str, positive: Any, is_named: bool, learns: bool) -> ModelWrapper:
    """Return a function that wraps a classifier as ``--threshold`` requests. ``text`` is the least probability for predicting
    the ``positive`` label, or a metric for which it is tuned while the command ``learns``. ``is_named`` is whether ``--positive``
    was given; UsageError if a label is necessary.
    """
    try:
        number = float(text)
    except ValueError:
        number = None
    if number is not None:
        if not is_named:
            raise UsageError(
                f"--threshold {text} is the minimum probability of one label for predicting it: name the label, --positive LABEL"
            )
        with as_usage_error(f"--threshold {text}: "):
            costs = compute_threshold_costs(positive, number)
        return lambda model: CostSensitiveClassifier(model, costs)
    if not learns:
        raise UsageError(f"--threshold {text}: it is tuned while rows are learned; give a number here, or --threshold to learn")
    names = {name.lower(): name for name in metrics.__all__} | {"balanced": "BalancedAccuracy"}
    try:
        [metric], _ = make_metrics(names.get(text.lower(), text), 1000, None)
    except UsageError as error:
        raise UsageError(f"--threshold {text}: {str(error).partition(': ')[2]}") from None
    if isinstance(metric, str):
        raise UsageError(f"--threshold {text}: it must be a number, or a metric of labels, such as f1, balanced or mcc")
    if isinstance(metric, metrics.base.BinaryMetric):
        if not is_named:
            raise UsageError(f"--threshold {text}: which label is it about? --positive LABEL")
        parameters = {name: value for name, value in metric._get_params().items() if name != "cm"}
        metric = type(metric)(**{**parameters, "pos_val": positive})

    def wrap_model(model: Any) -> Any:
        with as_usage_error(f"--threshold {text}: "):
            return TunedThresholdClassifier(model, copy.deepcopy(metric))

    return wrap_model


def _make_costs_wrapper(text: str, text_format: str | None) -> ModelWrapper:
    """Return a function that wraps a classifier to predict the label with the least expected cost. ``text`` is the value of
    ``--costs``: the costs of missing each label, such as ``fraud=20``.
    """
    costs: dict[Any, float] = {}
    with as_usage_error(f"--costs {text}: "):
        for part in split_names(text):
            label, equals, cost = part.rpartition("=")
            if not equals:
                raise ValueError(f"{part} is not LABEL=COST")
            if (parsed_label := parse_positive(label, text_format)) in costs:
                raise ValueError(f"{label} is given twice")
            costs[parsed_label] = float(cost)
        validate_costs(costs)
    return lambda model: CostSensitiveClassifier(model, costs)


def check_predicts(model: Any, place: Any, accepts_detectors: bool = False) -> None:
    """Raise a CommandError if a model, loaded from the file or folder ``place``, is neither a classifier nor a regressor. With
    ``accepts_detectors``, it may be an anomaly detector, too.
    """
    last = split_pipeline(model)[1]
    if not (isinstance(last, base.Classifier | base.Regressor) or (accepts_detectors and detects_anomalies(last))):
        raise CommandError(f"{place} holds a {type(last).__name__}, which does not predict a label or a number for each row")


def _check_has_probabilities(model: Any, reason: str) -> None:
    """Raise a CommandError, which begins with a ``reason`` for probabilities of labels, if a model has none."""
    if not has_probabilities(split_pipeline(model)[1]):
        learner = find_learner(model)
        problem = "predicts numbers" if isinstance(learner, base.Regressor) else "has none"
        raise CommandError(f"{reason}, and the model, {type(learner).__name__}, {problem}: leave it out")


def apply_decision(model: Any, decision: DecisionFlags, abstain: float = 0.0) -> Any:
    """Wrap the classifier in a loaded model, so that it predicts as the flags of a ``decision`` request, and return the model.
    Raise a CommandError if they or ``abstain``, the least probability of a prediction, need probabilities that the model lacks.

    Without a flag, return the model unchanged. Raise a CommandError, too, if a flag names a label that the model has not learned.
    """
    last, flag, wrap_decision = split_pipeline(model)[1], decision.flag, decision.make_wrapper()
    if requested := flag or f"--abstain {abstain:g}" * bool(abstain):
        _check_has_probabilities(model, f"{requested} chooses labels by their probabilities")
    if not flag:
        return model
    labels = getattr(find_learner(last), "labels", None)
    costs = getattr(wrap_decision(find_learner(last)), "costs", {})
    if labels and (unknown := [label for label in costs if label not in labels]):
        hint = suggest_name(unknown[0], labels)
        raise CommandError(f"{flag}: the model has not learned the label {unknown[0]!r}, only {format_names(labels, 10)}{hint}")
    return _replace_decision(model, wrap_decision)


def find_positive_label(text: str | None, model: Any, text_format: str | None) -> Any:
    """Return the label that metrics such as F1 count as positive: ``text``, the value of ``--positive``, if given; otherwise the
    one label to which the model's own threshold or costs apply. Return None if the model has none, or several.

    Raises CommandError if the model has not learned the label of ``--positive``, or is a regressor.
    """
    labels = getattr(find_learner(model), "labels", None)
    if text is not None:
        if isinstance(find_learner(model), base.Regressor | base.AnomalyDetector):
            raise CommandError(f"--positive {text}: the model predicts numbers, no labels")
        positive = parse_positive(text, text_format)
        if labels and positive not in labels:
            names = f"{format_names(labels, 10)}{suggest_name(positive, labels)}"
            raise CommandError(f"--positive: the model has not learned the label {positive!r}, only {names}")
        return positive
    last = split_pipeline(model)[1]
    while not isinstance(last, CostSensitiveClassifier | TunedThresholdClassifier):
        if not isinstance(last, ConformalClassifier):
            return None
        last = split_pipeline(last.classifier)[1]
    candidates = list(last.costs) if isinstance(last, CostSensitiveClassifier) else [getattr(last.metric, "pos_val", None)]
    return candidates[0] if len(candidates) == 1 and (not labels or candidates[0] in labels) else None


def _replace_decision(model: Any, wrap_decision: ModelWrapper) -> Any:
    """Wrap the learner inside a model by the function ``wrap_decision``, and return the model. A threshold or costs that the
    model already has are replaced.
    """
    if isinstance(model, compose.Pipeline):
        name, last = next(reversed(model.steps.items()))
        model.steps[name] = _replace_decision(last, wrap_decision)
    elif isinstance(model, CostSensitiveClassifier | TunedThresholdClassifier):
        return _replace_decision(model.classifier, wrap_decision)
    elif isinstance(model, ConformalClassifier):
        model.classifier = _replace_decision(model.classifier, wrap_decision)
    else:
        return wrap_decision(model)
    return model


def make_extra_fields(model: Any, probabilities: bool, n_columns: int | None) -> list[ComputedFields]:
    """Return objects that compute additional fields of each prediction from the model and a row: ``probabilities``,
    contributions of the ``n_columns`` most important columns (None: without), and intervals or label sets if the model is
    conformal. Raise a CommandError if the model cannot compute them.
    """
    fields = []
    if probabilities:
        _check_has_probabilities(model, "--probabilities are those of labels")
        fields.append(PROBABILITIES)
    if (conformal := make_conformal_fields(model)) is not None:
        fields.append(conformal)
    if n_columns is not None:
        if not hasattr(find_learner(model), "explain_one"):
            raise CommandError(f"--explain: {type(find_learner(model)).__name__} cannot explain its decisions")

        def compute_why(model: Any, x: Any) -> list[Any]:
            parts = list(explain_one(model, x).contributions.items())[:n_columns]
            return [{escape_unprintable(str(name)): float(f"{size:.6g}") for name, size in parts}]

        fields.append(ComputedFields(("why",), compute_why))
    return fields
