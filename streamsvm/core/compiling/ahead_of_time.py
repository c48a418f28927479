"""Compiles the functions of an estimator in several processes at once, ahead of time or when its first row arrives.

``entries.json`` lists the functions of each component: a public estimator, a learner of the command line, or the readers of
sources. ``release/entries.py`` writes it. Processes share the work through the files of `disk_cache`: a process that needs a
function that another one is compiling waits for its file.
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
#: The largest number of processes by default: a component has no more large functions.
_MAX_PROCESSES = 8
#: Modules that are only loaded in worker processes of Spark and joblib.
_WORKER_MODULES = "pyspark.worker", "joblib.externals.loky.backend.popen_loky_posix"
_EXIT_WAIT_SECONDS = 5.0

logger: logging.Logger = logging.getLogger("streamsvm")
_helpers: list[subprocess.Popen[bytes]] = []  # processes that `start_helpers` has started

#: A function, and its argument types.
_Entry = tuple[Any, tuple[Any, ...]]


@cache
def _read_entries() -> dict[str, Any]:
    """Return the content of ``entries.json``, the table of compiled functions and their argument types for each estimator and
    other component.
    """
    table: dict[str, Any] = json.loads(ENTRIES_PATH.read_bytes())
    return table


def list_components() -> list[str]:
    """Return the names of all components that have functions to compile ahead of time: estimator classes such as
    ``"SVMClassifier"``, learners of the command line, and readers of data sources.
    """
    return list(_read_entries()["components"])


def list_entries(components: Iterable[str]) -> list[tuple[str, str]]:
    """Return the compiled functions that ``components`` (names of estimators and the like) need, as a sorted list of pairs: the
    import path, such as ``module:function``, and the signature as text.
    """
    entries = (_read_entries()["components"][component].items() for component in components)
    return sorted({(path, signature) for paths in entries for path, signatures in paths for signature in signatures})


def _find_functions(components: Iterable[str]) -> list[_Entry]:
    """Import the compiled functions that ``components`` (names of estimators and the like) need. Returns a list of pairs
    (function, tuple of numba argument types).
    """
    return [(import_object(path), to_numba_types(signature.partition(" -> ")[0])) for path, signature in list_entries(components)]


def _share_work(sizes: list[dict[Any, int]], process: int, n_processes: int) -> list[int]:
    """Plan the compilation by ``n_processes`` parallel processes: return the indices of the functions for process number
    ``process`` in their order. Its own share comes first, then the functions of the other processes, which may be late.
    ``sizes[i]`` maps each function that function i calls to its code size.

    Functions that share callees go to the same process, because another one would wait for these. All processes divide the same
    list, and skip functions that are already in a file.
    """
    shares: list[list[int]] = [[] for _ in range(n_processes)]
    compiled_sizes: list[dict[Any, int]] = [{} for _ in range(n_processes)]

    def estimate_time(index: int, process_index: int) -> int:
        """Return the cost of assigning the function at ``index`` to process ``process_index``: the code size that the busiest
        process would have to compile, plus that of all processes together.
        """
        callees = [done | sizes[index] if i == process_index else done for i, done in enumerate(compiled_sizes)]
        work = [sum(of_process.values()) for of_process in callees]
        return max(work) + sum(work)

    for index in sorted(range(len(sizes)), key=lambda index: -sum(sizes[index].values())):
        best = min(range(n_processes), key=lambda process_index: estimate_time(index, process_index))
        shares[best].append(index)
        compiled_sizes[best] |= sizes[index]
    other_shares = shares[:process] + shares[process + 1 :]
    return shares[process] + [index for share in other_shares for index in reversed(share)]


def _order_functions(functions: list[_Entry], process: int, n_processes: int) -> list[_Entry]:
    """Return ``functions``, pairs of a compiled function and argument types, in the order for process number ``process`` of
    ``n_processes`` that share the compilation: first its own share, then the functions of the other processes.
    """
    sizes = [measure_callees(function) for function, _ in functions]
    return [functions[index] for index in _share_work(sizes, process, n_processes)]


def compile_ahead(components: Iterable[str], show_progress: Callable[[int, int, str], object] | None = None) -> int:
    """Compile all functions that ``components`` (such as ``"SVMClassifier"``) need and that are not in the disk cache yet, in
    several processes; return how many were missing. ``show_progress`` is called before each function. Raises ValueError for an
    unknown component.

    The work is shared by `count_processes` processes. ``show_progress`` is called with the number of compiled functions, the
    number of all functions, and the name of the next one.
    """
    components = list(components)
    if unknown := [component for component in components if component not in list_components()]:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(list_components())}")
    if INTERPRETED or machine_code.is_available():
        return 0
    functions = _find_functions(components)
    missing = {(function, argument_types) for function, argument_types in functions if not function.is_stored(argument_types)}
    if not missing:
        return 0
    n = min(count_processes(), len(missing))
    entries = [entry for entry in _order_functions(functions, 0, n) if entry in missing]
    helpers = [_start_helper(process, n, components) for process in range(1, n)]
    try:
        for index, (function, argument_types) in enumerate(entries):
            if show_progress is not None:
                show_progress(index, len(entries), function.py_func.__qualname__)
            function.compile_entry(argument_types)
    finally:
        _end_helpers(helpers)
    return len(entries)


def count_processes() -> int:
    """Return the number of processes that compile functions: the environment variable STREAMSVM_COMPILE_PROCESSES, or by default
    the number of cores, at most 8. Raises ValueError if the variable is not an integer above 0.
    """
    if count := os.environ.get("STREAMSVM_COMPILE_PROCESSES"):
        if not count.isdecimal() or int(count) == 0:
            raise ValueError(f"STREAMSVM_COMPILE_PROCESSES must be an integer of at least 1, not {count!r}")
        return int(count)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MAX_PROCESSES)


def start_helpers(function: Any, arguments: tuple[Any, ...]) -> None:
    """Start helper processes that compile the remaining functions of an estimator, while this process compiles the first one:
    ``function`` for the numba types ``arguments``. Does nothing if this function is in the disk cache, or does not belong to an
    estimator that was created in this process.

    This is called for the first function that is compiled in this process after an estimator was created (see
    `expect_component`). When this process needs the next function, a helper has compiled it, or is waited for.
    """
    for helper in _helpers:
        helper.poll()  # reap helpers that have ended
    path = f"{function.py_func.__module__}:{function.py_func.__qualname__}"
    components = [name for name in list(expected_components) if path in _read_entries()["components"].get(name, ())]
    if not components or function.is_stored(arguments):
        return
    component = components[-1]
    expected_components.pop(component, None)  # unless another thread was faster
    missing = sum(not needed.is_stored(argument_types) for needed, argument_types in _find_functions([component]))
    n = min(count_processes(), missing) if _may_start_processes() else 1
    if n > 1:
        logger.info("compiling %d functions of %s in %d processes, once on this machine", missing, component, n)
        if not _helpers:
            atexit.register(_end_at_exit, os.getpid())
        try:
            _helpers.extend(_start_helper(process, n, [component]) for process in range(1, n))
        except OSError as error:  # a limit of processes or files, or a removed working directory
            logger.info("compiling in this process only: no other process can be started (%s)", error)


def _may_start_processes() -> bool:
    """Return whether this program may start helper processes: False in worker processes of Spark, joblib or multiprocessing, and
    in programs that embed Python.
    """
    multiprocessing = sys.modules.get("multiprocessing.process")
    parent = getattr(multiprocessing, "parent_process", lambda: None)()
    main = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
    is_worker = parent is not None or main in _WORKER_MODULES or _WORKER_MODULES[0] in sys.modules
    return not is_worker and "python" in Path(sys.executable or "").name


def _end_at_exit(process_id: int) -> None:
    """Terminate all helper processes when this process exits. ``process_id`` is the id of the process that started them; in a
    forked child, which has another id, nothing happens.
    """
    if os.getpid() == process_id:
        _end_helpers(_helpers)


def _end_helpers(helpers: list[subprocess.Popen[bytes]]) -> None:
    """Terminate the processes in ``helpers``, and wait until they have ended; kill those that take more than 5 seconds."""
    for helper in helpers:
        helper.terminate()
    for helper in helpers:
        try:
            helper.communicate(timeout=_EXIT_WAIT_SECONDS)
        except subprocess.TimeoutExpired:  # the process is suspended
            helper.kill()
            helper.communicate()


def _start_helper(process: int, n_processes: int, components: list[str]) -> subprocess.Popen[bytes]:
    """Start a Python process that compiles the functions of ``components``, as number ``process`` of ``n_processes`` that share
    the work; return its Popen object.
    """
    code = "import sys; from streamsvm.core.compiling.ahead_of_time import help_to_compile; help_to_compile(*sys.argv[1:])"
    command = [sys.executable, "-P", "-c", code, str(process), str(n_processes), *components]
    # The helper imports from the same paths as this process. -P: not from the working directory, unless it is among them.
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    environment = {**os.environ, "PYTHONPATH": paths, "STREAMSVM_COMPILE_PROCESSES": "1"}
    return subprocess.Popen(  # noqa: S603 - this interpreter, and valid component names
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )


def help_to_compile(process: str, n_processes: str, *components: str) -> None:
    """Main function of a helper process: compile the functions of ``components``, as number ``process`` of ``n_processes`` that
    share the work, then exit. It also exits when the parent process ends (end of standard input).
    """
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    compile_share(components, int(process), int(n_processes))
    os._exit(0)  # a thread that reads standard input cannot be ended otherwise


def compile_share(components: Iterable[str], process: int, n_processes: int) -> None:
    """Compile the functions that ``components`` (names of estimators and the like) need, except those in the disk cache.
    ``n_processes`` share this work: process number ``process`` compiles its own share first, and then functions that the others
    have not compiled yet.
    """
    for function, argument_types in _order_functions(_find_functions(components), process, n_processes):
        if not function.is_stored(argument_types):
            function.compile_entry(argument_types)
