"""The page that shows what a model does: of a report with its figures in it, of a run that goes on fetched again and again."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from streamsvm.files.messages import shorten
from streamsvm.stream.progress import LearningCurve, Progress
from streamsvm.stream.scores.base import ScoreReport

_LONGEST = 60  # letters of a name or a label
#: Metrics of which less is better.
_LOWER = {"MAE", "MSE", "RMSE", "RMSLE", "MAPE", "SMAPE", "LogLoss", "CrossEntropy", "BrierScore"}


def render_page(facts: Mapping[str, Any] | None = None) -> str:
    """Return the page as HTML: a file of its own with these figures in it, or one that asks for ``state.json`` beside it.

    Whatever the figures say, a browser runs nothing but the script of the page, and asks nobody else for anything.
    """
    here = files(__package__)
    page, style, script = (here.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    asks = "'self'" if facts is None else "'none'"
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src {asks}; "
        "base-uri 'none'; form-action 'none'"
    )
    facts_text = "" if facts is None else json.dumps(facts, allow_nan=False).replace("<", "\\u003c")
    for name, text in (
        ("POLICY", policy),
        ("STYLE", style.rstrip()),
        ("SCRIPT", script),
        ("FACTS", facts_text),
    ):  # the last: a stranger's
        page = page.replace(f"@{name}@", text, 1)
    return page


def clean_text(value: Any, most: int = _LONGEST) -> str:
    r"""Return a name or a label as one short line of text, without letters that steer how others are written.

    >>> clean_text("a\u202eb\n" + "c" * 100, 12)
    'a\\u202eb ...'
    """
    letters = shorten(str(value), most)
    text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in letters)
    return shorten(text, most)


def to_json_number(value: float | None) -> float | None:
    """Return a number as JSON has it; None where it is none."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def make_score_part(report: ScoreReport | None) -> dict[str, Any]:
    """Return what the page says first: a score in words, beside what guessing gives.

    >>> part = make_score_part(ScoreReport("Accuracy", 0.85, 0.9, (("always 'no'", 0.75),)))
    >>> part["big"], part["sentence"]
    ('85.0 %', "Always 'no' is right for 75.0 %: the model makes 40 % fewer errors than that guess.")
    """
    if report is None or not math.isfinite(report.value):
        return {"big": "", "what": "No row was scored yet.", "sentence": "", "value": None, "guesses": []}
    name, value, percent, lower = report.name, report.value, report.name == "Accuracy", report.name in _LOWER
    guesses = [(clean_text(what, 80), score) for what, score in report.baselines if math.isfinite(score)]
    part: dict[str, Any] = {
        "big": f"{100.0 * value:.1f} %" if percent else f"{value:,.4g}",
        "what": "of the rows are predicted right" if percent else _WORDS.get(name, name),
        "sentence": "",
        "value": to_json_number(value),
        "guesses": [[what, to_json_number(score)] for what, score in guesses],
        "percent": percent,
        "lower": lower,
    }
    if guesses:
        what, best = (min if lower else max)(guesses, key=lambda guess: guess[1])
        what = what[0].upper() + what[1:]
        if percent:
            gain = (value - best) / (1.0 - best) if best < 1.0 else 0.0
            better = f"the model makes {100.0 * gain:.0f} % fewer errors than that guess"
            part["sentence"] = f"{what} is right for {100.0 * best:.1f} %: "
        else:
            gain = (best - value) / best if lower and best > 0.0 else value - best
            better = f"the model's is {100.0 * gain:.0f} % smaller" if lower else "the model is better"
            part["sentence"] = f"{what} gives {best:,.4g}: "
        part["sentence"] += f"{better if gain > 0.0 else 'the model is no better than that'}."
    return part


_WORDS = {
    "MAE": "mean absolute error",
    "RMSE": "root of the mean squared error",
    "R2": "R2, the share of the variance that is explained",
    "LogLoss": "log loss",
    "ROCAUC": "area under the ROC curve",
}


def make_score_parts(reports: Iterable[ScoreReport]) -> dict[str, Any]:
    """Return the parts of the page that scores beside the first fill: numbers, and tables of labels."""
    parts: dict[str, Any] = {}
    numbers: list[list[Any]] = []
    for report in reports:
        part = _TABLES.get(report.name)
        if report.table is not None and report.name == "Calibration":
            bins = [[to_json_number(expected), to_json_number(right), rows] for _, expected, right, rows in report.table[1:-1]]
            parts |= {"calibration": {"sentence": _CALIBRATED, "bins": bins}} if bins else {}
        elif report.table is not None and part is not None and len(report.table) > 1:
            head, *rows = report.table
            cells = [[_plain_cell(cell) if i else clean_text(cell) for i, cell in enumerate(row)] for row in rows]
            parts[part[0]] = {"sentence": part[1], "table": [list(map(clean_text, head)), *cells]}
        elif report.table is None and math.isfinite(report.value):
            guesses = ", ".join(f"{clean_text(what)}: {value:.4g}" for what, value in report.baselines if math.isfinite(value))
            numbers.append([_WORDS.get(report.name, report.name), to_json_number(report.value), guesses])
    return parts | ({"scores": numbers} if numbers else {})


_CALIBRATED = (
    "How often an answer is right, by how probable it was said to be: less than expected, and it was too sure of itself."
)
_TABLES = {
    "ConfusionMatrix": (
        "confusion",
        "A line for each true label, a column for each that was predicted: on the diagonal, both are the same.",
    ),
    "ClassificationReport": (
        "labels",
        "Precision: how many that were called so are. Recall: how many that are so were found. F1 is between them.",
    ),
    "Thresholds": (
        "thresholds",
        "What it would give to predict the positive label from a probability on: how many rows are called so, and how well.",
    ),
}


def _plain_cell(cell: Any) -> Any:
    return clean_text(cell) if not isinstance(cell, int | float) else to_json_number(cell) if isinstance(cell, float) else cell


def make_curve_part(curve: LearningCurve | None) -> dict[str, Any] | None:
    """Return the part of the page that a learning curve fills; None if there is none."""
    if curve is None or not curve.points:
        return None
    points = [[point.rows, *map(to_json_number, point[1:4]), point.refused, point.drifts] for point in curve.points]
    sentence = "Each row was predicted before it was learned, so these are scores of rows that were not known."
    return {"metric": clean_text(curve.metric), "window": curve.window, "points": points, "sentence": sentence}


_MOST_NOTES = 20


def make_live_state(
    name: str,
    progress: Sequence[Progress],
    points: Sequence[Mapping[str, Any]],
    curve: LearningCurve | None,
    facts: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Return the figures of one loop, or of several.

    ``progress`` is that of each, ``points`` are those of the run so far, the last one of now, and ``facts`` what else is known,
    with names. The ``curve`` is that of a loop that is alone.
    """
    learning = [one for one in progress if one.learns]
    alone = learning[0] if len(learning) == 1 else None
    metric = learning[0].metric_name if learning else None
    if alone is not None and alone.scores:
        report = alone.scores[0]
    else:
        value, windowed = (math.nan if points[-1][one] is None else points[-1][one] for one in ("metric", "windowed"))
        report = ScoreReport(metric or "", value, windowed)
    drawn = make_curve_part(curve)
    sentences = [text for one in progress if not one.learns for text in one.columns.messages]
    return {
        "title": clean_text(name),
        "lead": _lead_sentences(progress),
        "score": make_score_part(report) if learning else None,
        "tiles": _figure_tiles(progress, points, report),
        "metric": metric,
        "curve": drawn and drawn | {"sentence": f"{drawn['sentence']} Those of earlier runs are there, too."},
        "points": points,
        "facts": facts,
        "notes": [clean_text(text, 300) for text in sentences[:_MOST_NOTES]],
        "foot": f"served by streamsvm {version('streamsvm')}",
        **(make_score_parts(alone.scores[1:]) if alone is not None else {}),
    }


def _lead_sentences(progress: Sequence[Progress]) -> list[str]:
    rows = sum(one.rows for one in progress)
    lead = [f"{rows:,} row{'s' * (rows != 1)}"]
    if learned := sum(one.learned for one in progress):
        lead.append(f"{learned:,} learned")
    if predicted := sum(one.predicted for one in progress if not one.learns):
        lead.append(f"{predicted:,} predicted")
    return lead


def _figure_tiles(progress: Sequence[Progress], points: Sequence[Mapping[str, Any]], report: ScoreReport) -> list[list[str]]:
    last = points[-1]
    before = points[-2] if len(points) > 1 else last
    seconds = last["seconds"] - before["seconds"]
    tiles = [["rows", f"{last['rows']:,}"]]
    if seconds > 0.0:
        tiles.append(["rows a second", f"{(last['rows'] - before['rows']) / seconds:,.0f}"])
    if math.isfinite(report.windowed):
        window = progress[0].window
        is_share = report.name == "Accuracy"
        tiles.append([f"last {window:,} rows", f"{100.0 * report.windowed:.1f} %" if is_share else f"{report.windowed:,.4g}"])
    if last["lag"] is not None:
        tiles.append(["rows that wait", f"{last['lag']:,}"])
    tiles.append(["refused", f"{last['refused']:,}"])
    if any(one.drifts is not None for one in progress):
        tiles.append(["drifts", f"{last['drifts']:,}"])
    if last["support_vectors"] is not None:
        tiles.append(["support vectors", f"{last['support_vectors']:,}"])
    return tiles
