"""The step ``neighbours`` of a program as C."""

from __future__ import annotations

import numpy as np

from streamsvm.edge.committees import NEAREST_DISTANCE, ROUNDING
from streamsvm.edge.program import Program
from streamsvm.export.c.library import LANES, in_groups, sums_function
from streamsvm.export.c.text import LARGEST, Source, number, type_of


def neighbours(source: Source, program: Program, i: int, x: str, out: str) -> None:
    """Write the step ``neighbours``, as `streamsvm.edge.steps` describes it: a function of its own."""
    step, options = program.steps[i], program.steps[i].options
    vectors, targets, labels = step.arrays["vectors"], step.arrays["targets"], options["labels"]
    (n, features), nearest = vectors.shape, min(options["neighbours"], len(vectors))
    laid = in_groups(vectors)
    given = [f"{source.keep(f'vectors{i}', laid, f'in groups of {LANES}, feature by feature')} + first * {features}"]
    given += [source.keep(f"{name}{i}", step.arrays[name]) for name in ("unit", "relevance") if name in step.arrays]
    weights = source.keep(f"weights{i}", step.arrays["weights"])
    if labels:
        targets = targets.astype(np.min_scalar_type(-labels))
    name, text = sums_function("ways", type_of(laid))
    source.functions.setdefault(name, text)
    source.takes(LANES + 2 * nearest)
    names = {
        "call": f"@_{name}(x, {', '.join(given)}, {number(options['reach'])}, {features}, size, sums)",
        "share": _SHARE if labels else _MEAN,
        "i": str(i),
        "k": str(nearest),
        "n": str(n),
        "lanes": str(LANES),
        "far": number(LARGEST),
        "nearest": number(NEAREST_DISTANCE),
        "offset": number(options["offset"]),
        "power": str(options["power"]),
        "weights": weights,
        "targets": source.keep(f"targets{i}", targets),
        "width": str(program.widths[i + 1]),
    }
    function = _NEIGHBOURS
    for key, value in names.items():
        function = function.replace(f"${key}$", value)
    source.functions["rounded"] = _ROUNDED.replace("$rounding$", number(float(ROUNDING))).strip("\n")
    source.functions[f"neighbours{i}"] = function.strip("\n")
    source.body.append(f"@_neighbours{i}({x}, {out});")


_ROUNDED = """
static inline float @_rounded(float distance)
{
    const volatile float sum = distance + $rounding$; /* a float, also where a processor computes with more digits */
    return sum;
}
"""

# Those that are nearest are in the order of their rounded distances, and of equal ones in their own.
_NEIGHBOURS = """
static void @_neighbours$i$(const float *@UP_RESTRICT x, float *@UP_RESTRICT out)
{
    float sums[$lanes$], near[$k$], least, total = 0.0f;
    int which[$k$], first, i, j;
    for (i = 0; i < $k$; i++) {
        near[i] = $far$;
        which[i] = 0;
    }
    for (first = 0; first < $n$; first += $lanes$) {
        const int size = $n$ - first < $lanes$ ? $n$ - first : $lanes$;
        $call$;
        for (i = 0; i < size; i++) {
            const float rounded = @_rounded(sums[i]);
            if (!(rounded < @_rounded(near[$k$ - 1]))) continue;
            for (j = $k$ - 1; j > 0 && rounded < @_rounded(near[j - 1]); j--) {
                near[j] = near[j - 1];
                which[j] = which[j - 1];
            }
            near[j] = sums[i];
            which[j] = first + i;
        }
    }
    least = $far$;
    for (i = 0; i < $k$; i++) {
        near[i] = near[i] > $nearest$ ? near[i] : $nearest$;
        least = near[i] < least ? near[i] : least;
    }
    for (i = 0; i < $k$; i++) {
        const float ratio = (least + $offset$) / (near[i] + $offset$);
        near[i] = $weights$[which[i]];
        for (j = 0; j < $power$; j++) near[i] *= ratio;
        total += near[i];
    }
    for (j = 0; j < $width$; j++) out[j] = 0.0f;
    for (i = 0; i < $k$; i++) $share$
}
"""
_SHARE = "out[$targets$[which[i]]] += near[i] / total;"
_MEAN = "out[0] += near[i] / total * $targets$[which[i]];"
