"""Commands in processes forked from a warm one, which has imported and compiled what they use: to start one takes no seconds."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from subprocess import DEVNULL, PIPE

from killing import fork

#: Environment of a command whose output has lines of 80 columns.
NARROW = {"COLUMNS": "80"}


def run_command_line(words, streams, folder, env, limits):
    """Run the command line in this process, which was forked for it, with these standard streams, in a folder, with environment
    variables ``env``. ``limits`` are seconds of the module of workers, by name.
    """
    from streamsvm.cli import exit_at_once, set_signal_handlers
    from streamsvm_kafka import partitions
    from warm_learner import main

    set_signal_handlers(exit_at_once)
    for descriptor, stream in enumerate(streams):
        os.dup2(stream.fileno(), descriptor)
        stream.close()
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.update(env)
    vars(partitions).update(limits)
    sys.exit(main(words))


def open_ends(stream, mode, text):
    """Return the descriptor of a standard stream for the process, and the other end of a pipe (or None), opened in a mode."""
    if stream == DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    if stream != PIPE:
        return os.dup(stream if isinstance(stream, int) else stream.fileno()), None
    reading, writing = os.pipe()
    end, own = (writing, reading) if mode == "r" else (reading, writing)
    return end, os.fdopen(own, mode) if text else os.fdopen(own, f"{mode}b", buffering=0)


class Command:
    """The command line in a forked process: a `subprocess.Popen` for ``python -m streamsvm`` with these words.

    A test of the start or the end of Python itself needs a process of its own.
    """

    def __init__(self, words, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, text=False, cwd=".", env=NARROW, limits=()):
        self.args = words
        opened = open_ends(stdin, "w", text), open_ends(stdout, "r", text), open_ends(stderr, "r", text)
        ends, own_ends = zip(*opened, strict=True)
        self.stdin, self.stdout, self.stderr = own_ends
        streams = [Connection(end) for end in ends]  # which can be sent
        self._process = fork(run_command_line, [*map(str, words)], streams, str(cwd), env, dict(limits))
        for stream in streams:
            stream.close()
        self.pid, self.kill, self.terminate = self._process.pid, self._process.kill, self._process.terminate

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def communicate(self, timeout=None):
        """Close the input, wait for the end, and return the output and the errors."""
        if self.stdin:
            self.stdin.close()
        with ThreadPoolExecutor(2) as pool:
            texts = [pool.submit(stream.read) if stream else None for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()  # else its output would not end
                raise
            return tuple(text and text.result() for text in texts)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream:
                stream.close()
        self.wait()


class CommandsOfPython:
    """Takes the place of the module subprocess, for ``python -m streamsvm`` alone."""

    PIPE = PIPE

    @staticmethod
    def Popen(words, **options):  # noqa: N802
        assert words[:3] == [sys.executable, "-m", "streamsvm"]
        return Command(words[3:], **options)
