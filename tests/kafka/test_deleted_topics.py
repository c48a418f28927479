"""A topic that was deleted while it is read or written is not created again, although the broker creates topics on request."""

import threading
import time
import uuid
from contextlib import closing

import pytest
from kafka import KafkaAdminClient

from kafka_broker import broker_or_skip, each_library, shared_broker
from loops import delayed_loop, make_model, prediction
from patience import until
from streamsvm import BSGDClassifier
from streamsvm.stream import LearningLoop, Row, StreamError
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm_kafka import (
    FollowedTopic,
    JSONCodec,
    KafkaSink,
    KafkaSource,
    PartitionWorker,
    TopicCheckpoints,
    followed_topic,
    partitions,
    publish,
    reader,
    sink,
    transaction,
)
from streamsvm_kafka.clients.kafka_python import producer as kafka_python_producer
from streamsvm_kafka.topics import is_missing

CODEC = JSONCodec("y")
COMPACTED = {"cleanup.policy": "compact"}
ROWS = [Row({"a": i % 7, "id": i}, i % 2) for i in range(50)]
REFRESHES = {"kafka-python": "metadata_max_age_ms", "confluent-kafka": "topic_metadata_refresh_interval_ms"}
#: Time after which a client would have created a deleted topic: it requests metadata after each error, and every half second.
SECONDS = 2.5


@pytest.fixture(scope="module")
def creating(tmp_path_factory):
    """The address of a broker that creates topics on request."""
    with broker_or_skip(lambda: shared_broker(tmp_path_factory, "true")) as broker:
        yield broker.plaintext


@pytest.fixture
def client(client_library):
    return {REFRESHES[client_library]: 500}


@pytest.fixture
def admin(creating):
    with closing(KafkaAdminClient(bootstrap_servers=creating)) as client:
        yield client


@pytest.fixture
def topic(admin):
    """Returns a function that creates a topic with a new name."""

    def make(**configs):
        name = f"streamsvm-test-{uuid.uuid4().hex[:12]}"
        options = {"num_partitions": 1, "replication_factor": 1, "configs": configs}
        admin.create_topics({name: options}, wait_for_metadata=True)
        return name

    return make


@pytest.fixture
def delete(admin):
    def delete_topic(name):
        admin.delete_topics([name])
        until(lambda: admin.describe_topics([name])[0]["error_code"] == 3, every=0.02)  # unknown

    return delete_topic


@pytest.fixture
def check_stays_deleted(admin):
    def check(name):
        began = time.monotonic()
        while time.monotonic() < began + SECONDS:
            assert name not in admin.list_topics()
            time.sleep(0.1)

    return check


@pytest.fixture
def background():
    """Returns a function that runs another one in a thread; its errors are in the list that it returns. After the test, the
    thread is stopped, and then the stream closed.
    """
    threads = []

    def start(run, stop, close):
        errors = []

        def catch():
            try:
                run()
            except StreamError as error:
                errors.append(str(error))

        threads.append((threading.Thread(target=catch), stop, close))
        threads[-1][0].start()
        return errors

    yield start
    for thread, stop, close in threads:
        stop()
        thread.join()
        close()


@each_library
def test_sources_and_workers(creating, topic, client, background, delete, check_stays_deleted, tmp_path, monkeypatch):
    for module in (reader, partitions):
        monkeypatch.setattr(module, "REFRESH_SECONDS", 1.0)
    name, group = topic(), uuid.uuid4().hex
    publish(ROWS, creating, name, CODEC)
    source = KafkaSource(creating, name, CODEC, client=client)
    errors = background(lambda: list(source), source.stop, source.close)
    worker = PartitionWorker(
        creating,
        name,
        CODEC,
        group=group,
        folder=tmp_path,
        make_loop=lambda source, folder: LearningLoop(source, make_model(), checkpoints=folder),
        client=client,
    )
    worker_errors = background(worker.run, worker.stop, worker.close)
    until(lambda: (worker.rows == len(ROWS) and source.lag() == {0: 0}) or errors or worker_errors)
    assert (errors, worker_errors) == ([], [])
    delete(name)
    check_stays_deleted(name)
    until(lambda: errors and worker_errors)
    assert all(f"there is no topic '{name}'" in error for error in (*errors, *worker_errors))
    check_stays_deleted(name)


@each_library
def test_labels_and_models(creating, topic, client, background, delete, check_stays_deleted, monkeypatch):
    monkeypatch.setattr(followed_topic, "REFRESH_SECONDS", 1.0)
    rows, labels, models = topic(), topic(), topic(**COMPACTED)
    publish([Row(x) for x, _ in ROWS], creating, rows, JSONCodec(None))
    sources = [KafkaSource(creating, name, JSONCodec(label), client=client) for name, label in ((rows, None), (labels, "y"))]
    source, make = delayed_loop(*sources, {"key": "id"}, {})
    loop = make(source, make_model())
    errors = background(loop.run, loop.stop, source.close)
    with closing(TopicCheckpoints(creating, models, "rows", client=client)) as checkpoints:
        checkpoints.save(BSGDClassifier(), None, rows=1, position={})
    followed = FollowedTopic(creating, models, "rows", client=client, seconds=0.0)
    with closing(followed):
        assert followed.read().header["rows"] == 1
        until(lambda: loop.rows == len(ROWS))
        delete(labels)
        check_stays_deleted(labels)
        assert followed.read_newer() is None
        delete(models)
        check_stays_deleted(models)
        with pytest.warns(UserWarning, match=f"{models} was deleted: the earlier model stays"):
            assert followed.read_newer() is None
        assert followed.read_newer() is None  # there is one warning
        check_stays_deleted(models)
        assert errors == []


@each_library
@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_sink_creates_its_topic_only_at_the_start(
    creating, topic, client, delete, check_stays_deleted, monkeypatch, is_transactional
):
    for module in (sink, transaction, kafka_python_producer):
        for limit in ("DELIVERY_SECONDS", "CONNECT_SECONDS"):
            if hasattr(module, limit):
                monkeypatch.setattr(module, limit, 2.0)
    name = topic()
    delete(name)
    opened = (
        TopicCheckpoints(creating, topic(**COMPACTED), "rows", client=client)
        if is_transactional
        else KafkaSink(creating, name, client=client)
    )
    with closing(opened):
        to = opened.open_sink(name) if is_transactional else opened

        def write(row):
            to.write(prediction(row, 1, 0, 0.5))
            if is_transactional:
                opened.save(BSGDClassifier(), None, rows=row, position={})
            else:
                to.flush()
            return False

        write(1)
        delete(name)
        check_stays_deleted(name)
        with pytest.raises((StreamError, CheckpointError), match=f"there is no topic '{name}': it was deleted during this run"):
            until(lambda: write(2), every=0.02)
        check_stays_deleted(name)


@pytest.mark.broker
def test_topic_is_not_missing_while_no_broker_answers():
    from streamsvm_kafka.connection import Connection

    assert not is_missing(Connection("127.0.0.1:1", {"outage_seconds": 60}), "rows")
