"""A round of a fit after the first: the coefficients of the model are fitted once more, by the rows of all partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamsvm.learners.basis import SupportVectors, basis_of
from streamsvm.learners.refit import Equations, Trial, take_step
from streamsvm_spark.columns import Partitioned, RowsError, mapped, rows_of_batch
from streamsvm_spark.model_bytes import bytes_of, learner_of

__all__ = ["refit"]

_SUMS = "part int, sums binary, problem string"
_SUMS_OF_ARROW = pa.schema([("part", pa.int32()), ("sums", pa.binary()), ("problem", pa.string())])
_MOST_BYTES = 2**30  # of sums that meet in one Arrow column, whose offsets are of 32 bits
_WIDTH = 32  # partitions whose sums a worker adds up, at most


class _Sums(NamedTuple):
    """The task of each partition: it adds up the equations of its rows, or the trial of a step."""

    file: bytes
    """The model."""
    step: np.ndarray | None
    """float64 [outputs, B]; None where the equations are asked for."""
    skip: bool
    classes: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the batches of a partition, with the columns of `Task`; `_SUMS` is what comes back, one row."""
        number = TaskContext.get().partitionId()
        try:
            yield _row(number, self.of(batches), None)
        except ValueError as error:
            yield _row(number, None, str(error))

    def of(self, batches: Iterator[pa.RecordBatch]) -> np.ndarray:
        """Return the sums of the rows, in one array. Memory is that of a batch and of the sums."""
        model = learner_of(self.file)
        sums: Any = Equations.none(model) if self.step is None else Trial.none()
        for batch in batches:
            rows = rows_of_batch(batch, skip=self.skip, classes=self.classes)
            if not len(rows.X):
                continue
            if self.step is None:
                sums.add(Equations.of(model, rows.X, rows.y, rows.w))
            else:
                sums.add(Trial.of(model, self.step, rows.X, rows.y, rows.w))
        return np.concatenate([array.ravel() for array in sums])


def _row(number: int, sums: np.ndarray | None, problem: str | None) -> pa.RecordBatch:
    content = None if sums is None else sums.tobytes()
    return pa.RecordBatch.from_pylist([{"part": number, "sums": content, "problem": problem}], _SUMS_OF_ARROW)


def _add_group(table: pa.Table) -> pa.Table:
    # The sums of some partitions, in their order: the same ones whatever the order in which they came; or their first problem.
    rows = sorted(table.to_pylist(), key=lambda row: row["part"])
    bad = next((row for row in rows if row["problem"] is not None), None)
    if bad is not None:
        return pa.Table.from_batches([_row(bad["part"], None, bad["problem"])])
    total = np.frombuffer(rows[0]["sums"]).copy()
    for row in rows[1:]:
        total += np.frombuffer(row["sums"])
    return pa.Table.from_batches([_row(rows[0]["part"], total, None)])


def _collected(frame: DataFrame) -> np.ndarray:
    [total] = _add_group(frame.toArrow()).to_pylist()
    if total["problem"] is not None:
        raise RowsError(f"partition {total['part']}: {total['problem']}")
    return np.frombuffer(total["sums"])


def refit(rows: DataFrame | Partitioned, learner: Any, skip: bool, classes: bool) -> None:
    """Fit the coefficients of a learner once more, by the rows of all partitions: a step of Newton's method.

    The rows are read twice, once for the direction of the step, once for its size. Some partitions' sums of
    ``8 outputs B (B + 1)`` bytes are added up on a worker, those of such groups on the driver.

    Raises
    ------
    RowsError
        Rows cannot be learned, or the sums of a partition are more than Arrow takes in a column.
    """
    basis = basis_of(learner)
    outputs, n = basis.coefficients.shape
    if not n:
        return
    bytes_of_sums = 8 * n * (n + 1) * outputs
    if bytes_of_sums > _MOST_BYTES // 2:
        kernel = isinstance(basis, SupportVectors)
        what, less = ("support vectors", "a smaller budget") if kernel else ("features", "fewer features")
        raise RowsError(
            f"a second round sends {bytes_of_sums:,} bytes for each partition, with {n:,} {what} and {outputs} outputs: take "
            f"rounds=1, or {less}"
        )
    file = bytes_of(learner)
    width = max(2, min(_WIDTH, _MOST_BYTES // bytes_of_sums))
    parts = mapped(rows, _Sums(file, None, skip, classes), _SUMS)
    groups = parts.groupBy(F.floor(F.col("part") / width).alias("group")).applyInArrow(_add_group, _SUMS)
    A, g = np.split(_collected(groups), [outputs * n * n])
    step = Equations(A.reshape(-1, n, n), g.reshape(-1, n)).step(learner)
    tried = _collected(mapped(rows, _Sums(file, step, skip, classes), _SUMS))
    take_step(learner, step, Trial(tried.reshape(Trial.none().sums.shape)))
