"""A summary of a model and its run, from a checkpoint. Entries of the file are checked, because it may be from a stranger."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from typing import Any

from river import base

from streamsvm.edge.program import ExportError
from streamsvm.export.convert import make_program
from streamsvm.learners.conformal import ConformalClassifier, ConformalRegressor
from streamsvm.learners.costs import CostSensitiveClassifier
from streamsvm.learners.thresholds import TunedThresholdClassifier
from streamsvm.stream.checkpoint import Checkpoint
from streamsvm.stream.page import clean_text
from streamsvm.stream.progress import LearningCurve
from streamsvm.stream.rows import find_learner, split_pipeline
from streamsvm.stream.scores.base import ScoreReport
from streamsvm.stream.scores.score_set import TABLES
from streamsvm.stream.tables import TableEncoder, TableModel
from streamsvm.stream.tables.table_schema import ColumnSchema, apply_kinds

_SMALL_DEVICE_BYTES = 256 * 1024  # constants of this size fit usual small devices


class ModelSummary:
    """A model and the run that learned it. An attribute that the checkpoint does not have has the value None, or is empty."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Summarise a checkpoint or a saved model."""
        model, header = checkpoint.model, checkpoint.header
        learner = find_learner(model)
        self.columns: list[ColumnSchema]
        self.n_inspected_rows: int
        self.columns, self.n_inspected_rows = _list_columns(model, learner)
        """The columns, and the number of rows from which their schema was inferred."""
        label = checkpoint.get_facts("position").get("label")
        label_column = next((column.name for column in self.columns if column.kind in ("label", "target")), None)
        self.label: str | None = label if isinstance(label, str) else label_column
        """The column that the model predicts."""
        self.learner_name: str = type(learner).__name__
        self.learner_description: str = (inspect.getdoc(type(learner)) or "").partition("\n")[0].removesuffix(".")
        """The first line of the learner's docstring."""
        self.is_regressor: bool = isinstance(learner, base.Regressor)
        self.is_anomaly_detector: bool = isinstance(learner, base.AnomalyDetector)
        self.source: str | None = header["source"] if isinstance(header.get("source"), str) else None
        """The source from which the model was learned."""
        n_learned: int | None = getattr(learner, "n_learned", None)
        self.n_learned: int | None = _read_count(header.get("learned")) if "learned" in header else n_learned
        self.n_unlabelled: int = _read_count(header.get("unlabelled")) or 0
        counts = {str(kind): _read_count(n) for kind, n in checkpoint.get_facts("refused", "counts").items()}
        self.refused: dict[str, int] = {kind: n for kind, n in counts.items() if n}
        """Number of refused rows by reason."""
        self.n_refused: int = sum(self.refused.values())
        self.n_drifts: int | None = _read_count(checkpoint.get_facts("drift").get("drifts"))
        self.labels: list[Any] = list(getattr(learner, "labels", ()))
        self.nbytes: int | None = getattr(learner, "nbytes", None)
        budget, n_support = getattr(learner, "budget", None), getattr(learner, "n_support", None)
        limit = f" of {budget:,}" if isinstance(budget, int) else ""
        facts = {
            "decides": ", ".join(_describe_wrappers(model)),
            "support vectors": "" if n_support is None else f"{n_support:,}{limit}",
            "memory": "" if self.nbytes is None else f"{self.nbytes:,} bytes",
            "export": _describe_export(model),
        }
        self.facts: dict[str, str] = {name: text for name, text in facts.items() if text}
        """What the model's wrappers decide by, the number of support vectors, the memory, and the size of an export or the
        reason why there is none.
        """
        self.curve: LearningCurve | None = None
        self.curve_error: str = ""
        """The reason why the saved learning curve is invalid."""
        if "curve" in header:
            try:
                self.curve = LearningCurve.from_state(header["curve"], header.get("rows"))
            except ValueError as error:
                self.curve_error = str(error)
        self.reports: tuple[ScoreReport, ...] = read_score_reports(checkpoint, self.curve)
        """The final values of the run's metrics."""
        self.experts: list[tuple[str, float, float]] = _rank_experts(learner)
        """For an ensemble: name, share of the decision and recent error of each expert, largest share first."""
        self.version: str = clean_text(checkpoint.get_facts("versions").get("streamsvm", ""))


def _describe_wrappers(model: Any) -> list[str]:
    """Return a phrase for each wrapper around a model that changes its decisions (conformal prediction, costs, or a tuned
    threshold), such as ``"a missed 'fraud' costs 20"``, the innermost wrapper first.
    """
    last = split_pipeline(model)[1]
    if isinstance(last, ConformalRegressor):
        return [*_describe_wrappers(last.regressor), f"intervals that hold {100.0 * last.level:g} % of the numbers"]
    if isinstance(last, ConformalClassifier):
        return [*_describe_wrappers(last.classifier), f"sets that hold {100.0 * last.level:g} % of the labels"]
    if isinstance(last, CostSensitiveClassifier):
        return [
            *_describe_wrappers(last.classifier),
            *(f"a missed {clean_text(repr(label))} costs {cost:.4g}" for label, cost in last.costs.items()),
        ]
    if isinstance(last, TunedThresholdClassifier):
        name = "BalancedAccuracy" if last.metric is None else type(last.metric).__name__
        label = clean_text(repr(getattr(last.metric, "pos_val", "the positive label")))
        return [*_describe_wrappers(last.classifier), f"{label} from a probability of {last.threshold:.3g} on, tuned to {name}"]
    return []


def _read_count(value: Any) -> int | None:
    """Return a count from the header of a checkpoint unchanged, or None if it is not an int between 0 and 2^63 - 1."""
    return value if type(value) is int and 0 <= value < 2**63 else None


def _list_columns(model: Any, learner: Any) -> tuple[list[ColumnSchema], int]:
    """Return a pair: the columns that a model was learned from, with their types, and the number of rows from which these types
    were inferred. If no types were stored, the number is 0, and the columns are those that the pipeline's encoder or ``learner``
    knows.
    """
    if isinstance(model, TableModel) and model.schema is not None:
        return model.schema.columns, model.schema.n_rows
    encoder = next((step for step in getattr(model, "steps", {}).values() if isinstance(step, TableEncoder)), None)
    if encoder is None:
        return [ColumnSchema(str(name), "number", "") for name in getattr(learner, "feature_names", ())], 0
    columns = [ColumnSchema(str(name), "number", "") for name in encoder.learned_columns]
    return apply_kinds(columns, {"columns": encoder.columns}), 0


def compute_missing_share(column: ColumnSchema, n_rows: int) -> float | None:
    """Return the share of rows, from 0 to 1, that have no value in a column, among the ``n_rows`` rows that were inspected to
    infer the columns' types. Returns None if ``n_rows`` is 0, or the column was dropped.

    >>> compute_missing_share(ColumnSchema("age", "number", "1 to 9", "missing in 13"), 260)
    0.05
    """
    match = re.search(r"\bmissing in (\d+)", column.note)
    if not n_rows or column.kind == "dropped":
        return None
    return int(match[1]) / n_rows if match else 0.0


def _describe_export(model: Any) -> str:
    """Return a phrase with the size of the model's exported form in bytes, and whether it fits a small device, or the reason why
    the model cannot be exported.
    """
    try:
        program = make_program(model)
    except ExportError as error:
        return str(error)
    is_small = program.nbytes <= _SMALL_DEVICE_BYTES
    texts = f", {program.text_nbytes:,} of them for texts" if program.text_nbytes else ""
    return f"{program.nbytes:,} bytes of numbers{texts}" + (
        ", which fit a small device" if is_small else "; export --max-bytes makes it smaller"
    )


def read_score_reports(checkpoint: Checkpoint, curve: LearningCurve | None = None) -> tuple[ScoreReport, ...]:
    """Return the final value of each metric of the run that a ``checkpoint`` has saved, with the values of trivial baselines, as
    a tuple. ``curve`` is the run's learning curve or None; its last point has the first metric over the latest rows.
    """
    saved = checkpoint.header.get("scores")
    scores = [score for score in saved if isinstance(score, Mapping)] if isinstance(saved, list) else []
    last_point = curve.points[-1] if curve is not None and curve.points else None
    reports = []
    for number, score in enumerate(scores):
        name, saved_baselines = clean_text(score.get("name")), score.get("guesses")
        baselines = [
            (str(entry[0]), _read_float(entry[1]))
            for entry in (saved_baselines if isinstance(saved_baselines, list) else ())
            if isinstance(entry, list) and len(entry) == 2
        ]
        if not (baselines or number or last_point is None):
            baselines = [("guessing", last_point.baseline)]
        windowed, last = math.nan, []
        if last_point is not None and not number:
            windowed, last = last_point.windowed, [("guessing", last_point.windowed_baseline)]
        table = _read_score_table(checkpoint.state, name, number)
        reports.append(ScoreReport(name, _read_float(score.get("value")), windowed, tuple(baselines), table, tuple(last)))
    return tuple(reports)


def _read_float(value: Any) -> float:
    """Return a number from the header of a checkpoint as a float, or NaN if it is not an int or float below 1e300 in size."""
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else math.nan


def _read_score_table(state: Any, name: str, number: int) -> list[list[Any]] | None:
    """Return the table of a metric such as a confusion matrix, as a list of rows, from the ``state`` of a checkpoint, where it
    has the index ``number``. Returns None if the metric called ``name`` does not have a table, or its state is invalid.
    """
    if name not in TABLES:
        return None
    table = TABLES[name](1)
    try:
        table.resume(state["scores"]["scores"][number])
        return table.table
    except (LookupError, TypeError, ValueError):
        return None


def _rank_experts(learner: Any) -> list[tuple[str, float, float]]:
    """Return (name, share of the decision, smallest recent error) for each member of an ensemble, ``learner``, the largest share
    first. Returns an empty list for other models.
    """
    weights: dict[str, float] = {}
    errors: dict[str, float] = {}
    for report in getattr(learner, "experts", ()):
        weights[report.name] = weights.get(report.name, 0.0) + abs(report.weight)
        errors[report.name] = min(errors.get(report.name, math.inf), report.error)
    total = sum(weights.values())
    if not (math.isfinite(total) and total):
        return []
    order = sorted(weights, key=lambda name: -weights[name])
    return [(name, weights[name] / total, errors[name]) for name in order]
