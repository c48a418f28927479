"""Tables without labels through all doors: ``--learner anomaly``, `table_model` and the loops give the same anomaly scores."""

import json
import random

import numpy as np
import pandas as pd
import pytest
from river import drift

from chunks import write_rows
from refused import raises
from streamsvm import BSGDClassifier, OneClassBSGD, importance, table_model
from streamsvm.stream import DriftWatch, IterableSource, LearningLoop, PredictionLoop
from streamsvm.stream.checkpoint import read_newest
from streamsvm.stream.delayed import DelayedLabels, DelayedLearningLoop

WORDS = ["--learner", "anomaly,budget=30,nu=0.05"]


def make_rows():
    rng = random.Random(0)
    rows = []
    for i in range(400):
        amount = rng.gauss(900.0, 5.0) if i % 50 == 49 else rng.gauss(50.0, 10.0)
        rows.append({"city": rng.choice(["Oslo", "Rome"]), "amount": round(amount, 2), "n": rng.randrange(5)})
    return rows


ROWS = make_rows()


def learn_table(data):
    model = table_model(data, learner=OneClassBSGD(budget=30, nu=0.05, seed=0))
    model.learn_many(pd.DataFrame(ROWS))
    return model


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_learn_and_predict_without_a_label(tmp_path, call, kind):
    path, state = write_rows(tmp_path / f"rows.{kind}", ROWS), tmp_path / "state"
    call("learn", path, *WORDS, "--checkpoint", state, "--max-rows", 150, "--to", tmp_path / "scores.jsonl")
    call("learn", path, *WORDS, "--checkpoint", state, "--to", tmp_path / "scores.jsonl")
    learned = pd.read_json(tmp_path / "scores.jsonl", lines=True)
    assert len(learned) == len(ROWS)
    assert "curve" not in call("inspect", state).stdout
    is_odd = np.arange(400) % 50 == 49
    assert learned["y_pred"][is_odd][1:].min() > learned["y_pred"][~is_odd][100:].quantile(0.9)
    assert learned["is_anomaly"][is_odd][1:].all()
    assert 0 < learned["is_anomaly"].sum() < 50
    predictions = call("predict", path, "--model", state, "--to", "-").rows[:400]
    model, frame = learn_table(pd.DataFrame(ROWS)), pd.DataFrame(ROWS)
    np.testing.assert_allclose([row["y_pred"] for row in predictions], model.score_many(frame), atol=1e-9)
    assert [row["is_anomaly"] for row in predictions] == [model.is_anomaly_one(row) for row in ROWS]
    np.testing.assert_array_equal(read_newest(state).model.score_many(frame), model.score_many(frame))


@pytest.mark.parametrize("data", [ROWS, [(row, None) for row in ROWS]], ids=["dicts", "pairs"])
def test_table_models_without_a_label_are_equal(data):
    frame, expected = pd.DataFrame(ROWS), learn_table(pd.DataFrame(ROWS))
    model = learn_table(data)
    one_by_one = expected.clone()
    for row in ROWS:
        one_by_one.learn_one(row)
    for other in (model, one_by_one):
        np.testing.assert_array_equal(other.score_many(frame), expected.score_many(frame))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--label", "n"],
            "--label n is about labels, and --learner anomaly learns without them: leave it out, and name the col",
        ),
        (["--metric", "ROCAUC"], "--metric ROCAUC is about labels"),
        (["--regression"], "--regression is about labels"),
        (["--labels", "y.csv?key=n"], "--labels y.csv?key=n is about labels"),
        (["--labels-are", "a,b"], "--labels-are a,b is about labels"),
        (["--drift", "ADWIN"], "--drift ADWIN is about labels"),
    ],
)
def test_flags_about_labels_are_refused(tmp_path, call, words, reason):
    call("learn", write_rows(tmp_path / "rows.csv", ROWS), *WORDS, *words, status=2, says=reason)


def test_a_dropped_column_of_labels_is_not_learned(tmp_path, call):
    path = write_rows(tmp_path / "rows.csv", [{**row, "fraud": i % 50 == 49} for i, row in enumerate(ROWS)])
    call("learn", path, *WORDS, "--columns", "fraud:drop", "--checkpoint", tmp_path / "state")
    model = read_newest(tmp_path / "state").model
    np.testing.assert_array_equal(
        model.score_many(pd.DataFrame(ROWS)), learn_table(pd.DataFrame(ROWS)).score_many(pd.DataFrame(ROWS))
    )


def test_other_uses_of_labels_are_refused():
    frame = pd.DataFrame(ROWS)
    raises(r"learns without labels: leave label='n' out \(columns='n:drop'\)", table_model, frame, "n", learner=OneClassBSGD())
    raises("a BSGDClassifier has no score_many", table_model(frame, "city", learner=BSGDClassifier()).score_many, frame)
    raises("a BSGDClassifier has no threshold", table_model(frame, "city", learner=BSGDClassifier()).is_anomaly_one, ROWS[0])
    raises("a OneClassBSGD has no predict_many", learn_table(frame).predict_many, frame)
    raises("does not weight rows", learn_table(frame).learn_many, frame, w=[2.0] * len(frame))
    raises("leave the metric out", LearningLoop, IterableSource([]), OneClassBSGD(), "MAE")
    raises("leave it out", LearningLoop, IterableSource([]), OneClassBSGD(), drift=DriftWatch(drift.ADWIN()))
    raises("use a LearningLoop", DelayedLearningLoop, IterableSource([]), OneClassBSGD(), delayed=DelayedLabels())


def test_loops_learn_rows_with_and_without_labels():
    rows = [{"a": float(row["amount"]), "b": float(row["n"])} for row in ROWS]
    loops = [LearningLoop(IterableSource([(x, y) for x in rows]), OneClassBSGD(budget=30, seed=0)) for y in (None, "no")]
    assert [loop.run().learned for loop in loops] == [400, 400]
    scores = [[loop.model.score_one(x) for x in rows] for loop in loops]
    assert scores[0] == scores[1]
    progress = PredictionLoop(IterableSource([(x, None) for x in rows]), loops[0].model, None).run()
    assert (progress.predicted, progress.scored, loops[0].model.n_learned) == (400, 0, 400)


def test_a_detector_reports_no_score(tmp_path, call):
    path, words = write_rows(tmp_path / "rows.csv", ROWS), [*WORDS, "--checkpoint", tmp_path / "state"]
    line = call("learn", path, *words, "--max-rows", 1).last
    assert "1 row " in line
    assert "1 support vector  0 merges" in line
    end = call("learn", path, *words, "--quiet").end
    assert (end["learned"], end["metric_name"], end["metric"], end["scores"]) == (400, "", None, [])
    assert json.loads(call("inspect", tmp_path / "state", "--json").stdout)["scores"] == []


def test_labels_of_rows_are_no_use_to_explain_a_detector(tmp_path, call):
    path, state = write_rows(tmp_path / "rows.csv", ROWS), tmp_path / "state"
    call("learn", path, *WORDS, "--columns", "n:drop", "--checkpoint", state)
    expected = call("explain", path, "--model", state, "--rows", 1).stdout
    assert call("explain", path, "--model", state, "--rows", 1, "--label", "n").stdout == expected
    call("report", state, path, "--label", "n", "--to", tmp_path / "page.html")
    says = "--positive 3: the model predicts numbers, no labels"
    call("report", state, path, "--label", "n", "--positive", "3", "--to", tmp_path / "page.html", status=1, says=says)
    raises("OneClassBSGD predicts no labels: leave y out", importance, read_newest(state).model, ROWS, [0] * len(ROWS))
