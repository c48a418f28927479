"""Animations of the gallery without the style sheet that matplotlib would fetch from elsewhere: the theme has its icons."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

SHEET = re.compile(r"<link rel=\"stylesheet\"\s+href=\"https://[^>]*>")


def read(app: Sphinx, docname: str, content: list[str]) -> None:
    """Take the link out of a page of the gallery."""
    if docname.startswith("gallery/"):
        content[0] = SHEET.sub("", content[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Change what is read."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
