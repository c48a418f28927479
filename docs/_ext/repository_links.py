"""Links between files of the repository, in pages that include one of them or link to one, become links between pages."""

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


def rewritten(text: str, source: Path, page: Path) -> str:
    """Return Markdown of the file ``source`` with its links as they are from ``page``."""

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match["path"]))
        return os.path.relpath(PAGES.get(target, target), page.parent) + (match["anchor"] or "")

    return LINK.sub(link, text)


def read(app: Sphinx, docname: str, content: list[str]) -> None:
    """Rewrite the links of a page."""
    page = Path(app.env.doc2path(docname))
    if page.suffix == ".md":
        content[0] = rewritten(content[0], page, page)


def include(app: Sphinx, path: Path, docname: str, content: list[str]) -> None:
    """Rewrite the links of a file that a page includes."""
    content[0] = rewritten(content[0], Path(os.path.normpath(DOCS / path)), Path(app.env.doc2path(docname)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Rewrite what is read."""
    app.connect("source-read", read)
    app.connect("include-read", include)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
