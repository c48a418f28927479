"""Messages with many rows for tests: encoded by other libraries, compared, and damaged."""

from __future__ import annotations

import io
import random
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamsvm.stream.tables.chunk import Table

float32s = st.floats(width=32, allow_nan=True)
tables = hnp.arrays("<f4", hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6), elements=float32s)


def stream(*batches: Any, schema: Any = None, **options: Any) -> bytes:
    """Return record batches as the bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema or batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def npy(array: np.ndarray, **options: Any) -> bytes:
    """Return an array as the bytes that `numpy.save` writes."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def float32_table(names: tuple[Any, ...], X: Any, y: list[Any] | None = None) -> Table:
    """A table of the columns of float32 [rows, columns]."""
    return Table(names, list(np.asarray(X, np.float32).T), y)


def same(one: Table, other: Table) -> bool:
    """Return whether tables are equal; NaN equals NaN."""
    pairs = zip(one.columns, other.columns, strict=True)
    are_same = (a == b if isinstance(a, list) else np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    return (one.names, one.y) == (other.names, other.y) and all(are_same)


def mutated(value: bytes, draw: random.Random) -> bytes:
    """Return a message with a few bytes, numbers or lengths changed."""
    value = bytearray(value)
    for _ in range(draw.choice([1, 1, 2, 4])):
        at, number = draw.randrange(len(value) - 8), draw.choice([0, 1, -1, 7, 64, 2**30, 2**31 - 1])
        kind = draw.randrange(5)
        if kind == 0:
            value[at] = draw.randrange(256)
        elif kind == 1:
            value[at & ~3 : (at & ~3) + 4] = struct.pack("<i", number)
        elif kind == 2:
            value[at & ~7 : (at & ~7) + 8] = struct.pack("<q", number << draw.choice([0, 20, 32]))
        elif kind == 3:
            value[at:at] = value[draw.randrange(len(value)) :][:16]
        else:
            del value[max(at, 16) :]
        if len(value) < 32:
            break
    return bytes(value)


def hostile_seeds() -> tuple[list[bytes], list[bytes]]:
    """Arrow streams and arrays to be mutated: several types, compressed, with a dictionary."""
    columns = {
        "a": pa.array([0.5, None, 2.0] * 8, pa.float32()),
        "b": pa.array([1, None, 3] * 8),
        "c": pa.array([True, None] * 12),
    }
    columns |= {
        "d": pa.array([Decimal("1.5")] * 24),
        "e": pa.nulls(24),
        "f": pa.array(["u", None, "w"] * 8),
        "y": pa.array(["x", "y", None] * 8),
    }
    batch = pa.record_batch(columns)
    coded = pa.record_batch(columns | {"y": columns["y"].dictionary_encode()})
    arrays = [npy(np.arange(80.0).reshape(20, 4)), npy(np.asfortranarray(np.arange(80, dtype=">i2").reshape(20, 4)))]
    streams = [stream(batch, batch), stream(coded), stream(batch, compression="zstd"), stream(coded, compression="lz4")]
    return streams, arrays
