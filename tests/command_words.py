"""Runs the command line for tests that are not about learners."""

import json
from typing import NamedTuple

from streamsvm.cli import main as command_line


def with_a_model(words):
    """Return the words with ``--learner bsgd``, which compiles faster, if they learn without ``--learner``."""
    words = [*map(str, words)]
    return [*words, "--learner", "bsgd"] if words[:1] == ["learn"] and "--learner" not in words else words


def main(words):
    """Call the command line in this process."""
    return command_line.main(with_a_model(words))


class Done(NamedTuple):
    """The exit status and output of a command."""

    status: int
    stdout: str
    stderr: str

    @property
    def end(self):
        """The last line of standard output."""
        return json.loads(self.stdout.splitlines()[-1])

    @property
    def rows(self):
        """The JSON lines of standard output."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def last(self):
        """The last line of standard error."""
        return self.stderr.splitlines()[-1]
