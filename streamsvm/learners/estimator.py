"""The base of all online learners: rows, frames and saved models, between river's protocol and compiled code."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NoReturn, TypeVar, dataclass_transform

import numpy as np

from streamsvm.core.checks import OutputName, Overflow, check_number, check_one_of, check_parameters, parameter
from streamsvm.core.compiling.common import expect_component
from streamsvm.core.compiling.functions import get_address
from streamsvm.core.docstrings import complete_docstring
from streamsvm.core.explaining import Examples, Explanation
from streamsvm.core.frames import Batch, to_matrix
from streamsvm.core.memory.block import STATE_BEGIN, STATE_END, choose_columns
from streamsvm.core.memory.features import OVERFLOW_POLICIES, FeatureSpace
from streamsvm.core.sparse import gather_columns, iter_slices, to_dense
from streamsvm.core.steps import decisions, iterates
from streamsvm.core.steps.iterates import INITIAL_SLOPE
from streamsvm.core.steps.rule import OUTPUT_SIGNATURE, REFUSED, FieldRange, Rule, compute_outputs, learn_rows
from streamsvm.core.warning import warn
from streamsvm.files.messages import short_repr
from streamsvm.learners.explained import explain, find_examples
from streamsvm.learners.river_base import RiverEstimator, list_parameters

_ITERATES = {"auto": iterates.DECISION, "last": iterates.LAST_ITERATE, "average": iterates.AVERAGE_ITERATE}
_Kind = TypeVar("_Kind")
_ROWS_AT_ONCE = 5000  # for which an interrupt waits


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(parameter, field))
def learner(kind: type[_Kind]) -> type[_Kind]:
    """Make a class a learner: its annotated attributes become the parameters of its constructor.

    Most of them are keyword-only. `complete_docstring` completes its docstring.
    """
    return complete_docstring(dataclass(eq=False, repr=False, kw_only=True, match_args=False)(kind))


@learner
class OnlineEstimator(RiverEstimator):
    """The base of models in memory of a fixed size, which learn row by row and average their iterates.

    A subclass makes the memory, and has the methods that hand rows to compiled code. Input that is refused leaves the model as
    it was. Use a model in one thread at a time, even to predict: each row is laid out inside its memory.

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.
    """

    # The other fields are made from the parameters, and not saved as they are.
    #: The model's memory. It has ``used`` (columns with a feature), ``nbytes``, ``snapshot`` and ``restore``.
    _store: Any = field(init=False)
    _block: np.ndarray = field(init=False)
    #: The place of a row in it, [columns]: looked up once, as each row needs it.
    _row: np.ndarray = field(init=False)
    #: Its decision values, where there is room for several.
    _scores: np.ndarray = field(init=False)
    #: Feature names and their columns in the memory.
    _features: FeatureSpace = field(init=False)
    #: Two records inside the block, [1] each: the state that all learners have, and the rule's.
    _common: np.ndarray = field(init=False)
    _rule_record: np.ndarray = field(init=False)
    #: Decision values that a row has now.
    _outputs: int = field(init=False)

    _rule: ClassVar[Rule]
    #: Compiled: what it is asked of the row at hand, by the block and a code of `iterates`.
    _decide: ClassVar[Any]
    _loss = iterates.HINGE
    max_features: int = 1024
    """The maximum number of feature names. Memory grows with those that come, up to this number: see ``nbytes``."""
    overflow: Overflow = parameter(default="raise", choices=OVERFLOW_POLICIES)
    """The treatment of a new feature name when there is no room left: ``"raise"`` a ValueError, ``"hash"`` the name into one of
    the columns in use (values that share a column are added up), or ``"ignore"`` the feature.
    """
    averaging = 0
    """The number of rows that the average of the iterates remembers; 0 turns averaging off, as by default in rules whose papers
    have no average. The last iterate jumps about, most of all with little regularisation. The average is steadier, but lags on
    a stream that drifts. Predictions follow whichever of the two has made fewer errors over the last 1,000 rows or so, or in
    regression has the smaller absolute error.
    """

    def __post_init__(self) -> None:
        expect_component(type(self))
        self._check_parameters()
        self._features = FeatureSpace(self.max_features, self.overflow, self._dtype)
        self._use_store(self._make_store(1, self._columns))
        self._common["scale"] = self._common["average_v"] = 1.0
        self._common["slope"] = INITIAL_SLOPE
        self._common["horizon"], self._common["loss"] = self.averaging, self._loss
        self._common["epsilon"] = getattr(self, "epsilon", 0.0)

    def _check_parameters(self) -> None:
        """Raise a ValueError that names a parameter which is out of its range, before there is any memory."""
        check_parameters(self)
        check_number("averaging", self.averaging, 0, inclusive=True, high=2**53, integer=True)

    def _make_store(self, outputs: int, columns: int) -> Any:
        """Make a store with room for so many outputs and features."""
        raise NotImplementedError

    @property
    def _columns(self) -> int:
        """The columns that a store has with the features that are known."""
        return choose_columns(len(self._features), self.max_features)

    @property
    def _dtype(self) -> Any:
        """The type of rows as they are given."""
        return np.float32

    def _use_store(self, store: Any) -> None:
        # At once: an interrupt finds the model with one store or the other.
        self.__dict__.update(self._make_store_attributes(store))

    def _make_store_attributes(self, store: Any) -> dict[str, Any]:
        """The attributes of a model whose memory is a store."""
        state, begin, dtype = store.block[STATE_BEGIN:STATE_END], iterates.RULE_STATE_OFFSET - STATE_BEGIN, self._rule.state
        own = state[begin : begin + dtype.itemsize].view(dtype) if dtype.names else np.zeros(1, dtype)
        common = state[:begin].view(iterates.COMMON_STATE)
        return {"_store": store, "_block": store.block, "_outputs": 1, "_common": common, "_rule_record": own}

    def _write_rule_state(self) -> None:
        for name, value in self._make_rule_state().items():
            self._rule_record[name] = value

    def _make_rule_state(self) -> dict[str, Any]:
        """The first values of the rule's state, 0 for fields left out: by default parameters of the same name."""
        parameters = list_parameters(type(self))
        return {name: getattr(self, name) for name in self._rule.state.names or () if name in parameters}

    # Rows -------------------------------------------------------------------------------------------------------------------

    def _learn_row(self, x: Mapping[Any, Any], target: float, weight: float, outputs: int = 1) -> None:
        """Learn a row. A row that is refused leaves nothing behind, not even the name of a feature."""
        store, n_features = self._store, self._store.used
        try:
            if self._features.fill_row(self._row, x, True):
                self._grow_columns(x)
            if outputs != self._outputs:
                self._resize(outputs)
            self._prepare_to_learn(1)
        except BaseException:  # an interrupt as well
            self._rollback_row(n_features, store)
            raise
        if self._rule.learn_one(self._block, target, weight) == REFUSED:
            self._rollback_row(n_features, store)
            self._features.raise_for_row(x)

    def _decide_row(self, x: Mapping[Any, Any], what: int) -> float:
        """Answer ``what`` is asked (a code of `iterates`) of a row; ValueError where a feature is not finite."""
        self._features.fill_row(self._row, x, False)
        f: float = self._decide(self._block, what)
        if f != f:
            self._features.raise_for_row(x)
        return f

    def _learn_batch(self, batch: Batch) -> None:
        with self._rollback_names_on_error():
            targets, outputs = self._encode_targets(batch)
            columns = self._admit_features(batch)
            self._prepare_to_learn(batch.matrix.shape[0])
        try:
            for rows, n in _runs_of_rows(outputs):
                if n != self._outputs:
                    self._resize(n)
                    self._prepare_to_learn(batch.matrix.shape[0])
                for part in iter_slices(batch.matrix, self._store.used, rows, _ROWS_AT_ONCE):
                    some = gather_columns(batch.matrix[part], columns)
                    self._learn_rows(*some, targets[part], batch.weights[part])
        finally:
            if len(outputs) and self._outputs != outputs[-1]:  # an interrupt: the labels are known by now
                self._resize(int(outputs[-1]))

    def _learn_rows(self, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> None:
        # Rows that were admitted, and need as many outputs as there are.
        if learn_rows(self._rule.address, self._block, self._used_row, X, columns, targets, weights) < len(targets):
            self._raise_full_error()

    def _raise_full_error(self) -> NoReturn:
        """Raise the error for a row that the rule could not learn; only one that a strategy keeps within its budget has some."""
        raise NotImplementedError

    def _prepare_to_learn(self, rows: int) -> None:
        # Before so many rows are learned, compile what they need.
        pass

    def _resize(self, outputs: int) -> None:
        """Go on with more outputs or columns, in a larger block. The one so far stays as it was, for a row that is refused."""
        store = self._make_store(outputs, self._columns)
        store.copy_from(self._store)
        if outputs != self._outputs:
            self._grow_outputs(store, outputs)
        opened = self._make_store_attributes(store)
        opened["_row"][: len(self._row)] = self._row
        self.__dict__.update(opened)

    def _grow_columns(self, x: Mapping[Any, Any] | None = None) -> None:
        """Make room for the features that are known, and fill the row at hand with ``x`` where it had none."""
        if self._columns > self._store.columns:
            self._resize(self._outputs)
            if x is not None:
                self._features.fill_row(self._row, x, False)
                self._row += 0.0  # no -0.0, as where it had room
        self._store.used = len(self._features)

    def _grow_outputs(self, store: Any, outputs: int) -> None:
        """Give a larger copy of the store so many outputs, so that the model decides as before. Only classifiers have several."""
        raise NotImplementedError

    @property
    def _decide_address(self) -> int:
        return get_address(self._decide, OUTPUT_SIGNATURE, "f8")

    @property
    def _used_row(self) -> np.ndarray:
        return self._row[: self._store.used]

    def _decide_matrix(self, matrix: np.ndarray, columns: np.ndarray, what: int, decisions: np.ndarray) -> None:
        """`_decide_row` for rows [n, features], into float64 [n, 1 or more]; NaN for a row that is refused."""
        compute_outputs(self._decide_address, self._block, self._used_row, self._scores, matrix, columns, what, decisions)

    @contextmanager
    def _apply_class_weights(self, batch: Batch, together: bool = False) -> Iterator[Batch]:  # noqa: ARG002
        """Give the rows of a batch the weights of their classes, where there are classes, and count them if they are learned.

        The weight is that as of the rows up to this one, or ``together`` as of all rows.
        """
        yield batch

    def _find_first_refused(self, matrix: np.ndarray, columns: np.ndarray) -> int:
        """The number of the first row that is not finite or too large, or -1."""
        distinct = len(np.unique(columns)) == len(columns) and (columns >= 0).all()
        scaled = getattr(self, "scaling", None) is not None
        return int(decisions.find_refused_row(self._used_row, matrix, columns, bool(distinct), scaled))

    def _encode_targets(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Labels or targets as compiled code takes them, float64 [n], and the outputs that each row needs, int64 [n]."""
        raise NotImplementedError

    def _rollback_row(self, n_features: int, store: Any) -> None:
        # Undo what a row that was refused has brought; it was the first one with this store.
        if store is not self._store:
            self._use_store(store)
        self._features.forget_names(n_features)
        self._store.used = n_features

    @contextmanager
    def _rollback_names_on_error(self) -> Iterator[None]:
        """Undo the names of features and labels that a batch has brought, where it is refused or its admission interrupted."""
        n_features, store, order = self._store.used, self._store, self._features.order
        try:
            yield
        except BaseException:
            self._rollback_row(n_features, store)
            self._features.restore_order(order)
            raise

    def _admit_features(self, batch: Batch) -> np.ndarray:
        """Admit the features of a batch of which all rows can be learned; their columns, int64 [features]."""
        features, matrix, names = self._features, batch.matrix, batch.names
        columns = features.find_columns(names, True) if matrix.shape[0] else np.empty(0, np.int64)
        self._grow_columns()
        for part in iter_slices(matrix, len(features)):
            row = self._find_first_refused(*gather_columns(matrix[part], columns))
            if row >= 0:
                row += part.start
                self._raise_row_error(to_dense(matrix[row : row + 1])[0], names, int(batch.numbers[row]))
        if len(columns):
            features.remember_order(names)
        return columns

    def _decide_rows(self, X: Any, what: int) -> tuple[np.ndarray, Any]:
        """Answers of `_decide_matrix`, float64 [n, 1 or more], and the frame that they are to be like (None for an array)."""
        matrix, names, like = to_matrix(X, self._dtype)
        columns = self._features.find_columns(names, False)
        n = matrix.shape[0]
        if n and len(self._features):
            self._warn_of_names(names, columns, like is None)
        decisions = np.empty((n, 1 if self._outputs == 1 else self._outputs + 1))
        for part in iter_slices(matrix, len(self._features)):
            some = gather_columns(matrix[part], columns)
            self._decide_matrix(*some, what, decisions[part])
        refused = np.flatnonzero(np.isnan(decisions[:, 0]))
        if len(refused):
            row = int(refused[0])
            self._raise_row_error(to_dense(matrix[row : row + 1])[0], names, row)
        return decisions, like

    def _warn_of_names(self, names: list[Hashable], columns: np.ndarray, is_array: bool) -> None:
        known = len(self._features)
        if names and (columns < 0).all():
            learned = ", ".join(map(short_repr, self.feature_names[:5])) + ", ..." * (known > 5)
            given = ", ".join(map(short_repr, names[:5])) + ", ..." * (len(names) > 5)
            warn(f"the model has learned none of the columns of X ({given}), so its answers mean nothing: it knows {learned}")
        elif is_array and len(names) < known:
            warn(f"X has {len(names):,} columns, and the model has learned {known:,} features: the others count as 0")

    def _raise_row_error(self, row: np.ndarray, names: list[Hashable], number: int) -> None:
        try:
            self._features.raise_for_row(dict(zip(names, row.tolist(), strict=True)))
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None

    def _check_unlearned(self, n_learned: int) -> None:
        # A model that is given can only be taken by one that has learned nothing.
        if self.feature_names or self.n_learned or getattr(self, "n_support", 0):
            raise ValueError("start_from needs a model that has learned nothing: clone() makes one")
        check_number("n_learned", n_learned, 0, inclusive=True, high=2**61, integer=True)

    def _check_start_names(self, n: int, names: Sequence[Hashable] | None) -> list[Hashable]:
        # The feature names of a model that is given.
        names = list(range(n) if names is None else names)
        if len(names) != n or len(set(names)) != n or n > self.max_features:
            raise ValueError(f"feature_names must be {n} different names, and at most max_features={self.max_features}")
        return names

    def _set_start_labels(self, labels: Sequence[Any] | None, outputs: int) -> float:
        # Know the labels of a model that is given; the sign of decision values for what it calls positive.
        if labels is not None or outputs != 1:
            raise ValueError(f"{type(self).__name__} has one output and no labels")
        return 1.0

    # What the model is ------------------------------------------------------------------------------------------------------

    def _find_output_code(self, name: OutputName) -> int:
        # Without averaging, the average is the last iterate.
        check_one_of("output", name, _ITERATES)
        return iterates.LAST_ITERATE if self.averaging == 0 else _ITERATES[name]

    @property
    def follows_average(self) -> bool:
        """Whether predictions currently follow the average iterate, and not the last one."""
        return bool(iterates.is_average_better(self._common[0]))

    @property
    def n_learned(self) -> int:
        """The number of rows learned so far. Rows of weight 0 do not count."""
        return int(self._common[0]["t"])

    @property
    def feature_names(self) -> list[Hashable]:
        """The names of the features seen so far, in the order of their columns."""
        return self._features.names

    def note_columns(self, names: Sequence[Hashable]) -> None:
        """Note the order in which a table has its columns: an exported model takes the numbers of a row in this order.

        `learn_many` of a frame, and a loop over a file with columns, do so by themselves. Dicts have no order: unless you say one
        here, an exported model takes numbers in the natural order of their names (f2 before f10). The first order that is not the
        natural one stays, and names that it lacks come after it. Nothing is noted of more than twice ``max_features`` columns.

        Parameters
        ----------
        names
            The names of the columns; the names of others than features do no harm.

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

    @property
    def nbytes(self) -> int:
        """The number of bytes that the model takes: constant, but for features and labels.

        A model begins with room for two features, which doubles where more come, up to ``max_features``. From the third label
        on, each new one takes the same number of bytes more, up to ``max_classes`` labels. Nothing else ever takes any. The
        formula is that of the store's ``nbytes``. While room is made, there is a copy of the model.
        """
        return int(self._store.nbytes)

    @property
    def _mutable_attributes(self) -> set[str]:
        return set()

    def explain_one(
        self,
        x: Mapping[Any, Any],
        typical: Mapping[Any, Any] | None = None,
        groups: Mapping[Any, Hashable] | None = None,
        label: Any = None,
    ) -> Explanation:
        """Return how much each feature of a row moves its decision, against that of a typical row.

        Two rows are decided for each feature, in one compiled call.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers.
        typical
            The row to compare with. None: the means by which the model scales; of features that it does not scale, 0.
        groups
            What features are of that count together, by their names, as all that an encoder makes of a column. None: each
            feature counts by itself.
        label
            The label whose decision is explained. None: the predicted one.

        Raises
        ------
        ValueError
            A feature is not a finite number, nothing was learned, or there is no such label.
        """
        return explain(self, x, typical, groups, label)

    def examples_one(self, x: Mapping[Any, Any], n: int = 3) -> Examples:
        """Return the rows of each label that the model knows and that are nearest to a row.

        An ensemble that remembers rows has those, at the distance by which they vote. A kernel machine has its support vectors,
        at the Euclidean distance in the features as it scales them; each belongs to the label that it speaks for.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers.
        n
            The most rows of each label; without labels, of all.

        Raises
        ------
        ValueError
            A feature is not a finite number, nothing was learned, or the model knows no rows, as linear ones do not.

        Notes
        -----
        It takes O(m d) for m rows of d features. An ensemble remembers the first 512 features. Where names are hashed, a column
        has the names of the row that share it, as in `explain_one`; else the first one that had it.
        """
        return find_examples(self, x, n)

    def _find_known_rows(self, x: Mapping[Any, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:  # noqa: ARG002
        """Return the rows that the model knows, [m, features] as it scales them; the distance of each, and the number of its
        label, or its target; and what they are.
        """
        raise ValueError(f"a {type(self).__name__} stores no rows that could be examples")

    # A model is saved as plain values. The constructor and the checks below put it together again, so that nothing that compiled
    # code relies on comes from a file unseen.

    def __getstate__(self) -> dict[str, Any]:
        parameters = self._get_params()  # river looks at the signature for them
        made = {declared.name for declared in fields(self)} | set(parameters)
        return {
            "parameters": parameters,
            "store": self._store.snapshot(),
            "features": self.feature_names,
            **({} if (order := self._features.order) is None else {"order": order}),
            "attributes": {name: value for name, value in self.__dict__.items() if name not in made},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state["attributes"].items():  # of a subclass, or of a user
            if hasattr(type(self), name):
                raise ValueError(f"the saved model is corrupt: it has an attribute {name!r}, which no model saves")
            self.__dict__[name] = value
        self.__init__(**state["parameters"])  # type: ignore[misc]
        common, own, fixed = self._common[0].copy(), self._rule_record[0].copy(), self._list_fixed_fields()
        self._features.restore(state["features"])
        self._features.restore_order(state.get("order"))
        self._use_store(self._make_store(self._restore_labels(state), self._columns))
        self._store.restore(state["store"])
        if len(self._features) != self._store.used:
            raise ValueError(
                f"the saved model is corrupt: {len(self._features)} feature names for {self._store.used} columns with a feature"
            )
        for name, value in self._list_fixed_fields().items():
            _check_parameter(name, value, fixed[name])
        check_record(self._common[0], common, {**iterates.COMMON_RANGES, **self._list_learned_fields()})
        check_record(self._rule_record[0], own, self._rule.ranges)

    def _restore_labels(self, state: dict[str, Any]) -> int:  # noqa: ARG002
        """Take back the labels of a saved model; the outputs that they need."""
        return 1

    def _list_fixed_fields(self) -> dict[str, Any]:
        """Numbers in the memory that the parameters decide, beside sizes and the state."""
        return {}

    def _list_learned_fields(self) -> dict[str, tuple[float, float]]:
        """Fields of the common state that learning changes, in addition to `iterates.COMMON_RANGES`."""
        return {}


def _runs_of_rows(outputs: np.ndarray) -> list[tuple[slice, int]]:
    """Return the runs of rows that need the same number of outputs, and that number."""
    if not len(outputs):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(outputs)) + 1).tolist(), len(outputs)]
    return [(slice(start, stop), int(outputs[start])) for start, stop in itertools.pairwise(cuts)]


def check_record(record: np.void, fresh: np.void, learned: Mapping[str, FieldRange]) -> None:
    """Raise a ValueError where a field of a state is out of its range in ``learned``, or not there and not as in a new model."""
    for name in record.dtype.names or ():
        if name not in learned:
            _check_parameter(name, record[name], fresh[name])
        elif not np.all((record[name] >= learned[name][0]) & (record[name] <= learned[name][1])):
            raise ValueError(f"the saved model is corrupt: its {name} is {record[name]}")


def _check_parameter(name: str, value: Any, expected: Any) -> None:
    if np.any(value != expected):
        raise ValueError(f"the saved model is corrupt: its {name} is {value}, and {expected} by its parameters")
