"""Removes the link to a remote style sheet from matplotlib's animations: the theme has the same icons."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

STYLE_SHEET_LINK = re.compile(r"<link rel=\"stylesheet\"\s+href=\"https://[^>]*>")


def remove_style_sheet(app: Sphinx, docname: str, content: list[str]) -> None:
    """Remove the link from the source of a gallery page."""
    if docname.startswith("gallery/"):
        content[0] = STYLE_SHEET_LINK.sub("", content[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the event handler."""
    app.connect("source-read", remove_style_sheet)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
