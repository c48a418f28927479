"""The command that makes one model of several."""

import json
import signal
import time
from subprocess import PIPE

import numpy as np
import pytest

from forked import Command
from partition_models import learned, save, table
from patience import PATIENCE, SLOW_END
from streamsvm import SVMClassifier
from streamsvm.stream import CheckpointFolder


@pytest.mark.thorough
def test_the_command_merges_until_it_is_ended(tmp_path):
    parts = tmp_path / "state"
    for number, n in ((2, 120), (10, 80)):
        save(parts / f"partition-{number}", n, number, label="y")
    words = ["merge", parts, "--to", tmp_path / "merged", "--every", "0.05", "--quiet"]
    with Command(words, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert json.loads(process.stdout.readline())["rows"] == 200
        save(parts / "partition-10", 90, 10, label="y")
        parts_now = {"partition-2": 120, "partition-10": 90}
        assert json.loads(process.stdout.readline()) == {"event": "merged", "rows": 210, "parts": parts_now}
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (130, "")
    assert errors in ("", SLOW_END)


def test_models_of_the_command_line_become_one_that_predicts(file, tmp_path, call):
    for number in range(3):
        rows = (f"{x['a']},{x['b']},{x['city']},{y},{number + 1}" for x, y in table(400, number))
        path = file(f"{number}.csv", "a,b,city,y,w", *rows)
        words = ["--label", "y", "--weight", "w", "--columns", "city:category", "--learner", "bsgd", "--quiet", "--checkpoint"]
        call("learn", path, *words, tmp_path / f"model-{number}")
    folders = [tmp_path / f"model-{number}" for number in range(3)]
    done = call("merge", *folders, "--to", tmp_path / "merged")
    assert done.stderr == "1,200 rows of 3 models merged\n"
    said = call("predict", tmp_path / "0.csv", "--model", tmp_path / "merged", "--to", "-")
    assert "'w'" not in said.stderr  # which is still no feature
    call("learn", tmp_path / "0.csv", "--start-from", tmp_path / "merged", "--checkpoint", tmp_path / "next", "--max-rows", 9)
    assert "w" not in json.loads(call("inspect", tmp_path / "next", "--json").stdout)["feature_names"]
    predictions = said.rows
    assert np.mean([prediction["y_pred"] == y for prediction, (_, y) in zip(predictions, table(400, 0), strict=True)]) > 0.85


def test_an_ensemble_is_refused_with_the_way_out(tmp_path, call):
    with CheckpointFolder(tmp_path / "one") as folder:
        folder.save(learned(lambda: SVMClassifier(effort="low"), []), None, rows=5, position={})
    done = call("merge", tmp_path / "one", "--to", tmp_path / "merged", status=1, says="SVMClassifier cannot be merged")
    assert "--learner bsgd, bsca or linear" in done.stderr


@pytest.mark.parametrize("words", [["--every", "0"], ["--every", "nan"], []])
def test_wrong_flags_are_refused(words, tmp_path, call):
    call("merge", tmp_path, *words, *(["--to", tmp_path / "merged"] if words else []), status=2)


@pytest.mark.parametrize(
    ("flag", "other", "says"),
    [
        ("--columns=id:drop,c:category", "--columns=id:drop", "with --columns c:category and with --columns c:number: learn"),
        ("--missing=NA", "--when-missing=indicator", "with --missing NA and with the defaults: learn all"),
    ],
)
def test_other_columns_are_named(flag, other, says, file, tmp_path, call):
    path = file("rows.csv", "id,a,c,y", *(f"x{i},{i % 7},{i % 3},{i % 2}" for i in range(40)))
    for number, words in enumerate((flag, other)):
        call("learn", path, "--label", "y", words, "--quiet", "--checkpoint", tmp_path / f"model-{number}")
    call("merge", tmp_path / "model-0", tmp_path / "model-1", "--to", tmp_path / "merged", status=1, says=says)


def test_other_steps_are_named(file, tmp_path, call):
    path = file("rows.csv", "a,c,y", *(f"{i % 7},{'uvw'[i % 3]},{i % 2}" for i in range(40)))
    for number, words in enumerate(([], ["--interval", ".9"])):
        call("learn", path, "--label", "y", *words, "--quiet", "--checkpoint", tmp_path / f"model-{number}")
    says = "one is TableEncoder | BSGDClassifier, another TableEncoder | ConformalClassifier"
    call("merge", tmp_path / "model-0", tmp_path / "model-1", "--to", tmp_path / "merged", status=1, says=says)
