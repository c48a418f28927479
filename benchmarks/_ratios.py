"""Stores ratios of our times and errors to those of a peer in the same run, and compares new ratios with the stored ones.

A ratio has a name, ``kind | where | ours / peer``. Its kind is ``time`` (CPU time) or ``error`` (100 % minus the accuracy): less
is better. Seconds depend on the machine, and are not stored.
"""

from __future__ import annotations

import statistics
from typing import Any

#: A new ratio counts as worse if it exceeds the stored one by this factor.
#: In five runs on a busy machine, the largest ratio was up to 1.62 times the median.
FACTORS = {"time": 2.0, "error": 1.1}
DIGITS = {"time": ".2g", "error": ".2f"}
MIN_ERROR = 0.01  # percent; avoids a division by 0


def make_ratio_names(where: str, ours: str, peer: str) -> dict[str, str]:
    """Return the name of each kind of ratio of two models."""
    return {kind: f"{kind} | {where} | {ours} / {peer}" for kind in FACTORS}


def compute_ratios(where: str, pairs: list[tuple[str, str]], figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the ratios of pairs of models, ours and a peer, by their names. Pairs with a missing model are left out.

    ``figures`` has the ``time`` of each model, and ``accuracy`` (percent) where it was measured.
    """
    ratios = {}
    for ours, peer in pairs:
        if ours not in figures or peer not in figures:
            continue
        own, other, names = figures[ours], figures[peer], make_ratio_names(where, ours, peer)
        ratios[names["time"]] = own["time"] / other["time"]
        if "accuracy" in own and "accuracy" in other:
            ratios[names["error"]] = max(100.0 - own["accuracy"], MIN_ERROR) / max(100.0 - other["accuracy"], MIN_ERROR)
    return ratios


def summarise_runs(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of ``ratios.json`` for several runs: the median of each ratio, and its range.

    Raises
    ------
    ValueError
        If there are no runs, or their versions differ.
    """
    versions = sorted({run["version"] for run in runs})
    if len(versions) != 1:
        raise ValueError(f"expected runs of one version, got versions: {', '.join(versions) or 'no runs'}")
    names = list(dict.fromkeys(name for run in runs for name in run["ratios"]))
    values = {name: [run["ratios"][name] for run in runs if name in run["ratios"]] for name in names}
    kept = {
        name: {
            "median": _round_digits(statistics.median(run_values)),
            "least": _round_digits(min(run_values)),
            "largest": _round_digits(max(run_values)),
        }
        for name, run_values in values.items()
    }
    return {"version": versions[0], "machine": runs[0]["machine"], "runs": len(runs), "ratios": kept}


def _round_digits(value: float) -> float:
    return float(f"{value:.3g}")


def compare_ratios(kept: dict[str, Any], new_ratios: dict[str, float]) -> tuple[list[str], list[str]]:
    """Return a sentence for each ratio that is worse than the stored one, and the names of stored ratios that are missing."""
    worse = []
    for name, spread in kept["ratios"].items():
        factor = FACTORS[name.split(" | ")[0]]
        if name in new_ratios and not new_ratios[name] <= factor * spread["median"]:  # also true for NaN
            times = new_ratios[name] / spread["median"]
            former = f"{spread['median']:.3g} ({spread['least']:.3g} to {spread['largest']:.3g} in {kept['runs']} runs)"
            worse.append(f"{name}: {new_ratios[name]:.3g}, formerly {former}: {times:.2f} times as much, more than {factor}")
    return worse, [name for name in kept["ratios"] if name not in new_ratios]


def format_table(kept: dict[str, Any]) -> str:
    """Return the stored ratios as Markdown tables, one for each part: a column for each of our models, a line for each peer."""
    cells: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    for name, spread in kept["ratios"].items():
        kind, where, pair = name.split(" | ", 2)  # names of river's pipelines contain the separator, too
        ours, peer = pair.split(" / ")
        cells.setdefault(where, {}).setdefault((ours, peer), {})[kind] = format(spread["median"], DIGITS[kind])
    output_lines = []
    for where, pairs in cells.items():
        columns, peers = list(dict.fromkeys(ours for ours, _ in pairs)), dict.fromkeys(peer for _, peer in pairs)
        output_lines += [f"| {where} | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
        for peer in peers:
            values = [", ".join(pairs.get((ours, peer), {}).values()) for ours in columns]
            output_lines.append(f"| {peer.replace('|', chr(92) + '|')} | {' | '.join(values)} |")
        output_lines.append("")
    return "\n".join(output_lines)
