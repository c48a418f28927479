"""``streamsvm explain``: which columns matter, and why rows are decided as they are."""

import json
import re

import pytest
from river import cluster, preprocessing

from streamsvm import load, save

pytestmark = pytest.mark.once  # these are many rows


@pytest.fixture
def state(file, tmp_path, call):
    """A checkpoint of a table, whose label is the city."""
    rows = (f"n{i},{'Oslo' if i * i % 7 > 2 else 'Paris'},{i % 10},{'yes' if i * i % 7 > 2 else 'no'}" for i in range(300))
    call("learn", file("rows.csv", "id,city,size,y", *rows), "--label", "y", "--checkpoint", tmp_path / "state", "--quiet")
    return tmp_path / "state"


def test_columns_and_rows_are_explained(state, call):
    rows = state.parent / "rows.csv"
    said = call("explain", rows, "--model", state, "--rows", 2).stdout
    assert said == call("explain", state, rows, "--rows", 2).stdout  # the earlier order
    lines = said.splitlines()
    assert lines[0].startswith("column  moves the decision by  error when shuffled (now 0")
    assert [line.split()[0] for line in lines[1:3]] == ["city", "size"]
    assert lines[4].startswith("row 1: 'no': decision ")
    assert "city = Paris" in lines[5]
    assert said.count("several together") == 2
    facts = json.loads(call("explain", rows, "--model", state, "--json").stdout)
    assert list(facts["mean_contributions"]) == ["city", "size"]
    assert facts["error_increases"]["city"] > 0.1 > abs(facts["error_increases"]["size"])
    row = facts["explained"][0]
    total = row["typical"] + sum(row["contributions"].values()) + row["remainder"]
    assert total == pytest.approx(row["decision"])
    assert "examples" not in row
    said = call("explain", rows, "--model", state, "--rows", 2, "--examples", 1).stdout
    assert said.count("the nearest examples:\n'no': 1 of ") == 2
    assert said.count(" support vectors\n  distance ") == 4
    facts = json.loads(call("explain", rows, "--model", state, "--examples", 2, "--json").stdout)
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
    for words in ([without], [without, without, state]):
        call("explain", *words, status=2, says="which model explains them? streamsvm explain ROWS --model PLACE")
    numbers = file("targets.csv", "a,y", *(f"{i % 10},{i % 10 * 1000}" for i in range(100)))
    call("learn", numbers, "--label", "y", "--regression", "--learner", "bsgd", "--checkpoint", tmp_path / "other", "--quiet")
    said = call("explain", tmp_path / "other", numbers, "--rows", "1").stdout.splitlines()
    [line] = [line for line in said if line.startswith("row 1: ")]
    assert abs(float(line.split()[2].strip(":")) - load(tmp_path / "other").predict_one({"a": 0.0})) < 1.0


@pytest.mark.parametrize("model", [cluster.KMeans(), preprocessing.StandardScaler()], ids=lambda model: type(model).__name__)
def test_objects_that_do_not_predict_are_refused(file, call, tmp_path, model):
    save(model, tmp_path / "other")
    says = "cannot explain .*: (the model must be a classifier or a regressor|decisions of a KMeans cannot be explained)"
    assert re.search(says, call("explain", file("rows.csv", "a,b", "1,2"), "--model", tmp_path / "other", status=1).stderr)


def test_rows_from_standard_input_several_files_and_labels_from_a_file(state, file, call, monkeypatch):
    rows = state.parent / "rows.csv"
    expected = call("explain", rows, "--model", state).stdout
    for label in ([], ["--label", "y"]):
        with rows.open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            assert call("explain", "-", "--format", "csv", "--model", state, *label).stdout == expected
    head, *lines = rows.read_text().splitlines()
    parts = file("part1.csv", head, *lines[:100]), file("part2.csv", head, *lines[100:])
    assert call("explain", *parts, "--model", state).stdout == expected
    cells = [line.split(",") for line in lines]
    features = file("features.csv", "id,at,city,size", *(f"{row[0]},{i * 10},{row[1]},{row[2]}" for i, row in enumerate(cells)))
    labels = file("labels.csv", "id,at,y", *(f"{row[0]},{i * 10 + 15 * (-1) ** i},{row[3]}" for i, row in enumerate(cells)))
    flags = "--labels", f"{labels}?key=id&time=at"
    assert call("explain", features, "--model", state, *flags).stdout == expected
    words = "explain", features, "--model", state, "--labels", f"{labels}?key=id"
    call(*words, status=1, says="rows have no event time: name its column, --labels 'STREAM?key=ID&time=AT'")


def test_a_report_measures_importance_with_labels_from_a_file(state, file, call, tmp_path):
    """The labels of the other stream are those of its rows, and not rows of their own."""
    _, *lines = (state.parent / "rows.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines]
    features = file("features.csv", "id,at,city,size", *(f"{row[0]},{i * 10},{row[1]},{row[2]}" for i, row in enumerate(cells)))
    labels = file("labels.csv", "id,at,y", *(f"{row[0]},{i * 10 + 5},{row[3]}" for i, row in enumerate(cells)))
    parts = []
    for name, words in (("a.html", [state.parent / "rows.csv"]), ("b.html", [features, "--labels", f"{labels}?key=id&time=at"])):
        call("report", state, *words, "--to", tmp_path / name)
        text = re.search(r'id="facts">(.*?)</script>', (tmp_path / name).read_text(), re.DOTALL)[1]
        parts.append({part: json.loads(text)[part] for part in ("importance", "explained")})
    assert parts[0] == parts[1]
    assert "of the rows, grows if" in parts[0]["importance"]["sentence"]
    assert "300 rows" in parts[0]["importance"]["sentence"]


def test_a_report_does_not_read_standard_input(state, tmp_path, call):
    call("report", state, "-", "--format", "csv", "--to", tmp_path / "a.html", status=2, says="save them in a file")


def test_a_text_as_the_target_of_a_regression_is_named(file, call, tmp_path):
    lines = [f"{i % 7},{i % 5 / 4}" for i in range(60)]
    words = "--label", "y", "--learner", "bsgd,budget=20", "--checkpoint", tmp_path / "state"
    call("learn", file("rows.csv", "a,y", *lines), "--regression", *words)
    rows = file("texts.csv", "a,y", "3,yes", *lines)
    call("explain", rows, "--model", tmp_path / "state", status=1, says="label 'yes' is not a finite number to predict")


def test_explanations_name_the_words_of_texts(file, call, tmp_path):
    texts = ["free prize", "win a prize", "see you", "a call"]
    rows = file("rows.csv", "body,title,y", *(f"{texts[i % 4]},N{i},{'ham' if i % 4 > 1 else 'spam'}" for i in range(40)))
    words = "--columns", "body:text,title:text", "--learner", "bsgd,budget=20", "--checkpoint", tmp_path / "state", "--quiet"
    call("learn", rows, "--label", "y", *words)
    new = file("new.csv", "body,title,y", "A \x1b[2J<b>prize</b>: see unknown,,spam")
    text = call("explain", new, "--model", tmp_path / "state", "--examples", 1).stdout
    odds = load(tmp_path / "state").score_words({"body": "a prize: see"})["body"]["spam"]
    assert odds["prize"] > 1.0 > abs(odds["a"]) > 0.0 > odds["see"]
    expected = f"'spam': {odds['prize']:+.2g} 'prize', {odds['see']:+.2g} 'see', {odds['a']:+.2g} 'a'\n"
    assert f"  body = A \\x1b[2J<b>prize</b>: see unknown\n{'':14}{expected}" in text
    assert re.search(r"body = 2 words \(spam -\d.*\), title = 1 word\n", text)
    facts = json.loads(call("explain", new, "--model", tmp_path / "state", "--json").stdout)
    assert facts["explained"][0]["words"] == {"body": odds}


def test_the_memory_of_a_key_contributes_apart(file, call, tmp_path):
    rows = file("rows.csv", "device,size,y", *(f"d{i % 3},{i % 7},{'yes' if i // 30 % 2 == i % 2 else 'no'}" for i in range(300)))
    words = (
        "--label",
        "y",
        "--columns",
        "device:key",
        "--learner",
        "bsgd,budget=20",
        "--checkpoint",
        tmp_path / "state",
        "--quiet",
    )
    call("learn", rows, *words)
    lines = call("explain", rows, "--model", tmp_path / "state").stdout.splitlines()
    assert {line.split("  ")[0]: line.split()[-1][0] in "+-" for line in lines[1:4]} == {
        "device": True,
        "device (memory)": False,  # it is not a column that can be shuffled
        "size": True,
    }
    assert any(line.endswith("  device (memory) = d0") for line in lines)
    model, x = load(tmp_path / "state"), {"device": "d0", "size": 2.0}
    explanation = model.explain_one(x)
    assert next(iter(explanation.contributions)) == "device (memory)"
    features = model["TableEncoder"].transform_one(x)
    encoder, learner = model.steps.values()
    typical = learner.explain_one(features).typical
    assert explanation.typical == typical
    groups = dict.fromkeys(encoder.get_memory(x), "memory")
    memory = learner.explain_one(features, None, groups=groups).contributions["memory"]
    assert explanation.contributions["device (memory)"] == pytest.approx(memory)
