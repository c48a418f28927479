"""``streamsvm explain``: which columns matter, and why rows are decided as they are."""

import json

import pytest

from streamsvm import load

pytestmark = pytest.mark.once  # these are many rows


@pytest.fixture
def state(file, tmp_path, call):
    """A checkpoint of a table, whose label is the city."""
    rows = (f"n{i},{'Oslo' if i * i % 7 > 2 else 'Paris'},{i % 10},{'yes' if i * i % 7 > 2 else 'no'}" for i in range(300))
    call("learn", file("rows.csv", "id,city,size,y", *rows), "--label", "y", "--checkpoint", tmp_path / "state", "--quiet")
    return tmp_path / "state"


def test_columns_and_rows_are_explained(state, call):
    said = call("explain", state, state.parent / "rows.csv", "--rows", 2).stdout
    lines = said.splitlines()
    assert lines[0].startswith("column  moves the decision by  error when shuffled (now 0")
    assert [line.split()[0] for line in lines[1:3]] == ["city", "size"]
    assert lines[4].startswith("row 1: 'no': decision ")
    assert "city = Paris" in lines[5]
    assert said.count("several together") == 2
    facts = json.loads(call("explain", state, state.parent / "rows.csv", "--json").stdout)
    assert list(facts["mean_contributions"]) == ["city", "size"]
    assert facts["error_increases"]["city"] > 0.1 > abs(facts["error_increases"]["size"])
    row = facts["explained"][0]
    total = row["typical"] + sum(row["contributions"].values()) + row["remainder"]
    assert total == pytest.approx(row["decision"])
    assert "examples" not in row
    said = call("explain", state, state.parent / "rows.csv", "--rows", 2, "--examples", 1).stdout
    assert said.count("the nearest examples:\n'no': 1 of ") == 2
    assert said.count(" support vectors\n  distance ") == 4
    facts = json.loads(call("explain", state, state.parent / "rows.csv", "--examples", 2, "--json").stdout)
    assert [example["label"] for example in facts["explained"][0]["examples"]] == ["no", "no", "yes", "yes"]
    assert row["prediction"] == load(state).predict_one({"city": "Paris", "size": 0})


def test_explains_rows_without_labels_and_refuses_other_models(state, file, call, tmp_path):
    without = file("new.csv", "city,size", "Oslo,1", "Paris,2")
    said = call("explain", state, without).stdout
    assert "shuffled" not in said
    assert "No row has its label (y), so " in said
    assert json.loads(call("explain", state, without, "--json").stdout)["error"] is None
    call("explain", state, file("empty.csv", "city,size"), status=1, says="has no rows")
    call("explain", state, file("bad.csv", "city,size", "Oslo,big"), status=1, says="big")
    call("explain", state, tmp_path / "none.csv", status=1, says="none.csv")
    call("explain", without, state, status=1, says="By its name, it is a table (csv): give the path of a model here")
    call("explain", without, "--model", state, status=2, says="usage: streamsvm explain PLACE ROWS [flags]")
    numbers = file("targets.csv", "a,y", *(f"{i % 10},{i % 10 * 1000}" for i in range(100)))
    call("learn", numbers, "--label", "y", "--regression", "--learner", "bsgd", "--checkpoint", tmp_path / "other", "--quiet")
    said = call("explain", tmp_path / "other", numbers, "--rows", "1").stdout.splitlines()
    [line] = [line for line in said if line.startswith("row 1: ")]
    assert abs(float(line.split()[2].strip(":")) - load(tmp_path / "other").predict_one({"a": 0.0})) < 1.0
