"""benchmarks/peers.py stores and compares ratios of our times and errors to those of peers."""

import json
import runpy
from pathlib import Path

import pytest

from refused import refused

ROOT = Path(__file__).parents[1]
STORED = json.loads((ROOT / "benchmarks" / "ratios.json").read_text())
CODE = runpy.run_path(str(ROOT / "benchmarks" / "_ratios.py"))
compare_ratios, summarise_runs, compute_ratios, format_table, FACTORS = (
    CODE[name] for name in ("compare_ratios", "summarise_runs", "compute_ratios", "format_table", "FACTORS")
)

OURS = {"time": 2.0, "accuracy": 90.0}
PEER = {"time": 8.0, "accuracy": 80.0}
TIME, ERROR = "time | streams | ours / peer", "error | streams | ours / peer"


def store_ratios(*values):
    return summarise_runs([{"version": "1.0", "machine": {}, "ratios": {TIME: value}} for value in values])


def test_a_ratio_is_ours_over_the_peers():
    assert compute_ratios("streams", [("ours", "peer")], {"ours": OURS, "peer": PEER}) == {TIME: 0.25, ERROR: 0.5}


def test_a_pair_with_a_missing_model_has_no_ratio():
    figures = {"ours": {"time": 2.0}, "peer": {"time": 8.0}}
    assert compute_ratios("streams", [("ours", "peer"), ("ours", "other"), ("other", "peer")], figures) == {TIME: 0.25}


def test_an_error_of_zero_is_no_division_by_zero():
    perfect = {"time": 1.0, "accuracy": 100.0}
    assert compute_ratios("streams", [("ours", "peer")], {"ours": perfect, "peer": perfect})[ERROR] == 1.0


def test_the_median_of_runs_is_stored_with_its_range():
    stored = store_ratios(0.2, 0.5, 0.30001)
    assert (stored["version"], stored["runs"]) == ("1.0", 3)
    assert stored["ratios"] == {TIME: {"median": 0.3, "least": 0.2, "largest": 0.5}}


@pytest.mark.parametrize("versions", [[], ["1.0", "1.1"]])
def test_runs_of_several_versions_or_none_are_refused(versions):
    refused(
        "expected runs of one version",
        summarise_runs,
        [{"version": version, "machine": {}, "ratios": {}} for version in versions],
    )


@pytest.mark.parametrize(
    ("new_ratios", "worse", "absent"),
    [({TIME: FACTORS["time"]}, 0, []), ({TIME: 0.1}, 0, []), ({ERROR: 9.0}, 0, [TIME]), ({TIME: float("nan")}, 1, [])],
)
def test_a_ratio_is_worse_above_the_factor_or_if_it_is_nan(new_ratios, worse, absent):
    sentences, missing = compare_ratios(store_ratios(1.0), new_ratios)
    assert (len(sentences), missing) == (worse, absent)


def test_a_ratio_above_the_factor_is_worse_and_the_message_says_by_how_much():
    (sentence,), absent = compare_ratios(store_ratios(0.9, 1.0, 1.2), {TIME: 3.0})
    assert absent == []
    assert sentence == f"{TIME}: 3, formerly 1 (0.9 to 1.2 in 3 runs): 3.00 times as much, more than {FACTORS['time']}"


def test_errors_have_a_factor_of_their_own():
    stored = summarise_runs([{"version": "1.0", "machine": {}, "ratios": {TIME: 1.0, ERROR: 1.0}}])
    between = (FACTORS["time"] + FACTORS["error"]) / 2.0
    (sentence,), _ = compare_ratios(stored, {TIME: between, ERROR: between})
    assert sentence.startswith(ERROR)


def test_the_table_has_a_line_for_each_peer_and_a_column_for_each_of_ours():
    name = "time | rows | ours / river RBFSampler | LogisticRegression"
    other_name = "time | streams | another / its peer"
    stored = summarise_runs(
        [{"version": "1.0", "machine": {}, "ratios": {name: 0.0123456, TIME: 0.25, ERROR: 0.5, other_name: 2.0}}]
    )
    assert format_table(stored).splitlines() == [
        "| rows | ours |",
        "|---|---|",
        r"| river RBFSampler \| LogisticRegression | 0.012 |",
        "",
        "| streams | ours | another |",
        "|---|---|---|",
        "| peer | 0.25, 0.50 |  |",
        "| its peer |  | 2 |",
    ]


def test_stored_ratios_pass_against_their_own_runs():
    for bound in ("least", "largest"):
        assert compare_ratios(STORED, {name: spread[bound] for name, spread in STORED["ratios"].items()}) == ([], [])


def test_the_page_shows_the_stored_ratios():
    page = (ROOT / "docs" / "peers.md").read_text()
    assert format_table(STORED) in page
    for kind, factor in FACTORS.items():
        assert f"{factor} for {kind}" in page
