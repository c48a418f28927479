"""``streamsvm predict``: predict the rows of a stream with the model of a checkpoint."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from river import compose

from streamsvm.cli.parsing import learner_of
from streamsvm.cli.streams import open_streams, stopping
from streamsvm.cli.tables import table_of
from streamsvm.runtime import Prediction, StreamError
from streamsvm.runtime.checkpoint import read_newest
from streamsvm.runtime.endpoints import BadRow
from streamsvm.runtime.open import format_of
from streamsvm.runtime.refusals import Refusals
from streamsvm.runtime.rows import GuardedModel, listed, reason_of

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> bool:
    """Predict the source. Return whether the run was interrupted."""
    saved = read_newest(arguments.model)
    model = saved.model
    table = table_of(arguments, format_of(arguments.source, arguments.format), saved, predict=True)
    guarded = GuardedModel(model)
    rows, predicted, mismatch, stopped = 0, 0, "", False
    with contextlib.ExitStack() as stack:
        source, sink = stack.enter_context(open_streams(arguments, table))
        refusals = Refusals(arguments.on_error, arguments.error_limit, arguments.error_share)
        stack.callback(refusals.close)
        refusals.open()

        def stop() -> None:
            nonlocal stopped
            stopped = True
            source.stop()

        with stopping(stop):
            for row in source:
                try:
                    if isinstance(row, BadRow):
                        refusals.add(rows, row.place, row.raw, "malformed", row.reason)
                        continue
                    x, y = row
                    try:
                        if predicted == 0 or mismatch:
                            mismatch = _mismatch(model, x)
                        seen = x if guarded.prepare is None else guarded.prepare(x)
                        probability = max(guarded.last.predict_proba_one(seen).values(), default=None)
                        label = guarded.last.predict_one(seen)
                    except Exception as error:  # noqa: BLE001 - of the learner, or of any step before it
                        raw = getattr(source, "raw", None)
                        refusals.add(rows, source.place, row if raw is None else raw, *reason_of(error, x, guarded))
                        continue
                    if predicted == 0 and mismatch:
                        print(f"streamsvm: warning: {source.place}: {mismatch}", file=sys.stderr)
                    sink.write(Prediction(rows, label, y, probability))
                    predicted += 1
                finally:
                    rows += 1
                if stopped:
                    break
        sink.flush()
    if mismatch and not stopped:
        raise StreamError(f"{source.place}: to the end, {mismatch}: the predictions say nothing. Is it a model of these rows?")
    if arguments.quiet:
        facts = {"event": "end", "rows": rows, "predicted": predicted, "refused": refusals.counts, "interrupted": stopped}
        print(json.dumps(facts))
    else:
        counted = "".join(f"  {count:,} {kind}" for kind, count in refusals.counts.items())
        print(f"{predicted:,} rows predicted{f'  {refusals.total:,} refused{counted}' if counted else ''}", file=sys.stderr)
    return stopped


def _mismatch(model: Any, x: Any) -> str:
    """Say that a row has features, but none that the model has learned; empty if it has one of them."""
    known = getattr(learner_of(model), "feature_names", [])
    names = list(model.transform_one(x) if isinstance(model, compose.Pipeline) else x)
    if not known or not names or not set(known).isdisjoint(names):
        return ""
    return f"the row has none of the features that the model knows (it has {listed(names, 5)}; known are {listed(known, 5)})"
