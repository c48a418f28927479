"""Figures of the pages, which scripts in ``docs/figures`` draw; none of them where the gallery is not run, either."""

from __future__ import annotations

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx


class NoPlot(Directive):
    """Stands in for the directive ``plot`` and shows nothing."""

    optional_arguments, has_content = 1, True
    option_spec = dict.fromkeys(("alt", "caption"), str)

    def run(self) -> list[nodes.Node]:
        """Return nothing."""
        return []


def choose(app: Sphinx, *_: object) -> None:
    """Leave figures out with ``-D plot_gallery=0``."""
    if not app.config.sphinx_gallery_conf["plot_gallery"]:
        app.add_directive("plot", NoPlot, override=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.setup_extension("matplotlib.sphinxext.plot_directive")
    app.connect("builder-inited", choose, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
