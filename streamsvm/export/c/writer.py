"""The header and the source of a model in C99, which is C++11, too."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamsvm.edge.calibration import MarginCalibration
from streamsvm.edge.program import Program
from streamsvm.export.c.library import functions_for
from streamsvm.export.c.steps import add_step, is_fused
from streamsvm.export.c.text import (
    CHECKED,
    MACROS,
    OF_NAMES,
    CSource,
    add_names,
    c_comment,
    c_string,
    checked_prefix,
    has_names,
    header_text,
    number,
    row_type,
    write_pair,
)
from streamsvm.export.convert import describe_order
from streamsvm.export.quantise import quantise_program

# Bytes of stack that compilers take beside the arrays, at most: with -Os, and with -O2 or -O3.
_OWN, _OWN_FAST = 256, 1024
# Bytes that a processor addresses whose int has 16 bits: of a table, and of all.
_NEAR, _ALL_NEAR = 2**15 - 1, 2**16 - 1


class CNeeds(NamedTuple):
    """The needs of a program on a device."""

    table_bytes: int
    """Bytes of the constant tables, without names and labels."""
    stack_bytes: int
    """Bytes of the arrays that a prediction has on the stack at the same time. A compiler adds at most 256 with -Os, and 1,024
    with -O2 or -O3.
    """
    fits_16_bits: bool
    """Whether a processor whose int has 16 bits, as of an AVR, can address the tables."""

    def __str__(self) -> str:
        return (
            f"on a device: {self.table_bytes:,} bytes of flash for tables, up to 3 KB for code (7 KB on an AVR); of RAM, up to "
            f"{self.stack_bytes + _OWN:,} bytes of stack (compiled with -Os)"
        )


class CFiles(NamedTuple):
    """The files that `write_c` has written, and the bytes that they need."""

    header: Path
    source: Path
    table_bytes: int
    """As in `CNeeds`."""
    stack_bytes: int
    """As in `CNeeds`."""


def write_c(program: Program, folder: str | Path, name: str = "model", *, bits: int = 32) -> CFiles:
    """Write a program as C: ``NAME.h`` and ``NAME.c``, which call no library and allocate nothing.

    They are C99 and later, and C++11 and later. Compiled as either by the same compiler with the same flags, they predict the
    same to the bit (where a processor has fused products, with ``-ffp-contract=off``).

    A row is ``NAME_FEATURES`` floats in the order of ``NAME_features``, unscaled, because scaling is part of the program. A
    number that is not finite is missing, and a number beyond 1e18 after scaling counts as 1e18. ``NAME_predict`` returns the
    index of a label in ``NAME_labels``, or the float that is predicted. ``NAME_decision`` writes ``NAME_OUTPUTS`` decision
    values. With 32 bits, these are the program's but for about 1e-5 of their deviations, the rounding of float; if two labels
    are as near as that, rounding decides between them.

    Parameters
    ----------
    program
        Program of a model, from `make_program`.
    folder
        Path of an existing folder.
    name
        Name of the files, and the beginning of all symbols: a C identifier.
    bits
        Bits of the vectors, as in `quantise_program`; 32 bits are floats.

    Returns
    -------
    CFiles

    Raises
    ------
    ExportError
        The name is not an identifier, the program has a step that has no form in C, the vectors cannot be that exact, or a file
        cannot be written.

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
    name, folder = checked_prefix(name), Path(folder)
    program = quantise_program(program, bits) if bits != 32 else program
    source = _write_steps(program)
    name_of = add_names(source, program)
    needs = _needs_of(program, source)
    head = _fact_lines(program, needs)
    paths = write_pair(
        folder, name, name, _header_text(program, head), _source_text(program, source, head, needs, name) + name_of
    )
    return CFiles(*paths, needs.table_bytes, needs.stack_bytes)


def count_table_bytes(program: Program) -> int:
    """Return how many bytes the constant tables of a program have in C, without names and labels; errors as of `write_c`."""
    return measure_needs(program).table_bytes


def measure_needs(program: Program) -> CNeeds:
    """Return what a program needs in C; errors as of `write_c`."""
    source = _write_steps(program)
    add_names(source, program)
    return _needs_of(program, source)


def _needs_of(program: Program, source: CSource) -> CNeeds:
    held = [*_stacked_values(program), *{program.answer.decision, program.answer.choice}]  # the latter go to a prediction
    stack = 4 * sum(program.widths[i] for i in held) + source.stack_bytes
    stack += 0 if program.answer.costs is None else 4 * len(program.answer.labels)
    return CNeeds(source.nbytes, stack, source.largest <= _NEAR and source.nbytes <= _ALL_NEAR)


def _write_steps(program: Program) -> CSource:
    source = CSource()
    source.used |= {"missing", "sqrt"} if program.answer.kind == "anomaly" and program.answer.size > 0.0 else {"missing"}
    source.body.append(f"for (j = 0; j < {program.widths[0]}; j++) v0[j] = x[j] - x[j] == 0.0f ? x[j] : @_missing();")
    wanted = _wanted_values(program)
    for i in range(len(program.steps)):
        if i + 1 in wanted:
            add_step(source, program, i)
    add_odds(source, program)
    return source


def _wanted_values(program: Program) -> set[int]:
    """Return the numbers of the values that the answer needs."""
    wanted = {program.answer.decision, program.answer.choice, 0}
    for i in range(len(program.steps), 0, -1):
        if i in wanted:
            wanted.update(program.steps[i - 1].inputs)
    return wanted


def _stacked_values(program: Program) -> list[int]:
    """Return the numbers of the values that have room on the stack: a kernel that is one function with the next step has none."""
    return [i for i in sorted(_wanted_values(program)) if i == 0 or not is_fused(program, i - 1)]


def _fact_lines(program: Program, needs: CNeeds) -> list[str]:
    model, versions = program.metadata.get("model", "A model"), program.metadata.get("versions", {})
    learned = f", after {program.metadata['rows']:,} rows" if "rows" in program.metadata else ""
    lines = [
        f"{c_comment(model)}{learned}, written by streamsvm {c_comment(versions.get('streamsvm', ''))}.",
        f"Tables: {needs.table_bytes:,} bytes. Arrays on the stack: {(stack := needs.stack_bytes):,} bytes.",
        f"With them, a call needs at most {stack + _OWN:,} bytes of stack compiled with -Os,"
        f" {stack + _OWN_FAST:,} with -O2 or -O3.",
        "",
        f"x holds these numbers in {describe_order(program.metadata.get('order'))}.",
        "Give them as they are (scaling is inside). One that is not finite (NAN) is missing.",
        "",
    ]
    if "made smaller" in program.metadata:
        lines.insert(3, f"Made smaller: {c_comment(program.metadata['made smaller'])}.")
    for place, column in enumerate(program.columns):
        of = ""
        if column.text is not None:
            of = f": 1 if {c_comment(column.field)} is {c_comment(column.text)}, else 0"
        elif column.bucket is not None:
            of = f": 1 if {c_comment(column.field)} has another value, of bucket {column.bucket[0]}, else 0"
        elif column.table is not None:
            of = f": @_name({place}, text) of the text of {c_comment(column.field)}"
        lines.append(f"  x[{place}]  {c_comment(column.name)}{of}")
    if program.hashed:
        lines.append(f"Numbers of other names are added to the x whose place is the CRC-32 of the name modulo {program.hashed}.")
    return lines


def _header_text(program: Program, head: list[str]) -> str:
    answer = program.answer
    of_labels = answer.kind == "class"
    defined = [f"#define @UP_FEATURES {program.widths[0]}", f"#define @UP_OUTPUTS {program.widths[answer.decision]}"]
    if of_labels:
        defined.append(f"#define @UP_LABELS {len(answer.labels)}")
    lines = row_type([column.name for column in program.columns], "@_row", "@UP_FEATURES")
    lines.append(f"extern const char *const @_features[{max(program.widths[0], 1)}];")
    if of_labels:
        lines.append(f"extern const char *const @_labels[{len(answer.labels)}];")
    what = "The number of the label in @_labels." if of_labels else _PREDICTED[answer.kind]
    lines += ["", f"/* {what} */", f"{'int' if of_labels else 'float'} @_predict(const float *x);"]
    lines += ["", f"/* {_decision_text(program)} */", "void @_decision(const float *x, float *out);", ""]
    if answer.calibration is not None:
        lines += ["/* The probability of each label. */", "void @_probabilities(const float *x, float *out);", ""]
    if has_names(program):
        lines += [OF_NAMES, "float @_name(int place, const char *text);", ""]
    return header_text("@UP_H", head, defined, lines)


_TOO_LARGE = f"""#include <limits.h>
#if INT_MAX < 65536
#error this model has tables of {{:,}} bytes: where int has 16 bits, one may have {_NEAR:,} and all {_ALL_NEAR:,}. \
Export a smaller model (--bits 8 --max-bytes 16000), or learn one (--learner bsgd,budget=60)
#endif"""

_PREDICTED = {"number": "The number that is predicted.", "anomaly": "How anomalous x is, from 0 to 1; 0.5 is like the others."}


def _decision_text(program: Program) -> str:
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


def _source_text(program: Program, source: CSource, head: list[str], needs: CNeeds, name: str) -> str:
    answer = program.answer
    names = ", ".join(c_string(column.name) for column in program.columns) or '""'
    lines = [
        "/*",
        *(f" * {line}".rstrip() for line in head[: head.index("")]),
        " */",
        f'#include "{name}.h"',
        "",
        "#include <stdint.h>",
        "",
    ]
    lines += [CHECKED, "", *([] if needs.fits_16_bits else [_TOO_LARGE.format(needs.table_bytes), ""]), MACROS, ""]
    if program.columns:
        lines += ["typedef char @_row_without_gaps[sizeof(@_row) == @UP_FEATURES * sizeof(float) ? 1 : -1];", ""]
    lines += [f"const char *const @_features[{max(program.widths[0], 1)}] = {{{names}}};"]
    if answer.kind == "class":
        labels = ", ".join(map(c_string, answer.labels))
        lines.append(f"const char *const @_labels[{len(answer.labels)}] = {{{labels}}};")
    lines += ["", *source.tables, ""]
    lines.append("\n\n".join([*functions_for(source.used), *source.functions.values()]))
    shown = _stacked_values(program)
    room = [f"float v{i}[{max(program.widths[i], 1)}];" for i in shown]
    same = answer.decision == answer.choice
    lines += ["", f"static void @_values(const float *x, float *decision{'' if same else ', float *choice'})", "{"]
    lines += [f"    {line}" for line in (*room, "int j;", *source.body)]
    for given, value in (("decision", answer.decision), ("choice", answer.choice))[: 1 if same else 2]:
        lines.append(f"    for (j = 0; j < {program.widths[value]}; j++) {given}[j] = v{value}[j];")
    lines += ["}", "", *_predict_lines(program), ""]
    return "\n".join(lines)


def _predict_lines(program: Program) -> list[str]:
    answer = program.answer
    width, chosen = program.widths[answer.decision], program.widths[answer.choice]
    same = answer.decision == answer.choice
    other = [] if same else [f"    float choice[{chosen}];"]
    other += [] if answer.costs is None else [f"    float p[{chosen}];"]
    call = f"@_values(x, decision{'' if same else ', choice'});"
    choice = "decision" if same else "choice"
    kind = "int" if answer.kind == "class" else "float"
    lines = [f"{kind} @_predict(const float *x)", "{", f"    float decision[{width}];", *other]
    if answer.kind == "class" and len(answer.labels) > 2:
        lines += ["    int k, best = 0;", f"    {call}"]
        if answer.costs is not None:
            lines.append("    @_odds(decision, p);")
            lines += [f"    p[{k}] *= {number(cost)};" for k, cost in enumerate(answer.costs) if cost != 1.0]
            choice = "p"
        lines += [f"    for (k = 1; k < {chosen}; k++) if ({choice}[k] > {choice}[best]) best = k;", "    return best;"]
    elif answer.kind == "class":
        compare = ">=" if answer.at_zero else ">"
        found = f"{choice}[0] {compare} 0.0f" if len(answer.labels) == 2 else "0"
        lines += [f"    {call}", f"    return {found};"]
    elif answer.kind == "number":
        lines += [f"    {call}", "    return decision[0];"]
    elif answer.size == 0.0:
        lines += [f"    {call}", "    return 0.0f * decision[0];"]
    else:
        lines += ["    float z;", f"    {call}", f"    z = (decision[0] - {number(answer.center)}) / {number(answer.size)};"]
        lines += ["    z = z > 1e9f ? 1e9f : z < -1e9f ? -1e9f : z;", "    return 0.5f - 0.5f * z / @_sqrt(2.0f + z * z);"]
    lines += ["}", "", "void @_decision(const float *x, float *out)", "{"]
    ignored = [f"    float choice[{chosen}];"] if not same else []
    lines += [*ignored, f"    {call.replace('decision', 'out')}", "}"]
    if answer.calibration is not None:
        lines += ["", "void @_probabilities(const float *x, float *out)", "{", f"    float decision[{width}];", *ignored]
        lines += [f"    {call}", "    @_odds(decision, out);", "}"]
    return lines


def add_odds(source: CSource, program: Program) -> None:
    """Add the function that turns the decision values of a classifier into probabilities, if it has some."""
    odds, n = program.answer.calibration, len(program.answer.labels)
    if odds is None:
        return
    factor, equal = (odds.factor, odds.prior) if isinstance(odds, MarginCalibration) else (1.0, 0.0)
    if n <= 2:
        source.used |= {"exp", "two_shares"}
        call = f"@_two_shares({number(factor)} * f[0], {number(equal)}, p);"
    else:
        source.used |= {"exp", "several_shares"}
        shares = np.full(n, equal / n) if isinstance(odds, MarginCalibration) else odds.prior * np.array(odds.shares)
        kept = number(1.0 - odds.prior)
        call = f"@_several_shares(f, {n}, {number(factor)}, {kept}, {source.keep('shares', shares)}, p);"
    source.functions["odds"] = f"static void @_odds(const float *f, float *p)\n{{\n    {call}\n}}"
