"""Options of clients: mistakes in them, and secrets, which no text shows."""

import pytest

from streamsvm.stream.endpoints import StreamError
from streamsvm_kafka import Secret, client_options

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


MISTAKES = [
    ({"group_id": "a"}, "group_id is no option of a Kafka connection: there are security_protocol"),
    ({"security_protocol": "TLS"}, "security_protocol must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, not 'TLS'"),
    ({"security_protocol": "SASL_SSL"}, r"needs sasl_mechanism: as an option, or as STREAMSVM_KAFKA_SASL"),
    ({"ssl_cafile": __file__}, "ssl_cafile has no effect with security_protocol=PLAINTEXT: set that to SSL, or SASL_SSL"),
    ({"sasl_mechanism": "PLAIN"}, "sasl_mechanism has no effect .* set that to SASL_SSL, or SASL_PLAINTEXT"),
    ({"security_protocol": "SSL", "ssl_keyfile": __file__}, "give ssl_certfile, too"),
    ({"ssl_cafile": "/no/such/file"}, "ssl_cafile cannot be read: /no/such/file: No such file"),
    ({"ssl_cafile": 3}, "ssl_cafile must be the path of a file"),
    ({"ssl_check_hostname": "maybe"}, "ssl_check_hostname must be true or false, not 'maybe'"),
    ({"sasl_plain_password": ["s3cret"]}, "sasl_plain_password must be a text"),
    ({"sasl_plain_username": ""}, "sasl_plain_username must be a text"),
    ({"outage_seconds": "soon"}, "outage_seconds must be a number of seconds from 0 to 604,800, not 'soon'"),
    ({"outage_seconds": float("nan")}, "outage_seconds must be"),
    ({"api_version": "new"}, "api_version must be a version such as 2.3, not 'new'"),
    ({"schema_registry_username": "alice"}, "schema_registry_username needs schema_registry_password"),
    ({"schema_registry_password": "s3cret"}, "schema_registry_password has no effect without schema_registry_url"),
    ({"schema_registry_cafile": "/nowhere.pem"}, "cannot be read"),
]


@pytest.mark.parametrize(("given", "reason"), MISTAKES)
def test_wrong_options(given, reason):
    with pytest.raises(StreamError, match=reason) as error:
        client_options(given, {})
    assert "s3cret" not in str(error.value)


def test_a_wrong_variable_is_named():
    with pytest.raises(StreamError, match="STREAMSVM_KAFKA_SASL_PASSWORD is no option"):
        client_options({}, {"STREAMSVM_KAFKA_SASL_PASSWORD": "s3cret", "HOME": "/"})


def test_options_that_are_given_win():
    options = client_options({"sasl_plain_username": "bob"}, VARIABLES)
    assert options == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "bob",
        "sasl_plain_password": "s3cret",
    }
    assert type(options["sasl_plain_password"]) is Secret
