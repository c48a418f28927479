"""The contents of a report about a model: from its checkpoint, and from rows that the user passes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamsvm import __version__
from streamsvm.core.explaining import Explanation, format_words, select_strongest
from streamsvm.explanations import Importance, explain_one, importance, measure_keys
from streamsvm.export.report.summary import ModelSummary, compute_missing_share
from streamsvm.files.messages import format_count
from streamsvm.stream.checkpoint import Checkpoint
from streamsvm.stream.page import clean_text, make_curve_part, make_score_part, make_score_parts, to_json_number
from streamsvm.stream.rows import detects_anomalies, find_keys
from streamsvm.stream.scores.base import ScoreReport
from streamsvm.stream.tables import TableModel

_MAX_COLUMNS, _MAX_IMPORTANT_COLUMNS, _MAX_CONTRIBUTIONS, _MAX_EXPERTS = 60, 12, 6, 6
_N_EXPLAINED_ROWS, _MAX_WORDS = 3, 12
_MAX_IMPORTANCE_ROWS = 1000
_MAX_KEYS, _KEY_PRIOR = 10, 5.0  # the prior counts as many rows of the mean error
_COMMAND = "streamsvm report STATE ROWS --to report.html"


@dataclass(frozen=True)
class ReportRows:
    """The rows on which a report scores and explains a model."""

    name: str
    """Name of the source."""
    xs: Sequence[Mapping[Any, Any]]
    """The first rows, for `importance`, which takes 1,000, and for the errors of keys."""
    ys: Sequence[Any]
    """The labels of these rows; None for a row without a label."""
    n_scored: int = 0
    """Number of all rows that were scored."""
    reports: tuple[ScoreReport, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of rows that could not be scored, by reason."""
    seconds: float = math.nan
    """Processor time to read, predict and score the rows."""


def make_report(checkpoint: Checkpoint, rows: ReportRows | None = None, file_bytes: int | None = None) -> dict[str, Any]:
    """Return the contents of a report about the model in a ``checkpoint``, as a dict for
    `streamsvm.stream.page`. With ``rows``, the model is also scored and explained on them. ``file_bytes`` is the size of the
    model's file, if known. Notes name the parts that are missing, and why.
    """
    summary = ModelSummary(checkpoint)
    has_scores = rows is not None and rows.n_scored > 0
    reports = rows.reports if rows is not None and has_scores else summary.reports
    notes: list[str] = []
    title = f"A model that predicts {clean_text(summary.label)}" if summary.label else f"A model: {summary.learner_name}"
    report: dict[str, Any] = {
        "title": title,
        "lead": _make_lead(summary),
        "score": make_score_part(reports[0] if reports else None),
        "tiles": _make_tiles(summary, rows),
        "curve": make_curve_part(summary.curve),
        **make_score_parts(reports[1:]),
        "columns": _make_columns_part(summary),
        "facts": _make_facts_table(summary, rows, file_bytes),
        "experts": _make_experts_part(summary),
        "foot": f"written by streamsvm {__version__}",
    }
    if report["score"]["value"] is not None:
        scored_rows = f"On {rows.n_scored:,} rows of {clean_text(rows.name)}. " if rows is not None and has_scores else ""
        scored_rows = scored_rows or "On the rows of the run, each predicted before it was learned. "
        report["score"]["sentence"] = scored_rows + report["score"]["sentence"]
    elif not summary.n_learned:
        report["score"]["what"] = "It has learned nothing yet."
    elif summary.is_anomaly_detector:
        report["score"]["what"] = "It detects anomalies, and there are no labels to score it by."
    report |= _make_explained_parts(checkpoint.model, summary, rows, notes)
    notes += _make_notes(summary, rows, report)
    return {name: value for name, value in report.items() if value is not None} | {"notes": notes}


def _make_lead(summary: ModelSummary) -> list[str]:
    """Return the short phrases below the title of a report, from the ``summary`` of a model: the data source, the number of
    learned rows and of columns, the range of dates and the name of the learner.
    """
    lead = [] if summary.source is None else [f"learned from {clean_text(summary.source)}"]
    lead.append("nothing was learned yet" if summary.n_learned == 0 else f"{summary.n_learned or 0:,} rows learned")
    used = [column for column in summary.columns if column.kind not in ("dropped", "label", "target")]
    lead += [format_count(len(used), "column")] * bool(used)
    dates = [column for column in used if column.kind == "date" and column.values]
    lead += [f"{clean_text(column.name)} {clean_text(column.values)}" for column in dates[:1]]
    return [*lead, summary.learner_name]


def _make_tiles(summary: ModelSummary, rows: ReportRows | None) -> list[list[str]]:
    """Return the key figures at the top of a report, from the ``summary`` of a model, such as the number of learned rows and the
    memory, as pairs of a name and a text. With scored ``rows``, the time per row is one of them.
    """
    tiles = [["rows learned", f"{summary.n_learned or 0:,}"]]
    if summary.labels:
        tiles.append(["labels", f"{len(summary.labels):,}"])
    tiles.append(["rows refused", f"{summary.n_refused:,}"])
    if summary.n_unlabelled:
        tiles.append(["without a label", f"{summary.n_unlabelled:,}"])
    if summary.n_drifts is not None:
        tiles.append(["drifts", f"{summary.n_drifts:,}"])
    if summary.nbytes is not None:
        tiles.append(["memory", _format_bytes(summary.nbytes)])
    if rows is not None and rows.n_scored and rows.seconds > 0.0:
        tiles.append(["a row", f"{1e6 * rows.seconds / rows.n_scored:,.0f} µs"])
    return tiles


def _format_bytes(n: int) -> str:
    """Return a number of bytes as text with a unit (bytes, KB or MB), rounded to three digits.

    >>> _format_bytes(900), _format_bytes(6600), _format_bytes(1_025_664)
    ('900 bytes', '6.6 KB', '1.03 MB')
    """
    return f"{n} bytes" if n < 1000 else f"{n / 1e3:.3g} KB" if n < 999_500 else f"{n / 1e6:.3g} MB"


def _make_columns_part(summary: ModelSummary) -> dict[str, Any] | None:
    """Return the part of a report that describes the columns that a model was learned from, by its ``summary``: a dict of a
    sentence and a row of cells for each column. Returns None if the columns are unknown.
    """
    if not summary.columns:
        return None
    rows = []
    for column in summary.columns[:_MAX_COLUMNS]:
        share = compute_missing_share(column, summary.n_inspected_rows)
        rows.append(
            {
                "name": clean_text(column.name),
                "kind": clean_text(column.kind),
                "values": clean_text(column.values, 100),
                "missing": None if share is None else to_json_number(share),
                "note": clean_text(column.note, 100),
            }
        )
    sentence = "The features of the model, which are all numbers. The columns that they come from are unknown."
    if summary.n_inspected_rows:
        sentence = f"How the first {summary.n_inspected_rows:,} rows were read."
        has_missing = any(row["missing"] for row in rows)
        sentence += " Shares of missing values are of these rows." if has_missing else " None of these rows misses a value."
    kinds = Counter(column.kind for column in summary.columns[_MAX_COLUMNS:])
    rest = "And " + ", ".join(f"{count:,} of {clean_text(kind)}" for kind, count in kinds.items()) + "." if kinds else ""
    return {"sentence": sentence, "rows": rows, "rest": rest}


def _make_facts_table(summary: ModelSummary, rows: ReportRows | None, file_bytes: int | None) -> list[list[str]]:
    """Return the table of sizes and speed in a report, from the ``summary`` of a model, as pairs of a name and a text. ``rows``
    are those that were scored, or None, and ``file_bytes`` is the size of the model's file, or None.
    """
    table = [["the model is", clean_text(summary.learner_description, 160) or summary.learner_name]]
    table += [[name, clean_text(text, 200)] for name, text in summary.facts.items()]
    if file_bytes is not None:
        table.append(["file", f"{file_bytes:,} bytes"])
    if rows is not None and rows.n_scored and rows.seconds > 0.0:
        micros = 1e6 * rows.seconds / rows.n_scored
        table.append(["to read, predict and score a row", f"{micros:,.0f} µs ({rows.n_scored:,} rows, one processor)"])
    if summary.refused:
        counts = [f"{count:,} {clean_text(kind)}" for kind, count in list(summary.refused.items())[:20]]
        table.append(["refused", ", ".join(counts)])
    return [*table, ["written by", f"streamsvm {summary.version or __version__}"]]


def _make_experts_part(summary: ModelSummary) -> dict[str, Any] | None:
    """Return the part of a report that lists the members (experts) of an ensemble with their weights and errors, from its
    ``summary``: a dict of a sentence and a table. Returns None if the model is not an ensemble.
    """
    if not summary.experts:
        return None
    rows = [
        [clean_text(name), f"{100.0 * share:.0f} %", to_json_number(error)]
        for name, share, error in summary.experts[:_MAX_EXPERTS]
    ]
    sentence = "The experts of the ensemble with the largest weights, and the error of each over about the last 1,000 rows."
    return {"sentence": sentence, "table": [["expert", "share", "recent error"], *rows]}


# Importance of the columns, and explanations of the first rows
# -------------------------------------------------------------------


def _make_explained_parts(model: Any, summary: ModelSummary, rows: ReportRows | None, notes: list[str]) -> dict[str, Any]:
    """Return the parts of a report that explain the model on the user's ``rows``: the importance of the columns, and the
    decisions about the first three rows. ``summary`` describes the model. If the model refuses the rows, appends the reason to
    ``notes``, and returns an empty dict.
    """
    if rows is None or not rows.xs:
        return {}
    pairs = list(zip(rows.xs, rows.ys, strict=True))[:_MAX_IMPORTANCE_ROWS]
    try:
        try:
            ranking = measure_importance(model, pairs)
        except ValueError:  # perhaps because the model refuses a row: leave out refused rows
            pairs = [(x, y) for x, y in pairs if _can_be_explained(model, x)]
            ranking = measure_importance(model, pairs)
        explained = [_make_row_part(explain_one(model, x), y, summary) for x, y in pairs[:_N_EXPLAINED_ROWS]]
        words = _make_words_part(model, [x for x, _ in pairs])
        keys = _make_keys_part(model, rows, summary)
    except ValueError as error:
        notes.append(f"The importance of the columns is unknown: {clean_text(error, 300)}.")
        return {}
    sentence = f"The first rows of {clean_text(rows.name)}. {_EXPLANATION_SENTENCE}"
    parts = {"importance": _make_importance_part(ranking, summary), "explained": {"rows": explained, "sentence": sentence}}
    return parts | ({"words": words} if words else {}) | ({"keys": keys} if keys else {})


def _make_keys_part(model: Any, rows: ReportRows, summary: ModelSummary) -> dict[str, Any] | None:
    """Return the part of a report about the first key of a model, such as the device of a row: the numbers of rows, the values
    with the largest errors, and how much the model gains by knowing the value, as a dict of a sentence and a table. Returns None
    without keys, or if no row has a label.
    """
    keys = find_keys(model)[:1]
    measured: list[Any] = [(value, *facts) for key in keys for value, facts in measure_keys(model, rows.xs, rows.ys, key).items()]
    if not measured:
        return None
    counts, errors, unknown = np.array([facts for _, *facts in measured]).T

    def format_error(error: float) -> str:
        return f"{error:.4g}" if summary.is_regressor else f"{100.0 * error:.1f} %"

    # With few rows, an error is uncertain: it is moved towards the mean.
    means = [float(np.average(array, weights=counts)) for array in (errors, unknown)]
    order = np.argsort(-(counts * errors + _KEY_PRIOR * means[0]) / (counts + _KEY_PRIOR), kind="stable")[:_MAX_KEYS].tolist()
    worst = [[clean_text(value), f"{n:,}", *map(format_error, pair)] for value, n, *pair in map(measured.__getitem__, order)]
    sizes = [len(counts), float(np.median(counts)), counts.max(), (errors < unknown).sum(), (errors > unknown).sum()]
    sentence = _KEYS_SENTENCE.format(*map(format_error, means), *sizes, int(counts.sum()), clean_text(keys[0]))
    return {"sentence": sentence, "table": [["key", "rows", "error", "if unknown"], *worst]}


def _make_words_part(model: Any, xs: Sequence[Mapping[Any, Any]]) -> dict[str, Any] | None:
    """Return the part of a report with the most telling words for each label, or for larger and smaller numbers in a regression,
    among those in the texts of rows ``xs``: a dict of a sentence and a table. Returns None if the model has learned no texts.
    """
    scores: dict[tuple[Hashable, Any], dict[str, float]] = {}
    for x in xs if isinstance(model, TableModel) else ():
        for column, by_label in model.score_words(x).items():
            for label, by_word in by_label.items():
                scores.setdefault((column, label), {}).update(by_word)
    rows = []
    for (column, label), by_word in scores.items():
        for name, sign in [(label, 1.0)] if label is not None else [("larger", 1.0), ("smaller", -1.0)]:
            words = select_strongest({word: score for word, score in by_word.items() if sign * score > 0.0}, _MAX_WORDS)
            rows.append([clean_text(column), clean_text(name), clean_text(format_words(words), 400)])
    table = [["column", "label", "words"], *rows[:_MAX_COLUMNS]]
    return {"sentence": _WORDS_SENTENCE.format(len(xs)), "table": table} if rows else None


def measure_importance(model: Any, pairs: Sequence[tuple[Mapping[Any, Any], Any]]) -> Importance:
    """Measure the importance of a model's columns on ``pairs`` of a row and its label or None: on the rows with a label, by how
    much the error grows if a column's values are shuffled; without labels or predictions, by the sizes of the columns'
    contributions to decisions.
    """
    labelled = [] if detects_anomalies(model) else [(x, y) for x, y in pairs if y is not None]
    if labelled:
        return importance(model, [x for x, _ in labelled], [y for _, y in labelled])
    return importance(model, [x for x, _ in pairs])


def _can_be_explained(model: Any, x: Mapping[Any, Any]) -> bool:
    """Return whether `explain_one` explains the model's decision about the row x, and does not raise ValueError."""
    try:
        explain_one(model, x)
    except ValueError:
        return False
    return True


_POINTS = "By how many points the error, now {:.1f} % of the rows,"
_EXPLANATION_SENTENCE = (
    "Each line is how far a column moves the decision from that of a typical row: above 0 for the answer, below 0 against it."
)


_KEYS_SENTENCE = (
    "{7:,} rows of {2:,} keys ({8}): {3:,g} of a key in the median, and {4:,.0f} of the most frequent one. Their error is {0}, "
    "with memories as of the checkpoint, and would be {1} if all keys were unknown: it is smaller for {5:,} keys, and larger for "
    "{6:,}. These have the largest errors; those of few rows come later."
)
_WORDS_SENTENCE = (
    "The most telling words in {:,} rows. A number is the logarithm of the word's frequency with the label, relative to the mean "
    "of all labels; in a regression, the mean target of texts with the word, in standard deviations from the mean of all."
)


def _make_importance_part(ranking: Importance, summary: ModelSummary) -> dict[str, Any]:
    """Return the part of a report that shows the most important columns of a model, as a dict: a sentence about the measure, a
    table, and a phrase about the columns that are left out. ``ranking`` has the measured importance, and ``summary`` describes
    the model.
    """
    deltas, sizes = ranking.error_increases, ranking.mean_contributions
    names = sorted(deltas, key=lambda name: -deltas[name]) or list(sizes)
    columns = []
    for name in names[:_MAX_IMPORTANT_COLUMNS]:
        delta = deltas.get(name)
        text = f"{sizes[name]:.3g}" if delta is None else f"{delta:+.3g}" if summary.is_regressor else f"{100.0 * delta:+.1f}"
        columns.append([clean_text(name), to_json_number(sizes[name] if delta is None else max(delta, 0.0)), text])
    sentence = f"How much each column moves a decision, in the mean over {ranking.n_rows:,} rows."
    if deltas:
        error = f"How much the error, now {ranking.error:.4g}," if summary.is_regressor else _POINTS.format(100.0 * ranking.error)
        sentence = f"{error} grows if the values of a column are shuffled among {ranking.n_rows:,} rows."
    n_rest = len(names) - len(columns)
    rest = f"And {format_count(n_rest, 'further column')}, which matter less." if n_rest else ""
    return {"sentence": sentence, "columns": columns, "rest": rest}


def _make_row_part(explanation: Explanation, y: Any, summary: ModelSummary) -> dict[str, Any]:
    """Return the part of a report that explains one decision of a model, which ``summary`` describes: a dict of a title with the
    prediction and the true label ``y``, if known, and the contributions of the columns to the decision, from ``explanation``.
    """
    prediction = explanation.prediction
    is_float = isinstance(prediction, float)
    text = clean_text(repr(prediction) if isinstance(prediction, str) else f"{prediction:.6g}" if is_float else prediction)
    title = "a row" if prediction is None else f"predicts {text}"
    is_right = None if y is None or prediction is None or summary.is_regressor else bool(y == prediction)
    if y is not None and prediction is not None and not is_right:
        title += f", and is {clean_text(repr(y) if isinstance(y, str) else y)}"
    contributions: list[tuple[Hashable, float]] = list(explanation.contributions.items())
    parts = [
        [clean_text(name), _format_value(explanation.values.get(name), explanation.words.get(name)), to_json_number(size)]
        for name, size in contributions[:_MAX_CONTRIBUTIONS]
    ]
    if rest := contributions[_MAX_CONTRIBUTIONS:]:
        rest_sum = to_json_number(sum(size for _, size in rest))
        parts.append([format_count(len(rest), "further column"), None, rest_sum])
    parts.append(["several together", None, to_json_number(explanation.remainder)])
    decision = f"decision {explanation.decision:.3g}, of a typical row {explanation.typical:.3g}"
    return {"title": title, "right": is_right, "decision": decision, "parts": parts}


def _format_value(value: Any, words: Mapping[str, float] | None = None) -> str:
    """Return the value of a column as text for a report: floats with six digits, others cut to 30 characters, None as
    ``missing``. A text is followed by the scores of its most telling ``words``.
    """
    if words:
        return f"{clean_text(value, 30)} ({clean_text(format_words(words), 150)})"
    return "missing" if value is None else f"{value:.6g}" if isinstance(value, float) else clean_text(value, 30)


# Notes ------------------------------------------------------------------------------------------------------------------------


def _make_notes(summary: ModelSummary, rows: ReportRows | None, report: Mapping[str, Any]) -> list[str]:
    """Return sentences at the end of a report about a model that name its missing parts, such as scores or explanations, and how
    to get them. ``summary`` describes the model, ``rows`` are the user's, or None, and ``report`` has the parts so far.
    """
    notes = []
    if summary.n_learned and len(summary.labels) == 1:
        notes.append(f"It has learned a single label, {clean_text(summary.labels[0])}, and predicts nothing else.")
    if report["curve"] is None:
        reason = clean_text(summary.curve_error, 300) or "checkpoints of streamsvm learn have one, saved models have none"
        notes.append(f"There is no score over time: {reason}.")
    if rows is None:
        words = "telling words, " * any(column.kind == "text" for column in summary.columns)
        notes.append(f"For the importance of columns, explanations, {words}and scores on other rows, give rows: {_COMMAND}")
    elif not (rows.n_scored or summary.is_anomaly_detector):
        notes.append(f"No row of {clean_text(rows.name)} has a label to score, so scores are those of the run.")
    if rows is not None and rows.left_out:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in rows.left_out.items())
        notes.append(f"Not scored of {clean_text(rows.name)}: {counts}.")
    if not summary.n_inspected_rows:
        notes.append("The kinds of its columns are unknown: it was not learned from a table with schema inference.")
    return notes
