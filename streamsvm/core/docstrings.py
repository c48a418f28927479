"""Assembles the docstrings of estimators from the texts below the fields that declare their parameters."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import textwrap
from functools import cache, cached_property
from typing import SupportsIndex, TypeVar

_Class = TypeVar("_Class")
_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$\n?", re.MULTILINE)
_ITEM = re.compile(r"^(?=\S)", re.MULTILINE)
_MERGED_SECTIONS = ("Parameters", "Attributes", "Raises", "Warns")  # they also contain the items of the base classes


def complete_docstring(cls: type[_Class]) -> type[_Class]:
    """Class decorator: complete the class's docstring with the descriptions of inherited parameters and attributes, and with the
    string literals below its fields. The docstring is assembled when it is first read.

    Constructor parameters are described by the text below their field, in the class or its nearest base. Attributes are the
    public properties. The sections Parameters, Attributes, Raises and Warns also contain the items in the docstrings of all
    bases, unless the class has an item of the same name. If the source is not available, texts below fields are missing.
    """
    cls.__doc__ = doc = _Docstring(cls.__doc__ or "")
    doc.cls = cls
    return cls


class _Docstring(str):
    """The own docstring of a class in its ``__dict__``. Read as an attribute of the class or an instance, it is completed."""

    cls: type

    @cached_property
    def _complete_text(self) -> str:
        return _assemble_docstring(self.cls)

    def __get__(self, instance: object, owner: type) -> str:
        return self._complete_text

    def expandtabs(self, tabsize: SupportsIndex = 8) -> str:
        # help() passes the docstring in the __dict__ of an abstract class to inspect.cleandoc, which calls this first.
        return self._complete_text.expandtabs(tabsize)


def _assemble_docstring(cls: type) -> str:
    """Return the complete numpydoc docstring of a class: its own text, and the sections Parameters, Attributes, Raises and Warns
    with the items of all base classes. Bases of other packages are left out.
    """
    opening, own_sections = _split_docstring(cls)
    merged: dict[str, dict[str, str]] = {section: {} for section in _MERGED_SECTIONS}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] not in (__name__.partition(".")[0], cls.__module__.partition(".")[0]):
            continue  # a class of river or scikit-learn
        merged["Parameters"].update(_read_field_items(base.__module__).get(base.__qualname__, {}))
        for name, member in vars(base).items():
            if isinstance(member, property) and not name.startswith("_") and member.__doc__:
                item = _format_item(name, _HEADING.split(inspect.cleandoc(member.__doc__))[0])
                merged["Attributes"][name] = merged["Parameters"][name] = item  # a parameter may replace a property
        for section, text in _split_docstring(base)[1].items():
            if section in merged:
                items = _ITEM.split(text)[1:]
                merged[section].update({item.partition("\n")[0].partition(" :")[0]: item.rstrip() for item in items})
    parameters = inspect.signature(cls).parameters
    merged["Parameters"] = {name: merged["Parameters"][name] for name in parameters if name in merged["Parameters"]}
    merged["Attributes"] = {name: item for name, item in merged["Attributes"].items() if name not in parameters}
    sections = {section: "\n".join(items.values()) for section, items in merged.items()} | {
        section: text for section, text in own_sections.items() if section not in _MERGED_SECTIONS
    }
    return "\n\n".join([opening, *(f"{name}\n{'-' * len(name)}\n{text}" for name, text in sections.items() if text)])


def _split_docstring(cls: type) -> tuple[str, dict[str, str]]:
    """Split a class's own numpydoc docstring: return the text before the first section, and the text of each section by its
    heading (such as ``Parameters``). Both are empty without a docstring.
    """
    opening, *rest = _HEADING.split(inspect.cleandoc(str(vars(cls).get("__doc__") or "")))
    return opening.rstrip(), {heading: text.rstrip() for heading, text in zip(rest[::2], rest[1::2], strict=True)}


@cache
def _read_field_items(module: str) -> dict[str, dict[str, str]]:
    """Parse the source code of an imported ``module``, and return the documentation of fields (string literals below them) as
    {class name: {field name: numpydoc item}}. Returns an empty dict if the source is not available.
    """
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, SyntaxError):  # the source is not available
        return {}
    items: dict[str, dict[str, str]] = {}
    for node in tree.body:
        for field, text in itertools.pairwise(node.body) if isinstance(node, ast.ClassDef) else ():
            target = (
                field.target if isinstance(field, ast.AnnAssign) else field.targets[0] if isinstance(field, ast.Assign) else None
            )
            if isinstance(target, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                item = _format_item(target.id, inspect.cleandoc(str(text.value.value)))
                items.setdefault(node.name, {})[target.id] = item  # type: ignore[attr-defined]
    return items


def _format_item(name: str, text: str) -> str:
    """Return a numpydoc item: ``name`` on the first line, and ``text`` indented by four spaces below it."""
    return f"{name}\n{textwrap.indent(text.rstrip(), '    ')}"
