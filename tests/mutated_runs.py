"""Changes checkpoints with valid checksums, and resumes runs from them: run it in a process that may crash.

``python tests/mutated_runs.py N SEED`` changes N files. A run that reads a changed checkpoint must resume, or raise an
error of this package. It prints the outcomes as JSON, and fails if a file has another outcome or takes longer than 10 seconds.
"""

import json
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from river import drift, metrics, preprocessing

import crafted
from mutated_files import changed
from streamsvm import BSGDClassifier, SVMClassifier
from streamsvm.files.container import ModelFileError
from streamsvm.learners import OnlineLinearSVC
from streamsvm.stream import CheckpointFolder, CSVSource, DriftWatch, FileSink, LearningLoop, StreamError

SAID = (ValueError, ModelFileError, StreamError)
MODELS = [
    (lambda: preprocessing.StandardScaler() | BSGDClassifier(budget=6, seed=1), metrics.Accuracy),
    (lambda: SVMClassifier("low", seed=1), metrics.LogLoss),
    (OnlineLinearSVC, metrics.F1),
    (lambda: BSGDClassifier(budget=6, seed=1), lambda: ["ROCAUC", "AveragePrecision", "BrierScore", "Accuracy"]),
    (lambda: BSGDClassifier(budget=6, seed=1), lambda: ["LogLoss", "ConfusionMatrix", "ClassificationReport"]),
]
_LONGEST_SECONDS = 10.0


class Run:
    """An interrupted run on a file, with predictions, dead letters and drift detection."""

    def __init__(self, folder, number):
        self.folder, (self.model, self.metric) = folder / str(number), MODELS[number]
        self.folder.mkdir()
        lines = [f"{i % 7},{(i * i) % 11},{i % 3 == 0}" if i % 17 else "x,1,True" for i in range(120)]
        (self.folder / "rows.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
        self.go(most=60)
        self.kept = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        self.newest = max((self.folder / "state").glob("*.ckpt"))
        contents = crafted.unpack_container(self.newest.read_bytes())
        self.arrays = dict(contents.arrays)
        tree = json.loads(self.arrays.pop("tree").tobytes())
        self.parts = {"tree": tree, "facts": json.loads(contents.strings["metadata"])}

    def go(self, most=None):
        source = CSVSource(self.folder / "rows.csv", label="y")
        with CheckpointFolder(self.folder / "state") as checkpoints, FileSink(self.folder / "to.csv") as sink:
            watch, letters = DriftWatch(drift.ADWIN()), str(self.folder / "refused.jsonl")
            options = {"sink": sink, "checkpoints": checkpoints, "drift": watch, "on_error": letters, "checkpoint_every": 20}
            LearningLoop(source, self.model(), self.metric(), **options).run(most)

    def changed(self, rng):
        """Change the newest checkpoint, and resume from it."""
        shutil.rmtree(self.folder)
        for path, data in self.kept.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        parts, arrays = changed(rng, self.parts, self.arrays)
        crafted.repacked(self.newest, json.dumps(parts.get("tree")).encode(), arrays, parts.get("facts"))
        self.go()


def main():
    n, seed = map(int, sys.argv[1:])
    rng = random.Random(seed)
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp())
    runs = [Run(folder, number) for number in range(len(MODELS))]
    fates, bad = Counter(), Counter()
    for number in range(n):
        began = time.process_time()
        try:
            rng.choice(runs).changed(rng)
            fates["went on"] += 1
        except SAID:
            fates["refused"] += 1
        except Exception as error:  # noqa: BLE001
            last = traceback.extract_tb(error.__traceback__)[-1]
            bad[f"{error!r:.100} at {last.filename}:{last.lineno}"] += 1
        if time.process_time() - began > _LONGEST_SECONDS:
            bad[f"{time.process_time() - began:.0f} seconds, number {number}"] += 1
    shutil.rmtree(folder)
    print(json.dumps({"fates": fates, "bad": dict(bad.most_common(40))}))  # noqa: T201
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
