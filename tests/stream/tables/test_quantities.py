"""Numbers in other notations: limits, units, flags, magnitudes, durations, hexadecimal, and those of Fortran."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refused import raises
from streamsvm.stream.schema.notation import infer_number_kinds
from streamsvm.stream.tables import TableParser
from streamsvm.stream.tables.quantities import is_limit, make_number_parser, parse_duration, parse_quantity


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *[("quantity", "<0.01", 0.01), ("quantity", "> 20", 20.0), ("quantity=<5", ">20", 25.0), ("quantity=<5", "≥20", 25.0)],
        *[("quantity=<5", "<20", 15.0), ("quantity=<5", "less than 20", 15.0), ("quantity=<5", "65 and over", 70.0)],
        *[("quantity=<5|year|years", "< 1 year", -4.0), ("quantity=<5|year|years", "10+ years", 15.0)],
        *[("quantity=kg", "71.5kg", 71.5), ("quantity=kg", "71.5", 71.5), ("quantity=kg", "71.5 g", "71.5 g")],
        *[("quantity=*|e", "12.5*", 12.5), ("quantity=*|e", "3.1 e", 3.1), ("quantity=e", "1e3", 1000.0)],
        *[("quantity=,|kg", "1.200,5 kg", 1200.5), ("quantity=.", "$1,200", 1200.0), ("quantity=,", "0.512", "0.512")],
        *[("quantity=,", "7.064e+02", "7.064e+02"), ("quantity=,", "7,064e+02", 706.4), ("quantity=.", "1,200 EUR", 1200.0)],
        *[("quantity", "0x1F", 31.0), ("quantity", "-0xff", -255.0), ("quantity", "0x", "0x"), ("quantity", "0x1_F", "0x1_F")],
        *[("quantity", "1.5D+03", 1500.0), ("quantity", ".5d-1", 0.05), ("quantity", "D3", "D3")],
        *[("quantity", "1.2K", 1200.0), ("quantity", "3M", 3e6), ("quantity", "M", "M"), ("quantity", "\u22125", -5.0)],
        *[
            ("quantity", "heavy", "heavy"),
            ("quantity", "<", "<"),
            ("quantity", "12 kg", "12 kg"),
        ],
        *[
            ("number", "\u00a012.5", 12.5),
            ("number", "12.5\u202f", 12.5),
            ("number", "0x1F", "0x1F"),
            ("number", "<5", "<5"),
            ("quantity", " 12\u202f", 12.0),
        ],
        *[("quantity", "\uff0d\uff11\uff0e\uff15", -1.5), ("quantity", "\u0661\u0662", 12.0), ("quantity", "\u20135", -5.0)],
        *[("quantity", "12\u00b2", "12\u00b2"), ("quantity", "ca. 12", 12.0), ("quantity=.", "12\u2007345", 12345.0)],
        *[("quantity=.", "\u20b914,82,514.50", 1482514.5), ("quantity=.", "1,2,345", "1,2,345")],
        *[("quantity=,", "14,82,514", "14,82,514"), ("quantity=,", "14.82.514", "14.82.514")],
        *[("duration", "1h39", 5940.0), ("duration", "1 Std. 39 Min.", 5940.0), ("duration", "2 heures 5 minutes", 7500.0)],
        *[("duration", "1:30:00", 5400.0), ("duration", "59:30.5", 3570.5), ("duration", "100:00:00", 360_000.0)],
        *[
            ("duration", "2 days 03:00", 183_600.0),
            ("duration", "1 day, 2:03:04", 93_784.0),
            ("duration", "1.02:00:00", 93_600.0),
        ],
        *[("duration", "0 days 00:00:01.5", 1.5), ("duration", "-1 days +23:59:59", -1.0), ("duration", "PT1H30M", 5400.0)],
        *[("duration", "P1DT1S", 86_401.0), ("duration", "PT5M", 300.0), ("duration", "P5M", "P5M"), ("duration", "P1Y", "P1Y")],
        *[("duration", "1h 30m", 5400.0), ("duration", "1 hr 5 min 3 sec", 3903.0), ("duration", "90 min", 5400.0)],
        *[
            ("duration", "2 weeks", 1_209_600.0),
            ("duration", "90", 90.0),
            ("duration", " 1 ", 1.0),
            ("duration", "1.5", "1.5"),
            ("duration", "PT", "PT"),
            ("duration", "1h 30m 10", "1h 30m 10"),
            ("duration", "", None),
        ],
    ],
)
def test_numbers_in_other_notations_are_parsed(kind, text, value):
    assert TableParser({"a": kind}).parse_row([("a", text)]) == ({} if value is None else {"a": value})


@given(st.text(alphabet="0123456789.:,<>=+-*xXdDeEhmsPTKM kg\u00a0", max_size=14))
def test_a_text_is_a_finite_number_or_refused(text):
    for parse in (parse_quantity, parse_duration, make_number_parser("quantity=,|<5|kg|e")):
        try:
            value = parse(text)
        except ValueError as error:
            assert "not a" in str(error) or "could not convert" in str(error)
        else:
            assert isinstance(value, float)


@given(st.integers(0, 10**7), st.sampled_from(["clock", "pandas", "words", "iso"]))
def test_durations_in_all_notations_are_equal(seconds, form):
    (minutes, s), days = divmod(seconds, 60), seconds // 86_400
    hours, m = divmod(minutes, 60)
    h = hours % 24
    texts = {
        "clock": f"{hours}:{m:02d}:{s:02d}",
        "pandas": f"{days} days {h:02d}:{m:02d}:{s:02d}",
        "words": f"{days} days {h} hours {m} min {s} s",
        "iso": f"P{days}DT{h}H{m}M{s}S",
    }
    assert parse_duration(texts[form]) == seconds


def test_the_label_has_the_kind_of_a_number():
    parser = TableParser("y:quantity=.|<5", missing="NA", label="y")
    assert [parser.parse_label(y) for y in ("$1,200", ">20", "NA", "spam", 3, None)] == [1200.0, 25.0, None, "spam", 3, None]
    assert TableParser("y:number=unknown", label="y").parse_label("unknown") is None
    raises("duration", TableParser, "y:duration=s")


LONG = [sign + digits + end for sign in ("", "-", "<") for digits in ("1", "1.5", "$5") for end in ("{}x", "{}1", "{}kg")]
LONG = [text.format(blanks) for text in LONG for blanks in (" " * 100_000, "\u00a0" * 100_000, "\t \n" * 30_000)]
LONG += [
    "1" + ",000" * 25_000 + "x",
    "1" + ",000" * 12_000 + "e" + "5" * 50_000,
    "1" + ".000" * 25_000 + "x",
    "1" + " 000" * 25_000,
]
LONG += ["1" * 100_000 + "x", "1" * 50_000 + "." + "1" * 50_000 + "x", "1e" + "1" * 100_000 + "x", "over " * 20_000 + "1"]


@pytest.mark.parametrize("door", ["quantity", "quantity=kg", "quantity=.|kg", "number .", "number ,", "label", "kinds", "limit"])
def test_long_texts_are_no_numbers_and_take_no_time(door):
    """They took minutes, each."""
    kind, _, mark = door.partition(" ")
    parser = TableParser({"a": kind if mark or "quantity" in kind else "quantity=kg"}, decimal=mark or None, label="a")
    parse = parser.parse_label if door == "label" else parser.get_value_parser("a")
    began = time.process_time()
    for text in LONG:
        if door == "kinds":
            assert infer_number_kinds("a", [], ["1 kg", "2 kg", "3 kg", text]) == []
        elif door == "limit":
            assert not is_limit(text)
        elif not text.endswith("kg") or mark:
            assert parse(text) == text.strip()
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("kind", ["quantity", "quantity=kg", "quantity=.", "number"])
def test_plain_numbers_may_be_long(kind):
    parse = TableParser({"a": kind}, decimal="." if kind == "number" else None).get_value_parser("a")
    for text in ("1" * 64, "-" + "1" * 300, "0." + "1" * 10_000, "1" * 10_000, "1" * 70 + "e-60"):
        assert parse(text) == float(text)
    assert parse("<" + "1" * 63) == (float("1" * 63) if kind != "number" else "<" + "1" * 63)
    assert parse("<" + "1" * 64) == "<" + "1" * 64
