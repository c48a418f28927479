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
from streamsvm.core.compiling import ahead_of_time
from streamsvm.core.compiling.common import INTERPRETED, expected_components, import_object
from streamsvm.core.compiling.functions import load_backend
from streamsvm.core.compiling.signatures import parse_signature, to_numba_types
from streamsvm.files.locks import try_lock

pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")

COMPILED = "from streamsvm.core.compiling.disk_cache import compiled_names; print(len(compiled_names))"


def test_entries_are_there():
    table = json.loads(ahead_of_time.ENTRIES_PATH.read_text())
    for place, signatures in table["entries"].items():
        parameters = inspect.signature(import_object(place).py_func).parameters
        for signature in signatures:
            arguments, _, result = signature.partition(" -> ")
            assert len(parse_signature(arguments)) == len(parameters), place
            for text in (arguments, result):  # what it names was there when they were found, and may have another name now
                assert len(to_numba_types(text)) == len(parse_signature(text)), place
    for use, places in table["components"].items():
        for place, signatures in places.items():
            assert set(signatures) <= set(table["entries"][place]), use


def test_every_learner_and_solver_is_listed():
    from streamsvm import batch, learners, linear

    estimators = {name for part in (batch, learners, linear) for name in part.__all__ if isinstance(getattr(part, name), type)}
    listed = {name for name in estimators if hasattr(getattr(learners, name, None), "learn_one")}
    components = set(ahead_of_time.list_components())
    assert listed <= components
    assert {"CSMOClassifier", "HierarchicalSVC", "HSSADMMClassifier", "OutOfCoreLinearSVC"} <= components
    assert {"auto", "auto regression"} <= components


def test_processes_share_what_is_to_do():
    shared, large = {"callee": 50}, {"large": 100}
    parts = [shared | {"a": 5}, large, shared | {"b": 6}, {"c": 7}]
    assert [ahead_of_time._share_work(parts, process, 2) for process in range(2)] == [
        [1, 3, 0, 2],
        [2, 0, 3, 1],
    ]  # the largest first
    assert [sorted(ahead_of_time._share_work(parts, process, 3)) for process in range(3)] == [[0, 1, 2, 3]] * 3
    assert ahead_of_time._share_work([], 0, 1) == []


def test_an_unknown_name_is_refused():
    refused("'SVC' is not one of BOGD, ", ahead_of_time.compile_ahead, ["SVC"])


def environment(folder):
    return {
        **os.environ,
        "NUMBA_CACHE_DIR": str(folder),
        "STREAMSVM_MACHINE_CODE": "0",
        "STREAMSVM_COMPILE_PROCESSES": "2",
    }


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
    assert 0 < n <= len(ahead_of_time.list_entries(["OnlineLinearSVC"]))
    assert f"compiling {n} of {n}: " in done.stderr
    again = subprocess.run(words, check=True, capture_output=True, text=True, env=environment(tmp_path))
    assert again.stdout == "nothing is left to compile\n"
    use = f"from streamsvm.learners import OnlineLinearSVC; OnlineLinearSVC().learn_one({{'a': 1.0}}, True); {COMPILED}"
    used = subprocess.run([sys.executable, "-c", use], check=True, capture_output=True, text=True, env=environment(tmp_path))
    assert used.stdout == "0\n"
    for lock in tmp_path.glob("streamsvm/*.lock"):  # of a helper that was ended
        with lock.open("rb+") as file:
            assert try_lock(file)


@pytest.fixture
def started(monkeypatch):
    """The numbers of the helpers that were started, where nothing is in a file."""
    numbers = []
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(ahead_of_time, "_start_helper", lambda number, *_: numbers.append(number) or ended)
    monkeypatch.setattr(load_backend().CompiledFunction, "is_stored", lambda *_: False)
    monkeypatch.setattr(ahead_of_time, "_helpers", [])
    monkeypatch.setattr(ahead_of_time, "expected_components", {})
    monkeypatch.setenv("STREAMSVM_COMPILE_PROCESSES", "3")
    return numbers


def first_use(*uses):
    """Do what the first call of a function of `OnlineLinearSVC` does after estimators were created."""
    ahead_of_time.expected_components.update(dict.fromkeys(uses))
    ahead_of_time.start_helpers(*ahead_of_time._find_functions(["OnlineLinearSVC"])[0])


def test_helpers_compile_what_an_estimator_needs_once(started, caplog):
    caplog.set_level("INFO", "streamsvm")
    first_use("OnlineLinearSVC", "CSMOClassifier", "UsersOwn")
    assert started == [1, 2]
    [message] = caplog.messages
    assert re.fullmatch(r"compiling \d+ functions of OnlineLinearSVC in 3 processes, once on this machine", message)
    first_use()
    assert started == [1, 2]
    assert list(ahead_of_time.expected_components) == ["CSMOClassifier", "UsersOwn"]


def test_estimators_are_expected():
    from streamsvm.learners import OnlineLinearSVC

    class UsersOwn(OnlineLinearSVC):
        pass

    expected_components.clear()
    UsersOwn()
    assert list(expected_components) == ["OnlineLinearSVC"]
    expected_components.clear()


def test_helpers_are_no_more_than_was_chosen(started, monkeypatch):
    monkeypatch.setenv("STREAMSVM_COMPILE_PROCESSES", "1")
    first_use("OnlineLinearSVC")
    assert started == []
    monkeypatch.setenv("STREAMSVM_COMPILE_PROCESSES", "none")
    refused("STREAMSVM_COMPILE_PROCESSES must be an integer of at least 1, not 'none'", first_use, "OnlineLinearSVC")


def test_nothing_is_started_where_all_is_in_files(started, monkeypatch):
    monkeypatch.setattr(load_backend().CompiledFunction, "is_stored", lambda *_: True)
    first_use("OnlineLinearSVC")
    assert started == []


def test_a_worker_starts_no_helpers(started, monkeypatch):
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


def test_a_process_that_cannot_start_others_compiles_alone(started, monkeypatch, caplog):
    caplog.set_level("INFO", "streamsvm")

    def start(number, *_):
        raise BlockingIOError(f"no process {number}")

    monkeypatch.setattr(ahead_of_time, "_start_helper", start)
    first_use("OnlineLinearSVC")
    assert caplog.messages[1] == "compiling in this process alone: no other one can be started (no process 1)"
    assert ahead_of_time._helpers == []


def test_a_use_that_another_thread_has_taken_is_no_error(started, monkeypatch):
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
@pytest.mark.parametrize("how", [None, signal.SIGINT, signal.SIGKILL])
def test_a_script_compiles_with_helpers_that_end_with_it(tmp_path, how):
    path = tmp_path / "script.py"  # without a test for __main__
    path.write_text(SCRIPT)
    words = [sys.executable, "-W", "error", str(path)]
    reset = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(words, stdout=-1, stderr=-1, text=True, env=environment(tmp_path), **reset) as process:
        if how is not None:
            patience.until(lambda: len(helpers(tmp_path)) == 2)
            process.send_signal(how)
        said, log = process.communicate()
    assert "functions of OnlineLinearSVC in 2 processes" in log or how is not None
    if how is None:
        assert process.returncode == 0, log
        assert said == "the script runs\n2\n"
        assert log.count("\n") == 1
    patience.until(lambda: not helpers(tmp_path))


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
