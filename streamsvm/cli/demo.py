"""``streamsvm demo``: real data, a broker in this process, a learner that is killed and resumed, pictures."""
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
from streamsvm.runtime import Row, load
from streamsvm.runtime.checkpoint import read_header

__all__ = ["run"]

_PASSES = 4  # over the data set: one would end before the learner could be killed
_OPTIONS = ["--budget", "60", "--label", "label", "--stop-at-end", "--quiet", "--checkpoint-every", "1000"]
_SECONDS_TO_A_CHECKPOINT = 120.0


def run(arguments: argparse.Namespace) -> None:
    """Run the demonstration and leave its pictures, predictions and checkpoints in ``arguments.out``.

    A topic of an embedded broker is filled with river's Bananas; one learner reads it from beginning to end, another is killed
    without warning and started again. Both must end with the same bytes.

    Raises
    ------
    CommandError
        A package is not installed, the broker or a learner failed, or the two learners differ.
    """
    out = arguments.out
    try:
        import matplotlib as mpl  # noqa: PLC0415

        from streamsvm_kafka import EmbeddedBroker, JSONCodec, publish  # noqa: PLC0415
    except ImportError as error:
        raise CommandError(f"{error}: the demonstration needs more than the library. pip install 'streamsvm[demo]'") from error
    mpl.use("Agg")
    for name in ("whole", "killed"):
        shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    rows = [(x, y) for _ in range(_PASSES) for x, y in datasets.Bananas()]  # type: ignore[no-untyped-call]
    try:
        with EmbeddedBroker() as broker:
            topic = broker.url("bananas")
            _say(f"an embedded broker listens at {broker.bootstrap}")
            publish(itertools.starmap(Row, rows), broker.bootstrap, "bananas", JSONCodec("label"), client=broker.client)
            _say(f"{len(rows):,} rows of river's Bananas, {_PASSES} times through, are in its topic")
            _say("a learner reads the topic from beginning to end (the first time on a machine, it compiles for some seconds)")
            _learn(topic, out / "whole")
            _say("a second learner is killed (SIGKILL) after its first checkpoint, and started again")
            _learn(topic, out / "killed", kill=True)
            end = _learn(topic, out / "killed")
    except (OSError, RuntimeError) as error:
        raise CommandError(str(error)) from error
    digests = {name: _digest(out / name) for name in ("whole", "killed")}
    if digests["whole"] != digests["killed"]:
        raise CommandError(f"the learner that was killed ended with another model: {digests}")
    predictions = [json.loads(line) for line in (out / "killed" / "predictions.jsonl").read_text().splitlines()]
    if [line["row"] for line in predictions] != list(range(len(rows))):
        raise CommandError("the learner that was killed has not predicted every row exactly once")
    _say(f"it learned all {end['rows']:,} rows exactly once: model and metrics are those of the first learner, byte for byte")
    _say(f"accuracy {end['metric']:.4f}, last {end['window']:,} rows {end['windowed']:.4f}, {end['n_support']} support vectors")
    _draw_boundary(load(out / "killed" / "checkpoints"), rows[: len(rows) // _PASSES], out / "boundary.png")
    # The model predicts nothing before it has learned a row.
    correct = [line["y_pred"] == line["y_true"] for line in predictions if line["y_pred"] is not None]
    _draw_accuracy(correct, out / "accuracy.png")
    _say(f"look inside with: streamsvm inspect {out / 'killed' / 'checkpoints'}")


def _say(text: str) -> None:
    print(text, flush=True)


def _learn(topic: str, out: Path, kill: bool = False) -> dict[str, Any]:
    # In a process of its own, as in earnest: no code runs after SIGKILL to tidy up.
    checkpoints = out / "checkpoints"
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "streamsvm", "learn", topic, *_OPTIONS]
    command += ["--checkpoint", str(checkpoints), "--to", str(out / "predictions.jsonl")]
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


def _digest(out: Path) -> str:
    # Of model, metrics and position: the rest of the header names the sink by its path, which differs.
    header = read_header(max((out / "checkpoints").glob("*.ckpt")))
    return hashlib.sha256(json.dumps([header["digest"], header["position"]], sort_keys=True).encode()).hexdigest()


def _draw_boundary(model: Any, rows: list[tuple[dict[Any, float], bool]], path: Path) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    scaler, learner = model[0], model[-1]
    a, b = learner.feature_names
    points = np.array([[x[a], x[b]] for x, _ in rows])
    labels = np.array([y for _, y in rows])
    low, high = points.min(axis=0) - 0.3, points.max(axis=0) + 0.3
    sides = [np.linspace(low[i], high[i], 150) for i in range(2)]
    scaled = [scaler.transform_one({a: x, b: y}) for y, x in itertools.product(sides[1], sides[0])]
    decisions = np.array([learner.decision_function_one(x) for x in scaled]).reshape(150, 150)
    spread = np.sqrt([scaler.vars[a], scaler.vars[b]])
    vectors = learner.support_vectors * spread + [scaler.means[a], scaler.means[b]]

    figure, axes = plt.subplots(figsize=(8, 6.5), layout="constrained")
    limit = np.quantile(np.abs(decisions), 0.9)
    axes.contourf(*sides, np.clip(decisions, -limit, limit), levels=21, cmap="RdBu", alpha=0.55)
    axes.contour(*sides, decisions, levels=[0.0], colors="black", linewidths=2)
    for label, colour in ((False, "#b2182b"), (True, "#2166ac")):
        x, y = points[labels == label].T
        axes.scatter(x, y, s=3, color=colour, alpha=0.35, label=f"label {label}")
    axes.scatter(
        vectors[:, 0], vectors[:, 1], s=55, facecolors="none", edgecolors="black", linewidths=1.2, label="support vectors"
    )
    title = f"{learner.n_support} support vectors, {learner.nbytes / 1024:.0f} KiB"
    axes.set(xlabel=f"feature {a}", ylabel=f"feature {b}", title=title)
    axes.legend(loc="upper right")
    _save(figure, path)


def _draw_accuracy(correct: list[bool], path: Path) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    number, window = np.arange(1, len(correct) + 1), 1000
    totals = np.concatenate(([0], np.cumsum(correct)))
    axes.plot(number, totals[1:] / number, label="all rows so far")
    axes.plot(number[window - 1 :], (totals[window:] - totals[:-window]) / window, label=f"last {window:,} rows", alpha=0.8)
    axes.set(xlabel="row", ylabel="accuracy", ylim=(0.7, 1.0), title="Each row is predicted before it is learned")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    from matplotlib.pyplot import close  # noqa: PLC0415

    figure.savefig(path, dpi=110)
    close(figure)
    _say(f"drawn: {path}")
