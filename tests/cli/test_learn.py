"""``streamsvm learn``: learners, labels, targets, resumed runs, and messages about misread streams."""

import json

import pytest
from river import datasets, tree
from river.datasets import synth

from streamsvm.cli import parsing
from streamsvm.stream import load
from streamsvm.stream.rows import find_learner

LABELS = ("ham", "spam")


def test_learners_by_name(bananas, call):
    ends = {}
    for name, setting in (("bsgd", "l2=0.001"), ("bsca", "C=2.0")):
        done = call("learn", bananas(), "--label", "y", "--learner", f"{name},{setting}", "--max-rows", 2000, "--quiet")
        assert done.stderr == ""
        ends[name] = done.end["metric"]
        assert ends[name] > 0.85
    assert ends["bsgd"] != ends["bsca"]


def test_a_linear_learner_of_many_features(file, tmp_path, call):
    rows, state = (f"{i % 2} {i % 97 + 1}:1 {1000 + i % 2}:1 {2000 + i}:0.5" for i in range(2000)), tmp_path / "state"
    path = file("rows.libsvm", *rows)
    done = call("learn", path, "--learner", "linear,C=1.0", "--checkpoint", state, "--quiet")
    assert done.stderr == ""
    assert done.end["metric"] > 0.95
    assert "n_support" not in done.end
    assert "support vectors" not in call("learn", path, "--learner", "linear", "--max-rows", 100).stderr
    facts = json.loads(call("inspect", state, "--json").stdout)
    assert (facts["n_learned"], len(facts["feature_names"])) == (2000, 97 + 2 + 2000)


def test_learn_inspect_predict(bananas, file, tmp_path, call):
    state, out = tmp_path / "state", tmp_path / "out.csv"
    done = call("learn", bananas(), "--label", "y", "--learner", "bsgd,budget=50", "--checkpoint", state, "--to", out, "--quiet")
    assert done.stderr == ""
    progress = done.end
    assert (progress["event"], progress["rows"], progress["learned"], progress["interrupted"]) == ("end", 5300, 5300, False)
    assert progress["metric"] > 0.87
    assert 0 < progress["n_support"] <= 50
    assert progress["n_merges"] > 0
    lines = out.read_text().splitlines()
    assert (lines[0], len(lines)) == ("row,y_pred,y_true,probability", 5301)

    facts = json.loads(call("inspect", state, "--json").stdout)
    assert (facts["rows"], facts["budget"], facts["feature_names"]) == (5300, 50, ["a", "b"])
    assert "support" in call("inspect", state).stdout

    rows = call("predict", file("new.jsonl", '{"a": 0.1, "b": 0.2}', '{"a": -1.0, "b": 1.0}'), "--model", state, "--to", "-").rows
    assert [row["row"] for row in rows] == [0, 1]
    assert all(row["y_pred"] in (True, False) and 0.5 <= row["probability"] <= 1.0 for row in rows)


def test_text_labels_and_metrics_with_parameters(bananas, call):
    learn = ["learn", bananas(500, LABELS), "--label", "y", "--quiet"]

    def score(*words):
        return call(*learn, *words).end["metric"]

    said = "which one is not known: is it 'ham', or the other? So name the positive label"
    call(*learn, "--metric", "F1", status=1, says=said)
    f1, f2 = score("--metric", "F1", "--positive", "spam"), score("--metric", "FBeta(beta=2)", "--positive", "spam")
    assert 0.5 < f1 < 1.0
    assert 0.5 < f2 < 1.0
    assert len({f1, f2, score("--metric", "F1", "--positive", '"ham"')}) == 3
    said = "no label so far is 'eggs', which was named as the positive one: there are 'ham' and 'spam'"
    call(*learn, "--metric", "F1", "--positive", "eggs", status=1, says=said)
    assert score("--learner", 'bsgd,maintenance=Merge(search="gss"),budget=10') > 0.5


def test_run_without_rows_has_no_score(monkeypatch, tmp_path, bananas, call):
    """A model may predict nothing before it has learned."""
    monkeypatch.setitem(parsing.LEARNERS, "bsgd", (tree.HoeffdingTreeClassifier, tree.HoeffdingTreeRegressor))
    learn = ["learn", bananas(300, LABELS), "--label", "y", "--scale", "none", "--positive", "spam", "--metric", "LogLoss"]
    last = call(*learn, "--max-rows", 1).last
    assert last.startswith("1 row ")
    assert "LogLoss" not in last
    assert call(*learn, "--to", tmp_path / "out.csv", "--quiet").end["learned"] == 300
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("0,,")


def test_labels_are_many(file, tmp_path, call):
    names = [f"label{k}" for k in range(40)]
    path = file("rows.csv", "a,b,y", *(f"{i % 40},{i % 8},{names[i % 40]}" for i in range(400)))
    for learner in ("bsgd", "auto"):
        state = tmp_path / learner
        words = ["--label", "y", "--learner", f"{learner},seed=0", "--labels-are", ",".join(names), "--quiet"]
        words += ["--checkpoint", state]
        for rows in (17, 3, 380):  # runs that end before all labels have come
            call("learn", path, *words, "--max-rows", rows)
        model, whole_folder = load(state), tmp_path / f"whole-{learner}"
        assert call("learn", path, *words, "--checkpoint", whole_folder).end["learned"] == 400
        assert (model.n_learned, model.labels, model._store.snapshot()) == (400, names, load(whole_folder)._store.snapshot())
    call("learn", path, "--label", "y", "--labels-are", ",".join(map(str, range(129))), status=2, says="max_classes=128")


def test_labels_that_are_declared(file, call):
    path = file("rows.csv", "a,y", *(f"{i % 7},{'AB7'[i % 3]}" for i in range(60)), "1,C")
    progress = call("learn", path, "--label", "y", "--labels-are", "A,B,7", "--on-error", "skip", "--quiet").end
    assert (progress["learned"], progress["refused"]) == (60, {"label": 1})
    done = call("learn", path, "--label", "y", "--on-error", "skip")
    assert "21 refused  20 label" not in done.stderr
    assert "  20 refused  20 label" in done.stderr


def test_source_without_labels_is_an_error(file, tmp_path, call):
    path = file("rows.jsonl", *(f'{{"a": {i}, "y": {i % 2}}}' for i in range(30)))
    words = ["learn", path, "--label", "lable", "--checkpoint", tmp_path / "state", "--checkpoint-every", 10]
    said = "none of its 30 rows had a label: nothing was learned. Is its name right? The last row had 'y'"
    call(*words, status=1, says=said)
    call(*words, "--max-rows", 20, status=1, says="none of 20 rows had a label")  # from the first row on: nothing was saved
    call("learn", path, "--label", "y", "--checkpoint", tmp_path / "other")


def test_a_source_without_rows_is_an_error(file, tmp_path, call):
    path = file("rows.csv", "a,b,y")
    learn = "learn", path, "--label", "y", "--checkpoint", tmp_path / "state", "--to", tmp_path / "out.csv"
    assert call(*learn, status=1).last == f"streamsvm: {path} has no rows: there is nothing to learn"
    assert not list((tmp_path / "state").glob("*.ckpt"))
    assert not (tmp_path / "out.csv").exists()


def test_invalid_source_is_reported_before_start(rows, tmp_path, call):
    words = ["learn", rows, "--label", "y", "--checkpoint", tmp_path / "state"]
    call(*words, says="starting")
    assert "starting" not in call(*words, says="continuing after row 60").stderr
    for flags in (["--learner", "bsgd,kernel=linear"], ["--regression"], ["--weight", "a"]):
        assert len(call(*words, *flags, status=1).stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            ["--learner", "bsgd,kernel=linear"],
            "parameters that differ: BSGDClassifier kernel: 'rbf' -> 'linear'. To continue with its model, leave --learner",
        ),
        (
            ["--scale", "none"],
            "parameters that differ: BSGDClassifier scaling: 'auto' -> None. To continue with its model, leave --learner",
        ),
        (
            ["--learner", "bsgd,l2=1e-5", "--bound", "9"],
            "parameters that differ: BSGDClassifier -> Pipeline. To continue with its model, leave --learner",
        ),
    ],
)
def test_contradiction_names_only_differing_parameters(rows, tmp_path, call, flags, text):
    words = ["learn", rows, "--label", "y", "--checkpoint", tmp_path / "state"]
    call(*words)
    said = call(*words, *flags, status=1, says=text).stderr
    assert f"{tmp_path / 'state'} holds a model with other parameters: " in said


def test_more_features_than_columns_names_the_flags(file, call):
    path = file("rows.libsvm", *(f"{i % 2} {3 * i + 1}:1 {3 * i + 2}:2 {3 * i + 3}:1" for i in range(400)))
    said = "max_features=1024 names are known. In --learner bsgd, give max_features=N, overflow=hash or overflow=ignore."
    assert said in call("learn", path, "--learner", "bsgd,l2=0.1", status=1).last
    for setting in ("max_features=1300", "overflow=ignore"):
        call("learn", path, "--learner", f"bsgd,{setting}")


def test_detectors_of_drift(file, tmp_path, call):
    flipped = (f"{x[0]},{x[1]},{int(y) ^ (i >= 1000)}" for i, (x, y) in enumerate(synth.Sine(seed=1).take(2000)))
    path = file("rows.csv", "a,b,y", *flipped)
    words = ["learn", path, "--label", "y", "--learner", "bsgd,budget=30"]
    words += ["--drift", "PageHinkley(threshold=20)", "--on-drift", "reset"]
    progress = call(*words, "--quiet", "--checkpoint", tmp_path / "state").end
    assert progress["drifts"] >= 1
    assert load(tmp_path / "state").n_learned < 2000
    call(*words, says=f"{progress['drifts']} drift")
    call("learn", path, "--label", "y", "--drift", "KSWIN", "--max-rows", 50)


# Targets ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def trump(file):
    rows = list(datasets.TrumpApproval().take(300))
    return file("trump.csv", ",".join([*rows[0][0], "y"]), *(",".join(map(repr, [*x.values(), y])) for x, y in rows))


@pytest.mark.parametrize("model", ["bsgd", "bsca", "linear"])
def test_a_regression(trump, tmp_path, call, model):
    learn = ["learn", trump, "--label", "y", "--regression", "--quiet", "--checkpoint", tmp_path / "state"]
    learn += ["--to", tmp_path / "out.csv", "--learner"]
    progress = call(*learn, model).end
    assert (progress["metric_name"], progress["learned"]) == ("MAE", 300)
    assert progress["metric"] < 1.5  # the targets are 37 to 46
    facts = json.loads(call("inspect", tmp_path / "state", "--json").stdout)
    assert facts["n_learned"] == 300
    assert "C=" in facts["parameters"] or "l2=" in facts["parameters"]  # of the regressor within the scaler of targets
    call(*learn, f"{model},epsilon=0.2")
    assert "epsilon=0.2" in json.loads(call("inspect", tmp_path / "state", "--json").stdout)["parameters"]
    call(*learn, f"{model},epsilon=0.2")  # the same
    call("predict", trump, "--model", tmp_path / "state", "--label", "y", "--to", tmp_path / "later.csv")
    y_pred, y_true, probability = (tmp_path / "later.csv").read_text().splitlines()[-1].split(",")[1:]
    assert float(y_pred) == pytest.approx(float(y_true), abs=2.0)
    assert probability == ""


@pytest.mark.filterwarnings("default")
def test_targets_of_libsvm_text_are_scaled(file, call):
    path = file("rows.libsvm", *(f"{5000 + 300 * (i % 11)} 1:{i % 11} 7:{i % 3}" for i in range(400)))
    wrong = call("learn", path, "--regression", "--quiet", "--scale", "none", says="standard deviation").end["metric"]
    right = call("learn", path, "--regression", "--quiet")
    assert right.stderr == ""
    for done in (right, call("learn", path, "--regression", "--quiet", "--bound", "0")):
        assert done.end["metric"] < 0.2 * wrong


def test_a_number_to_predict_is_noticed(trump, call):
    words = ["learn", trump, "--label", "y", "--max-rows", 30]
    done = call(*words, says="a number to predict")
    assert "read with --regression (" in done.stderr
    assert "MAE " in done.last
    done = call(*words, "--regression", "--metric", "R2")
    assert "a number to predict" not in done.stderr
    assert "R2 " in done.last
    call(*words, "--ask", status=1, says="y looks like a number to predict. Try: --regression")
    call(*words, "--labels-are", "40.0,41.0", status=1)  # which is about labels


def test_a_number_as_text_among_labels_may_be_one_to_predict(file, call):
    prices = ["a,price", *(f"{i},{i}" for i in range(9))]
    learn = ["learn", file("prices.csv", *prices, "9,959.00"), "--label", "price"]
    said = call(*learn, status=1, says="label '959.00' is a str").stderr
    assert "If they are numbers to predict: --regression, or a regressor." in said
    file("prices.csv", *prices, "9,many")
    assert "--regression" not in call(*learn, "--quiet", status=1).stderr


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("more", [[], ["--columns", "a:number,*:drop"]])
def test_weights_of_rows(file, tmp_path, call, kind, more):
    rows = [{"w": [None, 0, 2.5, 1][i % 4], "a": i % 7, "y": "yes" if i % 7 > 3 else "no"} for i in range(80)]
    lines = (
        map(json.dumps, rows) if kind == "jsonl" else (",".join(str(v or "0" * (v == 0)) for v in row.values()) for row in rows)
    )
    path = file(f"rows.{kind}", *(["w,a,y"] if kind == "csv" else []), *(line.replace("None", "") for line in lines))
    state = tmp_path / "state"
    words = ["learn", path, "--label", "y", "--learner", "bsgd", *more]
    said = call(*words, "--weight", "w", "--checkpoint", state, "--max-rows", 40).stderr
    assert [line.split() for line in said.splitlines() if line.startswith("  w")] == [["w", "dropped"]]
    done = call(*words, "--weight", "w", "--checkpoint", state, "--quiet")
    assert (done.end["rows"], done.end["learned"], done.end["refused"]) == (80, 60, {})
    assert find_learner(load(state)).feature_names == ["a"]
    predictions = call("predict", path, "--model", state, "--to", "-", "--label", "y").rows
    assert [row["y_true"] for row in predictions] == [row["y"] for row in rows]
    said = "learned with the weight 'w', not 'z': give --weight w"
    call(*words, "--checkpoint", state, "--weight", "z", "--ask", status=1, says=said)
    call(*words, "--checkpoint", state)  # with the weights of the checkpoint
    call(*words, "--weight", "y", status=2, says="it cannot be the label")
    call(*words, "--columns", "w:drop", "--weight", "w", status=2, says="it cannot be the label or in --columns")
    labels = ["--labels", f"{path}?key=id"]
    call(*words, "--weight", "w", *labels, status=2, says="rows that wait for the labels of --labels have no weights")


def test_several_metrics_in_one_run(bananas, tmp_path, call):
    learn = ["learn", bananas(500, LABELS), "--label", "y", "--learner", "bsgd", "--positive", "spam", "--window", 100]
    metric = ["--metric", "Accuracy, FBeta(beta=2.0), ROCAUC,LogLoss,ConfusionMatrix,ClassificationReport"]
    done = call(*learn, *metric, "--checkpoint", tmp_path / "state")
    *_, line = [line for line in done.stderr.splitlines() if line.startswith("500 rows")]
    assert "Accuracy 0." in line
    assert "(always 'ham': 0." in line
    after = done.stderr.partition(line)[0].splitlines()
    after = after[next(i for i, line in enumerate(after) if line.startswith("FBeta")) :]
    assert [line.split()[0] for line in after[:3]] == ["FBeta", "ROCAUC", "LogLoss"]
    assert "(always 'spam': 0." in after[0]
    assert "(rows in any order: 0.5000)  last 100 rows 0." in after[1]
    assert "(the labels' shares so far: 0.6" in after[2]
    assert after[3:5] == ["ConfusionMatrix:", "  true label  as ham  as spam"]
    assert after[7:9] == ["ClassificationReport:", "  label           precision  recall      F1  rows"]
    # Without a checkpoint, and as JSON.
    progress = call(*learn, *metric, "--quiet").end
    names = ["Accuracy", "FBeta", "ROCAUC", "LogLoss", "ConfusionMatrix", "ClassificationReport"]
    assert [score["name"] for score in progress["scores"]] == names
    assert (progress["scores"][0]["value"], progress["scores"][0]["windowed"]) == (progress["metric"], progress["windowed"])
    assert progress["scores"][2]["baselines"] == {"rows in any order": 0.5}
    assert progress["scores"][4]["table"][0] == ["true label", "as ham", "as spam"]
    assert sum(sum(row[1:]) for row in progress["scores"][4]["table"][1:]) == 499


def test_baselines_of_regressions_are_printed(file, call):
    path = file("rows.csv", "a,y", *(f"{i % 7},{i % 7 + i % 3}" for i in range(300)))
    done = call("learn", path, "--label", "y", "--regression", "--metric", "R2,MAE", says="R2 0.")
    assert "(the mean so far: -0.0" in done.stderr
    assert "the last target: " in done.stderr
