"""A row in C by the names of its numbers: a struct, which lies where the array does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from streamsvm.export.c.text import KEYWORDS

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
