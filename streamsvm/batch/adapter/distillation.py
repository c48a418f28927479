"""From an adapter's last model to a budgeted learner, behind the adapter's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from river import preprocessing
from sklearn.base import is_classifier

from streamsvm.batch.adapter.fit import Fit
from streamsvm.batch.adapter.refitting import Refitting
from streamsvm.batch.distillation import to_budget
from streamsvm.batch.kernel_machine import KernelMachine

__all__ = ["Distillable"]


class Distillable(Refitting):
    """An adapter whose last model can become a learner."""

    def to_budget(self, budget: int, **parameters: Any) -> Any:
        """Turn the last good model into a budgeted learner that continues learning.

        See `streamsvm.batch.to_budget`.

        Parameters
        ----------
        budget
            Maximum number of support vectors of the learner, at least 1.
        parameters
            Further parameters of `streamsvm.batch.to_budget`. The rows on which the learner has to agree with the model are
            those of the window. By default, the learner has the adapter's ``max_features``, ``overflow`` and ``max_classes``.

        Returns
        -------
        Pipeline or learner
            A pipeline of river's ``StandardScaler``, which continues from the window's means and deviations, and the learner. A
            feature that a row lacks then counts as its mean, not as 0. With ``standardize=False``, the learner alone.

        Raises
        ------
        ValueError
            There is no fitted model yet; the model is not one of `streamsvm.batch`; its labels are of several types, or numbers
            with fractions; or features that are standardised may have been hashed together.

        Notes
        -----
        It takes as long as `streamsvm.batch.to_budget` with the rows of the window, and memory for a copy of them in float64.
        The learner's ``nbytes`` grow with ``budget * (4 * max_features + 16 * max_classes)``; if no more features or classes
        are to come, smaller values save memory. The scaler saves three numbers for each name that it ever meets, even if the
        learner ignores it.
        """
        fit = self._distilled()
        if self.overflow == "hash" and self.standardize and len(self.feature_names) == self.max_features:
            raise ValueError(
                f"all max_features={self.max_features} columns are taken, and features that were hashed into one cannot be "
                "standardised name by name: raise max_features, or standardize before the adapter and not in it"
            )
        names = self.feature_names[: len(fit.mean)]
        room = {name: getattr(self, name) for name in ("max_features", "overflow", "max_classes") if hasattr(self, name)}
        X = self._window.ordered(len(names)).X.astype(np.float64)
        X -= fit.mean  # in place: there may be memory for one copy only
        X /= fit.scale
        learner = to_budget(fit.model, budget, X, feature_names=names, **{**room, **parameters})
        if not self.standardize:
            return learner
        scaler = preprocessing.StandardScaler()
        for name, mean, scale in zip(names, fit.mean.tolist(), fit.scale.tolist(), strict=True):
            scaler.counts[name], scaler.means[name], scaler.vars[name] = self.n_window, mean, scale * scale
        return scaler | learner

    def _distilled(self) -> Fit:
        """Return the last good fit; raise a ValueError where its model cannot become a learner."""
        fit = self._latest()
        if fit is None:
            raise ValueError("the adapter has no fitted model yet: fit() first")
        if not isinstance(fit.model, KernelMachine):
            raise ValueError(f"{type(fit.model).__name__} is no kernel machine of streamsvm.batch, which alone become learners")
        if is_classifier(fit.model) and fit.classes != fit.model.classes_.tolist():
            raise ValueError("the labels are of several types, or numbers with fractions: give them as strings")
        return fit
