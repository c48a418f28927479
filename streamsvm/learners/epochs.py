"""Passes over a batch in the dual, with a coefficient for every row."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np

from streamsvm.budget import Removal
from streamsvm.learners import _bsca, _epochs, _online
from streamsvm.learners._inputs import Batch, as_batch, check_number, check_one_of
from streamsvm.learners.base import OUTPUTS, BudgetedEstimator

__all__ = ["DualAscent", "DualSolution"]

_PART = 20_000  # rows between two looks for Ctrl-C


class DualAscent(BudgetedEstimator):
    """A model that learns by steps along the coordinates of the dual: row by row, or in passes over a batch."""

    _rule: ClassVar[ModuleType] = _bsca
    C: float

    def learn_epochs(
        self, X: Any, y: Any, w: Any = 1.0, epochs: int = 10, on_epoch: Callable[[DualSolution], object] | None = None
    ) -> DualSolution:
        """Learn the rows of a frame in several passes, each in a random order.

        As in ``learn_many`` each row is stepped to its margin; but here it keeps its coefficient, and where it has overshot it is
        stepped back. Nothing is reprocessed or replayed. Passes end early when one of them steps no row.

        Parameters
        ----------
        X, y, w
            As in ``learn_many``.
        epochs
            Passes, at least 1.
        on_epoch
            Called with the solution after each pass.

        Returns
        -------
        The coefficients of the rows, with the objectives on request.

        Raises
        ------
        ValueError
            As ``learn_many``. The model is as it was then.

        Notes
        -----
        O(epochs n B d), and 8 bytes an output and 8 more for each row while the solution is kept. Ctrl-C ends the passes; the
        model keeps what it has learned.

        References
        ----------
        Qaadan, S., Schueler, M., Glasmachers, T. (2019). Dual SVM training on a budget. ICPRAM. Algorithm 2 (it appends alpha
        where alpha y is meant), rows without replacement.

        Examples
        --------
        >>> from river import datasets
        >>> from streamsvm import BSCAClassifier

        >>> rows = list(datasets.Bananas())
        >>> X, y = np.array([list(x.values()) for x, _ in rows]), [label for _, label in rows]
        >>> model = BSCAClassifier(budget=100, seed=0)
        >>> solution = model.learn_epochs(X, y, epochs=5)
        >>> model.n_support, solution.coefficients.shape, solution.n_epochs
        (100, (5300,), 5)
        >>> bool(solution.dual() < solution.primal())
        True
        """
        check_number("epochs", epochs, 1, inclusive=True, high=2**31, integer=True)
        if on_epoch is not None and not callable(on_epoch):
            raise ValueError(f"on_epoch must be a function of the solution or None, not {on_epoch!r}")
        batch = as_batch(X, y, w)
        with self._undoing():
            self._targets(batch)  # all labels become known, so that below each has the target that it keeps
            targets, outputs = self._targets(batch)
            columns = self._admit(batch)
            if len(outputs) and outputs[-1] != self._outputs:
                self._resize(int(outputs[-1]))
            self._n_features = len(self._features)
        solution = DualSolution(self, batch, columns, targets)
        rng = np.random.default_rng(int(_online.draw(self._block)))
        for _ in range(epochs):
            if not solution._learn_epoch(rng):
                break
            if on_epoch is not None:
                on_epoch(solution)
        return solution

    def _expansion(self, X: np.ndarray, columns: np.ndarray, weights: np.ndarray, coefficients: np.ndarray) -> Self:
        # A model of its own, with the rows of X as its support vectors.
        unneeded = {"averaging": 0, "replay": 0, "maintenance": Removal()}
        parameters = {name: value for name, value in unneeded.items() if name in self._get_params()}
        model = self.clone({**parameters, "budget": max(len(X), 1)})
        model._features.restore(self.feature_names)
        model._store.used = model._n_features = len(model._features)
        labels: Any = getattr(self, "_labels", None)  # a regressor has none
        if labels is not None:
            model._labels.restore(labels.seen)  # type: ignore[attr-defined]
        if self._outputs > 1:
            model._resize(self._outputs)
        header, common = model._store.views.header, model._common
        header["gamma"] = self.effective_gamma
        common["gamma_rows"], common["t"] = self._common["gamma_rows"], self._common["t"]
        _epochs.expand(model._block, X, columns, weights, coefficients)
        return model

    def _decisions(self, X: np.ndarray, columns: np.ndarray, what: int) -> np.ndarray:
        # float64 [n, outputs]
        decisions = np.empty((len(X), 1 if self._outputs == 1 else self._outputs + 1))
        _online.decide_many(self._block, X, columns, what, decisions)
        return decisions[:, -self._outputs :]


class DualSolution:
    """What passes over a batch have found: a coefficient of each row, and what they and the model are worth.

    `BSCAClassifier.learn_epochs` gives one. It holds the rows of the batch, and speaks of the model as it is when asked.
    """

    def __init__(self, model: DualAscent, batch: Batch, columns: np.ndarray, targets: np.ndarray) -> None:
        self._model, self._batch, self._columns, self._targets = model, batch, columns, targets
        self._coefficients = np.zeros((len(targets), model._outputs))
        self._stamps = np.full(len(targets), -1)
        #: Rows that each pass has stepped.
        self.n_stepped: list[int] = []

    def _learn_epoch(self, rng: np.random.Generator) -> int:
        model, batch = self._model, self._batch
        order, stepped = rng.permutation(len(batch.matrix)), 0
        for start in range(0, len(order), _PART):
            stepped += _epochs.learn_epoch(
                model._block,
                model._ready(),
                batch.matrix,
                self._columns,
                self._targets,
                batch.weights,
                order[start : start + _PART],
                self._coefficients,
                self._stamps,
            )
        self.n_stepped.append(stepped)
        return stepped

    @property
    def n_epochs(self) -> int:
        """Passes so far."""
        return len(self.n_stepped)

    @property
    def coefficients(self) -> np.ndarray:
        """The rows' coefficients, 0 where a row has weight 0: of two classes alpha y, of numbers alpha - alpha*, float64 [n];
        from the third class on float64 [n, classes].
        """
        every = np.zeros((self._batch.n_given, self._coefficients.shape[1]))
        every[self._batch.numbers] = self._coefficients
        return every[:, 0] if every.shape[1] == 1 else every

    def primal(self, output: str = "auto") -> float:
        """The primal objective of the budgeted model: |w|^2 / 2 + C sum of weight times loss. From the third class on, half of C,
        as a difference of outputs is as large as the one output of two classes. O(n B d).

        Parameters
        ----------
        output
            ``"last"``: of the last iterate; ``"average"``: of the average; ``"auto"``: of the one that predictions follow.
        """
        check_one_of("output", output, OUTPUTS)
        model, targets = self._model, self._targets
        f = model._decisions(self._batch.matrix, self._columns, OUTPUTS[output])
        layer = int(model.averaged) if output == "auto" else OUTPUTS[output]
        if model._outputs > 1:
            rows, own = np.arange(len(f)), targets.astype(np.intp)
            rivals = f.copy()
            rivals[rows, own] = -np.inf
            losses = 0.5 * np.maximum(1.0 - f[rows, own] + rivals.max(axis=1), 0.0)
        elif model._common["loss"][0] == _online.HINGE:
            losses = np.maximum(1.0 - targets * f[:, 0], 0.0)
        else:
            losses = np.maximum(np.abs(targets - f[:, 0]) - model._common["epsilon"][0], 0.0)
        return float(0.5 * _epochs.squared_norm(model._block, layer) + model.C * (self._batch.weights @ losses))

    def dual(self) -> float:
        """The dual objective of the rows' coefficients, of which no budget has taken anything: never above the primal objective
        of any model. O(m^2 d) for m rows with a coefficient that is not 0.
        """
        model, a = self._model, self._coefficients
        if model._outputs > 1:
            gain = a[np.arange(len(a)), self._targets.astype(np.intp)].sum()
        elif model._common["loss"][0] == _online.HINGE:
            gain = self._targets @ a[:, 0]
        else:
            gain = self._targets @ a[:, 0] - model._common["epsilon"][0] * np.abs(a).sum()
        return float(gain - 0.5 * _epochs.squared_norm(self.unmerged()._block, 0))

    def unmerged(self) -> DualAscent:
        """The model that would be without a budget: all rows with a coefficient that is not 0 are support vectors of it."""
        held = np.flatnonzero(self._coefficients.any(axis=1))
        model = self._model
        return model._expansion(self._batch.matrix[held], self._columns, self._batch.weights[held], self._coefficients[held])
