"""The step ``forest`` of a program as C."""

from __future__ import annotations

import numpy as np

from streamsvm.edge.program import Program
from streamsvm.export.c.text import Source


def forest(source: Source, program: Program, i: int, x: str, out: str) -> None:
    """Write the step ``forest``, as `streamsvm.edge.committees` describes it: a function of its own."""
    step = program.steps[i]
    arrays = {name: _smallest_integers(array) for name, array in step.arrays.items() if name not in ("thresholds", "votes")}
    arrays |= {"thresholds": step.arrays["thresholds"], "votes": step.arrays["votes"] / step.arrays["votes"].sum()}
    text = _FOREST
    for name, array in arrays.items():
        text = text.replace(f"${name}$", source.keep(f"{name}{i}", array))
    for name, value in {"i": i, "trees": len(arrays["roots"]), "width": step.options["labels"]}.items():
        text = text.replace(f"${name}$", str(value))
    source.functions[f"forest{i}"] = text.strip("\n")
    source.body.append(f"@_forest{i}({x}, {out});")


def _smallest_integers(array: np.ndarray) -> np.ndarray:
    """Return whole numbers in the smallest signed type."""
    return array.astype(np.result_type(np.int8, np.min_scalar_type(-int(array.max(initial=0)) - 1)))


_FOREST = """
static void @_forest$i$(const float *@UP_RESTRICT x, float *@UP_RESTRICT out)
{
    int t, j;
    for (j = 0; j < $width$; j++) out[j] = 0.0f;
    for (t = 0; t < $trees$; t++) {
        int32_t at = $roots$[t], sum;
        while ($left$[at] >= 0) {
            const float value = x[$feature$[at]], threshold = $thresholds$[at];
            at = $left$[at] + !($equal$[at] ? value == threshold : value <= threshold);
        }
        at = 2 * (int32_t)$feature$[at];
        sum = $counts$[at] + $counts$[at + 1];
        for (j = 0; j < 2 && sum > 0; j++) out[$targets$[at + j]] += $votes$[t] * (float)$counts$[at + j] / (float)sum;
    }
}
"""
