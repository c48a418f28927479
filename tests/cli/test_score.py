"""``streamsvm score``: how well a model predicts other rows, as scikit-learn computes it of the same predictions."""

import json

import numpy as np
import pytest
from sklearn import metrics

from streamsvm import load

pytestmark = pytest.mark.once  # these are many rows


def table(n, seed):
    rng = np.random.default_rng(seed)
    for i in range(n):
        city, size = rng.choice(["Oslo", "Paris", "Rome"]), rng.integers(0, 9)
        yield f"{i},{city},{size},{'yes' if (city == 'Oslo') ^ (rng.random() < 0.2) else 'no'}"


@pytest.fixture
def state(file, tmp_path, call):
    """A checkpoint of a table with names."""
    path = file("rows.csv", "id,city,size,y", *table(400, 0))
    call("learn", path, "--label", "y", "--checkpoint", tmp_path / "state", "--quiet")
    return tmp_path / "state"


def test_scores_are_those_of_scikit_learn(state, file, call):
    lines = list(table(300, 1))
    found = json.loads(
        call("score", file("new.csv", "id,city,size,y", *lines), "--model", state, "--positive", "yes", "--json").stdout
    )
    model, rows = load(state), [line.split(",") for line in lines]
    xs, y = [{"city": city, "size": float(size)} for _, city, size, _ in rows], [row[3] for row in rows]
    predicted, p = [model.predict_one(x) for x in xs], [model.predict_proba_one(x)["yes"] for x in xs]
    due = {
        "Accuracy": metrics.accuracy_score(y, predicted),
        "LogLoss": metrics.log_loss(y, np.column_stack([np.subtract(1.0, p), p]), labels=["no", "yes"]),
        "ROCAUC": metrics.roc_auc_score(y, p),
        "AveragePrecision": metrics.average_precision_score(y, p, pos_label="yes"),
        "F1": metrics.f1_score(y, predicted, pos_label="yes"),
    }
    assert found["rows"] == 300
    for score in found["scores"]:
        if score["name"] in due:
            assert score["value"] == pytest.approx(due.pop(score["name"]), abs=1e-3)
        else:
            assert score["table"]
    assert due == {}


def test_rows_that_cannot_be_scored_are_told(state, file, call):
    path = file("new.csv", "id,city,size,y", *table(50, 1), "1,Oslo,big,yes", "2,Oslo,3", "3,Oslo,4,")
    said = call("score", path, "--model", state).stdout
    assert said.splitlines()[0] == "50 rows scored  1 not a number  1 malformed  1 without label"
    assert "ConfusionMatrix:" in said
    assert "ROCAUC" not in said
    assert "F1 0." in call("score", path, "--model", state, "--metric", "F1", "--positive", "yes").stdout
    call("score", path, "--model", state, "--metric", "F1", status=1, says="--positive")
    call("score", path, "--model", state, "--metric", "MAE", status=2, says="no such metric for classifiers")
    call(
        "score", file("bare.csv", "id,city,size", "1,Oslo,3"), "--model", state, status=1, says="had a label: nothing was scored"
    )
    call("score", file("other.csv", "id,city,size,z", "1,Oslo,3,no"), "--model", state, "--label", "z")
    call("score", path, "--model", state, "--label", "nope", status=1, says="nope")


def test_several_files_and_numbers_to_predict(file, tmp_path, call):
    paths = [file(f"part{k}.csv", "a,y", *(f"{i % 9},{i % 9 * 2.5 + k}" for i in range(100))) for k in range(2)]
    call("learn", *paths, "--label", "y", "--checkpoint", tmp_path / "numbers", "--quiet")
    lines = call("score", *paths, "--model", tmp_path / "numbers").stdout.splitlines()
    assert lines[0] == "200 rows scored"
    assert [line.split()[0] for line in lines[1:]] == ["MAE", "RMSE", "R2"]
    model = load(tmp_path / "numbers")
    errors = [abs(model.predict_one({"a": float(i % 9)}) - (i % 9 * 2.5 + k)) for k in range(2) for i in range(100)]
    assert float(lines[1].split()[1]) == pytest.approx(np.mean(errors), abs=1e-4)


def test_labels_of_another_stream_are_scored(state, file, call):
    lines = [line.split(",") for line in table(200, 2)]
    bare = file("bare.csv", "id,city,size,t", *(f"{','.join(line[:3])},{line[0]}" for line in lines))
    labels = file("labels.csv", "id,y,t", *(f"{line[0]},{line[3]},{int(line[0]) + 9}" for line in lines[:150]))
    both = file("both.csv", "id,city,size,y", *(",".join(line) for line in lines[:150]))
    wanted = json.loads(call("score", both, "--model", state, "--json").stdout)
    found = json.loads(
        call("score", bare, "--model", state, "--labels", f"{labels}?key=id&time=t", "--label", "y", "--json").stdout
    )
    assert found["left_out"] == {"wait for a label": 50}
    assert (found["rows"], found["scores"]) == (150, wanted["scores"])


def test_the_score_along_the_way_and_calibration_are_told(state, file, call):
    path = file("long.csv", "id,city,size,y", *table(3000, 3))
    lines = call("score", path, "--model", state).stdout.splitlines()
    (course,) = [line for line in lines if line.startswith("Accuracy of 1,000 rows each time")]
    assert all(0.7 < float(value) < 0.9 for value in course.partition(": ")[2].split())
    place = lines.index("Calibration:")
    name, expected, right, rows = lines[place + 1 :][-2].rsplit(maxsplit=3)
    assert (name.strip(), rows) == ("all", "3,000")
    assert abs(float(expected) - float(right)) < 0.1
    assert right == lines[1].split()[1]
