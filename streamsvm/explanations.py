"""Which features of a model matter, why it decides as it does of a row, and which rows that it knows are like it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from river import base, compose

from streamsvm.core.checks import check_number
from streamsvm.core.explaining import (
    Examples,
    Explanation,
    compute_distances,
    draw_bars,
    find_nearest_examples,
    get_axes,
    make_explanation,
)
from streamsvm.core.frames import to_columns, to_list
from streamsvm.files.messages import short_repr, shorten
from streamsvm.learners.wrapping import explain_wrapped, find_wrapped_examples
from streamsvm.stream.batches import next_batch, supports_batches
from streamsvm.stream.rows import ValidatingPipeline
from streamsvm.stream.tables import TableModel
from streamsvm.stream.tables.chunk import Chunk, Row, Table, is_null

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EXPLAINED = 200  # rows whose contributions are averaged
_LONGEST = 40  # characters of a name
_MOST_BARS = 15


@dataclass(frozen=True)
class Importance:
    """How much each feature, or column of a table, matters to a model."""

    sizes: dict[Hashable, float]
    """The mean size of its contribution to a decision (`streamsvm.core.explaining.Explanation`), the largest first."""
    losses: dict[Hashable, float]
    """How much larger the error is where its values are shuffled among the rows; empty without labels.

    Of a pipeline of river, these are the columns of the rows, and ``sizes`` has the features that its learner is given.
    """
    error: float
    """The error on the rows as they are: the share of wrong labels, or the mean absolute error; NaN without labels."""
    n_rows: int
    """The number of rows with which it was measured."""

    def __str__(self) -> str:
        names = list(dict.fromkeys([*self.sizes, *self.losses]))
        width = max(6, *(len(shorten(str(name), _LONGEST)) for name in names))
        shuffled = f"  error when shuffled (now {self.error:.4g})" if self.losses else ""
        lines = [f"{'column':{width}}  moves the decision by{shuffled}"]
        for name in names:
            size = f"{self.sizes[name]:21.4f}" if name in self.sizes else " " * 21
            loss = f"  {self.losses[name]:+.4f}" if name in self.losses else ""
            lines.append(f"{shorten(str(name), _LONGEST):{width}}  {size}{loss}".rstrip())
        return "\n".join(lines)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw a bar for each of the 15 columns that matter most, and return the axes, by default the current ones of pyplot.

        A bar is how much larger the error is where the values of the column are shuffled; without labels, the mean size of its
        contribution. You need matplotlib (extra ``plot``).
        """
        axes, found = get_axes(axes), self.losses or self.sizes
        names = sorted(found, key=lambda name: -found[name])[:_MOST_BARS]
        draw_bars(axes, names, [found[name] for name in names], _MOST_BARS)
        axes.set(xlabel=f"Error when shuffled, above {self.error:.4g}" if self.losses else "Mean size of its contribution")
        return axes


def importance(model: Any, rows: Any, y: Any = None, *, most: int = 1000, seed: int = 0) -> Importance:
    """Measure which features of a model matter, or which columns of a table.

    Parameters
    ----------
    model
        A learner of this library; a model of `table_model`; a pipeline of river that ends in a learner; or a fitted machine of
        `streamsvm.batch`.
    rows
        A frame, an array, or dicts. A model of `table_model` takes its labels from their column.
    y
        The labels, or targets. Without any, only the sizes of contributions are measured.
    most
        The most rows that are used, evenly spaced.
    seed
        Seed of the shuffles.

    Raises
    ------
    ValueError
        There are no rows, or one is refused.

    Notes
    -----
    The first measure needs no labels and takes two predictions a feature of 200 rows. The second is permutation importance [1]_,
    one shuffle for each feature. Both see a model, not the world: of two columns that say the same, each has a part.

    References
    ----------
    .. [1] L. Breiman, Random forests, Machine Learning 45, 2001, section 10.

    Examples
    --------
    >>> import streamsvm
    >>> rows = [{"city": "Oslo" if i * i % 7 > 2 else "Paris", "size": i % 5} for i in range(200)]
    >>> for row in rows:
    ...     row["y"] = "yes" if row["city"] == "Oslo" else "no"
    >>> model = streamsvm.table_model(rows, label="y")
    >>> for row in rows:
    ...     model.learn_one(row, row["y"])
    >>> found = streamsvm.importance(model, rows)
    >>> list(found.sizes), found.error
    (['city', 'size'], 0.0)
    """
    check_number("most", most, 1, inclusive=True, integer=True)
    asked = _MeasuredMachine(model, rows, y, most) if hasattr(model, "fit") else _MeasuredLearner(model, rows, y, most)
    if not asked.n_rows:
        raise ValueError("there are no rows to measure with")
    sizes: dict[Hashable, float] = {}
    places = np.unique(np.linspace(0, asked.n_rows - 1, min(_EXPLAINED, asked.n_rows)).astype(int)).tolist()
    for place in places:
        for name, size in asked.explained(place).items():
            sizes[name] = sizes.get(name, 0.0) + abs(size) / len(places)
    ordered = dict(sorted(sizes.items(), key=lambda item: -item[1]))
    if asked.y is None:
        return Importance(ordered, {}, float("nan"), asked.n_rows)
    rng, error = np.random.default_rng(seed), asked.error(None, None)
    losses = {name: asked.error(name, rng.permutation(asked.n_rows)) - error for name in asked.shuffled(ordered)}
    return Importance(ordered, losses, error, asked.n_rows)


def explain_one(model: Any, x: Any, typical: Any = None) -> Explanation:
    """Explain the decision of one row by any model: how much each feature moves it, against that of a typical row.

    Parameters
    ----------
    model
        As of `importance`. Of a pipeline of river, the features are those that its learner is given, and their values those of
        the row, where it has them.
    x
        The row: a dict, or of a fitted machine an array [features].
    typical
        The row to compare with, alike. A fitted machine needs one, such as the means of its data; others know one.

    Raises
    ------
    ValueError
        The row is refused, nothing was learned, or the model explains nothing.

    Examples
    --------
    >>> from river import preprocessing
    >>> from streamsvm import BSGDClassifier
    >>> model = preprocessing.StandardScaler() | BSGDClassifier(budget=10)
    >>> for i in range(20):
    ...     model.learn_one({"a": i % 3, "b": 1.0}, i % 3 == 2)
    >>> list(explain_one(model, {"a": 2, "b": 1.0}).contributions)
    ['a', 'b']
    """
    if not hasattr(model, "fit"):
        if typical is not None and isinstance(model, compose.Pipeline) and not hasattr(model, "explain_one"):
            raise ValueError("a typical row cannot be given to a pipeline of river: give its learner the transformed rows")
        return explain_wrapped(model, x, typical, None)
    if hasattr(model, "predict_proba") and not hasattr(model, "decision_function"):
        raise ValueError(f"decisions of a {type(model).__name__} cannot be explained: it has no decision_function")
    if typical is None:
        raise ValueError(f"a {type(model).__name__} knows no typical row: give one, such as the means of its data")
    row, base_row = (np.asarray(each, np.float64) for each in (x, typical))
    if row.ndim != 1 or row.shape != base_row.shape:
        raise ValueError(f"a row and a typical row are arrays of one length, not of the shapes {row.shape} and {base_row.shape}")
    return _of_machine(model, row, base_row, range(len(row)))


def examples_one(model: Any, x: Any, n: int = 3) -> Examples:
    """Return the rows that a model knows, or its support vectors, which are nearest to a row.

    Parameters
    ----------
    model
        As of `importance`. Of a pipeline of river, values are those that its learner is given. Of a fitted machine, distances
        are Euclidean, and labels those of its support vectors.
    x
        The row: a dict, or of a fitted machine an array [features].
    n
        The most rows of each label; without labels, of all.

    Raises
    ------
    ValueError
        The row is refused, nothing was learned, or the model knows no rows, as linear ones do not.

    Examples
    --------
    >>> from streamsvm.batch import CSMOClassifier
    >>> machine = CSMOClassifier(C=10.0).fit([[0.0], [1.0], [2.0], [3.0]], ["low", "low", "high", "high"])
    >>> print(examples_one(machine, [1.8], n=1))
    'high': 1 of 4 support vectors
      distance 0.2  0 = 2
    'low': 1 of 4 support vectors
      distance 0.8  0 = 1
    """
    if not hasattr(model, "fit"):
        return find_wrapped_examples(model, x, n)
    check_number("n", n, 1, inclusive=True, integer=True)
    vectors = getattr(model, "support_vectors_", None)
    if vectors is None or not vectors.shape[1]:  # of given kernel values
        raise ValueError(
            f"a {type(model).__name__} stores no rows that could be examples" + ", or is not fitted" * (vectors is None)
        )
    rows = np.asarray(vectors.toarray() if hasattr(vectors, "toarray") else vectors, np.float64)
    d = rows.shape[1]
    try:
        row = np.asarray(x, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"a row is an array of {d} numbers, not {short_repr(x)}") from None
    if row.shape != (d,):
        raise ValueError(f"a row is an array of {d} numbers, not of the shape {row.shape}")
    with np.errstate(over="ignore"):
        distances = compute_distances(row, rows)
    if not np.isfinite(distances).all():
        raise ValueError("a number of the row is not finite, or too large")
    labels = to_list(getattr(model, "classes_", []))
    targets = [labels[i] for i in _places_of_vectors(model, rows)] if labels else [None] * len(rows)
    names = to_list(getattr(model, "feature_names_in_", range(len(row))))
    return find_nearest_examples(names, rows, distances, targets, labels, n, "support vectors")


def _places_of_vectors(model: Any, rows: np.ndarray) -> list[int]:
    """Return the place of the label of each support vector among the classes."""
    if hasattr(model, "n_support_"):  # they are in the order of their classes
        return np.repeat(np.arange(len(model.classes_)), model.n_support_).tolist()
    coefficients = model._coefficients
    if len(coefficients) == 1:
        return (coefficients[0] > 0.0).astype(int).tolist()
    # One class against the rest each. A row whose own machine does not need it is on the right side there, and so in others where
    # its coefficient is 0.
    own, free = np.array(coefficients), (coefficients <= 0.0).all(axis=0)
    if free.any():
        decided = model.decision_function(rows[free]).T
        own[:, free] = np.where(coefficients[:, free] < 0.0, -np.inf, decided)
    return own.argmax(axis=0).tolist()


def _of_machine(model: Any, row: np.ndarray, typical: np.ndarray, names: Sequence[Hashable]) -> Explanation:
    decide = model.decision_function if hasattr(model, "decision_function") else model.predict
    [prediction] = to_list(model.predict(row[None]))
    first = np.asarray(decide(row[None]))
    place = int(np.argmax(first[0])) if first.ndim == 2 else None
    sign = -1.0 if hasattr(model, "classes_") and place is None and not first[0] > 0.0 else 1.0

    def decided(rows: np.ndarray) -> np.ndarray:
        found = np.asarray(decide(rows), np.float64)
        return found[:, place] if place is not None else sign * found

    return make_explanation(prediction, decided, row, typical, names, {}, dict(zip(names, row.tolist(), strict=True)))


def _checked_labels(y: Any, n: int) -> list[Any]:
    """Return labels as a list; a ValueError where they are not n."""
    found = y if isinstance(y, str | bytes) or getattr(y, "ndim", 1) != 1 or hasattr(y, "columns") else to_list(y)
    if not isinstance(found, list) or len(found) != n:
        raise ValueError(f"y must be a sequence of {n:,} labels, one for each row")
    return found


def _some_places(n: int, most: int) -> list[int]:
    return list(range(n)) if n <= most else np.linspace(0, n - 1, most).astype(int).tolist()


def _error_of(due: Sequence[Any], found: Sequence[Any], is_number: bool) -> float:
    if is_number:
        return float(np.mean(np.abs(np.asarray(due, np.float64) - np.asarray(found, np.float64))))
    return float(np.mean([a != b for a, b in zip(due, found, strict=True)]))


class _MeasuredLearner:
    """Rows as dicts, and a model that predicts them one by one."""

    def __init__(self, model: Any, rows: Any, y: Any, most: int) -> None:
        label = model.label if isinstance(model, TableModel) else None
        xs: list[Any]
        if hasattr(rows, "columns"):
            names, columns, frame = to_columns(rows)
            n = len(frame)
            table, kept = Table(tuple(names), columns), _some_places(n, most)
            xs = [table.row(i).x for i in kept]
        elif isinstance(rows, np.ndarray):
            n = len(rows)
            kept = _some_places(n, most)
            xs = [dict(enumerate(row)) for row in rows[kept].tolist()]
        else:
            given = list(rows if isinstance(rows, Iterable) else [])
            n = len(given)
            kept = _some_places(n, most)
            xs = [given[i] for i in kept]
        for x in xs:
            if not isinstance(x, Mapping):
                pairs = ": give the labels of pairs as y" * isinstance(x, tuple)
                raise ValueError(f"a row is a mapping of names to values, not {short_repr(x)}{pairs}")
        ys: list[Any] | None = None
        if y is not None:
            every = _checked_labels(y, n)
            ys = [every[i] for i in kept]
        elif label is not None:
            ys = [x.get(label) for x in xs]
        if ys is not None:
            ys = model.parse_labels(ys) if isinstance(model, TableModel) else [None if is_null(each) else each for each in ys]
        if ys is not None and any(each is not None for each in ys):
            with_label = [i for i, each in enumerate(ys) if each is not None]
            xs, ys = [xs[i] for i in with_label], [ys[i] for i in with_label]
        else:
            ys = None
        self._model, self._xs, self.y = model, xs, ys
        self._is_number = isinstance(model, base.Regressor) or isinstance(getattr(model, "_last_step", None), base.Regressor)
        if self.y is not None:
            self._pipeline = ValidatingPipeline(model, learns=False)
            self._at_once = supports_batches(self._pipeline, False)

    @property
    def n_rows(self) -> int:
        return len(self._xs)

    def explained(self, i: int) -> Mapping[Hashable, float]:
        return explain_one(self._model, self._xs[i]).contributions

    def shuffled(self, names: Iterable[Hashable]) -> list[Hashable]:
        """Return the columns to shuffle: those that were explained, or all of rows that a pipeline of river makes others of."""
        model = self._model
        while isinstance(model, base.Wrapper):
            model = model._wrapped_model
        if hasattr(model, "explain_one"):
            return list(names)
        came = dict.fromkeys(name for x in self._xs for name in x)
        return list(dict.fromkeys([*(name for name in names if name in came), *came]))

    def error(self, name: Hashable, order: np.ndarray | None) -> float:
        xs = self._xs
        if order is not None:
            others = [xs[i].get(name) for i in order.tolist()]
            xs = [
                {**x, name: other} if other is not None else {key: value for key, value in x.items() if key != name}
                for x, other in zip(xs, others, strict=True)
            ]
        return _error_of(self.y or [], self._predictions_of(xs), self._is_number)

    def _predictions_of(self, xs: Sequence[Mapping[Any, Any]]) -> list[Any]:
        found: list[Any] = []
        chunk = Chunk([Row(dict(x)) for x in xs], str)
        while len(found) < len(xs):
            rows = next_batch(chunk, len(found), len(xs), self._pipeline, False, bool, self._is_number) if self._at_once else None
            if rows is None:
                found.append(self._model.predict_one(xs[len(found)]))
            else:
                found += self._pipeline.last_step.predict_then_learn(rows.X, rows.names, [None] * len(rows.X), False)[0]
        return found


class _MeasuredMachine:
    """Rows of a matrix, and a machine that was fitted."""

    def __init__(self, model: Any, rows: Any, y: Any, most: int) -> None:
        names = list(rows.columns) if hasattr(rows, "columns") else None
        X = np.asarray(rows, np.float64)
        kept = _some_places(len(X), most)
        self._model, self._X = model, X[kept]
        self._names: list[Hashable] = list(range(X.shape[1])) if names is None else names
        self.y = None if y is None else [_checked_labels(y, len(X))[i] for i in kept]
        self._typical = X.mean(axis=0) if len(X) else X
        self._is_number = not hasattr(model, "classes_")

    @property
    def n_rows(self) -> int:
        return len(self._X)

    def explained(self, i: int) -> Mapping[Hashable, float]:
        return _of_machine(self._model, self._X[i], self._typical, self._names).contributions

    def shuffled(self, names: Iterable[Hashable]) -> list[Hashable]:
        return list(names)

    def error(self, name: Hashable, order: np.ndarray | None) -> float:
        X = self._X
        if order is not None:
            place = self._names.index(name)
            X = X.copy()
            X[:, place] = X[order, place]
        return _error_of(self.y or [], to_list(self._model.predict(X)), self._is_number)
