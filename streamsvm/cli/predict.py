"""``streamsvm predict``: predict the rows of a stream with the model of a checkpoint."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from river import compose

from streamsvm.cli.parsing import learner_of
from streamsvm.cli.streams import open_streams, stopping
from streamsvm.cli.tables import table_of
from streamsvm.runtime import Prediction, StreamError
from streamsvm.runtime.checkpoint import read_newest
from streamsvm.runtime.loop import explained, listed
from streamsvm.runtime.open import format_of

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> bool:
    """Predict the source. Return whether the run was interrupted."""
    saved = read_newest(arguments.model)
    model = saved.model
    table = table_of(arguments, format_of(arguments.source, arguments.format), saved, predict=True)
    rows, mismatch, stopped = 0, "", False
    with open_streams(arguments, table) as (source, sink):

        def stop() -> None:
            nonlocal stopped
            stopped = True
            source.stop()

        with stopping(stop):
            for x, y in source:
                try:
                    if rows == 0 or mismatch:
                        mismatch = _mismatch(model, x)
                    probability = max(model.predict_proba_one(x).values(), default=None)
                    label = model.predict_one(x)
                except Exception as error:  # of the learner, or of any step before it
                    raise StreamError(f"{source.place}: {explained(error, x)}") from error
                if rows == 0 and mismatch:
                    print(f"streamsvm: warning: {source.place}: {mismatch}", file=sys.stderr)
                sink.write(Prediction(rows, label, y, probability))
                rows += 1
                if stopped:
                    break
        sink.flush()
    if mismatch and not stopped:
        raise StreamError(f"{source.place}: to the end, {mismatch}: the predictions say nothing. Is it a model of these rows?")
    if arguments.quiet:
        print(json.dumps({"event": "end", "rows": rows, "interrupted": stopped}))
    else:
        print(f"{rows:,} rows predicted", file=sys.stderr)
    return stopped


def _mismatch(model: Any, x: Any) -> str:
    """Say that a row has features, but none that the model has learned; empty if it has one of them."""
    known = getattr(learner_of(model), "feature_names", [])
    names = list(model.transform_one(x) if isinstance(model, compose.Pipeline) else x)
    if not known or not names or not set(known).isdisjoint(names):
        return ""
    return f"the row has none of the features that the model knows (it has {listed(names, 5)}; known are {listed(known, 5)})"
