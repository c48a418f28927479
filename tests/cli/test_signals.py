"""Signals from the first moment of a command: before it runs, while it imports and compiles, as process 1, and where ignored."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lists import OF_RELEASE
from patience import PATIENCE, signals_of, until
from streamsvm.cli import ENDING_SIGNALS, exit_at_once, streams

#: As the script that an installer makes.
SCRIPT = "import sys; from streamsvm.__main__ import main; sys.exit(main())"
RAISED = "ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal({number}))()"  # where an exception would be printed, and lost


def start(*words, code=SCRIPT, **options):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], **pipes, text=True, **options)


@pytest.fixture
def endless(tmp_path):
    """A FIFO with a writer that has written one row, and says no more."""
    path = tmp_path / "rows.csv"
    os.mkfifo(path)
    with path.open("r+b", buffering=0) as file:
        file.write(b"a,b,y\n0.5,0.25,1\n")
        yield path


@pytest.mark.parametrize(
    ("number", "module"),
    [
        (signal.SIGINT, "streamsvm.cli.main"),
        (signal.SIGTERM, "numpy._core._multiarray_umath"),
        (signal.SIGINT, "numba.core.types"),
        (signal.SIGTERM, "streamsvm.stream"),
    ],
)
def test_a_signal_while_a_module_is_imported(rows, number, module):
    code = (
        "import ctypes, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        f"            {RAISED.format(number=int(number))}\n"
        f"sys.meta_path.insert(0, Interrupts())\n{SCRIPT}"
    )
    with start("learn", rows, "--label", "y", code=code) as process:
        output, errors = process.communicate()
    assert (process.returncode, output, errors) == (130, "", "streamsvm: interrupted\n")


def test_nothing_else_is_imported_before_the_handlers():
    code = "import sys; before = set(sys.modules); import streamsvm.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert [name for name in modules if name.startswith("streamsvm")] == ["streamsvm", "streamsvm.cli"]
    assert not {"typing", "logging", "argparse", "numpy", "enum", "signal"} & {*modules}


@pytest.mark.thorough
@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_signal_at_a_random_moment_ends_the_start(rows, tmp_path, number):
    """For a release at more moments."""
    draw = random.Random(int(number))
    for attempt in range(3 if OF_RELEASE else 1):
        state = tmp_path / f"state-{attempt}"
        with start("learn", "-", "--format", "csv", "--label", "y", "--learner", "bsgd", "--checkpoint", state) as learner:
            until(lambda pid=learner.pid: signals_of(pid) >= {*ENDING_SIGNALS})  # before that, Python itself starts
            learner.stdin.write(rows.read_text())
            learner.stdin.flush()
            time.sleep(draw.uniform(0.0, 2.0))
            learner.send_signal(number)
            _, errors = learner.communicate()
        assert learner.returncode == 130
        assert not {"Traceback", "ignored"} & {*errors.split()}, errors
        assert "interrupted after" in errors or errors.endswith("streamsvm: interrupted\n"), errors
        assert not [path for path in state.glob("*") if "part" in path.name]


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["learn", "--label", "y"], ["predict", "--model", "{state}", "--to", "-"]])
def test_process_1_ends_at_a_signal(endless, tmp_path, words, bananas, call):
    """The kernel ignores a signal to process 1 that has no handler."""
    space = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--"]
    if not shutil.which("unshare") or subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no user make a space of processes")
    call("learn", bananas(60), "--label", "y", "--checkpoint", tmp_path / "state")
    words = [word.format(state=tmp_path / "state") for word in words]
    command = [*space, sys.executable, "-c", SCRIPT, words[0], str(endless), *words[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        (pid,) = map(int, until(lambda: children.read_text().split()))
        until(lambda: signals_of(pid) >= {*ENDING_SIGNALS})
        os.kill(pid, signal.SIGTERM)
        assert process.wait(PATIENCE) == 130


@pytest.mark.thorough
@pytest.mark.parametrize("running", [False, True])
def test_an_ignored_signal_stays_ignored(running):
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    words = "learn", "-", "--format", "csv", "--label", "y", "--learner", "bsgd", "--to", "-"
    with start(*words, **ignored) as learner:
        if running:
            learner.stdin.write("a,b,y\n0.5,0.25,1\n")
            learner.stdin.flush()
            assert learner.stdout.readline()
        else:
            until(lambda: {*ENDING_SIGNALS} & signals_of(learner.pid))
        assert {*ENDING_SIGNALS} & signals_of(learner.pid, "SigIgn") == {signal.SIGINT}
        learner.send_signal(signal.SIGINT)
        time.sleep(0.1)
        assert learner.poll() is None
        learner.send_signal(signal.SIGTERM)
        assert learner.wait(PATIENCE) == 130


def test_interrupted_commands_close_files_and_clean_up():
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    try:
        for number in ENDING_SIGNALS:
            signal.signal(number, exit_at_once)
        with pytest.raises(KeyboardInterrupt), streams.interruptible():
            signal.raise_signal(signal.SIGTERM)
        assert [*map(signal.getsignal, ENDING_SIGNALS)] == [exit_at_once] * 2
        with streams.stop_on_signals(lambda: None):
            pass
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    with streams.interruptible():  # outside a command
        assert {number: signal.getsignal(number) for number in ENDING_SIGNALS} == before
