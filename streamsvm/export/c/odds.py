"""Probabilities in C, from decision values."""

from __future__ import annotations

import numpy as np

from streamsvm.edge.program import Program
from streamsvm.export.c.text import Source, number


def add_odds(source: Source, program: Program) -> None:
    """Add the function that turns the decision values of a classifier into probabilities, if it has some."""
    odds = program.answer.odds
    if odds is None:
        return
    source.used.add("exp")
    several, margin = len(program.answer.labels) > 2, odds["kind"] == "margin"
    prior = float(odds["prior"])
    factor = float(odds["factor"]) if margin else 1.0
    lines = ["static void @_odds(const float *f, float *p)", "{"]
    if not several:
        lines += [f"    float z = {number(factor)} * f[0];", "    z = z > 30.0f ? 30.0f : z < -30.0f ? -30.0f : z;"]
        lines += ["    p[1] = 1.0f / (1.0f + @_exp(-z));", "    p[0] = 1.0f / (1.0f + @_exp(z));"]
        if margin:
            lines.append(f"    p[0] += {number(prior)} * (0.5f - p[0]); p[1] += {number(prior)} * (0.5f - p[1]);")
        source.functions["odds"] = "\n".join([*lines, "}"])
        return
    n = len(program.answer.labels)
    lines += ["    int k, best = 0;", "    float sum = 0.0f, z;"]
    lines += [f"    for (k = 1; k < {n}; k++) if (f[k] > f[best]) best = k;", f"    for (k = 0; k < {n}; k++) {{"]
    lines += [f"        z = {number(factor)} * (f[k] - f[best]);", "        p[k] = @_exp(z > -30.0f ? z : -30.0f);"]
    lines += ["        sum += p[k];", "    }"]
    if margin:
        left = f"{number(1.0 - prior)} * p[k] / sum + {number(prior / n)}"
    else:
        shares = source.keep("shares", prior * np.array(odds["shares"]))
        left = f"{number(1.0 - prior)} * p[k] / sum + {shares}[k]"
    lines += [f"    for (k = 0; k < {n}; k++) p[k] = {left};", "}"]
    source.functions["odds"] = "\n".join(lines)
