import pytest
from kafka import KafkaProducer

from streamsvm.stream.endpoints import Row
from streamsvm_kafka import ArrowCodec, Float32Codec, JSONCodec, KafkaSource, NpyCodec
from streamsvm_kafka.codecs import check_headers

CODECS = {"json": JSONCodec("y"), "arrow": ArrowCodec("y"), "npy": NpyCodec(1), "float32": Float32Codec(1)}


@pytest.mark.parametrize(
    ("codec", "header", "value"),
    [
        ("json", "content-type", b"application/json"),
        ("json", "Content-Type", b"application/json; charset=utf-8"),
        ("json", "contentType", b'"application/vnd.sensors.v2+json"'),
        *[("json", "content_type", b"text/json"), ("json", "codec", b"JSON"), ("json", "other", b"avro")],
        *[("json", "codec", None), ("json", "codec", b"")],
        ("arrow", "content-type", b"application/vnd.apache.arrow.stream"),
        ("npy", "content-type", b"application/x-npy"),
        ("float32", "content-type", b"application/octet-stream"),
        ("float32", "codec", b" float32 "),
    ],
)
def test_headers_that_fit(codec, header, value):
    check_headers([("trace", b"avro"), (header, value)], CODECS[codec])
    check_headers((), CODECS[codec])


@pytest.mark.parametrize(
    ("codec", "header", "value", "reason"),
    [
        ("json", "content-type", b"application/avro", "'content-type' says 'application/avro', but the topic is"),
        ("json", "Codec", b"arrow", "'Codec' says 'arrow', but"),
        ("npy", "codec", b"float32", "says 'float32', but the topic is read with codec=npy"),
        ("json", "content-type", b"application/vnd.x+avro", "says 'application/vnd.x.avro', but"),
        ("json", "content-type", b"text/plain", "says 'text/plain' .an unknown codec., but"),
        ("json", "content-type", b"image/json", "an unknown codec"),
        ("json", "codec", b"\xff\x00", "an unknown codec"),
        ("json", "codec", b"x" * 100_000, "says 'xxx.* .an unknown codec."),
    ],
)
def test_headers_that_name_another_codec(codec, header, value, reason):
    with pytest.raises(ValueError, match=reason) as error:
        check_headers([("trace", b"1"), (header, value)], CODECS[codec])
    assert len(str(error.value)) < 500


class Bytes(str):
    """The name of a header, as a producer of another language may write it."""

    def encode(self, *_):
        return bytes.fromhex(self)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_header_whose_name_is_no_text_ends_no_reading(embedded, compression):
    names = ["", "ff", "61fe62", "e282", "", "ff"]
    with KafkaProducer(
        bootstrap_servers=embedded.bootstrap, compression_type=compression, linger_ms=1000, **embedded.client
    ) as producer:
        for i, name in enumerate(names):
            headers = [("trace", b"17"), (Bytes(name), b"\xff"), (Bytes(name), b""), ("codec", b"json")] if name else []
            producer.send("rows", b'{"i":%d,"y":0}' % i, key=b"\xff", headers=headers, partition=0)
    source = KafkaSource(embedded.bootstrap, "rows", CODECS["json"], stop_at_end=True, client=embedded.client)
    assert list(source) == [Row({"i": i}, 0) for i in range(len(names))]
    source.close()
