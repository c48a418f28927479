"""A checkpoint in parts: whatever compaction has removed and strangers have written, the newest whole one is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm.files import container
from streamsvm.files.model_file import to_bytes
from streamsvm_kafka import model_topic
from streamsvm_kafka.model_topic import Assembler, messages_of, name_of


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(model_topic, "PART_BYTES", 4)
    monkeypatch.setattr(model_topic, "MOST_BYTES", 64)
    monkeypatch.setattr(model_topic, "MOST_PARTS", 16)


def assembled(log, name="a"):
    assembler = Assembler(name, check=lambda data: None)
    for offset, message in log:
        assembler.add(offset, *message)
    return assembler


def whole_of(name, log):
    """The newest whole checkpoint, found slowly: each one that was written as a run of parts, the last one counts."""
    own = [(offset, message) for offset, message in log if name_of(message[0]) == name]
    found = None
    for end in range(1, len(own) + 1):
        for begin in range(end):
            parts = {message[0]: message[1] for _, message in own[begin:end]}
            headers = {tuple(h for h in message[2] if h[0] != "part") for _, message in own[begin:end]}
            counts = {dict(message[2])["part"].partition(b"/")[2] for _, message in own[begin:end]}
            if len(headers) == len(counts) == 1 and len(parts) == int(min(counts)):
                ordered = sorted(parts, key=lambda key: int(key.partition(b"/")[2]))
                found = b"".join(parts[key] for key in ordered)
    return found


CHECKPOINTS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.binary(max_size=20)), min_size=1, max_size=6)


@given(CHECKPOINTS, st.integers(0, 3), st.data())
def test_the_newest_whole_checkpoint_is_found_behind_compaction(written, missing, data):
    messages = [message for rows, (name, value) in enumerate(written) for message in messages_of(name, rows, value)]
    log = list(enumerate(messages[: max(len(messages) - missing, 0)]))  # of the last one, parts have not come yet
    cleaned = data.draw(st.integers(0, len(log)))
    newest = {message.key: offset for offset, message in log[:cleaned]}
    log = [(offset, message) for offset, message in log if offset >= cleaned or newest[message.key] == offset]
    for name in ("a", "b"):
        found = assembled(log, name)
        assert (None if found.whole is None else found.whole.data) == whole_of(name, log)
        assert not found.complaint
        assert found.has_parts == any(name_of(message.key) == name for _, message in log)
    if not missing:
        name, value = written[-1]
        assert assembled(log, name).whole[:2] == (value, len(written) - 1)


def junk():
    good = next(messages_of("a", 5, b"abc"))
    others = {"rows": b"5", "part": b"0/1", "sha256": b"0" * 64}
    yield "no headers", good._replace(headers=[]), "no part"
    wrong = {"rows": (b"-1", b"9" * 30), "part": (b"1/1", b"0/0", b"0/17", b"0"), "sha256": (b"x", None)}
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        yield f"{name} {value}", good._replace(headers=list((others | {name: value}).items())), "no part"
    yield "another digest", good._replace(value=b"abd"), "SHA-256"
    yield "another index", good._replace(key=b"a/1"), "no part"
    yield "an index beyond all", good._replace(key=b"a/16"), ""
    yield "no index", good._replace(key=b"a"), ""
    yield "no key", good._replace(key=None), ""
    yield "not ASCII", good._replace(key=b"\xff/0"), ""
    yield "another name", good._replace(key=b"c/0"), ""


@pytest.mark.parametrize(("message", "complaint"), [pytest.param(*each[1:], id=each[0]) for each in junk()])
def test_what_is_no_checkpoint_is_passed_over(message, complaint):
    before = list(messages_of("a", 3, b"good"))
    found = assembled(enumerate([*before, message]))
    assert found.whole[:2] == (b"good", 3)
    assert complaint in found.complaint
    assert bool(complaint) == bool(found.complaint)
    assert assembled(enumerate([*before, message, *messages_of("a", 4, b"better")])).whole[:2] == (b"better", 4)


def test_memory_is_bounded():
    with pytest.raises(ValueError, match="65 bytes.*up to 64"):
        list(messages_of("a", 0, b"x" * 65))
    endless = [message._replace(value=b"x" * 40) for message in messages_of("a", 0, b"x" * 8)]
    found = assembled(enumerate(endless))
    assert found.whole is None
    assert "more than 64 bytes" in found.complaint
    assert not found.is_coming


def test_a_deleted_model_is_none():
    written = list(messages_of("a", 3, b"a good one"))
    deleted = [message._replace(value=None) for message in written]
    found = assembled(enumerate(written + deleted))
    assert (found.whole, found.has_parts, found.complaint) == (None, False, "")
    assert assembled(enumerate(written + deleted[:1])).has_parts


def test_bytes_that_are_no_file_are_passed_over(monkeypatch):
    monkeypatch.undo()
    good = to_bytes({"model": None}, {})
    for data in (b"", b"garbage", b"\xff" * 100, good[:-1]):
        assembler = Assembler("a")
        for offset, message in enumerate([*messages_of("a", 3, good), *messages_of("a", 4, data)]):
            assembler.add(offset, *message)
        assert assembler.whole.rows == 3
        assert "offset 1 is none: it" in assembler.complaint


def test_a_file_of_a_newer_version_is_one(monkeypatch):
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr(container, "VERSION", 9)
        newer = to_bytes({"model": None}, {})
    assembler = Assembler("a")
    for offset, message in enumerate(messages_of("a", 4, newer)):
        assembler.add(offset, *message)
    assert assembler.whole.data == newer
