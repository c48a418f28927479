"""Progress of long work, on standard error if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich import progress
from rich.console import Console


def iterate_with_progress(numbers: Iterable[int], what: str, verbose: bool) -> Iterable[int]:
    """Iterate over the numbers, with a bar of how many are done."""
    if not verbose:
        return numbers
    console = Console(stderr=True)
    return progress.track(numbers, what, console=console, transient=True) if console.is_terminal else numbers


def show_count(total: int, what: str, verbose: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Show a bar of how many of ``total`` are done; the context is a function to call with that number, from any thread."""
    return _shown_progress((progress.BarColumn(), progress.MofNCompleteColumn()), total, what, verbose)


def show_bytes(total: int, what: str, verbose: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Show a bar of how many of ``total`` bytes are done; the context is a function to call with that number."""
    return _shown_progress(
        (progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn()), total, what, verbose
    )


def show_rows(what: str, verbose: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Show a line of how many rows are done; the context is a function to call with that number."""
    return _shown_progress((progress.TextColumn("{task.completed:,.0f} rows"), progress.TimeElapsedColumn()), None, what, verbose)


@contextmanager
def _shown_progress(
    columns: Iterable[progress.ProgressColumn], total: int | None, what: str, verbose: bool
) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True) if verbose else None
    if console is None or not console.is_terminal:
        yield lambda _: None
        return
    with progress.Progress(progress.TextColumn("{task.description}"), *columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
