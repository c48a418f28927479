"""Connections with TLS and passwords, to a broker that comes late or goes away."""

import base64
import json
import socket
import threading
import time
from functools import partial

import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

from kafka_broker import IDENTITY, PASSWORD, certify, options_of_alice
from patience import until
from refused import raises
from streamsvm import BSGDClassifier
from streamsvm.stream.endpoints import Row, StreamError
from streamsvm_kafka import BrokerUnreachableError, JSONCodec, KafkaSink, KafkaSource, TopicCheckpoints, publish
from streamsvm_kafka.clients import open_consumer
from streamsvm_kafka.connection import Connection
from streamsvm_kafka.topics import connect_admin

JSON = JSONCodec("y")
ROWS = [Row({"i": i}, i % 2) for i in range(20)]


@pytest.fixture
def user(broker, client_library):
    """Options of a user whom the broker lets in."""
    return options_of_alice(client_library, broker)


@pytest.fixture
def name(client_library):
    """Finds the name that an option of kafka-python has in the client library."""
    names = {"ssl_cafile": "ssl_ca_location", "sasl_plain_username": "sasl_username", "sasl_plain_password": "sasl_password"}
    return lambda own: own if client_library == "kafka-python" else names[own]


def read(address, topic, client):
    source = KafkaSource(address, topic, JSON, stop_at_end=True, client=client)
    try:
        return list(source)
    finally:
        source.close()


@pytest.mark.broker
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_rows_through_tls_and_passwords(broker, new_topic, user, name, mechanism):
    topic = new_topic()
    user |= {"sasl_mechanism": mechanism}
    publish(ROWS, broker.sasl_ssl, topic, JSON, client=user)
    assert read(broker.sasl_ssl, topic, user) == ROWS
    assert read(broker.ssl, topic, {"security_protocol": "SSL", name("ssl_cafile"): broker.certificate}) == ROWS


class Tokens(AbstractTokenProvider):
    """Gives unsigned tokens, which the broker of the tests accepts."""

    asked = 0

    def token(self):
        Tokens.asked += 1
        now = int(time.time())  # a broker rounds, and refuses tokens that are issued in the future
        parts = {"alg": "none"}, {"sub": "alice", "iat": now, "exp": now + 600}
        return ".".join([*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), ""])


@pytest.mark.broker
def test_rows_with_tokens(broker, new_topic, user, name, client_library):
    topic, asked = new_topic(), Tokens.asked
    options = {"client": client_library, "security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    options[name("ssl_cafile")] = broker.certificate
    if client_library == "kafka-python":
        options["sasl_oauth_token_provider"] = Tokens()
    else:
        options["oauth_cb"] = lambda _: (Tokens().token(), time.time() + 600)
    publish(ROWS, broker.sasl_ssl, topic, JSON, client=options)
    assert read(broker.sasl_ssl, topic, options) == ROWS
    assert Tokens.asked > asked
    with TopicCheckpoints(broker.sasl_ssl, f"{topic}-models", "rows", group=topic, client=options) as place:
        place.save(BSGDClassifier(budget=3), None, rows=1, position={"topic": topic, "offsets": {"0": 3}})
        assert place.newest().header["rows"] == 1


@pytest.mark.broker
def test_tokens_that_librdkafka_makes_by_options_of_the_environment(broker, new_topic, monkeypatch, call):
    topic = new_topic()
    publish(ROWS, broker.plaintext, topic, JSON)
    options = {"client": "confluent-kafka", "security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    options |= {"ssl_ca_location": str(broker.certificate), "enable_sasl_oauthbearer_unsecure_jwt": "true"}
    for option, value in (options | {"sasl_oauthbearer_config": "principal=alice"}).items():
        monkeypatch.setenv(f"STREAMSVM_KAFKA_{option.upper()}", value)
    assert "20 rows" in call("learn", f"kafka://{broker.sasl_ssl}/{topic}", "--label", "y", "--stop-at-end").stderr


@pytest.mark.broker
def test_unknown_user_is_refused(broker, user, name, soon):
    wrong = {name("sasl_plain_password"): "wrong"}
    for change in wrong, {name("sasl_plain_username"): "bob"}, {"sasl_mechanism": "SCRAM-SHA-256"} | wrong:
        message = f"refuses the user '{(user | change)[name('sasl_plain_username')]}': wrong name, password or sasl_mechanism"
        soon(partial(raises, message, KafkaSource, broker.sasl_ssl, "rows", JSON, client=user | change, error=StreamError))
    message, changed = "wrong name, password or sasl_mechanism=SCRAM-SHA-512", {"sasl_mechanism": "SCRAM-SHA-512"}
    soon(partial(raises, message, KafkaSink, broker.sasl_ssl, "rows", client=user | changed, error=StreamError))


@pytest.mark.broker
def test_a_certificate_that_does_not_verify(broker, tmp_path, name, client_library):
    tls = {"security_protocol": "SSL", "client": client_library}
    for trust_options in {}, {name("ssl_cafile"): certify(tmp_path, "other")}:
        with pytest.raises(StreamError, match="no TLS connection .*certificate.*Give the certificates that it is signed with"):
            KafkaSource(broker.ssl, "rows", JSON, client=tls | trust_options)
    localhost, tls = broker.ssl.replace("127.0.0.1", "localhost"), tls | {name("ssl_cafile"): broker.certificate}
    with pytest.raises(StreamError, match="no TLS connection .*certificate"), connect_admin(Connection(localhost, tls)):
        pass
    anyone = {"ssl_check_hostname": "false"}
    anyone = anyone if client_library == "kafka-python" else {"ssl_endpoint_identification_algorithm": "none"}
    with connect_admin(Connection(localhost, tls | anyone)) as admin:
        assert admin.read_cluster_id() == IDENTITY


@pytest.mark.broker
def test_the_wrong_port(broker, soon, client_library):
    with pytest.raises(StreamError, match="no TLS connection .*Is it the port of an SSL or SASL_SSL listener"):
        KafkaSource(broker.plaintext, "rows", JSON, client={"security_protocol": "SSL", "client": client_library})
    message = r"its security settings are the client's \(security_protocol=PLAINTEXT\)"
    soon(partial(raises, message, KafkaSource, broker.ssl, "rows", JSON, error=BrokerUnreachableError))


@pytest.mark.broker
def test_the_command_line_with_a_password(broker, new_topic, user, name, tmp_path, call, monkeypatch, soon):
    rows, out = new_topic(), new_topic()
    publish(ROWS, broker.plaintext, rows, JSON)
    for option, value in user.items():
        monkeypatch.setenv(f"STREAMSVM_KAFKA_{option.upper()}", value)
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
    assert PASSWORD not in lines
    loggers = {json.loads(line)["logger"] for line in lines.splitlines()}
    assert "streamsvm" in loggers
    if "sasl_plain_password" in user:
        assert "kafka.cluster" in loggers
        assert "(not shown, as it holds a secret)" in lines
    monkeypatch.setenv(f"STREAMSVM_KAFKA_{name('sasl_plain_password').upper()}", "a wrong secret")
    shown = soon(partial(call, "learn", *words, status=1, says="refuses the user 'alice'")).stderr
    assert "a wrong secret" not in shown
    assert len(shown.splitlines()) == 1


def test_invalid_certificate_files(tmp_path):
    file = tmp_path / "file.pem"
    file.write_text("no certificate")
    for name in "ssl_cafile", "ssl_certfile", "ssl_crlfile":
        options = {"security_protocol": "SSL", name: file}
        with pytest.raises(StreamError, match=f"TLS cannot be set up with {name}={file}.*Are they PEM files"):
            KafkaSource("127.0.0.1:1", "rows", JSON, client=options)


@pytest.mark.parametrize(
    "open_", [lambda a, c: KafkaSource(a, "rows", JSON, client=c), lambda a, c: KafkaSink(a, "out", client=c)]
)
def test_outage_longer_than_outage_seconds(open_, pauses, caplog):
    raises("no Kafka broker at 127.0.0.1:1", open_, "127.0.0.1:1", {"outage_seconds": 0.8}, error=BrokerUnreachableError)
    assert pauses == [0.2, 0.4]
    assert "Trying again for 0.8 s." in caplog.text


def test_reconnects_are_at_most_a_second_apart(embedded):
    consumer = open_consumer(Connection(embedded.bootstrap, embedded.client), "rows", None, max_fetches=1, has_tables=False)
    waits = [consumer._consumer._manager.update_backoff("1") for _ in range(20)]
    consumer.close(1.0)
    assert max(waits) < 2000


def test_waits_for_a_late_broker(embedded, caplog):
    # Something listens at the address once the first attempt has failed.
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    opened = []

    def listen():
        until(lambda: "Trying again for 600 s." in caplog.text)
        opened.append(socket.create_server(("127.0.0.1", port)))

    late = threading.Thread(target=listen)
    late.start()
    assert Connection(f"127.0.0.1:{port}", {"outage_seconds": 600}).open_with_retries(lambda: len(opened)) == 1
    late.join()
    opened[0].close()


def test_a_file_begins_at_its_first_row(tmp_path, call):
    rows = tmp_path / "rows.csv"
    rows.write_text("a,y\n1,0\n2,1\n")
    said = f"{rows} is read from its first row (earliest): to begin at latest is for streams with a URL"
    call("learn", rows, "--label", "y", "--from", "latest", status=1, says=said)
