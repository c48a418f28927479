"""Coordinate ascent in the dual: the base of online learners, and several passes over a batch with a coefficient per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamsvm.core.checks import OutputName, check_number
from streamsvm.core.frames import FrameBatch, make_batch
from streamsvm.core.kernels import compute_kernel_matrix
from streamsvm.core.sparse import gather_columns, scatter_columns
from streamsvm.core.steps.coordinate_ascent import learn_epoch, step
from streamsvm.core.steps.iterates import HINGE
from streamsvm.core.steps.step import draw_bits
from streamsvm.learners.budgeted import BudgetedEstimator

_ROWS_PER_CALL = 20_000  # Ctrl-C is handled between two compiled calls
_CHUNK_ROWS = 1000  # the number of rows whose kernel values are in memory at a time


class DualAscent(BudgetedEstimator):
    """The base of models that learn by coordinate ascent in the dual, row by row or in passes over a batch."""

    _rule = step

    C: float
    """The maximum coefficient of a row, above 0, as in scikit-learn's SVC and SVR. It is multiplied by the weight of the row and
    by that of its class. A merged support vector represents several rows, and its coefficient may reach the sum of their limits.
    A single pass limits coefficients further, so that C rarely needs tuning: see the Notes of `BSCAClassifier`. In
    `BSCARegressor`, the limit of 2 described there increases while absolute errors are above 1.
    """
    relaxation: float
    """The length of a step, relative to the step that moves the row exactly onto the margin, or in regression its error to
    epsilon: above 0, and at most 2. With a value above 1 (over-relaxation), a row affects its neighbours more, and fewer rows
    become support vectors. In regression, decrease it for noisy targets, and increase it for concept drift.
    """

    def _make_rule_state(self) -> dict[str, Any]:
        """Return the initial state of dual coordinate ascent in the model's memory, as a dict of field name to value. The field
        ``one_pass``, which turns on limits on coefficients for single-pass learning, is True if ``averaging`` is above 0.
        """
        return {**super()._make_rule_state(), "one_pass": self.averaging > 0}

    def _list_fixed_fields(self) -> dict[str, Any]:
        """Return the fields of the model's memory that learning never changes, as a dict of field name to initial value, to
        validate a saved model. With ``averaging=0``, the fields of the drift detector are among them, because it is off.
        """
        unused = [] if self.averaging > 0 else ["forgotten", "drifts"]
        return {**super()._list_fixed_fields(), **{name: self._rule_record[0][name].copy() for name in unused}}

    @property
    def n_learned(self) -> int:
        """The number of rows that this model has learned so far. Rows of weight 0 do not count."""
        return super().n_learned + int(self._rule_record[0]["forgotten"])

    def learn_epochs(
        self, X: Any, y: Any, w: Any = 1.0, epochs: int = 10, on_epoch: Callable[[DualSolution], object] | None = None
    ) -> DualSolution:
        """Learn the rows ``X`` with labels or targets ``y`` and weights ``w`` in several passes (``epochs``), each in random
        order. ``on_epoch`` is a function that is called after each pass. Returns a ``DualSolution``, which has the dual
        coefficient of each row.

        As in ``learn_many``, each row takes a step towards its margin. But here a row keeps its coefficient from pass to pass, so
        that later passes correct earlier steps. Nothing is reprocessed or replayed. Learning ends early after a pass without a
        step, because all rows satisfy the margin within ``tol``.

        Parameters
        ----------
        X, y, w
            As in ``learn_many``. Pipelines of river cannot call this method: transform X first.
        epochs
            The number of passes, at least 1.
        on_epoch
            A function that is called with the solution after each pass. If it returns True, learning ends.

        Returns
        -------
        A solution with the coefficients of the rows. It can compute the objectives, and make more passes. The rows of each call
        count as new rows: a batch that is passed in two calls is learned twice.

        Raises
        ------
        ValueError
            As in ``learn_many``. The model does not change.

        Notes
        -----
        Learning takes O(epochs n B d). The solution takes 4 d + 8 outputs + 32 bytes per row while it exists; sparse rows are
        made dense. Ctrl-C ends learning, and the model keeps its progress. A remaining gap between the objectives is due to
        ``tol``, to too few passes, or to the budget.

        References
        ----------
        Qaadan et al. (2019), as in `BSCAClassifier`, with rows drawn without replacement.

        Examples
        --------
        >>> import numpy as np
        >>> from river import datasets
        >>> from streamsvm import BSCAClassifier

        >>> rows = list(datasets.Bananas())
        >>> X, y = np.array([list(x.values()) for x, _ in rows]), [label for _, label in rows]
        >>> model = BSCAClassifier(budget=100, seed=0)
        >>> model.learn_epochs(X, y, epochs=5)
        DualSolution(n_epochs=5, rows=5300)
        """
        _check_passes(epochs, on_epoch)
        with self._apply_class_weights(make_batch(X, y, w, self._dtype), together=True) as batch, self._rollback_names_on_error():
            self._encode_targets(batch)  # adds all labels: from the third one on, this changes the targets of earlier ones
            targets, outputs = self._encode_targets(batch)
            columns = self._admit_features(batch)
            if len(outputs) and outputs[-1] != self._n_outputs:
                self._resize(int(outputs[-1]))
        solution = DualSolution(self, batch, columns, targets)
        solution.learn(epochs, on_epoch)
        return solution


def _check_passes(epochs: int, on_epoch: object) -> None:
    """Raise a ValueError unless ``epochs`` is an integer of at least 1, and ``on_epoch`` (the callback after each pass) is a
    function or None.
    """
    check_number("epochs", epochs, 1, inclusive=True, high=2**31, integer=True)
    if on_epoch is not None and not callable(on_epoch):
        raise ValueError(f"on_epoch must be a function of the solution or None, not {on_epoch!r}")


class DualSolution:
    """The result of passes over a batch: the dual coefficient of each row, and the primal and dual objectives.

    ``learn_epochs`` of `BSCAClassifier` and `BSCARegressor` returns it. It has a copy of the rows, and uses the current model.
    Once the model has learned a label that is not in the rows, methods that compare rows and model raise a RuntimeError.
    """

    def __init__(self, model: DualAscent, batch: FrameBatch, columns: np.ndarray, targets: np.ndarray) -> None:
        X, self._columns = gather_columns(batch.matrix, columns)
        self._X = X.astype(np.float64)  # so that `learn_epoch` is compiled for one dtype only
        self._model, self._targets, self._weights, self._rows = model, targets, batch.weights, batch.numbers
        self._n_given = batch.n_in_call
        self._coefficients = np.zeros((len(targets), model._n_outputs))
        self._stamps = np.full(len(targets), -1)
        #: The number of rows that took a step, for each pass.
        self.n_stepped: list[int] = []

    def __repr__(self) -> str:
        return f"DualSolution(n_epochs={self.n_epochs}, rows={self._n_given})"

    def learn(self, epochs: int = 10, on_epoch: Callable[[DualSolution], object] | None = None) -> None:
        """Train the model with more passes over the rows of this solution: at most ``epochs``, each in random order. ``on_epoch``
        is called with the solution after each pass, and ends training if it returns True. Training also ends after a pass in
        which no row changes the model.
        """
        _check_passes(epochs, on_epoch)
        model = self._model
        rng = np.random.default_rng(int(draw_bits(model._block)))
        for _ in range(epochs):
            order, n_stepped = rng.permutation(len(self._X)), 0
            for start in range(0, len(order), _ROWS_PER_CALL):
                self._check_outputs()
                model._prepare_to_learn()
                n_stepped += learn_epoch(
                    model._block,
                    self._X,
                    self._columns,
                    self._targets,
                    self._weights,
                    order[start : start + _ROWS_PER_CALL],
                    self._coefficients,
                    self._stamps,
                    model._strategy.merges,
                )
            self.n_stepped.append(n_stepped)
            if on_epoch is not None and on_epoch(self):
                return
            if not n_stepped:
                return

    def _check_outputs(self) -> None:
        """Raise a RuntimeError if the model has learned a new label since this solution was created, because its coefficients
        lack that label.
        """
        if self._model._n_outputs != self._coefficients.shape[1]:
            raise RuntimeError("the model has learned a label that is not in these rows: call learn_epochs again")

    @property
    def n_epochs(self) -> int:
        """The number of passes over the rows of this solution so far."""
        return len(self.n_stepped)

    @property
    def coefficients(self) -> np.ndarray:
        """The dual coefficient of each row, float64 [n], or [n, classes] with three or more classes; 0 for rows of weight 0.

        For two classes they are alpha y (above 0 for the positive label), and in regression alpha - alpha*. With three or more
        classes they are in the order of the model's ``labels``.
        """
        coefficients = np.zeros((self._n_given, self._coefficients.shape[1]))
        coefficients[self._rows] = self._coefficients
        return coefficients[:, 0] if coefficients.shape[1] == 1 else coefficients

    def primal(self, output: OutputName = "auto") -> float:
        """Return the value of the primal objective of the SVM on the rows of this solution: |w|^2 / 2 + C times the weighted sum
        of losses. ``output`` selects the latest weights of the model (``"last"``), their running average (``"average"``), or
        those that predictions use (``"auto"``).

        With three or more classes C counts half, because the difference of two outputs is as large as the single output of two
        classes. This takes O(n B d), in float64.

        Parameters
        ----------
        output
            The iterate: ``"last"``, ``"average"``, or ``"auto"`` for the one that predictions follow.
        """
        self._check_outputs()
        model, targets = self._model, self._targets
        S, a = model.support_vectors.astype(np.float64), model._get_coefficients(output).T
        # The intercept is 0, except in a model from `start_from`.
        f = self._compute_decisions(self._get_scaled_rows(), S, a) + model.intercept
        if model._n_outputs > 1:
            rows, labels = np.arange(len(f)), targets.astype(np.intp)
            rivals = f.copy()
            rivals[rows, labels] = -np.inf
            losses = 0.5 * np.maximum(1.0 - f[rows, labels] + rivals.max(axis=1), 0.0)
        elif model._common["loss"][0] == HINGE:
            losses = np.maximum(1.0 - targets * f[:, 0], 0.0)
        else:
            losses = np.maximum(np.abs(targets - f[:, 0]) - model._common["epsilon"][0], 0.0)
        return float(0.5 * np.sum(a * self._compute_decisions(S, S, a)) + model.C * (self._weights @ losses))

    def dual(self) -> float:
        """Return the value of the dual objective of the SVM for the dual coefficients of the rows of this solution, a float.

        The budget does not affect these coefficients, so the dual objective is a lower bound of the primal objective of any model
        with the same kernel and C. This takes O(m^2 d) for m rows with a coefficient other than 0, in float64.
        """
        self._check_outputs()
        model, a = self._model, self._coefficients
        if model._n_outputs > 1:
            gain = a[np.arange(len(a)), self._targets.astype(np.intp)].sum()
        elif model._common["loss"][0] == HINGE:
            gain = self._targets @ a[:, 0]
        else:
            gain = self._targets @ a[:, 0] - model._common["epsilon"][0] * np.abs(a).sum()
        is_support = a.any(axis=1)
        X, a = self._get_scaled_rows()[is_support], a[is_support]
        return float(gain - 0.5 * np.sum(a * self._compute_decisions(X, X, a)))

    def _get_scaled_rows(self) -> np.ndarray:
        """Return the rows of this solution as the kernel receives them: with a column for each feature of the model, and scaled
        if the model scales rows; float64 [n, features].
        """
        X = scatter_columns(self._X, self._columns, self._model._store.used, np.float64)
        scale = self._model.scale_in_use
        return X if scale is None else scale.transform(X)

    def _compute_decisions(self, X: np.ndarray, S: np.ndarray, a: np.ndarray) -> np.ndarray:
        """Return the decision values without intercept, K(X, S) a, float64 [n, outputs], of the rows ``X`` [n, d]. ``S`` [m, d]
        are support vectors, ``a`` [m, outputs] their coefficients, and K is the model's kernel.
        """
        h = self._model._store.views.header[0]
        decisions = np.empty((len(X), a.shape[1]))
        for start in range(0, len(X), _CHUNK_ROWS):
            stop = start + _CHUNK_ROWS
            decisions[start:stop] = compute_kernel_matrix(h["kernel"], h["gamma"], h["coef0"], h["degree"], X[start:stop], S) @ a
        return decisions
