"""The report as a model card in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def card(facts: Mapping[str, Any]) -> str:
    r"""Return the figures of `facts_of` as Markdown. Names and labels stay text, whatever they are.

    >>> print(card({"title": "A <b>", "lead": ["10 rows"], "score": {"big": "9", "what": "*", "sentence": "", "guesses": []},
    ...     "tiles": [], "facts": [], "notes": ["None."], "foot": "by us"}))
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
