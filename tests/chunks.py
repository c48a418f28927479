"""Writes rows in every format, reads them in chunks, and checks that the columns of chunks equal their single rows."""

import csv
import gzip
import io
import itertools
import json
import math
import random

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from row_tables import float32_table
from streamsvm.stream import BadRow, Chunk, IterableSource, Row, Source, WeightedLabel, open_source
from streamsvm.stream.sources import LinesChunk

#: Sources that must return the same rows: file formats by their extensions, and iterables.
TEXTS = ("csv", "csv.gz", "jsonl", "jsonl.gz", "libsvm", "libsvm.gz")
TABLES = ("parquet", "arrow")
SOURCES = (*TEXTS, *TABLES, "iterable")


class InChunks(Source):
    """A source that returns chunks of random sizes, of single rows or of a table, with an empty chunk before each."""

    def __init__(self, rows, as_table=False, seed=0, kind=Chunk):
        self.name, self.all, self.as_table, self.kind = "chunks", [Row(*row) for row in rows], as_table, kind
        self.done, self.random, self.silent = 0, random.Random(seed), False

    @property
    def position(self):
        return {"rows": self.done}

    def seek(self, position):
        self.done = position["rows"]

    def read(self, most):
        if self.done >= len(self.all):
            return None
        self.silent = not self.silent
        first, n = self.done, 0 if self.silent else self.random.randint(1, most)
        rows = self.all[first : first + n]
        self.done += len(rows)
        content = table_of(rows) if self.as_table else rows
        return self.kind(content, lambda i: f"{self.name}, row {first + i + 1:,}", passthrough_names=self.passthrough_names)


def text_of(rows, kind):
    """Format rows, dicts with equal columns, as text; None is an empty cell. LIBSVM text has numbers and the label y."""
    if kind == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    if kind == "csv":
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([list(rows[0]), *(row.values() for row in rows)])
        return lines.getvalue()
    names = [name for name in rows[0] if name != "y"]
    pairs = ([f"{i}:{row[name]}" for i, name in enumerate(names, 1) if row[name] is not None] for row in rows)
    return "".join(" ".join([str(row["y"]), *each]) + "\n" for row, each in zip(rows, pairs, strict=True))


def write_text(path, text):
    """Write text or bytes to a file, compressed if its extension says it, and return the path."""
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def write_rows(path, rows, at_once=2):
    """Write rows, dicts with equal columns, in the format of the file's extension, and return the path."""
    kind = path.name.split(".")[1]
    if kind not in TABLES:
        return write_text(path, text_of(rows, kind))
    table = pa.Table.from_pylist(rows)
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=at_once)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=at_once)
    return path


def source_of(folder, kind, rows, **reading):
    """Return a source of one of the kinds in `SOURCES` for rows, dicts with equal columns and the label y."""
    if kind == "iterable":
        return IterableSource([({name: value for name, value in row.items() if name != "y"}, row["y"]) for row in rows])
    return open_source(str(write_rows(folder / f"rows.{kind}", rows)), label="y", **reading)


def chunks_of(source, most=1000):
    """Yield the chunks of a source that have rows."""
    while (chunk := source.read(most)) is not None:
        if len(chunk):
            yield chunk


def table_of(rows):
    """Return rows as a table of float32 columns."""
    names = list(dict.fromkeys(name for row in rows for name in row.x))
    X = np.array([[row.x.get(name, math.nan) for name in names] for row in rows]).reshape(len(rows), len(names))
    return float32_table(tuple(names), X, [row.y for row in rows])


def check_table(chunk, known=()):
    """Check that the table of a chunk equals its rows, except for unparsed rows, and return it; None if it has no table."""
    if (table := chunk.table(known)) is None:
        return None
    assert len(table) == len(chunk) or not table.columns
    assert list(table.unparsed_rows) == sorted(set(table.unparsed_rows))
    for i in range(len(chunk)):
        if i not in table.unparsed_rows:
            row = chunk.row(i)
            assert not isinstance(row, BadRow), (row, table.row(i))
            blank = [name for name, value in row[0].items() if value is None or value != value]
            assert not blank or i in table.rows_with_nulls
            x = {name: value for name, value in row[0].items() if name not in blank}
            assert exact(table.row(i)) == exact(Row(x, row[1])), (table.row(i), row)
    return table


def check_chunks(opened, most, known=()):
    """Check that the chunks of a text source equal its single rows, and return the number of rows in tables."""
    with opened() as one, opened() as source:
        is_row = getattr(one, "is_row", one._has_row)
        one._lines_chunk = lambda lines: LinesChunk(one, list(itertools.takewhile(is_row, lines)), one._line + 1)
        singles, checked = chunks_of(one, 1), 0
        for chunk in chunks_of(source, most):
            assert len(chunk) <= most
            for i in range(len(chunk)):
                single = next(singles)
                rows = chunk.row(i), single.row(0)
                assert rows[0] == rows[1] if isinstance(rows[1], BadRow) else exact(rows[0]) == exact(rows[1]), rows
                assert (chunk.place(i), chunk.passthrough_columns(i, i + 1)) == (
                    single.place(0),
                    single.passthrough_columns(0, 1),
                )
                assert chunk.raw(i) == single.raw(0)
            if (table := check_table(chunk, known)) is not None:
                checked += len(chunk) - len(table.unparsed_rows)
            kept = zip(*(chunk.passthrough_columns(i, i + 1) for i in range(len(chunk))), strict=True)
            assert chunk.passthrough_columns(0, len(chunk)) == [[value for (value,) in column] for column in kept]
            assert source.position == one.position
        assert next(singles, None) is None
        assert source.position == one.position
    return checked


def exact(row):
    """Return a row in a form that compares types and signs of zero; an integer equals the float of the same value."""
    x, y = row
    y = y.y if type(y) is WeightedLabel and y.w == 1.0 else y
    return {name: value.hex() if type(value) is float else _as_float(value) for name, value in x.items()}, (type(y), repr(y))


def _as_float(value):
    return float(value).hex() if type(value) is int and abs(value) <= 2**1023 else (type(value), repr(value))
