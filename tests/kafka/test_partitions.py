"""Workers of a group: each partition's model has the same bytes as without rebalances, kills and outages."""

import contextlib
import json
import logging
import re
import signal
import threading
import time
from unittest import mock
from urllib.request import urlopen

import numpy as np
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, RebalanceInProgressError, TopicAuthorizationFailedError
from prometheus_client.parser import text_string_to_metric_families

import rebalances
from kafka_broker import each_library
from killing import fork
from loops import make_model
from patience import PATIENCE, signals_of, until
from saved import dumps
from streamsvm import BSGDClassifier
from streamsvm.stream import CheckpointFolder, IterableSource, LearningLoop, load
from streamsvm.stream.endpoints import Row, StreamError
from streamsvm.stream.monitor import Monitor
from streamsvm.stream.rows import find_learner
from streamsvm.stream.tables import TableEncoder
from streamsvm_kafka import Float32Codec, JSONCodec, PartitionWorker, partitions, publish

CODEC = Float32Codec(4)


def features(partition, length):
    X = np.random.default_rng(partition).normal(size=(length, 4)).astype("f4")
    return [Row(dict(enumerate(x.tolist())), int(x[0] * x[1] > 0)) for x in X]


def model_of(partition, length):
    """The model that has learned a partition in memory."""
    loop = LearningLoop(IterableSource([tuple(row) for row in features(partition, length)]), make_model())
    loop.run()
    return dumps(loop.model)


@pytest.fixture
def topic(bootstrap, new_topic):
    def make(*lengths):
        name = new_topic(partitions=len(lengths))
        for partition, length in enumerate(lengths):
            publish(features(partition, length), bootstrap, name, CODEC, partition=partition)
        return name

    return make


@pytest.fixture
def worker(bootstrap, tmp_path):
    opened = []

    def make(topic, folder=tmp_path / "state", every=500, seconds=None, **options):
        parameters = {"checkpoint_every": every, "checkpoint_seconds": seconds}
        options = {"group": f"group of {topic}", "stop_at_end": True, **options}
        options.setdefault(
            "make_loop", lambda source, folder: LearningLoop(source, make_model(), checkpoints=folder, **parameters)
        )
        opened.append(PartitionWorker(bootstrap, topic, CODEC, folder=folder, **options))
        return opened[-1]

    yield make
    for member in opened:
        member.close()


@each_library
def test_workers_that_come_and_go_and_are_killed(bootstrap, topic, worker, tmp_path):
    lengths = 1000, 700, 1500, 800
    name = topic(*lengths)
    worker(name, tmp_path / "alone", group=f"alone in {name}").run()
    expected = rebalances.checkpoints(tmp_path / "alone")
    for partition, length in enumerate(lengths):
        assert dumps(load(tmp_path / "alone" / f"partition-{partition}")) == model_of(partition, length)
    group = f"group of {name}"
    shared = bootstrap, name, group, str(tmp_path / "shared"), "", 0.1
    first, second = fork(rebalances.work, *shared), fork(rebalances.work, *shared)
    done = wait_for_rows(tmp_path / "shared", 400, first, second)
    second.kill()
    third = fork(rebalances.work, *shared)
    wait_for_rows(tmp_path / "shared", done + 400, first, third)
    for member in (first, third):
        until(lambda pid=member.pid: signal.SIGTERM in signals_of(pid))  # before that, it starts: the rows may be another one's
        member.terminate()
        member.join(PATIENCE)
    assert (first.exitcode, second.exitcode, third.exitcode) == (0, -signal.SIGKILL, 0)
    worker(name, tmp_path / "shared", group=group).run()
    assert rebalances.checkpoints(tmp_path / "shared") == expected


def wait_for_rows(folder, rows, *workers):
    def enough():
        assert all(worker.is_alive() for worker in workers)
        return (done := rebalances.rows_done(folder)) >= rows and done

    return until(enough, every=0.05)


def go_and_come(one):
    """Have the group take partition 0 from a worker, and give it back."""
    one._consumer.pause_partition(0)
    for event in ("lost", "assigned"):
        one._events.put((event, {0}))


@each_library
def test_lost_partitions_are_dropped_and_read_again(topic, worker, tmp_path):
    name = topic(3000)
    one = worker(name)
    lost_at = iter((600, 1200, 1250, 2999))
    at, saved = next(lost_at), []

    def lose(one):
        nonlocal at
        if at is not None and one.rows >= at:
            at = next(lost_at, None)
            go_and_come(one)
            saved.append(rebalances.rows_done(tmp_path / "state"))

    one.run(on_rows=lose)
    assert saved
    assert all(rows % 500 == 0 for rows in saved)  # no checkpoint was written for lost partitions
    assert one.rows > 3000
    assert dumps(load(tmp_path / "state" / "partition-0")) == model_of(0, 3000)


@each_library
def test_messages_of_before_a_partition_went_are_not_learned(topic, worker, tmp_path):
    name = topic(3000)
    one = worker(name)
    poll, times = one._poll_messages, iter((True, True, True))

    def polled():
        messages = poll()
        if messages and next(times, False):  # between the poll and the handling of rebalances
            go_and_come(one)
        return messages

    one._poll_messages = polled
    one.run()
    assert dumps(load(tmp_path / "state" / "partition-0")) == model_of(0, 3000)


@each_library
def test_errors_of_an_outage_are_waited_out(topic, worker, tmp_path, caplog):
    name = topic(3000)
    one = worker(name)
    poll, n_failed = one._consumer.poll, 0

    def failing(seconds):
        nonlocal n_failed
        messages = poll(seconds)
        if n_failed < 4 and (messages or n_failed):  # fetched messages are lost with the error; repeated errors are one outage
            n_failed += 1
            raise KafkaConnectionError("111 ECONNREFUSED")
        return messages

    with mock.patch.object(one._consumer, "poll", failing):
        one.run()
    assert n_failed == 4
    assert caplog.text.count("cannot be read for now") == 1
    assert dumps(load(tmp_path / "state" / "partition-0")) == model_of(0, 3000)


@pytest.mark.kafka_python
@each_library
def test_a_rebalance_that_takes_longer_than_a_poll_is_completed(topic, worker, tmp_path, monkeypatch):
    name, changes, began = topic(3000), [], time.monotonic()
    one = worker(name)
    monkeypatch.setattr(partitions, "POLL_SECONDS", 0.001)

    def change(one):
        if one.rows == 0 and one.loops and len(changes) < 5:  # as if the topic were another one than when it was shared out
            changes.append(one._consumer._consumer._coordinator._assignment_snapshot)
            one._consumer._consumer._coordinator._assignment_snapshot = {}
        assert time.monotonic() - began < PATIENCE

    one.run(on_rows=change)
    assert changes
    assert dumps(load(tmp_path / "state" / "partition-0")) == model_of(0, 3000)


@pytest.mark.broker
def test_an_error_that_does_not_pass_ends_a_worker(topic, worker):
    one = worker(topic(10))
    refusal = TopicAuthorizationFailedError("rows")
    with mock.patch.object(one._consumer, "poll", side_effect=refusal), pytest.raises(StreamError, match="lacks the right Read"):
        one.run()


@pytest.mark.broker
def test_an_idle_worker_writes_the_checkpoints_that_are_due(topic, worker, tmp_path):
    name, began = topic(500, 300), time.monotonic()
    one = worker(name, stop_at_end=False, every=None, seconds=0.3)

    def look(one):
        if rebalances.rows_done(tmp_path / "state") == 800:
            one.stop()
        assert time.monotonic() - began < PATIENCE

    one.run(on_rows=look)


@each_library
def test_commits_refused_by_a_rebalance_are_retried(bootstrap, topic, worker, tmp_path):
    lengths = 300, 200, 400, 100
    name = topic(*lengths)
    keys, group = [TopicPartition(name, partition) for partition in range(4)], f"group of {name}"
    refused = threading.Event()

    def refusing(commit):
        def committed(offsets, callback):
            if refused.is_set():
                commit(offsets, callback)
            else:
                callback(offsets, RebalanceInProgressError())

        return committed

    workers, threads = [], []

    def start_worker():
        workers.append(worker(name, stop_at_end=False, every=None, seconds=0.2))
        threads.append(threading.Thread(target=workers[-1].run))
        return workers[-1]

    first = start_worker()
    first._consumer.commit_async = refusing(first._consumer.commit_async)
    try:
        threads[0].start()
        until(lambda: rebalances.rows_done(tmp_path / "state") == sum(lengths))
        second = start_worker()
        threads[1].start()
        with contextlib.closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id=group)) as consumer:
            until(lambda: len(second.loops) == 2 and len(first.loops) == 2)
            until(lambda: all(consumer.committed(keys[p]) == lengths[p] for p in second.loops), every=0.1)
            assert [consumer.committed(keys[p]) for p in first.loops] == [None, None]
            refused.set()
            until(lambda: [consumer.committed(key) for key in keys] == [*lengths], every=0.1)
    finally:
        for member, thread in zip(workers, threads, strict=True):
            member.stop()
            thread.join()


@each_library
def test_metrics_of_each_partition(topic, worker):
    one = worker(topic(600, 400))
    samples, states = {}, []

    def look(one):
        if one.rows == 1000 and not samples:
            with urlopen(f"http://127.0.0.1:{monitor.port}/metrics") as answer:
                text = answer.read().decode()
            for family in text_string_to_metric_families(text):
                samples.update({(member.name, member.labels.get("partition")): member.value for member in family.samples})
            states.append(monitor.make_state())

    with Monitor(one) as monitor:
        one.run(on_rows=look)
        (state,), ended = states, monitor.make_state()["state"]
    assert [samples["streamsvm_rows_total", partition] for partition in ("0", "1")] == [600, 400]
    assert [samples["streamsvm_consumer_lag", partition] for partition in ("0", "1")] == [0, 0]
    assert samples["streamsvm_support_vectors", "0"] == 30
    assert samples["streamsvm_learn_seconds_count", None] > 0
    assert (state["state"], ended, state["points"][-1]["rows"], state["points"][-1]["lag"]) == ("running", "ended", 1000, 0)
    assert 0.5 < state["points"][-1]["metric"] < 1.0


@each_library
def test_transaction_markers_are_not_lag(bootstrap, new_topic, worker):
    topic, lags = new_topic(partitions=2), []
    with KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic, transaction_timeout_ms=900_000) as transactional:
        transactional.init_transactions()
        transactional.begin_transaction()
        for row in features(0, 100):
            transactional.send(topic, CODEC.encode(row), partition=1)
        transactional.commit_transaction()
    one = worker(topic, stop_at_end=False)

    def look(one):
        lags.append(one.lag())
        if one.rows == 100 and lags[-1] == {0: 0, 1: 0}:
            one.stop()

    one.run(on_rows=look)
    assert lags[-1] == {0: 0, 1: 0}


@pytest.mark.broker
def test_reassigned_partition_continues(topic, worker, tmp_path):
    name = topic(3000)
    one, times = worker(name), iter((600, 1600))
    at = next(times)

    def assign_again(one):
        nonlocal at
        if at is not None and one.rows >= at:
            at = next(times, None)
            one._consumer.pause_partition(0)
            one._events.put(("assigned", {0}))

    one.run(on_rows=assign_again)
    assert (at, one.rows) == (None, 3000)
    assert dumps(load(tmp_path / "state" / "partition-0")) == model_of(0, 3000)


@pytest.mark.broker
def test_released_folder_is_locked_again(topic, worker, tmp_path, caplog):
    path, taken = tmp_path / "state" / "partition-0", []

    def take(one):
        if one.rows >= 600 and not taken:
            taken.append(path)
            CheckpointFolder(path, take_over=True).close()  # by a worker that the group has given up since

    worker(topic(3000)).run(on_rows=take)
    assert taken
    assert "drops its unsaved state" in caplog.text
    assert dumps(load(path)) == model_of(0, 3000)


@pytest.mark.broker
def test_a_worker_that_hangs_is_fenced(topic, worker, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(partitions, "TAKE_OVER_SECONDS", 0.5)
    name, other_workers = topic(1500), []
    slow = worker(name)

    def hang(slow):
        if slow.rows >= 600 and not other_workers:  # as if it were stopped while another worker has got its partition
            other_workers.append(worker(name, group=f"next generation of {name}"))
            other_workers[0].run()

    slow.run(on_rows=hang)
    assert "another process has taken over the folder" in caplog.text
    assert (slow.rows, other_workers[0].rows) == (800, 1000)  # but for those that were dropped
    assert dumps(load(tmp_path / "state" / "partition-0")) == model_of(0, 1500)


@each_library
def test_worker_resumes_from_the_command_line(bootstrap, admin, new_topic, tmp_path, call):
    name = new_topic(partitions=2)
    group = f"group of {name}"
    for partition in range(2):
        publish([Row({"i": i % 7}, i % 7 > 3) for i in range(300)], bootstrap, name, JSONCodec("y"), partition=partition)
    words = ["learn", f"kafka://{bootstrap}/{name}", "--label", "y", "--group", group, "--stop-at-end", "--checkpoint", tmp_path]
    words += ["--scope", "partition", "--quiet"]
    call(*words, "--max-rows", 250)
    said = call(*words, "--log-format", "json")
    assert '"event": "end", "rows": 350' in said.stdout
    lines = map(json.loads, said.stderr.splitlines())
    events = [line for line in lines if "event" in line]  # without warnings, such as those of a broker that answers late
    assert {line["event"] for line in events} == {"start", "partition", "checkpoint", "partition released"}
    assert events[0]["group"] == group
    came = {line["partition"]: line["rows"] for line in reversed(events) if line["event"] == "partition"}  # for the first time
    assert sum(came.values()) == 250
    assert sum(find_learner(load(tmp_path / f"partition-{p}")).n_learned for p in range(2)) == 600
    (group_offsets,) = admin.list_group_offsets(group).values()
    assert {key.partition: member.offset for key, member in group_offsets.items()} == {0: 300, 1: 300}


@pytest.mark.kafka_python
@each_library
def test_offsets_follow_the_checkpoints_of_one_model(bootstrap, admin, topic, tmp_path, caplog, call):
    name = topic(700, 300)
    url = f"kafka://{bootstrap}/{name}?codec=float32&features=4"
    words = ["learn", url, "--label", "y", "--checkpoint", tmp_path, "--stop-at-end", "--quiet", "--group", "one model"]
    call(*words, "--max-rows", 500)
    with (
        mock.patch("kafka.KafkaConsumer.commit_async", side_effect=KafkaTimeoutError("no coordinator")),
        caplog.at_level(logging.WARNING),
    ):
        call(*words, "--max-rows", 100)
    assert "the offsets of the group were not committed" in caplog.text
    committed = [
        {key.partition: member.offset for key, member in group_offsets.items()}
        for group_offsets in admin.list_group_offsets("one model").values()
    ]
    assert committed == [{0: 300, 1: 300}]
    call(*words)
    assert find_learner(load(tmp_path)).n_learned == 1000


@pytest.fixture
def keyed(bootstrap, admin, new_topic, tmp_path, call):
    """A topic of devices whose workers have learned it before it got more partitions: the arguments of workers, and a function
    that publishes rows.
    """
    name, devices = new_topic(partitions=2), np.random.default_rng(0).integers(0, 8, 480).tolist()

    def publish_rows(numbers, n_partitions):
        for partition in range(n_partitions):
            rows = [Row({"device": f"d{i}"}, bool(i % 3)) for i in (devices[n] for n in numbers) if i % n_partitions == partition]
            publish(rows, bootstrap, name, JSONCodec("y"), partition=partition)

    words = ["learn", f"kafka://{bootstrap}/{name}", "--label", "y", "--group", f"group of {name}", "--stop-at-end", "--quiet"]
    words += ["--scope", "partition", "--learner", "bsgd,budget=20", "--columns"]
    publish_rows(range(400), 2)
    for kind in (["device:key", "--key-models", "device"], ["device:category"]):
        call(*words, *kind, "--checkpoint", tmp_path / kind[0])
    admin.create_partitions({name: 4})
    until(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 4)
    publish_rows(range(400, 480), 4)
    return words


@pytest.mark.broker
def test_keys_of_a_topic_with_more_partitions(keyed, tmp_path, call):
    new_rows = call(*keyed, "device:category", "--checkpoint", tmp_path / "device:category").end
    assert new_rows["rows"] == 80  # without keys, the models continue
    advice = "4 partitions, and had 2 when the model of partition [01] was learned: a key .device. .* --start-from MERGED"
    words = *keyed, "device:key", "--key-models", "device", "--checkpoint"
    assert re.search(advice, call(*words, tmp_path / "device:key", status=1).stderr)
    call("merge", tmp_path / "device:key", "--to", tmp_path / "merged", "--quiet")
    words = *words, tmp_path / "new", "--start-from", tmp_path / "merged"
    for n_rows in (80, 0):  # each row was learned once
        assert call(*words).end["rows"] == n_rows
    for partition in range(4):
        folder = tmp_path / "new" / f"partition-{partition}"
        model = load(folder)
        described = [json.loads(call("inspect", folder, "--key", f"d{i}", "--json").stdout) for i in range(8)]
        assert min(min(facts["rows"], facts["rows of own models"]) for facts in described) > 30
        assert [model.predict_one({"device": f"d{i}"}) for i in range(8)] == [bool(i % 3) for i in range(8)]


@pytest.mark.broker
def test_partitions_that_are_added_while_keys_are_learned(topic, worker, monkeypatch):
    monkeypatch.setattr(partitions, "REFRESH_SECONDS", 0.0)
    described = partitions.try_describe_topic
    model = TableEncoder(keys="3") | BSGDClassifier()
    one = worker(topic(900), make_loop=lambda source, _: LearningLoop(source, model), stop_at_end=False)

    def describe(*arguments):
        return described(*arguments)._replace(partitions=(0, 1) if one.rows >= 300 else (0,))

    monkeypatch.setattr(partitions, "try_describe_topic", describe)
    with pytest.raises(StreamError, match="2 partitions, and had 1 when the model of partition 0 was learned: a key .3. may"):
        one.run()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--scope", "partition", "--checkpoint", "d"], "--scope partition needs --group NAME"),
        (["--scope", "partition", "--group", "g"], "--scope partition needs --checkpoint DIR"),
    ],
)
def test_flags_that_do_not_fit(words, reason, call):
    call("learn", "kafka://127.0.0.1:1/rows", "--label", "y", *words, status=2, says=reason)


def test_a_file_has_no_group(tmp_path, call):
    rows = tmp_path / "rows.csv"
    rows.write_text("a,y\n1,0\n2,1\n")
    words = ["learn", rows, "--label", "y", "--group", "g", "--checkpoint", tmp_path / "state"]
    call(*words, status=1, says="a group (--group g) is one of consumers of a topic")
    call(*words, "--scope", "partition", status=1, says="no partitions that workers could share")
