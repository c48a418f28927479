"""Numbers to predict, and predictions that go on where they ended, on the command line."""

import json

import pytest
from river import datasets


@pytest.fixture
def trump(tmp_path):
    path = tmp_path / "trump.csv"
    rows = list(datasets.TrumpApproval().take(300))
    lines = [",".join([*rows[0][0], "y"])] + [",".join(map(repr, [*x.values(), y])) for x, y in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("model", ["bsgd", "bsca", "linear"])
def test_a_regression(trump, tmp_path, call, model):
    words = ["learn", trump, "--label", "y", "--regression", "--quiet"]
    done = call(*words, "--learner", model, "--checkpoint", tmp_path / "state", "--to", tmp_path / "out.csv")
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["metric_name"], end["learned"]) == ("MAE", 300)
    assert end["metric"] < 1.5  # the targets are 37 to 46
    facts = json.loads(call("inspect", tmp_path / "state", "--json").stdout)
    assert facts["n_learned"] == 300
    assert "C=" in facts["parameters"] or "l2=" in facts["parameters"]  # of the regressor within the scaler of targets
    words += ["--learner", f"{model},epsilon=0.2"]
    other = call(*words, "--checkpoint", tmp_path / "state", "--to", tmp_path / "out.csv")
    assert "other parameters" in other.stderr
    done = call("predict", trump, "--model", tmp_path / "state", "--label", "y", "--to", tmp_path / "later.csv")
    assert done.returncode == 0, done.stderr
    y_pred, y_true, probability = (tmp_path / "later.csv").read_text().splitlines()[-1].split(",")[1:]
    assert float(y_pred) == pytest.approx(float(y_true), abs=2.0)
    assert probability == ""


@pytest.mark.filterwarnings("default")
def test_targets_of_libsvm_text_are_scaled(tmp_path, call):
    path = tmp_path / "rows.libsvm"
    path.write_text("".join(f"{5000 + 300 * (i % 11)} 1:{i % 11} 7:{i % 3}\n" for i in range(400)))

    def error(*words):
        done = call("learn", path, "--regression", "--quiet", *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])["metric"], done.stderr

    wrong, warning = error("--scale", "none")
    assert "standard deviation" in warning
    right, warning = error()
    assert right < 0.2 * wrong
    assert warning == ""
    assert error("--bound", "0")[0] < 0.2 * wrong


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["rows.csv", "--scale", "none"], "nothing is scaled: leave it out"),
        (["rows.csv", "--scale", "none", "--regression"], "nothing is scaled: leave it out"),
        (["rows.libsvm"], "nothing is scaled of libsvm text unless --scale standard asks for it: leave it out"),
    ],
)
def test_a_bound_of_nothing(call, words, text):
    done = call("learn", *words, "--label", "y", "--bound", "3")
    assert (done.returncode, f"--bound 3 bounds scaled values, and {text}" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--metric", "MAE"],
            "no such metric for classifiers; try Accuracy, F1, 'FBeta(beta=2)' or ROCAUC; MAE goes with",
        ),
        (["--regression", "--metric", "F1"], "no such metric for regressors; try MAE, RMSE or R2"),
        (["--regression", "--positive", "1"], "--positive is about labels, and --regression predicts a number"),
        (["--regression", "--labels-are", "1,2"], "--labels-are is about labels, and --regression predicts a number"),
        (["--regression", "--learner", "bsgd,max_classes=3"], "bsgd has no parameter max_classes: it has budget, "),
    ],
)
def test_what_does_not_go_together(trump, call, words, text):
    done = call("learn", trump, "--label", "y", *words)
    assert done.returncode == 2
    assert text in done.stderr


def test_a_number_to_predict_is_noticed(trump, call):
    done = call("learn", trump, "--label", "y", "--learner", "bsgd,max_classes=1000", "--max-rows", "30")
    assert done.returncode == 0
    assert "looks like a number to predict: --regression" in done.stderr
    done = call("learn", trump, "--label", "y", "--regression", "--metric", "R2", "--max-rows", "30")
    assert "looks like a number to predict" not in done.stderr
    assert "R2 " in done.stderr.splitlines()[-1]


def test_predictions_go_on_where_they_ended(trump, tmp_path, call):
    call("learn", trump, "--label", "y", "--regression", "--checkpoint", tmp_path / "model")
    words = ["predict", trump, "--label", "y", "--model", tmp_path / "model"]
    call(*words, "--to", tmp_path / "whole.csv")
    pieces = [*words, "--to", tmp_path / "pieces.csv", "--checkpoint", tmp_path / "state"]
    assert call(*pieces, "--max-rows", "120").stderr.endswith("120 rows predicted\n")
    done = call(*pieces)
    assert "continuing after row 120" in done.stderr
    assert done.stderr.endswith("300 rows predicted, 180 of them in this run\n")
    assert (tmp_path / "pieces.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    done = call("predict", trump, "--label", "y", "--model", tmp_path / "state", "--to", tmp_path / "more.csv")
    assert (done.returncode, "holds no model: name the file or folder of the model" in done.stderr) == (1, True)
    done = call(*words, "--to", tmp_path / "more.csv", "--checkpoint", tmp_path / "model")
    assert (done.returncode, "not written by a prediction loop" in done.stderr) == (1, True)
