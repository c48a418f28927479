"""The command that makes one model of several."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from partition_models import learned, save, table
from patience import PATIENCE
from streamsvm import SVMClassifier
from streamsvm.stream import CheckpointFolder


def streamsvm(*words):
    command = [sys.executable, "-m", "streamsvm", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.thorough
def test_the_command_merges_until_it_is_ended(tmp_path):
    parts = tmp_path / "state"
    for number, n in ((2, 120), (10, 80)):
        save(parts / f"partition-{number}", n, number, label="y")
    process = streamsvm("merge", parts, "--to", tmp_path / "merged", "--every", "0.05", "--quiet")
    try:
        assert json.loads(process.stdout.readline())["rows"] == 200
        save(parts / "partition-10", 90, 10, label="y")
        assert json.loads(process.stdout.readline()) == {
            "event": "merged",
            "rows": 210,
            "parts": {"partition-2": 120, "partition-10": 90},
        }
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, output, errors) == (130, "", "")


def test_models_of_the_command_line_become_one_that_predicts(tmp_path, call):
    for number in range(3):
        rows = "".join(f"{x['a']},{x['b']},{x['city']},{y}\n" for x, y in table(400, number))
        (tmp_path / f"{number}.csv").write_text(f"a,b,city,y\n{rows}")
        words = ["--label", "y", "--columns", "city:category", "--learner", "bsgd", "--quiet", "--checkpoint"]
        assert call("learn", tmp_path / f"{number}.csv", *words, tmp_path / f"model-{number}").returncode == 0
    folders = [tmp_path / f"model-{number}" for number in range(3)]
    done = call("merge", *folders, "--to", tmp_path / "merged")
    assert (done.returncode, done.stderr) == (0, "1,200 rows of 3 models merged\n")
    done = call("predict", tmp_path / "0.csv", "--model", tmp_path / "merged", "--to", tmp_path / "out.jsonl")
    assert done.returncode == 0
    predictions = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert np.mean([each["y_pred"] == y for each, (_, y) in zip(predictions, table(400, 0), strict=True)]) > 0.85


def test_a_committee_is_refused_with_the_way_out(tmp_path, call):
    with CheckpointFolder(tmp_path / "one") as folder:
        folder.save(learned(lambda: SVMClassifier(effort="low"), []), None, rows=5, position={})
    done = call("merge", tmp_path / "one", "--to", tmp_path / "merged")
    assert done.returncode == 1
    assert "SVMClassifier cannot be merged" in done.stderr
    assert "--learner bsgd, bsca or linear" in done.stderr


@pytest.mark.parametrize("words", [["--every", "0"], ["--every", "nan"], []])
def test_wrong_flags_are_refused(words, tmp_path, call):
    done = call("merge", tmp_path, *words, *(["--to", tmp_path / "merged"] if words else []))
    assert done.returncode == 2


def test_a_folder_without_a_model_is_told(tmp_path, call):
    done = call("merge", tmp_path, "--to", tmp_path / "merged")
    assert (done.returncode, "no model yet" in done.stderr) == (1, True)
