"""Rows on their way through a cascade, with what identifies them, as arrays and as Arrow batches; and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamsvm_spark.columns import RowsError

#: A row, or facts alone: text of JSON. As a schema of Spark, and as one of Arrow.
SCHEMA = "part int, row long, x binary, y boolean, w double, alpha double, facts string"
_SCHEMA = pa.schema(
    [
        ("part", pa.int32()),
        ("row", pa.int64()),
        ("x", pa.binary()),
        ("y", pa.bool_()),
        ("w", pa.float64()),
        ("alpha", pa.float64()),
        ("facts", pa.string()),
    ]
)
_BATCH = 2**26  # bytes of features in a batch


class Candidates(NamedTuple):
    """n rows. Those of a partition have numbers in the order in which it gives them."""

    part: np.ndarray
    """The number of the partition, int32 [n]."""
    row: np.ndarray
    """The number in it, int64 [n]."""
    X: np.ndarray
    """float32 [n, features]."""
    y: np.ndarray
    """bool [n]: whether the label is 1."""
    w: np.ndarray
    """float64 [n]: weights, above 0."""
    alpha: np.ndarray
    """float64 [n]: dual coefficients, from 0 to C w."""

    @classmethod
    def of(cls, several: Iterable[Candidates]) -> Candidates:
        """Return the rows of several, in the order of their partitions and numbers."""
        filled = [some for some in several if len(some.row)]
        if not filled:
            return cls(*(np.empty(shape, kind) for shape, kind in zip(_NONE, _KINDS, strict=True)))
        if (widths := {some.X.shape[1] for some in filled}) != {filled[0].X.shape[1]}:
            raise RowsError(f"vectors are of {min(widths)} and of {max(widths)} features: all must be of one length")
        united = cls(*map(np.concatenate, zip(*filled, strict=True)))
        return united.take(np.lexsort((united.row, united.part)))

    @property
    def signs(self) -> np.ndarray:
        """The labels as 1 and -1, float64 [n]."""
        return np.where(self.y, 1.0, -1.0)

    def take(self, which: np.ndarray) -> Candidates:
        """Return some of the rows, by their numbers or by a mask."""
        return Candidates(*(array[which] for array in self))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches."""
        size = max(_BATCH // max(4 * self.X.shape[1], 1), 1)
        for begin in range(0, len(self.row), size):
            some = self.take(np.arange(begin, min(begin + size, len(self.row))))
            n, width = len(some.row), 4 * some.X.shape[1]
            offsets = np.arange(0, (n + 1) * width, width, dtype=np.int32) if width else np.zeros(n + 1, np.int32)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(some.X))]
            columns = [
                pa.array(some.part),
                pa.array(some.row),
                pa.Array.from_buffers(pa.binary(), n, buffers),
                pa.array(some.y),
                pa.array(some.w),
                pa.array(some.alpha),
                pa.nulls(n, pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


_NONE = (0, 0, (0, 0), 0, 0, 0)
_KINDS = (np.int32, np.int64, np.float32, bool, np.float64, np.float64)


def facts_batch(facts: Mapping[str, Any]) -> pa.RecordBatch:
    """Return facts as a batch of one row."""
    return pa.RecordBatch.from_pylist([{"facts": json.dumps(facts)}], _SCHEMA)


def received(batches: Iterable[pa.RecordBatch]) -> tuple[Candidates, list[dict[str, Any]]]:
    """Return the rows of batches, and the facts among them, both in the order of the partitions.

    Raises
    ------
    RowsError
        Facts tell of a problem.
    """
    rows, facts = [], []
    for batch in batches:
        told = batch.column("facts").is_valid()
        facts += [json.loads(text) for text in batch.column("facts").filter(told).to_pylist()]
        rows.append(_rows_of(batch.filter(pa.array(~np.asarray(told)))))
    facts.sort(key=lambda each: each["part"])
    for each in facts:
        if each.get("problem") is not None:
            raise RowsError(f"partition {each['part']}: {each['problem']}")
    return Candidates.of(rows), facts


def _rows_of(batch: pa.RecordBatch) -> Candidates:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    of = {name: columns[name].to_numpy(zero_copy_only=False) for name in ("part", "row", "y", "w", "alpha")}
    n = len(of["row"])
    x = columns["x"].cast(pa.large_binary())
    _, offsets, values = x.buffers()
    ends = np.frombuffer(offsets, np.int64)[x.offset : x.offset + n + 1] if n else np.zeros(1, np.int64)
    X = np.frombuffer(values, np.uint8)[ends[0] : ends[-1]].view(np.float32) if n else np.empty(0, np.float32)
    return Candidates(of["part"], of["row"], X.reshape(n, -1 if n else 0), of["y"].astype(bool), of["w"], of["alpha"])
