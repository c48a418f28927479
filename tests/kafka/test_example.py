"""The examples with topics: a producer, two learners, a follower and chaos, in a short form; predictions over HTTP."""

import re
import runpy
from pathlib import Path

import pytest

from forked import CommandsOfPython
from patience import until
from streamsvm import BSGDClassifier
from streamsvm_kafka import TopicCheckpoints

EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka_production.py"
# A seed with which the follower is killed and then a learner ended: a group waits ten seconds for a member that was killed.
SEED = 374


@pytest.mark.broker
def test_a_learner_and_a_follower_that_are_killed(bootstrap, tmp_path, capsys):
    run = runpy.run_path(str(EXAMPLE))["main"]
    run.__globals__["subprocess"] = CommandsOfPython
    run(bootstrap, seconds=1.2, pause=0.8, seed=SEED, folder=tmp_path)
    output = capsys.readouterr().out
    assert re.findall(r"(.*) is (killed|ended)", output) == [("follower", "killed"), ("learner 1", "ended")]
    assert output.count("  equal") == 4
    n, of = (int(number.replace(",", "")) for number in re.search(r"([\d,]+) predictions of ([\d,]+) rows", output).groups())
    assert n >= of > 100


@pytest.mark.broker
def test_the_server_follows_a_topic(bootstrap, new_topic):
    models = new_topic(**{"cleanup.policy": "compact"})
    predictor = runpy.run_path(str(EXAMPLE.parent / "serve.py"))["Predictor"](f"kafka://{bootstrap}/{models}?name=rows")
    try:
        model = BSGDClassifier(budget=10)
        with TopicCheckpoints(bootstrap, models, "rows") as checkpoints:
            for n, label in ((10, "yes"), (20, "no")):
                for _ in range(10):
                    model.learn_one({"a": 1.0}, label)
                checkpoints.save(model, None, rows=n, position={})
                until(lambda n=n: predictor.version == n)
                (prediction,) = predictor.predict([{"a": 1.0}])["predictions"]
                assert prediction["label"] == model.predict_one({"a": 1.0})
    finally:
        predictor.close()
