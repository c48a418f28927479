"""The first look at a table: what its columns are taken for, what looks odd, and flags that serve."""

import json
import re
import shlex
import subprocess
import sys
from datetime import datetime, timedelta

import pytest

from command_words import with_a_model
from streamsvm import load
from streamsvm.cli.first_look import column_of
from streamsvm.files.messages import quoted


@pytest.mark.parametrize(
    ("values", "kind", "answer"),
    [
        ([float(i) for i in range(30)], "number", None),
        ([1.0] * 30, "number", None),
        ([1.0, "NA", 2.0, "-", 3.0, 4.0], "number", ("missing", ["NA", "-"])),
        ([1.0, "NA", "N/A", "NA", "-", "none"], "number", ("missing", ["NA", "N/A", "-", "none"])),
        ([1.0, "low", "low"], "number", ("missing", ["low"])),
        ([1.0, "a", "b", "c", "d"], "text", ("categorical", "c")),
        (["NA", "NA"], "text", ("categorical", "c")),
        ([1.0, [1, 2]], "nested", ("drop", "c")),
        (["a", "b", "a"], "text", ("categorical", "c")),
        ([f"n{i}" for i in range(30)], "text", ("drop", "c")),
        (["2024-01-01", "2024-01-02T03:04:05Z"], "date", ("dates", ("c", None))),
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
    assert (column.kind, column.answer) == (kind, answer)


CASES = {
    "a text among numbers": (["a,y", *(f"{'oops' if i == 7 else i},{i % 2}" for i in range(60))], "--missing oops"),
    "a number that counts up": (
        ["id,city,y", *(f"{i},{'ab'[i % 2]},{i % 3}" for i in range(40))],
        "--columns id:drop,city:category",
    ),
    "numbers that are texts": (
        [json.dumps({"a": str(i % 7), "b": i % 5, "y": i % 2}) for i in range(60)],
        "--columns a:number",
    ),
    "NaN": (['{"a": NaN, "y": 1}', '{"a": NaN, "y": 0}'], "--missing nan"),
}
WITH_FLAGS = {
    "what is said to be a number": (CASES["a number that counts up"][0], "id:number", "--columns city:category,id:number"),
    "dates": (["at,y", "31.12.2024,0", "30.11.2024,1"], "at:date", "--columns at:date=%d.%m.%Y"),
    "a date that is none": (["at,y", "2024-12-31,0", "never,1"], "at:date", "--missing never"),
    "texts for dates": (["at,y", "1st,0", "2nd,1", "3rd,0", "4th,1"], "at:date", "--columns at:date=FORMAT"),
    "an ISO date": (["at,y", "2024-12-31,0"], "at:date=%d.%m.%Y", "--columns at:date"),
}


@pytest.mark.parametrize("case", [*CASES, *WITH_FLAGS])
def test_flags_that_serve(file, call, case):
    lines, *columns, served = (CASES | WITH_FLAGS)[case]
    path = file(f"rows.{'jsonl' if lines[0][0] == '{' else 'csv'}", *lines)
    learn = ["learn", path, "--label", "y", *(["--columns", *columns] if columns else [])]
    assert call(*learn, status=1).stderr.endswith(f"Try: {served}\n")
    if case in CASES and case != "NaN":
        call(*learn, *served.split())


def test_a_text_among_numbers_costs_its_row_where_rows_may_fail(file, call):
    learn = ["learn", file("rows.csv", *CASES["a text among numbers"][0]), "--label", "y", "--on-error", "skip"]
    assert call(*learn, "--quiet").end["learned"] == 59
    path = file("rows.csv", "a,y", *(f"{f'x{i}' if i % 50 == 7 else i % 9},{i % 2}" for i in range(200)))
    assert "4 not a number" in call("learn", path, *learn[2:], says="not a number in 4 rows").stderr
    call("learn", path, "--label", "y", status=1)


@pytest.mark.thorough
@pytest.mark.parametrize("text", ['{"a": 1, "city": "Oslo", "y": 1}\n', "a,city,y\n1,Oslo,1\n"])
def test_the_first_row_of_a_pipe_is_looked_at(text):
    words = with_a_model(["learn", "-", "--format", "jsonl" if text[0] == "{" else "csv", "--label", "y"])

    def learn(*more, status=0):
        command = [sys.executable, "-m", "streamsvm", *words, *more]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return done.stderr

    said = learn(status=1)
    assert f"standard input, line {1 if text[0] == '{' else 2}: 1 column needs a flag: city (text)" in said
    assert re.search(r"^  city +text +Oslo$", said, re.MULTILINE)
    assert re.search(r"^  city +category +Oslo$", learn("--columns", "city:category"), re.MULTILINE)
    if text[0] == "{":  # of which not all rows have all fields
        said = learn("--columns", "city:category,town:category")
        assert re.search(r"^  town +category +not in this row$", said, re.MULTILINE)


def test_numbers_as_text_and_wide_tables(file, call):
    path = file("rows.jsonl", *(json.dumps({f"f{i}": str(n * i % 7) for i in range(50)} | {"y": n % 2}) for n in range(30)))
    said = call("learn", path, "--label", "y", status=1).stderr
    assert "and 11 of number, 1 of label" not in said.splitlines()[0]
    assert "  and 10 of number, 1 of label" in said.splitlines()
    call("learn", path, "--label", "y", *shlex.split(said.partition("Try: ")[2]))


def test_dates_that_are_written_as_numbers(file, tmp_path, call):
    path = file("rows.csv", "day,n,y", *(f"202401{1 + i % 31:02d},{20240000 + i},{i % 2}" for i in range(62)))
    said = call("learn", path, "--label", "y").stderr
    assert [line.split()[0] for line in said.splitlines() if "read it with --columns day:date" in line] == ["day"]
    call("learn", path, "--label", "y", "--columns", "day:date", "--checkpoint", tmp_path / "state")
    encoder = load(tmp_path / "state")["TableEncoder"]
    assert encoder.transform_one({"day": "2024-01-16", "n": 20240031})["day"] == 1705363200.0


def test_odd_values(file, call):
    path = file("rows.jsonl", '{"a": ' + "9" * 400 + ', "y": 1}', *['{"a": 1, "y": 0}'] * 9)
    assert "1 refused" in call("learn", path, "--label", "y", "--on-error", "skip", says="1 to a huge number").stderr
    file("rows.jsonl", f'{{"{"b" * 100_000}": 1, "two\\nlines": 2, "y": 1}}')
    assert len(call("learn", path, "--label", "y", status=1, says="  two lines").stderr) < 2000
    path = file("rows.csv", "id,a,y", "A1,1,0", "B2,nan,1", "C3,2,0")
    call("learn", path, "--label", "y", "--columns", "id:drop", says="missing in 1")


@pytest.mark.parametrize(
    ("texts", "served"),
    [
        (["$6.73", "$12.00", "$1,024.50"], "."),
        (["97%", "12.5%", "3 %"], "."),
        (["1,200", "950", "12,345"], "."),
        (["6,73", "12,00", "1.024,50"], ","),
    ],
)
def test_numbers_as_people_write_them_are_told(file, call, texts, served):
    path = file("rows.csv", "a;b;y", *(f"{texts[i % 3]};{i % 7};{i % 2}" for i in range(60)))
    learn = ["learn", path, "--label", "y", "--delimiter", ";"]
    assert call(*learn, status=1).stderr.endswith(f"Try: --decimal {served}\n")
    assert call(*learn, "--decimal", served, "--quiet").end["learned"] == 60


def test_an_answer_is_not_given_where_it_does_not_serve(file, call):
    """Amounts with decimal commas beside numbers with points: no decimal mark reads both."""
    path = file("rows.csv", "a;b;y", *(f"{i},25;{i % 7}.5;{i % 2}" for i in range(60)))
    learn = ["learn", path, "--label", "y", "--delimiter", ";"]
    assert call(*learn, status=1).stderr.endswith("Try: --columns a:drop\n")
    path = file("one.csv", "a,y", *(f"x{i},{i % 2}" for i in range(60)))
    assert "no column is left to learn from: a (looks like an id)" in call("learn", path, "--label", "y", status=1).stderr


@pytest.mark.parametrize(
    ("form", "served"),
    [
        ("%Y-%m-%d %H:%M:%S UTC", None),
        ("%m/%d/%Y %I:%M:%S %p", None),
        ("%a, %d %b %Y %H:%M:%S GMT", None),
        ("%d/%b/%Y:%H:%M:%S +0000", "%d/%b/%Y:%H:%M:%S %z"),
        ("%B %d, %Y %H:%M", None),
        ("%d.%m.%y, %H:%M", None),
        ("%Y%m%dT%H%M%SZ", ""),
    ],
)
def test_dates_in_many_formats_are_told(file, call, form, served):
    times = [datetime(2024, 1, 1) + timedelta(hours=7 * i) for i in range(150)]
    path = file("rows.csv", "at;n;y", *(f"{time.strftime(form)};{i % 7};{i % 2}" for i, time in enumerate(times)))
    learn = ["learn", path, "--label", "y", "--delimiter", ";"]
    served = form if served is None else served
    columns = f"at:date={quoted(served) if ',' in served else served}" if served else "at:date"
    assert call(*learn, status=1).stderr.endswith(f"Try: --columns {shlex.quote(columns)}\n")
    assert call(*learn, "--columns", columns, "--quiet").end["learned"] == 150


def test_the_day_and_the_month_are_told_apart_by_later_rows(file, call):
    times = [datetime(2024, 1, 1) + timedelta(hours=i) for i in range(24 * 40)]
    lines = [f"{time:%m/%d/%Y %H:%M},{i % 7},{i % 2}" for i, time in enumerate(times)]
    said = call("learn", file("rows.csv", "at,n,y", *lines), "--label", "y", status=1).stderr
    assert said.endswith("Try: --columns 'at:date=%m/%d/%Y %H:%M'\n")
    said = call("learn", file("rows.csv", "at,n,y", *lines[:240]), "--label", "y", status=1).stderr
    assert "at (looks like a date, or in the format %m/%d/%Y %H:%M: these rows fit both)" in said
    assert "at:date=%d/%m/%Y %H:%M" in said


def test_a_column_without_a_name(file, call):
    path = file("rows.csv", ",a,y", *(f"{i},{i % 7},{int(i % 7 > 3)}" for i in range(60)))
    learn = ["learn", path, "--label", "y"]
    assert """leave it out with --columns '"":drop'""" in call(*learn, "--max-rows", 1).stderr
    assert "dropped" in call(*learn, "--columns", '"":drop').stderr


def test_objects_within_rows(file, call):
    """A change event: what was before is dropped with all that is in it."""
    rows = [{"op": "c", "payload": {"before": None if i else {"a": 1}, "after": {"a": i % 7, "y": i % 7 > 3}}} for i in range(60)]
    path = file("rows.jsonl", *(json.dumps(row) for row in rows))
    learn = ["learn", path, "--label", "payload.after.y", "--quiet"]
    said = call(*learn, status=1).stderr
    assert said.endswith("Try: --columns op:drop\n")
    assert call(*learn, "--columns", "op:drop,payload.before:drop").end["learned"] == 60
    path = file("rows.json", json.dumps([{"a": 1, "y": 0}]))
    assert "to_json(orient='records', lines=True)" in call("learn", path, "--label", "y", status=1).stderr


def test_times_of_every_unit_are_one_time(file, call):
    """Epochs in seconds, ms, us and ns, with the unit or without, learn the same model."""
    ends = []
    for factor, unit in ((1, ""), (1000, ""), (1000, "=ms"), (10**6, ""), (10**9, ""), (10**9, "=ns")):
        times = [factor * (1_709_251_200 + 3600 * i) for i in range(400)]
        path = file("rows.csv", "at,n,y", *(f"{at},{i % 7},{int(i % 24 > 11)}" for i, at in enumerate(times)))
        end = call("learn", path, "--label", "y", "--columns", f"at:date{unit}", "--cycles", "day", "--quiet").end
        ends.append((end["learned"], end["metric"]))
    assert len(set(ends)) == 1
    assert ends[0][1] > 0.9
    path = file("rows.csv", "at,n,y", *(f"{1000 * (1_709_251_200 + 3600 * i)},{i % 7},{i % 2}" for i in range(60)))
    assert "a time since 1970, with --columns at:date=ms" in call("learn", path, "--label", "y").stderr


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("regression", [False, True])
def test_marks_of_missing_values_are_no_labels(file, call, suffix, regression):
    rows = [{"a": i % 7, "y": ["NA", -999][i % 2] if i % 10 > 7 else i % 7} for i in range(100)]
    lines = [json.dumps(row) for row in rows] if suffix == "jsonl" else ["a,y", *(f"{row['a']},{row['y']}" for row in rows)]
    words = ["--label", "y", "--missing=NA,-999", "--quiet", *["--regression"] * regression]
    end = call("learn", file(f"rows.{suffix}", *lines), *words).end
    assert (end["learned"], end["unlabelled"]) == (80, 20)
    if regression:
        assert end["metric"] < 3.0
