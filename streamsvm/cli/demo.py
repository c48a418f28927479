"""The main job on an embedded default: real data, a broker in this process, a learner that is killed and resumed, pictures."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from river import datasets

from streamsvm.runtime import Row, load
from streamsvm.runtime.checkpoint import read_header

__all__ = ["run"]

_PASSES = 4  # through the data set, so that there is something to kill
_CHECKPOINT_EVERY = 1000
_SETTINGS = ["--budget", "60", "--label", "label", "--stop-at-end", "--quiet", "--checkpoint-every", str(_CHECKPOINT_EVERY)]


class _DemoError(Exception):
    """The demonstration did not show what it is there to show."""


def run(out: Path) -> int:
    """Run the demonstration and leave its pictures, predictions and checkpoints in ``out``.

    A topic of an embedded broker is filled with river's Bananas; one learner reads it from beginning to end, another is killed
    without warning and started again. Both must end with the same bytes.

    Returns
    -------
    0; 1 where something needed is not installed or the two learners differ (standard error says what).
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415

        from streamsvm_kafka import EmbeddedBroker, JSONCodec, publish  # noqa: PLC0415
    except ImportError as error:
        return _fail(f"{error}: the demonstration needs more than the library. pip install 'streamsvm[demo]'")
    mpl.use("Agg")
    for left in ("whole", "killed"):
        shutil.rmtree(out / left, ignore_errors=True)
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
    except (_DemoError, OSError, RuntimeError) as error:
        return _fail(str(error))
    digests = {name: _digest(out / name) for name in ("whole", "killed")}
    if digests["whole"] != digests["killed"]:
        return _fail(f"the learner that was killed ended with another model: {digests}")
    predictions = [json.loads(line) for line in (out / "killed" / "predictions.jsonl").read_text().splitlines()]
    if [line["row"] for line in predictions] != list(range(len(rows))):
        return _fail("the learner that was killed has not predicted every row exactly once")
    _say(f"it learned all {end['rows']:,} rows exactly once: model and metrics are those of the first learner, byte for byte")
    _say(f"accuracy {end['metric']:.4f}, last {end['window']:,} rows {end['windowed']:.4f}, {end['n_support']} support vectors")
    # The model predicts nothing before it has learned a row.
    right = [line["y_pred"] == line["y_true"] for line in predictions if line["y_pred"] is not None]
    for path in _draw(out, rows, right):
        _say(f"drawn: {path}")
    _say(f"look inside with: streamsvm inspect {out / 'killed' / 'checkpoints'}")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _fail(text: str) -> int:
    sys.stderr.write(f"streamsvm: {text}\n")
    return 1


def _learn(topic: str, out: Path, kill: bool = False) -> dict[str, Any]:
    # A process of its own, as it would be in earnest: what SIGKILL ends, no code of ours can tidy up.
    checkpoints = out / "checkpoints"
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "streamsvm", "learn", topic, *_SETTINGS]
    command += ["--checkpoint", str(checkpoints), "--to", str(out / "predictions.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as learner:  # noqa: S603
        if kill:
            _wait_for(lambda: any(checkpoints.glob("*.ckpt")) or learner.poll() is not None)
            learner.kill()
            learner.wait()
            return {}
        output, errors = learner.communicate()
    if learner.returncode != 0:
        raise _DemoError(f"the learner failed: {errors.strip()}")
    end: dict[str, Any] = json.loads(output.splitlines()[-1])
    return end


def _wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise _DemoError(f"the learner wrote no checkpoint in {seconds:.0f} s")
        time.sleep(0.001)


def _digest(out: Path) -> str:
    newest = max((out / "checkpoints").glob("*.ckpt"))
    # The header names the sink by its path, which differs; the payload is the model and the metrics.
    header = read_header(newest)
    return hashlib.sha256(json.dumps([header["payload"], header["position"]], sort_keys=True).encode()).hexdigest()


def _draw(out: Path, rows: list[tuple[dict[Any, float], bool]], right: list[bool]) -> list[Path]:
    import matplotlib.pyplot as plt  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    model = load(out / "killed" / "checkpoints")
    scaler, learner = model[0], model[-1]
    a, b = learner.feature_names
    points = np.array([[x[a], x[b]] for x, _ in rows[: len(rows) // _PASSES]])
    labels = np.array([y for _, y in rows[: len(rows) // _PASSES]])
    low, high = points.min(axis=0) - 0.3, points.max(axis=0) + 0.3
    sides = [np.linspace(low[i], high[i], 150) for i in range(2)]
    scaled = [scaler.transform_one({a: x, b: y}) for y, x in itertools.product(sides[1], sides[0])]
    decisions = np.array([learner.decision_function_one(x) for x in scaled]).reshape(150, 150)
    spread = np.sqrt([scaler.vars[a], scaler.vars[b]])
    vectors = learner.support_vectors * spread + [scaler.means[a], scaler.means[b]]

    boundary, axes = plt.subplots(figsize=(8, 6.5), layout="constrained")
    limit = np.quantile(np.abs(decisions), 0.9)
    axes.contourf(*sides, np.clip(decisions, -limit, limit), levels=21, cmap="RdBu", alpha=0.55)
    axes.contour(*sides, decisions, levels=[0.0], colors="black", linewidths=2)
    for label, colour in ((False, "#b2182b"), (True, "#2166ac")):
        axes.scatter(
            points[labels == label, 0], points[labels == label, 1], s=3, color=colour, alpha=0.35, label=f"label {label}"
        )
    axes.scatter(
        vectors[:, 0], vectors[:, 1], s=55, facecolors="none", edgecolors="black", linewidths=1.2, label="support vectors"
    )
    axes.set(
        xlabel=f"feature {a}",
        ylabel=f"feature {b}",
        title=f"{learner.n_support} support vectors, {learner.nbytes / 1024:.0f} KiB",
    )
    axes.legend(loc="upper right")

    curve, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    number = np.arange(1, len(right) + 1)
    window = 1000
    totals = np.concatenate(([0], np.cumsum(right)))
    axes.plot(number, totals[1:] / number, label="all rows so far")
    axes.plot(number[window - 1 :], (totals[window:] - totals[:-window]) / window, label=f"last {window:,} rows", alpha=0.8)
    axes.set(xlabel="row", ylabel="accuracy", ylim=(0.7, 1.0), title="Each row is predicted before it is learned")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")

    paths = [out / "boundary.png", out / "accuracy.png"]
    for figure, path in zip((boundary, curve), paths, strict=True):
        figure.savefig(path, dpi=110)
        plt.close(figure)
    return paths
