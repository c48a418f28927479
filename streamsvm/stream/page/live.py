"""The figures of the page of a run that goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from streamsvm.stream.page import curve_of, plain, score_of, scores_of
from streamsvm.stream.prediction import Predicted
from streamsvm.stream.scored_loop import LearningCurve
from streamsvm.stream.scores.base import ScoreReport
from streamsvm.stream.stream_loop import Progress

_MOST_NOTES = 20


def live_facts(
    name: str,
    found: Sequence[Progress | Predicted],
    points: Sequence[Mapping[str, Any]],
    curve: LearningCurve | None,
    facts: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Return the figures of one loop, or of several.

    ``found`` is their progress, ``points`` are those of the run so far, the last one of now, and ``facts`` what else is known,
    with names. The ``curve`` is that of a loop that is alone.
    """
    learning = [each for each in found if isinstance(each, Progress)]
    alone = learning[0] if len(learning) == 1 else None
    metric = learning[0].metric_name if learning else None
    if alone is not None and alone.scores:
        report = alone.scores[0]
    else:
        value, windowed = (math.nan if points[-1][each] is None else points[-1][each] for each in ("metric", "windowed"))
        report = ScoreReport(metric or "", value, windowed)
    drawn = curve_of(curve)
    sentences = [text for each in found if isinstance(each, Predicted) for text in each.unfamiliar.sentences]
    return {
        "title": plain(name),
        "lead": _lead_sentences(found),
        "score": score_of(report) if learning else None,
        "tiles": _figure_tiles(found, points, report),
        "metric": metric,
        "curve": drawn and drawn | {"sentence": f"{drawn['sentence']} Those of earlier runs are there, too."},
        "points": points,
        "facts": facts,
        "notes": [plain(text, 300) for text in sentences[:_MOST_NOTES]],
        "foot": f"served by streamsvm {version('streamsvm')}",
        **(scores_of(alone.scores[1:]) if alone is not None else {}),
    }


def _lead_sentences(found: Sequence[Any]) -> list[str]:
    rows = sum(each.rows for each in found)
    lead = [f"{rows:,} row{'s' * (rows != 1)}"]
    if learned := sum(each.learned for each in found if isinstance(each, Progress)):
        lead.append(f"{learned:,} learned")
    if predicted := sum(each.predicted for each in found if isinstance(each, Predicted)):
        lead.append(f"{predicted:,} predicted")
    return lead


def _figure_tiles(found: Sequence[Any], points: Sequence[Mapping[str, Any]], report: ScoreReport) -> list[list[str]]:
    """Return the figures below the score, with their names."""
    last = points[-1]
    before = points[-2] if len(points) > 1 else last
    seconds = last["seconds"] - before["seconds"]
    tiles = [["rows", f"{last['rows']:,}"]]
    if seconds > 0.0:
        tiles.append(["rows a second", f"{(last['rows'] - before['rows']) / seconds:,.0f}"])
    if math.isfinite(report.windowed):
        window = next(each.window for each in found if isinstance(each, Progress))
        is_share = report.name == "Accuracy"
        tiles.append([f"last {window:,} rows", f"{100.0 * report.windowed:.1f} %" if is_share else f"{report.windowed:,.4g}"])
    if last["lag"] is not None:
        tiles.append(["rows that wait", f"{last['lag']:,}"])
    tiles.append(["refused", f"{last['refused']:,}"])
    if any(isinstance(each, Progress) and each.drifts is not None for each in found):
        tiles.append(["drifts", f"{last['drifts']:,}"])
    if last["support_vectors"] is not None:
        tiles.append(["support vectors", f"{last['support_vectors']:,}"])
    return tiles
