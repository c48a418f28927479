"""Jobs: the flags of commands that read a stream, as one typed object that is validated as a whole."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from river import base

from streamsvm.cli import CommandError, UsageError
from streamsvm.cli.arguments import Reporter, as_command_error, as_usage_error
from streamsvm.cli.outputs import check_outputs
from streamsvm.cli.parsing import (
    ANOMALY,
    LEARNERS,
    DecisionFlags,
    add_key_models,
    make_drift,
    make_metrics,
    parse_classes,
    parse_positive,
    parse_settings,
    split_learner,
    split_settings,
)
from streamsvm.cli.tables import parse_table_flags, read_saved_label
from streamsvm.core.checks import OnDrift
from streamsvm.files.messages import format_names, guess_label_column
from streamsvm.learners.conformal import ConformalClassifier, ConformalRegressor
from streamsvm.learners.one_class import OneClassBSGD
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.stream import Checkpoint, DelayedLabels, StreamError
from streamsvm.stream.checkpoint import list_checkpoints
from streamsvm.stream.file_names import detect_format, format_source_name
from streamsvm.stream.refusals import describe_on_error_problem
from streamsvm.stream.rows import detects_anomalies, find_learner, get_learned_columns
from streamsvm.stream.schema.schema_inference import read_column_names
from streamsvm.stream.schema.source_sample import sample_files
from streamsvm.stream.sinks import parse_rotation
from streamsvm.stream.tables import TableEncoder, TableModel
from streamsvm.stream.tables.quantities import parse_duration_or_unit
from streamsvm.stream.tables.table_schema import TableSchema

#: Flags about the model, and all flags of `learn` that checkpoints save, with the types of their values.
_MODEL_FLAGS = ("learner", "scale", "bound", "threshold", "costs", "interval", "key_models")
_KEPT_FLAGS: dict[str, type] = dict.fromkeys((*_MODEL_FLAGS, "positive", "labels_are", "metric", "drift", "on_drift"), str)
_KEPT_FLAGS |= {"bound": float, "interval": float, "window": int}
#: The flag whose value in a checkpoint a new value of another flag replaces.
_REPLACED_FLAGS = {"threshold": "costs", "costs": "threshold", "drift": "on_drift"}
_DEFAULT_DEVIATIONS, _DEFAULT_BUDGET = 8.0, 500  # standard deviations at which scaled values are clipped; support vectors


class LabelStream(NamedTuple):
    """The stream of ``--labels``, whose labels arrive later than their rows."""

    place: str
    format: str | None
    key: str
    time: str | None
    buffer: DelayedLabels
    """The buffer of rows and labels that are not joined yet."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns that join rows with this separate stream of labels, and are not features: the key, and the
        event time if there is one.
        """
        return [name for name in (self.key, self.time) if name is not None]


@dataclass(frozen=True, kw_only=True)
class StreamJob:
    """The flags of a command that reads a stream. The defaults are for a command that only reads a stream to its end."""

    source: str | list[str]
    """A path, ``-``, a URL, or several files."""
    format: str | None = None
    label: str | None = None
    labels: str | None = None
    weight: str | None = None
    start: str | None = None
    stop_at_end: bool = True
    to: str | None = None
    rotate: str | None = None
    passthrough: list[str] = field(default_factory=list)
    overwrite: bool = False
    on_error: str = "skip"
    error_limit: int | None = None
    error_share: float = 0.5
    on_schema: str = "warn"
    columns: list[str] | None = None
    missing: str | None = None
    cycles: str | None = None
    when_missing: str | None = None
    decimal: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    threshold: str | None = None
    costs: str | None = None
    positive: str | None = None
    interval: float | None = None
    key_models: str | None = None
    checkpoint: Path | str | None = None
    checkpoint_every: Mapping[str, Any] = field(default_factory=dict)
    max_rows: int | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_names: list[str] = field(default_factory=list)
    trusted: bool = False
    quiet: bool = False
    log_format: str = "text"

    def __post_init__(self) -> None:
        """Validate the flags. No stream is opened."""
        self.check_flags()

    @cached_property
    def text_format(self) -> str | None:
        """The format of the source's files, such as "csv"; None for a URL."""
        is_of_labels = self.labels is not None and "://" in str(self.source)
        return detect_format(self.source, None if is_of_labels else self.format)

    @cached_property
    def source_name(self) -> str:
        """The path or URL of the source for messages, or a short description of several files."""
        return format_source_name(self.source)

    @cached_property
    def reporter(self) -> Reporter:
        """An object that reports the progress of the command on standard error, as the flags request."""
        return Reporter(self.quiet, self.log_format == "json")

    @cached_property
    def table_flags(self) -> dict[str, Any]:
        """The options of reading a table (kinds of columns, missing values, delimiter, ...) that flags set, by name."""
        return parse_table_flags(self)

    @property
    def row_label(self) -> str | None:
        """The name of the label's column in the rows; None if labels come from ``--labels``."""
        return self.label if self.labels is None else None

    @property
    def loop_limits(self) -> dict[str, Any]:
        """Keyword arguments of the learning loop: when to write checkpoints, and how many invalid rows stop the run."""
        limits = {name: getattr(self, name) for name in ("error_limit", "error_share", "on_schema")}
        return {**limits, **self.checkpoint_every}

    @property
    def decision(self) -> DecisionFlags:
        """The flags ``--threshold``, ``--costs`` and ``--positive``, which change predictions."""
        return DecisionFlags(self.threshold, self.costs, self.positive, self.text_format)

    @cached_property
    def label_stream(self) -> LabelStream | None:
        """The parsed flag ``--labels``, a separate stream of labels; None without it: rows then contain their labels."""
        return None if self.labels is None else _parse_label_stream(self.labels, self)

    @property
    def non_feature_columns(self) -> list[str]:
        """The names of the columns, besides the label, that are not features: join key, event time and sample weight."""
        keys = [] if self.label_stream is None else self.label_stream.columns
        return keys if self.weight is None else [*keys, self.weight]

    def check_flags(self) -> None:
        """Raise a UsageError if flags of the stream contradict each other, or outputs would overwrite inputs."""
        check_outputs(self, None if self.labels is None else split_labels_flag(self.labels)[0])
        if problem := describe_on_error_problem(self.on_error):
            raise UsageError(f"--on-error {problem}")
        if self.rotate is not None and all(p in (None, "-", "stop", "skip") or "://" in p for p in (self.to, self.on_error)):
            raise UsageError(f"--rotate {self.rotate} is about files of predictions and refused rows: give --to FILE, too")
        with as_usage_error("--"):
            parse_rotation(self.rotate or "DAY")
        if len(set(self.passthrough)) < len(self.passthrough):
            raise UsageError(f"--passthrough {','.join(self.passthrough)} names a column twice")
        if self.passthrough and self.to is None:
            raise UsageError(f"--passthrough {','.join(self.passthrough)} copies columns into predictions: give --to SINK, too")
        _ = self.table_flags


@dataclass(frozen=True, kw_only=True)
class PredictJob(StreamJob):
    """The flags of `predict`."""

    model: Path | str
    group: str | None
    follow: bool
    abstain: float
    probabilities: bool
    explain: int | None

    def check_flags(self) -> None:
        """Raise a UsageError if flags of ``predict`` contradict each other."""
        if self.group is not None and self.checkpoint is None:
            for flag, place in (("--to", self.to), ("--on-error", self.on_error)):
                if place not in ("-", "stop", "skip") and "://" not in str(place):
                    raise UsageError(f"--group with {flag} {place} needs --checkpoint DIR, which all processes share")
        if self.group is None and self.checkpoint is not None and not isinstance(self.checkpoint, Path):
            raise UsageError(f"--checkpoint {self.checkpoint}: the position of predictions takes a folder")
        if self.follow and isinstance(self.model, Path) and self.model.exists() and not self.model.is_dir():
            raise UsageError(f"--follow: --model {self.model} must be a folder or topic of checkpoints, which a learner writes")
        super().check_flags()
        self.decision.make_wrapper()


@dataclass(frozen=True, kw_only=True)
class LearnJob(StreamJob):
    """The flags of `learn`."""

    learner: str | None
    regression: bool
    scale: str | None
    bound: float | None
    labels_are: str | None
    metric: str | None
    window: int | None
    drift: str | None
    on_drift: OnDrift | None
    ask: bool
    group: str | None
    scope: str
    start_from: Path | str | None
    retention: tuple[tuple[str, Any], ...] = ()
    keeps_positive: bool = False
    """Whether the positive label is that of a checkpoint, so that new metrics need not have one."""

    @property
    def kept_flags(self) -> dict[str, Any]:
        """The flags that checkpoints save, by name, so that a later command keeps them if it leaves them out."""
        return {name: value for name in _KEPT_FLAGS if (value := getattr(self, name)) is not None}

    def continue_from(self, saved: Checkpoint | None) -> tuple[LearnJob, Any]:
        """Return this job with the label, the weight and the `kept_flags` of a checkpoint in place of those that were left out,
        and the model that continues unchanged, because all flags about the model were left out; else None. Raise a UsageError if
        a flag is missing, and a CommandError if the checkpoint's model predicts labels, and this job numbers, or if it has
        learned the column of this job's label.
        """
        if saved is None:
            self.check_complete()
            return self, None
        learner, flags, old = find_learner(saved.model), self.kept_flags, saved.get_facts("flags")
        is_regressor, is_detector = isinstance(learner, base.Regressor), detects_anomalies(learner)
        if self.regression and not is_regressor:
            raise CommandError("--regression predicts a number, and the model of the checkpoint does not: leave it out")
        if self.learner is not None and self.detects_anomalies != is_detector:
            raise CommandError(f"--learner {self.learner} contradicts the model, a {type(learner).__name__}: leave it out")
        if self.label in get_learned_columns(saved.model):
            raise CommandError(f"the model has learned the column {self.label!r}, so it cannot be the label: leave --label out")
        replaced = {name for flag, name in _REPLACED_FLAGS.items() if flag in flags}
        kept: dict[str, Any] = {"learner": ANOMALY} if is_detector else {}
        kept |= {name: old[name] for name, kind in _KEPT_FLAGS.items() if type(old.get(name)) is kind and name not in replaced}
        for flag in {"learner", "key_models"} & flags.keys() & kept.keys():  # settings of the same one that were left out stay
            (old_name, *old_settings), (name, *settings) = map(split_settings, (str(kept[flag]), flags[flag]))
            by_key = {text.partition("=")[0].strip(): text for text in [*old_settings * (name == old_name), *settings]}
            flags[flag] = ",".join([name, *by_key.values()])
        kept |= flags
        weight = self.weight or saved.header.get("weight")  # the loop refuses one that is not a text
        kept |= {"label": self.label or read_saved_label(saved), "weight": weight if type(weight) is str else None}
        with as_command_error("the flags in the checkpoint are invalid: ", ValueError):
            job = replace(self, **kept, regression=is_regressor, keeps_positive="positive" not in flags)
            job.check_complete()
        return job, None if flags.keys() & {*_MODEL_FLAGS} else saved.model

    def check_complete(self) -> None:
        """Raise a UsageError if a necessary flag is missing, such as the label, or flags of the model or scores are invalid."""
        if self.label is None and not self.detects_anomalies and self.text_format != "libsvm":
            raise UsageError(f"--label NAME: which column or key holds the label?{_label_advice(self.source, self.text_format)}")
        learner, classes = find_learner(self.make_model(None)), self.make_score_parameters().get("classes") or []
        if len(classes) > (limit := getattr(learner, "max_classes", len(classes))):
            text = f"{len(classes)} classes are declared, and the model has max_classes={limit}; see --learner"
            raise UsageError(f"--labels-are: {text}")

    @property
    def compile_target(self) -> str:
        """The name of the learner, such as "bsgd regression", whose functions `compile_ahead` must compile before the run."""
        name = "OneClassBSGD" if self.detects_anomalies else split_learner(self.learner or "auto")[0]
        return f"{name} regression" if self.regression else name

    @property
    def detects_anomalies(self) -> bool:
        """Whether ``--learner anomaly`` learns without labels."""
        return split_learner(self.learner or "auto")[0] == ANOMALY

    def check_flags(self) -> None:
        """Raise a UsageError if flags of ``learn`` contradict each other, or a value is invalid."""
        super().check_flags()
        if self.scope == "partition":
            self._check_scope()
        if self.detects_anomalies:
            self._check_has_no_labels()
        if self.regression and (flag := "--positive" if self.positive else "--labels-are" if self.labels_are else None):
            raise UsageError(f"{flag} is about labels, and --regression predicts a number: leave one out")
        if self.bound is not None and not (self._scales_features or self._scales_targets):
            reason = "" if self.scale else f" of {self.text_format} text unless --scale standard asks for it"
            raise UsageError(f"--bound {self.bound:g} bounds scaled values, and nothing is scaled{reason}: leave it out")
        _ = self.label_stream
        if self.weight is not None and self.labels is not None:
            raise UsageError(f"--weight {self.weight}: rows that wait for the labels of --labels have no weights: leave one out")
        if self.weight is not None and self.weight in (self.label, *self.table_flags.get("columns", {})):
            raise UsageError(f"--weight {self.weight} names the weights: it cannot be the label or in --columns")
        has_model = list_checkpoints(place) if isinstance(place := self.checkpoint, Path) and not place.is_file() else place
        if self.scope == "partition" or (self.start_from is None and not has_model):
            self.check_complete()  # else a checkpoint may have the flags that are missing

    def _check_has_no_labels(self) -> None:
        """Raise a UsageError if a flag is about labels or their scores, which ``--learner anomaly`` does not use."""
        names = "label", "labels", "labels_are", "weight", "metric", "drift", "threshold", "costs", "positive", "interval"
        if name := next((name for name in (*names, "key_models", "regression") if getattr(self, name)), None):
            column = f", and name the column in --columns {self.label}:drop" * (name == "label")
            flag = f"--{name.replace('_', '-')}" + f" {getattr(self, name)}" * (name != "regression")
            raise UsageError(f"{flag} is about labels, and --learner anomaly learns without them: leave it out{column}")

    def _check_scope(self) -> None:
        """Raise a UsageError if flags contradict ``--scope partition``, which learns a model for each partition of a topic."""
        if self.group is None or self.checkpoint is None:
            flag = "--group NAME" if self.group is None else "--checkpoint DIR"
            raise UsageError(f"--scope partition needs {flag}, which all workers share")
        if self.labels is not None:
            raise UsageError("--labels is of one model, and --scope partition has one for each partition: leave it out")

    @property
    def _scales_features(self) -> bool:
        """Whether features are standardised: ``--scale standard``, or by default unless the source is LIBSVM text."""
        return (self.scale or ("none" if self.text_format == "libsvm" else "standard")) == "standard"

    @property
    def _scales_targets(self) -> bool:
        """Whether the targets of a regression are standardised: always with ``--regression``, unless ``--scale none``."""
        return self.regression and self.scale != "none"  # unlike features, scaled targets do not lose sparsity

    def make_model(
        self, encoder: Mapping[str, Any] | None, schema: TableSchema | None = None, max_features: int | None = None
    ) -> Any:
        """Return a new model with the learner and scaling that this job's flags request. ``encoder`` are parameters of its
        `TableEncoder` (empty for rows of numbers, None if not known yet), and ``schema`` has the table's columns.
        ``max_features`` is the limit of features in the checkpoint that the run resumes. Raise a UsageError if the learner or a
        parameter is unknown or refused.
        """
        text = self.learner or "auto"
        learner, settings = split_learner(text)
        model_class: Any = OneClassBSGD if learner == ANOMALY else LEARNERS[learner][self.regression]
        valid_names = list(inspect.signature(model_class).parameters)
        scales_itself = "scaling" in valid_names and self._scales_features and self.bound is None
        bound = _DEFAULT_DEVIATIONS if self.bound is None else self.bound or None
        scaler = BoundedScaler(bound) if self._scales_features and not scales_itself else None
        with as_usage_error("--"):
            table = TableEncoder(**encoder, scaler=scaler) if encoder else None
        if max_features is None and table is not None:  # large enough for the features of all categories
            n_columns = 0 if schema is None else len(schema.columns)
            max_features = table.compute_max_features(model_class().max_features, n_columns)
        # A fixed seed makes runs reproducible to the byte.
        defaults = {"seed": 0, "budget": _DEFAULT_BUDGET, "scaling": "auto" if scales_itself else None}
        defaults |= {} if max_features is None else {"max_features": max_features}
        parameters = {name: value for name, value in defaults.items() if name in valid_names}
        parameters |= parse_settings(f"--learner {text}", learner, settings, valid_names)
        with as_usage_error(f"--learner {text}: "):
            model = model_class(**parameters)
        if self._scales_targets and learner != "auto":
            model = BoundedTargetScaler(model, bound)
        if self.key_models is not None:
            model = add_key_models(self.key_models, model)
        model = self.decision.make_wrapper(self.regression, learns=True)(model)
        if self.interval is not None:
            model = (ConformalRegressor if self.regression else ConformalClassifier)(model, self.interval)
        keys = () if table is None else table.keys
        if (key := getattr(model, "key", None)) not in (None, *keys) and encoder is not None:
            suggestion = f", or is it --key-models {keys[0]}?" if keys else ""
            raise UsageError(f"--key-models {key}: the column must be a key: --columns {key}:key{suggestion}")
        if table is not None:
            return TableModel(table, model, schema=schema)
        return model if scaler is None else scaler | model

    def make_score_parameters(self) -> dict[str, Any]:
        """Return the learning loop's parameters of metrics and drift detection, such as ``metric`` and ``drift``, by name."""
        if self.detects_anomalies:
            return {}
        binary = ["F1"] if self.positive is not None else []
        defaults = ["MAE"] if self.regression else ["Accuracy", *binary, "ClassificationReport", "ConfusionMatrix"]
        positive, window = parse_positive(self.positive, self.text_format), self.window or 1000
        is_optional = self.threshold is not None or self.keeps_positive
        names = self.metric or ",".join(defaults)
        metric, positive = make_metrics(names, window, positive, self.regression, is_optional)
        return {
            "metric": metric,
            "drift": make_drift(self.drift, self.on_drift, self.regression),
            "window": window,
            "positive": positive,
            "classes": parse_classes(self.labels_are, self.text_format),
        }


def _label_advice(place: str | list[str], text_format: str | None) -> str:
    """Return a text for an error: the column names of the files ``place``, and which is probably the label; "" if unknown."""
    sample = sample_files(place, text_format)
    if sample is None or not (names := read_column_names(sample)):
        return ""
    return f" {format_source_name(place)} has {format_names(names, 20)}. Perhaps --label {shlex.quote(guess_label_column(names))}"


_LABELS_PARAMETERS = ("key", "time", "max_age", "max_rows", "max_bytes", "expired")


def split_labels_flag(text: str) -> tuple[str, dict[str, str]]:
    """Split the value of ``--labels``, such as ``labels.csv?key=id``, into the path or URL of the stream of labels and a dict of
    the parameters of the join (``key``, ``time``, ``max_age``, ...).

    Other parameters of a URL stay with it. Raises UsageError if the key is missing, a parameter is repeated, or a parameter of a
    path is unknown.

    >>> split_labels_flag("labels.csv?key=id&max_age=1h")
    ('labels.csv', {'key': 'id', 'max_age': '1h'})
    >>> split_labels_flag("kafka://localhost:9092/labels?codec=avro&key=id")
    ('kafka://localhost:9092/labels?codec=avro', {'key': 'id'})
    """
    place, _, query = text.rpartition("?") if "?" in text else (text, "", "")
    pairs = parse_qsl(query, keep_blank_values=True)
    if "key" not in dict(pairs):
        example = f"{text}{'&' if pairs else '?'}key=NAME"
        raise UsageError(f"--labels {text}: by which column or field do labels find their row? Write --labels '{example}'")
    parameters = {name: value for name, value in pairs if name in _LABELS_PARAMETERS}
    if len(parameters) < sum(name in _LABELS_PARAMETERS for name, _ in pairs):
        raise UsageError(f"--labels {text}: a parameter is given twice")
    other_parts = [part for part in query.split("&") if part.partition("=")[0] not in _LABELS_PARAMETERS]
    if other_parts and "://" not in place:
        raise UsageError(f"--labels {text}: {other_parts[0]} is not one of {', '.join(_LABELS_PARAMETERS)}")
    return place + f"?{'&'.join(other_parts)}" * bool(other_parts), parameters


def _parse_label_stream(text: str, job: StreamJob) -> LabelStream:
    """Parse ``--labels``, a separate stream of labels. Raise a UsageError if it is invalid or contradicts other flags."""
    place, parameters = split_labels_flag(text)
    try:
        labels_format = detect_format(place)
    except StreamError:
        labels_format = detect_format(place, job.format)
    key, time = parameters["key"], parameters.get("time")
    names = [name for name in (key, time, job.label) if name is not None]
    if len(set(names)) < len(names):
        raise UsageError(f"--labels {text}: key, time and --label must be three columns or fields")
    if "libsvm" in (job.text_format, labels_format):
        raise UsageError("--labels means nothing for LIBSVM text, which has no column for a key")
    if place == job.source == "-":
        raise UsageError("--labels - and SOURCE - both want standard input: give a file for one")
    if ":" in (start := job.start or "") and start.partition(":")[0].isdecimal():
        raise UsageError(f"--from {start} is about the offsets of one topic: with --labels, say earliest, latest or a time")
    policy, equals, negative = parameters.get("expired", "drop").partition("=")
    if policy == "dead-letter" and job.on_error in ("stop", "skip"):
        raise UsageError(f"--labels {text}: expired=dead-letter needs a place for dead letters: --on-error PATH or kafka://...")
    options: dict[str, Any] = {"expired": policy}
    with as_usage_error(f"--labels {text}: "):
        limits = {name: parameters[name] for name in ("max_rows", "max_bytes") if name in parameters}
        options |= {name: int(text) if text.isdecimal() else text for name, text in limits.items()}
        options |= {"max_age": _parse_max_age(parameters["max_age"])} if "max_age" in parameters else {}
        buffer = DelayedLabels(**options, negative=parse_positive(negative, job.text_format) if equals else None)
        return LabelStream(place, labels_format, key, time, buffer)


def _parse_max_age(text: str) -> float | None:
    """Convert a duration such as ``90s``, ``1.5m``, ``2h`` or ``7d`` to seconds; None for ``inf``. Raise a ValueError for other
    texts.

    >>> [_parse_max_age(text) for text in ("90", "90s", "1.5m", "2h", "7d", "inf")]
    [90.0, 90.0, 90.0, 7200.0, 604800.0, None]
    """
    try:
        return None if text == "inf" else parse_duration_or_unit(text + "s" * text.replace(".", "").isdecimal())
    except ValueError:
        raise ValueError(f"max_age must be a time such as 90s, 15m, 1h or 7d, or inf, not {text}") from None
