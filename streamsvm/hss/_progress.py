"""Progress of long work, on standard error."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.progress import track

__all__ = ["shown"]


def shown(numbers: Iterable[int], what: str, verbose: bool) -> Iterable[int]:
    """The numbers, and on a terminal a bar that tells how many of them are done."""
    if not verbose:
        return numbers
    console = Console(stderr=True)
    return track(numbers, what, console=console, transient=True) if console.is_terminal else numbers
