"""Budget maintenance: the strategies that keep a store within its budget, as values to pass to a learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from streamsvm.budget.maintenance import PROJECTION, REFUSAL, REMOVAL_RANDOM, REMOVAL_SMALLEST
from streamsvm.budget.merge_search import GSS, GSS_PRECISE, LOOKUP_H, LOOKUP_WD

__all__ = ["Maintenance", "Merge", "Projection", "Refusal", "Removal", "strategy_for"]


@dataclass(frozen=True)
class Merge:
    """Merge the support vector with the smallest coefficient into the partner that costs least.

    Parameters
    ----------
    search
        How the best place and its weight degradation are found for each of the B candidates:
        ``"lookup-wd"`` interpolates the degradation from a table, ``"lookup-h"`` interpolates the place and computes the
        degradation, ``"gss"`` runs a golden section search to 0.01, ``"gss-precise"`` to 1e-10.

    Notes
    -----
    For the Gaussian kernel only.

    Raises
    ------
    ValueError
        An unknown search.

    References
    ----------
    Glasmachers and Qaadan (2018), algorithm 1 and section 3; errata in `streamsvm.budget.merge_table`. O(B) candidates an event.

    Examples
    --------
    >>> Merge()
    Merge(search='lookup-wd')
    """

    search: str = "lookup-wd"
    _codes: ClassVar[dict[str, int]] = {
        "gss": GSS,
        "gss-precise": GSS_PRECISE,
        "lookup-h": LOOKUP_H,
        "lookup-wd": LOOKUP_WD,
    }

    def __post_init__(self) -> None:
        _one_of("search", self.search, self._codes)

    @property
    def code(self) -> int:
        """What compiled code calls this strategy."""
        return self._codes[self.search]


@dataclass(frozen=True)
class Removal:
    """Remove one support vector and what it contributed.

    Parameters
    ----------
    which
        ``"smallest"``: the one with the smallest coefficient; ``"random"``: any, by the learner's seed.

    Raises
    ------
    ValueError
        An unknown choice.

    References
    ----------
    Wang, Crammer and Vucetic (2012), Breaking the curse of kernelization, section 5.1. O(B) an event.

    Examples
    --------
    >>> Removal("random")
    Removal(which='random')
    """

    which: str = "smallest"
    _codes: ClassVar[dict[str, int]] = {"smallest": REMOVAL_SMALLEST, "random": REMOVAL_RANDOM}

    def __post_init__(self) -> None:
        _one_of("which", self.which, self._codes)

    @property
    def code(self) -> int:
        """What compiled code calls this strategy."""
        return self._codes[self.which]


@dataclass(frozen=True)
class Projection:
    """Remove the support vector with the smallest coefficient and project its contribution onto all the others.

    References
    ----------
    Wang, Crammer and Vucetic (2012), section 5.2. O(B^3) an event, and B^2 numbers more memory: for small budgets.

    Examples
    --------
    >>> Projection()
    Projection()
    """

    @property
    def code(self) -> int:
        """What compiled code calls this strategy."""
        return PROJECTION


@dataclass(frozen=True)
class Refusal:
    """Refuse, with a RuntimeError, the support vector that would be one too many: for references that know no budget.

    Examples
    --------
    >>> Refusal()
    Refusal()
    """

    @property
    def code(self) -> int:
        """What compiled code calls this strategy."""
        return REFUSAL


#: What keeps a store within its budget.
Maintenance = Merge | Removal | Projection | Refusal


def _one_of(name: str, value: str, choices: dict[str, int]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def strategy_for(kernel: str, maintenance: Maintenance | None) -> Maintenance:
    """The strategy given, or what suits the kernel where that is None."""
    if not isinstance(maintenance, Merge | Removal | Projection | None):
        raise ValueError(f"maintenance must be a Merge, Removal or Projection (of streamsvm) or None, not {maintenance!r}")
    if isinstance(maintenance, Merge) and kernel != "rbf":
        raise ValueError(f"Merge needs kernel='rbf'; with kernel={kernel!r} use Projection() or Removal()")
    return maintenance or (Merge() if kernel == "rbf" else Projection())
