"""The base of budgeted learners: models with support vectors, which a compiled update rule changes row by row."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from typing import Any, NoReturn

import numpy as np

from streamsvm.core.budget import Refusal, Strategy, choose_strategy
from streamsvm.core.budget.strategy import set_strategy
from streamsvm.core.checks import SCALINGS, OutputName, Scaling, make_random_state, parameter
from streamsvm.core.frames import FrameBatch
from streamsvm.core.memory.block import LARGEST, STATE_BEGIN, view_record
from streamsvm.core.memory.slots import remove_vector
from streamsvm.core.memory.support_vectors import SupportVectorStore
from streamsvm.core.steps import decisions
from streamsvm.core.steps.decisions import add_expansion
from streamsvm.core.steps.iterates import AVERAGE_ITERATE, COMMON_STATE, DECISION
from streamsvm.core.steps.rescale import GAMMA_FOLLOWS_SCALE
from streamsvm.core.steps.rule import FULL, LEARNED, REFUSED
from streamsvm.core.steps.step import draw_bits
from streamsvm.learners.estimator import learner
from streamsvm.learners.kernel_estimator import KernelEstimator
from streamsvm.learners.scaling import ScalingEstimator

_MAX_CHUNK_VALUES = 1_000_000  # `start_from` makes sparse vectors dense in chunks of at most this many numbers


@learner
class BudgetedEstimator(KernelEstimator, ScalingEstimator):
    """The base of models with support vectors, which a compiled update rule changes row by row.

    A learner's own file has the update rule and its parameters. This class passes rows to the rule; its subclasses for
    classification and regression encode targets.
    """

    scaling: Scaling = parameter(default="auto", choices=SCALINGS)
    """``"auto"`` scales rows inside the model, so that you need no scaler in front of it: each value is standardised by the
    location (mean, or 0) and standard deviation of its feature, and clipped to [-8, 8]. Location and standard deviation follow
    about the last 10,000 rows, and are robust against outliers. When they have changed by a few per cent, all support vectors are
    rescaled, so that old and new rows are compared on the same scale. A feature has no effect until its value has changed for the
    first time. Binary features (all values are 0 or 1) are not changed; if all features are binary, rare ones count more. None:
    rows are not scaled. The targets of a regressor are not scaled in either case.
    """

    _strategy: Strategy = field(init=False)
    #: Whether the strategy is compiled. It is when the budget may be exceeded for the first time, because it takes seconds.
    _is_ready: bool = field(init=False)

    _output_function = staticmethod(decisions.compute_output)
    _needs_gram = False
    _max_new_vectors = 1  # the number of support vectors that one row can add

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma == "scale" and self.scaling:
            self._common["gamma_rows"] = GAMMA_FOLLOWS_SCALE
        self._common["random"] = make_random_state(getattr(self, "seed", 0))
        self._write_rule_state()

    @property
    def _dtype(self) -> Any:
        """The numpy dtype of the rows that this model receives, before it scales them: float64 if it scales rows itself, else
        float32.
        """
        return np.float32 if self.scaling is None else np.float64

    def _make_store(self, outputs: int, columns: int) -> SupportVectorStore:
        """Return a new, empty memory (`SupportVectorStore`) for this model's support vectors, with room for ``outputs`` decision
        values per row and ``columns`` features. It also has room for the Gram matrix or for recent rows, if this model's
        parameters require them.
        """
        # In a learner without the parameter ``maintenance``, the update rule maintains the budget, or nothing does.
        self._strategy = choose_strategy(self.kernel, self.maintenance) if hasattr(self, "maintenance") else Refusal()
        gram = self._needs_gram or self._strategy.needs_gram
        window = getattr(self, "replay", 0)
        # Each output has two rows of coefficients: those of the last iterate and of the average.
        sizes = self.budget, self.max_features, 2 * outputs, gram, window
        return SupportVectorStore(*sizes, scaled=self.scaling is not None, columns=columns)

    def _make_store_attributes(self, store: SupportVectorStore) -> dict[str, Any]:
        """Return the attributes that this model must set when it starts to use the memory ``store``, as a dict of name to value:
        views of the memory's arrays, such as the current row, and the number of decision values per row.
        """
        row = store.views.unscaled if self.scaling else store.views.rows[0]
        return {**super()._make_store_attributes(store), "_row": row, "_n_outputs": store.n_outputs // 2, "_is_ready": False}

    # One row --------------------------------------------------------------------------------------------------------------

    def _learn_row(self, x: Mapping[Any, Any], target: float, weight: float, outputs: int = 1) -> None:
        """Learn one row ``x`` (a dict of feature name to number) with its numeric ``target`` and its ``weight``. ``outputs`` is
        the number of decision values that the model needs, which can grow with a new label. Raises a ValueError for an invalid
        row, and a RuntimeError if a model without budget maintenance is full; then the model does not change.
        """
        store, n_features = self._store, -1
        try:
            if self._features.fill_row(self._row, x, True):
                n_features = store.used
                self._grow_columns(x)
            if outputs != self._n_outputs:
                self._resize(outputs)
            before = store.snapshot() if self._refuses_when_full and self.n_support == self.budget else None
            if not self._is_ready:
                self._prepare_to_learn(1)
        except BaseException:  # also for an interrupt
            self._rollback_row(store.used if n_features < 0 else n_features, store)
            raise
        status = self._rule.learn_one(self._block, target, weight)
        if status != LEARNED:
            if status == FULL and not self._refuses_when_full:
                self._raise_strategy_error()
            if before is not None:
                store.restore(before, trusted=True)
            self._rollback_row(store.used if n_features < 0 else n_features, store)
            if status == REFUSED:
                self._features.raise_for_row(x)
            self._raise_budget_error()

    def _prepare_to_learn(self, rows: int | None = None) -> None:
        """Compile the function that maintains the budget before it is needed for the first time: if learning ``rows`` more rows
        could exceed the budget of support vectors, or always if ``rows`` is None.
        """
        # Learned rows are counted, too, so that a model that never fills its budget is not checked forever.
        if not self._is_ready and (rows is None or self.n_learned + self.n_support + rows * self._max_new_vectors > self.budget):
            set_strategy(self._store, self._strategy, self._n_outputs > 1)
            self._is_ready = True

    def _shrink_to(self, requested: Any) -> None:
        """Merge or remove support vectors by the strategy of this model, until they fit the smaller budget of ``requested``, an
        untrained model. Raise a ValueError if it has no such strategy.
        """
        shrink_store(self._store, self._strategy, requested.budget)

    def _raise_budget_error(self) -> NoReturn:
        """Raise a RuntimeError: the row exceeds the budget of support vectors, and this kind of model does not merge or remove
        support vectors to make room.
        """
        raise RuntimeError(
            f"{type(self).__name__} has no budget maintenance, and the row exceeds its budget of {self.budget} support vectors: "
            "use a larger budget, or a learner with budget maintenance"
        )

    def _raise_strategy_error(self) -> NoReturn:
        """Remove the newest support vector, and raise a RuntimeError: the budget maintenance strategy has not reduced the model
        to its budget, although it should have.
        """
        remove_vector(self._block, self.n_support - 1)  # the slot of the next row
        raise RuntimeError(
            f"{self._strategy!r} has not reduced the model to its budget of {self.budget} support vectors: its event must remove "
            "one. The newest support vector was removed instead"
        )

    # Many rows --------------------------------------------------------------------------------------------------------------

    def _learn_batch(self, batch: FrameBatch) -> None:
        """Learn the rows of a validated ``batch`` (matrix, names, targets and weights) in order. If a row exceeds the budget of a
        model without budget maintenance, the whole batch is undone, and a RuntimeError is raised.
        """
        if not self._refuses_when_full:
            super()._learn_batch(batch)
            return
        store = self._store
        before = store.snapshot()
        with self._rollback_names_on_error():
            try:
                super()._learn_batch(batch)
            except BaseException:
                store.restore(before, trusted=True)
                raise

    def _raise_full_error(self) -> NoReturn:
        """Raise the RuntimeError for a row that could not be learned because the model already has ``budget`` support vectors.
        Its text depends on whether the model has a budget maintenance strategy.
        """
        if self._refuses_when_full:
            self._raise_budget_error()
        self._raise_strategy_error()

    # Starting from another model ------------------------------------------------------------------------------------------------

    def start_from(
        self,
        vectors: Any,
        coefficients: Any,
        intercept: Any = 0.0,
        *,
        feature_names: Sequence[Hashable] | None = None,
        labels: Sequence[Any] | None = None,
        n_learned: int = 0,
    ) -> None:
        """Initialise this new, untrained model with the support vectors ``vectors`` [m, d], ``coefficients`` [outputs, m] and
        ``intercept`` of another kernel machine, such as one that a batch solver has trained. ``feature_names`` and ``labels`` are
        the names of the d columns and the classes; ``n_learned`` is the number of rows to count as learned.

        Both the last and the average iterate are set. Support vectors that exceed the budget are merged or removed by the
        strategy.

        Parameters
        ----------
        vectors
            The support vectors, float [m, d]: an array or a sparse matrix.
        coefficients
            The coefficients, float [outputs, m], or [m] for one output.
        intercept
            The intercepts, float [outputs], or one number.
        feature_names
            The names of the d columns. None: 0, 1, ..., d - 1.
        labels
            The labels of a classifier. Of two labels, the second one is that of decision values above 0 in the other model. This
            model decides by itself which label is positive (see `positive_label`), and negates the coefficients if necessary.
            With three or more labels, there is one output for each, in this order.
        n_learned
            The number of rows that count as learned. Some learning rates decrease with it.

        Raises
        ------
        ValueError
            This model has already learned something, or has ``scaling="auto"`` or ``gamma="scale"``; or the shapes, names or
            numbers do not fit.

        Notes
        -----
        This takes O(m d), and O(B d) for each of the m - B support vectors that exceed the budget B.
        """
        self._check_unlearned(n_learned)
        if self.gamma == "scale" and self.kernel != "linear":
            raise ValueError('start_from needs a gamma that is a number: "scale" would be estimated from later rows')
        if self.scaling is not None:
            raise ValueError(
                "start_from needs scaling=None: the support vectors of another model are compared with unscaled rows"
            )
        vectors = vectors.tocsr() if hasattr(vectors, "tocsr") else np.asarray(vectors)
        if vectors.ndim != 2 or vectors.dtype.kind not in "fiub":
            raise ValueError(f"vectors must be a matrix of numbers, not {vectors.ndim}-D of {vectors.dtype}")
        m, d = vectors.shape
        if m > self.budget and isinstance(self._strategy, Refusal):
            raise ValueError(
                f"there are {m} vectors, but {type(self).__name__} has no budget maintenance and budget={self.budget}"
            )
        names = self._check_start_names(d, feature_names)
        coefficients = np.atleast_2d(np.asarray(coefficients, np.float64))
        n_outputs, intercept = len(coefficients), np.asarray(intercept, np.float64)
        if coefficients.shape != (n_outputs, m):
            raise ValueError(f"coefficients must have the shape [outputs, {m}], not {list(coefficients.shape)}")
        if not (np.isfinite(coefficients).all() and np.isfinite(intercept).all() and intercept.shape in ((), (n_outputs,))):
            raise ValueError(f"coefficients and intercept must be finite numbers, one intercept for each of {n_outputs} outputs")
        columns, chunk_rows = np.arange(d), max(_MAX_CHUNK_VALUES // max(d, 1), 1)
        chunks = [vectors[start : start + chunk_rows] for start in range(0, m, chunk_rows)]
        before = self._store.snapshot()
        try:
            with self._rollback_names_on_error():
                sign = self._set_start_labels(labels, n_outputs)
                self._features.restore(names)
                self._grow_columns()
                for number, chunk in enumerate(_to_dense_rows(chunk, self._dtype) for chunk in chunks):
                    row = self._find_first_refused(chunk, columns)
                    if row >= 0:
                        self._features.raise_for_numbers(chunk[row], names, number * chunk_rows + row)
                self._prepare_to_learn()
                for number, chunk in enumerate(_to_dense_rows(chunk, self._dtype) for chunk in chunks):
                    part = np.ascontiguousarray(sign * coefficients[:, number * chunk_rows :][:, : len(chunk)].T)
                    if not add_expansion(self._block, chunk, columns, np.ones(len(chunk)), part):
                        self._raise_strategy_error()
                self.set_coefficients(self._get_coefficients("last"), sign * intercept)
        except BaseException:
            self._store.restore(before, trusted=True)
            raise
        self._common["t"], self._common["slope"] = n_learned, 0.0

    def set_coefficients(self, coefficients: Any, intercept: Any = 0.0) -> None:
        """Replace the ``coefficients`` of the support vectors, [outputs, n_support], and the ``intercept`` of each output of this
        model. The running average of the coefficients, which predictions may use instead of the latest ones, is set to the same
        values.

        Parameters
        ----------
        coefficients
            float [outputs, n_support], in the order and with the signs of the attribute ``coefficients``.
        intercept
            float [outputs], or one number.

        Raises
        ------
        ValueError
            A shape does not fit, or a number is not finite or too large.
        """
        live, n, views = self._store.n_outputs, self.n_support, self._store.views
        a, b = np.asarray(coefficients, np.float64), np.asarray(intercept, np.float64)
        if a.shape != (self._n_outputs, n) or b.shape not in ((), (self._n_outputs,)):
            raise ValueError(
                f"coefficients must have the shape [{self._n_outputs}, {n}], and intercept [{self._n_outputs}] or be one number"
            )
        if not ((np.abs(a) < LARGEST).all() and (np.abs(b) < LARGEST).all()):
            raise ValueError(f"coefficients and intercept must be numbers below {LARGEST:g}")
        b = np.broadcast_to(b, (self._n_outputs,))
        views.coefficients[:live, :n], views.biases[:live] = np.repeat(a, 2, axis=0), np.repeat(b, 2)
        self._common["scale"], self._common["average_v"], self._common["average_u"] = 1.0, 1.0, 0.0
        if "fitted" in (self._rule_record.dtype.names or ()):
            self._rule_record["fitted"] = 1

    # Properties of the model ------------------------------------------------------------------------------------------------

    @property
    def coefficients(self) -> np.ndarray:
        """The coefficients of the support vectors that predictions currently use, float64 [outputs, n_support]: the latest ones,
        or their running average, whichever has made fewer recent errors.

        With three or more classes, there is one output for each class.
        """
        return self._get_coefficients("auto")

    def _get_coefficients(self, output: OutputName) -> np.ndarray:
        """Return the coefficients of the support vectors, float64 [outputs, n_support]. ``output`` selects the latest ones
        (``"last"``), their running average (``"average"``), or those that predictions currently use (``"auto"``).
        """
        c, rows, code = self._common[0], self._store.coefficients, self._find_output_code(output)
        u, v = rows[::2], rows[1::2]
        if code == AVERAGE_ITERATE or (code == DECISION and self.follows_average):
            return c["average_v"] * v + c["average_u"] * u
        return c["scale"] * u

    @property
    def intercept(self) -> np.ndarray:
        """The intercepts that predictions currently use (the latest ones or their running average), float64 [outputs]; 0 if the
        model does not fit intercepts.
        """
        return self._store.views.biases[int(self.follows_average) : self._store.n_outputs : 2].copy()

    @property
    def n_merges(self) -> int:
        """The number of times that two support vectors were merged into one so far, to stay within the budget."""
        return int(self._common[0]["n_merges"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._store.n_outputs != 2 * self._n_outputs:
            raise ValueError(
                f"the saved model is corrupt: {self._store.n_outputs} rows of coefficients, but each output needs two"
            )

    def _list_learned_fields(self) -> dict[str, tuple[float, float]]:
        """Return the valid range of each field in the model's memory that learning changes, as a dict of field name to (minimum,
        maximum), to validate a saved model. It is empty for a model that scales rows.
        """
        return super()._list_learned_fields() if self.scaling is None else {}


def shrink_store(store: SupportVectorStore, strategy: Strategy, budget: int) -> None:
    """Merge or remove support vectors one by one, by the budget maintenance ``strategy`` of a model, until at most ``budget`` are
    in its memory ``store``. Raise a ValueError if that is impossible.
    """
    while (n := store.n_support) > budget:
        is_shared = store.n_outputs > 2
        set_strategy(store, strategy, is_shared)
        store.views.header["budget"] = n - 1
        if (event := strategy.event(is_shared)) is not None:
            common = view_record(store.block, STATE_BEGIN, COMMON_STATE)
            common["n_merges"] += event(store.block, np.uint64(draw_bits(store.block)))
        if store.n_support == n:
            raise ValueError(f"it has {n} support vectors, and its budget maintenance does not reduce them to {budget}")


def _to_dense_rows(rows: Any, dtype: Any) -> np.ndarray:
    """Convert ``rows`` (an array or a scipy sparse matrix, [n, features]) to a dense, C-contiguous array of ``dtype``."""
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and are refused later, with their feature's name
        return np.ascontiguousarray(rows.toarray() if hasattr(rows, "toarray") else rows, dtype)
