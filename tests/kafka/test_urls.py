import pytest

from streamsvm.stream import open as opening
from streamsvm.stream.endpoints import Row, StreamError
from streamsvm_kafka import (
    ArrowCodec,
    Float32Codec,
    JSONCodec,
    NpyCodec,
    open_checkpoints,
    open_models,
    open_sink,
    open_source,
    publish,
)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("kafka://host:9092", "not the address of a topic"),
        ("kafka://host:9092/a/b", "not the address of a topic"),
        ("http://host:9092/topic", "not the address of a topic"),
        ("kafka://host:port/topic", "'host:port' is not host:port"),
        ("kafka://host:1,:2/topic", "':2' is not host:port"),
        (
            "kafka://host/topic?codec=avro",
            "no address of the schema registry: set STREAMSVM_KAFKA_SCHEMA_REGISTRY_URL",
        ),
        ("kafka://host/topic?codec=xml", "codec=xml is none of json, float32, arrow, npy, registry, avro"),
        ("kafka://host/topic?codec=npy&features=٢", "codec=npy needs the number of features"),
        ("kafka://host/topic?codec=arrow&features=2", "features belongs to codec=float32 and npy; rows of arrow name"),
        ("kafka://host/topic?codec=float32", "needs the number of features"),
        ("kafka://host/topic?codec=float32&features=two", "needs the number of features"),
        ("kafka://host/topic?features=2", "features belongs to codec=float32 and npy; rows of json name"),
        ("kafka://host/topic?name=a", "unknown parameter 'name'; there are codec, features and options of the connection"),
        ("kafka://host/topic?ssl.key.password=a", "give STREAMSVM_KAFKA_SSL_KEY_PASSWORD in the environment"),
    ],
)
def test_mistakes_in_a_source(url, reason):
    with pytest.raises(StreamError, match=reason) as error:
        open_source(url, label="y", stop_at_end=True)
    assert "Expected kafka://" in str(error.value)


@pytest.mark.parametrize(
    ("open_", "url", "reason"),
    [
        (open_sink, "kafka://host:9092/topic?codec=json", "unknown parameter 'codec'; there are only options of the connection"),
        (open_models, "kafka://host:9092/models?codec=json", "unknown parameter 'codec'; there are name and options"),
        (open_models, "kafka://host:9092/models", "which model of the topic.*name=rows"),
        (
            lambda url: open_checkpoints(url, sources=["-"]),
            "kafka://host:9092/models",
            "name the model in the topic with",
        ),
        (opening.open_checkpoints, "rows.csv", "rows.csv takes no checkpoints"),
        (opening.open_models, "rows.csv", "rows.csv holds no models"),
    ],
)
def test_mistakes_in_a_sink_or_a_model_topic(open_, url, reason):
    with pytest.raises(StreamError, match=reason):
        open_(url)


def test_where_checkpoints_need_a_folder(call):
    words = ["predict", "kafka://host/rows", "--model", "kafka://host/models", "--to", "-", "--checkpoint", "kafka://host/models"]
    call(*words, status=2, says="the position of predictions takes a folder")


@pytest.mark.parametrize(
    "url",
    [
        "kafka://me:secret@host:9092/topic",
        "kafka://host:9092/topic?sasl_plain_password=secret",
        "kafka://host:9092/a/b?sasl_plain_password=secret",
        "kafka://host:9092/topic?codec=avro&password=secret",
    ],
)
@pytest.mark.parametrize("open_", [open_sink, open_models, lambda url: open_source(url, label="y", stop_at_end=True)])
def test_a_password_is_not_repeated(url, open_):
    with pytest.raises(StreamError) as error:
        open_(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("codec", "parameters", "rows"),
    [
        (JSONCodec("y"), {}, [Row({"a": 1.5}, "x"), Row({"a": 2.5}, None)]),
        (Float32Codec(2), {"codec": "float32", "features": 2}, [Row({0: 1.5, 1: 2.0}, 1), Row({0: 0.0, 1: 1.0}, None)]),
        (ArrowCodec("y"), {"codec": "arrow"}, [Row({"a": 1.5}, "x"), Row({"b": 2.5}, None)]),
        (NpyCodec(2), {"codec": "npy", "features": 2}, [Row({0: 1.5, 1: 2.0}, 1), Row({0: 0.0}, None)]),
    ],
    ids=["json", "float32", "arrow", "npy"],
)
def test_a_topic_by_url(embedded, codec, parameters, rows):
    publish(rows, embedded.bootstrap, "rows", codec, partition=0, client=embedded.client)
    source = open_source(embedded.url("rows", **parameters), label="y", stop_at_end=True)
    assert list(source) == rows
    assert source.name == f"kafka://{embedded.bootstrap}/rows"
    source.close()
