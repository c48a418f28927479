"""``streamsvm score``: how well a model predicts other rows, as scikit-learn computes it of the same predictions."""

import json

import numpy as np
import pytest
from sklearn import metrics

from chunks import write_rows
from streamsvm import BSGDClassifier, load, save, table_model

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


def test_scores_and_thresholds_are_those_of_scikit_learn(state, file, call):
    path = file("new.csv", "id,city,size,y", *(lines := list(table(300, 1))))
    facts = json.loads(call("score", path, "--model", state, "--positive", "yes", "--json").stdout)
    model, rows = load(state), [line.split(",") for line in lines]
    xs, y = [{"city": city, "size": float(size)} for _, city, size, _ in rows], np.array([row[3] == "yes" for row in rows])
    predicted = [model.predict_one(x) == "yes" for x in xs]
    p = np.array([model.predict_proba_one(x)["yes"] for x in xs])
    due = {
        "Accuracy": metrics.accuracy_score(y, predicted),
        "LogLoss": metrics.log_loss(y, p),
        "ROCAUC": metrics.roc_auc_score(y, p),
        "AveragePrecision": metrics.average_precision_score(y, p),
        "F1": metrics.f1_score(y, predicted),
    }
    assert facts["rows"] == 300
    tables = {score["name"]: score["table"] for score in facts["scores"] if score["name"] not in due}
    assert all(tables.values())
    assert {score["name"]: score["value"] for score in facts["scores"] if score["name"] in due} == pytest.approx(due, abs=1e-3)
    for name, many, precision, recall, f1 in tables["Thresholds"][1:]:
        if "best" not in name and many:
            above = p >= float(name) - 2e-4  # rows of a bin count together
            assert many == above.sum()
            wanted = metrics.precision_score(y, above), metrics.recall_score(y, above), metrics.f1_score(y, above)
            assert (precision, recall, f1) == pytest.approx(wanted, rel=1e-12)
    precision, recall, _ = metrics.precision_recall_curve(y, p)
    (best,) = [row for row in tables["Thresholds"] if "best" in row[0]]
    assert best[-1] == pytest.approx(np.nanmax(2 * precision * recall / (precision + recall)), abs=1e-3)


def test_unscored_rows_are_counted(state, file, call):
    path = file("new.csv", "id,city,size,y", *table(50, 1), "1,Oslo,big,yes", "2,Oslo,3", "3,Oslo,4,")
    said = call("score", path, "--model", state).stdout
    assert said.splitlines()[0] == "50 rows scored  1 not a number  1 malformed  1 without label"
    assert "ConfusionMatrix:" in said
    assert "ROCAUC 0" not in said
    assert said.endswith("--positive LABEL shows more: ROCAUC, AveragePrecision and F1 of that label, and thresholds for it\n")
    assert "F1 0." in call("score", path, "--model", state, "--metric", "F1", "--positive", "yes").stdout
    call("score", path, "--model", state, "--metric", "F1", status=1, says="--positive")
    call("score", path, "--model", state, "--positive", "Yes", status=1, says="has not learned the label 'Yes', only")
    call("score", path, "--model", state, "--metric", "MAE", status=2, says="no such metric for classifiers")
    bare = file("bare.csv", "id,city,size", "1,Oslo,3")
    call("score", bare, "--model", state, status=1, says="had a label: nothing was scored")
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


def test_unknown_columns_are_reported(state, file, call, tmp_path):
    known_file = file("known.csv", "id,city,size,y", *table(50, 1))
    other_file = file("other.csv", "id,city,\uff33ize,y", *(line.replace("Oslo", "O\u0308slo") for line in table(50, 1)))
    for words in (["score", "--model"], ["explain"], ["report", "--to", tmp_path / "a.html"]):
        for rows in (known_file, other_file):
            said = call(*words[:1], *([rows, *words[1:], state] if words[0] == "score" else [state, rows, *words[1:]])).stderr
            assert ("column 'size' was learned, and no row has it" in said) is (rows == other_file)
            assert ("Is it 'size'? It is written '\\uff33ize'" in said) is (rows == other_file)
            assert ("column 'city' has names that were never learned" in said) is (rows == other_file)


def test_labels_of_another_stream_are_scored(state, file, call):
    lines = [line.split(",") for line in table(200, 2)]
    bare = file("bare.csv", "id,city,size,t", *(f"{','.join(line[:3])},{line[0]}" for line in lines))
    labels = file("labels.csv", "id,y,t", *(f"{line[0]},{line[3]},{int(line[0]) + 9}" for line in lines[:150]))
    both_file = file("both.csv", "id,city,size,y", *(",".join(line) for line in lines[:150]))
    wanted = json.loads(call("score", both_file, "--model", state, "--json").stdout)
    done = call("score", bare, "--model", state, "--labels", f"{labels}?key=id&time=t", "--label", "y", "--json")
    facts = json.loads(done.stdout)
    assert "never learned" not in done.stderr
    assert facts["left_out"] == {"wait for a label": 50}
    assert (facts["rows"], facts["scores"]) == (150, wanted["scores"])


def test_learning_curve_and_calibration_are_printed(state, file, call):
    path = file("long.csv", "id,city,size,y", *table(3000, 3))
    lines = call("score", path, "--model", state).stdout.splitlines()
    (course,) = [line for line in lines if line.startswith("Accuracy of 1,000 rows each time")]
    assert all(0.7 < float(value) < 0.9 for value in course.partition(": ")[2].split())
    place = lines.index("Calibration:")
    name, expected, right, rows = lines[place + 1 :][-4].rsplit(maxsplit=3)
    assert (name.strip(), rows) == ("all", "3,000")
    assert abs(float(expected) - float(right)) < 0.1
    assert right == lines[1].split()[1]


def test_decision_rule_of_a_model_is_applied_and_shown(file, tmp_path, call):
    path, new = file("rows.csv", "id,city,size,y", *table(600, 0)), file("new.csv", "id,city,size,y", *table(300, 1))
    call(
        "learn", path, "--label", "y", "--threshold", "f1", "--positive", "yes", "--interval", ".8", "--learner", "bsgd",
        "--checkpoint", tmp_path / "tuned", "--quiet",
    )  # fmt: skip
    [decides] = [line for line in call("inspect", tmp_path / "tuned").stdout.splitlines() if line.startswith("decides")]
    assert decides.split(None, 1)[1].startswith("'yes' from a probability of 0.")
    assert decides.endswith(" on, tuned to F1, sets that hold 80 % of the labels")
    lines = call("score", new, "--model", tmp_path / "tuned").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["Accuracy", "LogLoss", "ROCAUC", "AveragePrecision", "F1"]
    coverage = json.loads(call("score", new, "--model", tmp_path / "tuned", "--metric", "Accuracy", "--json").stdout)["held"]
    model, rows = load(tmp_path / "tuned"), [line.split(",") for line in table(300, 1)]
    last, sets = model._last_step, []
    for _, city, size, _ in rows:
        sets.append(last.predict_set_one(model._transform_one({"city": city, "size": float(size)})[0]))
    assert coverage["share"] == np.mean([row[3] in label_set for row, label_set in zip(rows, sets, strict=True)])
    size = f"{np.mean([*map(len, sets)]):.2f}"
    assert lines[6] == f"sets of labels that hold the truth {coverage['share']:.4f}, with {size} labels in the mean"


def test_models_of_a_table_that_were_saved_in_python_know_their_label(file, tmp_path, call):
    path = file("rows.csv", "id,city,size,y", *table(200, 0))
    model = table_model(str(path), label="y", learner=BSGDClassifier(budget=20))
    for line in table(200, 0):
        _, city, size, y = line.split(",")
        model.learn_one({"city": city, "size": float(size)}, y)
    save(model, tmp_path / "model.bin")
    assert call("score", path, "--model", tmp_path / "model.bin").stdout.startswith("200 rows scored\nAccuracy 0.")
    said = call("predict", path, "--model", tmp_path / "model.bin", "--to", "-")
    assert said.end["y_true"] in ("yes", "no")
    assert "never learned" not in said.stderr  # of the id, which is dropped, and the label


def test_numbers_have_no_positive_label(file, tmp_path, call):
    path = file("numbers.csv", "a,y", *(f"{i % 10},{i % 10 * 1.5}" for i in range(50)))
    call("learn", path, "--label", "y", "--regression", "--learner", "bsgd", "--checkpoint", tmp_path / "model", "--quiet")
    says = "--positive 3: the model predicts numbers, no labels"
    call("score", path, "--model", tmp_path / "model", "--positive", "3", status=1, says=says)
    call("report", tmp_path / "model", path, "--to", tmp_path / "page.html", "--positive", "3", status=1, says=says)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_commands_that_skip_rows_name_the_column(kind, tmp_path, call):
    rows = [{"a": i % 7, "b": i % 5, "y": i % 2} for i in range(60)]
    path = write_rows(tmp_path / f"rows.{kind}", rows)
    refused = write_rows(tmp_path / f"refused.{kind}", [row | {"b": "big"} if i % 4 == 2 else row for i, row in enumerate(rows)])
    words = ["--model", tmp_path / "state"]
    call("learn", path, "--label", "y", "--checkpoint", words[1], "--quiet")
    says = (
        f"15 refused rows (not a number), the first: {refused}, {'line 4' if kind == 'csv' else 'line 3'}: feature 'b' is 'big'"
    )
    call("score", refused, *words, says=says)
    call("score", refused, *words, "--json", says=says)
    call("predict", refused, *words, "--to", tmp_path / "out.csv", "--on-error", "skip", says=says)
    call("report", words[1], refused, "--to", tmp_path / "out.html", says=says)
    call("learn", refused, "--label", "y", "--columns", "b:number=-", "--on-error", "skip", says=says)
    bad = write_rows(tmp_path / f"bad.{kind}", [{"a": 1, "b": "big", "y": 0}])
    call("score", bad, *words, status=1, says=f"refused were not a number 1. The first: {bad}, line")


def test_metrics_of_numbers_may_be_named(file, tmp_path, call):
    path = file("numbers.csv", "a,y", *(f"{i % 10},{i % 10 * 1.5}" for i in range(50)))
    call("learn", path, "--label", "y", "--regression", "--checkpoint", tmp_path / "model", "--quiet")
    scores = json.loads(call("score", path, "--model", tmp_path / "model", "--metric", "MAE,R2", "--json").stdout)["scores"]
    assert [score["name"] for score in scores] == ["MAE", "R2"]
    call("score", path, "--model", tmp_path / "model", "--metric", "F1", status=2, says="no such metric for regressors")
