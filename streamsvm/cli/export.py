"""``streamsvm export``: write a model in a form that predicts without streamsvm."""
# ruff: noqa: T201

from __future__ import annotations

import argparse

from streamsvm.cli import CommandError, UsageError, printable
from streamsvm.cli.inspect import newest
from streamsvm.cli.outputs import check_written
from streamsvm.cli.streams import unwinding
from streamsvm.edge.program import ProgramError
from streamsvm.export.describe import program_of
from streamsvm.export.forms import FORMS, export, files_of

_OPTIONS = sorted(frozenset().union(*FORMS.values()))


def run(arguments: argparse.Namespace) -> None:
    """Export a model, and print the files that were written, each with its size.

    Raises
    ------
    UsageError
        A flag is not about the form.
    CommandError
        The model has no such form, or a file cannot be written.
    """
    options = {name: value for name in _OPTIONS if (value := getattr(arguments, name)) is not None}
    for name in options.keys() - FORMS[arguments.form]:
        raise UsageError(f"--{name} means nothing for --to {arguments.form}: leave it out")
    paths = files_of(arguments.form, arguments.out, arguments.name)
    check_written(f"--to {arguments.form}:", paths, arguments.path, arguments.overwrite)
    checkpoint = newest(arguments.path, arguments.trusted)
    try:
        program = program_of(checkpoint.model)
        program.facts |= {name: checkpoint.header[name] for name in ("rows", "learned", "score") if name in checkpoint.header}
        if arguments.max_bytes is not None:
            from streamsvm.export.reduce import reduced  # noqa: PLC0415 - scikit-learn takes a second

            found = reduced(program, arguments.max_bytes, bits=arguments.bits or 32)
            program = found.program
            print(printable(str(found)))
        with unwinding():
            paths = export(program, arguments.form, arguments.out, arguments.name, **options)
    except ProgramError as error:
        raise CommandError(f"{arguments.path} was not exported: {error}") from error
    for path in paths:
        print(printable(f"{path}: {path.stat().st_size:,} bytes"))
