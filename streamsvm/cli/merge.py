"""``streamsvm merge``: make one model of those that several learners or workers write, once or again and again."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import threading

from streamsvm.cli import CommandError
from streamsvm.cli.arguments import Output, says_json
from streamsvm.cli.streams import open_place, stopping, unwinding
from streamsvm.stream import CheckpointError
from streamsvm.stream.merging import Merged, PartMerger


def run(arguments: argparse.Namespace) -> bool:
    """Merge the models once, or with ``every`` until the user ends it. Return whether the run was interrupted before its end."""
    for folder in arguments.sources:
        if not folder.is_dir():
            raise CommandError(f"{folder} is no folder of checkpoints: name one that a learner writes")
    output = Output(arguments.quiet, says_json(arguments))
    checkpoints = open_place(arguments.into, arguments.trusted, sources=["merged"])
    try:
        merger, stopped = PartMerger(arguments.sources, checkpoints, arguments.trusted), threading.Event()
        if arguments.every is None:
            with unwinding():
                found = merger.step()
            if found is None:
                raise CommandError(f"{', '.join(map(str, arguments.sources))}: there is no model yet that could be merged")
            _show_merged(found, output)
            return False
        with stopping(stopped.set):
            while not stopped.is_set():
                if (found := merger.step()) is not None:
                    _show_merged(found, output)
                stopped.wait(arguments.every)
    except CheckpointError as error:
        hint = "BSGDClassifier or BSCAClassifier, their regressors, or a linear learner"
        raise CommandError(str(error).replace(hint, f"{hint} (--learner bsgd, bsca or linear)")) from error
    finally:
        checkpoints.close()
    return True


def _show_merged(found: Merged, output: Output) -> None:
    if output.quiet:
        print(json.dumps({"event": "merged", "rows": found.rows, "parts": found.parts}), flush=True)
    n = len(found.parts)
    text = f"{found.rows:,} rows of {n} model{'s' * (n != 1)} merged"
    output.say(text, "merged", rows=found.rows, parts=found.parts)
