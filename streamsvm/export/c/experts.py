"""The answer of a committee as C."""

from __future__ import annotations

import numpy as np

from streamsvm.edge.program import Program
from streamsvm.export.c.source import Source
from streamsvm.export.c.text import number

__all__ = ["experts"]

_SAID, _SAID_NUMBER = "3.0f", "10.0f"


def experts(source: Source, program: Program, i: int, x: str, out: str) -> None:
    """Write the step ``experts``, as `streamsvm.edge.steps` describes it."""
    step = program.steps[i]
    votes, outputs = step.arrays["votes"], step.options["outputs"]
    place = source.keep(f"votes{i}", votes / votes.sum())
    names = {"x": x, "out": out, "votes": place, "n": str(len(votes)), "k": str(outputs)}
    names |= {"best": str(step.options["best"]), "follows": str(step.options["follows"])}
    weights, shares = step.arrays["weights"], step.arrays["shares"] / step.arrays["shares"].sum()
    if step.options["of"] == "numbers":
        text = _NUMBERS
        names |= {"weights": source.keep(f"stacks{i}", weights), "shares": source.keep(f"shares{i}", shares)}
        names |= {"corrects": source.keep(f"corrects{i}", step.arrays["corrects"].astype(np.int32)), "stacks": str(len(weights))}
        names |= {"said": _SAID_NUMBER, "width": str(weights.shape[1])}
    else:
        text = _ONE if outputs == 1 else _SEVERAL
        names |= {"weights": source.keep(f"stacks{i}", shares @ weights, "of both stacks, by their shares"), "said": _SAID}
        if outputs == 1:
            source.used |= {"exp", "log"}
            prior, share = step.options["prior"], step.options["share"]
            names |= {"kept": number(1.0 - prior), "for": number(prior * share), "against": number(prior * (1.0 - share))}
    source.takes(len(votes) if step.options["of"] == "numbers" else 2 * outputs if outputs > 1 else 0)
    for name, value in names.items():
        text = text.replace(f"${name};", f"{value};").replace(f"${name}$", value)
    source.body += text.strip("\n").split("\n")


_BOUNDED = "{0} > $said$ ? $said$ : {0} < -$said$ ? -$said$ : {0}"

_NUMBERS = f"""
{{
    float said[$n$], voted = 0.0f, stacked = 0.0f;
    int m;
    for (j = 0; j < $n$; j++) {{
        float value = $x$[j];
        if ($corrects$[j] >= 0) value += said[$corrects$[j]];
        said[j] = {_BOUNDED.format("value")};
        voted += $votes$[j] * said[j];
    }}
    for (m = 0; m < $stacks$; m++) {{
        float value = $weights$[m * $width$] + $weights$[m * $width$ + 1] * voted;
        for (j = 0; j < $n$; j++) value += $weights$[m * $width$ + 2 + j] * said[j];
        stacked += $shares$[m] * ({_BOUNDED.format("value")});
    }}
    $out$[0] = $follows$ == 0 ? stacked : $follows$ == 1 ? voted : said[$best$];
}}
"""

_ONE = f"""
{{
    float stacked = $weights$[0], voted = 0.0f, followed, p, q;
    for (j = 0; j < $n$; j++) {{
        const float value = $x$[j];
        voted += value > 0.0f ? $votes$[j] : -$votes$[j];
        stacked += $weights$[2 + j] * ({_BOUNDED.format("value")});
    }}
    stacked += $weights$[1] * voted;
    followed = $follows$ == 0 ? stacked : $follows$ == 1 ? voted : $x$[$best$];
    p = stacked > 30.0f ? 30.0f : stacked < -30.0f ? -30.0f : stacked;
    q = 1.0f / (1.0f + @_exp(p)); /* each side by itself: 1 - p would lose a small one */
    p = 1.0f / (1.0f + @_exp(-p));
    if ((followed > 0.0f) != (stacked > 0.0f)) p = q = 0.5f;
    p = @_log((p * $kept$ + $for$) / (q * $kept$ + $against$));
    if (followed > 0.0f) $out$[0] = p > 4.7683716e-07f ? p : 4.7683716e-07f;
    else $out$[0] = p < 0.0f ? p : 0.0f;
}}
"""

_SEVERAL = f"""
{{
    float voted[$k$], followed[$k$], largest;
    int k, chosen = 0;
    for (k = 0; k < $k$; k++) voted[k] = 0.0f;
    for (j = 0; j < $n$; j++) {{
        int most = 0;
        for (k = 1; k < $k$; k++) if ($x$[j * $k$ + k] > $x$[j * $k$ + most]) most = k;
        voted[most] += $votes$[j];
    }}
    for (k = 0; k < $k$; k++) {{
        float stacked = $weights$[1] * voted[k];
        for (j = 0; j < $n$; j++) {{
            const float value = $x$[j * $k$ + k];
            stacked += $weights$[2 + j] * ({_BOUNDED.format("value")});
        }}
        $out$[k] = stacked;
        followed[k] = $follows$ == 0 ? stacked : $follows$ == 1 ? voted[k] : $x$[$best$ * $k$ + k];
    }}
    largest = $out$[0];
    for (k = 1; k < $k$; k++) {{
        if ($out$[k] > largest) largest = $out$[k];
        if (followed[k] > followed[chosen]) chosen = k;
    }}
    $out$[chosen] = largest + 1e-5f;
}}
"""
