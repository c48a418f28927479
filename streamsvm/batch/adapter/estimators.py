"""Batch models as river estimators, refitted on a schedule to the last rows of a stream.

The last model can be distilled into a budgeted learner, with the same scaling of features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from river import base, preprocessing
from sklearn.base import is_classifier, is_regressor

from streamsvm.batch.adapter import fit_job
from streamsvm.batch.adapter.fit_job import FitJob, ScaledModel, calibrate_probabilities, has_sklearn_conventions
from streamsvm.batch.adapter.refitting import RefittingEstimator
from streamsvm.batch.csmo.estimators import CSMOClassifier, CSMORegressor
from streamsvm.batch.distillation import to_budget
from streamsvm.batch.kernel_machine import KernelMachine, compute_decision_values, predict_finite_rows
from streamsvm.core.checks import check_number, parameter, validate_target
from streamsvm.core.docstrings import complete_docstring
from streamsvm.core.frames import to_frame
from streamsvm.learners.labels import MAX_CLASSES, Labels, as_array


class BatchAdapter(RefittingEstimator):
    """A batch model as a river estimator, refitted on a schedule to the last rows of a stream.

    Use it to put `CSMOClassifier`, or any other scikit-learn estimator, on a stream. Rows go into a window of a fixed size.
    Every ``refit_every`` rows, a clone of ``model`` is fitted to all rows in the window, and makes the predictions from then
    on. `batch_adapter` returns a classifier or a regressor, depending on the model.

    Parameters
    ----------
    model
        Estimator with scikit-learn's conventions: `CSMOClassifier`, `CSMORegressor`, or one of scikit-learn's. For windows of
        100,000 rows and more, use `HierarchicalSVC` or `HierarchicalSVR`. The adapter fits clones, never the estimator itself.
    window
        Number of rows in the window, at least 2. Once the window is full, each new row replaces the oldest one. Use a longer
        window if the stream rarely changes; its fits take longer.
    refit_every
        Number of rows from one fit to the next, and before the first fit. A smaller number adapts to drift sooner, and costs
        more fits. With None, there are no automatic fits; call `fit`.
    standardize
        Whether each fit scales the features to mean 0 and standard deviation 1 over the window.
    max_features
        Maximum number of feature names, from 1 to 2^20. The window reserves memory for this many.
    overflow
        What happens to feature names beyond ``max_features``: ``"raise"`` refuses the row, ``"hash"`` hashes the names into the
        existing columns, and ``"ignore"`` ignores them.
    background
        Whether a fit that is due runs in a thread of its own, while the adapter continues with the last model. Use it if
        learning must not pause for fits. `fit` itself never runs in the background.
    calibration_folds
        Number of folds of the window for calibrating probabilities, with one more fit for each; 0, or from 2 to 100. With 0,
        they are not calibrated. For classifiers only; it has no effect if ``model`` has ``predict_proba``. See
        `BatchClassifier.predict_proba_one`.
    max_classes
        Maximum number of labels, at least 2. A row with a further label is refused. For classifiers only.

    Raises
    ------
    ValueError
        A parameter is out of range; the message names it.

    Warns
    -----
    RuntimeWarning
        A fit that was due failed, or waits because the window has only one class. The last model stays in use.

    Notes
    -----
    Memory: ``window * (4 * max_features + 16)`` bytes, because rows are float32; the fitted model; and during a fit, the rows in
    float64 and the memory that the model needs. Between fits, learning a row costs O(features). A fit costs what the model's
    ``fit`` costs, for a classifier without probabilities once more for each of the ``calibration_folds``. A prediction is one
    call of the model, which takes much longer for a single row than for one of many.

    If an automatic fit fails, all rows stay in the window, the last fitted model continues to predict, there is a warning, and
    the next attempt comes ``refit_every`` rows later; before the first model, the model's exception is raised. If the window
    has only one class, the fit waits for a second one. After Ctrl-C during a fit, the adapter still has its last model and all
    rows. Sparse rows become dense, all rows of a call at once: pass very many rows in several calls.

    With ``background=True``, a fit that is due copies the window and starts; `wait` describes when its model is used. Which model
    predicts a row then depends on timing, so that two runs may differ.

    Features get columns in the order of their first appearance; a name influences predictions after the first fit with
    that name. If any weight in the window is not 1, the weights are passed to the model as ``sample_weight``; rows with other
    weights are refused if the model's ``fit`` does not accept that. A row of weight 0 is ignored.

    A checkpoint holds the rows and the fitted model. With a model of `streamsvm.batch`, loading it needs no trust; with another
    model, use ``CheckpointFolder(path, trusted=True)``.
    """

    def to_budget(self, budget: int | None = None, **parameters: Any) -> Any:
        """Compress the adapter's last fitted kernel machine to a learner with at most ``budget`` support vectors, which makes
        nearly the same predictions and can continue to learn row by row. Returns the learner; if the adapter standardises rows, a
        pipeline of a scaler and the learner. ``parameters`` are those of `streamsvm.batch.to_budget`.

        Parameters
        ----------
        budget, parameters
            Those of `streamsvm.batch.to_budget`. The learner is fitted to agree with the model on the rows of the window. By
            default, the learner has the adapter's ``max_features``, ``overflow`` and ``max_classes``.

        Returns
        -------
        Pipeline or learner
            A pipeline of river's ``StandardScaler``, which continues from the window's means and deviations, and the learner. A
            feature that a row lacks then counts as its mean, not as 0. With ``standardize=False``, the learner alone.

        Raises
        ------
        ValueError
            No model was fitted yet; the model is not one of `streamsvm.batch`; its labels have several types, or are numbers
            with fractions; or standardised features may share a column because of hashing.

        Notes
        -----
        It takes as long as `streamsvm.batch.to_budget` with the rows of the window, and memory for a float64 copy of them. If no
        further features are expected, a smaller ``max_features`` saves memory of the learner. The scaler stores three numbers for
        each name that it ever receives, even if the learner ignores it.
        """
        fit = self._get_distillable_fit()
        if self.overflow == "hash" and self.standardize and len(self.feature_names) == self.max_features:
            raise ValueError(
                f"all max_features={self.max_features} columns are in use, and features that share a column by hashing cannot be "
                "standardised separately: raise max_features, or standardise before the adapter with standardize=False"
            )
        names = self.feature_names[: len(fit.mean)]
        limits = {name: getattr(self, name) for name in ("max_features", "overflow", "max_classes") if hasattr(self, name)}
        X = self._window.copy_rows(len(names)).X.astype(np.float64)
        X -= fit.mean  # in place, because there may be memory for one copy only
        X /= fit.scale
        learner = to_budget(fit.model, budget, X, feature_names=names, **{**limits, **parameters})
        if not self.standardize:
            return learner
        scaler = preprocessing.StandardScaler()
        for name, mean, scale in zip(names, fit.mean.tolist(), fit.scale.tolist(), strict=True):
            scaler.counts[name], scaler.means[name], scaler.vars[name] = self.n_window, mean, scale * scale
        return scaler | learner

    def _get_distillable_fit(self) -> ScaledModel:
        """Return the model of the adapter's last fit, with its scaling and labels, for `to_budget`. Raise a ValueError if there
        was no fit yet, the model is not a kernel machine of `streamsvm.batch`, or it was fitted to integer codes instead of the
        labels.
        """
        fit = self._get_latest_fit()
        if fit is None:
            raise ValueError("the adapter has no fitted model yet: call fit() first")
        if not isinstance(fit.model, KernelMachine):
            raise ValueError(f"only kernel machines of streamsvm.batch can be distilled, not {type(fit.model).__name__}")
        if is_classifier(fit.model) and fit.classes != fit.model.classes_.tolist():
            raise ValueError("the labels have several types, or are numbers with fractions: pass them as strings")
        return fit


@complete_docstring
@dataclass(eq=False, repr=False)
class BatchClassifier(BatchAdapter, base.MiniBatchClassifier):
    """A batch classifier as a river classifier, refitted on a schedule to the last rows of a stream.

    The model is fitted to the labels themselves if they all have one type (bool, int, str, or float without fractions), and
    otherwise to 0, 1, ..., in the order of arrival. Before the first fit, the prediction is the most frequent label in
    the window.

    Examples
    --------
    >>> from river import datasets
    >>> from streamsvm.batch import BatchClassifier, CSMOClassifier

    >>> model = BatchClassifier(CSMOClassifier(C=10.0), refit_every=None)
    >>> for x, y in datasets.Phishing().take(1000):
    ...     model.learn_one(x, y)
    >>> model.fit().n_window
    1000
    >>> x, y = next(iter(datasets.Phishing()))
    >>> y, model.predict_one(x)
    (True, True)
    """

    calibration_folds: int = 3
    max_classes: int = parameter(default=MAX_CLASSES, least=2, high=2**20, integer=True)

    def __post_init__(self) -> None:
        if not has_sklearn_conventions(is_classifier, self.model):
            raise ValueError(f"model must be a classifier with scikit-learn's conventions, not {self.model!r}")
        fit_job.check_classifier(self.model)
        if self.calibration_folds != 0:
            check_number("calibration_folds", self.calibration_folds, 2, inclusive=True, high=100, integer=True)
        super().__post_init__()
        self._labels = Labels(self.max_classes)
        self._counts: Counter[float] = Counter()  # number of rows in the window for each target

    @property
    def _multiclass(self) -> bool:
        return self._labels.max_classes > 2

    # Learning ---------------------------------------------------------------------------------------------------------------

    def _encode_target(self, y: Any) -> float:
        """Return the number under which the window (the last rows of the stream) stores the label ``y``, as float: 0.0 for the
        first label of the stream, 1.0 for the second, and so on. Raise a ValueError if the label is invalid or there are too many
        labels.
        """
        target = self._labels.encode(y)
        if self._labels.class_labels:
            return target
        return 0.0 if target == next(iter(self._labels.targets.values())) else 1.0

    def _count_names(self) -> tuple[int, ...]:
        """Return the numbers of feature names and of labels that this adapter has seen so far, to undo additions with
        `_forget_names`.
        """
        return *super()._count_names(), self._labels.n_seen

    def _forget_names(self, counts: tuple[int, ...]) -> None:
        """Remove the feature names and labels that this adapter added after `_count_names` returned ``counts``, because the row
        that they came from was invalid.
        """
        super()._forget_names(counts)
        self._labels.forget_after(counts[1])

    def _add_rows(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Add valid rows ``X`` float32 [n, features], with their targets and weights [n], to the window (the last rows of the
        stream), and update its counts of rows of each label. Return the targets of the rows that leave the window, float64.
        """
        replaced = super()._add_rows(X, targets, weights)
        for target in targets[-self.window :].tolist():
            self._counts[target] += 1
        for target in replaced.tolist():
            self._counts[target] -= 1
        return replaced

    def _find_obstacle(self) -> str | None:
        """Return the reason why the model cannot be fitted to the window (the last rows of the stream), as text for a message:
        there are no rows, or only one class. Return None if a fit is possible.
        """
        targets = self._window.targets
        if len(targets) and self._counts[targets[0]] == len(targets):
            return f"the window has only one class, {self._labels.seen[int(targets[0])]!r}"
        return super()._find_obstacle()

    def _make_job(self) -> FitJob:
        """Return a `FitJob`, which contains all data of one fit: a clone of the model, copies of the rows of the window (the last
        rows of the stream), the labels, and the number of folds for calibrating probabilities.
        """
        return super()._make_job()._replace(labels=self._labels.seen, calibration_folds=int(self.calibration_folds))

    # Predictions ------------------------------------------------------------------------------------------------------------

    @property
    def labels(self) -> list[Any]:
        """The labels that this classifier has seen so far, as a list in the order of `classes`."""
        return [label for label in self.classes if label in self._labels.targets]

    @property
    def classes(self) -> list[Any]:
        """The labels of this classifier as a list, in the order of the columns that `predict_proba_many` returns.

        The labels of the fitted model come first.
        """
        if self._fit is None:
            return self._labels.class_labels or list(self._labels.make_probabilities(0.5))
        fitted = set(self._fit.classes)
        return [*self._fit.classes, *(label for label in self._labels.seen if label not in fitted)]

    def predict_proba_one(self, x: Mapping[Any, Any], **_: Any) -> dict[Any, float]:
        """Predict the probability of each label seen so far for the row ``x``, a dictionary of feature values. Returns a
        dictionary from labels to probabilities, which sum to 1.

        If the model has ``predict_proba``, the probabilities are the model's. Otherwise, one factor turns decision values into
        log odds. Each fit calibrates the factor on held-out rows (temperature scaling), so that probabilities always agree with
        the sign of the decision value. With ``calibration_folds=0``, the factor is 1.

        Before the first fit, they are the frequencies of the labels in the window, with one more row of each; before any row was
        learned, as in `BSCAClassifier.predict_proba_one`. A label that came after the last fit has probability 0.
        """
        fit = self._get_latest_fit()
        return dict(zip(self.classes, self._compute_probabilities(self._prepare_row(x, fit), fit)[0].tolist(), strict=True))

    def decision_function_one(self, x: Mapping[Any, Any]) -> Any:
        """Return the decision value of the row ``x``, a dictionary of feature values: a float for two classes (positive for the
        second one), and otherwise a dictionary from labels to values.

        The value is positive for the second of `classes`. It is 0 before the first fit. Raises an AttributeError if the model has
        no ``decision_function``.
        """
        fit = self._get_latest_fit()
        row = self._prepare_row(x, fit)
        if fit is None:
            return 0.0
        f = compute_decision_values(fit.model, row)[0]
        return float(f) if np.ndim(f) == 0 else dict(zip(fit.classes, f.tolist(), strict=True))

    @overload
    def predict_proba_many(self, X: np.ndarray) -> np.ndarray: ...
    @overload
    def predict_proba_many(self, X: Any) -> Any: ...
    def predict_proba_many(self, X: Any) -> Any:
        """Predict the probability of each label for many rows ``X``, a data frame or an array. Return a frame with a column for
        each label, or an array float64 [n, labels]. The probabilities are those of `predict_proba_one`.

        Returns
        -------
        A frame with a column for each label, or float64 [n, labels] in the order of `classes` if X is an array.
        """
        fit = self._get_latest_fit()
        rows, like = self._prepare_rows(X, fit)
        return to_frame(self._compute_probabilities(rows, fit), self.classes, like)

    def _predict_with(self, rows: np.ndarray, fit: ScaledModel | None) -> np.ndarray:
        """Return the labels [n] that the fitted model ``fit`` predicts for the scaled ``rows`` [n, features]. With None instead
        of a model (before the first fit), every row gets the most frequent label among the last rows of the stream, or None if no
        row was learned.
        """
        if not self._labels.n_seen:
            return np.full(len(rows), None)
        if fit is None or not len(rows):  # scikit-learn's models raise an error for 0 rows
            indices = np.full(len(rows), np.argmax(self._compute_frequencies()))
        else:
            index_of_class = {value: index for index, value in enumerate(fit.model.classes_.tolist())}
            indices = np.array([index_of_class[value] for value in predict_finite_rows(fit.model, rows).tolist()], np.int64)
        return as_array(self.classes)[indices]

    def _compute_probabilities(self, rows: np.ndarray, fit: ScaledModel | None) -> np.ndarray:
        """Return the probabilities of the labels for the scaled ``rows`` [n, features] with the fitted model ``fit``, float64 [n,
        labels], in the order of `classes`. With None instead of a model (before the first fit), they are the frequencies of the
        labels among the last rows of the stream.
        """
        if fit is None or not len(rows):
            return np.tile(self._compute_frequencies(), (len(rows), 1))
        model = fit.model
        if hasattr(model, "predict_proba"):
            p = model.predict_proba(rows)
        else:
            p = calibrate_probabilities(fit.log_factor, compute_decision_values(model, rows))
        return np.pad(p, ((0, 0), (0, len(self.classes) - p.shape[1])))

    def _compute_frequencies(self) -> np.ndarray:
        """Return the relative frequency of each label among the last rows of the stream (the window), float64 [labels], in the
        order of `classes`. One is added to each count (Laplace smoothing), so that no frequency is 0.
        """
        counts = {label: self._counts[number] for number, label in enumerate(self._labels.seen)}
        rows = np.array([counts.get(label, 0) + 1.0 for label in self.classes])
        return rows / rows.sum()

    # Saved adapters ---------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "labels": self._labels.seen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._labels.restore_labels(state["labels"])
        self._counts = Counter(self._window.targets.tolist())

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"model": CSMOClassifier(), "window": 60, "refit_every": 50}


@complete_docstring
@dataclass(eq=False, repr=False)
class BatchRegressor(BatchAdapter, base.MiniBatchRegressor):
    """A batch regressor as a river regressor, refitted on a schedule to the last rows of a stream.

    Targets are not scaled. Before the first fit, the prediction is the mean target of the window, or 0 if the window is
    empty.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm.batch import BatchRegressor, CSMORegressor

    >>> model = BatchRegressor(CSMORegressor(C=10.0), window=500, refit_every=20)
    >>> round(evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE()).get(), 1)
    0.8
    """

    def __post_init__(self) -> None:
        if not has_sklearn_conventions(is_regressor, self.model):
            raise ValueError(f"model must be a classifier or regressor with scikit-learn's conventions, not {self.model!r}")
        super().__post_init__()

    def _encode_target(self, y: Any) -> float:
        """Return the regression target ``y`` as float. Raise a ValueError if it is not a finite number."""
        return validate_target(y)

    def predict_one(self, x: Mapping[Any, Any], **_: Any) -> float:
        return float(super().predict_one(x))

    def _predict_with(self, rows: np.ndarray, fit: ScaledModel | None) -> np.ndarray:
        """Return the targets [n] that the fitted model ``fit`` predicts for the scaled ``rows`` [n, features]. With None instead
        of a model (before the first fit), every row gets the mean target of the last rows of the stream, or 0 if no row was
        learned.
        """
        if fit is not None and len(rows):  # scikit-learn's models raise an error for 0 rows
            return np.asarray(predict_finite_rows(fit.model, rows))
        return np.full(len(rows), self._window.targets.mean() if self.n_window else 0.0)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"model": CSMORegressor(), "window": 60, "refit_every": 50}


def batch_adapter(model: Any, **parameters: Any) -> BatchClassifier | BatchRegressor:
    """Return a river estimator that refits the scikit-learn style estimator ``model`` to the last rows of a stream: a
    `BatchClassifier` if ``model`` is a classifier, and otherwise a `BatchRegressor`. ``parameters``, such as ``window``, are
    those of the returned class.

    Parameters
    ----------
    model
        Estimator with scikit-learn's conventions: `CSMOClassifier`, `CSMORegressor`, or one of scikit-learn's.
    parameters
        Parameters of the class that is returned.

    Raises
    ------
    ValueError
        A parameter is out of range; the message names it.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm.batch import CSMOClassifier, batch_adapter

    >>> model = batch_adapter(CSMOClassifier(), window=1000, refit_every=500)
    >>> round(evaluate.progressive_val_score(datasets.Bananas().take(2000), model, metrics.Accuracy()).get(), 2)
    0.81
    >>> model.n_fits, model.n_window, type(model).__name__
    (4, 1000, 'BatchClassifier')
    """
    return (BatchClassifier if has_sklearn_conventions(is_classifier, model) else BatchRegressor)(model, **parameters)
