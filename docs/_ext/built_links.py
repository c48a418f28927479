"""Raises an error if a built page links to a missing page or anchor."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.errors import SphinxError


class Page(HTMLParser):
    """The anchors and the links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str | None] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Add the anchor and the links of an element."""
        values = dict(attrs)
        self.anchors.add(values.get("id"))
        self.links += [link for name in ("href", "src") if (link := values.get(name))]


def check_links(app: Sphinx, failure: Exception | None) -> None:
    """Raise SphinxError if a link between pages of the built site is broken."""
    if failure is not None or app.builder.name != "html":
        return
    out = Path(app.outdir).resolve()
    pages = {path: Page(path) for path in out.rglob("*.html") if "_static" not in path.parts}
    broken = []

    @cache  # all pages of a folder have the same links around their text
    def find_target(folder: Path, path: str) -> tuple[Path, bool]:
        target = (folder / unquote(path)).resolve()
        return target, target.is_file()

    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target, is_file = find_target(path.parent, parts.path) if parts.path else (path, True)
            anchor = unquote(parts.fragment)
            if not is_file or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append(f"{path.relative_to(out)}: {link}")
    if broken:
        raise SphinxError("broken links:\n" + "\n".join(sorted(set(broken))))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the check, which runs after other extensions have copied their files."""
    app.connect("build-finished", check_links, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
