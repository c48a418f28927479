"""No budget maintenance."""

from __future__ import annotations

from dataclasses import dataclass

from streamsvm.core.budget.strategy import Strategy

__all__ = ["Refusal"]


@dataclass(frozen=True)
class Refusal(Strategy):
    """Refuse the support vector that would be one too many, with a RuntimeError.

    This is for reference learners, which have no budget.

    Examples
    --------
    >>> Refusal()
    Refusal()
    """

    def event(self, shared: bool) -> None:  # noqa: ARG002
        """Return None: a store with one support vector too many stays as it is, and the learner restores it."""
        return
