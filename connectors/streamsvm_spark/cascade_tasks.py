"""The tasks of partitions in a cascade: they read their rows, solve sets of rows, and look for rows that violate optimality.

Rows are on their way as arrays and as Arrow batches, with what identifies them and what is said of them.
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
from streamsvm_spark.columns import RowsError, arrow_schema, check_problems, check_widths, rows_of_batch

#: A row, or facts alone: text of JSON. As a schema of Spark, and as one of Arrow.
SCHEMA = "part int, row long, x binary, y boolean, w double, alpha double, facts string"
_SCHEMA = arrow_schema(SCHEMA)
_BATCH = 2**26  # bytes of features in a batch


class Candidates(NamedTuple):
    """n rows. Those of a partition have numbers in the order in which it gives them."""

    part: np.ndarray  # the number of the partition, int32 [n]
    row: np.ndarray  # the number in it, int64 [n]
    X: np.ndarray  # float32 [n, features]
    y: np.ndarray  # bool [n]: whether the label is 1
    w: np.ndarray  # float64 [n]: weights, above 0
    alpha: np.ndarray  # float64 [n]: dual coefficients, from 0 to C w

    @classmethod
    def of(cls, several: Iterable[Candidates]) -> Candidates:
        """Return the rows of several, in the order of their partitions and numbers."""
        filled = [some for some in several if len(some.row)]
        if not filled:
            none = np.empty(0)
            return cls(np.empty(0, np.int32), np.empty(0, np.int64), np.empty((0, 0), np.float32), np.empty(0, bool), none, none)
        widths = [some.X.shape[1] for some in filled]
        check_widths(min(widths), max(widths))
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
        size = max(_BATCH // max(4 * self.X.shape[1], 1), 1)
        for begin in range(0, len(self.row), size):
            some = self.take(np.arange(begin, min(begin + size, len(self.row))))
            n, width = len(some.row), 4 * some.X.shape[1]
            offsets = np.arange(0, (n + 1) * width, width, dtype=np.int32) if width else np.zeros(n + 1, np.int32)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(some.X))]
            x = pa.Array.from_buffers(pa.binary(), n, buffers)
            part, row, y, w, alpha = map(pa.array, (some.part, some.row, some.y, some.w, some.alpha))
            yield pa.RecordBatch.from_arrays([part, row, x, y, w, alpha, pa.nulls(n, pa.string())], schema=_SCHEMA)


def facts_batch(facts: Mapping[str, Any]) -> pa.RecordBatch:
    """Return facts as a batch of one row."""
    return pa.RecordBatch.from_pylist([{"facts": json.dumps(facts)}], _SCHEMA)


def received_rows(batches: Iterable[pa.RecordBatch]) -> tuple[Candidates, list[dict[str, Any]]]:
    """Return the rows of batches, and the facts among them, in the order of partitions; RowsError if one has a problem."""
    rows, facts = [], []
    for batch in batches:
        if "problem" in batch.schema.names:
            check_problems(batch)
        with_facts = batch.column("facts").is_valid()
        facts += [json.loads(text) for text in batch.column("facts").filter(with_facts).to_pylist()]
        rows.append(_rows_of(batch.filter(pa.array(~np.asarray(with_facts)))))
    facts.sort(key=lambda partition: partition["part"])
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


def sums_of(support: Candidates, kernel: Kernel) -> KernelSums:
    """Return the sums over support vectors that are decision values but for the intercept."""
    return KernelSums(support.X.astype(np.float64), (support.alpha * support.signs)[np.newaxis], kernel)


def decision_values(sums: KernelSums, bias: float, rows: Candidates, reach: float) -> np.ndarray:
    """Return the decision values at rows, float64 [n], in float64 where the margin may exceed 1 by less than ``reach``.

    Rows that are farther cost nothing and violate nothing: theirs are of float32.
    """
    X = rows.X.astype(np.float64)
    with limit_blas_threads():
        if (found := sums.compute_float32(X)) is None:
            return bias + sums.compute_exact(X)[:, 0]
        f, error = bias + found[0][:, 0], found[1][:, 0]
        doubt = 1.0 - rows.signs * f + error > -reach
        f[doubt] = bias + sums.compute_exact(X[doubt])[:, 0]
    return f


_TOL = 0.1  # the gap below the top, where another solution follows
_ONE_CLASS = 1000  # rows of a partition of one class that pass on: of none is it known whether it is a support vector
_NEAR = 0.05  # by how much a row may be beyond the margin that is sent with those that violate it: it may be the next to do so
_FEW = 100  # such rows, more than there are that violate it


class Moments(NamedTuple):
    """The sum of weights of all values of some rows, their mean, and the sum of their weighted squared distances from it."""

    weight: float = 0.0
    mean: float = 0.0
    square: float = 0.0

    @classmethod
    def of(cls, X: np.ndarray, w: np.ndarray) -> Moments:
        """Return those of rows X [n, d] with weights [n]."""
        weight = float(w.sum()) * X.shape[1]
        if not weight:
            return cls()
        X = X.astype(np.float64)
        mean = float(w @ X.sum(axis=1)) / weight
        return cls(weight, mean, float(w @ np.square(X - mean).sum(axis=1)))

    def with_(self, other: Moments) -> Moments:
        weight = self.weight + other.weight
        if not weight:
            return self
        shift, share = other.mean - self.mean, other.weight / weight
        return Moments(weight, self.mean + shift * share, self.square + other.square + shift * shift * share * self.weight)


class Read(NamedTuple):
    """Read the rows of a partition: columns ``features``, ``label`` and ``weight`` become candidates, and facts at the end."""

    skip: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows whose weight is above 0, and facts: how many rows there are, of which width, labels and moments."""
        part, rows, width, labels, moments = TaskContext.get().partitionId(), 0, None, [False, False], Moments()
        for batch in batches:
            candidates = self._candidates_of(batch, part, rows)
            rows += batch.num_rows
            if not len(candidates.row):
                continue
            if width is not None:
                check_widths(width, candidates.X.shape[1])
            width = candidates.X.shape[1]
            labels = [labels[0] or bool((~candidates.y).any()), labels[1] or bool(candidates.y.any())]
            moments = moments.with_(Moments.of(candidates.X, candidates.w))
            yield from candidates.batches()
        yield facts_batch({"part": part, "rows": rows, "width": width, "labels": labels, "moments": moments})

    def _candidates_of(self, batch: pa.RecordBatch, part: int, begin: int) -> Candidates:
        rows = rows_of_batch(batch, skip=self.skip, classes=True)
        if (rows.y > 1.0).any():
            raise RowsError(
                f"a label is {rows.y.max():g}: CascadeSVC tells 0 from 1. pyspark.ml.classification.OneVsRest(classifier="
                "CascadeSVC(...)) learns more classes"
            )
        n, w = len(rows.X), rows.w
        number = begin + np.flatnonzero(rows.kept)
        found = Candidates(np.full(n, part, np.int32), number, rows.X, rows.y == 1.0, w, np.zeros(n))
        return found if (w > 0.0).all() else found.take(w > 0.0)


def fitted_machine(rows: Candidates, machine: Mapping[str, Any]) -> tuple[CSMOClassifier, Candidates]:
    """Return the machine of rows of both classes, from their coefficients on, and the rows with its coefficients."""
    start = rows.alpha * rows.signs if rows.alpha.any() else None
    model = CSMOClassifier(**machine).fit(rows.X, rows.y.astype(np.int64), rows.w, start)
    alpha = np.zeros(len(rows.row))
    alpha[model.support_] = np.abs(model.dual_coef_[0])
    return model, rows._replace(alpha=alpha)


class Solve(NamedTuple):
    """Solve a set of rows, and pass its support vectors on."""

    machine: Mapping[str, Any]  # the parameters of a `CSMOClassifier`, but for ``tol``
    most: int  # rows that may pass on

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the support vectors of the rows in all batches."""
        yield from self.passed(received_rows(batches)[0]).batches()

    def passed(self, rows: Candidates) -> Candidates:
        """Return the support vectors of a set, with their coefficients: of one class, rows at equal distances."""
        if not len(rows.row) or rows.y.all() or not rows.y.any():
            n, most = len(rows.row), min(_ONE_CLASS * len(np.unique(rows.part)), self.most)
            return rows if n <= most else rows.take(np.linspace(0, n - 1, most).astype(np.int64))
        with collect_warnings():  # the solution at the top gives them
            _, rows = fitted_machine(rows, {**self.machine, "tol": _TOL})
        support = rows.take(rows.alpha > 0.0)
        if len(support.row) > self.most:
            raise RowsError(
                f"a set of the cascade has {len(support.row):,} support vectors, and the driver holds at most {self.most:,} "
                "rows: raise maxCandidates as the driver's memory allows, or take BudgetedSVMClassifier"
            )
        return support


class Scan(NamedTuple):
    """Look for rows that violate the optimality of a machine."""

    support: Candidates  # its support vectors
    bias: float
    kernel: Kernel
    held: Mapping[int, np.ndarray]  # the numbers of the rows that the driver holds, by their partition
    tol: float
    quota: int  # rows that a partition may send

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows that the driver lacks, those that violate the margin most, and facts for the objectives."""
        part = TaskContext.get().partitionId()
        held, sent, short = self.held.get(part, np.empty(0)), Candidates.of([]), np.empty(0)
        loss, product, found, violators, worst, sums = 0.0, 0.0, 0, 0, 0.0, sums_of(self.support, self.kernel)
        for batch in batches:
            rows, _ = received_rows([batch])
            if not len(rows.row):
                continue
            f = decision_values(sums, self.bias, rows, _NEAR)
            all_short = 1.0 - rows.signs * f
            loss += float(rows.w @ np.maximum(all_short, 0.0))
            at, mine = self._support_in(rows)
            product += float((self.support.alpha[mine] * self.support.signs[mine]) @ f[at])
            found += len(at)
            new = np.flatnonzero((all_short > -_NEAR) & ~np.isin(rows.row, held))
            violators += int((all_short[new] > self.tol).sum())
            worst = max(worst, float(all_short[new].max(initial=0.0)))
            sent, short = Candidates.of([sent, rows.take(new)]), np.concatenate([short, all_short[new]])  # by their numbers
            kept = np.sort(np.argsort(-short, kind="stable")[: self.quota])
            sent, short = sent.take(kept), short[kept]
        if violators:  # where few do, few will next
            most = np.sort(np.argsort(-short, kind="stable")[: 2 * violators + _FEW])
            yield from sent.take(most).batches()
        yield facts_batch(
            {"part": part, "loss": loss, "product": product, "found": found, "violators": violators, "worst": worst}
        )

    def _support_in(self, rows: Candidates) -> tuple[np.ndarray, np.ndarray]:
        """Return which of some rows, in the order of their numbers, are support vectors, and which of these they are."""
        mine = np.flatnonzero((self.support.part == rows.part[0]) & np.isin(self.support.row, rows.row))
        at = np.searchsorted(rows.row, self.support.row[mine])
        same = (rows.X[at] == self.support.X[mine]).all(axis=1) & (rows.y[at] == self.support.y[mine])
        return at[same], mine[same]
