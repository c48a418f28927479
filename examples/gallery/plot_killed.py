"""Killed and resumed
==================

One learner reads a Kafka topic from beginning to end. A second one is killed partway through, without any warning, and
started again. The broker runs inside this process. With a real broker, only the address changes.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
from river import datasets

from streamsvm.stream import LearningCurve, Row
from streamsvm.stream.checkpoint import read_header
from streamsvm_kafka import EmbeddedBroker, JSONCodec, publish

folder = Path(tempfile.mkdtemp())
FLAGS = ["--learner", "bsgd,budget=60", "--label", "y", "--checkpoint-every", "1000", "--stop-at-end", "--quiet"]


def start_learner(address, name):
    """Start a learner as a separate process."""
    command = [sys.executable, "-m", "streamsvm", "learn", address, *FLAGS, "--checkpoint", str(folder / name)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def read_newest_header(name):
    """Return the metadata of the newest checkpoint."""
    return read_header(max((folder / name).glob("*.ckpt")))


def count_saved_rows(name):
    """Return the number of rows of the newest checkpoint, from its file name."""
    return max((int(path.stem.rpartition("-")[2]) for path in (folder / name).glob("*.ckpt")), default=0)


with EmbeddedBroker() as broker:
    rows = [Row(x, y) for _ in range(3) for x, y in datasets.Bananas()]
    publish(rows, broker.bootstrap, "bananas", JSONCodec(label="y"), client=broker.client)
    address = broker.url("bananas")
    start_learner(address, "whole").wait()

    learner = start_learner(address, "killed")
    while count_saved_rows("killed") < 6000 and learner.poll() is None:
        time.sleep(0.01)
    learner.kill()  # SIGKILL: no code of the learner runs after this
    learner.wait()
    killed_at = count_saved_rows("killed")
    start_learner(address, "killed").wait()

plt.style.use("seaborn-v0_8-colorblind")
figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
for name, style in {"whole": {"color": "C5", "linewidth": 7}, "killed": {"color": "black", "linewidth": 1.5}}.items():
    curve = LearningCurve.from_state(read_newest_header(name)["curve"], read_newest_header(name)["rows"])
    label = {"whole": "Read from beginning to end", "killed": "Killed and started again"}[name]
    axis.plot([point.rows for point in curve.points], [100.0 * point.windowed for point in curve.points], label=label, **style)
axis.axvline(killed_at, color="black", linestyle=":", linewidth=1)
axis.annotate(
    "Checkpoint from\nwhich it resumed",
    (killed_at, 0.05),
    xytext=(5, 0),
    xycoords=("data", "axes fraction"),
    textcoords="offset points",
)
axis.set(xlabel="Rows of the topic", ylabel="Accuracy in %", title="Accuracy over the last 1,000 rows")
axis.grid(alpha=0.3)
axis.xaxis.set_major_formatter("{x:,.0f}")
axis.legend(loc="lower right")

# %%
# The thin line lies on the thick one over its whole length: both learners have the same score at every row, before the
# kill and after it. The dotted line marks the checkpoint from which the killed learner continued.
#
# Not only the scores are equal. The model and the metrics are the same to the byte, and so is the position in the topic:

for name in ("whole", "killed"):
    print(f"{name:6} {read_newest_header(name)['rows']:,} rows, model and metrics {read_newest_header(name)['digest'][:32]}")
print("position equal:", read_newest_header("whole")["position"] == read_newest_header("killed")["position"])
