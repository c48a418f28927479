"""Messages in columns, beside a plain list of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamsvm_kafka.clients.messages import NO_MESSAGES, Backlog, Messages, TopicMessage, concatenate_messages

blobs = st.none() | st.binary(max_size=6)
headers = st.lists(st.tuples(st.text(max_size=2), blobs), max_size=2)
single = st.tuples(st.integers(-1, 2**45), blobs, blobs, headers)


def columns(partition, first, drawn, as_bytes):
    """Messages of a partition in columns, and the same one by one."""
    messages = [TopicMessage(partition, first + i, *message) for i, message in enumerate(drawn)]
    keys = [message.key for message in messages]
    named = [message.headers for message in messages]
    values = [message.value for message in messages]
    if as_bytes:  # behind each other, with something around
        sizes = np.array([-1 if value is None else len(value) for value in values], np.int64)
        begins = 3 + np.concatenate([[0], np.maximum(sizes, 0).cumsum()[:-1]])
        values = (b"\n{1" + b"".join(value or b"" for value in values) + b"}", begins, sizes)
    actual = Messages(
        partition,
        np.array([message.offset for message in messages], np.int64),
        np.array([message.timestamp for message in messages], np.int64),
        keys if any(key is not None for key in keys) else None,
        named if any(named) else None,
        values,
    )
    return actual, messages


parts = st.tuples(st.integers(0, 2), st.integers(0, 99), st.lists(single, min_size=1, max_size=5), st.booleans())
message_pairs = parts.map(lambda drawn: columns(*drawn))


@given(message_pairs, st.data())
def test_columns_equal_single_messages(pair, data):
    actual, expected = pair
    assert [*actual] == expected
    assert actual.values == [message.value for message in expected]
    assert actual.value_sizes.tolist() == [-1 if message.value is None else len(message.value) for message in expected]
    assert actual.partition_list == [message.partition for message in expected]
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(expected))] * 2)))
    assert [*actual[first:stop]] == expected[first:stop]
    which = data.draw(st.lists(st.booleans(), min_size=len(expected), max_size=len(expected)))
    assert [*actual.select_messages(np.array(which))] == [
        message for message, is_wanted in zip(expected, which, strict=True) if is_wanted
    ]
    order = data.draw(st.permutations(range(len(expected))))
    assert [*actual.select_messages(np.array(order))] == [expected[i] for i in order]
    if all(message.value is not None for message in expected):
        text, begins, ends = actual.joined_values
        assert [text[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)] == actual.values


@given(st.lists(message_pairs, min_size=1, max_size=4))
def test_parts_are_concatenated_in_order(pairs):
    actual = concatenate_messages([actual for actual, _ in pairs])
    assert [*actual] == [message for _, expected in pairs for message in expected]
    assert [*actual[1:]] == [message for _, expected in pairs for message in expected][1:]


def test_sparse_values_are_copied_out_of_large_buffers():
    data, one, offsets = bytes(10_000), np.array([7]), np.array([1])
    part = Messages(0, offsets, offsets, None, None, (data, one, one))
    text, *_ = concatenate_messages([part] * 100).joined_values
    assert text == bytes(700)


def size_of(message):
    return len(message.value) + len(message.key or b"") + sum(len(name) + len(value or b"") for name, value in message.headers)


@given(st.lists(message_pairs, max_size=4), st.lists(st.integers(1, 7), max_size=9))
def test_backlog_returns_messages_in_order(pairs, takes):
    backlog, expected = Backlog(), []
    for actual, messages in pairs:
        backlog.extend(actual.select_messages(actual.value_sizes >= 0))
        expected += [message for message in messages if message.value is not None]
    backlog.extend(NO_MESSAGES)
    for n in takes:
        assert (len(backlog), backlog.total_bytes) == (len(expected), sum(map(size_of, expected)))
        if not expected:
            break
        assert (backlog.first_time, backlog.last_offset) == (expected[0].timestamp, expected[-1].offset)
        assert [*backlog.pop_first(n)] == expected[:n]
        expected = expected[n:]
    backlog.clear()
    assert (len(backlog), backlog.total_bytes) == (0, 0)
