"""Converts links between files of the repository to links between pages of the site."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
PAGES = {
    DOCS.parent / "CONTRIBUTING.md": DOCS / "contributing.md",
    DOCS.parent / "CHANGELOG.md": DOCS / "changelog.md",
    DOCS.parent / "SECURITY.md": DOCS / "security.md",
    DOCS.parent / "benchmarks" / "README.md": DOCS / "benchmarks.md",
    DOCS.parent / "examples" / "gallery" / "README.rst": DOCS / "gallery" / "index.rst",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def rewrite_links(text: str, source: Path, page: Path) -> str:
    """Return Markdown of the file ``source``, with its relative links converted for ``page``."""

    def replace_link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match["path"]))
        return os.path.relpath(PAGES.get(target, target), page.parent) + (match["anchor"] or "")

    return LINK.sub(replace_link, text)


def rewrite_page(app: Sphinx, docname: str, content: list[str]) -> None:
    """Rewrite the links of a page."""
    page = Path(app.env.doc2path(docname))
    if page.suffix == ".md":
        content[0] = rewrite_links(content[0], page, page)


def rewrite_included_file(app: Sphinx, path: Path, docname: str, content: list[str]) -> None:
    """Rewrite the links of a file that a page includes."""
    content[0] = rewrite_links(content[0], Path(os.path.normpath(DOCS / path)), Path(app.env.doc2path(docname)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the event handlers."""
    app.connect("source-read", rewrite_page)
    app.connect("include-read", rewrite_included_file)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
