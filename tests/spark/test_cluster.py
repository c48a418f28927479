"""Tests of a standalone cluster with a master and two workers, as local processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_killed_executor_does_not_change_the_model(tmp_path):
    path = os.pathsep.join([str(ROOT / "connectors"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, HERE / "cluster_process.py", tmp_path, str(PATIENCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-4000:]
    *example_lines, result_line = done.stdout.splitlines()
    assert [line.split(":")[0] for line in example_lines[:2]] == ["1 round(s)", "2 round(s)"]
    assert all(float(line.split(",")[1].split()[0]) > 96.0 for line in example_lines[:2])
    assert example_lines[-1] == "the class of (2, 0) is 1"
    result = json.loads(result_line)
    assert result["killed"]
    assert result["killed"][0] in result["before"]
    assert result["killed"][0] not in result["after"]
    assert result["models"][0] == result["models"][1]
