"""Wrappers that add a small model of each key, such as a device, to a classifier or regressor of all keys."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from river import base

from streamsvm.core.checks import check_number, validate_weight
from streamsvm.core.docstrings import complete_docstring
from streamsvm.core.explaining import Explanation, Groups
from streamsvm.core.warning import warn
from streamsvm.files.messages import short_repr
from streamsvm.learners.keyed_models import KeyModels
from streamsvm.learners.wrapping import ClassifierWrapper, ModelWrapper, RegressorWrapper, Weights


class _Keyed(ModelWrapper):
    """The base of the wrappers with a small model per key."""

    _forwarded = ClassifierWrapper._forwarded
    _changeable = frozenset({"classifier", "regressor", "max_keys", "idle"})

    def _init_wrapper(self, model: Any, key: str, max_keys: int, idle: int | None) -> None:
        """Check the wrapped ``model`` and the parameters, and set them as attributes, with no keys yet. Raises a ValueError if
        one is invalid.
        """
        self._set_wrapped(model, model)
        if not isinstance(key, str):
            raise ValueError(f"key must be the name of a field, a text, not {short_repr(key)}")
        for name, value in (("max_keys", max_keys), *(() if idle is None else (("idle", idle),))):
            check_number(name, value, 1, inclusive=True, high=10**12, integer=True)
        self.key: str = key
        self.max_keys: int = max_keys
        self.idle: int | None = idle
        #: The small models of all keys.
        self.key_models: KeyModels = KeyModels(key, isinstance(self, base.Regressor), max_keys, idle)

    @property
    def feature_names(self) -> list[Hashable]:
        """The names of the features of the wrapped model, without those of the small models, after the name of the key."""
        own = self.key_models.outputs
        return [self.key, *(name for name in self._wrapped_model.feature_names if name not in own)]

    @property
    def nbytes(self) -> int:
        """The size of the wrapped model and of the models of all keys in bytes, without the names of keys."""
        return int(self._wrapped_model.nbytes) + self.key_models.nbytes

    def _convert_row(self, x: Mapping[Any, Any], y: Any = None, weight: float = 0.0) -> dict[Any, Any]:
        """Return the row ``x`` without its key, and with the predictions of the key's small models as further features. They can
        learn the label or target ``y`` next.
        """
        if not isinstance(x, Mapping):
            raise ValueError(f"a row must be a mapping of feature names to numbers, not a {type(x).__name__}")
        added = self._select_outputs(self.key_models.process_row(x, y, weight), x)
        if weight == 0.0:
            self.key_models.commit()
        return {**added, **{name: value for name, value in x.items() if name != self.key}}

    def _select_outputs(self, outputs: dict[str, Any], names: Container[Hashable]) -> dict[str, Any]:
        """Return those ``outputs`` of the small models, by name, that are added to a row with the key and features ``names``."""
        if self.key not in names or f"{self.key}~rows" in names:  # no key, or an encoder has counted its rows
            outputs.pop(f"{self.key} own rows", None)
        return outputs

    def learn_one(self, x: dict[Any, Any], y: Any, **kwargs: Any) -> None:
        """Learn the row ``x`` with the label or target ``y`` in the wrapped model, and in the small models of its key. A weight
        ``w`` in ``kwargs`` is the weight of the row in all of them. If the wrapped model refuses the row, nothing is learned.
        """
        weight = validate_weight(kwargs.get("w", 1.0))
        row = self._convert_row(x, y, weight)
        if isinstance(key := x.get(self.key), float) and key % 1.0 > 0.0:
            warn(f"the key {self.key!r} is a fraction: put a scaler into the {type(self).__name__}, where it does not scale keys")
        if self.key not in x and not all(map(self.key_models._is_input, x)):
            raise ValueError(f"rows have features of {self.key!r}, but no {self.key!r}: call encoder.pass_key({self.key!r})")
        self._wrapped_model.learn_one(row, y, **kwargs)
        self.key_models.commit()

    def _predict_then_learn(
        self, predict: Any, X: np.ndarray, names: Sequence[Hashable], y: Sequence[Any], probability: Any, weights: Weights = None
    ) -> Any:
        models, wrapped, result = self.key_models, self._wrapped_model, None
        if (predictions := models.process_rows(X, names, y, weights)) is None:
            return None
        features = {name: i for i, name in enumerate(names) if name != self.key}
        added = self._select_outputs(models.outputs, names)
        matrix = np.hstack([X[:, [*features.values()]], predictions[:, [*added.values()]]])
        n_before = getattr(wrapped, "n_learned", None)
        try:
            result = predict(matrix, [*features, *added], y, probability, weights)
        finally:
            if result is not None or getattr(wrapped, "n_learned", None) != n_before:  # Ctrl-C may come after it has learned
                models.commit()
        return result

    def explain_one(
        self, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None = None, groups: Groups = None, label: Any = None
    ) -> Explanation:
        """Return the contribution of each feature to the wrapped model's decision for the row ``x``, as its `explain_one`. The
        predictions of the small models count together, such as ``device (own models)``.
        """
        group = (groups or {}).get(self.key, f"{self.key} (own models)")
        groups = {**dict.fromkeys(self.key_models.outputs, group), **(groups or {})}
        explanation = super().explain_one(x, typical, groups, label)
        return replace(explanation, values={**explanation.values, group: x.get(self.key)})

    def merge_with(self, *others: Any, units: Any = None) -> None:
        """Merge ``others``, trained models with the same parameters, into this model, so that it approximates one model that has
        learned the rows of all of them. ``units`` converts features of models with different scalers, as in
        `BSGDClassifier.merge_with`. A key of several models keeps the small models that have learned the most rows.

        Raises
        ------
        ValueError
            The models differ in parameters, or cannot be merged. This model does not change.
        """
        self._merge_within(others, units)
        self.key_models.merge_with(*(model.key_models for model in others))

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        for key in ("device", "age_of_domain", "ordinal_date"):  # the second and third are in river's data sets
            yield from ({**parameters, "key": key} for parameters in super()._unit_test_params())

    def _copy_with(self, parameters: dict[str, Any]) -> Any:
        changed = super()._copy_with(parameters)
        changed.key_models.share_store(self.key_models)
        return changed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "key_models": self.key_models.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._init_from(state)
        self.key_models.restore_state(state["key_models"])


@complete_docstring
class KeyedClassifier(_Keyed, ClassifierWrapper):
    """A classifier of rows of many devices, customers or other keys, with small models of each key beside it.

    A field of each row is its key. Each key has two small models that learn its rows only: a linear model (recursive least
    squares), and naive Bayes with a Gaussian of each feature and label. The wrapped classifier learns the rows of all keys, and
    the predictions of the key's own models are further features for it. It learns how far to follow them, and predicts the rows
    of a new key by the knowledge of all keys.

    Parameters
    ----------
    classifier
        A river classifier, such as `SVMClassifier`, which learns rows of numbers. A scaler belongs here, such as
        ``StandardScaler() | LogisticRegression()``: before this wrapper, it would change the key.
    key
        The name of the field of a row that has its key: a text or a number. Rows without it are learned by the classifier only.
        In ``TableEncoder(keys="device") | KeyedClassifier(...)`` the encoder passes it; in other pipelines with an encoder, call
        ``encoder.pass_key("device")``.
    max_keys
        The maximum number of keys in memory. When it is exceeded, the key whose last row is the oldest is forgotten or, in a run
        with a `CheckpointFolder`, moved to a file in its folder.
    idle
        The models of a key are deleted if none of the last ``idle`` rows of the stream is of this key. None: never.

    Raises
    ------
    ValueError
        ``classifier`` is not a river classifier, or a parameter is out of its range. From `learn_one`: the key is not a text or a
        number, or the classifier refuses the row.

    Notes
    -----
    The features that the small models add are ``device own linear yes`` (from -1 to 1), ``device own bayes yes`` (the logarithm
    of a likelihood ratio) and ``device own rows``, the logarithm of 1 + the rows of the key, unless the rows have the feature
    ``device~rows`` of a `TableEncoder`. With three or more labels, the first two are there for each label. They are 0 for a new
    key.

    The small models learn the first 96 features (the linear one 24) and 8 labels, without the features that an encoder derives
    from the key, such as ``device=a7`` and ``device~last yes``. Rows are standardised by the means and deviations over all keys.
    With 8 features and two labels, a key takes 1.2 KB. A row of a batch takes 2 microseconds, and 6 with 100,000 keys in random
    order.

    References
    ----------
    The density of a feature is the posterior predictive t distribution of a normal distribution with a conjugate prior (Murphy,
    K. (2012). Machine Learning: A Probabilistic Perspective, section 4.6.3).

    Examples
    --------
    >>> import random
    >>> from river import evaluate, metrics
    >>> from streamsvm import SVMClassifier
    >>> from streamsvm.learners.keyed import KeyedClassifier
    >>> rng = random.Random(0)
    >>> normal = {f"d{i}": rng.gauss(0, 2) for i in range(20)}  # each device has its own normal temperature
    >>> rows = []
    >>> for _ in range(3000):
    ...     device = rng.choice(list(normal))
    ...     x = {"device": device, "temperature": rng.gauss(normal[device], 1)}
    ...     rows.append((x, "high" if x["temperature"] > normal[device] else "low"))

    >>> without_device = [({"temperature": x["temperature"]}, y) for x, y in rows]
    >>> evaluate.progressive_val_score(without_device, SVMClassifier(seed=0), metrics.Accuracy())
    Accuracy: 62.05%
    >>> model = KeyedClassifier(SVMClassifier(seed=0), key="device")
    >>> evaluate.progressive_val_score(rows, model, metrics.Accuracy())
    Accuracy: 95.07%
    >>> model.key_models.n_keys
    20
    """

    def __init__(self, classifier: base.Classifier, key: str, max_keys: int = 10_000, idle: int | None = None) -> None:
        self._init_wrapper(classifier, key, max_keys, idle)


@complete_docstring
class KeyedRegressor(_Keyed, RegressorWrapper):
    """A regressor of rows of many devices, customers or other keys, with small models of each key beside it.

    As `KeyedClassifier`, for a number to predict. Each key has a linear model. Its prediction is the feature ``device own
    linear``, in standard deviations from the mean of all targets; 0 for a new key.

    Parameters
    ----------
    regressor
        A river regressor, such as `SVMRegressor`, which learns rows of numbers. A scaler belongs here, as in `KeyedClassifier`.
    key
        The name of the field of a row that has its key: a text or a number. Rows without it are learned by the regressor only.
    max_keys
        The maximum number of keys in memory. When it is exceeded, the key whose last row is the oldest is forgotten or, in a run
        with a `CheckpointFolder`, moved to a file in its folder.
    idle
        The models of a key are deleted if none of the last ``idle`` rows of the stream is of this key. None: never.

    Raises
    ------
    ValueError
        ``regressor`` is not a river regressor, or a parameter is out of its range. From `learn_one`: the key is not a text or a
        number, or the regressor refuses the row.

    Examples
    --------
    >>> import random
    >>> from river import evaluate, metrics
    >>> from streamsvm import SVMRegressor
    >>> from streamsvm.learners.keyed import KeyedRegressor
    >>> rng = random.Random(0)
    >>> slopes = {f"d{i}": rng.gauss(0, 1) for i in range(20)}
    >>> rows = []
    >>> for _ in range(3000):
    ...     device, load = rng.choice(list(slopes)), rng.gauss(0, 1)
    ...     rows.append(({"device": device, "load": load}, slopes[device] * load))
    >>> model = KeyedRegressor(SVMRegressor(seed=0), key="device")
    >>> evaluate.progressive_val_score(rows, model, metrics.MAE())
    MAE: 0.069596
    """

    def __init__(self, regressor: base.Regressor, key: str, max_keys: int = 10_000, idle: int | None = None) -> None:
        self._init_wrapper(regressor, key, max_keys, idle)
