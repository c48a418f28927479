"""``streamsvm compile``: compiles what learners need, before they are used."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import sys

from streamsvm.cli.arguments import wrong_usage
from streamsvm.cli.parsing import LEARNERS
from streamsvm.core.compiling.ahead import compile_ahead, names
from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.compiling.machine_code import in_use, status


def run(arguments: argparse.Namespace) -> bool:
    """Run the command; False, for it was not interrupted."""
    uses = arguments.names or [name for name in names() if name.split()[0] in {*LEARNERS, "sources"}]

    def say(done: int, functions: int, name: str) -> None:
        if sys.stderr is None:
            return
        with contextlib.suppress(OSError):  # nobody has to read it
            end = "\033[K\r" if sys.stderr.isatty() else "\n"
            print(f"compiling {done + 1} of {functions}: {name}", end=end, file=sys.stderr)

    with wrong_usage(""):
        compiled = compile_ahead(uses, say=say)
    if compiled:
        print(f"compiled {compiled} functions")
    else:
        print(status() if in_use() or INTERPRETED else "nothing is left to compile")
    return False
