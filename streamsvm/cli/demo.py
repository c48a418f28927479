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

_LEARNER_FOLDERS = "whole", "killed"
_PREDICTIONS = "predictions.jsonl"
_N_PASSES = 4  # over the data set: a single pass would end before the learner could be killed
_LEARN_FLAGS = ["--learner", "bsgd,budget=60", "--label", "label", "--stop-at-end", "--quiet", "--checkpoint-every", "1000"]
_SECONDS_TO_A_CHECKPOINT = 120.0


def run_demo(arguments: argparse.Namespace) -> None:
    """Run ``streamsvm demo``: show that a learner which is killed and started again ends with the same model. Write its picture,
    predictions and checkpoints to the folder ``--out``.

    A topic of an embedded broker is filled with river's Bananas. One learner reads it from beginning to end; another is killed
    (SIGKILL) and started again. Both must write the same bytes. Raises CommandError if the broker or a learner fails, or the two
    results differ, and ModuleNotFoundError if a package is not installed.
    """
    try:
        import confluent_kafka  # noqa: F401, PLC0415 - an optional dependency, as those below
        import matplotlib as mpl  # noqa: F401, PLC0415

        from streamsvm_kafka import EmbeddedBroker, JSONCodec, publish  # noqa: PLC0415
    except ImportError as error:
        raise missing_package_error("the demonstration", "confluent-kafka, kafka-python and matplotlib", "demo", error) from error
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "learned.png"
    with as_command_error("", plots.DrawingError):
        plots.check_plot_path(picture)
    own_paths = {out / name / output for name in _LEARNER_FOLDERS for output in ("checkpoints", _PREDICTIONS)}
    foreign_paths = [path for name in _LEARNER_FOLDERS for path in sorted((out / name).glob("*")) if path not in own_paths]
    if foreign_paths or not may_overwrite(picture):
        raise CommandError(f"{[*foreign_paths, picture][0]} was not written by a demo: give another folder, --out DIR")
    for name in _LEARNER_FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)
    rows = [(x, y) for _ in range(_N_PASSES) for x, y in datasets.Bananas()]  # type: ignore[no-untyped-call]
    with as_command_error("", OSError, RuntimeError), interruptible(), EmbeddedBroker() as broker:
        topic = broker.url("bananas")
        _print_line(f"an embedded broker listens at {broker.bootstrap}")
        publish(itertools.starmap(Row, rows), broker.bootstrap, "bananas", JSONCodec("label"), client=broker.client)
        _print_line(f"{len(rows):,} rows of river's Bananas, {_N_PASSES} times through, are in its topic")
        _print_line("a learner reads the topic from beginning to end (the first time on a machine, it compiles for a while)")
        _learn_topic(topic, out / "whole")
        _print_line("a second learner is killed (SIGKILL) after its first checkpoint, and started again")
        _learn_topic(topic, out / "killed", kill=True)
        result = _learn_topic(topic, out / "killed")
    digests = {name: _compute_digest(out / name) for name in _LEARNER_FOLDERS}
    if digests["whole"] != digests["killed"]:
        raise CommandError(f"the learner that was killed ended with a different model: {digests}")
    predictions = [json.loads(line) for line in (out / "killed" / _PREDICTIONS).read_text().splitlines()]
    if [line["row"] for line in predictions] != list(range(len(rows))):
        raise CommandError("the learner that was killed has not predicted every row exactly once")
    text = f"it learned all {result['rows']:,} rows exactly once: model and metrics are those of the first learner, byte for byte"
    _print_line(text)
    scores = f"accuracy {result['metric']:.4f}, last {result['window']:,} rows {result['windowed']:.4f}"
    _print_line(f"{scores}, {result['n_support']} support vectors")
    checkpoint = read_newest(out / "killed" / "checkpoints")
    curve = LearningCurve.from_state(checkpoint.header["curve"], checkpoint.header["rows"])
    with as_command_error("", plots.DrawingError):
        plots.save_plot(picture, checkpoint.model, curve, rows[: len(rows) // _N_PASSES])
    _print_line(f"drawn: {picture}")
    _print_line(f"look inside with: streamsvm inspect {out / 'killed' / 'checkpoints'}")


def _print_line(text: str) -> None:
    print(text, flush=True)


def _learn_topic(topic: str, out: Path, kill: bool = False) -> dict[str, Any]:
    """Run ``streamsvm learn`` on a Kafka ``topic`` in another process, which writes to the folder ``out``. Return the last JSON
    line that it prints as a dict. With ``kill``, end the process by SIGKILL after its first checkpoint, and return an empty
    dict.

    A process that is ended by SIGKILL cannot clean up.
    """
    checkpoints = out / "checkpoints"
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "streamsvm", "learn", topic, *_LEARN_FLAGS]
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
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def _compute_digest(out: Path) -> str:
    """Return a SHA-256 digest of the newest checkpoint's model, metrics and stream position, in the output folder ``out``."""
    # The rest of the header contains the path of the sink, which differs.
    header = read_header(max((out / "checkpoints").glob("*.ckpt")))
    return hashlib.sha256(json.dumps([header["digest"], header["position"]], sort_keys=True).encode()).hexdigest()
