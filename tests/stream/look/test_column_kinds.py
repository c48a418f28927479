"""What a column is taken for, by its values."""

from datetime import datetime

import pytest

from streamsvm.stream.look.column_kinds import column_of


@pytest.mark.parametrize(
    ("values", "kind", "answer"),
    [
        ([float(i) for i in range(30)], "number", None),
        ([1.0] * 30, "number", None),
        ([1.0, "NA", 2.0, "-", 3.0, 4.0], "number", ("missing", ["NA", "-"])),
        ([1.0, "NA", "N/A", "NA", "-", "none"], "number", ("missing", ["NA", "N/A", "-", "none"])),
        ([1.0, "low", "low"], "number", ("missing", ["low"])),
        ([*map(float, range(30)), "3\0"], "number", None),  # which no flag can name: the row is refused
        ([1.0, "a", "b", "c", "d"], "text", ("categorical", "c")),
        (["NA", "NA"], "text", ("categorical", "c")),
        ([1.0, [1, 2]], "nested", ("drop", "c")),
        (["a", "b", "a"], "text", ("categorical", "c")),
        ([f"n{i}" for i in range(30)], "text", ("drop", "c")),
        (["2024-01-01", "2024-01-02T03:04:05Z"], "date", ("dates", ("c", None))),
        (["2024-03-30 12:00 CET", "2024-03-31 12:00 CEST"], "text", ("drop", "c")),
        (["31.12.2024", "01.02.2024"], "date", ("dates", ("c", "%d.%m.%Y"))),
        (["12/31/2024"], "date", ("dates", ("c", "%m/%d/%Y"))),
        ([datetime(2024, 1, 1)], "date", ("dates", ("c", None))),
        (["1", "2.5"], "number", ("features", "c")),
        ([[1, 2]], "nested", ("drop", "c")),
        ([True, False], "number", None),
        ([], "number", None),
    ],
)
def test_what_columns_are_taken_for(values, kind, answer):
    column = column_of("c", values)
    assert (column.kind, column.answers) == (kind, () if answer is None else (answer,))


@pytest.mark.parametrize(
    ("values", "note", "answer"),
    [
        (["$5", "$1,200.50", 7.0], "numbers as people write them", ("decimal", ".")),
        (["$5", "6 USD", "7"], "numbers as people write them", ("decimal", ".")),
        (["5,3 %", "12 %"], "numbers with a decimal comma", ("decimal", ",")),
        (["$5", "€6.50", "$5"], "numbers in several units: USD, EUR", ("categorical", "c")),
        (["EUR 5", "CHF 5", "CHF 7"], "numbers in several units: EUR, CHF", ("categorical", "c")),
        (["5 %", "5 EUR", "5 EUR"], "numbers in several units: %, EUR", ("categorical", "c")),
        (["71.2 kg", "80 kg", "80 kg"], "numbers with the unit 'kg', which is not read", ("categorical", "c")),
        (["-5,3 °C", "0 °C", "0 °C"], "numbers with the unit '°C', which is not read", ("categorical", "c")),
        ([f"{i}.5km" for i in range(30)], "numbers with the unit 'km', which is not read", ("drop", "c")),
        (["5 g", "5 kg", "5 kg"], "", ("categorical", "c")),
        (["1st", "2nd", "2nd"], "", ("categorical", "c")),
        (["A 5", "A 6", "A 5"], "", ("categorical", "c")),
        ([f"v5.{i}.{i}1" for i in range(30)], "numbers written in a way that is not read", ("drop", "c")),
    ],
)
def test_units_of_numbers(values, note, answer):
    """No reading knows the unit of a column: two of them would be one number, as would a later row with another."""
    column = column_of("c", values)
    assert (column.note, column.answers) == (note, (answer,))


@pytest.mark.parametrize(
    ("values", "words", "is_open"),
    [
        (["2024-01-01T00:00", "2024-01-02T00:00Z"], "in some rows without a time zone, which is UTC then", False),
        (["2024-01-01 00:00 CET"], "with the zone name CET, which is not read", False),
        (["2024-03-30 12:00 CET", "2024-03-31 12:00 CEST"], "zone names CEST and CET, of which no format tells the offset", True),
    ],
)
def test_what_is_odd_about_time_zones(values, words, is_open):
    column = column_of("c", values)
    assert words in column.note
    assert column.is_open == is_open
