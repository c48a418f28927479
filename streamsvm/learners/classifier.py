"""Classifiers that learn online: labels to targets, and decision values to labels and probabilities.

`Baseline` is the base of the rules that budgeted SVMs are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Literal, overload

import numpy as np
from river import base

from streamsvm.core.checks import LARGEST_WEIGHT, OutputName, check_number, validate_weight
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.frames import Batch, make_batch, to_frame, to_series
from streamsvm.core.memory.support_vectors import SupportVectorStore, Views, views
from streamsvm.core.steps.iterates import DECISION, PROBABILITY, get_common_state
from streamsvm.core.steps.step import add_to_coefficient
from streamsvm.core.warning import warn
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.estimator import OnlineEstimator, learner
from streamsvm.learners.labels import ClassWeight, ClassWeights, Labels, TooManyLabelsError
from streamsvm.learners.river_base import SupervisedEstimator


@learner
class OnlineClassifier(OnlineEstimator, SupervisedEstimator, base.MiniBatchClassifier):
    """The base of classifiers with river's protocol, which weight rows by class."""

    class_weight: ClassWeight = None
    """The factors by which the weights of rows are multiplied: a mapping of label to factor (1 for labels that are not in it),
    ``"balanced"``, or None for a factor of 1. ``"balanced"`` gives a row of class c the factor n / (k n_c), as in scikit-learn,
    but at most 100. Here k is the number of classes so far, n the number of rows so far, and n_c the number of rows of class c.
    Each class counts one row more than it has had, so that the first rows weigh about 1. Use it when a rare class matters as
    much as a frequent one.
    """

    #: None where all classes weigh the same.
    _class_weights: ClassWeights | None = field(init=False)
    _labels: Labels = field(init=False)

    #: Rows that were ignored, as their label was one too many.
    _ignored: int = field(init=False)

    max_classes = 2
    """The maximum number of labels. Two classes share one output. With three or more labels, each class has an output of its
    own, on the same support vectors or landmarks, and the loss of support vector machines is that of Crammer and Singer. Memory
    grows with each new label (see ``nbytes``), and so does the time of a row. Once there are ``max_classes`` labels, rows with
    another one are ignored: the first one gives a warning, ``n_ignored`` counts them all, and the other rows are learned as
    ever.
    """

    def __post_init__(self) -> None:
        if isinstance(self.class_weight, Mapping):
            self.class_weight = dict(self.class_weight)  # the caller may change the other one
        self._class_weights = None if self.class_weight is None else ClassWeights(self.class_weight)
        self._labels, self._ignored = Labels(self.max_classes), 0
        super().__post_init__()

    def _check_parameters(self) -> None:
        check_number("max_classes", self.max_classes, 2, inclusive=True, high=2**20, integer=True)
        super()._check_parameters()

    @property
    def _multiclass(self) -> bool:
        return self.max_classes > 2

    def learn_one(self, x: Mapping[Any, Any], y: Any, w: float = 1.0) -> None:
        w = 1.0 if w == 1.0 and w is not True else validate_weight(w)
        if w == 0.0:
            return
        weights, labels = self._class_weights, self._labels
        if weights is not None:
            try:
                labels.check_label(y)
            except TooManyLabelsError as error:
                self._count_ignored(1, error)
                return
            w = min(w * weights.learn(y), LARGEST_WEIGHT)
            if w == 0.0:
                return
        n_labels = len(labels.targets)
        try:
            target = labels.encode(y)
            self._learn_row(x, target, w, labels.outputs)
        except TooManyLabelsError as error:
            self._count_ignored(1, error)
        except BaseException as error:
            # An interrupt may come when the row is learned, or its strategy fail: then its label has its output, and stays.
            if labels.outputs != self._n_outputs or (isinstance(error, Exception) and self._n_outputs == 1):
                labels.forget_after(n_labels)
            if weights is not None and isinstance(error, Exception):
                weights.forget(y)
            raise

    def _count_ignored(self, rows: int, error: TooManyLabelsError) -> None:
        # Count rows whose label is one too many; the error is that of the first.
        self._ignored += rows
        if self._ignored == rows:
            warn(f"{error}. Rows with such labels are ignored from here on, and counted as n_ignored")

    @property
    def n_ignored(self) -> int:
        """The number of rows that were ignored because they had a new label when there were ``max_classes`` already."""
        return self._ignored

    def check_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Check the feature names and the label of a row as `learn_one` does, without learning it.

        In a pipeline, transformers learn a row before the last step has a chance to refuse it. To be sure that `learn_one` will
        accept a row, transform it first, predict it (which checks its numbers), and then call this method.

        Parameters
        ----------
        x, y
            As in `learn_one`.

        Raises
        ------
        ValueError
            There are more features than ``max_features``, with ``overflow="raise"``; a new name is too long; or the label is
            missing, or a text that is too long; or it is one more than ``max_classes``, so that `learn_one` would ignore the
            row.

        Examples
        --------
        >>> from streamsvm import BSGDClassifier
        >>> model = BSGDClassifier(budget=10, max_features=1)
        >>> model.check_one({"a": 1.0}, True)
        >>> model.check_one({"a": 1.0, "b": 2.0}, True)
        Traceback (most recent call last):
            ...
        ValueError: feature 'b' has no column left: max_features=1 names are known...
        """
        labels = self._labels
        try:
            known = y in labels.targets
        except TypeError:
            known = False
        if not known:
            labels.check_label(y)
        self._features.check_names(x)

    def decision_function_one(self, x: Mapping[Any, Any], output: OutputName = "auto") -> Any:
        """Return the decision value of one row.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers.
        output
            Which output decides: ``"last"`` is the last iterate, ``"average"`` is the average of the iterates, if the model has
            one, and ``"auto"`` is the one that has made fewer errors recently, which predictions follow. `SVMClassifier`
            accepts ``"auto"`` only.

        Returns
        -------
        A float, above 0 for the positive label, and 0 before any row was learned. With three or more labels, a dict of label to
        value.

        Raises
        ------
        ValueError
            A feature is not a finite number.
        """
        decision = self._compute_output(x, self._find_output_code(output))
        return self._scores_by_label() if self._labels.class_labels else decision

    def _scores_by_label(self) -> dict[Any, float]:
        many = self._labels.class_labels
        return dict(zip(many, self._scores[: len(many)].tolist(), strict=True))

    def predict_one(self, x: Mapping[Any, Any], **_: Any) -> base.typing.ClfTarget | None:
        label: base.typing.ClfTarget | None = self._labels.decode(self._compute_output(x, DECISION))
        return label

    def predict_proba_one(self, x: Mapping[Any, Any], **_: Any) -> dict[base.typing.ClfTarget, float]:
        """Predict the probability of each label of one row: a dict, in which the most probable label is the one of `predict_one`.

        Decision values become log odds by one factor, which is fitted row by row (temperature scaling: Guo et al. 2017, On
        calibration of modern neural networks). The result is mixed with equal probabilities, which count as much as two rows:
        after n rows, no probability is above (n + 2) / (n + 3). `SVMClassifier` gets its probabilities in another way; see its
        Notes.

        Before any row was learned the dict is empty; or, if the model has room for two classes only, it has False and True at
        0.5, as river expects of binary classifiers. The row and the errors are as in `predict_one`.
        """
        positive = self._compute_output(x, PROBABILITY)
        return self._scores_by_label() if self._labels.class_labels else self._labels.make_probabilities(positive)

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        with self._apply_class_weights(make_batch(X, y, w, self._dtype)) as batch:
            self._learn_batch(batch)

    @contextmanager
    def _apply_class_weights(self, batch: Batch, together: bool = False) -> Iterator[Batch]:
        batch, excess = self._drop_excess_labels(batch)
        with self._weight_batch(batch, together) as weighted:
            yield weighted
        if excess:
            self._count_ignored(len(excess), excess[0])

    def _drop_excess_labels(self, batch: Batch) -> tuple[Batch, list[TooManyLabelsError]]:
        # The rows that `learn_one` would not ignore, and the errors of the others.
        excess: list[TooManyLabelsError] = []
        try:
            if len(self._labels.targets.keys() | set(batch.y)) <= self.max_classes:
                return batch, excess
        except TypeError:  # of a label that is refused below
            pass
        labels, given = Labels(self.max_classes), {} if self._class_weights is None else self._class_weights.given or {}
        labels.restore_labels(self.labels)
        held = []
        for i, y in enumerate(batch.y):
            try:
                labels.check_label(y)
                if given.get(y, 1.0) != 0.0:  # else it is not learned, and takes no room
                    labels.encode(y)
            except TooManyLabelsError as error:
                excess.append(error)
                continue
            except ValueError:  # refused below, with its number
                pass
            held.append(i)
        return (batch.select_rows(np.array(held, np.int64)) if excess else batch), excess

    @contextmanager
    def _weight_batch(self, batch: Batch, together: bool) -> Iterator[Batch]:
        weights, before, labels = self._class_weights, self.n_learned, batch.y
        if weights is None:
            yield batch
            return
        for i, label in enumerate(labels):
            try:
                self._labels.check_label(label)
            except ValueError as error:
                batch.raise_for_row(i, error)
        factors = [weights.learn(label) for label in labels]
        if together:
            factors = [weights.weight_of(label) for label in labels]
        weighted = batch.scale_weights(np.array(factors, np.float64))
        try:
            yield weighted
        except BaseException:  # after an interrupt, some rows are learned
            for label in weighted.y[self.n_learned - before :]:
                weights.forget(label)
            raise

    @contextmanager
    def _rollback_names_on_error(self) -> Iterator[None]:
        n_labels = self._labels.n_seen
        try:
            with super()._rollback_names_on_error():
                yield
        except BaseException:
            self._labels.forget_after(n_labels)
            raise

    def _encode_targets(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        labels = self._labels
        targets, outputs = np.empty(len(batch.y)), np.empty(len(batch.y), np.int64)
        for i, label in enumerate(batch.y):
            try:
                targets[i] = labels.encode(label)
            except ValueError as error:
                batch.raise_for_row(i, error)
            outputs[i] = labels.outputs
        return targets, outputs

    @overload
    def decision_function_many(self, X: np.ndarray, output: OutputName = ...) -> np.ndarray: ...
    @overload
    def decision_function_many(self, X: Any, output: OutputName = ...) -> Any: ...
    def decision_function_many(self, X: Any, output: OutputName = "auto") -> Any:
        """Return the decision values of the rows of X. Arguments are as in `learn_many` and `decision_function_one`.

        They are float64 [n], or a series if X is a frame. From the third label on they are float64 [n, labels], or a frame if X
        is one. A ValueError says that X is not a frame or array of finite numbers.
        """
        answers, like = self._compute_outputs(X, self._find_output_code(output))
        if self._labels.class_labels:
            return to_frame(answers[:, 1:], self._labels.class_labels, like)
        return to_series(answers[:, 0], like)

    def _predict_rows(self, X: Any) -> Any:
        decisions, like = self._compute_outputs(X, DECISION)
        return to_series(self._labels.decode_array(decisions[:, 0]), like)

    @overload
    def predict_proba_many(self, X: np.ndarray) -> np.ndarray: ...
    @overload
    def predict_proba_many(self, X: Any) -> Any: ...
    def predict_proba_many(self, X: Any) -> Any:
        """Predict the probability of each label for the rows of X, which are as in `predict_many`, with its errors.

        Returned are float64 [n, labels], or a frame with a column for each label if X is a frame. Columns are in the order of
        `labels`, but while there are two of them, the negative label comes first. There are as many columns as
        `predict_proba_one` has labels: one while a text is the only label so far; and before any row was learned none, or two if
        the model has room for two classes only.
        """
        return self._as_probabilities(*self._compute_outputs(X, PROBABILITY))

    def _as_probabilities(self, answers: np.ndarray, like: Any) -> Any:
        if self._labels.class_labels:
            return to_frame(answers[:, 1:], self._labels.class_labels, like)
        probabilities = self._labels.make_probabilities(answers[:, 0])
        values = np.column_stack(list(probabilities.values())) if probabilities else np.empty((len(answers), 0))
        return to_frame(values, probabilities, like)

    @property
    def labels(self) -> list[Any]:
        """The labels seen so far, in the order of arrival."""
        return self._labels.seen

    @property
    def positive_label(self) -> Any:
        """The label of decision values above 0, while there are two; None before it is known."""
        return self._labels.positive

    def _encode_known_targets(self, y: Sequence[Any]) -> np.ndarray | None:
        known = self._labels.targets
        try:
            return np.array([np.nan if label is None else known[label] for label in y])
        except (KeyError, TypeError):
            return None

    def _decode_predictions(
        self, answers: np.ndarray, probability: bool | Literal["all"]
    ) -> tuple[list[Any], list[float | None] | dict[Any, np.ndarray] | None]:
        labels = self._labels
        decided = labels.decode_list(answers[:, 0])
        if probability != "all":
            return decided, labels.find_largest(answers[:, 1]) if probability else None
        each = (
            dict(zip(labels.class_labels, answers[:, 1:].T, strict=True))
            if labels.class_labels
            else labels.make_probabilities(answers[:, 1])
        )
        return decided, each

    def _set_start_labels(self, labels: Sequence[Any] | None, outputs: int) -> float:
        if labels is None or outputs != (len(labels) if len(labels) > 2 else 1) or len(labels) < 2:
            raise ValueError(f"labels must be two for one output, or as many as outputs, and there are {outputs}; not {labels!r}")
        for label in labels:
            self._labels.encode(label)
        if len(self._labels.targets) != len(labels):
            raise ValueError(f"labels must be different: {labels!r}")
        return 1.0 if len(labels) > 2 or self._labels.targets[labels[1]] > 0.0 else -1.0

    def __getstate__(self) -> dict[str, Any]:
        counted = {} if self._class_weights is None else {"label_counts": self._class_weights.list_counts(self.labels)}
        ignored = {"ignored": self._ignored} if self._ignored else {}
        return {**super().__getstate__(), "labels": self.labels, **counted, **ignored}

    def _restore_labels(self, state: dict[str, Any]) -> int:
        self._labels.restore_labels(state["labels"])
        return self._labels.outputs

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._ignored = state.get("ignored", 0)
        if self._class_weights is not None:
            self._class_weights.restore(self.labels, state["label_counts"])


@learner
class BudgetedClassifier(OnlineClassifier, BudgetedEstimator):
    """The base of classifiers with support vectors.

    Two classes share one output. If there are more, each class has its own.
    """

    def _set_start_labels(self, labels: Sequence[Any] | None, outputs: int) -> float:
        sign = super()._set_start_labels(labels, outputs)
        if outputs > 1:
            self._resize(outputs)
        return sign

    def _grow_outputs(self, store: SupportVectorStore, outputs: int) -> None:
        if self._n_outputs == 1:
            positive, negative = (0, 1) if self._labels.is_positive_first else (1, 0)
            split_output(store.views, positive)
            targets = store.views.window_targets[: self.n_learned]
            targets[:] = np.where(targets > 0.0, positive, negative)
        store.n_outputs = 2 * outputs

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        targets = self._store.views.window_targets
        possible = range(self._n_outputs) if self._n_outputs > 1 else (-1.0, 0.0, 1.0)
        if not np.isin(targets, list(possible)).all():
            raise ValueError("the saved model is corrupt: its window has rows of labels that it does not know")


def split_output(v: Views, positive: int) -> None:
    """Make one output f two: f / 2 of the positive label, whose number is ``positive``, and -f / 2 of the negative one."""
    for rows in (v.coefficients, v.biases):
        half = 0.5 * rows[:2]
        rows[2 * positive : 2 * positive + 2], rows[2 - 2 * positive : 4 - 2 * positive] = half, -half


#: Of a coefficient, either way: rules that change more than the newest one could make it grow for ever.
LARGEST = 1e30


@compiled
def add_bounded(block: np.ndarray, slot: int, step: float) -> None:
    """Add ``step`` to a support vector's coefficient, which stays within `LARGEST`."""
    a = get_common_state(block)["scale"] * views(block).coefficients[0, slot]
    add_to_coefficient(block, slot, min(max(a + step, -LARGEST), LARGEST) - a)


class Baseline(BudgetedClassifier):
    """The base of rules that budgeted SVMs are compared with.

    They are for two classes, and only rules that never remove a support vector can average.
    """

    eta0: float
    """The step size."""
    seed: int | None
    """Seed of the random choices, for repeatable runs. None picks a random one."""

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}


@learner
class Reference(Baseline):
    """The base of rules without a budget: the support vector that would be one too many is refused."""

    budget: int = field(default=10_000, kw_only=False)
    """The maximum number of support vectors. One more raises a RuntimeError, and leaves the model as it was."""
    averaging: int = 0

    _refuses_when_full = True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 4000}
