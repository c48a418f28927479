"""Compilation ahead of time and in helper processes."""

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
from streamsvm.core.compiling import ahead_of_time
from streamsvm.core.compiling.common import INTERPRETED, expected_components, import_object
from streamsvm.core.compiling.functions import load_backend
from streamsvm.core.compiling.signatures import parse_signature, to_numba_types
from streamsvm.files.locks import try_lock

pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")

COMPILED = "from streamsvm.core.compiling.disk_cache import compiled_names; print(len(compiled_names))"


def test_entries_exist():
    table = json.loads(ahead_of_time.ENTRIES_PATH.read_text())
    for path, signatures in table["entries"].items():
        parameters = inspect.signature(import_object(path).py_func).parameters
        for signature in signatures:
            arguments, _, result = signature.partition(" -> ")
            assert len(parse_signature(arguments)) == len(parameters), path
            for text in (arguments, result):  # types named in it may have been renamed since the entries were written
                assert len(to_numba_types(text)) == len(parse_signature(text)), path
    for component, paths in table["components"].items():
        for path, signatures in paths.items():
            assert set(signatures) <= set(table["entries"][path]), component


def test_every_learner_and_solver_is_listed():
    from streamsvm import batch, learners, linear

    estimators = {name for part in (batch, learners, linear) for name in part.__all__ if isinstance(getattr(part, name), type)}
    listed = {name for name in estimators if hasattr(getattr(learners, name, None), "learn_one")}
    components = set(ahead_of_time.list_components())
    assert listed <= components
    assert {"CSMOClassifier", "HierarchicalSVC", "HSSADMMClassifier", "OutOfCoreLinearSVC"} <= components
    assert {"auto", "auto regression"} <= components


def test_processes_share_the_work():
    shared, large = {"callee": 50}, {"large": 100}
    sizes = [shared | {"a": 5}, large, shared | {"b": 6}, {"c": 7}]
    assert [ahead_of_time._share_work(sizes, process, 2) for process in range(2)] == [
        [1, 3, 0, 2],
        [2, 0, 3, 1],
    ]  # the largest first
    assert [sorted(ahead_of_time._share_work(sizes, process, 3)) for process in range(3)] == [[0, 1, 2, 3]] * 3
    assert ahead_of_time._share_work([], 0, 1) == []


def test_unknown_component_is_refused():
    refused("'SVC' is not one of BOGD, ", ahead_of_time.compile_ahead, ["SVC"])


def environment(folder):
    return {
        **os.environ,
        "NUMBA_CACHE_DIR": str(folder),
        "STREAMSVM_MACHINE_CODE": "0",
        "STREAMSVM_COMPILE_PROCESSES": "2",
        "NUMBA_OPT": "1",  # the speed of compiled functions does not matter here
    }


@pytest.mark.thorough
def test_interrupted_compilation_leaves_valid_files_and_no_helpers_and_can_be_resumed(tmp_path):
    command = [sys.executable, "-m", "streamsvm", "compile", "OnlineLinearSVC"]

    def as_in_a_terminal():  # a background process of a shell ignores Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    options = {"env": environment(tmp_path), "preexec_fn": as_in_a_terminal}
    for signal_number in (signal.SIGINT, signal.SIGKILL):
        before = n_files(tmp_path)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options) as process:
            patience.until(lambda before=before, process=process: n_files(tmp_path) > before or process.poll() is not None)
            assert process.poll() is None
            process.send_signal(signal_number)
            error = process.communicate()[1]
        assert process.returncode == (130 if signal_number == signal.SIGINT else -signal_number)
        assert signal_number == signal.SIGKILL or error.endswith("streamsvm: interrupted\n")
        patience.until(lambda: not helpers(tmp_path))
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(tmp_path))
    (n,) = map(int, re.fullmatch(r"compiled (\d+) functions\n", done.stdout).groups())
    assert 0 < n <= len(ahead_of_time.list_entries(["OnlineLinearSVC"]))
    assert f"compiling {n} of {n}: " in done.stderr
    second = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(tmp_path))
    assert second.stdout == "nothing is left to compile\n"
    code = f"from streamsvm.learners import OnlineLinearSVC; OnlineLinearSVC().learn_one({{'a': 1.0}}, True); {COMPILED}"
    used = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment(tmp_path))
    assert used.stdout == "0\n"
    for lock in tmp_path.glob("streamsvm/*.lock"):  # left by a terminated helper
        with lock.open("rb+") as file:
            assert try_lock(file)


@pytest.fixture
def started(monkeypatch):
    """The numbers of the helpers that were started; no function is cached."""
    numbers = []
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(ahead_of_time, "_start_helper", lambda number, *_: numbers.append(number) or ended)
    monkeypatch.setattr(load_backend().CompiledFunction, "is_stored", lambda *_: False)
    monkeypatch.setattr(ahead_of_time, "_helpers", [])
    monkeypatch.setattr(ahead_of_time, "expected_components", {})
    monkeypatch.setenv("STREAMSVM_COMPILE_PROCESSES", "3")
    return numbers


def first_use(*components):
    """Do the same as the first call of a function of `OnlineLinearSVC` after these estimators were created."""
    ahead_of_time.expected_components.update(dict.fromkeys(components))
    ahead_of_time.start_helpers(*ahead_of_time._find_functions(["OnlineLinearSVC"])[0])


def test_helpers_compile_the_functions_of_an_estimator_once(started, caplog):
    caplog.set_level("INFO", "streamsvm")
    first_use("OnlineLinearSVC", "CSMOClassifier", "UsersOwn")
    assert started == [1, 2]
    [message] = caplog.messages
    assert re.fullmatch(r"compiling \d+ functions of OnlineLinearSVC in 3 processes, once on this machine", message)
    first_use()
    assert started == [1, 2]
    assert list(ahead_of_time.expected_components) == ["CSMOClassifier", "UsersOwn"]


def test_created_estimators_are_registered():
    from streamsvm.learners import OnlineLinearSVC

    class UsersOwn(OnlineLinearSVC):
        pass

    expected_components.clear()
    UsersOwn()
    assert list(expected_components) == ["OnlineLinearSVC"]
    expected_components.clear()


def test_number_of_helpers_is_configurable(started, monkeypatch):
    monkeypatch.setenv("STREAMSVM_COMPILE_PROCESSES", "1")
    first_use("OnlineLinearSVC")
    assert started == []
    monkeypatch.setenv("STREAMSVM_COMPILE_PROCESSES", "none")
    refused("STREAMSVM_COMPILE_PROCESSES must be an integer of at least 1, not 'none'", first_use, "OnlineLinearSVC")


def test_no_helper_starts_if_everything_is_cached(started, monkeypatch):
    monkeypatch.setattr(load_backend().CompiledFunction, "is_stored", lambda *_: True)
    first_use("OnlineLinearSVC")
    assert started == []


def test_worker_processes_start_no_helpers(started, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pyspark.worker", object())
        first_use("OnlineLinearSVC")
    with monkeypatch.context() as patched:
        patched.setattr("multiprocessing.process._parent_process", object())
        first_use("OnlineLinearSVC")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/usr/bin/uwsgi")
        first_use("OnlineLinearSVC")
    assert started == []
    first_use("OnlineLinearSVC")
    assert started == [1, 2]


def test_process_without_helpers_compiles_alone(started, monkeypatch, caplog):
    caplog.set_level("INFO", "streamsvm")

    def start(number, *_):
        raise BlockingIOError(f"no process {number}")

    monkeypatch.setattr(ahead_of_time, "_start_helper", start)
    first_use("OnlineLinearSVC")
    assert caplog.messages[1] == "compiling in this process only: no other process can be started (no process 1)"
    assert ahead_of_time._helpers == []


def test_two_threads_may_start_helpers_for_the_same_estimator(started, monkeypatch):
    def is_stored(*_):
        ahead_of_time.expected_components.clear()
        return False

    monkeypatch.setattr(load_backend().CompiledFunction, "is_stored", is_stored)
    first_use("OnlineLinearSVC")
    assert started == [1, 2]


SCRIPT = """
import logging
from streamsvm.learners import OnlineLinearSVC
logging.basicConfig(level="INFO")
print("the script runs")
model = OnlineLinearSVC()
model.learn_one({"a": 1.0}, True)
model.predict_one({"a": 1.0})
model.learn_one({"a": -1.0}, False)
print(model.n_learned)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("signal_number", [None, signal.SIGINT, signal.SIGKILL])
def test_script_compiles_with_helpers_that_end_with_it(tmp_path, signal_number):
    path = tmp_path / "script.py"  # without an `if __name__ == "__main__"`
    path.write_text(SCRIPT)
    command = [sys.executable, "-W", "error", str(path)]
    reset = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment(tmp_path), **reset) as process:
        if signal_number is not None:
            patience.until(lambda: len(helpers(tmp_path)) == 2)
            process.send_signal(signal_number)
        output, log = process.communicate()
    assert "functions of OnlineLinearSVC in 2 processes" in log or signal_number is not None
    if signal_number is None:
        assert process.returncode == 0, log
        assert output == "the script runs\n2\n"
        assert log.count("\n") == 1
    patience.until(lambda: not helpers(tmp_path))


def n_files(folder):
    return len(list(folder.glob("streamsvm/*.code")))


def helpers(folder):
    """Return the ids of processes that compile into a folder."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"NUMBA_CACHE_DIR={folder}".encode() in path.read_bytes().split(b"\0"):
                processes.append(path.parent.name)
        except OSError:
            continue
    return processes
