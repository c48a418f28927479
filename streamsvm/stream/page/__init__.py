"""The HTML page of a model report, and of the live monitor of a run, and the figures that it shows."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from streamsvm.files.messages import format_count, shorten
from streamsvm.stream.progress import LearningCurve, Progress
from streamsvm.stream.scores.base import ScoreReport

_MAX_TEXT_LENGTH = 60  # characters of a name or a label
#: Metrics for which smaller values are better.
_LOWER_IS_BETTER = {"MAE", "MSE", "RMSE", "RMSLE", "MAPE", "SMAPE", "LogLoss", "CrossEntropy", "BrierScore"}


def render_page(figures: Mapping[str, Any] | None = None) -> str:
    """Return the web page of a run as HTML. With ``figures``, it is a self-contained report of these. Without, it is a live page
    that fetches its figures from ``state.json`` repeatedly.

    Its content security policy allows only the page's own script, and no requests to other hosts, even if figures contain HTML.
    """
    package = files(__package__)
    page, style, script = (package.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    connections = "'self'" if figures is None else "'none'"
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src {connections}; "
        "base-uri 'none'; form-action 'none'"
    )
    figures_text = "" if figures is None else json.dumps(figures, allow_nan=False).replace("<", "\\u003c")
    # The figures are inserted last: they may contain the other placeholders.
    for name, text in (("POLICY", policy), ("STYLE", style.rstrip()), ("SCRIPT", script), ("FACTS", figures_text)):
        page = page.replace(f"@{name}@", text, 1)
    return page


def clean_text(value: Any, max_length: int = _MAX_TEXT_LENGTH) -> str:
    r"""Return a value as one line of text for the page: shortened to ``max_length`` characters, with unprintable characters
    escaped.

    >>> clean_text("a\u202eb\n" + "c" * 100, 12)
    'a\\u202eb ...'
    """
    letters = shorten(str(value), max_length)
    text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in letters)
    return shorten(text, max_length)


def to_json_number(value: float | None) -> float | None:
    """Round a number to six significant digits for JSON. NaN, infinite values and None become None."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def make_score_part(report: ScoreReport | None) -> dict[str, Any]:
    """Return the data of the main metric for the web page as a dict: its value as text, and a sentence that compares it with the
    best baseline. ``report`` has the metric's current value; None, or a value of NaN: no row was scored yet.

    >>> part = make_score_part(ScoreReport("Accuracy", 0.85, 0.9, (("always 'no'", 0.75),)))
    >>> part["big"], part["sentence"]
    ('85.0 %', "Always 'no' is right for 75.0 %: the model makes 40 % fewer errors than that guess.")
    """
    if report is None or not math.isfinite(report.value):
        return {"big": "", "what": "No row was scored yet.", "sentence": "", "value": None, "guesses": []}
    name, value = report.name, report.value
    is_share, is_lower_better = name == "Accuracy", name in _LOWER_IS_BETTER
    baselines = [(clean_text(baseline, 80), score) for baseline, score in report.baselines if math.isfinite(score)]
    part: dict[str, Any] = {
        "big": f"{100.0 * value:.1f} %" if is_share else f"{value:,.4g}",
        "what": "of the rows are predicted right" if is_share else _METRIC_NAMES.get(name, name),
        "sentence": "",
        "value": to_json_number(value),
        "guesses": [[baseline, to_json_number(score)] for baseline, score in baselines],
        "percent": is_share,
        "lower": is_lower_better,
    }
    if baselines:
        baseline, best = (min if is_lower_better else max)(baselines, key=lambda pair: pair[1])
        baseline = baseline[0].upper() + baseline[1:]
        if is_share:
            gain = (value - best) / (1.0 - best) if best < 1.0 else 0.0
            verdict = f"the model makes {100.0 * gain:.0f} % fewer errors than that guess"
            part["sentence"] = f"{baseline} is right for {100.0 * best:.1f} %: "
        else:
            gain = (best - value) / best if is_lower_better and best > 0.0 else value - best
            verdict = f"the model's is {100.0 * gain:.0f} % smaller" if is_lower_better else "the model is better"
            part["sentence"] = f"{baseline} gives {best:,.4g}: "
        part["sentence"] += f"{verdict if gain > 0.0 else 'the model is no better than that'}."
    return part


_METRIC_NAMES = {
    "MAE": "mean absolute error",
    "RMSE": "root of the mean squared error",
    "R2": "R2, the share of the variance that is explained",
    "LogLoss": "log loss",
    "ROCAUC": "area under the ROC curve",
}


def make_score_parts(reports: Iterable[ScoreReport]) -> dict[str, Any]:
    """Return the data of all metrics except the first for the web page, as a dict: a list of values with their baselines
    (``"scores"``), and tables such as the confusion matrix, each under its own key.
    """
    parts: dict[str, Any] = {}
    numbers: list[list[Any]] = []
    for report in reports:
        table_part = _TABLE_PARTS.get(report.name)
        if report.table is not None and report.name == "Calibration":
            bins = [
                [to_json_number(expected), to_json_number(right), n_rows] for _, expected, right, n_rows in report.table[1:-1]
            ]
            parts |= {"calibration": {"sentence": _CALIBRATION_SENTENCE, "bins": bins}} if bins else {}
        elif report.table is not None and table_part is not None and len(report.table) > 1:
            head, *rows = report.table
            cells = [[_clean_cell(cell) if i else clean_text(cell) for i, cell in enumerate(row)] for row in rows]
            parts[table_part[0]] = {"sentence": table_part[1], "table": [list(map(clean_text, head)), *cells]}
        elif report.table is None and math.isfinite(report.value):
            baselines = ", ".join(
                f"{clean_text(baseline)}: {value:.4g}" for baseline, value in report.baselines if math.isfinite(value)
            )
            numbers.append([_METRIC_NAMES.get(report.name, report.name), to_json_number(report.value), baselines])
    return parts | ({"scores": numbers} if numbers else {})


_CALIBRATION_SENTENCE = (
    "How often predictions are right, by their probability. A point stands for a tenth of the probabilities: their mean is the "
    "share of right predictions that is expected there. Where it is smaller, the model is overconfident."
)
_TABLE_PARTS = {
    "ConfusionMatrix": (
        "confusion",
        "A line for each true label, a column for each that was predicted: on the diagonal, both are the same.",
    ),
    "ClassificationReport": (
        "labels",
        "Precision: the share of rows predicted as a label that have it. Recall: the share of rows with it that are found.",
    ),
    "Thresholds": (
        "thresholds",
        "The results of predicting the positive label from a probability on: how many rows are predicted so, and how well.",
    ),
}


def _clean_cell(cell: Any) -> Any:
    """Return a cell of a metric's table for JSON: integers unchanged, floats rounded to six digits, and all
    else as clean text.
    """
    return clean_text(cell) if not isinstance(cell, int | float) else to_json_number(cell) if isinstance(cell, float) else cell


def make_curve_part(curve: LearningCurve | None) -> dict[str, Any] | None:
    """Return the data of the learning curve for the web page as a dict: the metric, the window in rows, and the points as lists
    of numbers. None without a curve, or if it has no point.
    """
    if curve is None or not curve.points:
        return None
    points = [
        [point.rows, *map(to_json_number, point[1:4]), point.refused, point.drifts, to_json_number(point.windowed_baseline)]
        for point in curve.points
    ]
    sentence = "Each row was predicted before it was learned, so these are scores on unseen rows."
    return {"metric": clean_text(curve.metric), "window": curve.window, "points": points, "sentence": sentence}


_MAX_NOTES = 20


def make_live_state(
    name: str,
    progress: Sequence[Progress],
    points: Sequence[Mapping[str, Any]],
    curve: LearningCurve | None,
    facts: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Return the content of the live web page as a dict for JSON. ``name`` is the title, ``progress`` the progress of each loop
    of the run, and ``points`` are the figures at earlier times. ``facts`` are further pairs of name and value to show. ``curve``
    is the learning curve, or None.
    """
    learning = [loop for loop in progress if loop.learns]
    single = learning[0] if len(learning) == 1 else None
    metric = learning[0].metric_name if learning else None
    if single is not None and single.scores:
        report = single.scores[0]
    else:
        value, windowed = (math.nan if points[-1][key] is None else points[-1][key] for key in ("metric", "windowed"))
        report = ScoreReport(metric or "", value, windowed)
    curve_part = make_curve_part(curve)
    sentences = [f"column {name!r} is {kind}" for loop in progress for kind, name in loop.schema_changes]
    sentences += [text for loop in progress if not loop.learns for text in loop.messages]
    return {
        "title": clean_text(name),
        "lead": _count_rows(progress),
        "score": make_score_part(report) if learning else None,
        "tiles": _make_tiles(progress, points, report),
        "metric": metric,
        "curve": curve_part and curve_part | {"sentence": f"{curve_part['sentence']} Scores of earlier runs are included."},
        "points": points,
        "facts": facts,
        "notes": [clean_text(text, 300) for text in sentences[:_MAX_NOTES]],
        "foot": f"served by streamsvm {version('streamsvm')}",
        **(make_score_parts(single.scores[1:]) if single is not None else {}),
    }


def _count_rows(progress: Sequence[Progress]) -> list[str]:
    """Return texts for the page such as ``["1,000 rows", "900 learned"]``: the rows that all loops have read, learned and,
    without learning, predicted.
    """
    n_rows = sum(loop.rows for loop in progress)
    counts = [format_count(n_rows, "row")]
    if n_learned := sum(loop.learned for loop in progress):
        counts.append(f"{n_learned:,} learned")
    if n_predicted := sum(loop.predicted for loop in progress if not loop.learns):
        counts.append(f"{n_predicted:,} predicted")
    return counts


def _make_tiles(progress: Sequence[Progress], points: Sequence[Mapping[str, Any]], report: ScoreReport) -> list[list[str]]:
    """Return the most important current figures for the web page, as pairs of name and text, such as ``["unread rows", "120"]``.
    ``points`` are the figures over time, and the latest ones are used; ``report`` has the current value of the main metric.
    """
    current = points[-1]
    previous = points[-2] if len(points) > 1 else current
    seconds = current["seconds"] - previous["seconds"]
    tiles = [["rows", f"{current['rows']:,}"]]
    if seconds > 0.0:
        tiles.append(["rows a second", f"{(current['rows'] - previous['rows']) / seconds:,.0f}"])
    if math.isfinite(report.windowed):
        window = progress[0].window
        is_share = report.name == "Accuracy"
        guesses = ((f"these rows, {name}", value) for name, value in report.windowed_baselines[:1])
        for text, value in ((f"last {window:,} rows", report.windowed), *guesses):
            tiles.append([clean_text(text, 80), f"{100.0 * value:.1f} %" if is_share else f"{value:,.4g}"])
    if current["lag"] is not None:
        tiles.append(["unread rows", f"{current['lag']:,}"])
    tiles.append(["refused", f"{current['refused']:,}"])
    if any(loop.drifts is not None for loop in progress):
        tiles.append(["drifts", f"{current['drifts']:,}"])
    if current["support_vectors"] is not None:
        tiles.append(["support vectors", f"{current['support_vectors']:,}"])
    return tiles
