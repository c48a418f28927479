"""The baseline that predicts the previous label or target of the same key, beside the scores of a run."""

import copy
import random

import numpy as np
import pytest
from sklearn.metrics import f1_score

from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.stream import CheckpointFolder, IterableSource, LearningLoop, PredictionLoop, open_source
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm.stream.scores.score_set import ScoreSet
from streamsvm.stream.tables import TableEncoder

NAMES = {False: "the previous label of the key", True: "the last target of the key"}
WINDOW = 100


def make_rows(kind):
    """Return 400 rows of nine keys, or no key, with two or three labels or targets: often those of the key's last row."""
    generator, last, rows = random.Random(4), {}, []
    for _ in range(400):
        key = generator.choice(["", *"abcdefghi"])
        y = (
            generator.gauss(0.0, 1.0)
            if kind == "numbers"
            else generator.choice(["yes", "no", "may be"][: 2 + (kind == "labels")])
        )
        last[key] = y = last.get(key, y) if generator.random() < 0.7 else y
        rows.append((key, generator.gauss(0.0, 1.0), y))
    return rows


def make_model(kind, **options):
    return TableEncoder("device:key", **options) | (
        BSGDRegressor(20, seed=1) if kind == "numbers" else BSGDClassifier(20, seed=1)
    )


def predict_naively(rows, kind):
    """Return what the baseline predicts for each row: None before two labels or one target, and for rows without a key."""
    last, ys, predicted = {}, [], []
    for key, _, y in rows:
        is_ready = len(set(ys)) > 1 if kind != "numbers" else len(ys) > 0
        if not key or not is_ready:
            predicted.append(None)
        elif key in last:
            predicted.append(last[key])
        else:
            predicted.append(np.mean(ys) if kind == "numbers" else max(dict.fromkeys(ys), key=ys.count))
        last[key] = y
        ys.append(y)
    return predicted


def get_baselines(loop, kind):
    return {
        report.name: [dict(report.baselines)[NAMES[kind == "numbers"]], dict(report.windowed_baselines)[NAMES[kind == "numbers"]]]
        for report in loop.run().scores
    }


@pytest.mark.parametrize("kind", ["two", "labels", "numbers"])
def test_it_predicts_the_last_label_of_the_key(kind, tmp_path):
    rows, path = make_rows(kind), tmp_path / "rows.csv"
    path.write_text("device,a,y\n" + "".join(f"{key},{a!r},{y}\n" for key, a, y in rows))
    metrics = ["MAE", "RMSE"] if kind == "numbers" else ["Accuracy", "MacroF1"]
    with open_source(str(path), label="y", columns={"device": "key"}) as source:
        in_batches = get_baselines(LearningLoop(source, make_model(kind), metrics, window=WINDOW), kind)
    alone = IterableSource(({"device": key or None, "a": a}, y) for key, a, y in rows)
    assert get_baselines(LearningLoop(alone, make_model(kind), metrics, window=WINDOW), kind) == in_batches
    alone = IterableSource(({"device": key or None, "a": a}, y) for key, a, y in rows)
    scaled = get_baselines(LearningLoop(alone, make_model(kind, scaler="standard"), metrics, window=WINDOW), kind)
    assert scaled == {name: pytest.approx(values) for name, values in in_batches.items()}
    pairs = [(y, last) for (_, _, y), last in zip(rows, predict_naively(rows, kind), strict=True) if last is not None]
    for values, scored in zip(zip(*in_batches.values(), strict=True), (pairs, pairs[-WINDOW:]), strict=True):
        y, last = map(np.array, zip(*scored, strict=True))
        if kind == "numbers":
            expected = np.abs(y - last).mean(), np.sqrt(((y - last) ** 2).mean())
        else:
            expected = (y == last).mean(), f1_score(y, last, average="macro")
        assert values == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_it_continues_from_a_checkpoint_also_with_another_window(kind, tmp_path):
    rows = [({"device": key, "a": a}, y) for key, a, y in make_rows(kind)]
    whole = get_baselines(LearningLoop(IterableSource(rows), make_model(kind), window=WINDOW), kind)
    with CheckpointFolder(tmp_path) as folder:
        LearningLoop(IterableSource(rows), make_model(kind), checkpoints=folder, window=2 * WINDOW).run(250)
        continued = LearningLoop(IterableSource(rows), make_model(kind), checkpoints=folder, window=WINDOW)
        assert get_baselines(continued, kind) == {name: pytest.approx(values) for name, values in whole.items()}


def test_rows_without_a_prediction_are_not_counted():
    scores = ScoreSet(["Accuracy", "LogLoss"], 10)
    scores.update_keys(["a", None, "a", "b"], ["a", "a", None, "a"], ["a", "a", "b", None])
    scores.update_many(["a", "a"], ["a", "b"], {"a": np.array([0.5, 0.5])})
    accuracy, log_loss = scores.make_reports()
    assert dict(accuracy.baselines)[NAMES[False]] == 1.0
    assert len(log_loss.baselines) == 1


def test_a_score_of_an_earlier_version_has_no_baseline_of_keys_yet():
    scores, resumed = ScoreSet("Accuracy", 10), ScoreSet("Accuracy", 10)
    scores.update_many(["a", "b"], ["a", "a"])
    state = scores.state
    del state["scores"][0]["key_score"]
    resumed.resume(state)
    assert resumed.make_reports() == scores.make_reports()


def test_a_crafted_count_is_refused():
    scores = ScoreSet("Accuracy", 10)
    scores.update_many(["a", "b"], ["a", "a"])
    scores.update_keys(["a", "b"], ["a", "a"], ["a", "b"])
    for of_keys in (False, True):
        state = copy.deepcopy(scores.state)
        ScoreSet("Accuracy", 10).resume(copy.deepcopy(state))
        forged = state["scores"][0]["key_score"] if of_keys else state["scores"][0]
        forged["metric"].cm.sum_col["a"] = ()
        with pytest.raises(CheckpointError):
            ScoreSet("Accuracy", 10).resume(state)


def test_a_model_that_does_not_learn_has_the_last_learned_labels():
    model = make_model("two")
    for device, y in [("a", "yes"), ("b", "no"), ("a", "yes")]:
        model.learn_one({"device": device, "a": 1.0}, y)
    rows = [({"device": device, "a": 1.0}, "no") for device in "aab"]
    report = PredictionLoop(IterableSource(rows), model).run().scores[0]
    assert dict(report.baselines)[NAMES[False]] == pytest.approx(1 / 3)
