"""Inference of the notation of numbers in text."""

import pytest

from streamsvm.stream.schema.column_inference import infer_column, make_kind_option

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
        (["1st", "2nd", "3rd", "1st"], "category"),
        (["10 am", "11 am", "12 pm", "10 am"], "category"),
        (["2WD", "4WD", "2WD"], "category"),  # too few numbers
        (["12A", "12B", "13C", "12A"], "category"),
        (["18-25", "26-40", ">40", ">40"], "category"),
        (["<=50K", ">50K", ">50K"], "category"),
        (["A1", "B2", "A1"], "category"),
    ],
)
def test_the_notation_of_numbers_is_inferred(values, kind):
    options = infer_column("c", values).required_options
    assert options.get("columns", {}).get("c") == kind, options


@pytest.mark.parametrize("marker", ["#N/A", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "n/a"])
def test_errors_of_spreadsheets_are_missing(marker):
    assert infer_column("c", [1.0, marker, marker, 2.0, 3.0]).required_options == {"missing": [marker]}
    options = infer_column("c", ["5 kg", marker, "<6 kg", "7 kg"]).required_options
    assert options == {"columns": {"c": "quantity=<0.41|kg"}, "missing": [marker]}


def test_times_of_day_are_no_durations_without_a_telling_name():
    times = [f"{i % 24:02d}:{i % 60:02d}:00" for i in range(N)]
    assert infer_column("at", times).required_options != make_kind_option("at", "duration")
    assert infer_column("duration", times).required_options == make_kind_option("duration", "duration")


def test_an_ambiguous_decimal_mark_is_a_question():
    column = infer_column("c", [f"1,2{i:02d} kg" for i in range(N)])
    assert column.is_ambiguous
    assert "quantity=,|kg: these rows fit both" in column.note
