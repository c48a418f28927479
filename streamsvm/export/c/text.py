"""C source: names, texts, tables and statements."""

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
"""  # NAME.h must be no header of C, either, which it would hide from who includes that

#: Words of C, and names of its headers.
KEYWORDS: frozenset[str] = frozenset(_WORDS.split())
_IDENTIFIER = re.compile("[A-Za-z][A-Za-z0-9_]{0,40}")
_TYPES = {"f": "float", "b": "int8_t", "h": "int16_t", "i": "int32_t", "l": "int32_t", "q": "int32_t", "d": "float"}
_TYPES |= {"I": "uint32_t", "L": "uint32_t"}
_WIDTH = 120  # characters of a line


def read_c(name: str) -> str:
    """Read a C file of this package."""
    return files("streamsvm.export.c").joinpath(name).read_text("utf-8")


def read_sections(name: str) -> dict[str, str]:
    """Read the sections of a C file of this package, which begin with ``/* section: NAME */``, by their names."""
    _, *parts = re.split(r"^/\* section: (\w+) \*/\n", read_c(name), flags=re.MULTILINE)
    return {section: text.strip("\n") for section, text in zip(parts[::2], parts[1::2], strict=True)}


#: The functions of every model, in C under the name ``model``, with ``@`` in its place.
RUNTIME: Mapping[str, str] = {
    name: text.replace("MODEL_", "@UP_").replace("model_", "@_") for name, text in read_sections("runtime.c").items()
}
#: Statements and functions with marks that `fill_marks` replaces.
TEMPLATES: Mapping[str, str] = read_sections("templates.c")


def checked_prefix(name: str) -> str:
    """Return a name that all symbols of a file begin with, if it can be one.

    >>> checked_prefix("model")
    'model'
    >>> checked_prefix("2x")
    Traceback (most recent call last):
        ...
    streamsvm.edge.step.ExportError: the name must be a C identifier of at most 41 characters, no word or header of C, not '2x'
    """
    if not _IDENTIFIER.fullmatch(name) or name in KEYWORDS:
        raise ExportError(f"the name must be a C identifier of at most 41 characters, no word or header of C, not {name!r:.60}")
    return name


def c_string(value: Any) -> str:
    r"""Return a text as a C string of UTF-8, which no reader takes for more.

    What is not plain ASCII is written in octal; ? of trigraphs and the @ of marks that writers fill in, too.

    >>> c_string('a"b\\n??=')
    '"a\\"b\\\\n\\077\\077="'
    """
    text = value if isinstance(value, str) else str(value)
    return '"' + "".join(map(_escaped_character, text.encode("utf-8", "surrogatepass"))) + '"'


def _escaped_character(code: int) -> str:
    if code in b'"\\':
        return "\\" + chr(code)
    return chr(code) if 32 <= code < 127 and code not in b"?@" else f"\\{code:03o}"


def c_comment(text: Any) -> str:
    """Return a text as it can stand in a comment.

    >>> c_comment("a*/ /*b")
    'a* / / *b'
    """
    plain = "".join(letter if 32 <= ord(letter) < 127 and letter != "\\" else "_" for letter in str(text))
    return re.sub(r"(?<=[*/])(?=[*/])|(?<=\?)(?=\?)|(?<=@)(?=_|UP)", " ", plain)


def fill_marks(text: str, names: Mapping[str, Any]) -> str:
    r"""Return a text with ``$name$`` replaced for each name, without the lines that are blank then.

    >>> fill_marks("int $i$;\n$rest$\n", {"i": 7, "rest": ""})
    'int 7;'
    """
    for name, value in names.items():
        text = text.replace(f"${name}$", str(value))
    return "\n".join(line for line in text.split("\n") if line.strip())


def number(value: float) -> str:
    """Return a number as a C constant of type float."""
    single = np.float32(min(max(value, -3.4e38), 3.4e38))
    text = np.format_float_scientific(single, unique=True, trim="0")
    return f"{text}f"


def type_of(array: np.ndarray) -> str:
    """Return the C type of an array's numbers."""
    return _TYPES[array.dtype.char]


def c_table(name: str, array: np.ndarray, what: str = "") -> list[str]:
    """Return the lines of a constant array, which has a number at least: an empty one is no C."""
    flat = array.ravel()
    if not flat.size:
        flat = np.zeros(1, array.dtype)
    kind, suffix = array.dtype.kind, "u" if array.dtype.kind == "u" else ""
    numbers = map(number, flat.tolist()) if kind == "f" else (f"{value}{suffix}" for value in flat.tolist())
    note = f" /* {what} */" if what else ""
    return [f"static const @UP_TABLE {type_of(array)} {name}[{flat.size}] = {{{note}", *_wrapped_numbers(numbers), "};"]


def _wrapped_numbers(numbers: Iterable[str]) -> Iterable[str]:
    line = "   "
    for text in numbers:
        if len(line) + len(text) + 2 > _WIDTH:
            yield line
            line = "   "
        line += f" {text},"
    yield line


#: The first lines of a source: an error for flags under which missing numbers are lost.
CHECKED: str = TEMPLATES["checked"]
#: Words that C and C++ spell in two ways, or that only some compilers have.
MACROS: str = TEMPLATES["macros"]

#: The largest float that is written.
LARGEST = 3.0e38


@dataclass
class CSource:
    """The parts of a source file that are written so far."""

    tables: list[str] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)
    """Texts of functions for vectors and steps, by name, in their order."""
    used: set[str] = field(default_factory=set)
    """Functions of the library."""
    body: list[str] = field(default_factory=list)
    """Statements of the function that computes all values; value i is the array ``vi``."""
    nbytes: int = 0
    """Bytes of the tables."""
    largest: int = 0
    """Bytes of the largest table."""
    stack_bytes: int = 0
    """Bytes of the arrays of that step which has the most of its own."""

    def takes(self, numbers: int) -> None:
        """Count the numbers of four bytes that a step keeps on the stack while it is computed."""
        self.stack_bytes = max(self.stack_bytes, 4 * numbers)

    def keep(self, name: str, array: np.ndarray, what: str = "") -> str:
        """Write an array as a table, and return its name."""
        if array.dtype.kind == "f":
            array = np.clip(array, -LARGEST, LARGEST).astype(np.float32)
        elif array.dtype.itemsize > 4:
            array = array.astype(np.int32)
        self.tables += c_table(f"@_{name}", array, what)
        taken = max(array.nbytes, array.itemsize)
        self.nbytes, self.largest = self.nbytes + taken, max(self.largest, taken)
        return f"@_{name}"


def header_text(guard: str, head: Sequence[str], defined: Sequence[str], declared: Sequence[str]) -> str:
    """Return a header: a comment of the lines of ``head``, definitions, and declarations that C++ takes as those of C."""
    lines = ["/*", *(f" * {line}".rstrip() for line in head), " */", f"#ifndef {guard}", f"#define {guard}", "", *defined]
    lines += ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", "", *declared]
    return "\n".join([*lines, "#ifdef __cplusplus", "}", "#endif", "", "#endif", ""])


def write_pair(folder: Path, stem: str, name: str, header: str, source: str) -> tuple[Path, Path]:
    """Write a header and a source, and return their paths; in their texts ``@_`` and ``@UP`` stand for the name of the model."""
    paths = folder / f"{stem}.h", folder / f"{stem}.c"
    texts = [text.replace("@_", f"{name}_").replace("@UP", name.upper()).encode("ascii") for text in (header, source)]
    try:
        write_files(dict(zip(paths, texts, strict=True)))
    except ModelFileError as problem:
        raise ExportError(f"{paths[1]} was not written: {problem}") from problem
    return paths


#: What the header says of the function.
OF_NAMES = """\
/* The number x[place] of a name, text in UTF-8: 0 if the model does not know it, or if x[place] is of no names. Give text as the
   model learned it: without blanks around it, whole numbers without a point, true and false in small letters. */"""


def has_names(program: Program) -> bool:
    """Return whether a program has numbers of names."""
    return any(column.table is not None for column in program.columns)


def _column_places(program: Program) -> dict[int, list[int]]:
    """Return the places in each table that columns have numbers of."""
    used = sorted({column.table for column in program.columns if column.table is not None})
    found: dict[int, list[int]] = {}
    for number, place in used:
        found.setdefault(number, []).append(place)
    return found


def names_bytes(program: Program) -> int:
    """Return how many bytes the tables of names have in C."""
    return sum(
        4 * max(len(program.tables[number].keys), 1) * (1 + len(places)) for number, places in _column_places(program).items()
    )


def add_names(source: CSource, program: Program) -> str:
    """Write the tables of names, and return the function that finds a name in them; nothing if there are none."""
    if not has_names(program):
        return ""
    for number, places in _column_places(program).items():
        keys, values = program.tables[number]
        source.keep(f"keys{number}", keys, "CRC-32 of names")
        for place in places:
            source.keep(f"values{number}_{place}", values[:, place])
    cases = []
    for place, column in enumerate(program.columns):
        if column.table is not None:
            number, within = column.table
            count = len(program.tables[number].keys)
            found = f"keys = @_keys{number}; values = @_values{number}_{within}; count = {count};"
            cases.append(f"    case {place}: key = {compute_column_seed(column.field)}u; {found} break;")
    return "\n" + TEMPLATES["name"].replace("$cases$", "\n".join(cases)) + "\n"


# Words of C++, and what compilers and headers of C may have defined in small letters.
_MORE = """
alignas alignof and and_eq asm bitand bitor bool catch char8_t char16_t char32_t class compl concept consteval constexpr
constinit const_cast co_await co_return co_yield decltype delete dynamic_cast explicit export false friend mutable namespace new
noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast requires static_assert static_cast
template this thread_local throw true try typeid typename typeof using virtual wchar_t xor xor_eq
far i386 interrupt linux near pascal stderr stdin stdout unix
"""
_TAKEN = KEYWORDS | frozenset(_MORE.split())
_SAFE = re.compile("(?=.*[a-z])[A-Za-z][A-Za-z0-9_]*")  # what is written in capital letters may be a macro
_LONGEST = 60


def members_of(names: Iterable[Any]) -> list[str]:
    """Return a name of C and C++ for each name, all different. One that is none, or may be taken, begins with ``x_``.

    >>> members_of(["age", "Sepal length", "class", "PI", 3, "age", "a-b", "a.b"])
    ['age', 'Sepal_length', 'x_class', 'x_PI', 'x_3', 'age_2', 'a_b', 'a_b_2']
    """
    found: dict[str, None] = {}
    counts: dict[str, int] = {}
    for name in names:
        plain = re.sub("[^A-Za-z0-9_]", "_", str(name))[:_LONGEST]
        member = stem = plain if _SAFE.fullmatch(plain) and plain not in _TAKEN else f"x_{plain}"
        while member in found:
            counts[stem] = counts.get(stem, 1) + 1
            member = f"{stem}_{counts[stem]}"
        found[member] = None
    return list(found)


def row_type(names: list[Any], row: str, size: str) -> list[str]:
    """Return the lines of a header that declare a row of numbers; none if there are no names."""
    if not names:
        return []
    return [
        "/* The numbers of x by their names: fill row.at, and pass row.x. */",
        "typedef union {",
        f"    float x[{size}];",
        "    struct {",
        *(f"        float {member};" for member in members_of(names)),
        "    } at;",
        f"}} {row};",
        "",
    ]
