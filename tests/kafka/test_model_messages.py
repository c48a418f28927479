"""Model topics: the newest checkpoint is found despite compaction and messages of other programs."""

import pytest

from refused import raises
from streamsvm.files import container
from streamsvm.files.model_file import serialize_parts
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm_kafka.model_topic import NewestCheckpoint, check_model_name

GOOD, BETTER = serialize_parts({"model": None}, {"rows": 1}), serialize_parts({"model": None}, {"rows": 2})


def newest_of(*messages):
    newest = NewestCheckpoint("a")
    for offset, message in enumerate(messages):
        newest.add_message(offset, *message)
    return newest


def test_the_newest_one_counts():
    newest = newest_of((b"a", GOOD), (b"b", BETTER), (b"a", BETTER), (b"b", GOOD))
    assert newest.data == BETTER
    assert not newest.skip_reason


@pytest.mark.parametrize("value", [b"", b"garbage", b"\xff" * 100, GOOD[:-1]])
def test_invalid_checkpoint_messages_are_skipped(value):
    newest = newest_of((b"a", GOOD), (b"a", value))
    assert newest.data == GOOD
    assert newest.skip_reason.startswith("the message at offset 1 is not a checkpoint: it")
    newest.add_message(2, b"a", BETTER)
    assert (newest.data, newest.skip_reason) == (BETTER, "")


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"c", b"a/0", b"a" * 250])
def test_other_keys_are_passed_over(key):
    newest = newest_of((b"a", GOOD), (key, b"garbage"), (key, None))
    assert (newest.data, newest.skip_reason) == (GOOD, "")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "a" * 250])
def test_names_that_a_model_cannot_have(name):
    raises(
        " is not a valid model name: use up to 249 letters", check_model_name, name, "kafka://host/models", error=CheckpointError
    )


def test_deleted_model_has_no_checkpoint():
    newest = newest_of((b"a", GOOD), (b"a", b"garbage"), (b"a", None))
    assert (newest.data, newest.skip_reason) == (None, "")


def test_a_file_of_a_newer_version_is_one(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(container, "VERSION", 9)
        newer = serialize_parts({"model": None}, {})
    assert newest_of((b"a", newer)).data == newer
