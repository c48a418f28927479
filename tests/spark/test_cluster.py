"""A standalone cluster of a master and two workers, as processes of this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_the_example_fits_on_a_cluster_and_an_executor_that_is_killed_in_mid_fit_changes_nothing(tmp_path):
    path = os.pathsep.join([str(ROOT / "connectors"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, HERE / "cluster_process.py", tmp_path, str(PATIENCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-4000:]
    *shown, said = done.stdout.splitlines()
    assert [line.split(":")[0] for line in shown[:2]] == ["1 round(s)", "2 round(s)"]
    assert all(float(line.split(",")[1].split()[0]) > 96.0 for line in shown[:2])
    assert shown[-1] == "and (2, 0) is of class 1"
    said = json.loads(said)
    assert said["killed"]
    assert said["killed"][0] in said["before"]
    assert said["killed"][0] not in said["after"]
    assert said["models"][0] == said["models"][1]
