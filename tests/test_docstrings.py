"""Docstrings of estimators: shared parameters are described once in the source, and appear in every help text."""

import inspect
import pydoc
import re
import subprocess
import sys

import pytest

import streamsvm.batch
import streamsvm.learners
import streamsvm.linear
from streamsvm.core import docstrings
from streamsvm.core.docstrings import complete_docstring

KINDS = [
    kind
    for module in (streamsvm.learners, streamsvm.batch, streamsvm.linear)
    for kind in (getattr(module, name) for name in module.__all__)
    if isinstance(vars(kind).get("__doc__") if inspect.isclass(kind) else None, docstrings._Docstring)
]


def items(doc, section):
    """Names and texts of the items of a section."""
    parts = docstrings._HEADING.split(doc)
    text = dict(zip(parts[1::2], parts[2::2], strict=True)).get(section, "")
    lines = text.rstrip().split("\n")
    starts = [i for i, line in enumerate(lines) if line and not line.startswith(" ")]
    return {lines[i].split(" :")[0]: "\n".join(lines[i + 1 : j]) for i, j in zip(starts, [*starts[1:], None], strict=True)}


class Base:
    """A base.

    Parameters
    ----------
    name
        A text of the base.

    Raises
    ------
    ValueError
        The size is below 0.
    """

    size: int
    """The length of a side."""
    name: str

    @property
    def area(self):
        """The square of the size.

        Returns
        -------
        A number.
        """

    @property
    def _hidden(self):
        """Not this one."""


@complete_docstring
class Square(Base):
    """A square.

    Raises
    ------
    TypeError
        The size is not a number.

    Notes
    -----
    It has four sides.
    """

    color = "red"
    """Its colour."""

    def __init__(self, color, size=1, *, name="", unknown=None):
        pass


class Derived(Square):
    pass


EXPECTED = """A square.

Parameters
----------
color
    Its colour.
size
    The length of a side.
name
    A text of the base.

Attributes
----------
area
    The square of the size.

Raises
------
ValueError
    The size is below 0.
TypeError
    The size is not a number.

Notes
-----
It has four sides."""


def test_the_bases_complete_a_docstring():
    assert Square.__doc__ == Square("red").__doc__ == inspect.getdoc(Square) == EXPECTED
    assert Base.__doc__.startswith("A base.")
    assert Derived.__doc__ is None
    assert inspect.getdoc(Derived) == EXPECTED


def test_without_source_texts_beneath_fields_are_missing(monkeypatch):
    def nowhere(_):
        raise OSError("no source")

    monkeypatch.setattr(inspect, "getsource", nowhere)
    docstrings._read_field_items.cache_clear()
    kind = complete_docstring(
        type("Other", (Base,), {"__doc__": "Another.", "__init__": Square.__init__, "__module__": __name__})
    )
    assert list(items(kind.__doc__, "Parameters")) == ["name"]
    assert list(items(kind.__doc__, "Raises")) == ["ValueError"]
    monkeypatch.undo()
    docstrings._read_field_items.cache_clear()


def test_there_are_some():
    assert {streamsvm.BSGDClassifier, streamsvm.learners.FOGD} <= set(KINDS)
    assert {getattr(streamsvm.learners, name) for name in streamsvm.learners.__all__} <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_parameters_attributes_and_errors_are_described_and_help_shows_it_all(kind):
    described, attributes = (items(kind.__doc__, section) for section in ("Parameters", "Attributes"))
    assert list(described) == list(inspect.signature(kind).parameters)
    assert len(attributes) >= 3
    assert all(text.strip() for text in (*described.values(), *attributes.values()))
    assert "ValueError" in items(kind.__doc__, "Raises")
    assert kind.__doc__.count("\nParameters\n---") == kind.__doc__.count("\nExamples\n---") == 1
    shown = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    assert kind.__doc__ in re.sub(r"(?m)^ \|  ?", "", shown)


def test_classes_are_sent_by_value():
    cloudpickle = pytest.importorskip("cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        assert cloudpickle.loads(cloudpickle.dumps(Square)).__doc__ == EXPECTED
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_no_source_is_read_when_modules_are_imported():
    code = "import sys, streamsvm.learners.svm, streamsvm.learners.bsca; from streamsvm.core import docstrings; "
    code += "sys.exit(docstrings._read_field_items.cache_info().currsize)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
