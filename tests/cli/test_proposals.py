"""Flags that are proposed for a column work for all kinds of values."""

import argparse
import json
import math
import re
import shlex
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm import table_model
from streamsvm.cli.arguments import add_table_flags
from streamsvm.cli.tables import combine_table_options, parse_table_flags
from streamsvm.files.messages import quote_name
from streamsvm.stream import open_source
from streamsvm.stream.schema.schema_inference import SchemaProblem, find_bad_columns, propose_options
from streamsvm.stream.schema.source_sample import sample_files
from streamsvm.stream.schema.table_inference import infer_columns
from streamsvm.stream.tables import TableEncoder
from streamsvm.stream.tables.table_schema import format_flags


def rows_of(values, n=60):
    """Lines of CSV, with semicolons, of a column of these values in turns."""
    return ["a;b;y", *(f"{values[i % len(values)]};{i % 7};{i % 2}" for i in range(n))]


DATES = [f"2024-03-{day:02d}" for day in range(1, 26)]
TIMES = [datetime(2024, 1, 1) + timedelta(hours=7 * i) for i in range(150)]
FORMS = ["%Y-%m-%d %H:%M:%S UTC", "%m/%d/%Y %I:%M:%S %p", "%a, %d %b %Y %H:%M:%S GMT", "%B %d, %Y %H:%M", "%d.%m.%y, %H:%M"]
#: Repeating values of a CSV column, and the proposed flags.
OF_CSV = [
    ([*range(7), "oops"], "--missing oops"),
    *((values, "--decimal .") for values in (["$6.73", "$12.00", "$1,024.50"], ["97%", "12.5%", "3 %"], ["1,200", "950"])),
    *((values, "--decimal .") for values in (["(1,200.50)", "950.00"], ["$(1,200.50)", "$3.00"], ["\u221212.50", "3.25"])),
    (["6,73", "12,00", "1.024,50"], "--decimal ,"),
    (["1,234.50", "2,234.50", "N/A", "null", "unknown"], "--decimal . --missing N/A,null,unknown"),
    (["$1,234.50", "$12", "$-"], "--decimal . --missing '$-'"),
    (["1,5", "NA"], "--decimal , --missing NA"),
    (["5", "--", "6"], "--missing '\"--\"'"),
    (["5", "-inf", "6", "NA"], "--missing=-inf,NA"),
    ([*DATES, "NA"], "--columns a:date --missing NA"),
    (["2024-03-01", "NaT", "2024-03-02", "0000-00-00"], "--columns a:date --missing NaT,0000-00-00"),
    (["31.12.2024", "30.12.2024", "00.00.0000"], "--columns a:date=%d.%m.%Y --missing 00.00.0000"),
    ([*DATES, "soon", "never", "no idea", "-"], "--columns a:date --missing 'soon,never,no idea,-'"),
    ([f"{time:%Y%m%dT%H%M%SZ}" for time in TIMES], "--columns a:date --cycles day,week"),
    ([f"{time:%d/%b/%Y:%H:%M:%S} +0000" for time in TIMES], "--columns 'a:date=%d/%b/%Y:%H:%M:%S %z' --cycles day,week"),
]
for form in FORMS:
    flag = quote_name(form) if "," in form else form
    OF_CSV.append(([time.strftime(form) for time in TIMES], f"--columns {shlex.quote(f'a:date={flag}')} --cycles day,week"))
OF_JSON = [
    ([str(i) for i in range(7)], "--columns a:number"),
    *[([math.nan], "--missing nan"), ([1, "", 2], "--columns a:number"), ([1, " ", "NA"], "--missing NA")],
    *[([1, 2, " - "], "--missing=-"), (["1", "2.5", "NA"], "--missing NA"), ([1, 2, "--"], "--missing '\"--\"'")],
    ([1, 2, -math.inf, math.nan], "--missing=-inf,nan"),
    ([1, "x" * 1000], "--columns a:category"),  # marks that cannot be written, or read by people
    ([1, "n\u200b"], "--columns a:category"),
    *((values, "--columns a:drop") for values in ([10**400, 1], [10**400], [10**400, 10**13, "NA"])),
]


@pytest.mark.parametrize(
    ("kind", "values", "served"), [(kind, *case) for kind, cases in (("csv", OF_CSV), ("jsonl", OF_JSON)) for case in cases]
)
def test_proposed_options_for_a_column_work(file, call, kind, values, served):
    n = max(60, len(values))
    rows = [{"a": values[i % len(values)], "b": i % 7, "y": i % 2} for i in range(n)]
    path = file(f"rows.{kind}", *(map(json.dumps, rows) if kind == "jsonl" else rows_of(values, n)))
    learn = ["learn", path, "--label", "y", *["--delimiter", ";"] * (kind == "csv")]
    assert call(*learn, "--ask", status=1).stderr.endswith(f"Try: {served}\n")
    assert call(*learn, *shlex.split(served), "--quiet").end["refused"] == {}


@pytest.mark.parametrize(
    ("cells", "flags", "served"),
    [
        (["31.12.2024", "30.11.2024"], "at:date", "--columns at:date=%d.%m.%Y"),
        (["2024-12-31", "never"], "at:date", "--missing never"),
        (["2024-12-31"], "at:date=%d.%m.%Y", "--columns at:date"),
    ],
)
def test_proposals_respect_given_flags(file, call, cells, flags, served):
    path = file("rows.csv", "at,y", *(f"{cell},{i % 2}" for i, cell in enumerate(cells)))
    assert call("learn", path, "--label", "y", "--columns", flags, "--ask", status=1).stderr.endswith(f"Try: {served}\n")


@pytest.mark.parametrize("cells", [["2024-12-31", "n\u200b"], ["1st", "2nd", "3rd", "4th"]])
def test_texts_that_no_flag_would_read_as_dates_are_refused(file, call, cells):
    path = file("rows.csv", "at,y", *(f"{cell},{i % 2}" for i, cell in enumerate(cells)))
    call("learn", path, "--label", "y", "--columns", "at:date", "--ask", status=1, says="the format of that column (ISO 8601)")


@pytest.mark.parametrize("text", ["x{}", "12/{:02}/2024"])
def test_dates_with_texts_among_them_are_read_as_the_flag_says(file, call, text):
    cells = [text.format(10 + i) if i % 10 == 9 else f"2024-01-{10 + i % 20}" for i in range(200)]
    path = file("rows.csv", "at,y", *(f"{cell},{i % 2}" for i, cell in enumerate(cells)))
    end = call("learn", path, "--label", "y", "--columns", "at:date", "--on-error", "skip", "--quiet").end
    assert end["learned"] == 180
    assert end["refused"] == {"not a number": 20}


def test_a_number_that_counts_up_is_an_id_unless_it_is_said_to_be_a_number(file, call):
    path = file("rows.csv", "id,city,y", *(f"{i},{'ab'[i % 2]},{i % 3}" for i in range(40)))
    for flags, served in (([], "id:drop,city:category"), (["--columns", "id:number"], "id:number,city:category")):
        learn = ["learn", path, "--label", "y"]
        assert call(*learn, *flags, "--ask", status=1).stderr.endswith(f"Try: --columns {served}\n")
        call(*learn, "--columns", served)


@pytest.mark.parametrize(
    ("values", "says", "kind"),
    [
        (["1", "none", "2"], "a ('none' in 50 rows is not a number)", "number=none"),
        (["2024-03-01", "none", "2024-03-02"], "a ('none' is also a label)", "category"),
        ([*(f"2024-{1 + i // 28:02}-{1 + i % 28:02}" for i in range(100)), "none"], "a ('none' is also a label)", "drop"),
    ],
)
def test_a_label_is_never_called_missing(file, call, values, says, kind):
    lines = ["a,b,y", *(f"{values[i % len(values)]},{i % 7},{['none', 'some'][i % 7 > 3]}" for i in range(150))]
    learn = ["learn", file("rows.csv", *lines), "--label", "y"]
    said = call(*learn, "--ask", status=1).stderr
    assert says in said
    assert said.endswith(f"Try: --columns a:{kind}\n")
    assert call(*learn, "--columns", f"a:{kind}", "--quiet").end["learned"] == 150


def test_lone_dashes_as_a_mark(file, call):
    learn = ["learn", file("rows.csv", *rows_of(["5", "--", "6"])), "--label", "y", "--delimiter", ";", "--quiet"]
    for flag in ("--missing=--", "--missing=NA,--"):
        assert call(*learn, flag).end["learned"] == 60
    call(*learn, "--missing", "a\rb", status=2, says="is not a comma-separated list")


def test_points_between_thousands(file, call):
    def say(values, *words, **checks):
        return call("learn", file("rows.csv", *rows_of(values)), "--label", "y", "--delimiter", ";", *words, **checks).stderr

    note = "or with points between thousands (--decimal ,)"
    assert note in say(["12.345", "567", "1.000"])
    assert note in say(["12.345", "567", "NA"], "--missing", "NA")
    for values in (
        ["12.345", "567", "1.5"],
        ["12.345", "0.567", "8"],
        ["12.345", "4567"],
        ["12.345", "1.500"],
        ["12.345", "2.99", "7.699", "3.444", "8", "5.123"],  # without its final zero: no thousands
    ):
        assert note not in say(values)
    assert note not in say(["12.345", "567"], "--decimal", ".")
    assert say(["12.345", "567", "1.234.567"], "--ask", status=1).endswith("Try: --decimal ,\n")
    assert re.search(r"^  a +number +567 to 1.23457e\+06$", say(["12.345", "567", "1.234.567"], "--decimal", ","), re.MULTILINE)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("other", ["7", "2024-01-31"])
def test_numbers_without_the_decimal_mark_are_not_dropped(file, call, kind, other):
    """A column of numbers with points, and the flag for commas; the other column may need an option, too."""
    rows = [{"a": ["12.34", "2.99", "7.699", "8"][i % 4], "b": other, "y": i % 2} for i in range(80)]
    lines = map(json.dumps, rows) if kind == "jsonl" else ["a,b,y", *(",".join(map(str, row.values())) for row in rows)]
    learn = ["learn", file(f"rows.{kind}", *lines), "--label", "y", "--learner", "bsgd,budget=5"]
    call(
        *learn, "--decimal", ",", status=1, says="feature 'a' is '12.34', a text. Its decimal mark is '.', and that of the column"
    )
    assert call(*learn, "--decimal", ".", "--quiet").end["refused"] == {}
    frame = pd.DataFrame(rows)
    with pytest.raises(ValueError, match=r"Its decimal mark is '\.'"):
        table_model(frame, "y", decimal=",").learn_many(frame)


CELLS = "1|2.5|NA|-|--|none|2024-03-01|31.12.2024|03/04/2024|1,234.50|1.234,50|1,5|12.345|1.234.567|$5|(1,200.50)|EUR 3|5%|x|y"
CELLS += "|inf|-inf|nan|0000-00-00|| - |a,b|true|NaT|20240131|1709251200|$-|1-|unknown"
VALUES = [1, 2.5, True, None, 10**400, math.inf, -math.inf, math.nan, [1], {"z": 1}, {"z": "t"}, *CELLS.split("|")]


@given(
    st.lists(st.lists(st.sampled_from(VALUES), min_size=1, max_size=4), min_size=2, max_size=3),
    st.sampled_from([("0", "1"), ("none", "some")]),
)
def test_proposed_options_work(tmp_path_factory, pools, labels):
    """With the flags, nothing more is asked, and every row has finite numbers and its label."""
    path = str(tmp_path_factory.mktemp("table") / "rows.jsonl")
    rows = [{str(k): pool[i % len(pool)] for k, pool in enumerate(pools)} | {"y": labels[i % 2]} for i in range(30)]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    parser = argparse.ArgumentParser()
    add_table_flags(parser)

    def ask(words):
        table = combine_table_options(parse_table_flags(parser.parse_args(words)), "jsonl", "y")
        beginning = sample_files(path, "jsonl")
        proposed = propose_options(
            infer_columns(beginning, "y", table)[1], table, False, partial(find_bad_columns, beginning, "y", table)
        )
        if isinstance(proposed, SchemaProblem):
            return table, proposed.text
        return table, "" if proposed is None else f"Try: {format_flags(proposed.problem.options)}"

    table, said = ask([])
    if "no column is left" in said:
        return
    if said:
        table, again = ask(shlex.split(said.partition("Try: ")[2]))
        assert again == ""
    model = TableEncoder(**table.encoder)
    with open_source(path, label="y", format="jsonl", **table.source) as source:
        for row in source:
            x = row.x
            if table.encoder:
                model.learn_one(x)
                x = model.transform_one(x)
            assert all(math.isfinite(value) for value in x.values())
            assert row.y in labels


def test_column_named_like_other_columns_gets_another_name(file, call):
    path = file("rows.csv", "*,b,y", *(f"{'uv'[i % 2]},{i % 7},{i % 2}" for i in range(40)))
    call("learn", path, "--label", "y", status=1, says="column '*' needs an answer, and its name cannot be written in one")
