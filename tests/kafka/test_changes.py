"""A run over a topic changes, with checkpoints in a folder or a topic: it keeps its model, or the refusal names the flag."""

import contextlib
import random
import time
import uuid

import pytest
from kafka import KafkaAdminClient

from changes import CHANGES, FIRST, Change, N, check_change, make_rows
from forked import Command
from lists import OF_RELEASE, pairs, sample
from saved import dumps
from streamsvm.stream.checkpoint import read_newest
from streamsvm.stream.endpoints import Row
from streamsvm.stream.open import open_models
from streamsvm_kafka import JSONCodec, publish

pytestmark = pytest.mark.broker
STORES = "folder", "topic"


@pytest.fixture(scope="module")
def topics(bootstrap):
    """Topics with the rows, by the names of sources; `mirror` has those of `rows`."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=300_000)
    names = {source: f"streamsvm-test-{source}-{uuid.uuid4().hex[:8]}" for source in ("rows", "next", "mirror")}
    admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1} for name in names.values()}, wait_for_metadata=True)
    for seed, source in enumerate(("rows", "next", "mirror")):
        rows = [Row({name: row[name] for name in "abc"}, row["y"]) for row in make_rows(seed % 2)]
        publish(rows, bootstrap, names[source], JSONCodec("y"))
    yield names
    admin.delete_topics(list(names.values()))
    admin.close()


@pytest.fixture(params=STORES)
def store(request, bootstrap, tmp_path, monkeypatch, new_topic):
    """Makes the place of checkpoints, and loads the model and the number of rows from it."""
    monkeypatch.chdir(tmp_path)
    topic = new_topic(**{"cleanup.policy": "compact"}) if request.param == "topic" else None

    def make(name):
        return name if topic is None else f"kafka://{bootstrap}/{topic}?name={name}"

    def load(place):
        if topic is None:
            checkpoint = read_newest(place)
        else:
            with contextlib.closing(open_models(place)) as models:
                checkpoint = models.read()
        return checkpoint.model, checkpoint.header["rows"]

    return make, load


@pytest.fixture
def check(store, topics, bootstrap, call, caplog):
    make, load = store

    def run(change, name):
        def words(source):
            place = f"kafka://{bootstrap}/{topics[source]}"
            return ["learn", place, "--stop-at-end", "--columns", "c:drop", "--checkpoint", make(name)]

        return check_change(change, words, lambda: load(make(name)), call, caplog)

    return run


RENAMED = Change("", "", "the checkpoint is of topic .*--from earliest", f"--from 0:{FIRST}", "mirror")


@pytest.mark.parametrize(("name", "store"), pairs(sample(8, [*CHANGES, "a renamed topic"]), STORES), indirect=["store"])
def test_a_change_keeps_the_model(name, check):
    """A quarter of the changes, as `tests/cli/test_changes.py` tries each with files; for a release each with both stores."""
    change = CHANGES.get(name, RENAMED)
    changed = check(change, "changed")
    if change.is_same:
        assert changed == check(Change(), "same")


def test_a_new_position_is_saved_before_the_first_row(store, topics, bootstrap, call):
    make, load = store
    words = ["--label", "y", "--checkpoint", make("state")]
    call("learn", f"kafka://{bootstrap}/{topics['rows']}", "--stop-at-end", *words)
    mirror = f"kafka://{bootstrap}/{topics['mirror']}"
    call("learn", mirror, "--stop-at-end", *words, "--from", "latest")
    assert load(make("state"))[1] == N
    rows = [Row({"a": 1.0, "b": 2.0, "c": 0}, "yes")] * 5
    publish(rows, bootstrap, topics["mirror"], JSONCodec("y"))
    call("learn", mirror, "--stop-at-end", *words, "--from", "latest")  # it continues where it was latest at first
    assert load(make("state"))[1] == N + 5


@pytest.mark.parametrize("seed", range(3 if OF_RELEASE else 1))
def test_kills_during_a_warm_start(seed, store, topics, bootstrap, call):
    """For a release with more seeds and kills."""
    make, load = store
    source = ["learn", f"kafka://{bootstrap}/{topics['rows']}", "--stop-at-end"]
    call(*source, "--label", "y", "--learner", "bsgd,budget=30", "--checkpoint", make("old"))
    generator = random.Random(seed)
    words = ["learn", f"kafka://{bootstrap}/{topics['next']}", "--stop-at-end", "--start-from", make("old")]
    words += ["--checkpoint-every", "10", "--quiet"]
    for _ in range(8 if OF_RELEASE else 4):
        with Command([*words, "--checkpoint", make("killed"), "--max-rows", "100"]) as process:
            time.sleep(generator.uniform(0.0, 0.5))
            process.kill()
    for name in ("killed", "whole"):
        call(*words, "--checkpoint", make(name))
    (killed, rows), (whole, n) = load(make("killed")), load(make("whole"))
    assert rows == n == 2 * N
    assert dumps(killed) == dumps(whole)


def test_a_warm_start_with_learned_messages_is_reported(store, topics, bootstrap, call, caplog):
    make, load = store
    learn = ["learn", f"kafka://{bootstrap}/{topics['rows']}", "--stop-at-end", "--label", "y"]
    call(*learn, "--checkpoint", make("old"))
    for flags, rows in (["--from", "latest"], N), ([], 2 * N):
        caplog.clear()
        call(*learn, *flags, "--start-from", make("old"), "--checkpoint", make(f"new{rows}"))
        assert load(make(f"new{rows}"))[1] == rows
        advice = f"give --checkpoint {make('old')} instead, or --from latest, a time or PARTITION:OFFSET"
        assert (f"they are learned again. To continue after them, {advice}" in caplog.text) == (not flags)


def test_a_new_name_in_a_model_topic_names_the_others(topics, bootstrap, new_topic, call, caplog):
    models, rows = f"kafka://{bootstrap}/{new_topic(**{'cleanup.policy': 'compact'})}", f"kafka://{bootstrap}/{topics['rows']}"
    words = ["--label", "y", "--stop-at-end", "--checkpoint", models]
    call("learn", rows, *words, "--keep-checkpoints", 2)
    assert "other models" not in caplog.text
    mirror = f"kafka://{bootstrap}/{topics['mirror']}"
    call("learn", mirror, *words, "--max-rows", 1)
    assert caplog.text.count(f"{models} has other models. To continue one, give ?name={topics['rows']}\n") == 1
    for number in range(2):  # as of two partitions
        call("learn", rows, *words[:-1], f"{models}?name=part-{number}")
    messages = [record.getMessage() for record in caplog.records if "other models" in record.getMessage()]
    assert len(messages) == 2
    assert not any("part-0" in message for message in messages)
    words[-1] += f"?name={topics['rows']}"
    assert f"after row {N}" in call("learn", mirror, *words, "--from", "latest").stderr
