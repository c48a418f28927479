"""References to Python objects: single backticks in docstrings, and public names in the code of Markdown pages."""

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
    """Names a Python object: of the class or module at hand, or a public one by as much of its name as is not ambiguous."""

    def process_link(self, env: Any, refnode: Any, has_explicit_title: bool, title: str, target: str) -> tuple[str, str]:
        """Complete the name of what is public."""
        refnode["refdomain"], refnode["reftype"] = "py", "obj"
        title, target = super().process_link(env, refnode, has_explicit_title, title, target)
        head, dot, member = target.partition(".")
        names = public_names()
        found = names.get(target) or names.get(f"{refnode['py:module']}.{target}")
        if found is None and dot and head in names:
            found = f"{names[head]}.{member}"
        return title, found or target


class LinkNames(SphinxTransform):
    """Makes a reference of code in a Markdown page that is the name of a public object."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        """Replace the literals of the page."""
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
    """Removes the empty line with which an example ends, so that doctest finds the end of what is expected."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        """Trim the blocks of the page."""
        for block in self.document.findall(nodes.literal_block):
            if len(block.children) == 1 and isinstance(block.children[0], nodes.Text):
                block.rawsource = text = block.astext().rstrip("\n")
                block.replace(block.children[0], nodes.Text(text))


def method_of_many(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Any) -> Any:
    """Leave the name of a method or attribute without a link where the class at hand has none, but several others have it."""
    ending = f".{node.get('reftarget')}"
    if node.get("refdomain") == "py" and sum(name.endswith(ending) for name in env.domains.python_domain.objects) > 1:
        return content
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the role and the transform."""
    app.add_role("object", ObjectRole())
    app.add_transform(LinkNames)
    app.add_transform(TrimBlocks)
    app.connect("missing-reference", method_of_many)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
