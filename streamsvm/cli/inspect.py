"""``streamsvm inspect``: show the header of a checkpoint and the figures of its model."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import json

from streamsvm.runtime.checkpoint import read_newest
from streamsvm.runtime.rows import learner_of

__all__ = ["run"]

_FIGURES = ["budget", "n_support", "n_merges", "n_learned", "nbytes", "effective_gamma", "averaged", "labels", "feature_names"]


def run(arguments: argparse.Namespace) -> None:
    """Print a checkpoint's facts, one a line."""
    checkpoint = read_newest(arguments.path, arguments.trusted)
    learner = learner_of(checkpoint.model)
    facts = checkpoint.header | {name: getattr(learner, name) for name in _FIGURES if hasattr(learner, name)}
    if arguments.json:
        print(json.dumps(facts, default=str, sort_keys=True))
        return
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        print(f"{name:<{width}}" + text.replace("\n", "\n" + " " * width))
