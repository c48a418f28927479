"""``streamsvm export``: write a model in a format that predicts without streamsvm."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.cli import CommandError, UsageError, escape_unprintable
from streamsvm.cli.arguments import as_command_error
from streamsvm.cli.job import StreamJob
from streamsvm.cli.outputs import check_output_files
from streamsvm.cli.parsing import DecisionFlags, apply_decision
from streamsvm.cli.streams import interruptible, iter_first_rows, load_newest
from streamsvm.edge.predictor import Predictor
from streamsvm.edge.program import ExportError, Program
from streamsvm.export.c.text import count_category_bytes
from streamsvm.export.c.writer import measure_needs
from streamsvm.export.convert import describe_order, make_program
from streamsvm.export.formats import FORMATS, export, list_files
from streamsvm.export.pipelines import check_no_texts
from streamsvm.export.quantise import quantise_program
from streamsvm.files.messages import shorten
from streamsvm.learners.svm import SVMClassifier, SVMRegressor
from streamsvm.stream.rows import find_keys, find_learner, split_pipeline
from streamsvm.stream.tables import TableEncoder

_OPTION_NAMES = sorted(frozenset().union(*FORMATS.values()))
_MAX_SHOWN_COLUMNS = 20
_MAX_SAMPLE_ROWS = 10_000


def run_export(arguments: argparse.Namespace) -> None:
    """Run ``streamsvm export``: write a model as C, ONNX or another format. Print the sizes of the files, and how the predictions
    of a smaller model differ from the original's.

    Raises UsageError if a flag does not apply to the format, or ``--sample`` has no effect, and CommandError if the model cannot
    be exported to the format, a file cannot be written, or a row of the sample cannot be predicted.
    """
    options = {name: value for name in _OPTION_NAMES if (value := getattr(arguments, name)) is not None}
    for name in options.keys() - FORMATS[arguments.form]:
        raise UsageError(f"--{name} means nothing for --to {arguments.form}: leave it out")
    bits = options.pop("bits", None) or 32
    is_quantised = bits != 32
    if arguments.sample is not None and not is_quantised and arguments.max_bytes is None:
        raise UsageError("--sample: only a model of fewer bits or bytes predicts differently: add --bits or --max-bytes")
    if arguments.sample == "-":
        raise UsageError("--sample - is standard input: give a file")
    with as_command_error(f"{arguments.path} was not exported: ", ExportError):
        paths = list_files(arguments.form, arguments.out, arguments.name or "model")
    if paths[0].parent != arguments.out and arguments.name is not None:
        raise UsageError(f"--name {arguments.name}: --out {arguments.out} names the file already: leave out one of them")
    if paths[0].parent == arguments.out and arguments.out.exists() and not arguments.out.is_dir():
        raise UsageError(f"--out {arguments.out} is a file: name a folder there, and the files with --name")
    decision = DecisionFlags(arguments.threshold, arguments.costs, arguments.positive)
    inputs = {"the model": arguments.path, "--sample": None if arguments.sample is None else Path(arguments.sample)}
    check_output_files(f"--to {arguments.form}:", paths, inputs, arguments.overwrite)
    checkpoint = load_newest(arguments.path, arguments.trusted)
    with as_command_error(f"{arguments.path} was not exported: ", ExportError):
        program = make_program(apply_decision(checkpoint.model, decision))
        check_no_texts(program, arguments.form)
        header = checkpoint.header
        program.metadata |= {name: header[name] for name in ("rows", "learned") if name in header}
        program.metadata |= {"score": header["scores"][0]} if header.get("scores") else {}
        sample = None if arguments.sample is None else _sample_rows(arguments.sample, checkpoint, program)
        written = program
        if arguments.max_bytes is not None:
            from streamsvm.export.reduce import reduce_program  # noqa: PLC0415 - scikit-learn takes a second

            reduction = reduce_program(program, arguments.max_bytes, bits=bits)
            written = reduction.program
            print(escape_unprintable(str(reduction)))
        elif is_quantised:
            written = quantise_program(program, bits)
        if is_quantised:
            print(escape_unprintable(_describe_bits(written)))
        with interruptible():
            paths = export(written, arguments.form, paths[0].parent, paths[0].stem, **options)
    is_float32 = arguments.form == "c" or arguments.inputs == "float"
    if sample is not None:
        _compare_predictions(program, written, sample, f"of {arguments.sample}", is_float32)
    elif written is not program:
        print("not compared with the model: --sample ROWS counts the predictions that changed")
    if arguments.form in ("c", "onnx"):
        print(escape_unprintable(_describe_inputs(written)))
    if keys := find_keys(checkpoint.model):
        print(escape_unprintable(f"what it remembers of keys ({', '.join(keys)}) is as of now: an exported model does not learn"))
    for path in paths:
        texts = f" (scores of the words of texts: {written.text_nbytes:,} bytes of numbers)" if written.text_nbytes else ""
        print(escape_unprintable(f"{path}: {path.stat().st_size:,} bytes{texts}"))
    needs = measure_needs(written) if arguments.form == "c" else None
    if needs is not None:
        print(needs)
    if needs is not None and not needs.fits_16_bits:
        print(f"too large for a processor whose int has 16 bits, such as an AVR: {_advise_smaller_model(program, 8)}")
    elif written is program and isinstance(find_learner(checkpoint.model), SVMClassifier | SVMRegressor):
        nbytes = program.nbytes if needs is None else needs.table_bytes
        advice = _advise_smaller_model(program, 8 if needs else 32)
        print(f"an ensemble of {nbytes:,} bytes of numbers: where that is too much, {advice}")


def _advise_smaller_model(program: Program, bits: int) -> str:
    """Return advice with the flags that make an exported model smaller: 16,000 bytes of tables or, if too many of them cannot be
    left out, as vectors and trees can, twice these; and the scores of texts. 8 ``bits`` are possible in C, where the tables of
    small processors have at most 64 KB.
    """
    flexible = {number for number, step in enumerate(program.steps, 1) if step.op in ("kernel", "neighbours", "forest")}
    fixed = [step for number, step in enumerate(program.steps, 1) if not flexible & {number, *step.inputs}]
    n_fixed = sum(array.nbytes for step in fixed for array in step.arrays.values()) + count_category_bytes(program)
    max_bytes = min(max(16_000, math.ceil(2 * n_fixed / 1000) * 1000), 60_000 if bits == 8 else 2**62) + program.text_nbytes
    flags = f"--max-bytes {max_bytes}" + " --bits 8" * (bits == 8)
    return f"leave out vectors with {flags}, or learn a small model: streamsvm learn ... --learner bsgd,budget=60"


def _sample_rows(place: str, checkpoint: Any, program: Program) -> np.ndarray:
    """Read the first rows of the table ``place``, with the columns that the checkpoint's model has learned, and return them as
    the inputs of ``program``, the exported model, float64 [rows, columns]. Raise a CommandError if there are no usable rows.
    """
    predictor, rows = Predictor(program), []
    first = split_pipeline(checkpoint.model)[0][:1]
    state = first[0].column_state if first and isinstance(first[0], TableEncoder) else None
    with as_command_error("--sample ", CommandError):
        for number, row in enumerate(iter_first_rows(StreamJob(source=place), checkpoint, _MAX_SAMPLE_ROWS), 1):
            with as_command_error(f"{place}, row {number:,}: ", ValueError):
                # Messages of a topic have marks, dates and formatted numbers, which the model's encoder parses.
                values = row.x if state is None else state.split_row(row.x, learns=False).values
                rows.append(predictor.encode_row(values))
    if not rows:
        raise CommandError(f"--sample {place} has no rows to compare on")
    if np.isnan(rows).all():
        raise CommandError(f"--sample {place} has none of the columns that the model has learned")
    return np.array(rows)


def _describe_inputs(program: Program) -> str:
    """Return a sentence with the names of the input columns of an exported model, in their order."""
    names = [shorten(str(column.name), 40) for column in program.columns]
    n_hashed = f"{program.n_hash_columns:,} hashed ones" if program.n_hash_columns else ""
    order = describe_order(program.metadata.get("order"))
    return f"takes numbers in {order}: {', '.join(names[:_MAX_SHOWN_COLUMNS] or [n_hashed])}" + ", ..." * (
        len(names) > _MAX_SHOWN_COLUMNS
    )


def _describe_bits(program: Program) -> str:
    """Return a sentence with the number of bits of the numbers in an exported model's support vectors."""
    dtypes = {array.dtype for step in program.steps for name, array in step.arrays.items() if name == "vectors"}
    bits = sorted({8 * kind.itemsize if kind.kind == "i" else 32 for kind in dtypes})
    if bits in ([], [32]):
        return "no vectors have fewer bits: the model has no vectors that can be quantised"
    return f"vectors have {' and '.join(map(str, bits))} bits"


def _compare_predictions(program: Program, written: Program, rows: np.ndarray, description: str, is_float32: bool) -> None:
    """Predict ``rows`` by an exported model ``program`` and by its reduced form ``written`` (from float32 inputs if
    ``is_float32``), and print the differences; warn if they are large. ``description`` names the rows.
    """
    if not len(rows):
        return
    from streamsvm.export.compare import compare_programs  # noqa: PLC0415

    differences = compare_programs(program, written, rows, single=is_float32)
    print(escape_unprintable(f"compared with the model on rows {description}: {differences}"))
    if differences.is_large:
        warnings.warn(f"{differences.warning} on rows {description}: allow more bits or bytes", stacklevel=2)
