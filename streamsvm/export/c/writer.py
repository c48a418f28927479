"""Exports programs as C: the header and the source of a model, which are valid C99 and C++11."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamsvm.edge.calibration import MarginCalibration
from streamsvm.edge.program import Program
from streamsvm.export.c.library import collect_functions
from streamsvm.export.c.steps import is_fused, write_step
from streamsvm.export.c.text import (
    FLAG_CHECKS,
    MACROS,
    NAME_COMMENT,
    CSource,
    add_category_tables,
    check_prefix,
    declare_row_type,
    escape_comment,
    format_float,
    has_target_encodings,
    make_header,
    quote_c_string,
    write_c_files,
)
from streamsvm.export.convert import describe_order
from streamsvm.export.pipelines import check_no_texts
from streamsvm.export.quantise import quantise_program

# Maximum bytes of stack that compilers use in addition to the arrays: with -Os, and with -O2 or -O3.
_COMPILER_STACK, _COMPILER_STACK_FAST = 256, 1024
# Maximum bytes of one table, and of all tables, on a processor with 16-bit int.
_MAX_16_BIT_TABLE, _MAX_16_BIT_TABLES = 2**15 - 1, 2**16 - 1


class CNeeds(NamedTuple):
    """Memory that a program needs on a device."""

    table_bytes: int
    """Bytes of the constant tables, without names and labels."""
    stack_bytes: int
    """Bytes of the arrays that a prediction has on the stack at the same time. A compiler adds at most 256 bytes with -Os, and
    1,024 with -O2 or -O3.
    """
    fits_16_bits: bool
    """Whether a processor with 16-bit int, such as an AVR, can address the tables."""

    def __str__(self) -> str:
        return (
            f"on a device: {self.table_bytes:,} bytes of flash for tables, up to 3 KB for code (7 KB on an AVR); of RAM, up to "
            f"{self.stack_bytes + _COMPILER_STACK:,} bytes of stack (compiled with -Os)"
        )


class CFiles(NamedTuple):
    """The files that `write_c` has written, and the memory that they need."""

    header: Path
    source: Path
    table_bytes: int
    """As in `CNeeds`."""
    stack_bytes: int
    """As in `CNeeds`."""


def write_c(program: Program, folder: str | Path, name: str = "model", *, bits: int = 32) -> CFiles:
    """Export a program (a model as a list of operations, from `make_program`) as C source: ``NAME.h`` and ``NAME.c`` in
    ``folder``, with functions that predict a row. Support vectors are floats, or integers of 16 or 8 ``bits``. Returns the paths
    and the needed memory.

    They are C99 and later, and C++11 and later. Compiled as either by the same compiler with the same flags, their predictions
    are bit-identical (on a processor with fused multiply-add, with ``-ffp-contract=off``).

    A row is ``NAME_FEATURES`` floats in the order of ``NAME_features``. It is not scaled, because scaling is part of the program.
    A number that is not finite is missing, and a number beyond 1e18 after scaling counts as 1e18. ``NAME_predict`` returns the
    index of a label in ``NAME_labels``, or the predicted float. ``NAME_decision`` writes ``NAME_OUTPUTS`` decision values. With
    32 bits, these are those of the program, up to the rounding of float: about 1e-5 of their standard deviation. If the values
    of two labels are closer than that, rounding decides between them.

    Parameters
    ----------
    program
        Program of a model, from `make_program`.
    folder
        Path of an existing folder.
    name
        Name of the files, and prefix of all symbols: a C identifier.
    bits
        Bits of the vectors, as in `quantise_program`; 32 bits are floats.

    Returns
    -------
    CFiles

    Raises
    ------
    ExportError
        The name is not an identifier, a step of the program is not supported in C, the vectors lose too much in so few bits, or a
        file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.export.convert import make_program
    >>> model = BSGDClassifier(budget=10)
    >>> for value in range(10):
    ...     model.learn_one({"a": value}, value > 4)
    >>> files = write_c(make_program(model), tempfile.mkdtemp(), bits=8)
    >>> files.header.name, files.source.name, files.table_bytes < 200
    ('model.h', 'model.c', True)
    """
    name, folder = check_prefix(name), Path(folder)
    check_no_texts(program, "c")
    program = quantise_program(program, bits) if bits != 32 else program
    source = _write_program(program)
    lookup_function = add_category_tables(source, program)
    needs = _compute_needs(program, source)
    head = _describe_program(program, needs)
    header, body = _make_header_text(program, head), _make_source_text(program, source, head, needs, name)
    paths = write_c_files(folder, name, name, header, body + lookup_function)
    return CFiles(*paths, needs.table_bytes, needs.stack_bytes)


def count_table_bytes(program: Program) -> int:
    """Return the number of bytes that the constant tables of an exported model take in C, without the names of columns and
    labels. Raises ExportError if an operation is not supported in C.
    """
    return measure_needs(program).table_bytes


def measure_needs(program: Program) -> CNeeds:
    """Return the memory that an exported model needs in C: bytes of its constant tables, and bytes of its arrays on the stack.
    Raises ExportError if an operation is not supported in C.
    """
    source = _write_program(program)
    add_category_tables(source, program)
    return _compute_needs(program, source)


def _compute_needs(program: Program, source: CSource) -> CNeeds:
    """Return the memory that an exported model needs in C (bytes of constant tables and of arrays on the stack), counted from
    ``source``, the C code that was written for it.
    """
    answer = {program.answer.decision, program.answer.choice}  # on the stack twice, because it is copied to the caller
    stored = [*_find_stack_values(program), *answer]
    stack = 4 * sum(program.widths[i] for i in stored) + source.stack_bytes
    stack += 0 if program.answer.costs is None else 4 * len(program.answer.labels)
    fits_16_bits = source.largest <= _MAX_16_BIT_TABLE and source.nbytes <= _MAX_16_BIT_TABLES
    return CNeeds(source.nbytes, stack, fits_16_bits)


def _write_program(program: Program) -> CSource:
    """Return the C code of an exported model as a `CSource`: the constant tables, functions and statements of all operations that
    the prediction depends on, and the conversion to probabilities.
    """
    source = CSource(nbytes=program.text_nbytes)
    source.used |= {"missing", "sqrt"} if program.answer.kind == "anomaly" and program.answer.size > 0.0 else {"missing"}
    source.body.append(f"for (j = 0; j < {program.widths[0]}; j++) v0[j] = x[j] - x[j] == 0.0f ? x[j] : @_missing();")
    needed = _find_needed_values(program)
    for i in range(len(program.steps)):
        if i + 1 in needed:
            write_step(source, program, i)
    add_probabilities(source, program)
    return source


def _find_needed_values(program: Program) -> set[int]:
    """Return the indices of those values (outputs of an exported model's operations; 0 is the input row) that the prediction
    depends on, directly or through other operations.
    """
    needed = {program.answer.decision, program.answer.choice, 0}
    for i in range(len(program.steps), 0, -1):
        if i in needed:
            needed.update(program.steps[i - 1].inputs)
    return needed


def _find_stack_values(program: Program) -> list[int]:
    """Return the ascending indices of those values (outputs of an exported model's operations; 0 is the input row) that are
    stored in C arrays on the stack. Kernel values that are summed up at once are not stored.
    """
    return [i for i in sorted(_find_needed_values(program)) if i == 0 or not is_fused(program, i - 1)]


def _describe_program(program: Program, needs: CNeeds) -> list[str]:
    """Return the lines of text for the comment at the top of an exported C header: the model's name, the memory that it
    ``needs``, the order of the input columns, and the meaning of each.
    """
    model, versions = program.metadata.get("model", "A model"), program.metadata.get("versions", {})
    learned = f", after {program.metadata['rows']:,} rows" if "rows" in program.metadata else ""
    lines = [
        f"{escape_comment(model)}{learned}, written by streamsvm {escape_comment(versions.get('streamsvm', ''))}.",
        f"Tables: {needs.table_bytes:,} bytes. Arrays on the stack: {(stack := needs.stack_bytes):,} bytes.",
        f"With them, a call needs at most {stack + _COMPILER_STACK:,} bytes of stack compiled with -Os,"
        f" {stack + _COMPILER_STACK_FAST:,} with -O2 or -O3.",
        "",
        f"x holds these numbers in {describe_order(program.metadata.get('order'))}.",
        "Give them as they are (scaling is inside). One that is not finite (NAN) is missing.",
        "",
    ]
    if "made smaller" in program.metadata:
        lines.insert(3, f"Made smaller: {escape_comment(program.metadata['made smaller'])}.")
    for index, column in enumerate(program.columns):
        encoding = ""
        if column.text is not None:
            encoding = f": 1 if {escape_comment(column.field)} is {escape_comment(column.text)}, else 0"
        elif column.bucket is not None:
            encoding = f": 1 if {escape_comment(column.field)} has another value, of bucket {column.bucket[0]}, else 0"
        elif column.table is not None:
            encoding = f": @_name({index}, text) of the text of {escape_comment(column.field)}"
        lines.append(f"  x[{index}]  {escape_comment(column.name)}{encoding}")
    if program.n_hash_columns:
        lines.append(
            f"Numbers of other names are added to the x whose place is the CRC-32 of the name modulo {program.n_hash_columns}."
        )
    return lines


def _make_header_text(program: Program, head: list[str]) -> str:
    """Return the text of the C header of an exported model, with declarations of its functions and constants. ``head`` are the
    lines of the comment at its top.
    """
    answer = program.answer
    has_labels = answer.kind == "class"
    definitions = [f"#define @UP_FEATURES {program.widths[0]}", f"#define @UP_OUTPUTS {program.widths[answer.decision]}"]
    if has_labels:
        definitions.append(f"#define @UP_LABELS {len(answer.labels)}")
    lines = declare_row_type([column.name for column in program.columns], "@_row", "@UP_FEATURES")
    lines.append(f"extern const char *const @_features[{max(program.widths[0], 1)}];")
    if has_labels:
        lines.append(f"extern const char *const @_labels[{len(answer.labels)}];")
    comment = "The number of the label in @_labels." if has_labels else _RETURNS[answer.kind]
    lines += ["", f"/* {comment} */", f"{'int' if has_labels else 'float'} @_predict(const float *x);"]
    lines += ["", f"/* {_describe_decision(program)} */", "void @_decision(const float *x, float *out);", ""]
    if answer.calibration is not None:
        lines += ["/* The probability of each label. */", "void @_probabilities(const float *x, float *out);", ""]
    if has_target_encodings(program):
        lines += [NAME_COMMENT, "float @_name(int place, const char *text);", ""]
    return make_header("@UP_H", head, definitions, lines)


_TOO_LARGE_ERROR = f"""#include <limits.h>
#if INT_MAX < 65536
#error this model has tables of {{:,}} bytes: where int has 16 bits, one may have {_MAX_16_BIT_TABLE:,} and all \
{_MAX_16_BIT_TABLES:,}. Export a smaller model (--bits 8 --max-bytes 16000), or learn one (--learner bsgd,budget=60)
#endif"""

_RETURNS = {"number": "The number that is predicted.", "anomaly": "How anomalous x is, from 0 to 1; 0.5 is like the others."}


def _describe_decision(program: Program) -> str:
    """Return the text of the comment above the C function ``NAME_decision`` of an exported model, which explains its decision
    values.
    """
    answer = program.answer
    if answer.kind != "class":
        return "The decision value."
    if program.is_pairwise:
        return "A decision value for each pair of labels, 0 and 1, 0 and 2, and so on: the first of them where it is above 0."
    if len(answer.labels) > 2:
        return "A decision value for each label."
    if answer.choice != answer.decision:
        return "The decision value, the larger the more it is the second label; @_predict compares it with a threshold."
    return f"The decision value: the second label where it is {'0 or above' if answer.at_zero else 'above 0'}."


def _make_source_text(program: Program, source: CSource, head: list[str], needs: CNeeds, name: str) -> str:
    """Return the text of the C source file of an exported model, put together from the code in ``source``. ``head`` are the lines
    of the comment at its top, ``needs`` is the model's memory, and ``name`` is the file's name without suffix.
    """
    answer = program.answer
    names = ", ".join(quote_c_string(column.name) for column in program.columns) or '""'
    lines = [
        "/*",
        *(f" * {line}".rstrip() for line in head[: head.index("")]),
        " */",
        f'#include "{name}.h"',
        "",
        "#include <stdint.h>",
        "",
    ]
    lines += [
        FLAG_CHECKS,
        "",
        *([] if needs.fits_16_bits else [_TOO_LARGE_ERROR.format(needs.table_bytes), ""]),
        MACROS,
        "",
    ]
    if program.columns:
        lines += ["typedef char @_row_without_gaps[sizeof(@_row) == @UP_FEATURES * sizeof(float) ? 1 : -1];", ""]
    lines += [f"const char *const @_features[{max(program.widths[0], 1)}] = {{{names}}};"]
    if answer.kind == "class":
        labels = ", ".join(map(quote_c_string, answer.labels))
        lines.append(f"const char *const @_labels[{len(answer.labels)}] = {{{labels}}};")
    lines += ["", *source.tables, ""]
    lines.append("\n\n".join([*collect_functions(source.used), *source.functions.values()]))
    declarations = [f"float v{i}[{max(program.widths[i], 1)}];" for i in _find_stack_values(program)]
    is_same = answer.decision == answer.choice
    lines += ["", f"static void @_values(const float *x, float *decision{'' if is_same else ', float *choice'})", "{"]
    lines += [f"    {line}" for line in (*declarations, "int j;", *source.body)]
    for output, value in (("decision", answer.decision), ("choice", answer.choice))[: 1 if is_same else 2]:
        lines.append(f"    for (j = 0; j < {program.widths[value]}; j++) {output}[j] = v{value}[j];")
    lines += ["}", "", *_write_prediction_functions(program), ""]
    return "\n".join(lines)


def _write_prediction_functions(program: Program) -> list[str]:
    """Return the lines of the C functions that users of an exported model call: ``NAME_predict``, ``NAME_decision`` and, if the
    model has probabilities, ``NAME_probabilities``.
    """
    answer = program.answer
    width, choice_width = program.widths[answer.decision], program.widths[answer.choice]
    is_same = answer.decision == answer.choice
    arrays = [] if is_same else [f"    float choice[{choice_width}];"]
    arrays += [] if answer.costs is None else [f"    float p[{choice_width}];"]
    call = f"@_values(x, decision{'' if is_same else ', choice'});"
    choice = "decision" if is_same else "choice"
    kind = "int" if answer.kind == "class" else "float"
    lines = [f"{kind} @_predict(const float *x)", "{", f"    float decision[{width}];", *arrays]
    if answer.kind == "class" and len(answer.labels) > 2:
        lines += ["    int k, best = 0;", f"    {call}"]
        if answer.costs is not None:
            lines.append("    @_odds(decision, p);")
            lines += [f"    p[{k}] *= {format_float(cost)};" for k, cost in enumerate(answer.costs) if cost != 1.0]
            choice = "p"
        lines += [f"    for (k = 1; k < {choice_width}; k++) if ({choice}[k] > {choice}[best]) best = k;", "    return best;"]
    elif answer.kind == "class":
        compare = ">=" if answer.at_zero else ">"
        index = f"{choice}[0] {compare} 0.0f" if len(answer.labels) == 2 else "0"
        lines += [f"    {call}", f"    return {index};"]
    elif answer.kind == "number":
        lines += [f"    {call}", "    return decision[0];"]
    elif answer.size == 0.0:
        lines += [f"    {call}", "    return 0.0f * decision[0];"]
    else:
        lines += [
            "    float z;",
            f"    {call}",
            f"    z = (decision[0] - {format_float(answer.center)}) / {format_float(answer.size)};",
        ]
        lines += ["    z = z > 1e9f ? 1e9f : z < -1e9f ? -1e9f : z;", "    return 0.5f - 0.5f * z / @_sqrt(2.0f + z * z);"]
    lines += ["}", "", "void @_decision(const float *x, float *out)", "{"]
    unused_choice = [f"    float choice[{choice_width}];"] if not is_same else []
    lines += [*unused_choice, f"    {call.replace('decision', 'out')}", "}"]
    if answer.calibration is not None:
        lines += ["", "void @_probabilities(const float *x, float *out)", "{", f"    float decision[{width}];", *unused_choice]
        lines += [f"    {call}", "    @_odds(decision, out);", "}"]
    return lines


def add_probabilities(source: CSource, program: Program) -> None:
    """Append a C function to ``source`` that converts the decision values of an exported classifier to probabilities of its
    labels. Does nothing if the model has no calibration to probabilities.
    """
    calibration, n = program.answer.calibration, len(program.answer.labels)
    if calibration is None:
        return
    if isinstance(calibration, MarginCalibration):
        factor, uniform, shares = calibration.factor, calibration.prior, np.full(n, calibration.prior / n)
    else:
        factor, uniform, shares = 1.0, 0.0, calibration.prior * np.array(calibration.shares)
    if n <= 2:
        source.used |= {"exp", "two_shares"}
        call = f"@_two_shares({format_float(factor)} * f[0], {format_float(uniform)}, p);"
    else:
        source.used |= {"exp", "several_shares"}
        weight, table = format_float(1.0 - calibration.prior), source.add_table("shares", shares)
        call = f"@_several_shares(f, {n}, {format_float(factor)}, {weight}, {table}, p);"
    source.functions["odds"] = f"static void @_odds(const float *f, float *p)\n{{\n    {call}\n}}"
