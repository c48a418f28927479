"""A run whose output would be its own input is refused before it writes anything."""

from contextlib import closing

import pytest

from kafka_broker import each_library
from loops import make_model
from refused import raises
from streamsvm.stream import DelayedLabels, DelayedLearningLoop, JoinedSource, LearningLoop, PredictionLoop
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm.stream.endpoints import Row, StreamError
from streamsvm_kafka import JSONCodec, KafkaSink, KafkaSource, TopicCheckpoints, publish

JSON = JSONCodec("y")
ROWS = [Row({"id": i, "a": float(i % 7)}, i % 2) for i in range(100)]


def test_outputs_that_are_inputs(embedded, tmp_path):
    for topic in ("rows", "labels"):
        publish(ROWS[:1], embedded.bootstrap, topic, JSON, client=embedded.client)
    rows, labels = (KafkaSource(embedded.bootstrap, topic, JSON, client=embedded.client) for topic in ("rows", "labels"))
    sinks = {topic: KafkaSink(embedded.bootstrap, topic, client=embedded.client) for topic in ("rows", "labels", "out")}
    joined = JoinedSource(rows, labels, key="id")
    model = make_model()
    loop = LearningLoop(rows, model, on_error=embedded.url("rows"))
    for description, call in {
        "rows is where predictions would go": lambda: LearningLoop(rows, model, sink=sinks["rows"]),
        "rows is where rows that were refused would go": lambda: LearningLoop(rows, model, on_error=sinks["rows"]),
        "where rows that were refused would go, and": loop.run,
        "where predictions would go": lambda: PredictionLoop(rows, model, sinks["rows"]),
        "with labels from .* is where predictions": lambda: DelayedLearningLoop(
            joined, model, delayed=DelayedLabels(), sink=sinks["labels"]
        ),
    }.items():
        raises(description, call, error=StreamError)
    LearningLoop(rows, model, sink=sinks["out"])
    for place in (rows, labels, *sinks.values()):
        place.close()


@pytest.mark.parametrize("flag", ["--to", "--on-error"])
@pytest.mark.parametrize("other_flag", ["SOURCE", "--labels", "--checkpoint", "--model"])
def test_topic_that_is_both_input_and_output_is_refused(call, flag, other_flag):
    place = f"kafka://127.0.0.1:1/{other_flag.strip('-').lower()}"
    words = ["learn", "kafka://127.0.0.1:1/source?codec=json", "--label", "y", "--labels", "kafka://127.0.0.1:1/labels?key=id"]
    words += ["--checkpoint", "kafka://127.0.0.1:1/checkpoint?name=a"]
    if other_flag == "--model":
        words = ["predict", words[1], "--to", "-", "--model", f"{place}?name=a"]
    call(*words, flag, place, status=2, says=f"{flag} {place} is {other_flag}, and this run would read there what it writes")


@each_library
def test_a_topic_by_another_address(broker, new_topic, client_library):
    topic, out = new_topic(), new_topic()
    publish(ROWS, broker.plaintext, topic, JSON)
    trusted = "ssl_cafile" if client_library == "kafka-python" else "ssl_ca_location"
    client = {"security_protocol": "SSL", trusted: broker.certificate}
    with closing(KafkaSource(broker.plaintext, topic, JSON)) as source:
        for name, fails in ((topic, True), (out, False)):
            with closing(KafkaSink(broker.ssl, name, client=client)) as sink:
                if fails:
                    raises("is where predictions would go", LearningLoop, source, make_model(), sink=sink, error=StreamError)
                else:
                    LearningLoop(source, make_model(), sink=sink)


@each_library
@pytest.mark.filterwarnings("ignore:.* has cleanup.policy")
def test_checkpoints_where_rows_are(bootstrap, new_topic, call):
    topic, empty = new_topic(), new_topic()
    rows, place = f"kafka://{bootstrap}/{topic}", f"kafka://{bootstrap}/{empty}"
    publish(ROWS, bootstrap, topic, JSON)
    words = ["learn", rows, "--label", "y", "--stop-at-end", "--checkpoint"]
    call(*words, rows, status=1, says="is read by this run: give checkpoints a topic of their own")
    call("learn", place, *words[2:], place, status=1, says="is read by this run: give checkpoints a topic of their own")
    call("learn", place, *words[2:], rows, status=1, says="holds messages that are not checkpoints, such as that at offset 99")
    with (
        closing(KafkaSource(bootstrap, empty, JSON)) as source,
        TopicCheckpoints(bootstrap, empty, "rows") as checkpoints,
        pytest.raises(StreamError, match="is where checkpoints would go"),
    ):
        LearningLoop(source, make_model(), checkpoints=checkpoints)
    call(*words, place)
    again = place.replace("127.0.0.1", "localhost")
    predict = ["predict", rows, "--model", f"{place}?name={topic}", "--to", again, "--stop-at-end"]
    call(*predict, status=1, says="holds models: give predictions")
    with TopicCheckpoints(bootstrap, topic, "other") as checkpoints, pytest.raises(CheckpointError, match="not checkpoints"):
        checkpoints.newest()
