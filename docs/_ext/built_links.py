"""Raises an error if a built page links to a missing page or anchor."""

from __future__ import annotations

import re
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

#: Attributes of elements: Sphinx escapes quotation marks in text, but not in scripts.
ATTRIBUTE = re.compile(r"""\s(id|href|src)=(?:"([^"]*)"|'([^']*)')""")
SCRIPT = re.compile(r"(?s)(<script\b[^>]*>).*?</script>")


class Page:
    """The anchors and the links of a page, found by patterns: to parse all elements takes seven times as long."""

    def __init__(self, path: Path) -> None:
        self.anchors: set[str] = set()
        self.links: list[str] = []
        for name, *values in ATTRIBUTE.findall(SCRIPT.sub(r"\1", path.read_text(encoding="utf-8"))):
            value = unescape("".join(values))
            if name == "id":
                self.anchors.add(value)
            elif value:
                self.links.append(value)


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
