"""Batches of records that are read at once, against kafka-python's own parser: the same records, or the same error."""

import struct
from contextlib import closing
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.codec import gzip_encode, has_lz4, has_snappy, has_zstd
from kafka.consumer.fetcher import Fetcher, IsolationLevel
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import calc_crc32c

from patience import until
from streamsvm_kafka import JSONCodec, KafkaSource
from streamsvm_kafka.clients import open_consumer
from streamsvm_kafka.clients.kafka_python.record_batches import CompiledBatches, make_partition_records, use_compiled_parsing
from streamsvm_kafka.clients.messages import Messages, TopicMessage
from streamsvm_kafka.connection import Connection

KEY = TopicPartition("rows", 3)
OWN = Fetcher.PartitionRecords
OURS = make_partition_records(OWN)
GZIP = 1
CODECS = [0, GZIP, *(number for number, has in ((2, has_snappy), (3, has_lz4), (4, has_zstd)) if has())]
#: Where parts of the header are: its attributes, and all that the checksum is of.
ATTRIBUTES, HEADER = 21, 61


def with_crc(batch):
    struct.pack_into(">I", batch, 17, calc_crc32c(memoryview(batch)[ATTRIBUTES:]))
    return bytes(batch)


def batch_of(
    records, base=0, codec=0, log_time=False, producer=-1, transactional=False, control=False, changes=(), epoch=7, crc=True
):
    """A batch in format 2. Each of the ``changes`` is another byte in its header, or in its records before compression."""
    builder = DefaultRecordBatchBuilder(2, codec, transactional, producer, 0 if producer >= 0 else -1, 0, 1 << 20)
    for i, (gap, time, key, value, headers) in enumerate(records):
        builder.append(2 * i + gap, time, key, value, headers)
    gzip_by_hand = codec == GZIP and changes
    if gzip_by_hand:
        builder._compression_type = 0
    batch = bytearray(builder.build())
    struct.pack_into(">qii", batch, 0, base, len(batch) - 12, epoch)
    for at, byte in changes:
        at = ATTRIBUTES + at % (len(batch) - ATTRIBUTES)
        batch[at] = byte
    if gzip_by_hand:
        batch[ATTRIBUTES + 1] |= GZIP
        batch[HEADER:] = gzip_encode(bytes(batch[HEADER:]))
        struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[ATTRIBUTES + 1] |= 8 * log_time | 32 * control
    return with_crc(batch) if crc else bytes(batch)


def control_of(base, producer, commit):
    """The batch that ends a transaction."""
    return batch_of([(0, 5, struct.pack(">hh", 0, commit), b"", [])], base, producer=producer, transactional=True, control=True)


def old_batch_of(records, base, magic):
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    for i, (_, time, key, value, _headers) in enumerate(records):
        builder.append(base + i, max(time, 0), key, value)
    return bytes(builder.build())


def one_by_one(records):
    """Records, or batches of them, as messages."""
    actual = []
    for one in records:
        if type(one.value) is Messages:
            actual += one.value
        else:
            actual.append(TopicMessage(one.partition, one.offset, one.timestamp, one.key, one.value, one.headers))
    return actual


def read(kind, data, at=0, aborted=(), committed=True, check_crcs=True):
    """Return the results, errors and positions of all calls of a fetch."""
    seen, metrics, drained = [], [], []
    fetch = kind(
        at,
        KEY,
        MemoryRecords(data),
        check_crcs=check_crcs,
        isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
        aborted_transactions=[SimpleNamespace(producer_id=producer, first_offset=first) for producer, first in aborted],
        metric_aggregator=SimpleNamespace(record=lambda *facts: metrics.append(facts)),
        on_drain=drained.append,
    )
    while fetch:
        try:
            records = one_by_one(fetch.take(None))
        except Exception as error:  # noqa: BLE001 - any error of kafka-python
            seen.append((type(error), str(error), fetch.next_fetch_offset))
            break
        types = [(type(one), type(one.key), type(one.value), type(one.headers)) for one in records]
        seen.append((records, types, fetch.next_fetch_offset, fetch.leader_epoch))
    return seen, metrics, len(drained), fetch.next_fetch_offset, fetch.leader_epoch


def check(data, **settings):
    expected, actual = read(OWN, data, **settings), read(OURS, data, **settings)
    *_, last = expected[0] or [()]
    if len(last) == 3 and "UnicodeDecodeError" in last[1]:  # where ours reads on, which has a test of its own
        before = taken(expected)
        assert taken(actual)[: len(before)] == before
        return
    assert actual == expected


def taken(of):
    """All records of what `read` has seen."""
    return [record for call in of[0] if isinstance(call[0], list) for record in call[0]]


def is_plain(batch):
    """Whether a batch is read at once."""
    (first, *more) = iter(CompiledBatches(KEY, MemoryRecords(batch)).next_batch())
    return not more and type(first.value) is Messages


blobs = st.none() | st.binary(max_size=40)
times = st.integers(-1, 2**42) | st.integers(-(2**62), 2**62)
records = st.tuples(st.integers(0, 1), times, blobs, blobs, st.just([]))
headers = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=9)), max_size=2)
with_headers = st.tuples(st.integers(0, 1), times, blobs, blobs, headers)
record_lists = st.lists(records, min_size=1, max_size=8)
bases = st.integers(0, 2**40) | st.integers(-(2**63), 2**63 - 1)
options = st.fixed_dictionaries({"codec": st.sampled_from(CODECS), "log_time": st.booleans(), "base": bases})
#: Bytes that are others: nearly all bytes of a short batch, and those that mean something in it.
changes = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 255) | st.sampled_from([0, 1, 2, 3, 127, 128, 255])), min_size=1, max_size=3
)


@given(record_lists, options)
def test_plain_batches(written, settings):
    batch = batch_of(written, **settings)
    assert is_plain(batch) or settings["base"] + 2 * len(written) > 2**63
    check(batch, at=settings["base"])


@given(
    st.lists(st.tuples(record_lists | st.lists(with_headers, min_size=1, max_size=4), options), min_size=1, max_size=4), st.data()
)
def test_fetches(batches, data):
    base, parts = 0, []
    for written, settings in batches:
        parts.append(batch_of(written, **settings | {"base": base}))
        base += 2 * len(written) + data.draw(st.integers(0, 2))
    cut = data.draw(st.integers(0, 30))
    joined_parts = b"".join(parts)
    settings = {"at": data.draw(st.integers(0, base))}
    # Of a batch that is read in parts, the bytes are counted when its first record is.
    check(joined_parts[: len(joined_parts) - cut], **settings)


@given(st.lists(with_headers, min_size=1, max_size=5), options, changes, record_lists, st.booleans())
def test_corrupt_bytes(written, settings, changes, before, crc):
    first = batch_of(before, base=settings["base"])
    check(first + batch_of(written, **settings, changes=changes, crc=crc) + first, at=settings["base"])


@given(record_lists, options, changes)
def test_corrupt_bytes_of_records(written, settings, changes):
    changes = [(at + HEADER - ATTRIBUTES, byte) for at, byte in changes]
    check(batch_of(written, **settings, changes=changes), at=settings["base"])


def test_batch_with_decreasing_offsets():  # its first record is before the fetch's start offset
    first, back = batch_of([(0, 1, None, b"a", [])]), (HEADER + 3 - ATTRIBUTES, 1)  # -1 in the place of 0
    batch = batch_of([(0, 1, None, b"b", [])] * 2, changes=[back])
    assert is_plain(batch)
    check(first + batch)
    assert [record.offset for record in taken(read(OURS, first + batch))] == [0, -1, 2]
    check(batch)


def test_a_wrong_checksum():
    batch = bytearray(batch_of([(0, 1, b"k", b"value", [])]))
    batch[-2] ^= 1
    check(bytes(batch))
    assert "failed crc check" in read(OURS, bytes(batch))[0][0][1]
    check(bytes(batch), check_crcs=False)


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 3, 2**31 - 1])
def test_a_count_that_is_wrong(count):
    batch = bytearray(batch_of([(0, 1, None, b"value", [])] * 2))
    struct.pack_into(">i", batch, HEADER - 4, count)
    check(with_crc(batch))


def test_an_empty_batch():  # as compaction leaves it
    batch = bytearray(batch_of([], base=40))
    struct.pack_into(">i", batch, ATTRIBUTES + 2, 5)
    check(batch_of([(0, 1, None, b"a", [])]) + with_crc(batch))
    check(with_crc(batch), at=40)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_transactions(codec, committed):
    def batch(base, producer, transactional=True):
        written = [(0, base, b"%d" % i, b"%d" % producer, []) for i in range(3)]
        return batch_of(written, base, codec, producer=producer, transactional=transactional)

    parts = [batch(0, 1), batch(10, 2), batch(20, 3, transactional=False), control_of(30, 1, commit=False), batch(40, 1)]
    parts += [control_of(50, 2, commit=True), control_of(60, 1, commit=True), batch(70, 2), control_of(80, 2, commit=False)]
    check(b"".join(parts), aborted=[(2, 70), (1, 0)], committed=committed)
    actual = read(OURS, b"".join(parts), aborted=[(2, 70), (1, 0)], committed=committed)
    assert [one.offset // 10 for one in taken(actual)[::3]] == ([1, 2, 4] if committed else [0, 1, 2, 4, 7])


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats(magic):
    written = [(0, 5, b"k", b"v", []), (0, 6, None, b"w", [])]
    check(batch_of(written) + old_batch_of(written, 10, magic) + batch_of(written, 20))


def test_unknown_batch_format():  # which kafka-python reads as the second, but for the epoch
    batch = bytearray(batch_of([(0, 5, b"k", b"v", [])], 2, epoch=9))
    batch[16] = 3
    check(batch_of([(0, 5, b"k", b"v", [])]) + bytes(batch))


def test_batches_with_headers_are_not_plain():
    assert is_plain(batch_of([(0, 1, None, None, [])]))
    assert not is_plain(batch_of([(0, 1, None, None, []), (0, 1, None, None, [("a", None)])]))


def test_header_names_that_are_not_utf8():
    named = batch_of([(0, 1, b"k", b"v", [("é", b"1"), ("b", None)])] * 2, base=4)
    broken = with_crc(bytearray(named.replace("é".encode(), b"\xff\xfe", 1)))
    ((records, *_),), *_ = read(OURS, batch_of([(0, 1, None, b"a", [])]) + broken)
    assert [one.headers for one in records] == [[], [("??", b"1"), ("b", None)], [("é", b"1"), ("b", None)]]
    assert "UnicodeDecodeError" in read(OWN, broken)[0][0][1]  # that of others is left alone


@pytest.mark.parametrize(
    "of", [{}, {"PartitionRecords": None}, {"PartitionRecords": type("Other", (), {})}, {"PartitionRecords": dict}]
)
def test_other_versions_of_kafka_python_are_unchanged(of):
    consumer = SimpleNamespace(_fetcher=SimpleNamespace(**of))
    use_compiled_parsing(consumer)
    assert vars(consumer._fetcher) == of
    use_compiled_parsing(SimpleNamespace())


def test_version_with_different_results_is_unchanged():
    class Renamed(OWN):
        def _unpack_records(self, *arguments):
            return (one._replace(value=bytes(one.value or b"")) for one in super()._unpack_records(*arguments))

    fetcher = SimpleNamespace(PartitionRecords=Renamed)
    use_compiled_parsing(SimpleNamespace(_fetcher=fetcher))
    assert fetcher.PartitionRecords is Renamed


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_a_topic(embedded, codec):
    with closing(KafkaProducer(bootstrap_servers=embedded.bootstrap, compression_type=codec, **embedded.client)) as producer:
        for i in range(900):
            headers = [("a", b"%d" % i)] if 300 <= i < 310 else []
            value = None if i % 100 == 52 else b'{"a": %d, "y": %d}' % (i, i % 2)
            key = b"%d" % i if i % 4 in (0, 1) else None
            producer.send("rows", value, key, headers, timestamp_ms=10**12 + i, partition=i % 2)
        producer.flush()
    keys = [TopicPartition("rows", partition) for partition in range(2)]

    def taken_by(poll, position):
        def all_came():
            for key, messages in poll().items():
                actual[key] += messages
            return sum(map(len, actual.values())) == 900

        actual = {0: [], 1: []}
        until(all_came)
        return actual, [position(partition) for partition in range(2)]

    ours = open_consumer(Connection(embedded.bootstrap, embedded.client), "rows", None, max_fetches=4, has_tables=False)
    assert ours._consumer._fetcher.PartitionRecords is OURS
    with closing(KafkaConsumer(bootstrap_servers=embedded.bootstrap, **embedded.client)) as theirs:
        assert theirs._fetcher.PartitionRecords is OWN
        theirs.assign(keys)
        theirs.seek_to_beginning()
        expected = taken_by(
            lambda: {key.partition: one_by_one(records) for key, records in theirs.poll(200).items()},
            lambda partition: theirs.position(keys[partition]),
        )
    ours.assign({0: 0, 1: 0})
    assert taken_by(lambda: ours.poll(0.2), ours.position) == expected
    ours.close(1.0)
    source = KafkaSource(embedded.bootstrap, "rows", JSONCodec("y"), stop_at_end=True, client=embedded.client)
    with closing(source):
        assert sorted(row.x["a"] for row in source) == [i for i in range(900) if i % 100 != 52]
