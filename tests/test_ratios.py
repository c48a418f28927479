"""The ratios of ours to a peer's that benchmarks/peers.py keeps and compares: not the times, which are of a machine."""

import json
import runpy
from pathlib import Path

import pytest

from refused import refused

ROOT = Path(__file__).parents[1]
KEPT = json.loads((ROOT / "benchmarks" / "ratios.json").read_text())
CODE = runpy.run_path(str(ROOT / "benchmarks" / "_ratios.py"))
compare, keep, ratios, table, FACTORS = (CODE[name] for name in ("compare", "keep", "ratios", "table", "FACTORS"))

OURS = {"time": 2.0, "accuracy": 90.0}
PEER = {"time": 8.0, "accuracy": 80.0}
TIME, ERROR = "time | streams | ours / peer", "error | streams | ours / peer"


def kept_of(*values):
    return keep([{"version": "1.0", "machine": {}, "ratios": {TIME: value}} for value in values])


def test_a_ratio_is_ours_over_the_peers():
    assert ratios("streams", [("ours", "peer")], {"ours": OURS, "peer": PEER}) == {TIME: 0.25, ERROR: 0.5}


def test_no_ratio_of_what_was_not_measured():
    found = {"ours": {"time": 2.0}, "peer": {"time": 8.0}}
    assert ratios("streams", [("ours", "peer"), ("ours", "other"), ("other", "peer")], found) == {TIME: 0.25}


def test_nobody_divides_by_an_error_of_nothing():
    perfect = {"time": 1.0, "accuracy": 100.0}
    assert ratios("streams", [("ours", "peer")], {"ours": perfect, "peer": perfect})[ERROR] == 1.0


def test_the_median_of_runs_is_kept_with_its_spread():
    kept = kept_of(0.2, 0.5, 0.30001)
    assert (kept["version"], kept["runs"]) == ("1.0", 3)
    assert kept["ratios"] == {TIME: {"median": 0.3, "least": 0.2, "largest": 0.5}}


@pytest.mark.parametrize("versions", [[], ["1.0", "1.1"]])
def test_runs_are_of_one_version(versions):
    refused("one version", keep, [{"version": version, "machine": {}, "ratios": {}} for version in versions])


@pytest.mark.parametrize(
    ("found", "worse", "absent"),
    [({TIME: FACTORS["time"]}, 0, []), ({TIME: 0.1}, 0, []), ({ERROR: 9.0}, 0, [TIME]), ({TIME: float("nan")}, 1, [])],
)
def test_a_ratio_is_as_good_within_the_factor_and_worse_where_it_is_no_number(found, worse, absent):
    sentences, missing = compare(kept_of(1.0), found)
    assert (len(sentences), missing) == (worse, absent)


def test_a_ratio_above_the_factor_is_worse_and_the_message_says_by_how_much():
    (sentence,), absent = compare(kept_of(0.9, 1.0, 1.2), {TIME: 3.0})
    assert absent == []
    assert sentence == f"{TIME}: 3, formerly 1 (0.9 to 1.2 in 3 runs): 3.00 times as much, more than {FACTORS['time']}"


def test_errors_have_a_factor_of_their_own():
    kept = keep([{"version": "1.0", "machine": {}, "ratios": {TIME: 1.0, ERROR: 1.0}}])
    between = (FACTORS["time"] + FACTORS["error"]) / 2.0
    (sentence,), _ = compare(kept, {TIME: between, ERROR: between})
    assert sentence.startswith(ERROR)


def test_the_table_has_a_line_for_each_peer_and_a_column_for_each_of_ours():
    name = "time | rows | ours / river RBFSampler | LogisticRegression"
    other = "time | streams | another / its peer"
    kept = keep([{"version": "1.0", "machine": {}, "ratios": {name: 0.0123456, TIME: 0.25, ERROR: 0.5, other: 2.0}}])
    assert table(kept).splitlines() == [
        "| rows | ours |",
        "|---|---|",
        r"| river RBFSampler \| LogisticRegression | 0.012 |",
        "",
        "| streams | ours | another |",
        "|---|---|---|",
        "| peer | 0.25, 0.50 |  |",
        "| its peer |  | 2 |",
    ]


def test_kept_ratios_do_not_fail_against_their_own_runs():
    for end in ("least", "largest"):
        assert compare(KEPT, {name: of[end] for name, of in KEPT["ratios"].items()}) == ([], [])


def test_the_page_shows_the_kept_ratios():
    page = (ROOT / "docs" / "peers.md").read_text()
    assert table(KEPT) in page
    for kind, factor in FACTORS.items():
        assert f"{factor} for {kind}" in page
