"""``streamsvm predict``: the rows of a file as people have them, with the label in it or other columns."""

import json

import pytest

from streamsvm.stream.checkpoint import CheckpointFolder

ROWS = "city,age,income\n" + "".join(
    f"{'Oslo' if i % 2 else 'Rome'},{20 + i % 9},{'low' if i % 2 else 'high'}\n" for i in range(80)
)


@pytest.fixture
def table(tmp_path, call):
    path = tmp_path / "people.csv"
    path.write_text(ROWS)
    words = ["learn", path, "--label", "income", "--columns", "city:category", "--checkpoint", tmp_path / "state"]
    assert call(*words).returncode == 0
    return path


def labels(done):
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [row["y_pred"] for row in rows], [row["y_true"] for row in rows]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_label_of_the_checkpoint_is_no_feature(table, tmp_path, call, kind):
    rows = [dict(zip(("city", "age", "income"), line.split(","), strict=True)) for line in ROWS.splitlines()[1:]]
    bare = [{name: value for name, value in row.items() if name != "income"} for row in rows]
    for some, answer in ((rows, ["high", "low"]), (bare, [None, None])):
        path = tmp_path / f"new.{kind}"
        if kind == "parquet":
            pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            parquet.write_table(pa.Table.from_pylist(some), path)
        elif kind == "csv":
            path.write_text("\n".join([",".join(some[0]), *(",".join(row.values()) for row in some)]) + "\n")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in some))
        predicted, true = labels(call("predict", path, "--model", tmp_path / "state", "--to", "-"))
        assert (predicted[:2], true[:2]) == (["high", "low"], answer)
    assert (
        "no column 'wage' for the label"
        in call("predict", table, "--model", tmp_path / "state", "--to", "-", "--label", "wage").stderr
    )


@pytest.mark.parametrize("position", [{"label": 7}, {"label": ["income"], "table": [1]}, {}])
def test_a_label_of_a_checkpoint_that_is_no_name(table, tmp_path, call, position):
    with CheckpointFolder(tmp_path / "state") as folder:
        model = folder.newest().model
    with CheckpointFolder(tmp_path / "other") as folder:
        folder.save(model, None, rows=1, position=position)
    done = call("predict", table, "--model", tmp_path / "other", "--to", "-")
    assert (done.returncode, "feature 'income' is 'low'" in done.stderr or "feature 'income' is 'high'" in done.stderr) == (
        1,
        True,
    )


def test_a_column_that_the_model_does_not_know_can_be_dropped(table, tmp_path, call):
    path = tmp_path / "new.csv"
    path.write_text("city,age,remark\nOslo,22,good\n")
    words = ["predict", path, "--model", tmp_path / "state", "--to", "-"]
    assert "feature 'remark' is 'good'" in (said := call(*words).stderr)
    assert "To leave out the column: drop='remark' (--columns remark:drop)" in said
    assert labels(call(*words, "--columns", "remark:drop"))[0] == ["low"]
    for known in ("city", "age"):
        done = call(*words, "--columns", f"remark:drop,{known}:drop")
        assert f"--columns {known}:drop contradicts the model, which has learned it" in done.stderr


def test_a_run_says_what_it_has_predicted_itself(table, tmp_path, call):
    words = ["predict", table, "--model", tmp_path / "state", "--to", tmp_path / "out.csv", "--checkpoint", tmp_path / "own"]
    assert call(*words, "--max-rows", 1).stderr.endswith("1 row predicted\n")
    assert call(*words).stderr.endswith("80 rows predicted, 79 of them in this run\n")
    assert call(*words).stderr.endswith("80 rows predicted, 0 of them in this run\n")
