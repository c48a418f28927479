"""Runs the example on a cluster of two workers, then fits its rows twice; an executor is killed during the second fit.

It prints the example's output, and a JSON line with digests of the models and process IDs. PATIENCE is the timeout of the start
in seconds.

python tests/spark/cluster_process.py FOLDER PATIENCE
"""

import hashlib
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from streamsvm.files.model_file import serialize_parts
from streamsvm_spark import BudgetedSVMClassifier

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "spark_cluster.py"))


def find_executors(folder):
    """Return the process IDs of the executors whose working folder is below ``folder``."""
    processes = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"CoarseGrainedExecutorBackend" in (path / "cmdline").read_bytes() and (path / "cwd").readlink().is_relative_to(
                folder
            ):
                processes.append(int(path.name))
        except OSError:
            continue
    return sorted(processes)


def kill_executor(spark, folder, killed):
    """Kill an executor as soon as one partition is done and others are in progress. Add its process ID to ``killed``."""
    tracker = spark.sparkContext.statusTracker()
    while not killed:
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None and info.numTasks == 8 and info.numCompletedTasks >= 1 and info.numActiveTasks >= 1:
                killed.append(find_executors(folder)[0])
                os.kill(killed[0], signal.SIGKILL)
                return
        time.sleep(0.01)


def main(folder, patience):
    with EXAMPLE["start_cluster"](folder, timeout=float(patience)) as master:
        spark = EXAMPLE["make_session"](master)
        EXAMPLE["main"](spark)
        rows = EXAMPLE["make_rings"](spark, 16_000)
        estimator = BudgetedSVMClassifier(budget=100, passes=10, rounds=2)
        models, killed = [], []
        for kills_executor in (False, True):
            if kills_executor:
                before = find_executors(folder)
                threading.Thread(target=kill_executor, args=(spark, folder, killed), daemon=True).start()
            model_bytes = serialize_parts({"model": estimator.fit(rows).learner()}, {})
            models.append(hashlib.sha256(model_bytes).hexdigest())
        print(json.dumps({"models": models, "killed": killed, "before": before, "after": find_executors(folder)}))
        spark.stop()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
