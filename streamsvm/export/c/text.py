"""Building blocks of C files: identifiers, strings, comments, constant tables, headers, and templates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.edge.program import ExportError, Program
from streamsvm.files.category_names import compute_column_seed
from streamsvm.files.container import ModelFileError
from streamsvm.files.model_file import write_files

_WORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return
short signed sizeof static struct switch typedef union unsigned void volatile while _Bool _Complex _Imaginary main
assert complex ctype errno fenv inttypes iso646 limits locale math setjmp signal stdarg stdbool stddef stdint stdio stdlib string
tgmath time wchar wctype
"""  # NAME.h must not have the name of a C header, because it would be included in place of it

#: Keywords of C, and names of its headers.
KEYWORDS: frozenset[str] = frozenset(_WORDS.split())
_IDENTIFIER = re.compile("[A-Za-z][A-Za-z0-9_]{0,40}")
_TYPES = {"f": "float", "b": "int8_t", "h": "int16_t", "i": "int32_t", "l": "int32_t", "q": "int32_t", "d": "float"}
_TYPES |= {"I": "uint32_t", "L": "uint32_t"}
_MAX_LINE_CHARACTERS = 120


def read_c_file(name: str) -> str:
    """Return the text of a C file that is part of this Python package, such as ``"runtime.c"``."""
    return files("streamsvm.export.c").joinpath(name).read_text("utf-8")


def read_sections(name: str) -> dict[str, str]:
    """Return the sections of a C file that is part of this Python package, a dict from the section's name to its text. Each
    section begins with the line ``/* section: NAME */``.
    """
    _, *parts = re.split(r"^/\* section: (\w+) \*/\n", read_c_file(name), flags=re.MULTILINE)
    return {section: text.strip("\n") for section, text in zip(parts[::2], parts[1::2], strict=True)}


#: The fixed functions of runtime.c by name. ``@_`` and ``@UP`` stand for the name of the model (see `write_c_files`).
RUNTIME: Mapping[str, str] = {
    name: text.replace("MODEL_", "@UP_").replace("model_", "@_") for name, text in read_sections("runtime.c").items()
}
#: Statements and functions with placeholders for `fill_template`.
TEMPLATES: Mapping[str, str] = read_sections("templates.c")


def check_prefix(name: str) -> str:
    """Return ``name``, the prefix of all C symbols in an export, unchanged. Raises ExportError if it is not a C identifier of at
    most 41 characters, or is a keyword or header of C.

    >>> check_prefix("model")
    'model'
    >>> check_prefix("2x")
    Traceback (most recent call last):
        ...
    streamsvm.edge.step.ExportError: the name must be a C identifier of at most 41 characters, no word or header of C, not '2x'
    """
    if not _IDENTIFIER.fullmatch(name) or name in KEYWORDS:
        raise ExportError(f"the name must be a C identifier of at most 41 characters, no word or header of C, not {name!r:.60}")
    return name


def quote_c_string(value: Any) -> str:
    r"""Return the text of a value as a C string literal in UTF-8, in double quotes and with all special characters escaped.

    Characters other than printable ASCII are octal escapes. So are ``?``, because of trigraphs, and ``@``, which is a
    placeholder.

    >>> quote_c_string('a"b\\n??=')
    '"a\\"b\\\\n\\077\\077="'
    """
    text = value if isinstance(value, str) else str(value)
    return '"' + "".join(map(_escape_byte, text.encode("utf-8", "surrogatepass"))) + '"'


def _escape_byte(code: int) -> str:
    """Return one byte (its code from 0 to 255) in the form that it has in a C string literal: the character itself if it is safe
    printable ASCII, else an octal escape.
    """
    if code in b'"\\':
        return "\\" + chr(code)
    return chr(code) if 32 <= code < 127 and code not in b"?@" else f"\\{code:03o}"


def escape_comment(text: Any) -> str:
    """Return the text of a value in a form that is safe inside a C comment: other characters than printable ASCII become ``_``,
    and sequences that would end the comment or have another meaning are separated by a blank.

    >>> escape_comment("a*/ /*b")
    'a* / / *b'
    """
    plain = "".join(letter if 32 <= ord(letter) < 127 and letter != "\\" else "_" for letter in str(text))
    return re.sub(r"(?<=[*/])(?=[*/])|(?<=\?)(?=\?)|(?<=@)(?=_|UP)", " ", plain)


def fill_template(text: str, values: Mapping[str, Any]) -> str:
    r"""Return a text with each placeholder ``$name$`` replaced by the value of this name, and without blank lines.

    >>> fill_template("int $i$;\n$rest$\n", {"i": 7, "rest": ""})
    'int 7;'
    """
    for name, value in values.items():
        text = text.replace(f"${name}$", str(value))
    return "\n".join(line for line in text.split("\n") if line.strip())


def format_float(value: float) -> str:
    """Return a number as a C literal of type float, such as ``1.5e+00f``, with the fewest digits that restore the float32.
    Numbers beyond the range of float are clipped.
    """
    single = np.float32(min(max(value, -3.4e38), 3.4e38))
    text = np.format_float_scientific(single, unique=True, trim="0")
    return f"{text}f"


def get_c_type(array: np.ndarray) -> str:
    """Return the C type, such as ``"float"`` or ``"int16_t"``, for the numbers of a numpy array in an exported table."""
    return _TYPES[array.dtype.char]


def format_table(name: str, array: np.ndarray, comment: str = "") -> list[str]:
    """Return the lines of C that define a constant array called ``name`` with the numbers of a numpy array, and a ``comment``
    behind the opening brace. An empty array gets a single 0, because C has no empty arrays.
    """
    flat = array.ravel()
    if not flat.size:
        flat = np.zeros(1, array.dtype)
    kind, suffix = array.dtype.kind, "u" if array.dtype.kind == "u" else ""
    numbers = map(format_float, flat.tolist()) if kind == "f" else (f"{value}{suffix}" for value in flat.tolist())
    note = f" /* {comment} */" if comment else ""
    return [f"static const @UP_TABLE {get_c_type(array)} {name}[{flat.size}] = {{{note}", *_wrap_numbers(numbers), "};"]


def _wrap_numbers(numbers: Iterable[str]) -> Iterable[str]:
    """Arrange the texts of numbers in indented lines of at most 120 characters, each followed by a comma. Yields the lines."""
    line = "   "
    for text in numbers:
        if len(line) + len(text) + 2 > _MAX_LINE_CHARACTERS:
            yield line
            line = "   "
        line += f" {text},"
    yield line


#: The first lines of a source: a compile-time error for compiler flags that break the detection of missing numbers.
FLAG_CHECKS: str = TEMPLATES["checked"]
#: Macros for keywords that differ between C, C++ and compilers.
MACROS: str = TEMPLATES["macros"]

#: Numbers in tables are clipped to this.
MAX_TABLE_FLOAT = 3.0e38


@dataclass
class CSource:
    """The parts of a C source file that have been written so far, and their sizes."""

    tables: list[str] = field(default_factory=list)
    """Lines of the constant tables."""
    functions: dict[str, str] = field(default_factory=dict)
    """Texts of functions for sums and steps, by name, in the order of definition."""
    used: set[str] = field(default_factory=set)
    """Names of the functions of runtime.c that are called."""
    body: list[str] = field(default_factory=list)
    """Statements of the function that computes all values; value i is the array ``vi``."""
    nbytes: int = 0
    """Bytes of the tables."""
    largest: int = 0
    """Bytes of the largest table."""
    stack_bytes: int = 0
    """Largest number of bytes that a single step has on the stack in arrays of its own."""

    def count_stack(self, numbers: int) -> None:
        """Record that some C code needs arrays of ``numbers`` floats or ints (4 bytes each) on the stack while it runs.
        ``stack_bytes`` of this source is then at least their size in bytes.
        """
        self.stack_bytes = max(self.stack_bytes, 4 * numbers)

    def add_table(self, name: str, array: np.ndarray, comment: str = "") -> str:
        """Append a constant C array with the numbers of a numpy array to this source, with a C ``comment``, counting its bytes.
        float64 becomes float32, and int64 becomes int32. Returns the C name of the array; its ``@_`` stands for the model's
        prefix.
        """
        if array.dtype.kind == "f":
            array = np.clip(array, -MAX_TABLE_FLOAT, MAX_TABLE_FLOAT).astype(np.float32)
        elif array.dtype.itemsize > 4:
            array = array.astype(np.int32)
        self.tables += format_table(f"@_{name}", array, comment)
        nbytes = max(array.nbytes, array.itemsize)
        self.nbytes, self.largest = self.nbytes + nbytes, max(self.largest, nbytes)
        return f"@_{name}"


def make_header(guard: str, comment: Sequence[str], definitions: Sequence[str], declarations: Sequence[str]) -> str:
    """Return the text of a C header file: a comment with these lines, an include guard with the macro ``guard``, ``definitions``,
    and ``declarations``, which have C linkage in C++.
    """
    lines = ["/*", *(f" * {line}".rstrip() for line in comment), " */", f"#ifndef {guard}", f"#define {guard}", "", *definitions]
    lines += ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", "", *declarations]
    return "\n".join([*lines, "#ifdef __cplusplus", "}", "#endif", "", "#endif", ""])


def write_c_files(folder: Path, stem: str, name: str, header: str, source: str) -> tuple[Path, Path]:
    """Write a C header and a C source to ``folder`` as ``stem.h`` and ``stem.c``, both or neither. In the texts, ``@_`` and
    ``@UP`` are replaced by ``name``, in lower and upper case. Returns both paths. Raises ExportError if they cannot be written.
    """
    paths = folder / f"{stem}.h", folder / f"{stem}.c"
    texts = [text.replace("@_", f"{name}_").replace("@UP", name.upper()).encode("ascii") for text in (header, source)]
    try:
        write_files(dict(zip(paths, texts, strict=True)))
    except ModelFileError as error:
        raise ExportError(f"{paths[1]} was not written: {error}") from error
    return paths


#: The comment of the function ``NAME_name`` in the header.
NAME_COMMENT = """\
/* The number x[place] of a name, text in UTF-8: 0 if the model does not know it, or if x[place] is of no names; of an unknown
   key, the number of all unknown ones. Give text as the model learned it: without blanks around it, whole numbers without a
   point, true and false in small letters. An empty text is a missing name: 0. */"""


def has_target_encodings(program: Program) -> bool:
    """Return whether an input column of an exported model is a target encoding, a number from a table of categories."""
    return any(column.table is not None for column in program.columns)


def _find_used_table_columns(program: Program) -> dict[int, list[int]]:
    """Return which columns of the target encoding tables the inputs of an exported model use: a dict from the index of a table to
    the ascending indices of its columns.
    """
    used_pairs = sorted({column.table for column in program.columns if column.table is not None and not program.is_text(column)})
    used: dict[int, list[int]] = {}
    for table, table_column in used_pairs:
        used.setdefault(table, []).append(table_column)
    return used


def count_category_bytes(program: Program) -> int:
    """Return how many bytes an exported model's target encodings (numbers for categories) take as constant tables in C."""
    used = _find_used_table_columns(program)
    return sum(4 * max(len(program.tables[table].keys), 1) * (1 + len(columns)) for table, columns in used.items())


def add_category_tables(source: CSource, program: Program) -> str:
    """Append an exported model's target encodings (numbers that replace categories) as constant tables to a C source. Returns the
    text of the C function that looks up a category in them, or an empty string if the model does not have target encodings.
    """
    if not has_target_encodings(program):
        return ""
    for table, table_columns in _find_used_table_columns(program).items():
        keys, values = program.tables[table][:2]
        source.add_table(f"keys{table}", keys, "CRC-32 of names")
        for table_column in table_columns:
            source.add_table(f"values{table}_{table_column}", values[:, table_column])
    cases = []
    for number, column in enumerate(program.columns):
        if column.table is not None:
            table, table_column = column.table
            count = len(program.tables[table].keys)
            lookup = f"keys = @_keys{table}; values = @_values{table}_{table_column}; count = {count};"
            cases.append(f"    case {number}: key = {compute_column_seed(column.field)}u; {lookup} break;")
    return "\n" + TEMPLATES["name"].replace("$cases$", "\n".join(cases)) + "\n"


# Keywords of C++, and lower-case macros of C compilers and headers.
_CPP_WORDS = """
alignas alignof and and_eq asm bitand bitor bool catch char8_t char16_t char32_t class compl concept consteval constexpr
constinit const_cast co_await co_return co_yield decltype delete dynamic_cast explicit export false friend mutable namespace new
noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast requires static_assert static_cast
template this thread_local throw true try typeid typename typeof using virtual wchar_t xor xor_eq
far i386 interrupt linux near pascal stderr stdin stdout unix
"""
_RESERVED_WORDS = KEYWORDS | frozenset(_CPP_WORDS.split())
_SAFE_NAME = re.compile("(?=.*[a-z])[A-Za-z][A-Za-z0-9_]*")  # a name in capital letters could be a macro
_MAX_NAME_CHARACTERS = 60


def make_member_names(names: Iterable[Any]) -> list[str]:
    """Convert names of columns to valid and distinct identifiers of C and C++, for the members of a struct. Invalid or possibly
    reserved names get the prefix ``x_``, repeated ones a number. Returns them in the same order.

    >>> make_member_names(["age", "Sepal length", "class", "PI", 3, "age", "a-b", "a.b"])
    ['age', 'Sepal_length', 'x_class', 'x_PI', 'x_3', 'age_2', 'a_b', 'a_b_2']
    """
    members: dict[str, None] = {}
    counts: dict[str, int] = {}
    for name in names:
        plain = re.sub("[^A-Za-z0-9_]", "_", str(name))[:_MAX_NAME_CHARACTERS]
        member = stem = plain if _SAFE_NAME.fullmatch(plain) and plain not in _RESERVED_WORDS else f"x_{plain}"
        while member in members:
            counts[stem] = counts.get(stem, 1) + 1
            member = f"{stem}_{counts[stem]}"
        members[member] = None
    return list(members)


def declare_row_type(names: list[Any], row: str, size: str) -> list[str]:
    """Return the lines of C that declare the type ``row``, a union of an array of ``size`` floats and a struct with a member for
    each of the column ``names``. Returns an empty list if there are no names.
    """
    if not names:
        return []
    return [
        "/* The numbers of x by their names: fill row.at, and pass row.x. */",
        "typedef union {",
        f"    float x[{size}];",
        "    struct {",
        *(f"        float {member};" for member in make_member_names(names)),
        "    } at;",
        f"}} {row};",
        "",
    ]
