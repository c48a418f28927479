"""``streamsvm predict``: rows with a label or additional columns, and resumed runs."""

import json
import sys
import threading

import numpy as np
import pytest
from river.preprocessing import StandardScaler

from chunks import write_rows
from patience import until
from refused import raises
from streamsvm import BSGDClassifier, load, save
from streamsvm.files.container import ModelFileError, pack_container
from streamsvm.stream import CheckpointError, CheckpointFolder, IterableSource, LearningLoop

ROWS = [("Oslo" if i % 2 else "Rome", str(20 + i % 9), "low" if i % 2 else "high") for i in range(80)]


@pytest.fixture
def table(file, tmp_path, call):
    path = file("people.csv", "city,age,income", *(",".join(row) for row in ROWS))
    call("learn", path, "--label", "income", "--columns", "city:category", "--checkpoint", tmp_path / "state")
    return path


def test_memories_of_keys_that_do_not_follow_the_learner_are_reported(table, tmp_path, call):
    call("learn", table, "--label", "income", "--columns", "city:key", "--checkpoint", tmp_path / "keyed")
    for state, is_reported in (("keyed", True), ("state", False)):
        said = call("predict", table, "--model", tmp_path / state, "--to", "-").stderr
        assert ("what it remembers of each city is as of its checkpoint" in said) is is_reported


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_label_of_checkpoint_is_not_a_feature(table, tmp_path, call, kind):
    rows = [dict(zip(("city", "age", "income"), row, strict=True)) for row in ROWS]
    bare = [{name: value for name, value in row.items() if name != "income"} for row in rows]
    for table_rows, answer in ((rows, ["high", "low"]), (bare, [None, None])):
        path = write_rows(tmp_path / f"new.{kind}", table_rows)
        predictions = call("predict", path, "--model", tmp_path / "state", "--to", "-").rows[:2]
        assert [(row["y_pred"], row["y_true"]) for row in predictions] == list(zip(["high", "low"], answer, strict=True))
    wage = ["--to", "-", "--label", "wage"]
    call("predict", table, "--model", tmp_path / "state", *wage, status=1, says="no column 'wage' for the label")


@pytest.mark.parametrize("position", [{"label": 7}, {"label": ["income"], "table": [1]}, {}])
def test_invalid_label_name_in_checkpoint(table, tmp_path, call, position):
    with CheckpointFolder(tmp_path / "state") as folder:
        model = folder.newest().model
    with CheckpointFolder(tmp_path / "other") as folder:
        folder.save(model, None, rows=1, position=position)
    said = call("predict", table, "--model", tmp_path / "other", "--to", "-").stderr
    assert said.startswith("80 rows had a label, which was not learned: ")  # as the model itself knows


def test_a_column_that_the_model_does_not_know_is_left_out_and_can_be_dropped(table, file, tmp_path, call):
    path = file("new.csv", "city,age,remark", "Oslo,22,good")
    words = ["predict", path, "--model", tmp_path / "state", "--to", "-"]
    said = call(*words)
    assert said.end["y_pred"] == "low"
    assert "column 'remark' was never learned: it is left out (1 of 1 rows)" in said.stderr
    dropped = call(*words, "--columns", "remark:drop")
    assert dropped.end["y_pred"] == "low"
    assert "remark" not in dropped.stderr
    for column in ("city", "age"):
        contradicts = f"--columns {column}:drop contradicts the model, which has learned it"
        call(*words, "--columns", f"remark:drop,{column}:drop", status=1, says=contradicts)


@pytest.mark.filterwarnings("default")
def test_a_model_of_other_rows(rows, file, tmp_path, call):
    state, other_file = tmp_path / "state", file("other.csv", "A,B", "1,2", "3,4")
    call("learn", rows, "--label", "y", "--checkpoint", state)
    predict = ["predict", other_file, "--model", state, "--to", tmp_path / "out.csv"]
    warning, error = call(*predict, status=1).stderr.splitlines()
    assert warning == (
        f"streamsvm: warning: {other_file}: the rows have none of the columns that the model has learned "
        "(they have 'A', 'B'; learned were 'a', 'b')"
    )
    assert "to the end" in error
    file("other.csv", "A,b", "1,2")
    call(*predict)


def test_predictions_go_on_where_they_ended(rows, tmp_path, call):
    call("learn", rows, "--label", "y", "--regression", "--checkpoint", tmp_path / "model")
    words = ["predict", rows, "--label", "y", "--model", tmp_path / "model"]
    call(*words, "--to", tmp_path / "whole.csv")
    pieces = [*words, "--to", tmp_path / "pieces.csv", "--checkpoint", tmp_path / "own"]
    assert call(*pieces, "--max-rows", 1).stderr.endswith("1 row predicted\n")
    done = call(*pieces, says="continuing after row 1")
    assert done.stderr.endswith("60 rows predicted, 59 of them in this run\n")
    assert call(*pieces).stderr.endswith("60 rows predicted, 0 of them in this run\n")
    assert (tmp_path / "pieces.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    more, no_model = ["--to", tmp_path / "more.csv"], "holds no model: name the file or folder of the model"
    call("predict", rows, "--label", "y", "--model", tmp_path / "own", *more, status=1, says=no_model)
    call(*words, *more, "--checkpoint", tmp_path / "model", status=1, says="not written by a prediction loop")


def test_a_folder_is_followed_from_its_first_model_on(rows, file, tmp_path, call, caplog):
    words = ["predict", rows, "--label", "y", "--to", tmp_path / "out.jsonl", "--follow", "--model"]
    call(*words, file("file.ckpt"), status=2, says="must be a folder or topic of checkpoints, which a learner writes")

    def learn():
        until(lambda: f"waiting for the first checkpoint in {tmp_path / 'state'}" in caplog.text)
        with CheckpointFolder(tmp_path / "state") as folder:
            folder.save_start({"rows": 0})  # a checkpoint without a model
            source = IterableSource([({"a": i % 7, "b": i % 5}, i % 2) for i in range(50)])
            LearningLoop(source, BSGDClassifier(budget=10), checkpoints=folder).run()

    (tmp_path / "state").mkdir()
    started = threading.Thread(target=learn)
    started.start()
    call(*words, tmp_path / "state")
    started.join()
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(record["row"], record["model"]) for record in records] == [(row, 50) for row in range(60)]


def test_file_without_model_is_refused(rows, tmp_path, call):
    tree = {"records": [["dict", [["model", 7], ["metric", None]]]], "root": {"ref": 0}}
    facts = {"metadata": json.dumps({"rows": 1, "position": {}})}
    (tmp_path / "seven").write_bytes(pack_container({"tree": np.frombuffer(json.dumps(tree).encode(), np.uint8)}, facts))
    call("predict", rows, "--model", tmp_path / "seven", "--to", "-", status=1, says="seven holds a int, which is not a model")
    raises("seven holds a int, which is not a model: name the file", load, tmp_path / "seven", error=CheckpointError)
    raises("a int is not a model", save, 7, tmp_path / "eight", error=ModelFileError)
    save(StandardScaler(), tmp_path / "scaler")
    call(
        "predict",
        rows,
        "--model",
        tmp_path / "scaler",
        "--to",
        "-",
        status=1,
        says="a StandardScaler, which does not predict a label",
    )


@pytest.mark.parametrize("sink", ["--to", "--on-error"])
def test_standard_input_is_not_overwritten(rows, call, monkeypatch, sink):
    """Whichever way the sink names the file behind it."""
    before, says = rows.read_bytes(), "would overwrite SOURCE, which is standard input"
    with rows.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        call("learn", "-", "--format", "csv", "--label", "y", "--quiet", sink, rows, status=2, says=says)
    assert rows.read_bytes() == before


def test_columns_of_rows_in_predictions(file, tmp_path, call):
    rows = [f"0{i},2024-02-{i % 28 + 1:02d},{i % 7},{'yes' if i % 7 > 3 else 'no'}" for i in range(60)]
    path, out = file("rows.csv", "id,since,a,y", *rows), tmp_path / "out.csv"
    learn = ["learn", path, "--label", "y", "--columns", "id:drop,since:date", "--learner", "bsgd"]
    call(*learn, "--to", out, "--checkpoint", tmp_path / "state", "--passthrough", "id,since")
    head, *lines = out.read_text().splitlines()
    assert head == "row,y_pred,y_true,probability,id,since"
    assert [line.split(",")[4:] for line in lines] == [row.split(",")[:2] for row in rows]
    predict = ["predict", path, "--model", tmp_path / "state", "--to", "-", "--passthrough", "since,y"]
    predictions = call(*predict).rows
    assert [(row["since"], row["y"]) for row in predictions] == [(row.split(",")[1], row.split(",")[3]) for row in rows]
    followed = call(*predict, "--follow", "--max-rows", 60).rows
    assert followed == [row | {"model": 60} for row in predictions]
    call(
        *learn,
        "--passthrough",
        "id",
        status=2,
        says="--passthrough id copies columns into predictions: give --to SINK, too",
    )
    call(*predict[:-1], "model", "--follow", status=1, says="'model' cannot be passed through: predictions have a field")
    call(*predict[:-1], "ide", status=1, says="no column 'ide' to pass through. It has: id, since, a, y")
