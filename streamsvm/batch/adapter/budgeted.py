"""From an adapter's machine to a budgeted learner."""

from __future__ import annotations

from typing import Any

from river import preprocessing
from sklearn.base import is_classifier

from streamsvm.batch.distillation import to_budget
from streamsvm.batch.kernel_machine import KernelMachine

__all__ = ["adapter_to_budget"]


def adapter_to_budget(adapter: Any, budget: int, parameters: dict[str, Any]) -> Any:
    """What `BatchAdapter.to_budget` gives."""
    fit = adapter._fit
    if fit is None or not isinstance(fit.model, KernelMachine):
        raise ValueError("the adapter has no fitted kernel machine: fit() first, with a model of streamsvm")
    if is_classifier(fit.model) and fit.classes != fit.model.classes_.tolist():
        raise ValueError("the labels are of several types, or numbers with fractions: give them as strings")
    if adapter.overflow == "hash" and adapter.standardize and len(adapter.feature_names) == adapter.max_features:
        raise ValueError(
            f"all max_features={adapter.max_features} columns are taken, and what was hashed into them together cannot be "
            "standardised name by name: raise max_features, or standardize before the adapter and not in it"
        )
    names = adapter.feature_names[: len(fit.mean)]
    X = adapter._window.ordered(len(names)).X
    X -= fit.mean
    X /= fit.scale
    room = {"max_features": adapter.max_features, "overflow": adapter.overflow}
    room |= {"max_classes": adapter.max_classes} if is_classifier(fit.model) else {}
    learner = to_budget(fit.model, budget, X, feature_names=names, **{**room, **parameters})
    if not adapter.standardize:
        return learner
    scaler = preprocessing.StandardScaler()
    for name, mean, scale in zip(names, fit.mean.tolist(), fit.scale.tolist(), strict=True):
        scaler.counts[name], scaler.means[name], scaler.vars[name] = adapter.n_window, mean, scale * scale
    return scaler | learner
