"""Runs the example on a cluster of two workers, and fits its rows there, undisturbed and while the executor of one is killed.

It prints what the example prints, and what came of the fits. PATIENCE is how long Spark may take to start, in seconds.

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


def executors(folder):
    """The processes of Java that run tasks for workers with their folders in this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"CoarseGrainedExecutorBackend" in (path / "cmdline").read_bytes() and (path / "cwd").readlink().is_relative_to(
                folder
            ):
                found.append(int(path.name))
        except OSError:
            continue
    return sorted(found)


def kill_in_mid_fit(spark, folder, killed):
    """Kill an executor when one partition is done, and others are at work."""
    tracker = spark.sparkContext.statusTracker()
    while not killed:
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None and info.numTasks == 8 and info.numCompletedTasks >= 1 and info.numActiveTasks >= 1:
                killed.append(executors(folder)[0])
                os.kill(killed[0], signal.SIGKILL)
                return
        time.sleep(0.01)


def main(folder, patience):
    with EXAMPLE["start_cluster"](folder, timeout=float(patience)) as master:
        spark = EXAMPLE["make_session"](master)
        EXAMPLE["main"](spark)
        rows = EXAMPLE["make_rings"](spark, 16_000)
        estimator = BudgetedSVMClassifier(budget=100, passes=20, rounds=2)
        models, killed = [], []
        for disturbed in (False, True):
            if disturbed:
                before = executors(folder)
                threading.Thread(target=kill_in_mid_fit, args=(spark, folder, killed), daemon=True).start()
            file = serialize_parts({"model": estimator.fit(rows).learner()}, {})
            models.append(hashlib.sha256(file).hexdigest())
        print(json.dumps({"models": models, "killed": killed, "before": before, "after": executors(folder)}))
        spark.stop()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
