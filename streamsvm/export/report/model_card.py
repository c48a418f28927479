"""A model card: a report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def make_model_card(report: Mapping[str, Any], /) -> str:
    r"""Return a model card, a text in Markdown, from ``report``, the dict of contents that `make_report` has returned. Names and
    labels from the data are escaped, so that they cannot be markup.

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
    score = report["score"]
    parts = [f"# {_escape_markdown(report['title'])}", _escape_markdown(" · ".join(report["lead"]))]
    parts.append(
        f"**{_escape_markdown(score['big'])}** " * bool(score["big"])
        + _escape_markdown(score["what"])
        + (f". {_escape_markdown(score['sentence'])}" if score["sentence"] else "")
    )
    parts += _make_table(None, [["", ""], *([name, text] for name, text in report["tiles"])])
    if "scores" in report:
        parts += _make_table("Further scores", [["score", "value", "guessing gives"], *report["scores"]])
    for name, title in (
        ("confusion", "Which labels it confuses"),
        ("labels", "Label by label"),
        ("thresholds", "Where to put the threshold"),
    ):
        if name in report:
            parts += _make_table(title, report[name]["table"], report[name]["sentence"])
    if "calibration" in report:
        bins = [[f"{100 * p:.1f} %", f"{100 * observed:.1f} %", n] for p, observed, n in report["calibration"]["bins"]]
        head, sentence = ["expected", "observed", "rows"], report["calibration"]["sentence"]
        parts += _make_table("Can its probabilities be believed?", [head, *bins], sentence)
    if "importance" in report:
        importance = report["importance"]
        rows = [[name, text] for name, _, text in importance["columns"]]
        parts += _make_table("What matters to it", [["column", "by how much"], *rows], importance["sentence"])
    if "explained" in report:
        parts += ["## Why it decides so", _escape_markdown(report["explained"]["sentence"])]
        for row in report["explained"]["rows"]:
            lines = [[name, "" if value is None else value, size] for name, value, size in row["parts"]]
            parts.append(f"**{_escape_markdown(row['title'])}**: {_escape_markdown(row['decision'])}")
            parts += _make_table(None, [["column", "value", "moves it by"], *lines])
    if "curve" in report:
        curve = report["curve"]
        points = curve["points"][:: max(len(curve["points"]) // 8, 1)]
        head = ["rows", f"{curve['metric']}, all rows", f"last {curve['window']:,} rows", "guessing", "refused", "drifts"]
        head.append("guessing these last rows")
        parts += _make_table("While it learned", [head, *points], curve["sentence"])
    if "columns" in report:
        columns = report["columns"]
        rows = [[row["name"], row["kind"], row["values"], row["missing"], row["note"]] for row in columns["rows"]]
        for row in rows:
            row[3] = "" if row[3] is None else f"{100 * row[3]:.1f} %"
        head, sentence = ["column", "read as", "values", "missing", "note"], f"{columns['sentence']} {columns['rest']}".strip()
        parts += _make_table("What it learned from", [head, *rows], sentence)
    if report["facts"]:
        parts += _make_table("Size and speed", [["", ""], *report["facts"]])
    parts.append("\n".join(f"- {_escape_markdown(note)}" for note in report["notes"]))
    return "\n\n".join([*filter(None, parts), f"*{report['foot']}*"]) + "\n"


def _escape_markdown(value: Any) -> str:
    """Return a value as Markdown text: floats with four digits, integers with commas, an empty text for None, and in other texts
    escaped characters that Markdown or HTML would interpret.
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", "" if value is None else f"{value:,}" if type(value) is int else str(value))


def _make_table(title: str | None, rows: Iterable[Sequence[Any]], sentence: str = "") -> list[str]:
    """Return paragraphs of Markdown: a heading with the ``title``, a ``sentence``, and a table whose first row is its head;
    without a title, the table alone. Returns an empty list if there are no rows below the head.
    """
    head, *cells = ([_escape_markdown(cell) for cell in row] for row in rows)
    if not cells:
        return []
    lines = [head, ["---"] * len(head), *cells]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return [f"## {title}", _escape_markdown(sentence), text] if title else [text]
