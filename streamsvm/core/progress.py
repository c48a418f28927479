"""Progress bars of long computations, on standard error if it is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich import progress
from rich.console import Console


def iterate_with_progress(numbers: Iterable[int], title: str, verbose: bool) -> Iterable[int]:
    """Return an iterable over ``numbers`` that shows a progress bar with a ``title`` on standard error, if ``verbose`` is True
    and standard error is a terminal.
    """
    if not verbose:
        return numbers
    console = Console(stderr=True)
    return progress.track(numbers, title, console=console, transient=True) if console.is_terminal else numbers


def show_count(total: int, title: str, verbose: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Return a context manager that shows a progress bar from 0 to ``total`` with a ``title``, if ``verbose``. It returns a
    function that sets the present count, and that any thread may call.
    """
    return _show_progress((progress.BarColumn(), progress.MofNCompleteColumn()), total, title, verbose)


def show_bytes(total: int, title: str, verbose: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Return a context manager that shows a progress bar from 0 to ``total`` bytes with a ``title``, if ``verbose``. It returns a
    function that sets the present number of bytes.
    """
    return _show_progress(
        (progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn()), total, title, verbose
    )


def show_rows(title: str, verbose: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Return a context manager that shows a ``title``, the number of processed rows and the elapsed time, if ``verbose``. It
    returns a function that sets the present number of rows.
    """
    return _show_progress((progress.TextColumn("{task.completed:,.0f} rows"), progress.TimeElapsedColumn()), None, title, verbose)


@contextmanager
def _show_progress(
    columns: Iterable[progress.ProgressColumn], total: int | None, title: str, verbose: bool
) -> Iterator[Callable[[int], None]]:
    """Context manager: show a ``title`` and a progress display of these rich ``columns`` while its body runs, if ``verbose`` is
    True and standard error is a terminal. It returns a function that sets the progress, a number up to ``total`` (None: unknown).
    """
    console = Console(stderr=True) if verbose else None
    if console is None or not console.is_terminal:
        yield lambda _: None
        return
    with progress.Progress(progress.TextColumn("{task.description}"), *columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda completed: bar.update(task, completed=completed)
