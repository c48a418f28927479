"""The command line: streamsvm learn, predict, inspect, demo. `main` parses it; each command is a module with a `run`."""


class UsageError(Exception):
    """The command line asks for something that does not exist, or for things that exclude each other."""


class CommandError(Exception):
    """The command failed; the message says why in one line."""
