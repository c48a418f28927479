"""Names of sources and sinks that are unknown, or contradict the options."""

import bz2
import gzip

import pytest

from refused import raises
from streamsvm.stream import StreamError, open_sink, open_source


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("{folder}/none.csv", {}, "No such file"),
        ("{folder}", {"format": "csv"}, "a folder without a file of rows"),
        ("-", {}, r"for another name, give --format csv, jsonl, libsvm, parquet or arrow \(format=...\)"),
        ("kafka://localhost:9092/rows", {"format": "jsonl"}, "--format jsonl is of files, and the URL of a topic names a codec"),
        ("-", {"format": "parquet"}, "standard input"),
        ("amqp://host/queue", {}, "no installed package knows amqp"),
        ("rows.csv.zip", {}, "end in .zip are not read. Unpack it"),
        ("rows.xlsx", {}, "Save it as CSV"),
        ("rows.libsvm", {"columns": "a:drop"}, "columns does not apply to a libsvm"),
        (
            "kafka://localhost:9092/rows",
            {"columns": "a:drop"},
            r"columns does not apply to a stream with a URL. Put a .*TableEncoder",
        ),
    ],
)
def test_sources_that_cannot_be_opened(tmp_path, name, options, reason):
    raises(reason, open_source, name.format(folder=tmp_path), label="y", error=StreamError, **options)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("{folder}/out.jsonl.gz", "compressed"),
        ("{folder}/none/out.jsonl", "No such file"),
        ("amqp://host/queue", "no installed package knows amqp"),
    ],
)
def test_sinks_that_cannot_be_opened(tmp_path, name, reason):
    raises(reason, open_sink, name.format(folder=tmp_path), error=StreamError)


@pytest.mark.parametrize(("suffix", "packed"), [("GZ", gzip.compress), ("bz2", bz2.compress)])
def test_a_compressed_file_is_recognised_by_its_suffix(tmp_path, suffix, packed):
    (tmp_path / f"ROWS.CSV.{suffix}").write_bytes(packed(b"a,y\n1,0\n"))
    with open_source(tmp_path / f"ROWS.CSV.{suffix}", label="y") as source:
        assert [(row.x, row.y) for row in source] == [({"a": 1.0}, 0)]
