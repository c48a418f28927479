"""Draws the figures of pages by the scripts in ``docs/figures``, unless the gallery is disabled."""

from __future__ import annotations

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx


class NoPlot(Directive):
    """Replaces the directive ``plot``, and shows nothing."""

    optional_arguments, has_content = 1, True
    option_spec = dict.fromkeys(("alt", "caption"), str)

    def run(self) -> list[nodes.Node]:
        """Return an empty list of nodes."""
        return []


def replace_plot_directive(app: Sphinx, *_: object) -> None:
    """Omit figures with ``-D plot_gallery=0``."""
    if not app.config.sphinx_gallery_conf["plot_gallery"]:
        app.add_directive("plot", NoPlot, override=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Load matplotlib's directive, and register the event handler."""
    app.setup_extension("matplotlib.sphinxext.plot_directive")
    app.connect("builder-inited", replace_plot_directive, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
