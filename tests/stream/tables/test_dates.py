"""Parsing of dates, and the formats in which they are written."""

import contextlib
import math
import re
from datetime import UTC, datetime, time, timedelta

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from refused import raises
from streamsvm.stream import open_source
from streamsvm.stream.tables.date_formats import find_date_formats
from streamsvm.stream.tables.dates import is_date, parse_datetime, parse_iso_seconds, to_seconds


@given(st.datetimes(datetime(1974, 1, 1), datetime(2099, 1, 1)), st.sampled_from(["s", "ms", "us", "ns"]))
def test_the_unit_of_a_numeric_time_is_inferred_from_its_size(time, unit):
    seconds = (time - datetime(1970, 1, 1)) / timedelta(seconds=1)
    value = seconds * {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    assert math.isclose(to_seconds(value), seconds, rel_tol=1e-12)
    assert math.isclose(to_seconds(repr(value)), seconds, rel_tol=1e-12)
    assert math.isclose(to_seconds(value, unit), seconds, rel_tol=1e-12)


def test_numeric_times_in_text_are_not_parsed_as_iso_8601():
    for seconds in range(1_709_251_200, 1_719_251_200, 86_399):
        assert to_seconds(str(1000 * seconds)) == seconds


def test_whole_numbers_may_be_years_and_days():
    for value, text in ((2024, "2024-01-01"), (20240131, "2024-01-31"), ("20240131", "2024-01-31")):
        assert to_seconds(value) == to_seconds(text)
    assert to_seconds(20240131.0) == 20240131.0  # floats are seconds already
    raises("day is out of range", to_seconds, 20240231)


DAYS = ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d %b %Y", "%b %d, %Y", "%d-%B-%Y", "%d/%m/%y", "%a, %d %b %Y", "%Y/%m/%d"]
CLOCKS = ["", " %H:%M", " %H:%M:%S", " %I:%M %p", ":%H:%M:%S", " %H:%M:%S.%f", " %H:%M:%S UTC", " %H:%M:%S %z"]


#: Functions that format a time.
FORMS = [lambda moment, sep=sep, to=to: moment.isoformat(sep, to) for sep in " T" for to in ("minutes", "seconds")]
FORMS.append(lambda moment: moment.date().isoformat())
digits = st.text("01235", min_size=8, max_size=8).map(lambda text: f"{text[:4]}-{text[4:6]}-{text[6:]}")


@given(st.sampled_from(FORMS).flatmap(lambda form: st.lists(st.datetimes().map(form), min_size=1, max_size=5)))
def test_dates_of_one_format_are_parsed_like_single_dates(texts):
    assert parse_iso_seconds(texts).tolist() == list(map(to_seconds, texts))


@given(
    st.lists(
        digits | st.sampled_from(["0000-01-02", "2024-02-30", "2024-01-02 ", "2024-01-02T24:00", "2024-01-02T03:60"]),
        min_size=1,
        max_size=3,
    )
)
def test_texts_that_resemble_dates_are_parsed_like_single_dates_or_not_at_all(texts):
    if (seconds := parse_iso_seconds(texts)) is not None:
        assert seconds.tolist() == list(map(to_seconds, texts))


@given(
    st.sampled_from(DAYS), st.sampled_from(CLOCKS), st.lists(st.datetimes(datetime(1970, 1, 1), datetime(2068, 1, 1)), min_size=1)
)
def test_the_format_of_written_dates_is_found(day, clock, times):
    assume(day.endswith("%Y") or not clock.startswith(":"))  # 01/01/00:00:00:01
    texts = [time.replace(tzinfo=UTC).strftime(day + clock) for time in times]
    forms = find_date_formats(texts)
    assert forms
    expected = [parse_datetime(text, day + clock) for text in texts]
    assert any([to_seconds(text, form) for text in texts] == [to_seconds(time) for time in expected] for form in forms)


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        (["01-JAN-2024", "15-MAY-2024"], "%d-%b-%Y"),
        (["01-may-24", "02-MAY-24"], "%d-%b-%y"),
        (["2024-03-01-10.00.00.000000"], "%Y-%m-%d-%H.%M.%S.%f"),
        (["2024:03:01 10:00:00"], "%Y:%m:%d %H:%M:%S"),
        (["27-NOV-26 10.00.00.000000 AM", "27-NOV-26 10.00.00.000000000 PM"], "%d-%b-%y %I.%M.%S.%f %p"),
        (["2024-03-01 10:00:00 CET"], "%Y-%m-%d %H:%M:%S CET"),
        (["Fri Mar 01 10:00:00 EST 2024"], "%a %b %d %H:%M:%S EST %Y"),
        (["Fri Mar 01 2024 10:00:00 GMT+0100 (CET)", "Fri Apr 19 2024 10:00:00 GMT+0200 (CEST)"], "%a %b %d %Y %H:%M:%S GMT%z"),
        (["2024-03-01T10:00:00+01:00[Europe/Berlin]", "2024-07-01T10:00:00Z[UTC]"], None),
        (["2024-03-01 24:00:00"], None),
        (["31.03.2024 24:00"], "%d.%m.%Y %H:%M"),
        (["25-02-2017", "03-04-2017"], "%d-%m-%Y"),
        (["10:00 25-02-2017"], "%H:%M %d-%m-%Y"),
        (["20/May/2015:21:34:02-0500"], "%d/%b/%Y:%H:%M:%S%z"),
        (["3. M\u00e4rz 2024", "12. Dez. 2023", "1. Mai 2024"], "%d. %b %Y"),
        (["12 f\u00e9vr. 2024", "1er mars 2024", "3 ao\u00fbt 2024", "4 JUIL. 2024"], "%d %b %Y"),
        (["5-ene-2024", "7-sept-2024", "8-dic-2024"], "%d-%b-%Y"),
        (["3 de marzo de 2024", "4 de abril de 2024"], "%d de %b de %Y"),
        (["March 1st, 2024", "March 22nd, 2024"], "%b %d, %Y"),
        (["25.02.2017 14.30"], "%d.%m.%Y %H.%M"),
        (["25.02.2017, 14.30.59"], "%d.%m.%Y, %H.%M.%S"),
        (["25.02.2017 14.30 Uhr"], "%d.%m.%Y %H.%M Uhr"),
        (["25/02/2017 14h30"], "%d/%m/%Y %Hh%M"),
        (["Nov 29 17:42:01", "Nov  9 01:02:03", "Feb 29 00:00:00"], "%b %d %H:%M:%S"),
        (["08:30", "23:59:59", "24:00"], None),
        (["8:30", "17:05"], "%H:%M"),
        (["8:30 PM", "11:05 am"], "%I:%M %p"),
        (["8:30 p.m.", "11:05 a. m."], "%I:%M %p"),
        (["3/4/2024 8:30 p.m.", "3/14/2024 11:05 AM"], "%m/%d/%Y %I:%M %p"),
    ],
)
def test_date_formats_of_databases_and_cameras_are_found(texts, form):
    assert find_date_formats(texts) == [form]


@pytest.mark.parametrize(
    ("text", "form", "time"),
    [
        ("Fri Nov 27 2026 10:00:00 GMT+0100 (CET)", "%a %b %d %Y %H:%M:%S GMT%z", "2026-11-27T09:00Z"),
        ("2026-11-27T10:00:00+01:00[Europe/Berlin]", None, "2026-11-27T09:00Z"),
        ("27-NOV-26 10.00.00.250000000 PM", "%d-%b-%y %I.%M.%S.%f %p", "2026-11-27T22:00:00.25"),
        ("2026-12-31 24:00:00", None, "2027-01-01"),
        ("28.02.2024 24:00", "%d.%m.%Y %H:%M", "2024-02-29"),
        ("2024-02-17+01:00", None, "2024-02-16T23:00"),
        ("3. M\u00e4rz 2024", "%d. %B %Y", "2024-03-03"),
        ("1. J\u00e4nner 2024", "%d. %b %Y", "2024-01-01"),
        ("30 DEC 2024", "%d %b %Y", "2024-12-30"),
        ("Nov 29 17:42:01", "%b %d %H:%M:%S", "1900-11-29T17:42:01"),
        ("Feb 29 17:42:01", "%b %d %H:%M:%S", "1900-02-28T17:42:01"),
        ("08:30:15", None, "1970-01-01T08:30:15"),
        ("08:30:15", "%H:%M:%S", "1900-01-01T08:30:15"),
    ],
)
def test_dates_of_other_systems_are_parsed(text, form, time):
    assert to_seconds(text, form) == to_seconds(time)


@pytest.mark.parametrize("text", ["2024-03-01 24:00:01", "2024-03-01 24:30", "2024-03-01 [Berlin]", "2024-03-01 25:00"])
def test_invalid_dates_are_refused(text):
    raises(".", parse_datetime, text)


NO_DATES = ["1.2.3", "10.0.0.1", "V 1.2.3", "2024-05-20 21:34:02 Pst", "5 to 10", "1-2", "", "x"]
NO_DATES += ["25:30", "12:30:99", "1.5 12.30", "Mon 08:30", "Mai 12", "1 Jui 2024", "5 Marble 2024", "3 Mar", "1st"]
NO_DATES += ["10:00 - 22:30", "2024-01-01 10:00 12:30", "10:00 am pm", "10:00 am - 5:00 pm", "Mon Tue 2024-01-01"]
NO_DATES += ["2024-01-01 10:00 +01:00 +02:00", "10:00:00 11:00", "Jan 5 10:00 - Jan 5 11:00", "10.30 11.30"]


@pytest.mark.parametrize("text", NO_DATES)
def test_texts_that_are_not_dates_have_no_format(text):
    assert find_date_formats([text]) == []


@pytest.mark.parametrize("form", ["%H %H", "%H:%M - %H:%M", "%b %B", "%c %Y", "%d.%m.%y %%%d"])
def test_a_format_with_a_part_of_the_date_twice_is_invalid(form):
    raises(r"twice|does not match|bad directive", parse_datetime, "10 10", form)
    assert not is_date("10 10", form)
    with contextlib.suppress(ValueError):  # of another text
        parse_datetime("May May", form)


def test_a_typed_time_of_day_equals_its_text():
    for form in (None, "ms", "%H:%M:%S"):
        assert to_seconds(time(8, 30, 15), form) == to_seconds("08:30:15", None if form == "ms" else form)


@pytest.mark.parametrize(
    ("form", "winter", "summer"),
    [
        ("%Y-%m-%d %H:%M CET", "2024-03-30 12:00 CET", "2024-03-30 12:00 CEST"),
        ("%d.%m.%Y %H:%M:%S CEST", "30.03.2024 12:00:00 CET", "30.03.2024 12:00:00 CEST"),
        ("%a %b %d %H:%M:%S EST %Y", "Sat Mar 30 12:00:00 EST 2024", "Sat Mar 30 12:00:00 EDT 2024"),
        ("%d %b %Y %I:%M %p PST", "30 MAR 2024 12:00 PM PST", "30 MAR 2024 12:00 PM PDT"),
        ("%Y-%m-%d %H:%M AEST", "2024-03-30 12:00 AEST", "2024-03-30 12:00 AEDT"),
    ],
)
def test_a_zone_may_have_the_name_of_its_other_season(form, winter, summer):
    assert to_seconds(winter, form) == to_seconds(summer, form) == to_seconds("2024-03-30 12:00")
    with pytest.raises(ValueError, match="does not match format|unconverted"):
        to_seconds(re.sub("CET|EST|PST|AEST", "MSK", winter), form)


def test_a_stream_of_a_year_has_both_names_of_its_zone(tmp_path):
    path = tmp_path / "rows.csv"
    days = [f"2024-03-{day:02d} 12:00 {'CET' if day < 31 else 'CEST'}" for day in range(1, 32)]
    path.write_text("t,y\n" + "".join(f"{day},{i % 2}\n" for i, day in enumerate(days)))
    with open_source(path, label="y", columns={"t": "date=%Y-%m-%d %H:%M CET"}) as source:
        rows = list(source)
    assert np.diff([row.x["t"] for row in rows]).tolist() == [86400.0] * 30
