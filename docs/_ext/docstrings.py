"""Docstrings as Sphinx reads them, and the members that the page of a class shows."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

from sphinx.application import Sphinx

OWN = ("streamsvm", "streamsvm_kafka", "streamsvm_spark")
REFERENCE = re.compile(r"^(\s*)\[\^(\d+)\]: ")
SINGLE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LITERAL = re.compile(r"(``.*?``)")


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make lists of references that are marked as river marks them, and bars of norms no substitutions.

    What a method without a docstring has inherited, maybe from river, names no objects.
    """
    inherited, example = not getattr(obj, "__doc__", None), False
    for number, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if not example:
            line = REFERENCE.sub(r"\1\2.  ", line)
            if inherited:
                line = SINGLE.sub(r"``\1``", line)
            lines[number] = "".join(part if part.startswith("``") else part.replace("|", r"\|") for part in LITERAL.split(line))


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out the members that other packages have defined, and the parameters of estimators, which the docstring describes."""
    home = getattr(getattr(obj, "fget", obj), "__module__", None)
    if home is not None and home.partition(".")[0] not in OWN:
        return True
    document = app.env.current_document
    kind = getattr(sys.modules.get(document.autodoc_module), document.autodoc_class or "", None)
    is_estimator = hasattr(kind, "_get_params") or hasattr(kind, "get_params")
    return True if is_estimator and not (inspect.isroutine(obj) or isinstance(obj, property)) else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Process docstrings before numpydoc does."""
    app.connect("autodoc-process-docstring", process, priority=100)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
