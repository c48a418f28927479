"""The base of all online learners: rows and frames are checked, converted and passed to compiled code."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

import numpy as np

from streamsvm.core.checks import OutputName, check_number, check_one_of
from streamsvm.core.compiling.functions import get_address
from streamsvm.core.explaining import Examples, Explanation, Groups
from streamsvm.core.frames import FrameBatch, to_matrix
from streamsvm.core.sparse import gather_columns, iter_slices, to_dense
from streamsvm.core.steps import decisions, iterates
from streamsvm.core.steps.rule import OUTPUT_SIGNATURE, REFUSED, compute_outputs, learn_rows
from streamsvm.core.warning import warn
from streamsvm.files.messages import short_repr
from streamsvm.learners.explained import KnownRows, explain, find_examples
from streamsvm.learners.store_estimator import StoreEstimator, check_record, learner

__all__ = ["OnlineEstimator", "check_record", "learner"]

_OUTPUT_CODES = {"auto": iterates.DECISION, "last": iterates.LAST_ITERATE, "average": iterates.AVERAGE_ITERATE}
_MAX_ROWS_PER_CALL = 5000  # an interrupt waits for the end of a compiled call


class OnlineEstimator(StoreEstimator):
    """The base of models of fixed size that learn row by row and average their iterates.

    A subclass makes the store, and has the methods that pass rows to compiled code. Refused input does not change the model.
    A model is not thread-safe, not even for predictions: each row is written into its memory.

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.
    """

    #: Compiled: returns an output of the current row, from the block and one of the output codes of `iterates`.
    _output_function: ClassVar[Any]

    # Learning ---------------------------------------------------------------------------------------------------------------

    def _learn_row(self, x: Mapping[Any, Any], target: float, weight: float, outputs: int = 1) -> None:
        """Learn one row ``x`` (a dict of feature name to number) with its numeric ``target`` and its ``weight``. ``outputs`` is
        the number of decision values that the model needs, which can grow with a new label. Raises a ValueError for an invalid
        row; then the model does not change.
        """
        store, n_features = self._store, self._store.used
        try:
            if self._features.fill_row(self._row, x, True):
                self._grow_columns(x)
            if outputs != self._n_outputs:
                self._resize(outputs)
            self._prepare_to_learn(1)
        except BaseException:  # also for an interrupt
            self._rollback_row(n_features, store)
            raise
        if self._rule.learn_one(self._block, target, weight) == REFUSED:
            self._rollback_row(n_features, store)
            self._features.raise_for_row(x)

    def _learn_batch(self, batch: FrameBatch) -> None:
        """Learn the rows of ``batch`` (a matrix with names, targets and weights) in order. If a row is invalid, raise a
        ValueError with its number, and learn none of the rows.
        """
        with self._rollback_names_on_error():
            targets, outputs = self._encode_targets(batch)
            columns = self._admit_features(batch)
            self._prepare_to_learn(batch.matrix.shape[0])
        try:
            for rows, n_outputs in _split_by_outputs(outputs):
                if n_outputs != self._n_outputs:
                    self._resize(n_outputs)
                    self._prepare_to_learn(batch.matrix.shape[0])
                for part in iter_slices(batch.matrix, self._store.used, rows, _MAX_ROWS_PER_CALL):
                    X, part_columns = gather_columns(batch.matrix[part], columns)
                    self._learn_rows(X, part_columns, targets[part], batch.weights[part])
        finally:
            if len(outputs) and self._n_outputs != outputs[-1]:  # after an interrupt: all labels have been added already
                self._resize(int(outputs[-1]))

    def _learn_rows(self, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> None:
        """Learn validated rows ``X`` [n, d] in one compiled call. ``columns`` [d] has the model's column index of each feature,
        and ``targets`` and ``weights`` are float64 [n]. Raises a RuntimeError if the budget of support vectors is full and the
        model cannot make room.
        """
        if learn_rows(self._rule.address, self._block, self._used_row, X, columns, targets, weights) < len(targets):
            self._raise_full_error()

    def _raise_full_error(self) -> NoReturn:
        """Raise the error for a row that could not be learned because the budget of support vectors is full. The base class
        raises NotImplementedError, because it has no budget.
        """
        raise NotImplementedError

    def _prepare_to_learn(self, rows: int) -> None:
        """Compile the functions that are needed to learn ``rows`` more rows, unless they are compiled already. By default,
        nothing needs to be compiled.
        """

    @contextmanager
    def _apply_class_weights(self, batch: FrameBatch, together: bool = False) -> Iterator[FrameBatch]:  # noqa: ARG002
        """Context manager that gives ``batch`` with row weights multiplied by class weights. By default, for models without class
        weights, it gives ``batch`` unchanged, and ``together`` has no effect.

        Balanced weights are based on the class counts up to each row, or with ``together`` on those after all rows.
        """
        yield batch

    def _encode_targets(self, batch: FrameBatch) -> tuple[np.ndarray, np.ndarray]:
        """Convert the labels or targets of ``batch`` to numbers for learning. Returns two arrays: the targets, float64 [n], and
        how many decision values (outputs) the model needs from each row on, int64 [n], which grows with new labels.
        """
        raise NotImplementedError

    def _admit_features(self, batch: FrameBatch) -> np.ndarray:
        """Add the feature names of ``batch`` to the model, and return the column index of each, int64 [features]. Raise a
        ValueError if there are too many names, or a row has a number that is not finite or too large.
        """
        features, matrix, names = self._features, batch.matrix, batch.names
        columns = features.find_columns(names, True) if matrix.shape[0] else np.empty(0, np.int64)
        self._grow_columns()
        for part in iter_slices(matrix, len(features)):
            row = self._find_first_refused(*gather_columns(matrix[part], columns))
            if row >= 0:
                row += part.start
                features.raise_for_numbers(to_dense(matrix[row : row + 1])[0], names, int(batch.numbers[row]))
        if len(columns):
            features.remember_order(names)
        return columns

    def _find_first_refused(self, matrix: np.ndarray, columns: np.ndarray) -> int:
        """Return the index of the first row of ``matrix`` [n, d] that has an invalid number (NaN, infinite or too large), or -1
        if all rows are valid. ``columns`` [d] are the model's column indices of the features.
        """
        are_distinct = len(np.unique(columns)) == len(columns) and (columns >= 0).all()
        is_scaled = getattr(self, "scaling", None) is not None
        return int(decisions.find_refused_row(self._used_row, matrix, columns, bool(are_distinct), is_scaled))

    def _rollback_row(self, n_features: int, store: Any) -> None:
        """Undo the changes of a row that was refused: return to the memory ``store`` and to the first ``n_features`` feature
        names, as before the row.
        """
        if store is not self._store:
            self._use_store(store)
        self._features.forget_names(n_features)
        self._store.used = n_features

    @contextmanager
    def _rollback_names_on_error(self) -> Iterator[None]:
        """Return a context manager that removes the feature names which this model has added inside the ``with`` statement, if
        the statement raises an exception or is interrupted.
        """
        n_features, store, order = self._store.used, self._store, self._features.order
        try:
            yield
        except BaseException:
            self._rollback_row(n_features, store)
            self._features.restore_order(order)
            raise

    # Predicting -------------------------------------------------------------------------------------------------------------

    @property
    def _output_address(self) -> int:
        """The memory address of the compiled function that computes this model's outputs, for calls from other compiled code."""
        return get_address(self._output_function, OUTPUT_SIGNATURE, "f8")

    @property
    def _used_row(self) -> np.ndarray:
        """A view [features] of the part of the current row (an array in the model's memory) that has features so far."""
        return self._row[: self._store.used]

    def _compute_output(self, x: Mapping[Any, Any], output: int) -> float:
        """Return one number that the model computes for the row ``x``, a dict of feature name to number. ``output`` is an integer
        code that selects the decision value, a probability, or the decision value by the latest or the averaged weights. Raises a
        ValueError if a feature is not a finite number.
        """
        self._features.fill_row(self._row, x, False)
        f: float = self._output_function(self._block, output)
        if f != f:
            self._features.raise_for_row(x)
        return f

    def _compute_outputs(self, X: Any, output: int) -> tuple[np.ndarray, Any]:
        """Compute decision values or probabilities for the rows of ``X`` (a frame or array). Returns a pair: the values, float64
        [n, 1 or more], and the frame itself, or None for an array. ``output`` is an integer code that selects the kind of value.
        Raises a ValueError for an invalid row.

        With several outputs, column 0 is the index of the best output, and the others are the values of all outputs.
        """
        matrix, names, like = to_matrix(X, self._dtype)
        columns = self._features.find_columns(names, False)
        n = matrix.shape[0]
        if n and len(self._features):
            self._warn_of_names(names, columns, like is None)
        values = np.empty((n, 1 if self._n_outputs == 1 else self._n_outputs + 1))
        for part in iter_slices(matrix, len(self._features)):
            self._compute_matrix_outputs(*gather_columns(matrix[part], columns), output, values[part])
        refused = np.flatnonzero(np.isnan(values[:, 0]))
        if len(refused):
            row = int(refused[0])
            self._features.raise_for_numbers(to_dense(matrix[row : row + 1])[0], names, row)
        return values, like

    def _compute_matrix_outputs(self, matrix: np.ndarray, columns: np.ndarray, output: int, values: np.ndarray) -> None:
        """Compute decision values or probabilities for the rows of ``matrix`` [n, d], and write them into ``values`` [n, 1 or
        more], with NaN for rows with invalid numbers. ``columns`` [d] has the model's column index of each feature; ``output`` is
        an integer code that selects the kind of value.
        """
        compute_outputs(self._output_address, self._block, self._used_row, self._scores, matrix, columns, output, values)

    def _warn_of_names(self, names: list[Hashable], columns: np.ndarray, is_array: bool) -> None:
        """Warn the user if the rows to predict do not fit the model: if it has learned none of their feature ``names``, or if
        they are an array (``is_array``) with fewer columns than the model has features. ``columns`` are the names' column
        indices, or -1.
        """
        n_features = len(self._features)
        if names and (columns < 0).all():
            learned = ", ".join(map(short_repr, self.feature_names[:5])) + ", ..." * (n_features > 5)
            unknown = ", ".join(map(short_repr, names[:5])) + ", ..." * (len(names) > 5)
            warn(
                f"the model has learned none of the columns of X ({unknown}), so its predictions mean nothing: it knows {learned}"
            )
        elif is_array and len(names) < n_features:
            warn(f"X has {len(names):,} columns, but the model has learned {n_features:,} features: the others count as 0")

    def _find_output_code(self, name: OutputName) -> int:
        """Return the integer code for the output ``name``: the latest weights (``"last"``), their running average
        (``"average"``), or those that predictions use (``"auto"``). A model without averaging always has the code of the latest
        weights. Raises a ValueError for other names.
        """
        check_one_of("output", name, _OUTPUT_CODES)
        return iterates.LAST_ITERATE if self.averaging == 0 else _OUTPUT_CODES[name]

    @property
    def follows_average(self) -> bool:
        """Whether predictions currently use the running average of the model's weights (True) or the latest weights (False),
        whichever has made fewer recent errors.
        """
        return bool(iterates.is_average_better(self._common[0]))

    # Starting from another model ----------------------------------------------------------------------------------------------

    def _check_unlearned(self, n_learned: int) -> None:
        """Raise a ValueError if this model has already learned something, or if ``n_learned``, the number of rows to count as
        learned by a warm start, is not an integer of at least 0.
        """
        if self.feature_names or self.n_learned or getattr(self, "n_support", 0):
            raise ValueError("start_from needs a model that has learned nothing: clone() makes one")
        check_number("n_learned", n_learned, 0, inclusive=True, high=2**61, integer=True)

    def _check_start_names(self, n: int, names: Sequence[Hashable] | None) -> list[Hashable]:
        """Return the ``n`` feature names for a warm start as a list: ``names``, or 0, 1, ..., n - 1 if None. Raise a ValueError
        if there are not exactly n different names, or more than ``max_features``.
        """
        names = list(range(n) if names is None else names)
        if len(names) != n or len(set(names)) != n or n > self.max_features:
            raise ValueError(f"feature_names must be {n} different names, and at most max_features={self.max_features}")
        return names

    def _set_start_labels(self, labels: Sequence[Any] | None, outputs: int) -> float:
        """Register the ``labels`` of another model, whose coefficients this new model will start from, and return the factor for
        these coefficients. By default, for models without labels, return 1, and raise a ValueError if ``labels`` are passed or
        ``outputs``, its number of decision values, is not 1.
        """
        if labels is not None or outputs != 1:
            raise ValueError(f"{type(self).__name__} has one output and no labels")
        return 1.0

    # Columns and explanations -------------------------------------------------------------------------------------------------

    def note_columns(self, names: Sequence[Hashable]) -> None:
        """Remember ``names``, the column order of a table, so that a model that is exported later (to C, ONNX, ...) expects the
        numbers of a row in this order.

        `learn_many` with a frame, and loops over files with columns, call it. Dicts have no column order: if none is set, an
        exported model takes numbers in the natural order of their names (f2 before f10). Only the first order that differs from
        the natural one is kept; features that it lacks follow it. Orders of more than twice ``max_features`` columns are ignored.

        Parameters
        ----------
        names
            The names of the columns. Names that are not features have no effect.

        Examples
        --------
        >>> from streamsvm import BSGDClassifier
        >>> from streamsvm.export.convert import make_program
        >>> model = BSGDClassifier(budget=10)
        >>> model.learn_one({"sex": 1.0, "age": 31.0}, True)
        >>> [column.name for column in make_program(model).columns]
        ['age', 'sex']
        >>> model.note_columns(["sex", "age"])
        >>> [column.name for column in make_program(model).columns]
        ['sex', 'age']
        """
        self._features.remember_order(names)

    def explain_one(
        self, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None = None, groups: Groups = None, label: Any = None
    ) -> Explanation:
        """Return the contribution of each feature to the model's decision for the row ``x``, compared with the row ``typical``
        (by default the feature means, or 0 if the model does not scale rows). ``groups`` maps features to groups that are counted
        together. ``label`` is the label whose decision is explained, by default the predicted one.

        This takes two decision values per feature, which are computed in one compiled call.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers.
        typical
            The row to compare with. None: the running mean of each feature if the model scales rows, and 0 if it does not.
        groups
            A mapping of feature name to group. The features of a group are counted together, such as all features that an
            encoder makes of one column. None: each feature is counted by itself.
        label
            The label to explain the decision for. None: the predicted label.

        Raises
        ------
        ValueError
            A feature is not a finite number, the model has learned nothing yet, or the label is unknown.
        """
        return explain(self, x, typical, groups, label)

    def examples_one(self, x: Mapping[Any, Any], n: int = 3) -> Examples:
        """Return the stored rows (or support vectors) that are nearest to the row ``x``, at most ``n`` of each label, with their
        distances.

        An ensemble with an instance memory returns rows of that memory, at the distance that weights their votes. A kernel
        machine returns support vectors, at the Euclidean distance of scaled features; a support vector belongs to the label with
        its largest coefficient.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers.
        n
            The maximum number of rows of each label; for models without labels, of all rows.

        Raises
        ------
        ValueError
            A feature is not a finite number, the model has learned nothing yet, or it does not store rows, as linear models.

        Notes
        -----
        The search takes O(m d) for m rows of d features. An instance memory has the first 512 features. If feature names are
        hashed, a column is named by all features of x that share it, as in `explain_one`, or else by the first feature that used
        it.
        """
        return find_examples(self, x, n)

    def _find_known_rows(self, x: Mapping[Any, Any]) -> KnownRows:  # noqa: ARG002
        """Return the rows or support vectors that the model stores, with their distances to the row ``x`` and their labels or
        targets. Raise a ValueError if this kind of model does not store rows.
        """
        raise ValueError(f"a {type(self).__name__} stores no rows that could be examples")


def _split_by_outputs(outputs: np.ndarray) -> list[tuple[slice, int]]:
    """Group consecutive rows that need the same number of decision values, which is in ``outputs``, int64 [n], for each row.
    Returns a list of (slice of rows, number): for [1, 1, 3] it has slice(0, 2) with 1, and slice(2, 3) with 3.
    """
    if not len(outputs):
        return []
    bounds = [0, *(np.flatnonzero(np.diff(outputs)) + 1).tolist(), len(outputs)]
    return [(slice(start, stop), int(outputs[start])) for start, stop in itertools.pairwise(bounds)]
