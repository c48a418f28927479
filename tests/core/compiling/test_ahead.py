"""What is compiled before it is used."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import patience
from refused import refused
from streamsvm.core.compiling import ahead
from streamsvm.core.compiling.common import INTERPRETED, find
from streamsvm.core.compiling.signatures import parse
from streamsvm.files.locks import locks

pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")

COMPILED = "from streamsvm.core.compiling.stored import compiled_here; print(len(compiled_here))"


def test_entries_are_there():
    table = json.loads(ahead.ENTRIES.read_text())
    for place, signatures in table["entries"].items():
        parameters = inspect.signature(find(place).py_func).parameters
        for signature in signatures:
            assert len(parse(signature.partition(" -> ")[0])) == len(parameters), place
    for use, places in table["uses"].items():
        for place, signatures in places.items():
            assert set(signatures) <= set(table["entries"][place]), use


def test_every_learner_and_solver_is_listed():
    from streamsvm import batch, learners, linear

    estimators = {name for part in (batch, learners, linear) for name in part.__all__ if isinstance(getattr(part, name), type)}
    listed = {name for name in estimators if hasattr(getattr(learners, name, None), "learn_one")}
    assert listed <= set(ahead.names())
    assert {"CSMOClassifier", "HierarchicalSVC", "HSSADMMClassifier", "OutOfCoreLinearSVC"} <= set(ahead.names())
    assert {"auto", "auto regression"} <= set(ahead.names())


def test_processes_share_what_is_to_do():
    shared, large = {"callee": 50}, {"large": 100}
    parts = [shared | {"a": 5}, large, shared | {"b": 6}, {"c": 7}]
    assert [ahead._share_of_work(parts, process, 2) for process in range(2)] == [[1, 3, 0, 2], [2, 0, 3, 1]]  # the largest first
    assert [sorted(ahead._share_of_work(parts, process, 3)) for process in range(3)] == [[0, 1, 2, 3]] * 3
    assert ahead._share_of_work([], 0, 1) == []


def test_an_unknown_name_is_refused():
    refused("'SVC' is not one of BOGD, ", ahead.compile_ahead, ["SVC"])


def environment(folder):
    return {**os.environ, "NUMBA_CACHE_DIR": str(folder), "STREAMSVM_MACHINE_CODE": "0"}


@pytest.mark.thorough
def test_a_process_that_is_ended_leaves_whole_files_and_no_helpers_and_the_next_one_leaves_nothing_to_compile(tmp_path):
    words = [sys.executable, "-m", "streamsvm", "compile", "OnlineLinearSVC"]

    def as_in_a_terminal():  # what a shell starts in the background ignores Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    how_started = {"env": environment(tmp_path), "preexec_fn": as_in_a_terminal}
    for how in (signal.SIGINT, signal.SIGKILL):
        before = n_files(tmp_path)
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, **how_started) as process:
            patience.until(lambda before=before, process=process: n_files(tmp_path) > before or process.poll() is not None)
            assert process.poll() is None
            process.send_signal(how)
            error = process.communicate()[1]
        assert process.returncode == (130 if how == signal.SIGINT else -how)
        assert how == signal.SIGKILL or error.endswith("streamsvm: interrupted\n")
        patience.until(lambda: not helpers(tmp_path))
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment(tmp_path))
    (n,) = map(int, re.fullmatch(r"compiled (\d+) functions\n", done.stdout).groups())
    assert 0 < n <= len(ahead.entries_of(["OnlineLinearSVC"]))
    assert f"compiling {n} of {n}: " in done.stderr
    again = subprocess.run(words, check=True, capture_output=True, text=True, env=environment(tmp_path))
    assert again.stdout == "nothing is left to compile\n"
    use = f"from streamsvm.learners import OnlineLinearSVC; OnlineLinearSVC().learn_one({{'a': 1.0}}, True); {COMPILED}"
    used = subprocess.run([sys.executable, "-c", use], check=True, capture_output=True, text=True, env=environment(tmp_path))
    assert used.stdout == "0\n"
    for lock in tmp_path.glob("streamsvm/*.lock"):  # of a helper that was ended
        with lock.open("rb+") as file:
            assert locks(file)


def n_files(folder):
    return len(list(folder.glob("streamsvm/*.code")))


def helpers(folder):
    """Processes that compile into a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"NUMBA_CACHE_DIR={folder}".encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found
