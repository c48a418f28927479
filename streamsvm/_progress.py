"""Progress of long work, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
    track,
)

__all__ = ["shown", "shown_bytes", "shown_rows"]


def shown(numbers: Iterable[int], what: str, verbose: bool) -> Iterable[int]:
    """The numbers, and on a terminal a bar that tells how many of them are done."""
    if not verbose:
        return numbers
    console = Console(stderr=True)
    return track(numbers, what, console=console, transient=True) if console.is_terminal else numbers


def shown_bytes(total: int, what: str, verbose: bool) -> AbstractContextManager[Callable[[int], None]]:
    """What is to be called with how many of ``total`` bytes are done, and on a terminal a bar that tells it."""
    return _shown((BarColumn(), DownloadColumn(), TransferSpeedColumn()), total, what, verbose)


def shown_rows(what: str, verbose: bool) -> AbstractContextManager[Callable[[int], None]]:
    """What is to be called with how many rows are done, and on a terminal a line that tells it."""
    return _shown((TextColumn("{task.completed:,.0f} rows"), TimeElapsedColumn()), None, what, verbose)


@contextmanager
def _shown(columns: Iterable[ProgressColumn], total: int | None, what: str, verbose: bool) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True) if verbose else None
    if console is None or not console.is_terminal:
        yield lambda _: None
        return
    with Progress(TextColumn("{task.description}"), *columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
