"""The tasks that a cascade SVM runs on partitions: read rows, solve sets of rows, and find rows that violate optimality.

Rows travel as Arrow batches with their partition and row number; each task also sends metadata about its partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from streamsvm.batch import CSMOClassifier
from streamsvm.batch.kernel_sums import KernelSums
from streamsvm.core.kernels import Kernel
from streamsvm.core.threads import limit_blas_threads
from streamsvm.core.warning import collect_warnings
from streamsvm_spark.columns import RowsError, arrow_schema, check_problems, check_widths, convert_batch

#: The schema, for Spark, of a candidate row or of metadata (JSON in ``facts``, with the other columns null).
SCHEMA = "part int, row long, x binary, y boolean, w double, alpha double, facts string"
_ARROW_SCHEMA = arrow_schema(SCHEMA)
_MAX_BATCH_BYTES = 2**26  # of features


class CandidateRows(NamedTuple):
    """n rows that may be support vectors, with the numbers of their partitions and their numbers within them."""

    part: np.ndarray  # partition, int32 [n]
    row: np.ndarray  # row number in the partition, int64 [n]
    X: np.ndarray  # float32 [n, features]
    y: np.ndarray  # bool [n]: whether the label is 1
    w: np.ndarray  # weights above 0, float64 [n]
    alpha: np.ndarray  # dual coefficients, from 0 to C w, float64 [n]

    @classmethod
    def concatenate(cls, parts: Iterable[CandidateRows]) -> CandidateRows:
        """Join several sets of candidate rows (possible support vectors) into one set, sorted by partition and row number. Raise
        a RowsError if their numbers of features differ.
        """
        filled = [part for part in parts if len(part.row)]
        if not filled:
            empty = np.empty(0)
            matrix = np.empty((0, 0), np.float32)
            return cls(np.empty(0, np.int32), np.empty(0, np.int64), matrix, np.empty(0, bool), empty, empty)
        widths = [part.X.shape[1] for part in filled]
        check_widths(min(widths), max(widths))
        rows = cls(*map(np.concatenate, zip(*filled, strict=True)))
        return rows.select(np.lexsort((rows.row, rows.part)))

    @property
    def signs(self) -> np.ndarray:
        """The labels of these rows as 1.0 and -1.0, float64 [n]."""
        return np.where(self.y, 1.0, -1.0)

    def select(self, indices: np.ndarray) -> CandidateRows:
        """Return a new set with some of these rows: ``indices`` are their positions int64, or a boolean mask."""
        return CandidateRows(*(array[indices] for array in self))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Convert these rows to Arrow record batches, each with at most 64 MiB of features, for the exchange between driver and
        workers, and yield them.
        """
        size = max(_MAX_BATCH_BYTES // max(4 * self.X.shape[1], 1), 1)
        for start in range(0, len(self.row), size):
            chunk = self.select(np.arange(start, min(start + size, len(self.row))))
            n, width = len(chunk.row), 4 * chunk.X.shape[1]
            offsets = np.arange(0, (n + 1) * width, width, dtype=np.int32) if width else np.zeros(n + 1, np.int32)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(chunk.X))]
            x = pa.Array.from_buffers(pa.binary(), n, buffers)
            part, row, y, w, alpha = map(pa.array, (chunk.part, chunk.row, chunk.y, chunk.w, chunk.alpha))
            yield pa.RecordBatch.from_arrays([part, row, x, y, w, alpha, pa.nulls(n, pa.string())], schema=_ARROW_SCHEMA)


def make_metadata_batch(metadata: Mapping[str, Any]) -> pa.RecordBatch:
    """Return an Arrow record batch with a single row, which contains the metadata of a partition (a dictionary) as JSON text."""
    return pa.RecordBatch.from_pylist([{"facts": json.dumps(metadata)}], _ARROW_SCHEMA)


def read_results(batches: Iterable[pa.RecordBatch]) -> tuple[CandidateRows, list[dict[str, Any]]]:
    """Read the Arrow record batches that tasks of the cascade fit returned. Return the candidate rows (possible support vectors)
    in them, and a dictionary of metadata for each partition, both sorted by partition. Raise a RowsError if a task failed.
    """
    rows, metadata = [], []
    for batch in batches:
        if "problem" in batch.schema.names:
            check_problems(batch)
        has_metadata = batch.column("facts").is_valid()
        metadata += [json.loads(text) for text in batch.column("facts").filter(has_metadata).to_pylist()]
        rows.append(_parse_candidates(batch.filter(pa.array(~np.asarray(has_metadata)))))
    metadata.sort(key=lambda partition: partition["part"])
    return CandidateRows.concatenate(rows), metadata


def _parse_candidates(batch: pa.RecordBatch) -> CandidateRows:
    """Convert an Arrow record batch to a set of candidate rows (possible support vectors): numpy arrays with the partition, row
    number, features, label, weight and dual coefficient of each row.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays = {name: columns[name].to_numpy(zero_copy_only=False) for name in ("part", "row", "y", "w", "alpha")}
    n = len(arrays["row"])
    x = columns["x"].cast(pa.large_binary())
    _, offset_buffer, values = x.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[x.offset : x.offset + n + 1] if n else np.zeros(1, np.int64)
    X = np.frombuffer(values, np.uint8)[offsets[0] : offsets[-1]].view(np.float32) if n else np.empty(0, np.float32)
    arrays |= {"X": X.reshape(n, -1 if n else 0), "y": arrays["y"].astype(bool)}
    return CandidateRows(**arrays)


_SUBPROBLEM_TOL = 0.1  # tolerance below the top of the tree, where another solution follows
_MAX_ROWS_OF_ONE_CLASS = 1000  # rows sent by a partition of one class, whose support vectors are unknown
_NEAR_MARGIN = 0.05  # rows beyond the margin by at most this are sent, too, because they may violate it in the next round
_EXTRA_ROWS = 100  # maximum number of rows sent in addition to twice the number of violating rows


class ValueMoments(NamedTuple):
    """The total weight of all values of some rows, their mean, and the weighted sum of squared deviations from it."""

    weight: float = 0.0
    mean: float = 0.0
    square: float = 0.0

    @classmethod
    def from_rows(cls, X: np.ndarray, w: np.ndarray) -> ValueMoments:
        """Compute weight, mean and squared deviations over all values of the rows X [n, d], which have the weights ``w`` [n]."""
        weight = float(w.sum()) * X.shape[1]
        if not weight:
            return cls()
        X = X.astype(np.float64)
        mean = float(w @ X.sum(axis=1)) / weight
        return cls(weight, mean, float(w @ np.square(X - mean).sum(axis=1)))

    def merge(self, moments: ValueMoments) -> ValueMoments:
        """Combine the statistics of two sets of values, these and ``moments``, and return the weight, mean and squared deviations
        of both sets taken together.
        """
        weight = self.weight + moments.weight
        if not weight:
            return self
        shift, share = moments.mean - self.mean, moments.weight / weight
        return ValueMoments(weight, self.mean + shift * share, self.square + moments.square + shift * shift * share * self.weight)


class ReadTask(NamedTuple):
    """The task that reads the rows of a partition, from columns ``features``, ``label`` and ``weight``."""

    skip: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with positive weights, then metadata: number of rows and features, labels and moments."""
        part, rows, width, labels, moments = TaskContext.get().partitionId(), 0, None, [False, False], ValueMoments()
        for batch in batches:
            candidates = self._make_candidates(batch, part, rows)
            rows += batch.num_rows
            if not len(candidates.row):
                continue
            if width is not None:
                check_widths(width, candidates.X.shape[1])
            width = candidates.X.shape[1]
            labels = [labels[0] or bool((~candidates.y).any()), labels[1] or bool(candidates.y.any())]
            moments = moments.merge(ValueMoments.from_rows(candidates.X, candidates.w))
            yield from candidates.to_batches()
        yield make_metadata_batch({"part": part, "rows": rows, "width": width, "labels": labels, "moments": moments})

    def _make_candidates(self, batch: pa.RecordBatch, part: int, first_row: int) -> CandidateRows:
        rows = convert_batch(batch, skip=self.skip, classes=True)
        if (rows.y > 1.0).any():
            raise RowsError(
                f"a label is {rows.y.max():g}: CascadeSVC needs labels 0 and 1. For more classes, use "
                "pyspark.ml.classification.OneVsRest(classifier=CascadeSVC(...))"
            )
        n, w = len(rows.X), rows.w
        row_numbers = first_row + np.flatnonzero(rows.valid)
        candidates = CandidateRows(np.full(n, part, np.int32), row_numbers, rows.X, rows.y == 1.0, w, np.zeros(n))
        return candidates if (w > 0.0).all() else candidates.select(w > 0.0)


def fit_machine(rows: CandidateRows, machine: Mapping[str, Any]) -> tuple[CSMOClassifier, CandidateRows]:
    """Fit a `CSMOClassifier` with the parameters ``machine`` to rows of both classes, starting from the rows' dual coefficients.
    Return the classifier, and the rows with their new coefficients.
    """
    start = rows.alpha * rows.signs if rows.alpha.any() else None
    model = CSMOClassifier(**machine).fit(rows.X, rows.y.astype(np.int64), rows.w, start)
    alpha = np.zeros(len(rows.row))
    alpha[model.support_] = np.abs(model.dual_coef_[0])
    return model, rows._replace(alpha=alpha)


class SolveTask(NamedTuple):
    """The task that solves a set of rows, and sends its support vectors."""

    machine: Mapping[str, Any]  # the parameters of a `CSMOClassifier`, without ``tol``
    max_rows: int  # to send

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the support vectors of the rows in all batches."""
        yield from self.select_support_vectors(read_results(batches)[0]).to_batches()

    def select_support_vectors(self, rows: CandidateRows) -> CandidateRows:
        """Fit a support vector machine to ``rows``, and return its support vectors with their dual coefficients. If all rows have
        the same label, return at most 1,000 evenly spaced rows of each partition instead. Raise a RowsError if there are more
        than ``max_rows`` support vectors.
        """
        if not len(rows.row) or rows.y.all() or not rows.y.any():
            n, limit = len(rows.row), min(_MAX_ROWS_OF_ONE_CLASS * len(np.unique(rows.part)), self.max_rows)
            return rows if n <= limit else rows.select(np.linspace(0, n - 1, limit).astype(np.int64))
        with collect_warnings():  # the last fit repeats them
            _, rows = fit_machine(rows, {**self.machine, "tol": _SUBPROBLEM_TOL})
        support = rows.select(rows.alpha > 0.0)
        if len(support.row) > self.max_rows:
            raise RowsError(
                f"a set of the cascade has {len(support.row):,} support vectors, but the driver holds at most {self.max_rows:,} "
                "rows: raise maxCandidates as the driver's memory allows, or use BudgetedSVMClassifier"
            )
        return support


class ScanTask(NamedTuple):
    """The task that finds rows of a partition that violate the optimality conditions of a machine."""

    support: CandidateRows  # the support vectors
    bias: float
    kernel: Kernel
    driver_rows: Mapping[int, np.ndarray]  # the numbers of the rows that the driver has, by partition
    tol: float
    quota: int  # maximum number of rows to send

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that violate the margin most and that the driver does not have, then metadata for the objectives."""
        part, coefficients = TaskContext.get().partitionId(), self.support.alpha * self.support.signs
        sums = KernelSums(self.support.X.astype(np.float64), coefficients[np.newaxis], self.kernel)
        driver_rows, candidates = self.driver_rows.get(part, np.empty(0)), CandidateRows.concatenate([])
        shortfalls = np.empty(0)  # 1 minus the margin, of each candidate
        loss, product, n_matched, violators, worst = 0.0, 0.0, 0, 0, 0.0
        for batch in batches:
            rows, _ = read_results([batch])
            if not len(rows.row):
                continue
            with limit_blas_threads():
                f = self.bias + sums.compute(rows.X.astype(np.float64))[:, 0]
            batch_shortfalls = 1.0 - rows.signs * f
            loss += float(rows.w @ np.maximum(batch_shortfalls, 0.0))
            positions, support = self._match_support_vectors(rows)
            product += float(coefficients[support] @ f[positions])
            n_matched += len(positions)
            new = np.flatnonzero((batch_shortfalls > -_NEAR_MARGIN) & ~np.isin(rows.row, driver_rows))
            violators += int((batch_shortfalls[new] > self.tol).sum())
            worst = max(worst, float(batch_shortfalls[new].max(initial=0.0)))
            candidates = CandidateRows.concatenate([candidates, rows.select(new)])  # sorted by row number, as they arrive
            shortfalls = np.concatenate([shortfalls, batch_shortfalls[new]])
            selected = np.sort(np.argsort(-shortfalls, kind="stable")[: self.quota])
            candidates, shortfalls = candidates.select(selected), shortfalls[selected]
        if violators:  # few violating rows now means few in the next round
            selected = np.sort(np.argsort(-shortfalls, kind="stable")[: 2 * violators + _EXTRA_ROWS])
            yield from candidates.select(selected).to_batches()
        yield make_metadata_batch(
            {"part": part, "loss": loss, "product": product, "found": n_matched, "violators": violators, "worst": worst}
        )

    def _match_support_vectors(self, rows: CandidateRows) -> tuple[np.ndarray, np.ndarray]:
        """Find the machine's support vectors among ``rows``, rows of one partition that are sorted by row number. Return their
        positions in ``rows`` and, in the same order, among the support vectors.
        """
        support = np.flatnonzero((self.support.part == rows.part[0]) & np.isin(self.support.row, rows.row))
        positions = np.searchsorted(rows.row, self.support.row[support])
        same = (rows.X[positions] == self.support.X[support]).all(axis=1) & (rows.y[positions] == self.support.y[support])
        return positions[same], support[same]
