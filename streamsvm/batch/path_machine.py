"""Kernel machines that are fitted for several values of C together, and words about machines that would be quicker.

Long fits warn if another of our machines would take a tenth of the time. Forests warn before they begin if exact fits of a few
rows say that CSMO would take a fifth. Times are estimates by the numbers of rows, features and support vectors, for one core of
the machine that the benchmarks name; ``benchmarks/full_fits.py`` measures them. They need not be exact: only much less is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.utils.validation import _num_samples

from streamsvm.batch.csmo.solver import Options, column_buffer, solve
from streamsvm.batch.csmo.state import problem_of
from streamsvm.batch.kernel_machine import KernelMachine, Training
from streamsvm.batch.problem import Bounds, Groups, check_bounds
from streamsvm.core.checks import check_number, check_one_of
from streamsvm.core.compiling.common import compilation
from streamsvm.core.kernels import Kernel
from streamsvm.core.sklearn_base import PathEstimator
from streamsvm.core.warning import warn

_TIMES = 10.0
_LEAST_SECONDS = 10.0  # a fit that took no longer is not worth a word
_TIMES_AHEAD, _LEAST_SECONDS_AHEAD = 5.0, 3.0  # of a fit that is about to begin: a word saves all of it
_TREES, _FEW_FEATURES = 8, 12
_SIZES, _LARGE_SIZES = (256, 50), (512, 100)  # of leaves and skeletons, for few features and for more
_MANY_ROWS, _LARGEST_FACTOR = 50_000, 4.0  # fewer rows have larger leaves and skeletons, which cost less there
_SECONDS_A_VALUE, _SECONDS_A_PRODUCT, _SECONDS_OF_WALKS = 4e-9, 1.5e-11, 5e-8  # of the parts of a tree, see `tree_seconds`
_SECONDS_A_PAIR = 4e-9  # rows x support vectors, for columns and steps
_SECONDS_A_LINEAR_VALUE = 1e-7  # all passes over a value of a row


class Stopwatch:
    """The seconds since it was made, without those of compilation, of which a second fit has none."""

    def __init__(self) -> None:
        self._began, self._compiled = time.perf_counter(), compilation.seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began - (compilation.seconds - self._compiled)


class Alternative(NamedTuple):
    """Another machine, and about how long it would take."""

    name: str
    seconds: float


def forest_sizes(n: int, d: int) -> tuple[int, int]:
    """Return the rows of a leaf, at most, and the rank that a forest has by default for n rows of d features."""
    leaf_size, rank = _SIZES if d <= _FEW_FEATURES else _LARGE_SIZES
    factor = min(max(_MANY_ROWS / n, 1.0), _LARGEST_FACTOR)
    return int(factor * leaf_size), int(factor * rank)


def forest_seconds(n: int, d: int, problems: int) -> float:
    """Return what a forest would take for n rows of d features."""
    return _TREES * tree_seconds(n, d, *forest_sizes(n, d), problems)


def tree_seconds(n: int, d: int, leaf_size: int, rank: int, problems: int) -> float:
    """Return what a tree takes that is about to grow: its matrix, and some fifty walks for each problem; some take many more."""
    leaf_size = min(leaf_size, n)
    values, products = leaf_size + 2 * rank, (leaf_size + rank) * (d + rank)
    return n * (_SECONDS_A_VALUE * values + _SECONDS_A_PRODUCT * products + _SECONDS_OF_WALKS * problems * min(rank, n))


def columns_seconds(n: int, support: int) -> float:
    """Return what CSMO takes for n rows, of which its machines have so many support vectors together."""
    return _SECONDS_A_PAIR * n * support


def linear_seconds(values: int, problems: int) -> float:
    """Return what a linear machine would take for rows with so many values together."""
    return _SECONDS_A_LINEAR_VALUE * problems * values


def warn_meanwhile(fitted: str, seconds: float, n: int, other: Alternative) -> bool:
    """Warn where another machine would take a tenth of the seconds that a fit has taken so far; return whether that was said."""
    if seconds < _LEAST_SECONDS or seconds < _TIMES * other.seconds:
        return False
    warn(f"{fitted} has taken {seconds:.0f} s for {n:,} rows: {_offer_text(other)}")
    return True


def warn_before(fitted: str, seconds: float, n: int, other: Callable[[], Alternative]) -> bool:
    """Warn where another machine would take a fifth of the seconds that a fit is about to take; return whether that was said.

    The other's time is found out only where the fit is long enough for a word.
    """
    if seconds < _LEAST_SECONDS_AHEAD or seconds < _TIMES_AHEAD * (found := other()).seconds:
        return False
    warn(f"{fitted} will take about {_rounded_seconds(seconds)} s for {n:,} rows: {_offer_text(found)}")
    return True


def _offer_text(other: Alternative) -> str:
    return f"{other.name} would take about {_rounded_seconds(max(other.seconds, 0.1))} s, for about the same decisions"


def _rounded_seconds(seconds: float) -> str:
    return f"{float(f'{seconds:.1g}'):,g}"


def watch_fit(fitted: str, n: int, other: Alternative | None) -> Callable[[], None]:
    """Return what a fit that begins now calls again and again: it advises, once."""
    stopwatch, told = Stopwatch(), other is None

    def look() -> None:
        nonlocal told
        if not told and other is not None:
            told = warn_meanwhile(fitted, stopwatch.seconds, n, other)

    return look


#: The most values of a sparse X that is made dense.
LARGEST_DENSE = 1e9


class Prepared(NamedTuple):
    """Rows, weights and bounds that the fits of all C share."""

    training: Training
    weights: np.ndarray  # float64 [counted]: of the rows that count
    sides: list[np.ndarray | None]  # of each machine, which of these are of its positive class; None: regression
    dense: np.ndarray  # all rows as an array
    groups: Groups
    units: list[Bounds]  # of each machine, the bounds at C = 1

    def coefficients(self, b: Iterable[np.ndarray], C: float) -> np.ndarray:
        """Return the coefficients of all rows, float64 [machines, n], from those of each machine's groups, for one C."""
        out = np.zeros((len(self.sides), len(self.training.weights)))
        for row, of_groups, positive in zip(out, b, self.sides, strict=True):
            row[self.training.counted] = self.groups.coefficients(of_groups, C * self.weights, positive)
        return out


@dataclass(eq=False, repr=False, kw_only=True)
class PathMachine(PathEstimator, KernelMachine):
    """A machine whose fits share what does not depend on C; of more than two classes, each has a machine against all others.

    Raises
    ------
    ValueError
        From `fit`: a parameter is out of its range, X, y or a weight cannot be learned, or ``memory_limit`` is too small. The
        message says which one, and what to change.

    Warns
    -----
    UserWarning
        The fit took long, and CSMO would have needed about a tenth of the time, or, before it begins, is about to need a
        fifth.
    """

    memory_limit: float | None = None
    random_state: int | None = 0
    """Seed of the random choices, for repeatable fits. None uses a different seed each time."""
    verbose: bool = False
    """Whether to show progress on standard error."""

    @property
    def _exact_name(self) -> str:
        return "CSMOClassifier" if is_classifier(self) else "CSMORegressor"

    def _fit_models(self, models: list[Self], X: Any, y: Any, sample_weight: Any) -> list[Self]:
        """Fit models, and warn if CSMO would have taken a tenth of the time."""
        stopwatch = Stopwatch()
        models = self._fit_path(models, X, y, sample_weight)
        n = _num_samples(X)
        seconds = sum(columns_seconds(n, len(model.support_) * len(model._coefficients)) for model in models)
        warn_meanwhile(type(self).__name__, stopwatch.seconds, n, Alternative(self._exact_name, seconds))
        return models

    def _fit_path(self, models: list[Self], X: Any, y: Any, sample_weight: Any) -> list[Self]:
        """Fit each of the models, of which this is the first one, with its C."""
        raise NotImplementedError

    def _check_parameters(self, Cs: Iterable[float]) -> None:
        super()._check_parameters(Cs)
        check_one_of("kernel", self.kernel, self._kernels)
        if self.memory_limit is not None:
            check_number("memory_limit", self.memory_limit, 0.0)

    def _check_or_auto(self, name: str, least: float, **how: Any) -> None:
        """Check a parameter that is a number or ``"auto"``."""
        value = getattr(self, name)
        if isinstance(value, str):
            check_one_of(name, value, ("auto",))
        else:
            check_number(name, value, least, inclusive=True, **how)

    def _prepared(self, Cs: Sequence[float], X: Any, y: Any, sample_weight: Any) -> Prepared:
        """Check parameters and rows, and make what the fits of all C share."""
        self._check_parameters(Cs)
        training = self._training(X, y, sample_weight)
        counted, targets = training.counted, training.targets
        weights, sides = training.weights[counted], self._sides(training)
        for C in Cs:
            check_bounds(C * weights)
        dense = self._dense(training.X)
        groups = Groups(dense, counted, None if targets is None else targets[counted])
        units = [groups.bounds(weights, positive) for positive in sides]
        return Prepared(training, weights, sides, dense, groups, units)

    @staticmethod
    def _sides(training: Training) -> list[np.ndarray | None]:
        """Return for each machine which of the rows that count are of its positive class, bool [n]; None: regression."""
        if training.labels is None:
            return [None]
        labels = training.labels[training.counted]
        classes = int(labels.max()) + 1
        return [labels == k for k in range(1 if classes == 2 else 0, classes)]

    def _dense(self, X: Any) -> np.ndarray:
        if not sparse.issparse(X):
            return X
        values = float(X.shape[0]) * X.shape[1]
        if self.memory_limit is not None and 8.0 * values > self.memory_limit:
            raise ValueError(f"memory_limit={self.memory_limit:,.0f} bytes, and a sparse X takes {8.0 * values:,.0f} as an array")
        if values > LARGEST_DENSE:
            raise ValueError(f"a sparse X of shape {X.shape} is too large to be made dense: project its features to fewer")
        return np.asarray(X.toarray())


_FEWER, _ROWS = 500, 2000  # rows of two fits: how support vectors grow from one to the other, they go on
_OPTIONS = Options(tol=1e-2, conjugate=True, shrinking=True, max_iter=20_000, verbose=False)
_MEGABYTES = 16.0  # for all columns of so few rows


def exact_seconds(prepared: Prepared, Cs: Iterable[float], kernel: Kernel, epsilon: float | None) -> float:
    """Return about how many seconds exact fits of the rows take: those of all machines, for each C; ``epsilon``: regression.

    Fits 500 and 2,000 random rows for each machine and C, in some tens of milliseconds. From the one to the other, support
    vectors grow as a power of the rows, and are taken to go on so.
    """
    counted = prepared.training.counted
    order = np.random.default_rng(0).permutation(len(counted))
    fewer, more = (_expected_support(prepared, np.sort(order[:rows]), Cs, kernel, epsilon) for rows in (_FEWER, _ROWS))
    power = min(max(np.log(more / fewer) / np.log(_ROWS / _FEWER), 0.0), 1.0)
    support = more * max(len(counted) / _ROWS, 1.0) ** power
    return columns_seconds(len(counted), int(support))


def _expected_support(prepared: Prepared, some: np.ndarray, Cs: Iterable[float], kernel: Kernel, epsilon: float | None) -> int:
    """Return how many support vectors exact machines of some rows have together, at least 1."""
    counted, targets = prepared.training.counted[some], prepared.training.targets
    groups = Groups(prepared.dense, counted, None if targets is None else targets[counted])
    buffer, support = column_buffer(_MEGABYTES, len(groups)), 1
    for C in Cs:
        for positive in prepared.sides:
            bounds = groups.bounds(C * prepared.weights[some], None if positive is None else positive[some])
            solution = solve(problem_of(groups, bounds, kernel, epsilon), None, _OPTIONS, buffer)
            if solution.interrupted:
                raise KeyboardInterrupt
            support += int(np.count_nonzero(solution.b))
    return support
