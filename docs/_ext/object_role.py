"""Links to Python objects: single backticks in docstrings, and public names in inline code of Markdown pages."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from public_names import public_names
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyXRefRole
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform


class ObjectRole(PyXRefRole):
    """A link to a member of the current class or module, or to a public object by its full or unambiguous short name."""

    def process_link(self, env: Any, refnode: Any, has_explicit_title: bool, title: str, target: str) -> tuple[str, str]:
        """Return the title and the full name of the target."""
        refnode["refdomain"], refnode["reftype"] = "py", "obj"
        title, target = super().process_link(env, refnode, has_explicit_title, title, target)
        head, dot, member = target.partition(".")
        names = public_names()
        full_name = names.get(target) or names.get(f"{refnode['py:module']}.{target}")
        if full_name is None and dot and head in names:
            full_name = f"{names[head]}.{member}"
        return title, full_name or target


class LinkNames(SphinxTransform):
    """Turns inline code on Markdown pages into links, if it is the name of a public object."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        """Replace the literals of the page by links."""
        if self.env.doc2path(self.env.docname).suffix != ".md":
            return
        names = public_names()
        for literal in list(self.document.findall(nodes.literal)):
            target = names.get(literal.astext())
            parents = (nodes.reference, nodes.title, pending_xref)
            if target is not None and not isinstance(literal.parent, parents):
                reference = pending_xref("", refdomain="py", reftype="obj", reftarget=target, refexplicit=True, refwarn=True)
                reference["refdoc"] = self.env.docname
                literal.replace_self(reference)
                reference += literal


class TrimBlocks(SphinxTransform):
    """Removes the empty last line of code blocks, which the examples need for doctest."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        """Trim the code blocks of the page."""
        for block in self.document.findall(nodes.literal_block):
            if len(block.children) == 1 and isinstance(block.children[0], nodes.Text):
                block.rawsource = text = block.astext().rstrip("\n")
                block.replace(block.children[0], nodes.Text(text))


def ignore_ambiguous_method(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Any) -> Any:
    """Return text without a link for a method that the current class does not have, but several other classes do."""
    ending = f".{node.get('reftarget')}"
    if node.get("refdomain") == "py" and sum(name.endswith(ending) for name in env.domains.python_domain.objects) > 1:
        return content
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the role, the transforms and the event handler."""
    app.add_role("object", ObjectRole())
    app.add_transform(LinkNames)
    app.add_transform(TrimBlocks)
    app.connect("missing-reference", ignore_ambiguous_method)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
