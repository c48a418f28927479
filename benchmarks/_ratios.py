"""Ratios of ours to a peer's, measured in the same run: which are kept, and which new ones are worse.

A ratio has a name, ``kind | where | ours / peer``. Its kind is ``time`` (CPU time) or ``error`` (100 % less the accuracy), so
that less is better. Seconds are of a machine, and are not kept.
"""

from __future__ import annotations

import statistics
from typing import Any

#: A new ratio above the kept one times this is worse.
#: Of five runs on a busy machine, the largest had up to 1.62 times the median.
FACTORS = {"time": 2.0, "error": 1.1}
DIGITS = {"time": ".2g", "error": ".2f"}
LEAST_ERROR = 0.01  # percent; so that nobody divides by 0


def ratio_names(where: str, ours: str, peer: str) -> dict[str, str]:
    """The names of the ratios of two models."""
    return {kind: f"{kind} | {where} | {ours} / {peer}" for kind in FACTORS}


def ratios(where: str, pairs: list[tuple[str, str]], found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Ratios of pairs of ours and a peer's, as far as both were measured: model to ``time`` and perhaps ``accuracy``."""
    result = {}
    for ours, peer in pairs:
        if ours not in found or peer not in found:
            continue
        a, b, names = found[ours], found[peer], ratio_names(where, ours, peer)
        result[names["time"]] = a["time"] / b["time"]
        if "accuracy" in a and "accuracy" in b:
            result[names["error"]] = max(100.0 - a["accuracy"], LEAST_ERROR) / max(100.0 - b["accuracy"], LEAST_ERROR)
    return result


def keep(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of several runs: the median of each ratio, and its spread.

    Raises
    ------
    ValueError
        There is no run, or the runs are of several versions.
    """
    versions = sorted({run["version"] for run in runs})
    if len(versions) != 1:
        raise ValueError(f"runs must be of one version, not of {', '.join(versions) or 'none'}")
    names = list(dict.fromkeys(name for run in runs for name in run["ratios"]))
    values = {name: [run["ratios"][name] for run in runs if name in run["ratios"]] for name in names}
    kept = {
        name: {"median": _rounded(statistics.median(of)), "least": _rounded(min(of)), "largest": _rounded(max(of))}
        for name, of in values.items()
    }
    return {"version": versions[0], "machine": runs[0]["machine"], "runs": len(runs), "ratios": kept}


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def compare(kept: dict[str, Any], found: dict[str, float]) -> tuple[list[str], list[str]]:
    """Sentences about ratios that are worse than the kept ones, and the names of kept ones that the run has not."""
    worse = []
    for name, of in kept["ratios"].items():
        factor = FACTORS[name.split(" | ")[0]]
        if name in found and not found[name] <= factor * of["median"]:  # NaN is worse, too
            times = found[name] / of["median"]
            former = f"{of['median']:.3g} ({of['least']:.3g} to {of['largest']:.3g} in {kept['runs']} runs)"
            worse.append(f"{name}: {found[name]:.3g}, formerly {former}: {times:.2f} times as much, more than {factor}")
    return worse, [name for name in kept["ratios"] if name not in found]


def table(kept: dict[str, Any]) -> str:
    """The kept ratios as Markdown: a table for each place, with a column for each of ours, and a line for each peer."""
    cells: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    for name, of in kept["ratios"].items():
        kind, where, pair = name.split(" | ", 2)  # a pipeline of river has the sign, too
        ours, peer = pair.split(" / ")
        cells.setdefault(where, {}).setdefault((ours, peer), {})[kind] = format(of["median"], DIGITS[kind])
    shown = []
    for where, pairs in cells.items():
        columns, lines = list(dict.fromkeys(ours for ours, _ in pairs)), dict.fromkeys(peer for _, peer in pairs)
        shown += [f"| {where} | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
        for peer in lines:
            values = [", ".join(pairs.get((ours, peer), {}).values()) for ours in columns]
            shown.append(f"| {peer.replace('|', chr(92) + '|')} | {' | '.join(values)} |")
        shown.append("")
    return "\n".join(shown)
