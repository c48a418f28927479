"""No budget maintenance."""

from __future__ import annotations

from dataclasses import dataclass

from streamsvm.budget.strategy import Strategy

__all__ = ["Refusal"]


@dataclass(frozen=True)
class Refusal(Strategy):
    """Refuse, with a RuntimeError, the support vector that would be one too many: for references that know no budget.

    Examples
    --------
    >>> Refusal()
    Refusal()
    """

    def event(self, shared: bool) -> None:  # noqa: ARG002
        """Return None: a store with one support vector too many stays so, for the learner to restore."""
        return
