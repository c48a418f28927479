"""Docstrings of estimators, put together from where each parameter is described: once, beneath the field that declares it."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import textwrap
from functools import cache, cached_property
from typing import SupportsIndex, TypeVar

_Kind = TypeVar("_Kind")
_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$\n?", re.MULTILINE)
_ITEM = re.compile(r"^(?=\S)", re.MULTILINE)
_SHARED = ("Parameters", "Attributes", "Raises", "Warns")  # sections whose items those of the bases complete


def complete_docstring(kind: type[_Kind]) -> type[_Kind]:
    """Complete the docstring of a class by what its bases say, when it is first read.

    Each parameter of the constructor has the text that stands beneath its field, in the class or in the nearest base. Attributes
    are the public properties. Items of the sections Parameters, Attributes, Raises and Warns are also those of the docstrings of
    all bases. What a class says itself replaces what its bases say. Without the source, texts beneath fields are missing.
    """
    kind.__doc__ = doc = _Docstring(kind.__doc__ or "")
    doc.kind = kind
    return kind


class _Docstring(str):
    """The docstring that a class has by itself, in its dictionary; read through the class or an object of it, it is complete."""

    kind: type

    @cached_property
    def _complete_text(self) -> str:
        return _completed_docstring(self.kind)

    def __get__(self, instance: object, owner: type) -> str:
        return self._complete_text

    def expandtabs(self, tabsize: SupportsIndex = 8) -> str:
        # The first thing that inspect.cleandoc does: help() gives it what it finds in the dictionary of an abstract class.
        return self._complete_text.expandtabs(tabsize)


def _completed_docstring(kind: type) -> str:
    opening, own = _docstring_sections(kind)
    found: dict[str, dict[str, str]] = {section: {} for section in _SHARED}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] not in (__name__.partition(".")[0], kind.__module__.partition(".")[0]):
            continue  # of river or scikit-learn
        found["Parameters"].update(_documented_fields(base.__module__).get(base.__qualname__, {}))
        for name, member in vars(base).items():
            if isinstance(member, property) and not name.startswith("_") and member.__doc__:
                item = _field_item(name, _HEADING.split(inspect.cleandoc(member.__doc__))[0])
                found["Attributes"][name] = found["Parameters"][name] = item  # a parameter may replace a property
        for section, text in _docstring_sections(base)[1].items():
            if section in found:
                items = _ITEM.split(text)[1:]
                found[section].update({item.partition("\n")[0].partition(" :")[0]: item.rstrip() for item in items})
    parameters = inspect.signature(kind).parameters
    found["Parameters"] = {name: found["Parameters"][name] for name in parameters if name in found["Parameters"]}
    found["Attributes"] = {name: item for name, item in found["Attributes"].items() if name not in parameters}
    sections = {section: "\n".join(items.values()) for section, items in found.items()} | {
        section: text for section, text in own.items() if section not in _SHARED
    }
    return "\n\n".join([opening, *(f"{name}\n{'-' * len(name)}\n{text}" for name, text in sections.items() if text)])


def _docstring_sections(kind: type) -> tuple[str, dict[str, str]]:
    """The text of a docstring before its first section, and the text of each section."""
    opening, *rest = _HEADING.split(inspect.cleandoc(str(vars(kind).get("__doc__") or "")))
    return opening.rstrip(), {heading: text.rstrip() for heading, text in zip(rest[::2], rest[1::2], strict=True)}


@cache
def _documented_fields(module: str) -> dict[str, dict[str, str]]:
    """The items of the fields of each class of a module that have a text beneath them."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, SyntaxError):  # there is no source
        return {}
    found: dict[str, dict[str, str]] = {}
    for kind in tree.body:
        for field, text in itertools.pairwise(kind.body) if isinstance(kind, ast.ClassDef) else ():
            target = (
                field.target if isinstance(field, ast.AnnAssign) else field.targets[0] if isinstance(field, ast.Assign) else None
            )
            if isinstance(target, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                item = _field_item(target.id, inspect.cleandoc(str(text.value.value)))
                found.setdefault(kind.name, {})[target.id] = item  # type: ignore[attr-defined]
    return found


def _field_item(name: str, text: str) -> str:
    return f"{name}\n{textwrap.indent(text.rstrip(), '    ')}"
