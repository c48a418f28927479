"""Options of clients: mistakes in them, and secrets, which no text shows."""

from contextlib import ExitStack

import pytest

from refused import raises
from streamsvm.stream.endpoints import StreamError
from streamsvm_kafka import KafkaSink, SchemaRegistry, Secret, client_options, topics
from streamsvm_kafka.clients import open_consumer, open_producer
from streamsvm_kafka.connection import CLIENT_LIBRARIES, Connection

VARIABLES = {
    "STREAMSVM_KAFKA_SECURITY_PROTOCOL": "sasl_ssl",
    "STREAMSVM_KAFKA_SASL_MECHANISM": "plain",
    "STREAMSVM_KAFKA_SASL_PLAIN_USERNAME": "alice",
    "STREAMSVM_KAFKA_SASL_PLAIN_PASSWORD": "s3cret",
}


def test_a_secret_is_not_shown():
    secret = Secret(client_options({}, VARIABLES)["sasl_plain_password"])
    assert secret == "s3cret"
    assert secret.encode() == b"s3cret"
    assert "\0".join(["a", secret]) == "a\0s3cret"
    assert "s3cret" not in f"{secret}{secret!r}{secret!s}{secret:>9}{[secret]}%s" % secret + format(secret)


CONFLUENT = {"client": "confluent-kafka"}
MISTAKES = [
    ({"sasl_plain_pasword": "s3cret"}, "sasl_plain_pasword is unknown. Perhaps 'sasl_plain_password'"),
    ({"zzz": "s3cret"}, "zzz is unknown, see the options of KafkaConsumer"),
    ({"security_protocol": "sasl_ssl"}, "security_protocol must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
    ({"security_protocol": "SSL", "ssl_cafile": "/no/such/file"}, "TLS cannot be set up with ssl_cafile=/no/such/file .*No such"),
    (CONFLUENT | {"sasl_pasword": "s3cret"}, 'No such configuration property: "sasl.pasword".*CONFIGURATION.md'),
    (CONFLUENT | {"ssl_cafile": "a.pem"}, 'No such configuration property: "ssl.cafile".*such as ssl_ca_location'),
    (CONFLUENT | {"security.protocol": "TLS"}, 'Invalid value "TLS" for configuration property "security.protocol"'),
    (CONFLUENT | {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "sasl.username and sasl.password must be set"),
    (CONFLUENT | {"group_id": "a"}, "group.id is set by streamsvm"),
    ({"client": "auto"}, "client must be kafka-python or confluent-kafka, not 'auto'"),
    ({"outage_seconds": "soon"}, "outage_seconds must be a number from 0 to 604,800, not 'soon'"),
    ({"outage_seconds": float("nan")}, "outage_seconds must be"),
]


@pytest.mark.parametrize(("options", "reason"), MISTAKES)
def test_wrong_options(options, reason, embedded):
    with pytest.raises(StreamError, match=reason) as error, topics.connect_admin(Connection(embedded.bootstrap, options)):
        pass
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("library", CLIENT_LIBRARIES)
def test_options_that_are_set_by_streamsvm(library, embedded):
    options = {"client": library, "acks": 1} | (embedded.client if library == "kafka-python" else {})
    raises("acks is set by streamsvm", KafkaSink, embedded.bootstrap, "out", client=options, error=StreamError)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"schema_registry_password": "s3cret"}, "no address of the schema registry: set .* schema_registry_url"),
        ({"schema_registry_user": "alice"}, "schema_registry_user is unknown"),
    ],
)
def test_wrong_options_of_a_registry(options, reason):
    raises(reason, SchemaRegistry.from_options, client_options(options, {}), error=StreamError)


def test_options_of_the_environment_have_the_types_of_their_defaults(embedded):
    options = {"linger_ms": "7", "metrics_enabled": "false", "api_version": "2.3", "fetch_max_wait_ms": "11", "client_rack": "3"}
    connection = Connection(
        embedded.bootstrap, client_options({}, {f"STREAMSVM_KAFKA_{n.upper()}": v for n, v in options.items()})
    )
    with ExitStack() as stack:
        producer = open_producer(connection, 30.0)
        stack.callback(producer.close, 1.0)
        assert [producer._producer.config[name] for name in ("linger_ms", "metrics_enabled")] == [7, False]
        consumer = open_consumer(connection, "rows", None, max_fetches=1, has_tables=False)
        stack.callback(consumer.close, 1.0)
        assert [consumer._consumer.config[name] for name in ("fetch_max_wait_ms", "client_rack")] == [11, "3"]


def test_given_options_override_environment():
    options = client_options({"sasl_plain_username": "bob"}, VARIABLES)
    assert options == {
        "security_protocol": "sasl_ssl",
        "sasl_mechanism": "plain",
        "sasl_plain_username": "bob",
        "sasl_plain_password": "s3cret",
    }
    assert type(options["sasl_plain_password"]) is Secret
