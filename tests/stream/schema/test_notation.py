"""Inference of the notation of numbers in text."""

import pandas as pd
import pytest

from streamsvm import load, table_model
from streamsvm.stream.schema.column_inference import infer_column, make_kind_option
from streamsvm.stream.tables.quantities import make_number_parser

N = 30


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([*(f"{i}.5 kg" for i in range(N)), "80kg"], "quantity=kg"),
        ([f"{i},5 km/h" for i in range(N)], "quantity=,|km/h"),
        (["5 m3", "6 m3", "7 m3"], "quantity=m3"),
        ([*map(float, range(20, 60)), "65+", "65+"], "quantity=<6.3"),
        (["~5.1", "~6", "7.5"], "quantity"),
        (["< 1 year", "1 year", *(f"{i} years" for i in range(2, 10)), "10+ years"], "quantity=<1.5|year|years"),
        ([*map(float, range(1, 21)), "<1", ">20"], "quantity=<3.1"),
        ([*map(float, range(N)), "12.5*", "3.1 e", "4 p"], "quantity=*|e|p"),
        ([f"0x{i:04X}" for i in range(N)], "quantity"),
        ([f"{i}.5D-02" for i in range(N)], "quantity"),
        (["1.2K", "500", "3.4M", "7"], "quantity"),
        ([f"{i // 60 + 1}:{i % 60:02d}:00" for i in range(0, 6000, 7)], "duration"),
        ([f"0 days 00:{i:02d}:00" for i in range(N)], "duration"),
        ([f"PT{i}M" for i in range(N)], "duration"),
        ([f"{i}h {i}m" for i in range(N)], "duration"),
        (["45 min", "1 h", "2 h 5 min"], "duration"),
        (["5 g", "7 g", "5 kg"], "category"),  # units that differ
        ([*map(float, range(N)), "5 g", "5 kg"], None),
        ([*map(float, range(N)), "2K", "3k"], "quantity"),
        ([*(i / 7 for i in range(N * 20)), "1,5"], None),  # a typing error among numbers with points
        (["1st", "2nd", "3rd", "1st"], "category"),
        (["10 am", "11 am", "12 pm", "10 am"], "category"),
        (["2WD", "4WD", "2WD"], "category"),  # too few numbers
        (["12A", "12B", "13C", "12A"], "category"),
        (["18-25", "26-40", ">40", ">40"], "category"),
        (["<=50K", ">50K", ">50K"], "category"),
        (["A1", "B2", "A1"], "category"),
        ([f"{i} {('USD', 'JPY', 'EUR')[i % 3]}" for i in range(N)] * 2, "category"),  # currencies that differ
        ([f"{'$€'[i % 2]}{i}" for i in range(N)] * 2, "category"),
        ([f"{i}%" if i % 2 else f"${i}" for i in range(N)] * 2, "category"),
        ([f"{i} USD" if i % 2 else f"{i} Fr." for i in range(N)] * 2, "category"),
        ([f"{i} %" if i % 2 else f"{i} kg" for i in range(N)] * 2, "category"),
        ([*map(float, range(N)), *(f"{i} {('USD', 'EUR')[i % 2]}" for i in range(8))] * 2, "category"),
        ([f"${i}" if i % 2 else f"{i} USD" for i in range(N)], None),  # one currency
        ([f"€{i}.5M" if i % 2 else f"€{i}00K" for i in range(1, N)], "quantity=."),
        ([f"{i}{'AB'[i % 2]}" for i in range(N)] * 2, "category"),  # house numbers, stages and lots
        ([*map(float, range(N)), "7A", "7B", "9C", "9B"] * 2, "category"),
        ([1.0, 2.0, 3.0, "3B", "2B"] * 9, "category"),
        ([1.0, 2.0, 3.0, "3M"] * 9, "category"),
        ([12.0, 14.0, "377M", "52K"] * 9, "category"),
        ([12.0, 900.0, 0.0, "377M", "52K"] * 9, "quantity"),
        ([0.0, "1.2K", "3.4M"] * 9, "quantity"),
        ([f"{i} views" if i % 2 else f"{i}.5K views" for i in range(N)] * 2, "category"),  # units that differ by a factor
        ([f"{i}00 B" if i % 2 else f"{i} MB" for i in range(N)] * 2, "category"),
    ],
)
def test_the_notation_of_numbers_is_inferred(values, kind):
    options = infer_column("c", values).required_options
    assert options.get("columns", {}).get("c") == kind, options


def test_a_letter_beside_flags_is_no_magnitude():
    parse_house, parse_views, parse_any = map(make_number_parser, ("quantity=A|B", "quantity=*", "quantity"))
    assert (parse_house("7B"), parse_house("7A"), parse_views("7B*"), parse_any("7B")) == (7.0, 7.0, 7e9, 7e9)
    with pytest.raises(ValueError, match="'7M' is not a number"):
        parse_house("7M")


@pytest.mark.parametrize("marker", ["#N/A", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "n/a"])
def test_errors_of_spreadsheets_are_missing(marker):
    assert infer_column("c", [1.0, marker, marker, 2.0, 3.0]).required_options == {"missing": [marker]}
    options = infer_column("c", ["5 kg", marker, "<6 kg", "7 kg"]).required_options
    assert options == {"columns": {"c": "quantity=<0.41|kg"}, "missing": [marker]}


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_errors_of_spreadsheets_are_no_categories(form, call, tmp_path):
    cities = [["Oslo", "#N/A", "Rome", "#REF!"][i % 4] for i in range(60)]
    table, path = pd.DataFrame({"city": cities, "a": [i % 7 for i in range(60)], "y": [0, 1, 1] * 20}), tmp_path / f"rows.{form}"
    write = {"csv": table.to_csv, "jsonl": table.to_json, "parquet": table.to_parquet}[form]
    write(path, **{"csv": {"index": False}, "jsonl": {"orient": "records", "lines": True}}.get(form, {}))
    call("learn", path, "--label", "y", "--learner", "bsgd,budget=10", "--checkpoint", tmp_path / "state", "--quiet")
    encoder = load(tmp_path / "state")["TableEncoder"]
    assert (encoder.columns, encoder.missing) == ({"city": "category"}, ["#N/A", "#REF!"])
    assert table_model(table, "y").schema.options == {"columns": {"city": "category"}, "missing": ["#N/A", "#REF!"]}


@pytest.mark.parametrize("words", [["true", "false"], ["TRUE", "FALSE"], ["yes", "no"]])
def test_truth_values_beside_0_and_1_are_no_marks_of_missing_values(words):
    column = infer_column("c", [1, words[0], 0, words[1]] * 9)
    assert column.required_options == make_kind_option("c", "category")
    assert infer_column("c", [1.0, 7.0, words[0], 3.0] * 9).required_options == {"missing": [words[0]]}


@pytest.mark.parametrize(
    ("write", "is_pointed_out"),
    [
        (lambda i: f"{i}.5 \u00b1 0.1", True),
        (lambda i: f"'{i}.5", True),
        (lambda i: f"{i}.5ms" if i % 2 else f"{i}.5s", True),
        (lambda i: f"2024-01-{i + 1:02d}" if i % 2 else f"{i + 1:02d}.01.2024", True),
        (lambda i: f"{i + 1:02d}/30/2024 3PM", True),
        (lambda i: f"{i} Main St.", False),
        (lambda i: f"SKU-{i}", False),
        (lambda i: f"10.0.0.{i}", False),
        (lambda i: f"1.{i}.2", False),
        (lambda i: f"{i % 5}.5 \u00b1 0.1", False),  # few
    ],
)
def test_categories_that_are_probably_numbers_or_dates_are_pointed_out(write, is_pointed_out):
    column = infer_column("c", [write(i % 28) for i in range(60)])
    assert column.required_options == make_kind_option("c", "category")
    assert ("that is not read" in column.note) is is_pointed_out


def test_a_mark_between_thousands_is_no_decimal_mark():
    """929 stands beside 1.482: decimals would be followed by less than three digits in some rows."""
    numbers = [f"{800 + 13 * i:,} €" for i in range(40)]
    assert infer_column("c", numbers).required_options == {"decimal": "."}
    column = infer_column("c", [number.replace(",", ".") for number in numbers])
    assert (column.required_options, column.is_ambiguous) == ({"decimal": ","}, False)
    only_thousands = infer_column("c", [f"{1000 + 13 * i:,} €".replace(",", ".") for i in range(40)])
    assert (only_thousands.required_options, only_thousands.is_ambiguous) == ({"decimal": ","}, True)


def test_times_of_day_are_no_durations_without_a_telling_name():
    times = [f"{i % 24:02d}:{i % 60:02d}:00" for i in range(N)]
    assert infer_column("at", times).required_options != make_kind_option("at", "duration")
    assert infer_column("duration", times).required_options == make_kind_option("duration", "duration")


def test_an_ambiguous_decimal_mark_is_a_question():
    column = infer_column("c", [f"1,2{i:02d} kg" for i in range(N)])
    assert column.is_ambiguous
    assert "quantity=,|kg: these rows fit both" in column.note
