"""``streamsvm explain``: which columns matter to a model, and which of them moved its decisions of some rows."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any

from streamsvm.cli import CommandError, printable
from streamsvm.cli.arguments import failing
from streamsvm.cli.streams import first_rows, newest
from streamsvm.cli.tables import label_of
from streamsvm.core.checks import finite_or_none
from streamsvm.core.explaining import Examples
from streamsvm.explanations import examples_one, explain_one, importance

_ROWS = 1000  # with which importance is measured


def run(arguments: argparse.Namespace) -> None:
    """Print the importance of each column, and explain the decisions of the first rows; a CommandError where there are none."""
    checkpoint = newest(arguments.path, arguments.trusted)
    model: Any = checkpoint.model
    rows = list(first_rows(arguments.source, checkpoint, _ROWS))
    if not rows:
        raise CommandError(f"{arguments.source} has no rows to explain")
    xs, ys = [row.x for row in rows], [row.y for row in rows]
    labelled = [i for i, y in enumerate(ys) if y is not None]
    with failing(f"{arguments.path} cannot explain {arguments.source}: ", ValueError):
        if labelled:
            found = importance(model, [xs[i] for i in labelled], [ys[i] for i in labelled])
        else:
            found = importance(model, xs)
        explained = [explain_one(model, x) for x in xs[: arguments.rows]]
        near = [examples_one(model, x, arguments.examples) for x in xs[: arguments.rows]] if arguments.examples else []
    if arguments.json:
        facts = {"sizes": found.sizes, "losses": found.losses, "rows": found.n_rows}
        facts["error"] = finite_or_none(found.error)
        facts["explained"] = [
            {
                "prediction": each.prediction,
                "decision": each.decision,
                "typical": each.typical,
                "contributions": each.contributions,
                "remainder": each.remainder,
                **({} if examples is None else {"examples": _listed_examples(examples)}),
            }
            for each, examples in itertools.zip_longest(explained, near)
        ]
        print(json.dumps({name: _by_text(value) for name, value in facts.items()}, default=str))
        return
    print(printable(f"{found}\n", newlines=True))
    if not found.losses and (label := label_of(checkpoint)) is not None:
        print(printable(f"No row has its label ({label}), so how much the error grows without a column is not known.\n", True))
    for number, (each, examples) in enumerate(itertools.zip_longest(explained, near), 1):
        like = "" if examples is None else f"the nearest that it knows:\n{examples}\n"
        print(printable(f"row {number:,}: {each}\n{like}", newlines=True))


def _listed_examples(examples: Examples) -> list[dict[str, Any]]:
    return [
        {"label": label, "target": each.target, "distance": each.distance, "values": _by_text(each.values)}
        for label, found in examples.nearest.items()
        for each in found
    ]


def _by_text(value: Any) -> Any:
    """Return a value with the keys of its dicts as texts, as JSON has them."""
    if isinstance(value, dict):
        return {str(key): _by_text(each) for key, each in value.items()}
    return [_by_text(each) for each in value] if isinstance(value, list) else value
