"""Compiles what a use of the library needs in several processes side by side: before it begins, or at its first row.

What is needed is listed in ``entries.json``, which ``release/entries.py`` writes: for each public estimator, and for each learner
of the command line. Processes share the work through the files of `stored`: who meets a function that another one is compiling
waits for its file.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from streamsvm.core.compiling import machine_code
from streamsvm.core.compiling.cache_keys import measure_callees
from streamsvm.core.compiling.common import INTERPRETED, expected_components, import_object
from streamsvm.core.compiling.signatures import to_numba_types

ENTRIES_PATH = Path(__file__).with_name("entries.json")
#: The most processes, unless STREAMSVM_COMPILE_PROCESSES says otherwise: a use has no more large functions.
_MAX_PROCESSES = 8
#: Modules that only processes have which do a share of some larger work, beside others.
_WORKER_MODULES = "pyspark.worker", "joblib.externals.loky.backend.popen_loky_posix"
_END_SECONDS = 5.0

logger: logging.Logger = logging.getLogger("streamsvm")
_helpers: list[subprocess.Popen[bytes]] = []  # of first uses

#: A function, and the types of its arguments.
_Entry = tuple[Any, tuple[Any, ...]]


@cache
def _entries_table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(ENTRIES_PATH.read_bytes())
    return table


def list_components() -> list[str]:
    """Return the names of the uses that can be compiled: estimators, and learners of the command line."""
    return list(_entries_table()["components"])


def list_entries(uses: Iterable[str]) -> list[tuple[str, str]]:
    """Return the places and signatures of the functions that uses need, sorted."""
    used = (_entries_table()["components"][use].items() for use in uses)
    return sorted({(place, signature) for places in used for place, signatures in places for signature in signatures})


def _functions_of(uses: Iterable[str]) -> list[_Entry]:
    """Return the functions that uses need, with the types of their arguments."""
    return [(import_object(place), to_numba_types(signature.partition(" -> ")[0])) for place, signature in list_entries(uses)]


def _share_of_work(parts: list[dict[Any, int]], process: int, processes: int) -> list[int]:
    """Return the numbers of the functions that a process compiles: its share, then those of others, last first.

    ``parts`` has the callees of each function, with their sizes. Functions that share callees go to one process, because another
    one would wait for these. All processes divide the same list, and skip functions that are in a file by then.
    """
    own: list[list[int]] = [[] for _ in range(processes)]
    made: list[dict[Any, int]] = [{} for _ in range(processes)]

    def time_with(number: int, at: int) -> int:
        loads = [sum((of | parts[number] if here == at else of).values()) for here, of in enumerate(made)]
        return max(loads) + sum(loads)

    for number in sorted(range(len(parts)), key=lambda number: -sum(parts[number].values())):
        best = min(range(processes), key=lambda at: time_with(number, at))
        own[best].append(number)
        made[best] |= parts[number]
    return own[process] + [number for other in range(processes) if other != process for number in reversed(own[other])]


def _in_order(functions: list[_Entry], process: int, processes: int) -> list[_Entry]:
    """Return the functions in the order in which a process compiles them."""
    sizes = [measure_callees(function) for function, _ in functions]
    return [functions[number] for number in _share_of_work(sizes, process, processes)]


def compile_ahead(uses: Iterable[str], say: Callable[[int, int, str], object] | None = None) -> int:
    """Compile what uses of the library need, and return how many functions were compiled.

    ``uses`` are names from `list_components`; others raise a ValueError. `count_processes` processes compile. ``say`` is called
    with the number of functions that are compiled, the number of all, and the name of the next one.
    """
    uses = list(uses)
    if unknown := [use for use in uses if use not in list_components()]:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(list_components())}")
    if INTERPRETED or machine_code.is_available():
        return 0
    functions = _functions_of(uses)
    missing = {(function, kinds) for function, kinds in functions if not function.is_stored(kinds)}
    if not missing:
        return 0
    n = min(count_processes(), len(missing))
    waiting = [entry for entry in _in_order(functions, 0, n) if entry in missing]
    helpers = [_start_helper(process, n, uses) for process in range(1, n)]
    try:
        for number, (function, kinds) in enumerate(waiting):
            if say is not None:
                say(number, len(waiting), function.py_func.__qualname__)
            function.compile_entry(kinds)
    finally:
        _end_helpers(helpers)
    return len(waiting)


def count_processes() -> int:
    """Return how many processes compile: the environment variable STREAMSVM_COMPILE_PROCESSES, or one for each processor."""
    if count := os.environ.get("STREAMSVM_COMPILE_PROCESSES"):
        if not count.isdecimal() or int(count) == 0:
            raise ValueError(f"STREAMSVM_COMPILE_PROCESSES must be a whole number of at least 1, not {count!r}")
        return int(count)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MAX_PROCESSES)


def start_helpers(function: Any, arguments: tuple[Any, ...]) -> None:
    """Start processes that compile what an expected use needs, if a function that it calls first is in no file.

    This process continues with that function. When it needs another one, a helper has compiled it, or is waited for.
    """
    for helper in _helpers:
        helper.poll()  # one that has ended is a process of the system until then
    place = f"{function.py_func.__module__}:{function.py_func.__qualname__}"
    uses = [use for use in list(expected_components) if place in _entries_table()["components"].get(use, ())]
    if not uses or function.is_stored(arguments):
        return
    use = uses[-1]
    expected_components.pop(use, None)  # another thread may have taken it
    missing = sum(not other.is_stored(kinds) for other, kinds in _functions_of([use]))
    n = min(count_processes(), missing) if _may_start_processes() else 1
    if n > 1:
        logger.info("compiling %d functions of %s in %d processes, once on this machine", missing, use, n)
        if not _helpers:
            atexit.register(_end_at_exit, os.getpid())
        try:
            _helpers.extend(_start_helper(process, n, [use]) for process in range(1, n))
        except OSError as error:  # a limit of processes or files, or a working directory that was removed
            logger.info("compiling in this process alone: no other one can be started (%s)", error)


def _may_start_processes() -> bool:
    # Not where this process is one of several that share some work, nor where a program has Python within it.
    multiprocessing = sys.modules.get("multiprocessing.process")
    started_by = getattr(multiprocessing, "parent_process", lambda: None)()
    main = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
    is_worker = started_by is not None or main in _WORKER_MODULES or _WORKER_MODULES[0] in sys.modules
    return not is_worker and "python" in Path(sys.executable or "").name


def _end_at_exit(process: int) -> None:
    if os.getpid() == process:  # not a fork of it
        _end_helpers(_helpers)


def _end_helpers(helpers: list[subprocess.Popen[bytes]]) -> None:
    for helper in helpers:
        helper.terminate()
    for helper in helpers:
        try:
            helper.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:  # it has been stopped
            helper.kill()
            helper.communicate()


def _start_helper(process: int, processes: int, uses: list[str]) -> subprocess.Popen[bytes]:
    code = "import sys; from streamsvm.core.compiling.ahead_of_time import help_to_compile; help_to_compile(*sys.argv[1:])"
    words = [sys.executable, "-P", "-c", code, str(process), str(processes), *uses]
    # It imports what this process imports: -P, for files of the folder where it was started are not among that.
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    environment = {**os.environ, "PYTHONPATH": paths, "STREAMSVM_COMPILE_PROCESSES": "1"}
    return subprocess.Popen(  # noqa: S603 - this interpreter, and names that were checked
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )


def help_to_compile(process: str, processes: str, *uses: str) -> None:
    """Compile what uses need, until all is compiled, or until the process at the other end of the standard input has ended."""
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    compile_share(uses, int(process), int(processes))
    os._exit(0)  # a thread that waits for its standard input cannot be ended in order


def compile_share(uses: Iterable[str], process: int, processes: int) -> None:
    """Compile what uses need as one of several processes: first its share, then functions that no other process has compiled."""
    for function, kinds in _in_order(_functions_of(uses), process, processes):
        if not function.is_stored(kinds):
            function.compile_entry(kinds)
