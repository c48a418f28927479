"""The first look at a table: what its columns are taken for, what looks odd, and flags that serve."""

import json
import re
import shlex
import subprocess
import sys
from datetime import datetime

import pytest

from command_words import with_a_model
from streamsvm import load
from streamsvm.cli.first_look import column_of


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
    assert encoder.transform_one({"day": "2024-01-16", "n": 20240031})["day"] == pytest.approx(0.0, abs=0.1)


def test_odd_values(file, call):
    path = file("rows.jsonl", '{"a": ' + "9" * 400 + ', "y": 1}', *['{"a": 1, "y": 0}'] * 9)
    assert "1 refused" in call("learn", path, "--label", "y", "--on-error", "skip", says="1 to a huge number").stderr
    file("rows.jsonl", f'{{"{"b" * 100_000}": 1, "two\\nlines": 2, "y": 1}}')
    assert len(call("learn", path, "--label", "y", status=1, says="  two lines").stderr) < 2000
    path = file("rows.csv", "id,a,y", "A1,1,0", "B2,nan,1", "C3,2,0")
    call("learn", path, "--label", "y", "--columns", "id:drop", says="missing in 1")


@pytest.mark.parametrize("texts", [["$6.73", "$12.00", "$1,024.50"], ["97%", "12.5%", "3 %"]])
def test_numbers_with_marks_are_told(file, call, texts):
    path = file("rows.csv", "a;b;y", *(f"{texts[i % 3]};{i};{i % 2}" for i in range(60)))
    said = call("learn", path, "--label", "y", "--delimiter", ";", status=1).stderr
    assert "numbers with commas, currencies or %: to learn them, write them as 1234.5" in said
    assert "category" not in said
