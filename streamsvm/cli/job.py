"""The jobs of `learn` and `predict`: a command line, checked as a whole and made once into objects."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from streamsvm.cli import UsageError
from streamsvm.cli.arguments import Output, says_json, wrong_usage
from streamsvm.cli.outputs import check_sinks
from streamsvm.cli.parsing import (
    decide_of,
    decision_flag,
    learner_and_settings,
    make_drift,
    make_metrics,
    make_model,
    parse_classes,
    parse_positive,
)
from streamsvm.cli.tables import given_of
from streamsvm.stream import DelayedLabels, StreamError
from streamsvm.stream.look.beginnings import of_files
from streamsvm.stream.look.first_look import likely_label, names_in
from streamsvm.stream.open import format_of, name_of
from streamsvm.stream.rows import listed
from streamsvm.stream.scores.several import Scores


class LabelStream(NamedTuple):
    """The stream of labels that come later than their rows."""

    place: str
    format: str | None
    key: str
    time: str | None
    buffer: DelayedLabels
    """Where rows and labels wait for each other."""

    @property
    def columns(self) -> list[str]:
        """The columns of rows that are no features."""
        return [name for name in (self.key, self.time) if name is not None]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job of a command that reads a stream; the defaults are those of one that only reads, to the end."""

    place: str | list[str]
    """The place that is read: a path, ``-``, a URL, or several files."""
    format: str | None
    """Of the source; None for a URL."""
    label: str | None = None
    labels: LabelStream | None = None
    weight: str | None = None
    """The column of weights."""
    start: str | None = None
    stop_at_end: bool = True
    to: str | None = None
    keep: list[str] = field(default_factory=list)
    """Columns that are copied into predictions."""
    on_error: str = "skip"
    columns: Mapping[str, Any] = field(default_factory=dict)
    """How the table is read, as far as flags say so."""
    checkpoint: Path | str | None = None
    max_rows: int | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the loop: how often checkpoints are written, and how many rows may be refused."""
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_names: list[str] = field(default_factory=list)
    trusted: bool = False
    output: Output = field(default_factory=lambda: Output(False, False))

    @property
    def source(self) -> str:
        """Name of the source in messages, and the path or URL if it is one."""
        return name_of(self.place)


@dataclass(frozen=True, kw_only=True)
class LearnJob(Job):
    """The job of `learn`."""

    regression: bool
    group: str | None
    scope: str
    make_model: Callable[..., Any]
    """Makes a model that has not learned yet, with the parameters ``encoder`` of a `TableEncoder`."""
    make_score: Callable[..., dict[str, Any]]
    """Makes the parameters of a loop about its score: ``metric``, ``drift`` and others."""
    as_regression: Callable[[], LearnJob]
    """Makes the same job of a number to predict; a UsageError says which flag is about labels."""
    asks: bool
    """Whether to stop where flags could say how the table is read."""
    use: str
    """The code that has to be compiled, by the name that `compile_ahead` knows."""


@dataclass(frozen=True, kw_only=True)
class PredictJob(Job):
    """The job of `predict`."""

    model: Path | str
    follow: bool
    decide: Callable[[Any], Any]
    """Makes of a learner one that decides as flags say."""
    decides_by: str
    """The flag that says so; "": none does."""
    abstain: float
    probabilities: bool
    explained: int | None
    """How many columns of each decision are named."""


def _common_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    check_sinks(arguments, labels_place(arguments.labels)[0] if getattr(arguments, "labels", None) else None)
    if len(set(arguments.keep)) < len(arguments.keep):
        raise UsageError(f"--keep {','.join(arguments.keep)} names a column twice")
    if arguments.keep and arguments.to is None:
        raise UsageError(f"--keep {','.join(arguments.keep)} copies columns into predictions: say where these go, --to SINK")
    same = ("label", "start", "stop_at_end", "to", "keep", "on_error", "checkpoint", "max_rows")
    served = ("metrics_port", "metrics_host", "metrics_names")
    limits = {name: getattr(arguments, name) for name in ("error_limit", "error_share")} | arguments.checkpoint_every
    return {
        **{name: getattr(arguments, name) for name in (*same, *served, "trusted")},
        "place": arguments.source,
        "format": format_of(arguments.source, arguments.format),
        "columns": given_of(arguments),
        "limits": limits,
        "output": Output(arguments.quiet, says_json(arguments)),
    }


def predict_job(arguments: argparse.Namespace) -> PredictJob:
    """Return what the arguments of `predict` ask for; a UsageError where flags exclude each other."""
    place = arguments.model
    if arguments.checkpoint is not None and not isinstance(arguments.checkpoint, Path):
        raise UsageError(f"--checkpoint {arguments.checkpoint}: the position of predictions takes a folder")
    if arguments.follow and isinstance(place, Path) and place.exists() and not place.is_dir():
        raise UsageError(f"--follow: --model {place} must be a folder or topic of checkpoints, which a learner writes")
    common = _common_arguments(arguments)
    return PredictJob(
        **common,
        model=place,
        follow=arguments.follow,
        decide=decide_of(arguments, common["format"], regression=False, learns=False),
        decides_by=decision_flag(arguments),
        abstain=arguments.abstain,
        probabilities=arguments.probabilities,
        explained=arguments.explain,
    )


def learn_job(arguments: argparse.Namespace) -> LearnJob:
    """Return what the arguments of `learn` ask for, before any stream is opened; a UsageError where they do not fit."""
    common = _common_arguments(arguments)
    text_format, regression = common["format"], arguments.regression
    _check_group(arguments)
    if arguments.label is None and text_format != "libsvm":
        raise UsageError(f"--label NAME: which column or key holds the label?{_label_advice(arguments.source, text_format)}")
    scale = arguments.scale or ("none" if text_format == "libsvm" else "standard")
    if regression and (flag := "--positive" if arguments.positive else "--labels-are" if arguments.labels_are else None):
        raise UsageError(f"{flag} is about labels, and --regression predicts a number: leave one out")
    scaled_targets = regression and arguments.scale != "none"  # unlike features, they stay as sparse as they are
    if arguments.bound is not None and scale == "none" and not scaled_targets:
        why = "" if arguments.scale else f" of {text_format} text unless --scale standard asks for it"
        raise UsageError(f"--bound {arguments.bound:g} bounds scaled values, and nothing is scaled{why}: leave it out")
    scaling = {"scale": scale == "standard", "scale_targets": scaled_targets, "deviations": arguments.bound}
    decide = decide_of(arguments, text_format, regression, learns=True)
    model_of = partial(make_model, arguments.learner, regression=regression, decide=decide, **scaling)
    learner = make_model(arguments.learner, regression=regression)  # a mistake there is said before any file is opened
    decide(learner)
    positive = parse_positive(arguments.positive, text_format)
    classes = parse_classes(arguments.labels_are, text_format)
    most = getattr(learner, "max_classes", len(classes or ()))
    if classes is not None and len(classes) > most:
        raise UsageError(
            f"--labels-are: {len(classes)} classes are declared, and the model has max_classes={most}; see --learner"
        )
    of_positive = ["F1"] if arguments.positive is not None else []
    usual = ["MAE"] if regression else ["Accuracy", *of_positive, "ClassificationReport", "ConfusionMatrix"]

    def make_score() -> dict[str, Any]:
        metric = arguments.metric or ",".join(usual)
        found = make_metrics(metric, arguments.window, None if arguments.threshold else positive, regression)
        scored = Scores(found, arguments.window, regression=regression)
        return {
            "metric": found,
            "drift": make_drift(arguments.drift, arguments.on_drift, regression),
            "window": arguments.window,
            "positive": positive if scored.may_be_binary or not arguments.threshold else None,
            "classes": classes,
        }

    make_score()  # as above
    name = learner_and_settings(arguments.learner)[0]
    return LearnJob(
        **common,
        labels=labels_of(arguments, text_format),
        weight=_weight_column(arguments, common["columns"]),
        regression=regression,
        group=arguments.group,
        scope=arguments.scope,
        make_model=model_of,
        make_score=make_score,
        as_regression=lambda: learn_job(argparse.Namespace(**{**vars(arguments), "regression": True})),
        asks=arguments.ask,
        use=f"{name} regression" if regression else name,
    )


def _label_advice(place: str | list[str], text_format: str | None) -> str:
    """Return the columns of a file, and which one may be the label; nothing where they cannot be seen."""
    beginning = of_files(place, text_format)
    if beginning is None or not (names := names_in(beginning)):
        return ""
    return f" {name_of(place)} has {listed(names, 20)}. Perhaps --label {shlex.quote(likely_label(names))}"


def _check_group(arguments: argparse.Namespace) -> None:
    if arguments.scope == "global":
        return
    for flag, value in (("--group NAME", arguments.group), ("--checkpoint DIR", arguments.checkpoint)):
        if value is None:
            raise UsageError(f"--scope partition needs {flag}, which all workers share")
    if not isinstance(arguments.checkpoint, Path):
        raise UsageError(
            f"--scope partition keeps its models in a folder that all workers share: --checkpoint {arguments.checkpoint} is none"
        )
    for flag, value in (("--to", arguments.to), ("--labels", arguments.labels)):
        if value is not None:
            raise UsageError(f"{flag} is of one model, and --scope partition has one for each partition: leave it out")
    if arguments.on_error not in ("stop", "skip"):
        raise UsageError("--scope partition takes --on-error stop or skip: workers cannot write dead letters to one place")


_OF_LABELS = ("key", "time", "max_age", "max_rows", "max_bytes", "expired")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_AGE = re.compile(r"(\d+(?:\.\d+)?|inf)([smhd]?)")


def labels_place(text: str) -> tuple[str, dict[str, str]]:
    """Split what ``--labels`` names into a place and its parameters ``key``, ``time``, ``max_age`` and so on.

    Other parameters of a URL stay with it. A UsageError says that there is no key, a parameter stands there twice, or a path has
    one that does not exist.

    >>> labels_place("labels.csv?key=id&max_age=1h")
    ('labels.csv', {'key': 'id', 'max_age': '1h'})
    >>> labels_place("kafka://localhost:9092/labels?codec=avro&key=id")
    ('kafka://localhost:9092/labels?codec=avro', {'key': 'id'})
    """
    place, _, query = text.rpartition("?") if "?" in text else (text, "", "")
    pairs = parse_qsl(query, keep_blank_values=True)
    if "key" not in dict(pairs):
        form = f"{text}{'&' if pairs else '?'}key=NAME"
        raise UsageError(f"--labels {text}: by which column or field do labels find their row? Write {form}")
    found = {name: value for name, value in pairs if name in _OF_LABELS}
    if len(found) < sum(name in _OF_LABELS for name, _ in pairs):
        raise UsageError(f"--labels {text}: a parameter stands there twice")
    others = [part for part in query.split("&") if part.partition("=")[0] not in _OF_LABELS]
    if others and "://" not in place:
        raise UsageError(f"--labels {text}: {others[0]} is none of {', '.join(_OF_LABELS)}")
    return place + f"?{'&'.join(others)}" * bool(others), found


def labels_of(arguments: argparse.Namespace, text_format: str | None) -> LabelStream | None:
    """Return the stream of labels; None where labels come with their rows."""
    if (text := arguments.labels) is None:
        return None
    place, found = labels_place(text)
    try:
        labels_format = format_of(place)
    except StreamError:
        labels_format = format_of(place, arguments.format)
    key, time = found["key"], found.get("time")
    if key in (time, arguments.label) or time == arguments.label:
        raise UsageError(f"--labels {text}: key, time and --label must be three columns or fields")
    if "libsvm" in (text_format, labels_format):
        raise UsageError("--labels means nothing for LIBSVM text, which has no column for a key")
    if place == arguments.source == "-":
        raise UsageError("--labels - and SOURCE - both want standard input: give a file for one")
    if ":" in (start := arguments.start or "") and start.partition(":")[0].isdecimal():
        raise UsageError(f"--from {start} is about the offsets of one topic: with --labels, say earliest, latest or a time")
    policy, equals, negative = found.get("expired", "drop").partition("=")
    if policy == "dead-letter" and arguments.on_error in ("stop", "skip"):
        raise UsageError(
            f"--labels {text}: expired=dead-letter needs a place for them: --on-error PATH, or kafka://host:port/topic"
        )
    how: dict[str, Any] = {"expired": policy}
    with wrong_usage(f"--labels {text}: "):
        how |= {name: _whole_number(name, found[name]) for name in ("max_rows", "max_bytes") if name in found}
        how |= {"max_age": _seconds_of(found["max_age"])} if "max_age" in found else {}
        buffer = DelayedLabels(**how, negative=parse_positive(negative, text_format) if equals else None)
        return LabelStream(place, labels_format, key, time, buffer)


def _weight_column(arguments: argparse.Namespace, columns: Mapping[str, Any]) -> str | None:
    weight: str | None = arguments.weight
    if weight is None:
        return None
    if arguments.labels is not None:
        raise UsageError(f"--weight {weight}: rows that wait for the labels of --labels have no weights: leave one out")
    if weight == arguments.label or weight in columns.get("columns", {}):
        raise UsageError(f"--weight {weight} is no feature: it cannot be the label, and has no kind in --columns")
    return weight


def _whole_number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{name} must be a whole number, not {text}")
    return int(text)


def _seconds_of(text: str) -> float | None:
    """Return the seconds of a length of time; None for ``inf``.

    >>> [_seconds_of(text) for text in ("90", "90s", "1.5m", "2h", "7d", "inf")]
    [90.0, 90.0, 90.0, 7200.0, 604800.0, None]
    """
    if (found := _AGE.fullmatch(text)) is None:
        raise ValueError(f"max_age must be a time such as 90s, 15m, 1h or 7d, or inf, not {text}")
    number = float(found[1]) * _UNITS[found[2]]
    return None if number == math.inf else number
