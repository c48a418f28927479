"""Inference of the kind of a column; whole numbers that are codes, and those that are quantities."""

import random
from datetime import datetime

import pytest

from streamsvm.stream.schema.column_inference import are_codes, infer_column, make_kind_option

CATEGORY, DROPPED = make_kind_option("c", "category"), make_kind_option("c", "drop")


@pytest.mark.parametrize(
    ("values", "kind", "answer"),
    [
        ([float(i) for i in range(30)], "number", None),
        ([1.0] * 30, "number", None),
        ([1.0, "NA", "N/A", "NA", "-", "none"], "number", {"missing": ["NA", "N/A", "-", "none"]}),
        ([1.0, "low", "low"], "number", {"missing": ["low"]}),
        ([*map(float, range(30)), "3\0"], "number", None),  # which no flag can name: the row is refused
        ([1.0, "a", "b", "c", "d"], "string", CATEGORY),
        (["NA", "NA"], "string", CATEGORY),
        ([1.0, [1, 2]], "nested", DROPPED),
        (["a", "b", "a"], "string", CATEGORY),
        ([f"n{i}" for i in range(30)], "string", DROPPED),
        (["2024-01-01", "2024-01-02T03:04:05Z"], "date", make_kind_option("c", "date")),
        (["2024-03-30 12:00 CET", "2024-03-31 12:00 PST"], "string", DROPPED),
        (["2024-03-30 12:00 CET", "2024-03-31 12:00 CEST"], "date", make_kind_option("c", "date=%Y-%m-%d %H:%M CET")),
        (["31.12.2024", "01.02.2024"], "date", make_kind_option("c", "date=%d.%m.%Y")),
        ([datetime(2024, 1, 1)], "date", make_kind_option("c", "date")),
        (["1", "2.5"], "number", make_kind_option("c", "number")),
        ([True, "1", "0"], "number", make_kind_option("c", "number")),
        ([[1, 2]], "nested", DROPPED),
        ([True, False], "number", None),
        ([], "number", None),
    ],
)
def test_the_kind_of_a_column_is_inferred_from_its_values(values, kind, answer):
    column = infer_column("c", values)
    assert (column.kind, column.required_options) == (kind, answer or {})


@pytest.mark.parametrize(
    ("values", "note", "answer"),
    [
        (["$5", "$1,200.50", 7.0], "numbers as people write them", {"decimal": "."}),
        (["5,3 %", "12 %"], "numbers with a decimal comma", {"decimal": ","}),
        (["$5", "€6.50", "$5"], "numbers in several units: USD, EUR", CATEGORY),
        (["5 %", "5 EUR", "5 EUR"], "numbers in several units: %, EUR", CATEGORY),
        (["5 g", "5 kg", "5 kg"], "", CATEGORY),
        (["A 5", "A 6", "A 5"], "", CATEGORY),
        ([f"v5.{i}.{i}1" for i in range(30)], "numbers or dates written in a way that is not read", DROPPED),
    ],
)
def test_columns_with_different_units_are_not_numeric(values, note, answer):
    """Values with different units would become the same number."""
    column = infer_column("c", values)
    assert (column.note, column.required_options) == (note, answer)


@pytest.mark.parametrize(
    ("values", "words", "is_ambiguous"),
    [
        (["2024-01-01T00:00", "2024-01-02T00:00Z"], "in some rows without a time zone, which is UTC then", False),
        (["2024-01-01 00:00 CET"], "with the zone name CET, which is not read", False),
        (["2024-03-30 12:00 CET", "2024-03-31 12:00 PST"], "zone names CET and PST, whose offsets are unknown", True),
        (["2024-03-30 12:00 CET", "2024-03-31 12:00 CEST"], "with the zone names CEST and CET, which are not read", False),
    ],
)
def test_time_zones_are_noted(values, words, is_ambiguous):
    column = infer_column("c", values)
    assert words in column.note
    assert column.is_ambiguous == is_ambiguous


N = 200
rng = random.Random(5)
#: Identifiers of roles as assigned by a system: in a few ranges, consecutively.
ASSIGNED = [start + rng.randrange(400) for start in (117_900, 119_000, 123_000, 290_800) for _ in range(30)]
GROUPS = [rng.randrange(20_000, 2_000_000) for _ in range(25)]  # a quantity of each of some towns
ZIPS = [rng.randrange(10_000, 99_999) for _ in range(12)]


def draw_rows(values, power=1.0):
    return [values[int(len(values) * rng.random() ** power)] for _ in range(N)]


CODES = {
    "role": draw_rows(ASSIGNED, 2.0),
    "manager_id": draw_rows([rng.randrange(100, 300_000) for _ in range(400)]),
    "LocationID": draw_rows(range(1, 264)),
    "zip": draw_rows(ZIPS),
    "area code": draw_rows([408, 415, 510]),
    "PostCode": rng.sample(range(10_000, 99_999), N),
}
QUANTITIES = {
    "count": [int(rng.expovariate(1e-4)) for _ in range(N)],
    "year": draw_rows(range(1990, 2024)),
    "stars": draw_rows(range(1, 6)),
    "asked": draw_rows([round(price, -3) for price in GROUPS]),
    "cents": [100 * rng.randrange(100, 300) + 99 for _ in range(N)],
    "tax": draw_rows([21_000, 15_000, 18_550]),
    "population": draw_rows(GROUPS),
    "inhabitants": sorted(draw_rows(GROUPS)),
    "rank": rng.sample(range(100_000), N),
    "sensor": [20_000 + int(rng.gauss(0, 300)) for _ in range(N)],
    "squared": [rng.randrange(100, 160) ** 2 for _ in range(N)],
    "at": [1_700_000_000 + 7 * (i // 3) for i in draw_rows(range(N))],
    "gain": draw_rows([0] * 30 + [7_688, 15_024, 99_999, 5_178]),
    "change": [rng.randrange(-20_000, 20_000) for _ in range(N)],
    "odometer": [rng.randrange(10_000, 90_000) for _ in range(N)],
}


@pytest.mark.parametrize("name", CODES)
def test_codes_are_recognised(name):
    column = infer_column(name, list(map(float, CODES[name])))
    assert (column.kind, column.note, column.required_options) == ("number", "looks like a code", {})
    assert column.suggested_options == make_kind_option(name, "category")
    assert ".0" not in column.values


@pytest.mark.parametrize("name", QUANTITIES)
def test_quantities_stay_numbers(name):
    assert not are_codes(name, QUANTITIES[name])
    assert infer_column(name, QUANTITIES[name]).suggested_options == {}


def test_codes_are_not_recognised_in_few_rows():
    assert infer_column("role", CODES["role"][:15]).suggested_options == {}


def test_unique_ids_are_dropped():
    ids = rng.sample(range(1000), 60)
    assert infer_column("customer_id", ids).suggested_options == make_kind_option("customer_id", "drop")
    assert infer_column("customer", ids).suggested_options == {}


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (["1.6L", "2.0L", "3.0L", "2.5L V6"] * 20, {"columns": {"a": "category"}}),
        ([1.0, 2.0, 4.0, "3 b-4"] * 20, {"columns": {"a": "category"}}),
        ([*["1.6L", "2.0L", "3.0L"] * 20, "2.5L V6"], {"columns": {"a": "quantity=L"}, "missing": ["2.5L V6"]}),  # in few rows
        ([*map(float, range(40)), "3 b-4"], {"missing": ["3 b-4"]}),
        ([1.0, 2.0, 4.0, "none"] * 20, {"missing": ["none"]}),
        (["2024-01-31", "2024-02-01", "0000-00-00"] * 20, {"columns": {"a": "date"}, "missing": ["0000-00-00"]}),
        (["31.01.2024", "01.02.2024", "99.99.9999"] * 20, {"columns": {"a": "date=%d.%m.%Y"}, "missing": ["99.99.9999"]}),
    ],
)
def test_a_text_with_digits_in_many_rows_is_no_marker(values, options):
    assert infer_column("a", values).required_options == options


def test_whole_numbers_beside_texts_are_shown_as_they_are_written():
    assert infer_column("a", [12.0, "x", 12.0, "y", "z", "u", 3.5] * 9).values == "12, x, y, ... (6)"
