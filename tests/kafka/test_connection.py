"""Connections with TLS and passwords, to a broker that comes late or goes away."""

import json
import socket
import threading
from functools import partial

import pytest
from kafka import KafkaConsumer, KafkaProducer

from kafka_broker import PASSWORD, certify
from patience import until
from refused import raises
from streamsvm.stream.endpoints import Row, StreamError
from streamsvm_kafka import BrokerUnreachableError, JSONCodec, KafkaSink, KafkaSource, publish
from streamsvm_kafka.connection import Connection

JSON = JSONCodec("y")
ROWS = [Row({"i": i}, i % 2) for i in range(20)]


@pytest.fixture
def user(broker):
    """Options of a user whom the broker lets in."""
    return {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(broker.certificate),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }


def read(address, topic, client):
    source = KafkaSource(address, topic, JSON, stop_at_end=True, client=client)
    try:
        return list(source)
    finally:
        source.close()


@pytest.mark.broker
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_rows_through_tls_and_passwords(broker, new_topic, user, mechanism):
    topic = new_topic()
    user |= {"sasl_mechanism": mechanism}
    publish(ROWS, broker.sasl_ssl, topic, JSON, client=user)
    assert read(broker.sasl_ssl, topic, user) == ROWS
    assert read(broker.ssl, topic, {"security_protocol": "SSL", "ssl_cafile": str(broker.certificate)}) == ROWS


@pytest.mark.broker
def test_a_user_whom_the_broker_does_not_know(broker, user, soon):
    for change in (
        {"sasl_plain_password": "wrong"},
        {"sasl_plain_username": "bob"},
        {"sasl_mechanism": "SCRAM-SHA-256"} | {"sasl_plain_password": "wrong"},
    ):
        told = f"refuses the user '{(user | change)['sasl_plain_username']}': wrong name, password or sasl_mechanism"
        soon(partial(raises, told, KafkaSource, broker.sasl_ssl, "rows", JSON, client=user | change, error=StreamError))
    told, other = "does not take this sasl_mechanism|wrong name, password or sasl_mechanism", {"sasl_mechanism": "SCRAM-SHA-512"}
    soon(partial(raises, told, KafkaSink, broker.sasl_ssl, "rows", client=user | other, error=StreamError))


@pytest.mark.broker
def test_a_certificate_that_does_not_verify(broker, tmp_path):
    other = certify(tmp_path, "other")
    for given in {}, {"ssl_cafile": str(other)}:
        with pytest.raises(StreamError, match="its certificate does not verify .*self.signed certificate.*Give ssl_cafile"):
            KafkaSource(broker.ssl, "rows", JSON, client={"security_protocol": "SSL", **given})
    localhost = broker.ssl.replace("127.0.0.1", "localhost")
    tls = {"security_protocol": "SSL", "ssl_cafile": str(broker.certificate)}
    raises("its certificate does not verify .*'localhost'", Connection(localhost, tls).reach, error=StreamError)
    Connection(localhost, tls | {"ssl_check_hostname": False}).reach()


@pytest.mark.broker
def test_the_wrong_port(broker, soon):
    with pytest.raises(StreamError, match="no TLS connection .*Is it the port of an SSL or SASL_SSL listener"):
        KafkaSource(broker.plaintext, "rows", JSON, client={"security_protocol": "SSL"})
    told = r"its security settings are the client's \(security_protocol=PLAINTEXT\)"
    soon(partial(raises, told, KafkaSource, broker.ssl, "rows", JSON, error=BrokerUnreachableError))


@pytest.mark.broker
def test_the_command_line_with_a_password(broker, new_topic, user, tmp_path, call, monkeypatch, soon):
    rows, out = new_topic(), new_topic()
    publish(ROWS, broker.plaintext, rows, JSON)
    for name, value in user.items():
        monkeypatch.setenv(f"STREAMSVM_KAFKA_{name.upper()}", value)
    words = [f"kafka://{broker.sasl_ssl}/{rows}", "--label", "y", "--stop-at-end", "--to", f"kafka://{broker.sasl_ssl}/{out}"]
    checkpoint = ["--checkpoint", tmp_path / "state", "--on-error", f"kafka://{broker.sasl_ssl}/{out}"]
    learned = call("learn", *words, *checkpoint)
    assert len(read(broker.plaintext, out, {})) == 20
    shown = call("inspect", tmp_path / "state")
    assert "20" in shown.stdout
    assert PASSWORD not in "".join([*learned[1:], *shown[1:]])
    saved = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir() if path.is_file())
    assert PASSWORD.encode() not in saved
    lines = call("learn", *words, "--log-format", "json", "--log-level", "debug").stderr
    assert {"kafka.cluster", "streamsvm"} <= {json.loads(line)["logger"] for line in lines.splitlines()}
    assert "(not shown, as it holds a secret)" in lines
    assert PASSWORD not in lines
    monkeypatch.setenv("STREAMSVM_KAFKA_SASL_PLAIN_PASSWORD", "a wrong secret")
    shown = soon(partial(call, "learn", *words, status=1, says="refuses the user 'alice'")).stderr
    assert "a wrong secret" not in shown
    assert len(shown.splitlines()) == 1


def test_what_the_connection_tells_is_a_line_of_json(pauses, monkeypatch, call):
    monkeypatch.setenv("STREAMSVM_KAFKA_OUTAGE_SECONDS", "0.5")
    words = ["learn", "kafka://127.0.0.1:1/rows", "--label", "y", "--log-format", "json"]
    told, failed = map(json.loads, call(*words, status=1).stderr.splitlines())
    assert (told["level"], told["logger"]) == ("warning", "streamsvm_kafka.connection")
    assert "Trying again for 0.5 s" in told["message"]
    assert (failed["level"], failed["event"]) == ("error", "error")
    assert "no Kafka broker at 127.0.0.1:1" in failed["message"]


def test_files_that_are_no_certificates(tmp_path):
    file = tmp_path / "file.pem"
    file.write_text("no certificate")
    for name in "ssl_cafile", "ssl_certfile", "ssl_crlfile":
        with pytest.raises(StreamError, match=f"TLS cannot be set up with {file}.*Are they PEM files"):
            Connection("127.0.0.1:1", {"security_protocol": "SSL", name: str(file)})


@pytest.mark.parametrize(
    "open_", [lambda a, c: KafkaSource(a, "rows", JSON, client=c), lambda a, c: KafkaSink(a, "out", client=c)]
)
def test_a_broker_that_does_not_come_in_time(open_, pauses, caplog):
    raises("no Kafka broker at 127.0.0.1:1", open_, "127.0.0.1:1", {"outage_seconds": 0.8}, error=BrokerUnreachableError)
    assert pauses == [0.2, 0.4]
    assert "Trying again for 0.8 s." in caplog.text


def test_a_broker_that_was_away_is_looked_for_each_second(embedded):
    client = Connection(embedded.bootstrap, embedded.client).client(KafkaConsumer)
    waits = [client._manager.update_backoff("1") for _ in range(20)]
    client.close()
    assert max(waits) < 2000


def test_a_broker_that_comes_late(embedded, caplog):
    # Something listens at the address once the first attempt has failed; the client itself is given that of a broker.
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    opened = []

    def listen():
        until(lambda: "Trying again for 600 s." in caplog.text)
        opened.append(socket.create_server(("127.0.0.1", port)))

    late = threading.Thread(target=listen)
    late.start()
    connection = Connection(f"127.0.0.1:{port}", {"outage_seconds": 600})
    connection.arguments["bootstrap_servers"] = [embedded.bootstrap]
    with connection.client(KafkaProducer, api_version=(2, 3)) as producer:
        assert producer.partitions_for("rows")
    late.join()
    opened[0].close()


def test_a_file_begins_at_its_first_row(tmp_path, call):
    rows = tmp_path / "rows.csv"
    rows.write_text("a,y\n1,0\n2,1\n")
    said = f"{rows} is read from its first row: to begin at latest is for streams with a URL"
    call("learn", rows, "--label", "y", "--from", "latest", status=1, says=said)
