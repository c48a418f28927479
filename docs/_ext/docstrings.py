"""Converts docstrings for Sphinx, and selects the members that are listed on the page of a class."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

from jinja2.sandbox import SandboxedEnvironment
from numpydoc import docscrape_sphinx
from sphinx.application import Sphinx

OWN = ("streamsvm", "streamsvm_kafka", "streamsvm_spark")
FOOTNOTE = re.compile(r"^(\s*)\[\^(\d+)\]: ")
SINGLE_BACKTICKS = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LITERAL = re.compile(r"(``.*?``)")


def convert_docstring(app: Sphinx, kind: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Convert river's footnotes to lists, and escape ``|``, which would start a substitution.

    An inherited docstring, perhaps of river, contains no names of our objects: its single backticks become double ones.
    """
    is_inherited, in_example = not getattr(obj, "__doc__", None), False
    for number, line in enumerate(lines):
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>>"))
        if not in_example:
            line = FOOTNOTE.sub(r"\1\2.  ", line)
            if is_inherited:
                line = SINGLE_BACKTICKS.sub(r"``\1``", line)
            lines[number] = "".join(part if part.startswith("``") else part.replace("|", r"\|") for part in LITERAL.split(line))


def skip_member(app: Sphinx, kind: str, name: str, obj: Any, is_skipped: bool, options: Any) -> bool | None:
    """Return True for members of other packages, and for parameters of estimators, which the class docstring describes."""
    module = getattr(getattr(obj, "fget", obj), "__module__", None)
    if module is not None and module.partition(".")[0] not in OWN:
        return True
    document = app.env.current_document
    documented_class = getattr(sys.modules.get(document.autodoc_module), document.autodoc_class or "", None)
    is_estimator = hasattr(documented_class, "_get_params") or hasattr(documented_class, "get_params")
    return True if is_estimator and not (inspect.isroutine(obj) or isinstance(obj, property)) else None


def share_template() -> None:
    """Let numpydoc compile its template once, and not for each docstring, which is a sixth of the time of a build."""
    shared = SandboxedEnvironment()

    def environment(loader: Any) -> SandboxedEnvironment:
        shared.loader = shared.loader or loader  # all have the same folders
        return shared

    docscrape_sphinx.SandboxedEnvironment = environment


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the event handlers; docstrings are converted before numpydoc reads them."""
    share_template()
    app.connect("autodoc-process-docstring", convert_docstring, priority=100)
    app.connect("autodoc-skip-member", skip_member)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
