"""The command line for tests that are not about the learner, and what a command leaves."""

import json
from typing import NamedTuple

from streamsvm.cli import main as command_line


def with_a_model(words):
    """The words; where they learn and name no learner, bsgd, which compiles in a third of the time."""
    words = [*map(str, words)]
    return [*words, "--learner", "bsgd"] if words[:1] == ["learn"] and "--learner" not in words else words


def main(words):
    """Call the command line in this process."""
    return command_line.main(with_a_model(words))


class Done(NamedTuple):
    """What a command leaves."""

    status: int
    stdout: str
    stderr: str

    @property
    def end(self):
        """The last line of standard output."""
        return json.loads(self.stdout.splitlines()[-1])

    @property
    def rows(self):
        """Standard output, a prediction a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def last(self):
        """The last line of standard error."""
        return self.stderr.splitlines()[-1]
