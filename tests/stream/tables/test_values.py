"""Parsing of numbers and nested objects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refused import raises
from streamsvm.stream.tables import TableParser
from streamsvm.stream.tables.quantities import normalize_number
from streamsvm.stream.tables.values import flatten_row, get_nested_value, parse_number


@given(st.floats(allow_nan=False) | st.integers(-(10**30), 10**30))
def test_parse_number_inverts_str(value):
    assert parse_number(str(value)) == float(value)


@pytest.mark.parametrize("text", ["2020_1", "1_0.5", "\u0663", "\uff11", "0x10", "1,5", "", "--1", "1e", "five"])
def test_texts_that_only_resemble_numbers_are_refused(text):
    raises(r".", parse_number, text)


@pytest.mark.parametrize(
    ("mark", "text", "value"),
    [
        *[(",", "1.209,28", 1209.28), (",", "77,5", 77.5), (",", "-3", -3.0), (",", "13 100,0", 13100.0), (",", "1'000", 1000.0)],
        *[(",", "1.209 €", 1209.0), (",", "1.5", "1.5"), (",", "0.512", "0.512"), (",", "a,b", "a,b"), (",", "1,2,3", "1,2,3")],
        *[(",", "(1.200,50)", -1200.5), (",", "1\u2019200,50", 1200.5), (",", "1\u2009200,50-", -1200.5)],
        *[(",", "1.234.567", 1234567.0), (".", "1,200", 1200.0), (".", "$1,209.28", 1209.28), (".", "-$5", -5.0)],
        *[(".", "12.5%", 12.5), (".", "1e3", 1000.0), (".", ".5", 0.5), (".", "950", 950.0), (".", "1,20", "1,20")],
        *[(".", "0,512", "0,512"), (".", "$", "$"), (".", "", None), (".", "(1,200.50)", -1200.5), (".", "$(1,200.50)", -1200.5)],
        *[(".", "($5)", -5.0), (".", "\u221212.50", -12.5), (".", "12.50-", -12.5), (".", "12.50 EUR-", -12.5)],
        *[(".", "EUR 12.50", 12.5), (".", "-CHF1'200", -1200.0), (".", "1,200 USD", 1200.0), (".", "1\u2019200.50", 1200.5)],
        *[(".", "+5", 5.0), (".", "-12.50-", "-12.50-"), (".", "(-5)", "(-5)"), (".", "(5", "(5"), (".", "()", "()")],
        *[(".", "XYZ 5", "XYZ 5"), (".", "EUR", "EUR"), (".", "e5", "e5"), (".", "\u0663", "\u0663")],
    ],
)
def test_formatted_numbers_are_parsed_by_decimal_mark(mark, text, value):
    assert TableParser(decimal=mark).parse_row([("a", text)]) == ({} if value is None else {"a": value})


@given(st.text(alphabet="-+0123456789.,eE%$€ \u2212\u2019()USD", max_size=12), st.sampled_from(".,"))
def test_normalized_numbers_are_floats_with_the_same_sign(text, mark):
    try:
        plain = normalize_number(text, mark)
    except ValueError:
        return
    float(plain)
    assert (plain[0] == "-") == any(sign in text.lower().replace("e-", "e") for sign in ("-", "\u2212", "("))


def test_nested_objects_are_flattened():
    assert flatten_row({"y": {"a": 1}, "b": {"c": [1], "d": {}}}, "y") == {"y": {"a": 1}, "b.c": [1]}
    assert get_nested_value({"a.b": None, "a": {"b": 1}}, "a.b") == 1
    raises(r"two values have the path 'a\.b'", flatten_row, {"a": {"b": 1}, "a.b": 2})
    deep = {"a": 1}
    for _ in range(16):
        deep = {"a": deep}
    raises("16 deep", flatten_row, deep)
