"""Progress bars of long computations, on standard error if it is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich import progress
from rich.console import Console


def iterate_with_progress(numbers: Iterable[int], title: str, verbose: bool) -> Iterable[int]:
    """Iterate over numbers, and show a progress bar if ``verbose``."""
    if not verbose:
        return numbers
    console = Console(stderr=True)
    return progress.track(numbers, title, console=console, transient=True) if console.is_terminal else numbers


def show_count(total: int, title: str, verbose: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Show a progress bar with a count up to ``total`` during the context, which is a thread-safe function to set the count."""
    return _show_progress((progress.BarColumn(), progress.MofNCompleteColumn()), total, title, verbose)


def show_bytes(total: int, title: str, verbose: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Show a progress bar with bytes up to ``total`` during the context, which is a function to set their number."""
    return _show_progress(
        (progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn()), total, title, verbose
    )


def show_rows(title: str, verbose: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Show the number of processed rows during the context, which is a function to set this number."""
    return _show_progress((progress.TextColumn("{task.completed:,.0f} rows"), progress.TimeElapsedColumn()), None, title, verbose)


@contextmanager
def _show_progress(
    columns: Iterable[progress.ProgressColumn], total: int | None, title: str, verbose: bool
) -> Iterator[Callable[[int], None]]:
    """Show a progress display with these columns if ``verbose`` and standard error is a terminal."""
    console = Console(stderr=True) if verbose else None
    if console is None or not console.is_terminal:
        yield lambda _: None
        return
    with progress.Progress(progress.TextColumn("{task.description}"), *columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda completed: bar.update(task, completed=completed)
