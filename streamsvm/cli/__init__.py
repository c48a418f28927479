"""The command line. `main` parses it; the function `run_COMMAND` of a module runs each command."""


class UsageError(Exception):
    """The command line asks for something that does not exist, or for things that exclude each other."""


class CommandError(Exception):
    """The command failed; the message says why in one line."""


def printable(text: str, newlines: bool = False) -> str:
    r"""Escape unprintable characters of a text from outside, so that it cannot control a terminal.

    With ``newlines``, line breaks are kept.

    >>> print(printable("rows\x1b[2J.csv, naïve"))
    rows\x1b[2J.csv, naïve
    """
    return "".join(
        letter if letter.isprintable() or (newlines and letter == "\n") else letter.encode("unicode_escape").decode()
        for letter in text
    )
