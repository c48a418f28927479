"""The bases of online classifiers, which encode labels and turn decision values into labels and probabilities.

`ReferenceClassifier` is the base of the algorithms that budgeted SVMs are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Literal, overload

import numpy as np
from river import base

from streamsvm.core.checks import LARGEST_WEIGHT, OutputName, check_number, validate_weight
from streamsvm.core.frames import FrameBatch, make_batch, to_frame, to_series
from streamsvm.core.steps.iterates import DECISION, PROBABILITY
from streamsvm.core.warning import warn
from streamsvm.learners.estimator import OnlineEstimator, learner
from streamsvm.learners.labels import ClassWeight, ClassWeights, Labels, TooManyLabelsError
from streamsvm.learners.river_base import SupervisedEstimator


@learner
class OnlineClassifier(OnlineEstimator, SupervisedEstimator, base.MiniBatchClassifier):
    """The base of classifiers with river's protocol, and class weights."""

    class_weight: ClassWeight = None
    """Factors for the weights of rows: a mapping of label to factor (1 for labels that are not in it), ``"balanced"``, or None
    for a factor of 1. ``"balanced"`` gives a row of class c the factor n / (k n_c), as in scikit-learn, but at most 100. Here k
    is the number of classes so far, n the number of rows so far, and n_c the number of rows of class c. Each class is counted
    with one row more than it has had, so that the first rows weigh about 1. Use it if a rare class matters as much as a frequent
    one.
    """

    #: None if all classes have the same weight.
    _class_weights: ClassWeights | None = field(init=False)
    _labels: Labels = field(init=False)
    #: The number of rows that were ignored because their label exceeded ``max_classes``.
    _ignored: int = field(init=False)

    max_classes = 2
    """The maximum number of labels. Two classes share one output. With three or more labels, each class has its own output, on
    the same support vectors or landmarks, and support vector machines minimise the loss of Crammer and Singer. Memory and the
    time per row grow with each new label (see ``nbytes``). Once there are ``max_classes`` labels, rows with other labels are
    ignored: the first one causes a warning, and ``n_ignored`` counts them.
    """

    def __post_init__(self) -> None:
        if isinstance(self.class_weight, Mapping):
            self.class_weight = dict(self.class_weight)  # a copy, which the caller cannot change
        self._class_weights = None if self.class_weight is None else ClassWeights(self.class_weight)
        self._labels, self._ignored = Labels(self.max_classes), 0
        super().__post_init__()

    def _check_parameters(self) -> None:
        """Raise a ValueError that names the parameter if ``max_classes`` or another parameter of this classifier is out of its
        range.
        """
        check_number("max_classes", self.max_classes, 2, inclusive=True, high=2**20, integer=True)
        super()._check_parameters()

    @property
    def _multiclass(self) -> bool:
        """Whether this classifier accepts more than two labels (``max_classes`` > 2). River reads this attribute."""
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
            w = min(w * weights.count_row(y), LARGEST_WEIGHT)
            if w == 0.0:
                return
        n_labels = len(labels.targets)
        try:
            target = labels.encode(y)
            self._learn_row(x, target, w, labels.outputs)
        except TooManyLabelsError as error:
            self._count_ignored(1, error)
        except BaseException as error:
            # If the row was learned before an interrupt or an error of the strategy, the label has its output, and stays.
            if labels.outputs != self._n_outputs or (isinstance(error, Exception) and self._n_outputs == 1):
                labels.forget_after(n_labels)
            if weights is not None and isinstance(error, Exception):
                weights.uncount_row(y)
            raise

    def _count_ignored(self, rows: int, error: TooManyLabelsError) -> None:
        """Add ``rows`` to the number of ignored rows, whose labels were new when there were ``max_classes`` labels already. The
        first call warns the user, with the text of ``error``.
        """
        self._ignored += rows
        if self._ignored == rows:
            warn(f"{error}. From now on, rows with new labels are ignored, and counted by n_ignored")

    @property
    def n_ignored(self) -> int:
        """The number of rows that this classifier did not learn, because their label was new when ``max_classes`` labels were
        known already.
        """
        return self._ignored

    def check_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Check that `learn_one` would accept the row ``x`` with the label ``y``, without learning anything: raise a ValueError
        if its feature names or its label are invalid or too many.

        In a pipeline, transformers learn a row before the last step can refuse it. To make sure that `learn_one` will accept a
        row, transform it, predict it (which checks its numbers), and then call this method.

        Parameters
        ----------
        x, y
            As in `learn_one`.

        Raises
        ------
        ValueError
            There are more features than ``max_features``, with ``overflow="raise"``; a new feature name is too long; or the
            label is missing, too long, or exceeds ``max_classes``, so that `learn_one` would ignore the row.

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
            is_known = y in labels.targets
        except TypeError:  # not hashable
            is_known = False
        if not is_known:
            labels.check_label(y)
        self._features.check_names(x)

    def decision_function_one(self, x: Mapping[Any, Any], output: OutputName = "auto") -> Any:
        """Return the decision value of the row ``x``: a float whose sign decides between two labels, or with three or more labels
        a dict of label to decision value. ``output`` selects the latest weights of the model (``"last"``), their running average
        (``"average"``), or those that predictions use (``"auto"``).

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers.
        output
            The iterate to use: ``"last"``, ``"average"`` (the last one in models without averaging), or ``"auto"``, the one that
            has made fewer errors recently, which predictions follow. `SVMClassifier` only accepts ``"auto"``.

        Returns
        -------
        A float, above 0 for the positive label, and 0 before the first row was learned. With three or more labels, a dict of
        label to decision value.

        Raises
        ------
        ValueError
            A feature is not a finite number.
        """
        decision = self._compute_output(x, self._find_output_code(output))
        return self._scores_by_label() if self._labels.class_labels else decision

    def _scores_by_label(self) -> dict[Any, float]:
        """Return a dict of label to decision value (or probability) of the row that was predicted last, for a model with three or
        more labels.
        """
        labels = self._labels.class_labels
        return dict(zip(labels, self._scores[: len(labels)].tolist(), strict=True))

    def predict_one(self, x: Mapping[Any, Any], **_: Any) -> base.typing.ClfTarget | None:
        label: base.typing.ClfTarget | None = self._labels.decode(self._compute_output(x, DECISION))
        return label

    def predict_proba_one(self, x: Mapping[Any, Any], **_: Any) -> dict[base.typing.ClfTarget, float]:
        """Predict the probability of each label of the row ``x``, as a dict of label to probability. The most probable label is
        the one that `predict_one` returns.

        Parameters
        ----------
        x
            The row, as in `predict_one`.

        Returns
        -------
        A dict of label to probability. Before the first row was learned it is empty; or, if ``max_classes`` is 2, False and True
        have 0.5, as river expects of binary classifiers.

        Raises
        ------
        ValueError
            A feature is not a finite number.

        Notes
        -----
        Decision values are multiplied by a factor, which is fitted row by row, to become log odds (temperature scaling: Guo et
        al. 2017, On calibration of modern neural networks). Probabilities are smoothed as by two rows with equal probabilities,
        so that after n rows they are at most (n + 2) / (n + 3). The probabilities of `SVMClassifier` are different; see its
        Notes.
        """
        positive = self._compute_output(x, PROBABILITY)
        return self._scores_by_label() if self._labels.class_labels else self._labels.make_probabilities(positive)

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        with self._apply_class_weights(make_batch(X, y, w, self._dtype)) as batch:
            self._learn_batch(batch)

    @contextmanager
    def _apply_class_weights(self, batch: FrameBatch, together: bool = False) -> Iterator[FrameBatch]:
        """Context manager that gives ``batch`` with row weights multiplied by class weights, and without the rows of new labels
        beyond ``max_classes``, which it counts as ignored at the end. Balanced class weights depend on the class counts so far:
        at each row, or with ``together`` after the whole batch.
        """
        batch, excess = self._drop_excess_labels(batch)
        with self._weight_batch(batch, together) as weighted:
            yield weighted
        if excess:
            self._count_ignored(len(excess), excess[0])

    def _drop_excess_labels(self, batch: FrameBatch) -> tuple[FrameBatch, list[TooManyLabelsError]]:
        """Return a pair: ``batch`` without the rows whose labels are new when the model already has ``max_classes`` labels, and a
        list with one error for each of the rows that were left out.
        """
        excess: list[TooManyLabelsError] = []
        try:
            if len(self._labels.targets.keys() | set(batch.y)) <= self.max_classes:
                return batch, excess
        except TypeError:  # a label that is not hashable is refused below
            pass
        labels = Labels(self.max_classes)
        fixed_weights = {} if self._class_weights is None else self._class_weights.fixed_weights or {}
        labels.restore_labels(self._labels.seen)
        rows = []
        for i, y in enumerate(batch.y):
            try:
                labels.check_label(y)
                if fixed_weights.get(y, 1.0) != 0.0:  # labels of weight 0 are not learned, and do not count
                    labels.encode(y)
            except TooManyLabelsError as error:
                excess.append(error)
                continue
            except ValueError:  # refused below, with the number of the row
                pass
            rows.append(i)
        return (batch.select_rows(np.array(rows, np.int64)) if excess else batch), excess

    @contextmanager
    def _weight_batch(self, batch: FrameBatch, together: bool) -> Iterator[FrameBatch]:
        """Context manager that gives ``batch`` with row weights multiplied by class weights, and counts its rows by class; rows
        that are not learned because of an exception are subtracted again. Balanced class weights depend on these counts: at each
        row, or with ``together`` after the whole batch.
        """
        weights, before, labels = self._class_weights, self.n_learned, batch.y
        if weights is None:
            yield batch
            return
        for i, label in enumerate(labels):
            try:
                self._labels.check_label(label)
            except ValueError as error:
                batch.raise_for_row(i, error)
        factors = [weights.count_row(label) for label in labels]
        if together:
            factors = [weights.get_weight(label) for label in labels]
        weighted = batch.scale_weights(np.array(factors, np.float64))
        try:
            yield weighted
        except BaseException:  # after an interrupt, some rows have been learned
            for label in weighted.y[self.n_learned - before :]:
                weights.uncount_row(label)
            raise

    @contextmanager
    def _rollback_names_on_error(self) -> Iterator[None]:
        """Return a context manager that removes the feature names and labels which this model has added inside the ``with``
        statement, if the statement raises an exception or is interrupted.
        """
        n_labels = self._labels.n_seen
        try:
            with super()._rollback_names_on_error():
                yield
        except BaseException:
            self._labels.forget_after(n_labels)
            raise

    def _encode_targets(self, batch: FrameBatch) -> tuple[np.ndarray, np.ndarray]:
        """Convert the labels of ``batch`` to numbers for learning, and add new labels to the model. Returns two arrays: the
        targets, float64 [n], and how many decision values the model needs from each row on, int64 [n] (1 for up to two labels,
        else the number of labels).
        """
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
        """Return the decision values of the rows ``X``: one number for each row with up to two labels, else one for each row and
        label. ``output`` selects the latest weights of the model (``"last"``), their running average (``"average"``), or those
        that predictions use (``"auto"``).

        Parameters
        ----------
        X
            The rows [n, features], as in `learn_many`.
        output
            The iterate to use, as in `decision_function_one`.

        Returns
        -------
        float64 [n], or a series if X is a frame. With three or more labels, float64 [n, labels], or a frame if X is a frame.

        Raises
        ------
        ValueError
            X is not a frame or array of finite numbers.
        """
        values, like = self._compute_outputs(X, self._find_output_code(output))
        if self._labels.class_labels:
            return to_frame(values[:, 1:], self._labels.class_labels, like)
        return to_series(values[:, 0], like)

    def _predict_rows(self, X: Any) -> Any:
        """Return the predicted label of each row of ``X``: an array [n], or a series if ``X`` is a frame."""
        decisions, like = self._compute_outputs(X, DECISION)
        return to_series(self._labels.decode_array(decisions[:, 0]), like)

    @overload
    def predict_proba_many(self, X: np.ndarray) -> np.ndarray: ...
    @overload
    def predict_proba_many(self, X: Any) -> Any: ...
    def predict_proba_many(self, X: Any) -> Any:
        """Predict the probability of each label for the rows ``X``: an array [n, labels], or a frame with a column for each label
        if ``X`` is a frame.

        Parameters
        ----------
        X
            The rows [n, features], as in `learn_many`.

        Returns
        -------
        float64 [n, labels], or a frame with a column for each label if X is a frame. Columns are in the order of `labels`, but
        the negative one of two labels comes first. There is a column for each label of `predict_proba_one`: one if the only label
        so far is a text; and none before the first row was learned, or two if ``max_classes`` is 2.

        Raises
        ------
        ValueError
            X is not a frame or array of finite numbers; the message has the number of the row.
        """
        values, like = self._compute_outputs(X, PROBABILITY)
        if self._labels.class_labels:
            return to_frame(values[:, 1:], self._labels.class_labels, like)
        columns = self._labels.make_probabilities(values[:, 0])
        return to_frame(np.column_stack(list(columns.values())) if columns else np.empty((len(values), 0)), columns, like)

    @property
    def labels(self) -> list[Any]:
        """The labels that this classifier has seen so far, in the order of its probabilities and decision values, also in
        exported models: of two labels, the positive one comes last.
        """
        return self._labels.in_output_order

    @property
    def positive_label(self) -> Any:
        """The label that this two-class model predicts for decision values above 0; None with three or more labels, or before
        that label has been seen.
        """
        return self._labels.positive

    def _encode_known_targets(self, y: Sequence[Any]) -> np.ndarray | None:
        """Convert the labels ``y`` to numeric targets, float64 [n], with NaN where a label is None. Return None if one of the
        labels is new to the model.
        """
        targets = self._labels.targets
        try:
            return np.array([np.nan if label is None else targets[label] for label in y])
        except (KeyError, TypeError):
            return None

    def _decode_predictions(
        self, outputs: np.ndarray, probability: bool | Literal["all"]
    ) -> tuple[list[Any], list[float | None] | dict[Any, np.ndarray] | None]:
        """Convert the model's numeric ``outputs`` [n, columns] to a pair: the list of n predicted labels (from column 0), and
        their probabilities (from the others). The second item depends on ``probability``: None (False), a list with a number for
        each predicted label (True), or a dict of label to array (``"all"``).
        """
        labels = self._labels
        predictions = labels.decode_list(outputs[:, 0])
        if probability != "all":
            return predictions, labels.find_label_probabilities(outputs[:, 1]) if probability else None
        if labels.class_labels:
            return predictions, dict(zip(labels.class_labels, outputs[:, 1:].T, strict=True))
        return predictions, labels.make_probabilities(outputs[:, 1])

    def _set_start_labels(self, labels: Sequence[Any] | None, outputs: int) -> float:
        """Register the ``labels`` of another model, whose coefficients this new model will start from; ``outputs`` is its number
        of decision values. Returns the factor for these coefficients: -1 if this model treats the other one of two labels as
        positive, else 1. Raises a ValueError if labels and outputs do not fit together.
        """
        if labels is None or outputs != (len(labels) if len(labels) > 2 else 1) or len(labels) < 2:
            raise ValueError(
                f"labels must be two for one output, or one for each of several outputs; got {labels!r} for {outputs} outputs"
            )
        for label in labels:
            self._labels.encode(label)
        if len(self._labels.targets) != len(labels):
            raise ValueError(f"labels must be different, not {labels!r}")
        return 1.0 if len(labels) > 2 or self._labels.targets[labels[1]] > 0.0 else -1.0

    def __getstate__(self) -> dict[str, Any]:
        label_counts = {} if self._class_weights is None else {"label_counts": self._class_weights.list_counts(self._labels.seen)}
        ignored = {"ignored": self._ignored} if self._ignored else {}
        return {**super().__getstate__(), "labels": self._labels.seen, **label_counts, **ignored}

    def _restore_labels(self, state: dict[str, Any]) -> int:
        """Restore the labels of this model from the dict ``state`` of a saved model, and return the number of decision values
        that they need (1 for up to two labels).
        """
        self._labels.restore_labels(state["labels"])
        return self._labels.outputs

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._ignored = state.get("ignored", 0)
        if self._class_weights is not None:
            self._class_weights.restore_counts(self._labels.seen, state.get("label_counts") or [0] * self._labels.n_seen)
