"""Dates in the notations of people and systems are read as dates through all doors."""

import datetime as dt

import pandas as pd
import polars as pl
import pytest

from lists import pairs
from refused import raises
from streamsvm import BSGDClassifier, load, table_model
from streamsvm.stream.tables import TableEncoder

GERMAN = ["Januar", "Feb.", "M\u00e4rz", "Apr.", "Mai", "Juni", "Juli", "Aug.", "Sept.", "Okt.", "Nov.", "Dezember"]
FRENCH = ["janv.", "f\u00e9vr.", "mars", "avr.", "mai", "juin", "juil.", "ao\u00fbt", "sept.", "oct.", "nov.", "d\u00e9c."]
SPANISH = ["ene", "feb", "mar", "abr", "may", "jun", "jul", "ago", "sept", "oct", "nov", "dic"]
GERMAN_DAYS = ["Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag"]
FRENCH_DAYS = ["lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche"]
SPANISH_DAYS = ["lunes", "martes", "mi\u00e9rcoles", "jueves", "viernes", "s\u00e1bado", "domingo"]
NOTATIONS = {  # functions that write a date, and the kind that is inferred
    "German months": (lambda t: f"{t.day}. {GERMAN[t.month - 1]} {t.year}", "date=%d. %b %Y"),
    "French months": (lambda t: f"{t.day}{'er' * (t.day == 1)} {FRENCH[t.month - 1]} {t.year}", "date=%d %b %Y"),
    "Spanish months": (lambda t: f"{t.day}-{SPANISH[t.month - 1]}-{t.year}", "date=%d-%b-%Y"),
    "German days": (lambda t: f"{GERMAN_DAYS[t.weekday()]}, {t.day}. {GERMAN[t.month - 1]} {t.year}", "date=%d. %b %Y"),
    "short German days": (lambda t: f"{GERMAN_DAYS[t.weekday()][:2]} {t:%d.%m.%Y}", "date=%d.%m.%Y"),
    "French days": (lambda t: f"{FRENCH_DAYS[t.weekday()]} {t.day} {FRENCH[t.month - 1]} {t.year}", "date=%d %b %Y"),
    "Spanish days": (
        lambda t: f"{SPANISH_DAYS[t.weekday()]}, {t.day} de {SPANISH[t.month - 1]} de {t.year}",
        "date=%d de %b de %Y",
    ),
    "a year like a time zone": (lambda t: f"{t:%d-%m-%Y}", "date=%d-%m-%Y"),
    "points in the time": (lambda t: f"{t:%d.%m.%Y %H.%M}", "date=%d.%m.%Y %H.%M"),
    "syslog": (lambda t: f"{t:%b} {t.day:2d} {t:%H:%M:%S}", "date=%b %d %H:%M:%S"),
    "a time of day": (lambda t: f"{t:%H:%M}", "date"),
    "a time of day with seconds": (lambda t: f"{t:%H:%M:%S}", "date"),
    "hours of one digit": (lambda t: f"{t.hour}:{t:%M}", "date=%H:%M"),
    "a clock of twelve hours": (lambda t: f"{t.hour % 12 or 12}:{t:%M} {'AM' if t.hour < 12 else 'PM'}", "date=%I:%M %p"),
}
DOORS = ["csv", "jsonl", "parquet", "pandas", "polars", "dicts"]


def write(table, door, folder):
    path = folder / f"rows.{door}"
    if door == "csv":
        table.to_csv(path, index=False, sep=";")
    elif door == "jsonl":
        table.to_json(path, orient="records", lines=True)
    elif door == "parquet":
        table.to_parquet(path)
    return {"pandas": table, "polars": pl.from_pandas(table), "dicts": table.to_dict("records")}.get(door, path)


@pytest.mark.parametrize(("notation", "door"), pairs(NOTATIONS, DOORS))
def test_written_dates_are_dates_through_all_doors(tmp_path, call, notation, door):
    """For a release each notation through each door."""
    write_date, kind = NOTATIONS[notation]
    times = [dt.datetime(2024, 1, 1, 1, 5) + dt.timedelta(hours=31 * i) for i in range(250)]
    table = pd.DataFrame({"at": list(map(write_date, times)), "v": [i % 7 for i in range(250)], "y": ["a", "b"] * 125})
    data = write(table, door, tmp_path)
    model = table_model(data, "y", learner=BSGDClassifier(budget=20))
    assert model.schema.options["columns"] == {"at": kind}
    model.learn_many(table)
    seconds = [model["TableEncoder"].transform_one({"at": text})["at"] for text in table["at"]]
    has_day, has_year = "b" in kind or "m" in kind, "Y" in kind
    has_clock = "H" in kind or "I" in kind or not has_day
    for time, read in zip(times, seconds, strict=True):
        expected = time if has_clock else time.replace(hour=0, minute=0)
        assert read % 86_400.0 == expected.hour * 3600.0 + expected.minute * 60.0
        assert not has_year or read == (expected - dt.datetime(1970, 1, 1)).total_seconds()
    if door in ("csv", "jsonl", "parquet"):
        call("learn", data, "--label", "y", "--learner", "bsgd,budget=20", "--checkpoint", tmp_path / "state")
        assert load(tmp_path / "state")["TableEncoder"].columns == {"at": kind}
        assert "missing" not in call("score", data, "--model", tmp_path / "state").stderr


@pytest.mark.parametrize("freq", ["h", "D", "M"])
def test_a_period_of_pandas_is_the_time_when_it_begins(freq):
    t = pd.period_range("2020-01-01", periods=300, freq=freq)
    frame = pd.DataFrame(
        {"at": t.insert(7, pd.NaT)[:300], "a": [i % 7 / 3 for i in range(300)], "y": [i % 5 < 2 for i in range(300)]}
    )
    times = frame.assign(at=frame["at"].dt.start_time)
    models = []
    for data in (times, frame, frame.to_dict("records")):
        models.append(table_model(data, "y", learner=BSGDClassifier(20, seed=0)))
        models[-1].learn_many(frame if models[1:] else times)
        assert dict(models[-1].schema.options["columns"]) == {"at": "date"}
        assert models[-1].predict_proba_one({"at": t[9], "a": 0.5}) == models[0].predict_proba_one(
            {"at": t[9].start_time, "a": 0.5}
        )
    assert models[1].predict_proba_many(frame).equals(models[0].predict_proba_many(times))


RANGES = {  # of hours, which are no dates
    "opening hours": lambda i: f"{8 + i % 5:02d}:00 - {18 + i % 3}:30",
    "a day and its hours": lambda i: f"2024-01-0{1 + i % 5} {8 + i % 5:02d}:00 18:30",
    "hours of twelve": lambda i: f"{8 + i % 4}:00 am - {5 + i % 3}:00 pm",
    "both halves of the day": lambda i: f"{8 + i % 4}:00 am pm",
}


@pytest.mark.parametrize(("notation", "door"), pairs(RANGES, DOORS))
def test_ranges_of_hours_are_categories_through_all_doors(tmp_path, call, notation, door):
    """For a release each notation through each door."""
    texts = [RANGES[notation](i) for i in range(120)]
    data = write(pd.DataFrame({"at": texts, "v": [i % 7 for i in range(120)], "y": ["a", "b"] * 60}), door, tmp_path)
    model = table_model(data, "y", learner=BSGDClassifier(budget=20))
    assert model.schema.options["columns"] == {"at": "category"}
    if door in ("csv", "jsonl", "parquet"):
        call("learn", data, "--label", "y", "--learner", "bsgd,budget=20", "--checkpoint", tmp_path / "state")
        assert load(tmp_path / "state")["TableEncoder"].columns == {"at": "category"}


def test_a_format_with_two_hours_is_refused_through_all_doors(tmp_path, call):
    table, kind = pd.DataFrame({"at": ["10 11", "11 12"] * 20, "y": ["a", "b"] * 20}), "date=%H %H"
    path, reason = write(table, "csv", tmp_path), f"columns: {kind} is an invalid format of dates: it has %H twice"
    call("learn", path, "--label", "y", "--columns", f"at:{kind}", status=2, says=f"--{reason}")
    raises(reason, table_model, table, "y", learner=BSGDClassifier(budget=20), columns=f"at:{kind}")
    raises(reason, TableEncoder, {"at": kind})
    saved = TableEncoder({"at": "date=%H %M"}).__getstate__() | {"columns": {"at": kind}}
    raises(reason, TableEncoder().__setstate__, saved)
