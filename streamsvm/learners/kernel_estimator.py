"""The base of kernel learners, whose store has support vectors or landmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from streamsvm.core.checks import Gamma, KernelName, parameter
from streamsvm.core.explaining import compute_distances
from streamsvm.core.kernels import KERNELS, check_learner_kernel
from streamsvm.core.steps import iterates
from streamsvm.core.steps.rescale import GAMMA_GIVEN
from streamsvm.core.steps.step import GAMMA_ROWS
from streamsvm.learners.estimator import OnlineEstimator, learner
from streamsvm.learners.explained import KnownRows, find_vector_labels


@learner
class KernelEstimator(OnlineEstimator):
    """The base of kernel models, whose store has support vectors or landmarks."""

    budget: int = field(default=100, kw_only=False)
    """The maximum number of support vectors, B. A larger budget can represent more detail, but memory and the time per row
    grow with it.
    """
    kernel: KernelName = parameter(default="rbf", choices=KERNELS)
    """The kernel of a row x and a support vector or landmark s: ``"rbf"`` is exp(-gamma |x - s|^2), ``"linear"`` is x.s, and
    ``"poly"`` is (gamma x.s + coef0)^degree.
    """
    gamma: Gamma = "scale"
    """The kernel parameter: a number above 0, or ``"scale"``. It applies to rows after scaling. The larger it is, the narrower
    a Gaussian kernel is; the linear kernel ignores it. ``"scale"`` is one over the sum of the features' variances
    (scikit-learn's "scale", for features of equal mean and variance). With ``scaling="auto"`` that is one over the number of
    features, where a binary feature counts by its variance. Without scaling, it is estimated from the first 500 rows, updated
    with each of them, and fixed from then on.
    """
    degree: int = parameter(default=3, least=1, high=100, integer=True)
    """The degree of the polynomial kernel, from 1 to 100. The other kernels ignore it."""
    coef0: float = 0.0
    """The constant of the polynomial kernel, at least 0. The other kernels ignore it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        header, is_estimated = self._store.views.header, isinstance(self.gamma, str)
        header["kernel"], header["coef0"], header["degree"] = self._kernel_kind, self.coef0, self.degree
        header["gamma"], self._common["gamma_rows"] = (1.0, 0) if is_estimated else (self.gamma, GAMMA_GIVEN)

    def _make_store_attributes(self, store: Any) -> dict[str, Any]:
        """Return the attributes that this model must set when it starts to use the memory ``store``, as a dict of name to value:
        views of the memory's arrays, such as the current row and its decision values.
        """
        return {**super()._make_store_attributes(store), "_row": store.views.rows[0], "_scores": store.views.scores}

    def _check_parameters(self) -> None:
        """Raise a ValueError that names the parameter if the kernel, its gamma or coef0, or another parameter of this model is
        invalid.
        """
        super()._check_parameters()
        check_learner_kernel(self.kernel, self.gamma, self.coef0)

    @property
    def _kernel_kind(self) -> int:
        """The integer code of this model's kernel (linear, polynomial or Gaussian) for compiled code."""
        return KERNELS[self.kernel]

    @property
    def n_support(self) -> int:
        """The current number of support vectors of this model, or of landmarks in a model with landmarks; at most ``budget``."""
        n: int = self._store.n_support
        return n

    @property
    def support_vectors(self) -> np.ndarray:
        """A copy of the support vectors of this model (or of its landmarks), float32 [n_support, features seen], with the columns
        in the order of `feature_names`.

        With ``scaling="auto"`` they are scaled, as the kernel receives them: ``scale_in_use.inverse_transform`` returns them in
        the units of the features.
        """
        vectors: np.ndarray = self._store.vectors
        return vectors

    @property
    def effective_gamma(self) -> float:
        """The value of gamma that the kernel currently uses: the parameter ``gamma`` if it is a number, or the current estimate
        for ``gamma="scale"``.
        """
        return float(self._store.views.header[0]["gamma"])

    def _find_known_rows(self, x: Mapping[Any, Any]) -> KnownRows:
        """Return the support vectors of this model, their Euclidean distances to the row ``x`` (a dict) in scaled features, and
        the label that each votes for. Raise a ValueError if the model has no support vectors.
        """
        vectors = self._store.vectors
        if self._kernel_kind not in KERNELS.values():  # random frequencies, which are not rows
            return super()._find_known_rows(x)
        if not len(vectors):
            raise ValueError("the model stores no rows that could be examples: it has no support vectors yet")
        self._compute_output(x, iterates.DECISION)
        distances = compute_distances(self._store.views.rows[0][: vectors.shape[1]], vectors)
        labels = find_vector_labels(self.coefficients, hasattr(self, "_labels"))  # type: ignore[attr-defined]
        return KnownRows(vectors, distances, labels, "support vectors")

    def _list_fixed_fields(self) -> dict[str, Any]:
        """Return the kernel parameters in the model's memory that the constructor sets for good, as a dict of field name to value
        (kernel, degree, coef0, and gamma unless it is estimated), to compare with those of a saved model.
        """
        header = self._store.views.header[0]
        gamma = {} if self.gamma == "scale" else {"gamma": self.effective_gamma}
        return {"kernel": header["kernel"], "degree": header["degree"], "coef0": header["coef0"], **gamma}

    def _list_learned_fields(self) -> dict[str, tuple[float, float]]:
        """Return the valid range of each additional field in the model's memory that learning changes, as a dict of field name to
        (minimum, maximum), to validate a saved model. If gamma is estimated, this is ``gamma_rows``, the number of rows that it
        was estimated from; otherwise the dict is empty.
        """
        return {"gamma_rows": (0, GAMMA_ROWS)} if self.gamma == "scale" else {}
