"""Faults of a real Apache Kafka, and of workers that are not alone: each row is learned once, or an error says why not."""

import contextlib
import http.client
import os
import random
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from unittest import mock

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from forked import Command
from kafka_broker import broker_or_skip, free_ports, running_broker
from loops import make_model
from patience import PATIENCE, until
from saved import dumps
from streamsvm.stream import IterableSource, LearningLoop, load
from streamsvm.stream.endpoints import Row, StreamError
from streamsvm.stream.rows import find_learner
from streamsvm_kafka import JSONCodec, PartitionWorker, partitions, publish

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("client_library")]

JSON = JSONCodec("y")


def rows_of(n, seed=0):
    draw = random.Random(seed)
    points = [(draw.gauss(0.0, 1.0), draw.gauss(0.0, 1.0)) for _ in range(n)]
    return [Row({"a": a, "b": b}, int(a * b > 0)) for a, b in points]


def model_of(rows):
    loop = LearningLoop(IterableSource(list(map(tuple, rows))), make_model())
    loop.run()
    return dumps(loop.model)


@pytest.fixture
def worker(bootstrap, tmp_path):
    opened = []

    def make(topic, folder=tmp_path / "state", every=200, **options):
        def loop(source, place):
            return LearningLoop(source, make_model(), checkpoints=place, checkpoint_every=every)

        options = {"group": f"group of {topic}", "folder": folder, "make_loop": loop, **options}
        opened.append(PartitionWorker(bootstrap, topic, JSON, **options))
        return opened[-1]

    yield make
    for member in opened:
        member.close()


def test_added_partitions_are_assigned_to_workers(bootstrap, new_topic, admin, worker, tmp_path, monkeypatch):
    monkeypatch.setattr(partitions, "REFRESH_SECONDS", 0.5)
    topic = new_topic()
    publish(rows_of(300), bootstrap, topic, JSON, partition=0)
    one = worker(topic)
    begun = []

    def look(one):
        if one.rows >= 300 and not begun:
            begun.append(admin.create_partitions({topic: 2}))
            until(lambda: publish(rows_of(200, 1), bootstrap, topic, JSON, partition=1) if 1 in parts() else None)
        if one.rows >= 500:
            one.stop()

    def parts():
        return {member["partition_index"] for member in admin.describe_topics([topic])[0]["partitions"]}

    one.run(on_rows=look)
    for partition, rows in enumerate((rows_of(300), rows_of(200, 1))):
        assert dumps(load(tmp_path / "state" / f"partition-{partition}")) == model_of(rows)


@pytest.mark.kafka_python
def test_a_worker_that_pauses_for_longer_than_the_group_allows(bootstrap, new_topic, admin, worker, tmp_path, monkeypatch):
    monkeypatch.setitem(KafkaConsumer.DEFAULT_CONFIG, "max_poll_interval_ms", 1000)
    topic, rows = new_topic(), rows_of(1500)
    publish(rows[:1000], bootstrap, topic, JSON)
    one, pauses = worker(topic, every=600), []

    def pause(one):
        if one.rows > 600 and not pauses:
            pauses.append(one.rows)
            group = f"group of {topic}"
            until(lambda: not admin.describe_groups([group])[group]["members"], every=0.1)
            publish(rows[1000:], bootstrap, topic, JSON)
        if one.loops and one.loops[0].rows >= 1500:
            one.stop()

    one.run(on_rows=pause)
    assert one.rows > 1500  # some were dropped, and learned again
    assert dumps(load(tmp_path / "state" / "partition-0")) == model_of(rows)


@pytest.mark.kafka_python
def test_workers_of_two_groups_with_one_folder(bootstrap, new_topic, worker, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(partitions, "TAKE_OVER_SECONDS", 0.5)
    topic, rows = new_topic(), rows_of(2000)
    publish(rows, bootstrap, topic, JSON)
    workers = [worker(topic, group=name) for name in ("a group", "another group")]

    def look(one):
        said = "another process has taken over the folder" in caplog.text
        if not said and one.rows >= 600:  # until the other one has the folder, or has had it
            until(lambda: all(member.loops or member.rows for member in workers), every=0.05)
        if said and any(loop.rows >= 2000 for loop in one.loops.values()):
            for member in workers:
                member.stop()

    threads = [threading.Thread(target=member.run, kwargs={"on_rows": look}) for member in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "another process has taken over the folder" in caplog.text
    assert dumps(load(tmp_path / "state" / "partition-0")) == model_of(rows)


def test_worker_reports_removed_messages(bootstrap, new_topic, admin, worker, tmp_path):
    topic = new_topic()
    publish(rows_of(300), bootstrap, topic, JSON)

    def run(most=None, **options):
        with closing(worker(topic, stop_at_end=True, **options)) as one:
            one.run(most)

    run(200)
    admin.delete_records({TopicPartition(topic, 0): 250})
    with pytest.raises(StreamError, match="holds offsets 250 to 300, the checkpoint continues at 200.*--from earliest"):
        run()
    run(start="earliest")
    assert find_learner(load(tmp_path / "state" / "partition-0")).n_learned == 250
    admin.delete_topics([topic])
    until(lambda: topic not in admin.list_topics(), every=0.05)
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    publish(rows_of(10, 2), bootstrap, topic, JSON)
    with pytest.raises(StreamError, match="it was deleted and created again since the checkpoint.*--from earliest"):
        run()
    run(start="earliest")
    assert find_learner(load(tmp_path / "state" / "partition-0")).n_learned == 260


def test_worker_skips_messages_removed_while_reading(bootstrap, new_topic, admin, worker, tmp_path, caplog):
    topic = new_topic()
    publish(rows_of(300), bootstrap, topic, JSON)

    def run(**options):
        one, begun = worker(topic, stop_at_end=True, **options), []
        resume_at = one._consumer.resume_at

        def late(number, offset):
            if not begun:
                begun.append(admin.delete_records({TopicPartition(topic, 0): 120}))
            resume_at(number, offset)

        with mock.patch.object(one._consumer, "resume_at", late), closing(one):
            one.run()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run(start="earliest")
    # On a busy machine, the group may revoke and reassign the partition: then its checkpoint is behind the retention.
    said = " ".join([caplog.text, *(str(member.message) for member in warned)])
    assert re.search("partition 0 holds offsets 120 to 300, .* 0.*: retention has removed 120 unread messages", said)
    assert find_learner(load(tmp_path / "state" / "partition-0")).n_learned == 180


def ask(port, path):
    """Return the text that a learner's monitor answers; "" while it does not listen yet."""
    with contextlib.suppress(OSError):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        with closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read().decode()
    return ""


def record_outage(port, outcomes):
    """Add the answers of a monitor whose source has no broker now to ``outcomes``. Return whether it has any."""
    ready, figures, still_ready = (ask(port, path) for path in ("/readyz", "/metrics", "/readyz"))
    if "streamsvm_connected 0.0" in figures and ready == still_ready:
        lag = "a lag" if "streamsvm_consumer_lag{" in figures else "no lag"
        outcomes.add(f"{lag}, {ready}")
    return bool(outcomes)


@pytest.mark.kafka_python  # which publishes; the learners have each client library
def test_a_broker_that_is_started_again_in_mid_run(tmp_path):
    rows, learners, ports = rows_of(2000), [], [*free_ports(("group", "alone")).values()]
    (tmp_path / "broker").mkdir()
    with broker_or_skip(lambda: running_broker(tmp_path / "broker")) as broker:
        bootstrap = broker.plaintext
        with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
            admin.create_topics({"rows": {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        publish(rows[:1000], bootstrap, "rows", JSON)
        # In processes of their own: kafka-python leaves each socket open that a broker has refused.
        words = ["learn", f"kafka://{bootstrap}/rows", "--label", "y", "--learner", "bsgd"]
        words += ["--quiet", "--checkpoint-every", "200", "--checkpoint"]
        alone, shared = tmp_path / "alone", tmp_path / "shared"
        for client, place, flags, port in (
            ("kafka-python", shared / "partition-0", [shared, "--group", "of it", "--scope", "partition"], ports[0]),
            ("confluent-kafka", alone, [alone], ports[1]),
        ):
            flags += ["--metrics-port", str(port)]
            with mock.patch.dict(os.environ, STREAMSVM_KAFKA_CLIENT=client):
                learners.append((place, Command([*words, *flags])))
        for place, learner in learners:
            until(lambda place=place, learner=learner: [*place.glob("*800.ckpt")] or learner.poll() is not None)
            assert learner.poll() is None
        assert [ask(port, "/readyz") for port in ports] == ["running\n"] * 2
        with ThreadPoolExecutor(1) as pool:
            restart = pool.submit(broker.restart)
            away = {port: set() for port in ports}
            until(lambda: restart.done() or all(list(map(record_outage, away, away.values()))))
            assert list(away.values()) == [{"no lag, no broker responds\n"}] * 2
            restart.result()
        for port in ports:
            until(lambda port=port: ask(port, "/readyz") == "running\n" and "streamsvm_consumer_lag{" in ask(port, "/metrics"))
        publish(rows[1000:], bootstrap, "rows", JSON)
        for place, learner in learners:  # a worker may lose the partition, and learn rows once more
            until(lambda place=place, learner=learner: [*place.glob("*2000.ckpt")] or learner.poll() is not None)
            learner.terminate()
            assert learner.wait(PATIENCE) == 130
    whole_loop = LearningLoop(IterableSource(list(map(tuple, rows))), load(learners[0][0]).clone())
    whole_loop.run()
    assert [dumps(load(place)) == dumps(whole_loop.model) for place, _ in learners] == [True] * 2
