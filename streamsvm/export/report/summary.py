"""The facts that a checkpoint has of its model and run, for people, and as a model card; a stranger's file is not believed."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
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

_SMALL = 256 * 1024  # bytes: less than a usual small device has for constants


class ModelSummary:
    """The facts that are known of a model and of the run that it comes from; None and empty where nothing is."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Gather what a checkpoint, or a saved model, says of itself."""
        model, header = checkpoint.model, checkpoint.header
        learner = find_learner(model)
        self.columns: list[ColumnSchema]
        self.seen_rows: int
        self.columns, self.seen_rows = _columns_of(model, learner)
        """The columns, and the number of rows that they were looked at in."""
        label = _mapping_of(header, "position").get("label")
        read = next((column.name for column in self.columns if column.kind in ("label", "target")), None)
        self.label: str | None = label if isinstance(label, str) else read
        """The column that it predicts."""
        self.decides: str = ", ".join(_decision_words(model))
        """By which threshold or costs it chooses labels, and how sure it says to be; "" where it does neither."""
        self.learner: str = type(learner).__name__
        self.words: str = (inspect.getdoc(type(learner)) or "").partition("\n")[0].removesuffix(".")
        """The class of the learner in a sentence."""
        self.regression: bool = isinstance(learner, base.Regressor)
        self.anomalies: bool = isinstance(learner, base.AnomalyDetector)
        """Whether it detects anomalies, and needs no labels."""
        self.source: str | None = header["source"] if isinstance(header.get("source"), str) else None
        """The source that was learned from."""
        n_learned: int | None = getattr(learner, "n_learned", None)
        self.learned: int | None = _count_or_none(header.get("learned")) if "learned" in header else n_learned
        self.unlabelled: int = _count_or_none(header.get("unlabelled")) or 0
        counts = {str(kind): _count_or_none(n) for kind, n in _mapping_of(header, "refused", "counts").items()}
        self.refused: dict[str, int] = {kind: n for kind, n in counts.items() if n}
        """Number of rows by kind of reason."""
        self.n_refused: int = sum(self.refused.values())
        self.drifts: int | None = _count_or_none(_mapping_of(header, "drift").get("drifts"))
        self.labels: list[Any] = list(getattr(learner, "labels", ()))
        self.nbytes: int | None = getattr(learner, "nbytes", None)
        budget, n_support = getattr(learner, "budget", None), getattr(learner, "n_support", None)
        limit = budget if isinstance(budget, int) else None
        self.support_vectors: tuple[int, int | None] | None = None if n_support is None else (n_support, limit)
        """How many, and how many there may be."""
        self.export: str = _export_words(model)
        """How large an export would be, or why there is none."""
        self.curve: LearningCurve | None = None
        self.corrupt: str = ""
        """The fault of the learning curve."""
        if "curve" in header:
            try:
                self.curve = LearningCurve.from_state(header["curve"], header.get("rows"))
            except ValueError as error:
                self.corrupt = str(error)
        self.reports: tuple[ScoreReport, ...] = _last_reports(checkpoint, self.curve)
        """The metrics of the run."""
        self.experts: list[tuple[str, float, float]] = _experts_of(learner)
        """Of an ensemble: an expert, its share of the decision, and its recent error; the most heard first."""
        self.version: str = clean_text(_mapping_of(header, "versions").get("streamsvm", ""))


def _decision_words(model: Any) -> list[str]:
    """Return what each wrapper of a learner does, in words."""
    last = split_pipeline(model)[1]
    if isinstance(last, ConformalRegressor):
        return [*_decision_words(last.regressor), f"intervals that hold {100.0 * last.level:g} % of the numbers"]
    if isinstance(last, ConformalClassifier):
        return [*_decision_words(last.classifier), f"sets that hold {100.0 * last.level:g} % of the labels"]
    if isinstance(last, CostSensitiveClassifier):
        return [
            *_decision_words(last.classifier),
            *(f"a missed {clean_text(repr(label))} costs {cost:.4g}" for label, cost in last.costs.items()),
        ]
    if isinstance(last, TunedThresholdClassifier):
        name = "BalancedAccuracy" if last.metric is None else type(last.metric).__name__
        label = clean_text(repr(getattr(last.metric, "pos_val", "the positive label")))
        return [*_decision_words(last.classifier), f"{label} from a probability of {last.threshold:.3g} on, tuned to {name}"]
    return []


def _mapping_of(facts: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    found: Any = facts
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _count_or_none(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _columns_of(model: Any, learner: Any) -> tuple[list[ColumnSchema], int]:
    """Return the columns of a model's table as they were read; of one without a reading, what its encoder or learner knows."""
    if isinstance(model, TableModel) and model.schema is not None:
        return model.schema.columns, model.schema.n_rows
    encoder = next((step for step in getattr(model, "steps", {}).values() if isinstance(step, TableEncoder)), None)
    if encoder is None:
        return [ColumnSchema(str(name), "number", "") for name in getattr(learner, "feature_names", ())], 0
    columns = [ColumnSchema(str(name), "number", "") for name in encoder.learned_columns]
    return apply_kinds(columns, {"columns": encoder.columns}), 0


def missing_share(column: ColumnSchema, n_rows: int) -> float | None:
    """Return the share of the rows that were looked at in which a column has no value; None if it is not known.

    >>> missing_share(ColumnSchema("age", "number", "1 to 9", "missing in 13"), 260)
    0.05
    """
    found = re.search(r"\bmissing in (\d+)", column.note)
    if not n_rows or column.kind == "dropped":
        return None
    return int(found[1]) / n_rows if found else 0.0


def _export_words(model: Any) -> str:
    try:
        program = make_program(model)
    except ExportError as error:
        return str(error)
    size = f"{program.nbytes:,} bytes of numbers"
    return f"{size}, which fit a small device" if program.nbytes <= _SMALL else f"{size}; export --max-bytes makes it smaller"


def _last_reports(checkpoint: Checkpoint, curve: LearningCurve | None) -> tuple[ScoreReport, ...]:
    """Return what the metrics of a run have said at its end."""
    saved = checkpoint.header.get("scores")
    scores = [each for each in saved if isinstance(each, Mapping)] if isinstance(saved, list) else []
    last = curve.points[-1] if curve is not None and curve.points else None
    found = []
    for place, score in enumerate(scores):
        name, guesses = clean_text(score.get("name")), score.get("guesses")
        known = [
            (str(each[0]), _finite_number(each[1]))
            for each in (guesses if isinstance(guesses, list) else ())
            if isinstance(each, list) and len(each) == 2
        ]
        if not (known or place or last is None):
            known = [("guessing", last.baseline)]
        windowed = math.nan if place or last is None else last.windowed
        found.append(
            ScoreReport(
                name, _finite_number(score.get("value")), windowed, tuple(known), _score_table(checkpoint.state, name, place)
            )
        )
    return tuple(found)


def _finite_number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else math.nan


def _score_table(metric: Any, name: str, place: int) -> list[list[Any]] | None:
    """Return the table of a score of labels, by its state in a checkpoint; None of others."""
    if name not in TABLES:
        return None
    table = TABLES[name](1)
    try:
        table.resume(metric["scores"]["scores"][place])
        return table.table
    except (LookupError, TypeError, ValueError):
        return None


def _experts_of(learner: Any) -> list[tuple[str, float, float]]:
    """Return the experts of an ensemble, each once, by how much the decision listens to its outputs."""
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


def make_model_card(facts: Mapping[str, Any]) -> str:
    r"""Return the figures of `make_report` as Markdown. Names and labels stay text, whatever they are.

    >>> print(make_model_card({"title": "A <b>", "lead": ["10 rows"], "score": {"big": "9", "what": "*", "sentence": "",
    ...     "guesses": []}, "tiles": [], "facts": [], "notes": ["None."], "foot": "by us"}))
    # A \<b\>
    <BLANKLINE>
    10 rows
    <BLANKLINE>
    **9** \*
    <BLANKLINE>
    - None.
    <BLANKLINE>
    *by us*
    <BLANKLINE>
    """
    score = facts["score"]
    parts = [f"# {_markdown_text(facts['title'])}", _markdown_text(" · ".join(facts["lead"]))]
    parts.append(
        f"**{_markdown_text(score['big'])}** " * bool(score["big"])
        + _markdown_text(score["what"])
        + (f". {_markdown_text(score['sentence'])}" if score["sentence"] else "")
    )
    parts += _markdown_table(None, [["", ""], *([name, text] for name, text in facts["tiles"])])
    if "scores" in facts:
        parts += _markdown_table("Further scores", [["score", "value", "guessing gives"], *facts["scores"]])
    for name, title in (
        ("confusion", "Which labels it confuses"),
        ("labels", "Label by label"),
        ("thresholds", "Where to put the threshold"),
    ):
        if name in facts:
            parts += _markdown_table(title, facts[name]["table"], facts[name]["sentence"])
    if "calibration" in facts:
        bins = [
            [f"{100 * expected:.1f} %", f"{100 * observed:.1f} %", n] for expected, observed, n in facts["calibration"]["bins"]
        ]
        parts += _markdown_table(
            "Can its probabilities be believed?", [["expected", "observed", "rows"], *bins], facts["calibration"]["sentence"]
        )
    if "importance" in facts:
        found = facts["importance"]
        parts += _markdown_table(
            "What matters to it",
            [["column", "by how much"], *([name, text] for name, _, text in found["columns"])],
            found["sentence"],
        )
    if "explained" in facts:
        parts += ["## Why it decides so", _markdown_text(facts["explained"]["sentence"])]
        for row in facts["explained"]["rows"]:
            lines = [[name, "" if value is None else value, size] for name, value, size in row["parts"]]
            parts += [
                f"**{_markdown_text(row['title'])}**: {_markdown_text(row['decision'])}",
                *_markdown_table(None, [["column", "value", "moves it by"], *lines]),
            ]
    if "curve" in facts:
        found = facts["curve"]
        points = found["points"][:: max(len(found["points"]) // 8, 1)]
        head = ["rows", f"{found['metric']}, all rows", f"last {found['window']:,} rows", "guessing", "refused", "drifts"]
        parts += _markdown_table("While it learned", [head, *points], found["sentence"])
    if "columns" in facts:
        rows = [
            [
                row["name"],
                row["kind"],
                row["values"],
                "" if row["missing"] is None else f"{100 * row['missing']:.1f} %",
                row["note"],
            ]
            for row in facts["columns"]["rows"]
        ]
        head = ["column", "read as", "values", "missing", "note"]
        parts += _markdown_table(
            "What it learned from",
            [head, *rows],
            " ".join(filter(None, (facts["columns"]["sentence"], facts["columns"]["rest"]))),
        )
    if facts["facts"]:
        parts += _markdown_table("Size and speed", [["", ""], *facts["facts"]])
    parts.append("\n".join(f"- {_markdown_text(each)}" for each in facts["notes"]))
    return "\n\n".join([*filter(None, parts), f"*{facts['foot']}*"]) + "\n"


def _markdown_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", "" if value is None else f"{value:,}" if type(value) is int else str(value))


def _markdown_table(title: str | None, rows: Iterable[Sequence[Any]], about: str = "") -> list[str]:
    head, *cells = ([_markdown_text(cell) for cell in row] for row in rows)
    if not cells:
        return []
    lines = [head, ["---"] * len(head), *cells]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return [f"## {title}", _markdown_text(about), text] if title else [text]
