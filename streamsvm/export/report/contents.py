"""The figures of a report: those of a checkpoint, and of rows that were given with it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamsvm import __version__
from streamsvm.core.explaining import Explanation
from streamsvm.explanations import Importance, explain_one, importance
from streamsvm.export.report.summary import ModelSummary, missing_share
from streamsvm.stream.checkpoint import Checkpoint
from streamsvm.stream.page import clean_text, make_curve_part, make_score_part, make_score_parts, to_json_number
from streamsvm.stream.scores.base import ScoreReport

_MOST_COLUMNS, _MOST_IMPORTANT, _MOST_PARTS, _MOST_EXPERTS = 60, 12, 6, 6
_EXPLAINED = 3
_HOW = "streamsvm report STATE ROWS --to report.html"


@dataclass(frozen=True)
class ReportRows:
    """Rows that were given with a model."""

    name: str
    xs: Sequence[Mapping[Any, Any]]
    """The first of them, as `importance` takes them."""
    ys: Sequence[Any]
    """Their labels; None where one has none."""
    n_scored: int = 0
    """The number of rows that were scored, of all."""
    reports: tuple[ScoreReport, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of rows that could not be scored, by reason."""
    seconds: float = math.nan
    """Of the processor, in which they were read, predicted and scored."""


def make_report(checkpoint: Checkpoint, given: ReportRows | None = None, file_bytes: int | None = None) -> dict[str, Any]:
    """Return the figures of the page `streamsvm.stream.page`, and what is not there in sentences.

    ``file_bytes`` is the size of the file that was read, where there is one.
    """
    known = ModelSummary(checkpoint)
    scored = given is not None and given.n_scored > 0
    reports = given.reports if given is not None and scored else known.reports
    notes: list[str] = []
    facts: dict[str, Any] = {
        "title": f"A model that predicts {clean_text(known.label)}" if known.label else f"A model: {known.learner}",
        "lead": _lead_sentences(known),
        "score": make_score_part(reports[0] if reports else None),
        "tiles": _figure_tiles(known, given),
        "curve": make_curve_part(known.curve),
        **make_score_parts(reports[1:]),
        "columns": _columns_facts(known),
        "facts": _size_rows(known, given, file_bytes),
        "experts": _experts_facts(known),
        "foot": f"written by streamsvm {__version__}",
    }
    if facts["score"]["value"] is not None:
        which = f"On {given.n_scored:,} rows of {clean_text(given.name)}. " if given is not None and scored else ""
        which = which or "On the rows of the run, each predicted before it was learned. "
        facts["score"]["sentence"] = which + facts["score"]["sentence"]
    elif not known.learned:
        facts["score"]["what"] = "It has learned nothing yet."
    elif known.anomalies:
        facts["score"]["what"] = "It tells usual rows from odd ones, and has no labels by which it could be scored."
    facts |= _explained_facts(checkpoint.model, known, given, notes)
    notes += _notes_of(known, given, facts)
    return {name: value for name, value in facts.items() if value is not None} | {"notes": notes}


def _lead_sentences(known: ModelSummary) -> list[str]:
    lead = [] if known.source is None else [f"learned from {clean_text(known.source)}"]
    lead.append("nothing was learned yet" if known.learned == 0 else f"{known.learned or 0:,} rows learned")
    used = [column for column in known.columns if column.kind not in ("dropped", "label", "target")]
    lead += [f"{len(used):,} column{'s' * (len(used) != 1)}"] * bool(used)
    lead += [
        f"{clean_text(column.name)} {clean_text(column.values)}" for column in used if column.kind == "date" and column.values
    ][:1]
    return [*lead, known.learner]


def _figure_tiles(known: ModelSummary, given: ReportRows | None) -> list[list[str]]:
    found = [["rows learned", f"{known.learned or 0:,}"]]
    if known.labels:
        found.append(["labels", f"{len(known.labels):,}"])
    found.append(["rows refused", f"{known.n_refused:,}"])
    if known.unlabelled:
        found.append(["without a label", f"{known.unlabelled:,}"])
    if known.drifts is not None:
        found.append(["drifts", f"{known.drifts:,}"])
    if known.nbytes is not None:
        found.append(["memory", _bytes_text(known.nbytes)])
    if given is not None and given.n_scored and given.seconds > 0.0:
        found.append(["a row", f"{1e6 * given.seconds / given.n_scored:,.0f} µs"])
    return found


def _bytes_text(n: int) -> str:
    """Return a number of bytes for people.

    >>> _bytes_text(900), _bytes_text(6600), _bytes_text(1_025_664)
    ('900 bytes', '6.6 KB', '1.03 MB')
    """
    return f"{n} bytes" if n < 1000 else f"{n / 1e3:.3g} KB" if n < 999_500 else f"{n / 1e6:.3g} MB"


def _columns_facts(known: ModelSummary) -> dict[str, Any] | None:
    if not known.columns:
        return None
    rows = [
        {
            "name": clean_text(column.name),
            "kind": clean_text(column.kind),
            "values": clean_text(column.values, 100),
            "missing": None if (share := missing_share(column, known.seen_rows)) is None else to_json_number(share),
            "note": clean_text(column.note, 100),
        }
        for column in known.columns[:_MOST_COLUMNS]
    ]
    sentence = "The features that came, each a number: nothing says of which columns they were made."
    if known.seen_rows:
        sentence = f"How a first look at {known.seen_rows:,} rows has read the columns."
        some = any(row["missing"] for row in rows)
        sentence += " Shares of missing values are of these rows." if some else " None of these rows misses a value."
    kinds = Counter(column.kind for column in known.columns[_MOST_COLUMNS:])
    rest = "And " + ", ".join(f"{count:,} of {clean_text(kind)}" for kind, count in kinds.items()) + "." if kinds else ""
    return {"sentence": sentence, "rows": rows, "rest": rest}


def _size_rows(known: ModelSummary, given: ReportRows | None, file_bytes: int | None) -> list[list[str]]:
    found = [["the model is", clean_text(known.words, 160) or known.learner]]
    if known.decides:
        found.append(["decides", clean_text(known.decides, 200)])
    if known.nbytes is not None:
        found.append(["memory", f"{known.nbytes:,} bytes"])
    if file_bytes is not None:
        found.append(["file", f"{file_bytes:,} bytes"])
    found.append(["exported", clean_text(known.export, 200)])
    if known.support_vectors is not None:
        n, budget = known.support_vectors
        found.append(["support vectors", f"{n:,}" + (f" of {budget:,}" if budget is not None else "")])
    if given is not None and given.n_scored and given.seconds > 0.0:
        micros = 1e6 * given.seconds / given.n_scored
        found.append(["to read, predict and score a row", f"{micros:,.0f} µs ({given.n_scored:,} rows, one processor)"])
    if known.refused:
        found.append(["refused", ", ".join(f"{count:,} {clean_text(kind)}" for kind, count in list(known.refused.items())[:20])])
    return [*found, ["written by", f"streamsvm {known.version or __version__}"]]


def _experts_facts(known: ModelSummary) -> dict[str, Any] | None:
    if not known.experts:
        return None
    rows = [
        [clean_text(name), f"{100.0 * share:.0f} %", to_json_number(error)]
        for name, share, error in known.experts[:_MOST_EXPERTS]
    ]
    sentence = "The experts of the ensemble that are heard most, and the error of each over about the last 1,000 rows."
    return {"sentence": sentence, "table": [["expert", "share", "recent error"], *rows]}


def _explained_facts(model: Any, known: ModelSummary, given: ReportRows | None, notes: list[str]) -> dict[str, Any]:
    """Return which columns matter and why the first rows are decided so, with the rows that were given."""
    if given is None or not given.xs:
        return {}
    pairs = list(zip(given.xs, given.ys, strict=True))
    try:
        try:
            found = _measured_importance(model, pairs)
        except ValueError:  # of a row that is refused, perhaps
            pairs = [(x, y) for x, y in pairs if _is_explained(model, x)]
            found = _measured_importance(model, pairs)
        rows = [_row_facts(explain_one(model, x), y, known) for x, y in pairs[:_EXPLAINED]]
    except ValueError as error:
        notes.append(f"Which columns matter is not known: {clean_text(error, 300)}.")
        return {}
    return {
        "importance": _importance_facts(found, known),
        "explained": {"rows": rows, "sentence": f"The first rows of {clean_text(given.name)}. {_WHY}"},
    }


def _measured_importance(model: Any, pairs: Sequence[tuple[Mapping[Any, Any], Any]]) -> Importance:
    labelled = [(x, y) for x, y in pairs if y is not None] if hasattr(model, "predict_one") else []
    if labelled:
        return importance(model, [x for x, _ in labelled], [y for _, y in labelled])
    return importance(model, [x for x, _ in pairs])


def _is_explained(model: Any, x: Mapping[Any, Any]) -> bool:
    try:
        explain_one(model, x)
    except ValueError:
        return False
    return True


_POINTS = "By how many points the error, now {:.1f} % of the rows,"
_WHY = (
    "Each line is what a column moves the decision by, against that of a typical row: above 0 for the answer, below 0 against it."
)


def _importance_facts(found: Importance, known: ModelSummary) -> dict[str, Any]:
    names = sorted(found.sizes, key=lambda name: -found.losses.get(name, 0.0)) if found.losses else list(found.sizes)
    shown = []
    for name in names[:_MOST_IMPORTANT]:
        loss = found.losses.get(name)
        text = f"{found.sizes[name]:.3g}" if loss is None else f"{loss:+.3g}" if known.regression else f"{100.0 * loss:+.1f}"
        shown.append([clean_text(name), to_json_number(found.sizes[name] if loss is None else max(loss, 0.0)), text])
    rest = len(names) - len(shown)
    sentence = f"How much each column moves a decision, in the mean over {found.n_rows:,} rows."
    if found.losses:
        by = f"How much the error, now {found.error:.4g}," if known.regression else _POINTS.format(100.0 * found.error)
        sentence = f"{by} grows where the values of a column change places among {found.n_rows:,} rows."
    more = f"And {rest:,} further column{'s' * (rest != 1)}, which matter less." if rest else ""
    return {"sentence": sentence, "columns": shown, "rest": more}


def _row_facts(found: Explanation, y: Any, known: ModelSummary) -> dict[str, Any]:
    given = found.prediction
    text = clean_text(repr(given) if isinstance(given, str) else f"{given:.6g}" if isinstance(given, float) else given)
    title = "a row" if given is None else f"predicts {text}"
    right = None if y is None or given is None or known.regression else bool(y == given)
    if y is not None and given is not None and not right:
        title += f", and is {clean_text(repr(y) if isinstance(y, str) else y)}"
    listed: list[tuple[Hashable, float]] = list(found.contributions.items())
    parts = [[clean_text(name), _value_text(found.values.get(name)), to_json_number(size)] for name, size in listed[:_MOST_PARTS]]
    if rest := listed[_MOST_PARTS:]:
        parts.append(
            [f"{len(rest):,} further column{'s' * (len(rest) != 1)}", None, to_json_number(sum(size for _, size in rest))]
        )
    parts.append(["several together", None, to_json_number(found.remainder)])
    decision = f"decision {found.decision:.3g}, of a typical row {found.typical:.3g}"
    return {"title": title, "right": right, "decision": decision, "parts": parts}


def _value_text(value: Any) -> str:
    return "missing" if value is None else f"{value:.6g}" if isinstance(value, float) else clean_text(value, 30)


def _notes_of(known: ModelSummary, given: ReportRows | None, facts: Mapping[str, Any]) -> list[str]:
    found = []
    if known.learned and len(known.labels) == 1:
        found.append(f"It has met one label, {clean_text(known.labels[0])}, so it predicts nothing else.")
    if facts["curve"] is None:
        reason = (
            clean_text(known.corrupt, 300) if known.corrupt else "checkpoints of streamsvm learn have one, saved models have none"
        )
        found.append(f"There is no score over time: {reason}.")
    if given is None:
        found.append(f"Which columns matter, why rows are decided so, and how well other rows are predicted: give rows. {_HOW}")
    elif not (given.n_scored or known.anomalies):
        found.append(f"No row of {clean_text(given.name)} has a label to score, so scores are those of the run.")
    if given is not None and given.left_out:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in given.left_out.items())
        found.append(f"Not scored of {clean_text(given.name)}: {counts}.")
    if not known.seen_rows:
        found.append("What kinds its columns have is not known: no table was read with a first look.")
    return found
