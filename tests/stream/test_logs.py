"""Log records as JSON, without secrets."""

import io
import json
import logging

import pytest

from streamsvm.stream.logs import RedactingFilter, event, log_as_json, redacting_filter

SECRET = 'an "open" secret with ünicode'


@pytest.mark.parametrize(
    "tell",
    [
        lambda logger: logger.warning("the password is %s", SECRET),
        lambda logger: logger.debug("%r", {"sasl_plain_password": SECRET}),
        lambda logger: logger.info("%r", SECRET.encode()),
        lambda logger: logger.info("sent %s", json.dumps({"password": SECRET})),
        lambda logger: logger.info("a field", extra=event("told", options={"password": SECRET})),
        lambda logger: logger.error("it failed", exc_info=ValueError(f"{SECRET} is wrong")),
    ],
)
@pytest.mark.parametrize("name", ["streamsvm", "streamsvm_kafka.sink", "kafka.a.logger.that.did.not.exist"])
def test_no_line_has_a_secret(tell, name, monkeypatch):
    monkeypatch.setattr(redacting_filter, "_secrets", set())
    stream = io.StringIO()
    with log_as_json(stream, "debug"):
        redacting_filter.add(SECRET)
        tell(logging.getLogger(name))
        monkeypatch.setattr(redacting_filter, "_secrets", set())
        tell(logging.getLogger(name))
    hidden, *shown = map(json.loads, stream.getvalue().splitlines())
    assert hidden["message"] == "(not shown, as it holds a secret)"
    assert list(hidden) == ["time", "level", "logger", "message"]
    assert all("secret" in str(line) for line in shown)  # the record itself was written


def test_wrong_arguments_are_filtered_and_an_empty_secret_is_ignored():
    redacting = RedactingFilter()
    redacting.add("")
    redacting.add(SECRET)
    record, harmless = (logging.makeLogRecord({"msg": "%s and %s", "args": (word,)}) for word in (SECRET, "nothing"))
    plain = logging.makeLogRecord({"msg": "rows"})
    assert all(map(redacting.filter, (record, harmless, plain)))
    assert record.getMessage() == "(not shown, as it holds a secret)"
    assert plain.getMessage() == "rows"
