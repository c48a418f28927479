"""Passes over a batch in the dual, with a coefficient for every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamsvm.core.checks import OutputName, check_number
from streamsvm.core.frames import Batch, make_batch
from streamsvm.core.kernels import compute_kernel_matrix
from streamsvm.core.sparse import gather_columns, scatter_columns
from streamsvm.core.steps.coordinate_ascent import learn_epoch, step
from streamsvm.core.steps.iterates import HINGE
from streamsvm.core.steps.step import draw_bits
from streamsvm.learners.budgeted import BudgetedEstimator

_CALL = 20_000  # rows that one compiled call steps: Ctrl-C is seen between two calls
_CHUNK = 1000  # rows whose kernel values are held at once


class DualAscent(BudgetedEstimator):
    """The base of models that step along coordinates of the dual, row by row or in passes over a batch."""

    _rule = step

    C: float
    """The largest coefficient of a row, above 0, as in scikit-learn's SVC and SVR. The weight of the row and that of its class
    multiply it. A merged support vector stands for several rows, and its coefficient may be as large as their limits together.
    A single pass limits coefficients further, so C rarely needs tuning: see the Notes of `BSCAClassifier`. Their limit of 2
    grows in `BSCARegressor` while predictions miss their targets by more than 1.
    """
    relaxation: float
    """The length of a step, relative to the step that puts the row exactly onto the margin, or a prediction just back to within
    epsilon of the target: above 0, and at most 2. Above 1, a row supports its neighbours too, and fewer rows become support
    vectors. In regression, lower it for noisy targets, and raise it for a stream that drifts.
    """

    def _make_rule_state(self) -> dict[str, Any]:
        return {**super()._make_rule_state(), "one_pass": self.averaging > 0}

    def _list_fixed_fields(self) -> dict[str, Any]:
        unused = [] if self.averaging > 0 else ["forgotten", "drifts"]
        return {**super()._list_fixed_fields(), **{name: self._rule_record[0][name].copy() for name in unused}}

    @property
    def n_learned(self) -> int:
        """The number of rows learned so far. Rows of weight 0 do not count."""
        return super().n_learned + int(self._rule_record[0]["forgotten"])

    def learn_epochs(
        self, X: Any, y: Any, w: Any = 1.0, epochs: int = 10, on_epoch: Callable[[DualSolution], object] | None = None
    ) -> DualSolution:
        """Learn a batch of rows in several passes, each in a random order.

        As in ``learn_many``, each row is stepped to its margin. But here a row keeps its coefficient from pass to pass, and a
        step that was too long is taken back. Nothing is reprocessed or replayed. The passes end early when one of them steps no
        row, because all rows are within ``tol`` of where they should be.

        Parameters
        ----------
        X, y, w
            As in ``learn_many``. There is no way to do this through a pipeline: transform X first.
        epochs
            The number of passes, at least 1.
        on_epoch
            A function that is called with the solution after each pass. If it returns True, the passes end.

        Returns
        -------
        A solution with the coefficients of the rows. It can compute the objectives, and make more passes. All its rows count as
        new to the model: to learn the same batch in two calls is to learn each row twice.

        Raises
        ------
        ValueError
            As in ``learn_many``. The model stays as it was.

        Notes
        -----
        The passes cost O(epochs n B d). The solution takes 4 d + 8 outputs + 32 bytes a row for as long as you keep it. Ctrl-C
        ends the passes, and the model keeps what it has learned. A gap that remains between the objectives is due to ``tol``,
        to too few passes, and to the budget. Sparse rows are made dense for it.

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
            self._encode_targets(batch)  # all labels become known, so that below each has the target that it keeps
            targets, outputs = self._encode_targets(batch)
            columns = self._admit_features(batch)
            if len(outputs) and outputs[-1] != self._n_outputs:
                self._resize(int(outputs[-1]))
        solution = DualSolution(self, batch, columns, targets)
        solution.learn(epochs, on_epoch)
        return solution


def _check_passes(epochs: int, on_epoch: object) -> None:
    check_number("epochs", epochs, 1, inclusive=True, high=2**31, integer=True)
    if on_epoch is not None and not callable(on_epoch):
        raise ValueError(f"on_epoch must be a function of the solution or None, not {on_epoch!r}")


class DualSolution:
    """The result of passes over a batch: the dual coefficient of each row, and the objectives.

    ``learn_epochs`` of `BSCAClassifier` and `BSCARegressor` returns one. It holds a copy of the rows. What it computes is about
    the model as it is at that moment. Once the model has learned a label that the rows did not have, the coefficients no longer
    fit it, and methods that need both raise a RuntimeError.
    """

    def __init__(self, model: DualAscent, batch: Batch, columns: np.ndarray, targets: np.ndarray) -> None:
        X, self._columns = gather_columns(batch.matrix, columns)
        self._X = X.astype(np.float64)  # of one type, for which `learn_epoch` is compiled
        self._model, self._targets, self._weights, self._rows = model, targets, batch.weights, batch.numbers
        self._n_given = batch.n_in_call
        self._coefficients = np.zeros((len(targets), model._n_outputs))
        self._stamps = np.full(len(targets), -1)
        #: Rows that each pass has stepped.
        self.n_stepped: list[int] = []

    def __repr__(self) -> str:
        return f"DualSolution(n_epochs={self.n_epochs}, rows={self._n_given})"

    def learn(self, epochs: int = 10, on_epoch: Callable[[DualSolution], object] | None = None) -> None:
        """Make more passes, as in ``learn_epochs``."""
        _check_passes(epochs, on_epoch)
        model = self._model
        rng = np.random.default_rng(int(draw_bits(model._block)))
        for _ in range(epochs):
            order, stepped = rng.permutation(len(self._X)), 0
            for start in range(0, len(order), _CALL):
                self._check_outputs()
                model._prepare_to_learn()
                stepped += learn_epoch(
                    model._block,
                    self._X,
                    self._columns,
                    self._targets,
                    self._weights,
                    order[start : start + _CALL],
                    self._coefficients,
                    self._stamps,
                    model._strategy.merges,
                )
            self.n_stepped.append(stepped)
            if on_epoch is not None and on_epoch(self):
                return
            if not stepped:
                return

    def _check_outputs(self) -> None:
        if self._model._n_outputs != self._coefficients.shape[1]:
            raise RuntimeError("the model has learned a label since that its rows did not have: learn them in epochs again")

    @property
    def n_epochs(self) -> int:
        """The number of passes so far."""
        return len(self.n_stepped)

    @property
    def coefficients(self) -> np.ndarray:
        """The dual coefficient of each row, 0 for rows of weight 0.

        For two classes they are alpha y (above 0 for the positive label), and for numbers alpha - alpha*, float64 [n]. From the
        third class on they are float64 [n, classes], in the order of the model's ``labels``.
        """
        every = np.zeros((self._n_given, self._coefficients.shape[1]))
        every[self._rows] = self._coefficients
        return every[:, 0] if every.shape[1] == 1 else every

    def primal(self, output: OutputName = "auto") -> float:
        """Return the primal objective of the budgeted model: |w|^2 / 2 + C sum of weight times loss.

        From the third class on C counts half, because a difference of two outputs is as large as the one output of two classes.
        This costs O(n B d), in float64.

        Parameters
        ----------
        output
            ``"last"`` for the last iterate, ``"average"`` for the average, or ``"auto"`` for the one that predictions follow.
        """
        self._check_outputs()
        model, targets = self._model, self._targets
        S, a = model.support_vectors.astype(np.float64), model._coefficients_of(output).T
        f = self._decision_values(self._rows_in_columns(), S, a) + model.intercept  # which is none, but of a distilled model
        if model._n_outputs > 1:
            rows, own = np.arange(len(f)), targets.astype(np.intp)
            rivals = f.copy()
            rivals[rows, own] = -np.inf
            losses = 0.5 * np.maximum(1.0 - f[rows, own] + rivals.max(axis=1), 0.0)
        elif model._common["loss"][0] == HINGE:
            losses = np.maximum(1.0 - targets * f[:, 0], 0.0)
        else:
            losses = np.maximum(np.abs(targets - f[:, 0]) - model._common["epsilon"][0], 0.0)
        return float(0.5 * np.sum(a * self._decision_values(S, S, a)) + model.C * (self._weights @ losses))

    def dual(self) -> float:
        """Return the dual objective of the rows' coefficients.

        No budget has taken anything from these. So it is at most the primal objective of any model with the same kernel and C.
        This costs O(m^2 d) for m rows whose coefficient is not 0, in float64.
        """
        self._check_outputs()
        model, a = self._model, self._coefficients
        if model._n_outputs > 1:
            gain = a[np.arange(len(a)), self._targets.astype(np.intp)].sum()
        elif model._common["loss"][0] == HINGE:
            gain = self._targets @ a[:, 0]
        else:
            gain = self._targets @ a[:, 0] - model._common["epsilon"][0] * np.abs(a).sum()
        held = a.any(axis=1)
        X, a = self._rows_in_columns()[held], a[held]
        return float(gain - 0.5 * np.sum(a * self._decision_values(X, X, a)))

    def _rows_in_columns(self) -> np.ndarray:
        # float64 [n, columns in use], as the kernel takes them
        X = scatter_columns(self._X, self._columns, self._model._store.used, np.float64)
        scale = self._model.scale_in_use
        return X if scale is None else scale.transform(X)

    def _decision_values(self, X: np.ndarray, S: np.ndarray, a: np.ndarray) -> np.ndarray:
        # Of rows float64 [n, d] for support vectors float64 [m, d] with coefficients float64 [m, outputs].
        h = self._model._store.views.header[0]
        decisions = np.empty((len(X), a.shape[1]))
        for start in range(0, len(X), _CHUNK):
            stop = start + _CHUNK
            decisions[start:stop] = compute_kernel_matrix(h["kernel"], h["gamma"], h["coef0"], h["degree"], X[start:stop], S) @ a
        return decisions
