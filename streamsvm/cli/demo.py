"""``streamsvm demo``: real data, a broker in this process, a learner that is killed and resumed, a picture."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from river import datasets

from streamsvm.cli import CommandError
from streamsvm.cli.arguments import as_command_error
from streamsvm.cli.outputs import may_overwrite
from streamsvm.cli.streams import interruptible
from streamsvm.export import plots
from streamsvm.files.messages import missing_package_error
from streamsvm.stream import LearningCurve, Row
from streamsvm.stream.checkpoint import read_header, read_newest

_LEARNERS = "whole", "killed"  # their folders
_PREDICTIONS = "predictions.jsonl"
_PASSES = 4  # over the data set: one would end before the learner could be killed
_OPTIONS = ["--learner", "bsgd,budget=60", "--label", "label", "--stop-at-end", "--quiet", "--checkpoint-every", "1000"]
_SECONDS_TO_A_CHECKPOINT = 120.0


def run_demo(arguments: argparse.Namespace) -> None:
    """Run the demonstration and leave its picture, predictions and checkpoints in ``arguments.out``.

    A topic of an embedded broker is filled with river's Bananas; one learner reads it from beginning to end, another is killed
    without warning and started again. Both must end with the same bytes. Raises CommandError if the broker or a learner fails, or
    the two learners differ, and ModuleNotFoundError if a package is not installed.
    """
    try:
        import confluent_kafka  # noqa: F401, PLC0415 - of an extra, as those below
        import matplotlib as mpl  # noqa: F401, PLC0415

        from streamsvm_kafka import EmbeddedBroker, JSONCodec, publish  # noqa: PLC0415
    except ImportError as error:
        raise missing_package_error("the demonstration", "confluent-kafka, kafka-python and matplotlib", "demo", error) from error
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "learned.png"
    with as_command_error("", plots.DrawingError):
        plots.check_plot_path(picture)
    own = {out / name / kept for name in _LEARNERS for kept in ("checkpoints", _PREDICTIONS)}
    others = [path for name in _LEARNERS for path in sorted((out / name).glob("*")) if path not in own]
    if others or not may_overwrite(picture):
        raise CommandError(f"{[*others, picture][0]} was not written by a demo: give another folder, --out DIR")
    for name in _LEARNERS:
        shutil.rmtree(out / name, ignore_errors=True)
    rows = [(x, y) for _ in range(_PASSES) for x, y in datasets.Bananas()]  # type: ignore[no-untyped-call]
    with as_command_error("", OSError, RuntimeError), interruptible(), EmbeddedBroker() as broker:
        topic = broker.url("bananas")
        _say_line(f"an embedded broker listens at {broker.bootstrap}")
        publish(itertools.starmap(Row, rows), broker.bootstrap, "bananas", JSONCodec("label"), client=broker.client)
        _say_line(f"{len(rows):,} rows of river's Bananas, {_PASSES} times through, are in its topic")
        _say_line("a learner reads the topic from beginning to end (the first time on a machine, it compiles for a while)")
        _learn_topic(topic, out / "whole")
        _say_line("a second learner is killed (SIGKILL) after its first checkpoint, and started again")
        _learn_topic(topic, out / "killed", kill=True)
        end = _learn_topic(topic, out / "killed")
    digests = {name: _digest_of_run(out / name) for name in _LEARNERS}
    if digests["whole"] != digests["killed"]:
        raise CommandError(f"the learner that was killed ended with another model: {digests}")
    predictions = [json.loads(line) for line in (out / "killed" / _PREDICTIONS).read_text().splitlines()]
    if [line["row"] for line in predictions] != list(range(len(rows))):
        raise CommandError("the learner that was killed has not predicted every row exactly once")
    _say_line(
        f"it learned all {end['rows']:,} rows exactly once: model and metrics are those of the first learner, byte for byte"
    )
    _say_line(
        f"accuracy {end['metric']:.4f}, last {end['window']:,} rows {end['windowed']:.4f}, {end['n_support']} support vectors"
    )
    learned = read_newest(out / "killed" / "checkpoints")
    curve = LearningCurve.from_state(learned.header["curve"], learned.header["rows"])
    with as_command_error("", plots.DrawingError):
        plots.save_plot(picture, learned.model, curve, rows[: len(rows) // _PASSES])
    _say_line(f"drawn: {picture}")
    _say_line(f"look inside with: streamsvm inspect {out / 'killed' / 'checkpoints'}")


def _say_line(text: str) -> None:
    print(text, flush=True)


def _learn_topic(topic: str, out: Path, kill: bool = False) -> dict[str, Any]:
    # In a process of its own, as in earnest: no code runs after SIGKILL to tidy up.
    checkpoints = out / "checkpoints"
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "streamsvm", "learn", topic, *_OPTIONS]
    command += ["--checkpoint", str(checkpoints), "--to", str(out / _PREDICTIONS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as learner:  # noqa: S603
        if kill:
            deadline = time.monotonic() + _SECONDS_TO_A_CHECKPOINT
            while not any(checkpoints.glob("*.ckpt")) and learner.poll() is None:
                if time.monotonic() > deadline:
                    learner.kill()
                    raise CommandError(f"the learner wrote no checkpoint in {_SECONDS_TO_A_CHECKPOINT:.0f} s")
                time.sleep(0.001)
            learner.kill()
            learner.wait()
            return {}
        output, errors = learner.communicate()
    if learner.returncode != 0:
        raise CommandError(f"the learner failed: {errors.strip()}")
    end: dict[str, Any] = json.loads(output.splitlines()[-1])
    return end


def _digest_of_run(out: Path) -> str:
    # Of model, metrics and position: the rest of the header names the sink by its path, which differs.
    header = read_header(max((out / "checkpoints").glob("*.ckpt")))
    return hashlib.sha256(json.dumps([header["digest"], header["position"]], sort_keys=True).encode()).hexdigest()
