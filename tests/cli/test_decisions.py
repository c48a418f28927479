"""Flags about decisions: thresholds, costs, intervals and abstaining; and the additional fields of predictions."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
from river import tree

from streamsvm import BSGDClassifier, OneClassBSGD, load, save
from streamsvm.cli.parsing import DecisionFlags
from streamsvm.cli.predict import _DecisionFollower
from streamsvm.learners.conformal import ConformalClassifier, ConformalRegressor
from streamsvm.learners.costs import CostSensitiveClassifier
from streamsvm.learners.thresholds import TunedThresholdClassifier
from streamsvm.stream.prediction import FollowedModel
from streamsvm.stream.rows import split_pipeline

pytestmark = pytest.mark.once  # these are many rows


def lines(n, seed):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        city, size = rng.choice(["Oslo", "Paris"]), rng.integers(0, 9)
        rare = rng.random() < (0.35 if city == "Oslo" and size > 4 else 0.05)
        yield f"{city},{size},{'fraud' if rare else 'fine'}"


@pytest.fixture
def rows(file):
    return file("rows.csv", "city,size,y", *lines(1500, 0))


@pytest.fixture
def new(file):
    return file("new.csv", "city,size,y", *lines(600, 1))


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("learner", "flags"),
    [
        ("bsgd", ("--threshold", ".2")),
        ("bsgd", ("--threshold", "f1")),
        ("bsgd", ("--costs", "fraud=4,fine=1")),
        ("auto,effort=low", ("--threshold", "f1")),
    ],
)
def test_a_rare_label_is_predicted_more_often(rows, new, tmp_path, call, flags, learner):
    common = ["learn", rows, "--label", "y", "--learner", learner, "--positive", "fraud", "--quiet"]
    plain = call(*common, "--checkpoint", tmp_path / "plain").end
    learned_end = call(*common, *flags, "--checkpoint", tmp_path / "state").end
    scores = {record["name"]: record for record in learned_end["scores"]}
    assert scores["F1"]["value"] > {record["name"]: record for record in plain["scores"]}["F1"]["value"] + 0.1
    last = split_pipeline(load(tmp_path / "state"))[1]
    assert type(last) is (TunedThresholdClassifier if "f1" in flags else CostSensitiveClassifier)
    # The flags are saved: predict, score and exported models apply them, and learn resumes with them.
    call("predict", new, "--model", tmp_path / "state", "--to", tmp_path / "out.jsonl", "--probabilities")
    said = records(tmp_path / "out.jsonl")
    wanted = last.threshold if "f1" in flags else 0.2
    for record in said:
        if abs(record["probabilities"]["fraud"] - wanted) > 1e-9:
            assert record["y_pred"] == ("fraud" if record["probabilities"]["fraud"] >= wanted else "fine")
            assert record["probability"] == record["probabilities"][record["y_pred"]]
    assert {record["y_pred"] for record in said} == {"fraud", "fine"}
    call(*common, *flags, "--checkpoint", tmp_path / "state")
    # They can also be applied to a model that was learned without them.
    applied_flags = flags if "f1" not in flags else ("--threshold", str(wanted))
    call("predict", new, "--model", tmp_path / "plain", *applied_flags, "--positive", "fraud", "--to", tmp_path / "later.jsonl")
    later = [record["y_pred"] for record in records(tmp_path / "later.jsonl")]
    assert later == [record["y_pred"] for record in said]


def test_run_in_pieces_equals_uninterrupted_run(rows, tmp_path, call):
    for flags in (("--threshold", "f1", "--positive", "fraud"), ("--interval", ".9")):
        name = flags[0].strip("-")
        common = ["learn", rows, "--label", "y", "--learner", "bsgd", *flags, "--quiet"]
        whole_run = call(*common, "--checkpoint", tmp_path / f"{name}-whole", "--to", tmp_path / f"{name}-whole.jsonl").end
        pieces = [*common, "--checkpoint", tmp_path / f"{name}-pieces", "--to", tmp_path / f"{name}-pieces.jsonl"]
        for n in (7, 333, 64):
            call(*pieces, "--max-rows", n)
        assert call(*pieces).end["scores"] == whole_run["scores"]
        ends = [(tmp_path / f"{name}-{which}.jsonl").read_bytes() for which in ("whole", "pieces")]
        assert ends[0] == ends[1]


def test_additional_fields_of_predictions(rows, new, tmp_path, call):
    call("learn", rows, "--label", "y", "--learner", "bsgd", "--interval", ".9", "--checkpoint", tmp_path / "state", "--quiet")
    assert type(split_pipeline(load(tmp_path / "state"))[1]) is ConformalClassifier
    words = ["predict", new, "--model", tmp_path / "state", "--to", tmp_path / "out.jsonl", "--passthrough", "size"]
    done = call(*words, "--explain", "1", "--abstain", ".8")
    said = records(tmp_path / "out.jsonl")
    assert list(said[0]) == ["row", "y_pred", "y_true", "probability", "size", "labels", "why"]
    assert np.mean([record["y_true"] in record["labels"] for record in said]) == pytest.approx(0.9, abs=0.04)
    assert {name for record in said for name in record["why"]} <= {"city", "size"}
    assert all(len(record["why"]) == 1 for record in said)
    unsure = [record["y_pred"] is None for record in said]
    assert unsure == [record["probability"] < 0.8 for record in said]
    assert 0 < sum(unsure) < 600
    right = np.mean([record["y_pred"] == record["y_true"] for record in said if record["y_pred"] is not None])
    assert f"600 rows had a label, which was not learned: Accuracy {right:.4f}" in done.stderr
    assert f"{sum(unsure):,} of them abstained" in done.last
    scored = call("score", new, "--model", tmp_path / "state", "--abstain", ".8").stdout.splitlines()
    assert scored[0] == f"600 rows scored  {sum(unsure):,} abstained"
    assert scored[1].startswith(f"Accuracy {right:.4f}")
    many = call("predict", new, "--model", tmp_path / "state", "--to", tmp_path / "csv.csv", "--abstain", ".8")
    assert many.stderr == done.stderr
    table = csv.DictReader((tmp_path / "csv.csv").read_text().splitlines())
    learned_end = [(row["y_pred"] or None, json.loads(row["labels"])) for row in table]
    assert learned_end == [(record["y_pred"], record["labels"]) for record in said]


def test_sets_stay_where_labels_are_chosen_anew(rows, new, tmp_path, call):
    call("learn", rows, "--label", "y", "--learner", "bsgd", "--interval", ".9", "--checkpoint", tmp_path / "state", "--quiet")
    for flags in ([], ["--costs", "fraud=9"]):
        call("predict", new, "--model", tmp_path / "state", "--to", tmp_path / f"{len(flags)}.jsonl", *flags)
    plain, costly = (records(tmp_path / name) for name in ("0.jsonl", "2.jsonl"))
    assert [record["labels"] for record in plain] == [record["labels"] for record in costly]
    assert sum(record["y_pred"] == "fraud" for record in costly) > sum(record["y_pred"] == "fraud" for record in plain)


def test_a_newer_model_that_does_not_know_the_label_is_passed_over():
    class Place:
        models = iter([(["fine", "fraud"], 20), (["fine"], 3), (["fine", "fraud"], 40)])

        def read_newer(self):
            labels, n = next(self.models)
            model = BSGDClassifier(budget=10)
            for i in range(n):
                model.learn_one({"a": float(i)}, labels[i % len(labels)])
            return FollowedModel(model, n)

    job = SimpleNamespace(decision=DecisionFlags(None, "fraud=4", None))
    newer = _DecisionFollower(Place(), job).read_newer
    assert newer().version == 20
    with pytest.warns(UserWarning, match="3 rows cannot be used: --costs fraud=4: the model has not learned the label 'fraud'"):
        assert newer().version == 20
    assert newer().version == 40


def test_intervals_of_numbers(file, tmp_path, call):
    rng = np.random.default_rng(0)
    table = [f"{size},{3 * size + rng.normal() * (1 + size):.3f}" for size in rng.uniform(0, 9, 2000)]
    path, new = file("rows.csv", "size,y", *table[:1500]), file("new.csv", "size,y", *table[1500:])
    words = ["learn", path, "--label", "y", "--regression", "--learner", "bsgd", "--interval", ".8"]
    call(*words, "--checkpoint", tmp_path / "state", "--quiet", "--to", tmp_path / "learned.jsonl")
    assert type(split_pipeline(load(tmp_path / "state"))[1]) is ConformalRegressor
    call("predict", new, "--model", tmp_path / "state", "--to", tmp_path / "out.jsonl", "--explain", "2")
    for name, first in (("learned", 100), ("out", 0)):
        said = records(tmp_path / f"{name}.jsonl")[first:]
        inside = np.mean([record["low"] <= record["y_true"] <= record["high"] for record in said])
        assert inside == pytest.approx(0.8, abs=0.05)
        assert all(record["low"] <= record["y_pred"] <= record["high"] for record in said)
    assert records(tmp_path / "learned.jsonl")[0]["low"] is None  # it is infinite


@pytest.mark.filterwarnings("default")
def test_contradictory_decision_flags_are_refused(rows, new, tmp_path, call):
    call("learn", rows, "--label", "y", "--learner", "bsgd", "--checkpoint", tmp_path / "state", "--quiet")
    done = call("learn", rows, "--label", "y", "--learner", "bsgd", "--costs", "frod=3", "--max-rows", 50)
    assert "no row has had the label 'frod', whose cost or threshold was given" in done.stderr
    to = ["--model", tmp_path / "state", "--to", "-"]
    call("predict", new, *to, "--costs", "frod=3", status=1, says="has not learned the label 'frod', only 'fine', 'fraud'")
    call("predict", new, *to, "--threshold", "f1", "--positive", "fraud", status=2, says="it is tuned while rows are learned")
    says = "--positive fraud is the label of --threshold, which is missing: leave it out"
    call("predict", new, *to, "--positive", "fraud", status=2, says=says)
    call("export", tmp_path / "state", "--to", "c", "--out", tmp_path, "--positive", "fraud", status=2, says=says)
    says = "--columns size:quantity is a number to predict: --positive is about labels"
    flags = ["--columns", "size:quantity", "--threshold", ".3", "--positive", "3"]
    call("learn", rows, "--label", "size", *flags, status=2, says=says)
    numbers = tmp_path / "numbers"
    call("learn", rows, "--label", "size", "--regression", "--learner", "bsgd", "--checkpoint", numbers, "--quiet")
    to = ["--model", numbers, "--to", "-"]
    call("predict", new, *to, "--probabilities", status=1, says="the model, BSGDRegressor, predicts numbers: leave it out")
    call("predict", new, *to, "--costs", "a=2", status=1, says="chooses labels by their probabilities")
    call("predict", new, *to, "--abstain", ".5", status=1, says="--abstain")
    call("score", new, "--model", numbers, "--label", "size", "--abstain", ".5", status=1, says="--abstain")
    save(OneClassBSGD(), tmp_path / "detector")
    save(BSGDClassifier(), tmp_path / "new")
    save(tree.HoeffdingTreeClassifier(), tmp_path / "tree")
    says = "detector holds a OneClassBSGD, which does not predict a label or a number for each row"
    call("score", new, "--model", tmp_path / "detector", "--label", "y", status=1, says=says)
    to = ["--model", tmp_path / "detector", "--to", "-"]
    call(
        "predict",
        new,
        *to,
        "--abstain",
        ".5",
        status=1,
        says="chooses labels by their probabilities, and the model, OneClassBSGD, has none: leave it out",
    )
    call("predict", new, "--model", tmp_path / "tree", "--to", "-", "--explain", "2", status=1, says="--explain: Hoeffding")
    scored = call("score", new, "--label", "y", "--model", tmp_path / "new", "--costs", "fraud=3").stdout
    assert scored.startswith("600 rows scored\nAccuracy has no value")
    call("export", tmp_path / "state", "--to", "c", "--costs", "fraud=4", "--out", tmp_path)
    assert "compares it with a threshold" in (tmp_path / "model.h").read_text()
