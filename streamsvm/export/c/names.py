"""Names in C: a function that finds the numbers of names in a program's tables, and a row by the names of its numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from streamsvm.edge.program import Program
from streamsvm.export.c.text import KEYWORDS, Source
from streamsvm.files.category_names import seed_of

#: What the header says of the function.
OF_NAMES = """\
/* The number x[place] of a name, text in UTF-8: 0 if the model does not know it, or if x[place] is of no names. Give text as the
   model learned it: without blanks around it, whole numbers without a point, true and false in small letters. */"""

_NAME = """
float @_name(int place, const char *text)
{{
    const @UP_TABLE uint32_t *keys;
    const @UP_TABLE float *values;
    uint32_t key, count, begin = 0, end, middle;
    int bit;
    switch (place) {{
{cases}
    default: return 0.0f;
    }}
    for (key = ~key; *text; text++) {{ /* the CRC-32 of the field and the text */
        key ^= (uint32_t)(unsigned char)*text;
        for (bit = 0; bit < 8; bit++) key = key & 1u ? (key >> 1) ^ 0xedb88320u : key >> 1;
    }}
    key = ~key ? ~key : 1u;
    for (end = count; begin < end;) {{
        middle = begin + (end - begin) / 2;
        if (keys[middle] < key) begin = middle + 1;
        else end = middle;
    }}
    return begin < count && keys[begin] == key ? values[begin] : 0.0f;
}}
"""


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


def add_names(source: Source, program: Program) -> str:
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
            cases.append(f"    case {place}: key = {seed_of(column.field)}u; {found} break;")
    return _NAME.format(cases="\n".join(cases))


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
