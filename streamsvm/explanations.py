"""Explanations of models: importance of features, contributions of features to a decision, and nearest rows as examples."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from river import base, compose

from streamsvm.core.checks import check_number
from streamsvm.core.explaining import compute_distances, draw_bars, find_nearest_examples, get_axes, make_explanation
from streamsvm.core.frames import to_columns, to_list
from streamsvm.files.messages import short_repr, shorten
from streamsvm.learners.wrapping import explain_wrapped, find_wrapped_examples
from streamsvm.stream.batches import next_batch, supports_batches
from streamsvm.stream.rows import ValidatingPipeline, detects_anomalies, find_keys, find_learner, parse_target
from streamsvm.stream.tables import TableModel
from streamsvm.stream.tables.chunk import Chunk, Row, Table, is_null

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from streamsvm.core.explaining import Examples, Explanation

_MAX_EXPLAINED_ROWS = 200  # contributions are averaged over at most this many rows
_MAX_NAME_LENGTH = 40
_MAX_BARS = 15
_UNKNOWN_KEY = "\0"  # a text that is no device or customer


@dataclass(frozen=True)
class Importance:
    """How much each feature, or column of a table, matters to a model."""

    mean_contributions: dict[Hashable, float]
    """The mean absolute contribution of each feature to decisions (see `streamsvm.core.explaining.Explanation`), the largest
    first.
    """
    error_increases: dict[Hashable, float]
    """The increase of the error when the values of a column are shuffled among the rows (permutation importance); empty without
    labels. For a river pipeline, it has the columns of the rows, while ``mean_contributions`` has the features after the
    transformers.
    """
    error: float
    """The error without shuffling: the fraction of wrong labels, or the mean absolute error; NaN without labels."""
    n_rows: int
    """The number of rows that were used."""

    def __str__(self) -> str:
        names = list(dict.fromkeys([*self.mean_contributions, *self.error_increases]))
        width = max(6, *(len(shorten(str(name), _MAX_NAME_LENGTH)) for name in names))
        error_heading = f"  error when shuffled (now {self.error:.4g})" if self.error_increases else ""
        lines = [f"{'column':{width}}  moves the decision by{error_heading}"]
        for name in names:
            contribution = f"{self.mean_contributions[name]:21.4f}" if name in self.mean_contributions else " " * 21
            increase = f"  {self.error_increases[name]:+.4f}" if name in self.error_increases else ""
            lines.append(f"{shorten(str(name), _MAX_NAME_LENGTH):{width}}  {contribution}{increase}".rstrip())
        return "\n".join(lines)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw a bar chart of the 15 most important features or columns with matplotlib on ``axes`` (by default the current
        ones), and return the axes.

        The length of a bar is the increase of the error when the column is shuffled; without labels, the mean absolute
        contribution. This needs matplotlib (extra ``plot``).

        Parameters
        ----------
        axes
            The axes to draw on, by default the current ones of pyplot.
        """
        axes, values = get_axes(axes), self.error_increases or self.mean_contributions
        names = sorted(values, key=lambda name: -values[name])[:_MAX_BARS]
        draw_bars(axes, names, [values[name] for name in names], _MAX_BARS)
        axes.set(xlabel=f"Error when shuffled, above {self.error:.4g}" if self.error_increases else "Mean absolute contribution")
        return axes


def importance(model: Any, rows: Any, y: Any = None, *, max_rows: int = 1000, seed: int = 0) -> Importance:
    """Measure how much each feature of ``model`` (or each column of its table) matters for its predictions of at most
    ``max_rows`` of the ``rows``. The result has the mean contribution of each feature to the decisions and, if true labels or
    targets ``y`` are passed, the increase of the error when its values are shuffled (permutation importance).

    Parameters
    ----------
    model
        A learner of this library; a model from `table_model`; a river pipeline that ends in a learner; or a fitted estimator of
        `streamsvm.batch`.
    rows
        A frame, an array, or a sequence of dicts. A model from `table_model` takes labels from their column by default.
    y
        The labels or targets. Without them, only contributions are measured.
    max_rows
        The maximum number of rows to use. They are evenly spaced.
    seed
        Seed of the shuffles.

    Returns
    -------
    The mean contributions, and with labels the increases of the error.

    Raises
    ------
    ValueError
        There are no rows, or a row is invalid.

    Notes
    -----
    Contributions need no labels, and take two predictions per feature for up to 200 rows. The increase of the error is
    permutation importance [1]_, with one shuffle per feature. Both describe the model, and not the data: two redundant columns
    share their importance.

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
    >>> measured = streamsvm.importance(model, rows)
    >>> list(measured.mean_contributions), measured.error
    (['city', 'size'], 0.0)
    """
    check_number("max_rows", max_rows, 1, inclusive=True, integer=True)
    task = _EstimatorTask(model, rows, y, max_rows) if hasattr(model, "fit") else _LearnerTask(model, rows, y, max_rows)
    if not task.n_rows:
        raise ValueError("there are no rows to measure with")
    means: dict[Hashable, float] = {}
    indices = np.unique(np.linspace(0, task.n_rows - 1, min(_MAX_EXPLAINED_ROWS, task.n_rows)).astype(int)).tolist()
    for i in indices:
        for name, contribution in task.explain_row(i).items():
            means[name] = means.get(name, 0.0) + abs(contribution) / len(indices)
    means = dict(sorted(means.items(), key=lambda item: -item[1]))
    if task.y is None:
        return Importance(means, {}, float("nan"), task.n_rows)
    rng, error = np.random.default_rng(seed), task.compute_error(None, None)
    increases = {name: task.compute_error(name, rng.permutation(task.n_rows)) - error for name in task.list_columns(means)}
    return Importance(means, increases, error, task.n_rows)


def measure_keys(model: Any, rows: Sequence[Mapping[Any, Any]], y: Any, key: str) -> dict[str, list[float]]:
    """Measure the error of ``model`` on the rows of each value of the column ``key``, such as each device, with and without what
    it has learned of that value alone.

    Parameters
    ----------
    model, rows, y
        As in `importance`; the rows are dicts. Rows without a label or a value of ``key`` are left out.
    key
        The name of the column.

    Returns
    -------
    For each value, as text: the number of rows, their error, and their error if the value were unknown.

    Examples
    --------
    >>> import streamsvm
    >>> rows = [{"device": f"d{i * i % 3}", "y": "yes" if i * i % 3 else "no"} for i in range(200)]
    >>> model = streamsvm.table_model(rows, label="y", key="device")
    >>> for row in rows:
    ...     model.learn_one(row, row["y"])
    >>> measure_keys(model, rows, None, "device")
    {'d0': [67, 0.0, 1.0], 'd1': [133, 0.0, 0.0]}
    """
    task, groups = _LearnerTask(model, rows, y, len(rows)), dict[str, list[int]]()
    labels: Any = task.y
    for i, x in enumerate(task._xs if labels else ()):
        if (value := x.get(key)) is not None and not is_null(value):
            groups.setdefault(str(value), []).append(i)
    predictions = [task._predict_rows(xs) for xs in (task._xs, [{**x, key: _UNKNOWN_KEY} for x in task._xs])] if groups else []
    return {
        value: [len(g), *(_compute_error([labels[i] for i in g], [p[i] for i in g], task._is_regression) for p in predictions)]
        for value, g in groups.items()
    }


def explain_one(model: Any, x: Any, typical: Any = None) -> Explanation:
    """Return the contribution of each feature to a model's decision for the row ``x``, compared with its decision for the row
    ``typical``, such as the means of the features. The model is an online learner, a pipeline that ends in one, or a fitted batch
    estimator.

    Parameters
    ----------
    model
        As in `importance`. For a river pipeline, the features are those after the transformers.
    x
        The row: a dict, or for a fitted estimator of `streamsvm.batch` an array [features].
    typical
        The row to compare with, of the same type. Fitted estimators need it, such as the means of the data; by default, others
        compare with the running means, as in ``explain_one`` of a learner. It is not supported for river pipelines.

    Returns
    -------
    The contributions, the prediction, and the values of the features (`streamsvm.core.explaining.Explanation`).

    Raises
    ------
    ValueError
        The row is invalid, the model has learned nothing yet, or it cannot explain decisions.

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
            raise ValueError("typical is not supported for a river pipeline: explain its last step with transformed rows")
        return explain_wrapped(model, x, typical, None)
    if hasattr(model, "predict_proba") and not hasattr(model, "decision_function"):
        raise ValueError(f"decisions of a {type(model).__name__} cannot be explained: it has no decision_function")
    if typical is None:
        raise ValueError(f"a {type(model).__name__} needs a typical row to compare with, such as the means of its data")
    row, base_row = np.asarray(x, np.float64), np.asarray(typical, np.float64)
    if row.ndim != 1 or row.shape != base_row.shape:
        raise ValueError(f"x and typical must be arrays of the same length, not of the shapes {row.shape} and {base_row.shape}")
    return _explain_estimator(model, row, base_row, range(len(row)))


def examples_one(model: Any, x: Any, n: int = 3) -> Examples:
    """Return the rows or support vectors that a model stores and that are nearest to the row ``x``: at most ``n`` of each label,
    with their distances.

    Parameters
    ----------
    model
        As in `importance`. For a river pipeline, values are those after the transformers. For a fitted estimator, distances are
        Euclidean, and labels those of the support vectors.
    x
        The row: a dict, or for a fitted estimator of `streamsvm.batch` an array [features].
    n
        The maximum number of rows of each label; for models without labels, of all rows.

    Returns
    -------
    The nearest rows of each label, with their distances (`streamsvm.core.explaining.Examples`).

    Raises
    ------
    ValueError
        The row is invalid, the model has learned nothing yet, or it does not store rows, as linear models.

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
    if vectors is None or not vectors.shape[1]:  # no vectors with a precomputed kernel
        raise ValueError(f"a {type(model).__name__} stores no rows" + ", or is not fitted" * (vectors is None))
    rows = np.asarray(vectors.toarray() if hasattr(vectors, "toarray") else vectors, np.float64)
    d = rows.shape[1]
    try:
        row = np.asarray(x, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"x must be an array of {d} numbers, not {short_repr(x)}") from None
    if row.shape != (d,):
        raise ValueError(f"x must be an array of {d} numbers, not of the shape {row.shape}")
    with np.errstate(over="ignore"):
        distances = compute_distances(row, rows)
    if not np.isfinite(distances).all():
        raise ValueError("x has a number that is not finite, or too large")
    labels = to_list(getattr(model, "classes_", []))
    targets = [labels[i] for i in _find_vector_classes(model, rows)] if labels else [None] * len(rows)
    names = to_list(getattr(model, "feature_names_in_", range(len(row))))
    return find_nearest_examples(names, rows, distances, targets, labels, n, "support vectors")


def _find_vector_classes(model: Any, rows: np.ndarray) -> list[int]:
    """Return the index of the class that each support vector of a fitted batch classifier belongs to, as a list. ``rows`` [m, d]
    are its support vectors.
    """
    if hasattr(model, "n_support_"):  # they are sorted by class
        return np.repeat(np.arange(len(model.classes_)), model.n_support_).tolist()
    coefficients = model._coefficients
    if len(coefficients) == 1:
        return (coefficients[0] > 0.0).astype(int).tolist()
    # In one-vs-rest machines, a positive coefficient marks the class. A row without one is not a support vector of its own
    # class's machine: its class is that with the largest decision value among the machines where its coefficient is 0.
    values, is_unclear = np.array(coefficients), (coefficients <= 0.0).all(axis=0)
    if is_unclear.any():
        decisions = model.decision_function(rows[is_unclear]).T
        values[:, is_unclear] = np.where(coefficients[:, is_unclear] < 0.0, -np.inf, decisions)
    return values.argmax(axis=0).tolist()


def _explain_estimator(model: Any, row: np.ndarray, typical: np.ndarray, names: Sequence[Hashable]) -> Explanation:
    """Return the contribution of each feature to the decision of a fitted batch estimator for ``row`` [d], compared with the row
    ``typical`` [d]: to the decision value of its predicted class, or for a regressor to its prediction. ``names`` are the names
    of the d features.
    """
    decide = model.decision_function if hasattr(model, "decision_function") else model.predict
    [prediction] = to_list(model.predict(row[None]))
    values = np.asarray(decide(row[None]))
    index = int(np.argmax(values[0])) if values.ndim == 2 else None
    sign = -1.0 if hasattr(model, "classes_") and index is None and not values[0] > 0.0 else 1.0

    def decide_for_prediction(rows: np.ndarray) -> np.ndarray:
        values = np.asarray(decide(rows), np.float64)
        return values[:, index] if index is not None else sign * values

    return make_explanation(
        prediction, decide_for_prediction, row, typical, names, {}, dict(zip(names, row.tolist(), strict=True))
    )


def _validate_labels(y: Any, n: int) -> list[Any]:
    """Return the labels or targets ``y`` as a list; raise a ValueError if y is not a sequence of ``n`` items."""
    labels = y if isinstance(y, str | bytes) or getattr(y, "ndim", 1) != 1 or hasattr(y, "columns") else to_list(y)
    if not isinstance(labels, list) or len(labels) != n:
        raise ValueError(f"y must be a sequence of {n:,} labels, one for each row")
    return labels


def _choose_rows(n: int, max_rows: int) -> list[int]:
    """Return the indices of at most ``max_rows`` of n rows, evenly spaced: all of them if there are no more."""
    return list(range(n)) if n <= max_rows else np.linspace(0, n - 1, max_rows).astype(int).tolist()


def _compute_error(y: Sequence[Any], predictions: Sequence[Any], is_regression: bool) -> float:
    """Return the error of ``predictions`` compared with the true values ``y``: the mean absolute error if ``is_regression``, else
    the fraction of wrong labels.
    """
    if is_regression:
        return float(np.mean(np.abs(np.array(list(map(parse_target, y))) - np.asarray(predictions, np.float64))))
    return float(np.mean([label != prediction for label, prediction in zip(y, predictions, strict=True)]))


class _LearnerTask:
    """The importance of features of an online learner or a table's model, which predicts rows that are dicts."""

    def __init__(self, model: Any, rows: Any, y: Any, max_rows: int) -> None:
        label = model.label if isinstance(model, TableModel) else None
        if hasattr(rows, "columns"):
            names, columns, rows = to_columns(rows)
            table, indices = Table(tuple(names), columns), _choose_rows(len(rows), max_rows)
            xs: list[Any] = [table.row(i).x for i in indices]
        elif isinstance(rows, np.ndarray):
            indices = _choose_rows(len(rows), max_rows)
            xs = [dict(enumerate(row)) for row in rows[indices].tolist()]
        else:
            rows = list(rows if isinstance(rows, Iterable) else [])
            indices = _choose_rows(len(rows), max_rows)
            xs = [rows[i] for i in indices]
        for x in xs:
            if not isinstance(x, Mapping):
                advice = ": pass labels as y, not in pairs" * isinstance(x, tuple)
                raise ValueError(f"a row must be a mapping of names to values, not {short_repr(x)}{advice}")
        ys: list[Any] | None = None
        if y is not None and detects_anomalies(model):
            raise ValueError(f"{type(find_learner(model)).__name__} predicts no labels: leave y out")
        if y is not None:
            labels = _validate_labels(y, len(rows))
            ys = [labels[i] for i in indices]
        elif label is not None:
            ys = [x.get(label) for x in xs]
        if ys is not None:
            ys = model.parse_labels(ys) if isinstance(model, TableModel) else [None if is_null(item) else item for item in ys]
        if ys is not None and any(item is not None for item in ys):
            labelled = [i for i, item in enumerate(ys) if item is not None]
            xs, ys = [xs[i] for i in labelled], [ys[i] for i in labelled]
        else:
            ys = None
        self._model, self._xs, self.y, self.n_rows = model, xs, ys, len(xs)
        last_step = getattr(model, "_last_step", None)
        self._is_regression = isinstance(model, base.Regressor) or isinstance(last_step, base.Regressor)
        if self.y is not None:
            self._pipeline = ValidatingPipeline(model, learns=False)
            self._supports_batches = supports_batches(self._pipeline, False)

    def explain_row(self, i: int) -> Mapping[Hashable, float]:
        """Return a dict of feature name to its contribution to the model's decision for the row with index ``i``."""
        return explain_one(self._model, self._xs[i]).contributions

    def list_columns(self, names: Iterable[Hashable]) -> list[Hashable]:
        """Return the names of the columns whose values can be shuffled to measure their importance: the model's features
        ``names`` and its keys, or all columns of the rows if the model is a river pipeline, whose transformers receive those
        columns.
        """
        model, columns = self._model, dict.fromkeys(name for x in self._xs for name in x)
        while isinstance(model, base.Wrapper):
            model = model._wrapped_model
        if hasattr(model, "explain_one"):
            return [name for name in dict.fromkeys([*names, *find_keys(self._model)]) if name in columns]
        return list(dict.fromkeys([*(name for name in names if name in columns), *columns]))

    def compute_error(self, name: Hashable, order: np.ndarray | None) -> float:
        """Return the model's error (fraction of wrong labels, or mean absolute error) if the values of the column ``name`` are
        permuted among the rows. ``order`` is the permutation of row indices; None stands for the original order.
        """
        xs = self._xs
        if order is not None:
            values = [xs[i].get(name) for i in order.tolist()]
            xs = [
                {**x, name: value} if value is not None else {key: x[key] for key in x if key != name}
                for x, value in zip(xs, values, strict=True)
            ]
        return _compute_error(self.y or [], self._predict_rows(xs), self._is_regression)

    def _predict_rows(self, xs: Sequence[Mapping[Any, Any]]) -> list[Any]:
        """Return the model's prediction for each row of ``xs`` (dicts), as a list. Rows are predicted in batches if the model
        supports them.
        """
        predictions: list[Any] = []
        chunk, is_batched = Chunk([Row(dict(x)) for x in xs], str), self._supports_batches
        while (n := len(predictions)) < len(xs):
            batch = next_batch(chunk, n, len(xs), self._pipeline, False, bool, self._is_regression) if is_batched else None
            if batch is None:
                predictions.append(self._model.predict_one(xs[n]))
            else:
                predictions += self._pipeline.last_step.predict_then_learn(batch.X, batch.names, [None] * len(batch.X), False)[0]
        return predictions


class _EstimatorTask:
    """The importance of features of a fitted estimator of `streamsvm.batch`, which predicts rows of a matrix."""

    def __init__(self, model: Any, rows: Any, y: Any, max_rows: int) -> None:
        names = list(rows.columns) if hasattr(rows, "columns") else None
        X = np.asarray(rows, np.float64)
        indices = _choose_rows(len(X), max_rows)
        self._model, self._X, self.n_rows = model, X[indices], len(indices)
        self._names: list[Hashable] = list(range(X.shape[1])) if names is None else names
        self.y = None if y is None else [_validate_labels(y, len(X))[i] for i in indices]
        self._typical = X.mean(axis=0) if len(X) else X
        self._is_regression = not hasattr(model, "classes_")

    def explain_row(self, i: int) -> Mapping[Hashable, float]:
        """Return a dict of feature name to its contribution to the estimator's decision for the row with index ``i``."""
        return _explain_estimator(self._model, self._X[i], self._typical, self._names).contributions

    def list_columns(self, names: Iterable[Hashable]) -> list[Hashable]:
        """Return the columns whose values are shuffled to measure their importance: all explained features ``names``, as a
        list.
        """
        return list(names)

    def compute_error(self, name: Hashable, order: np.ndarray | None) -> float:
        """Return the estimator's error (fraction of wrong labels, or mean absolute error) if the values of the column ``name``
        are permuted among the rows. ``order`` is the permutation of row indices; None stands for the original order.
        """
        X = self._X
        if order is not None:
            column = self._names.index(name)
            X = X.copy()
            X[:, column] = X[order, column]
        return _compute_error(self.y or [], to_list(self._model.predict(X)), self._is_regression)
