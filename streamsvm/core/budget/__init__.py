"""Budget maintenance: strategies that keep the number of support vectors within a learner's budget."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from streamsvm.core.budget.merge import Merge
from streamsvm.core.budget.removal import Projection, Removal
from streamsvm.core.budget.strategy import Refusal, Strategy

__all__ = ["Merge", "Projection", "Refusal", "Removal", "Strategy", "choose_strategy"]


def choose_strategy(kernel: str, maintenance: Strategy | None) -> Strategy:
    """Return the strategy that keeps a kernel model within its budget of support vectors: ``maintenance``, or the default if it
    is None, which is `Merge` for the Gaussian kernel (``"rbf"``) and `Projection` for other kernels.

    Raises
    ------
    ValueError
        ``maintenance`` is not a strategy that keeps a budget, or does not support the kernel.
    """
    if maintenance is None:
        return Merge() if kernel == "rbf" else Projection()
    if not isinstance(maintenance, Strategy) or isinstance(maintenance, Refusal):
        raise ValueError(
            f"maintenance must be a Merge, Removal, Projection or another streamsvm.core.budget.Strategy, "
            f"or None, not {maintenance!r}"
        )
    field_names: set[str] = {field.name for field in fields(maintenance)} if is_dataclass(maintenance) else set()
    if hidden := [name for name in vars(maintenance) if name not in field_names and hasattr(type(maintenance), name)]:
        raise ValueError(f"maintenance is corrupt: its attribute {hidden[0]!r} hides the one of its class")
    if maintenance.kernels is not None and kernel not in maintenance.kernels:
        allowed = " or ".join(f"kernel={name!r}" for name in maintenance.kernels)
        raise ValueError(f"{type(maintenance).__name__} needs {allowed}; with kernel={kernel!r} use Projection() or Removal()")
    return maintenance
