"""Bars of what features contribute, on axes of matplotlib, which is imported where a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streamsvm.files.messages import missing_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST_NAME = 40  # characters
FOR, AGAINST = "#2166ac", "#b2182b"


def axes_for(axes: Axes | None) -> Axes:
    """Return the axes to draw on: those that are given, else the current ones of pyplot."""
    if axes is not None:
        return axes
    try:
        import matplotlib.pyplot as plt  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise missing_package("drawing", "matplotlib", "plot", error) from error
    return plt.gca()


def plain_line(text: Any) -> str:
    """Return a text from anywhere as one short line, without the signs of formulas."""
    text = " ".join(str(text).split())
    return (text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 3]}...").replace("$", r"\$")


def draw_bars(axes: Axes, names: Sequence[Any], sizes: Sequence[float], most: int) -> None:
    """Draw a bar for each of the first ``most`` names, the first at the top, and one for the sum of the others."""
    texts, values = [plain_line(name) for name in names[:most]], list(sizes[:most])
    if len(names) > most:
        texts.append(f"{len(names) - most:,} others")
        values.append(sum(sizes[most:]))
    places = range(len(values))
    axes.barh(places, values, color=[FOR if value >= 0.0 else AGAINST for value in values])
    axes.set_yticks(places, texts)
    axes.invert_yaxis()
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
