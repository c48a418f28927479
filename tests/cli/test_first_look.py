"""The first look at a table: what its columns are taken for, what looks odd, and flags that serve."""

import importlib
import json
import math
import random
import re
import shlex
import warnings
from datetime import date, datetime, timedelta

import pytest
from river import base

from chunks import write_rows
from streamsvm import load, table_model

ENDLESS = '{"a": ' + "9" * 400 + ', "y": 1}', *['{"a": 1, "y": 0}'] * 9
UNNAMED = ",a,y", *(f"{i},{i % 7},{int(i % 7 > 3)}" for i in range(60))
OF_TWO_LINES = '"two\nlines",b,y', *(f"{'uv'[i % 2]},{i % 7},{i % 2}" for i in range(60))
#: Amounts with decimal commas beside numbers with points: each column has its own mark.
BOTH = "a;b;y", *(f"{i},25;{i % 7}.5;{i % 2}" for i in range(60))
IDS = "a,y", *(f"x{i},{i % 2}" for i in range(60))
EITHER = "at,n,y", *(f"0{1 + i % 9}/0{1 + i % 7}/2024,{i % 5},{i % 2}" for i in range(300))
#: A column that is empty at first has names later; one that has one value at first has others later.
LATE = "a,b,c,y", *(f"{i % 7},{'' if i < 3000 else 'ab'[i % 2]},{'no' if i < 3000 else 'yes'},{i % 2}" for i in range(6000))
LEAKS = "a,b,c,y", *(f"{i % 7},{i % 7}.0,{i % 3 % 2},{i % 3 % 2}" for i in range(60))


@pytest.mark.parametrize(
    ("lines", "flags", "status", "says"),
    [
        (ENDLESS, ["--on-error", "skip"], 0, ["1 to a huge number", "1 refused"]),
        (['{"two\\nlines": 2, "y": 1}'], [], 0, ["  two lines"]),
        (["id,a,y", "A1,1,0", "B2,nan,1", "C3,2,0"], ["--columns", "id:drop"], 0, ["missing in 1"]),
        (BOTH, ["--delimiter", ";", "--ask"], 1, ["Try: --columns 'a:quantity=\",\"'\n"]),
        (BOTH, ["--delimiter", ";", "--ask", "--columns", 'a:quantity=","'], 0, ["a       number", "60 rows"]),
        (IDS, ["--ask"], 1, ["no column is left to learn from: a (looks like an id)"]),
        (UNNAMED, ["--max-rows", 1], 0, ["""read with --columns '"":drop'"""]),
        (UNNAMED, ["--columns", '"":drop'], 0, ["dropped"]),
        (OF_TWO_LINES, ["--ask"], 1, ["its name cannot be written in one: give it another name\n"]),
        (LATE, [], 0, ["read with --columns b:category,c:category (", "6,000 rows"]),
        (["a,b,y", *(f"{i % 7},x,{i % 2}" for i in range(300))], [], 0, ["one value so far", "read with --columns b:category ("]),
        (EITHER, [], 1, ["these rows fit both", "Try: --columns at:date=%d/%m/%Y"]),
        (LEAKS, [], 0, ["0 to 1  equal to the label: is it known when a row is predicted?", "0 to 6  equal to 'a'"]),
        (
            ["a,y", *(f'{i},"${i},000.50"' for i in range(60))],
            [],
            0,
            ["read with --regression --columns y:quantity=. "],
        ),
        (["y", *"01" * 30], [], 1, ["there is no column but y: nothing to learn from"]),
        (["id,y", *(f"{i},{i % 2}" for i in range(60))], [], 0, ["60 rows"]),
    ],
)
def test_inferred_schema_is_printed(file, call, lines, flags, status, says):
    path = file("rows.jsonl" if lines[0][0] == "{" else "rows.csv", *lines)
    said = call("learn", path, "--label", "y", *flags, status=status).stderr
    assert all(words in said for words in says), said


def test_names_without_end_are_cut(file, call):
    path = file("rows.jsonl", f'{{"{"b" * 100_000}": 1, "y": 1}}')
    assert len(call("learn", path, "--label", "y", status=1).stderr) < 2000


def test_a_text_among_numbers_costs_its_row_where_rows_may_fail(file, call):
    learn = ["learn", "rows.csv", "--label", "y", "--on-error", "skip"]
    learn[1] = file("rows.csv", "a,y", *(f"{'oops' if i == 7 else i},{i % 2}" for i in range(60)))
    assert call(*learn, "--quiet").end["learned"] == 59
    file("rows.csv", "a,y", *(f"{f'x{i}' if i % 50 == 7 else i % 9},{i % 2}" for i in range(200)))
    assert "4 not a number" in call(*learn, says="not a number in 4 rows").stderr
    call(*learn[:4], "--ask", status=1)


@pytest.mark.parametrize(("label", "kind"), [("pay", "label"), ("y", "string")])
def test_a_text_among_numbers_is_missing_where_another_column_is_read_as_people_write(file, call, label, kind):
    rows = (f'{"unknown" if i % 20 == 7 else i % 61},"{110 + 37 * i % 100},{i}.50",{i % 2}' for i in range(100, 200))
    said = call("learn", file("rows.csv", "age,pay,y", *rows), "--label", label, "--on-error", "skip").stderr
    assert re.search(rf"\n  age +number .*\n  pay +{kind} ", said)
    assert "--decimal . --missing unknown (" in said


def test_numbers_as_text_and_wide_tables(file, call):
    path = file("rows.jsonl", *(json.dumps({f"f{i}": str(n * i % 7) for i in range(50)} | {"y": n % 2}) for n in range(30)))
    said = call("learn", path, "--label", "y", "--ask", status=1).stderr
    assert "and 11 of number, 1 of label" not in said.splitlines()[0]
    assert "  and 10 of number, 1 of label" in said.splitlines()
    call("learn", path, "--label", "y", *shlex.split(said.partition("Try: ")[2]))


def test_dates_that_are_written_as_numbers(file, tmp_path, call):
    path = file("rows.csv", "day,n,y", *(f"202401{1 + i % 31:02d},{20240000 + i},{i % 2}" for i in range(62)))
    said = call("learn", path, "--label", "y", "--checkpoint", tmp_path / "state").stderr
    assert "read with --columns day:date (" in said
    assert "rises from row to row, as ids and times do (--columns n:drop)" in said
    encoder = load(tmp_path / "state")["TableEncoder"]
    assert encoder.transform_one({"day": "2024-01-16", "n": 20240031})["day"] == 1705363200.0


def test_later_rows_decide_between_day_and_month(file, call):
    times = [datetime(2024, 1, 1) + timedelta(hours=i) for i in range(24 * 40)]
    lines = [f"{time:%m/%d/%Y %H:%M},{i % 7},{i % 2}" for i, time in enumerate(times)]
    said = call("learn", file("rows.csv", "at,n,y", *lines), "--label", "y", "--ask", status=1).stderr
    assert said.endswith("Try: --columns 'at:date=%m/%d/%Y %H:%M' --cycles day,week\n")
    said = call("learn", file("rows.csv", "at,n,y", *lines[:240]), "--label", "y", "--ask", status=1).stderr
    assert "at (looks like a date, or in the format %m/%d/%Y %H:%M: these rows fit both)" in said
    assert "at:date=%d/%m/%Y %H:%M" in said


def test_objects_within_rows(file, call):
    """A change event: the state before the change is dropped with all its fields."""
    rows = [{"op": "c", "payload": {"before": None if i else {"a": 1}, "after": {"a": i % 7, "y": i % 7 > 3}}} for i in range(60)]
    path = file("rows.jsonl", *(json.dumps(row) for row in rows))
    learn = ["learn", path, "--label", "payload.after.y", "--quiet"]
    said = call(*learn, "--ask", status=1).stderr
    assert said.endswith("Try: --columns op:category\n")
    assert call(*learn, "--columns", "op:drop,payload.before:drop").end["learned"] == 60
    path = file("rows.json", json.dumps([{"a": 1, "y": 0}]))
    assert "to_json(orient='records', lines=True)" in call("learn", path, "--label", "y", "--ask", status=1).stderr


def test_a_time_in_milliseconds_is_a_date(file, call):
    path = file("rows.csv", "at,n,y", *(f"{1000 * (1_709_251_200 + 3600 * i)},{i % 7},{i % 2}" for i in range(60)))
    assert (
        "read with --columns at:date=ms --cycles day,week ("
        in call("learn", path, "--label", "y", says="a time since 1970, in ms").stderr
    )


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("regression", [False, True])
def test_missing_value_marks_are_not_labels(file, call, suffix, regression):
    rows = [{"a": i % 7, "y": ["NA", -999][i % 2] if i % 10 > 7 else i % 7} for i in range(100)]
    lines = [json.dumps(row) for row in rows] if suffix == "jsonl" else ["a,y", *(f"{row['a']},{row['y']}" for row in rows)]
    words = ["--label", "y", "--missing=NA,-999", "--quiet", *["--regression"] * regression]
    progress = call("learn", file(f"rows.{suffix}", *lines), *words).end
    assert (progress["learned"], progress["unlabelled"]) == (80, 20)
    if regression:
        assert progress["metric"] < 3.0


def test_fields_of_dropped_objects_raise_no_question(file, call, tmp_path):
    rows = [{"m": {"id": i, "z": "t", "in": {"k": "v"}}, "b": i % 7, "y": i % 2} for i in range(60)]
    paths = [file("rows.jsonl", *map(json.dumps, rows)), tmp_path / "rows.parquet"]
    pyarrow = pytest.importorskip("pyarrow")
    importlib.import_module("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), paths[1])
    for path in paths:
        learn = ["learn", path, "--label", "y"]
        said = "3 columns need an answer: m.id (looks like an id), m.z (one value so far), m.in.k (one value so far)"
        call(*learn, "--ask", status=1, says=said)
        said = call(*learn, "--columns", "m:drop").stderr
        assert "m.z" not in said
        assert re.search(r"^  m +dropped$", said, re.MULTILINE)
    path = file("rows.csv", "m,m.z,b,y", *(f"1,{'uv'[i % 2]},{i % 7},{i % 2}" for i in range(60)))  # which is another column
    assert call("learn", path, "--label", "y", "--columns", "m:drop", "--ask", status=1).stderr.endswith("m:drop,m.z:category\n")


def test_flags_can_override_inferred_schema(file, call):
    rows = [{"a": ["2024-03-01", "none"][i % 2], "l": [1], "b": i % 7, "y": ["none", "some"][i % 2]} for i in range(60)]
    learn = ["learn", file("rows.jsonl", *map(json.dumps, rows)), "--label", "y"]
    said = call(*learn, "--columns", "a:date,l:drop", "--ask", status=1).stderr
    assert said.endswith("Try: --columns a:category,l:drop\n")
    said = call(*learn, "--columns", "b:number,l:number,*:drop", "--ask", status=1).stderr
    assert said.endswith("Try: --columns 'b:number,l:drop,*:drop'\n")
    call(*learn, "--columns", "l:drop,b:number,*:drop")


def test_codes_are_names(file, call, tmp_path):
    draw = random.Random(3)
    row_numbers = [start + draw.randrange(300) for start in (4_000, 117_900, 290_800) for _ in range(12)]
    rows = [
        {"role": draw.choice(row_numbers), "zip": 75001 + i % 7, "cents": 5 * draw.randrange(9_000), "y": i % 2}
        for i in range(250)
    ]
    table = file("rows.csv", "role,zip,cents,y", *(",".join(map(str, row.values())) for row in rows))
    for path in (table, file("rows.jsonl", *map(json.dumps, rows))):
        learn = ["learn", path, "--label", "y"]
        said = call(*learn).stderr
        assert "read with --columns role:category,zip:category (" in said
        assert re.search(r"^  zip +category +75001, 75002, 75003, ... \(7\) +looks like a code$", said, re.MULTILINE)
        assert call(*learn, "--ask", status=1).stderr.endswith("Try: --columns role:category,zip:category\n")
        assert "read with --columns zip:number,role:category (" in call(*learn, "--columns", "zip:number").stderr
        assert "read with --columns role:number,zip:category (" in call(*learn, "--columns", "role:number").stderr
    call("learn", table, "--label", "y", "--checkpoint", tmp_path / "state", "--quiet")
    assert load(tmp_path / "state")["TableEncoder"].categories == ["role", "zip"]


def test_ids_of_groups_are_categories(file, call):
    """A suggested kind is taken without a question, can be overridden, and is asked about with ``--ask``."""
    draw = random.Random(4)
    effects = [draw.gauss(0, 1) for _ in range(45)]
    shops = [draw.randrange(45) for _ in range(600)]
    lines = (f"{shop + 1},{draw.gauss(0, 1):.3f},{'lh'[effects[shop] + draw.gauss(0, 0.5) > 0]}" for shop in shops)
    learn = ["learn", file("rows.csv", "shop,size,y", *lines), "--label", "y"]
    said = call(*learn).stderr
    note = "looks like an id of a group; perhaps a key, which remembers its last labels (--columns shop:key)"
    assert re.search(rf"^  shop +category +.*\(45\) +{re.escape(note)}$", said, re.MULTILINE)
    assert "read with --columns shop:category (" in said
    assert "category" not in call(*learn, "--columns", "shop:number").stderr
    assert call(*learn, "--ask", status=1).stderr.endswith("Try: --columns shop:category\n")


def test_columns_that_may_be_keys_are_noted(file, call):
    """The note is for names of devices and the like with several values, of which rows may have a new one each."""
    lines = (f"a{i % 9},c{i},{i % 2},{i % 3},{i % 2}" for i in range(240))
    rows = file("rows.csv", "device,customer_id,state,size,y", *lines)
    said = call("learn", rows, "--label", "y").stderr
    keys = r"^  (\w+) +(\w+) +.* (?:looks like an id; )?perhaps a key, which remembers its last labels \(--columns \1:key\)$"
    assert re.findall(keys, said, re.MULTILINE) == [("device", "category"), ("customer_id", "dropped")]
    assert "perhaps a key" not in call("learn", rows, "--learner", "anomaly", "--columns", "y:drop").stderr  # without labels


@pytest.mark.parametrize("kind", ["number", "date"])
def test_text_in_late_rows_of_a_number_column(file, call, tmp_path, kind):
    """Proposed flags are accepted: for a new model, and for a checkpoint that has saved the kinds of columns."""
    cells = [f"2024-01-{1 + i % 28:02d}" if kind == "date" else i % 7 for i in range(400)]
    lines = ["a,city,y", *(f"{cell},{'uv'[i % 2]},{i % 2}" for i, cell in enumerate(cells))]
    learn = ["learn", file("rows.csv", *lines[:250]), "--label", "y"]
    state = ["--checkpoint", tmp_path / "state"]
    call(*learn, *state)
    file("rows.csv", *lines[:300], '"gone, lost",u,0', *lines[300:])
    said = call(*learn, *state, status=1).stderr
    advice = (
        "leave its row out. If it marks a missing value, make it empty: only a new model can be learned with "
        """missing=['gone, lost'] (--missing '"gone, lost"'). To skip such rows: --on-error skip"""
    )
    assert advice in said
    assert "categor" not in said
    missing = ["--missing", '"gone, lost"']
    call(*learn, *state, *missing, status=1, says="contradicts the checkpoint")
    assert call(*learn, *missing, "--quiet").end["refused"] == {}
    assert call(*learn, *state, "--on-error", "skip", "--quiet").end["refused"] == {"not a number": 1}
    file("rows.csv", *lines[:300], ",u,0", *lines[300:])
    assert call(*learn, "--quiet").end["learned"] == 401


def test_column_with_late_first_value(file, call, tmp_path):
    lines = ["a,city,y", *(f"{'gone' * (i == 300)},{'uv'[i % 2]},{i % 2}" for i in range(400))]
    learn = ["learn", file("rows.csv", *lines[:250]), "--label", "y"]
    state = ["--checkpoint", tmp_path / "state"]
    call(*learn, *state)
    file("rows.csv", *lines)
    said = call(*learn, *state, status=1).stderr
    assert "(--columns a:category)" in said
    assert "A run that resumes from a checkpoint reads columns as before: fix the value, or leave its row out. To skip" in said
    call(*learn, *state, "--columns", "a:category", status=1, says="contradicts the checkpoint")
    assert call(*learn, "--columns", "a:category,city:category", "--quiet").end["learned"] == 400
    assert call(*learn, *state, "--on-error", "skip", "--quiet").end["refused"] == {"not a number": 1}


def test_a_mark_may_be_that_of_one_column(file, call, tmp_path):
    """NA is a country in one column, and nothing in another."""
    cells = [("DE", "NA", "US", "FR")[i * i % 7 % 4] for i in range(300)]
    lines = [f"{cell},{'NA' if i % 3 else i % 50},{'yes' if cell == 'NA' else 'no'}" for i, cell in enumerate(cells)]
    learn = ["learn", file("rows.csv", "country,age,y", *lines), "--label", "y", "--checkpoint", tmp_path / "state"]
    said = call(*learn, "--max-rows", 200).stderr
    assert "read with --columns country:category,age:number=NA (" in said
    progress = call(*learn, "--quiet").end
    assert (progress["learned"], progress["refused"]) == (300, {})
    encoder = load(tmp_path / "state")["TableEncoder"]
    assert (encoder.columns, encoder.missing) == ({"country": "category", "age": "number=NA"}, [])
    assert encoder.column_state.find_unknown_names("country", ["NA", "none"]) == {"none": 1}
    call(*learn, "--columns", "country:category,age:number=-", status=1, says="contradicts the checkpoint")
    call(*learn, "--columns", "country:category,age:number=NA")
    call(*learn[:4], "--columns", "country:drop=NA", status=2, says="country is dropped")
    assert encoder.clone().columns == encoder.columns


@pytest.mark.parametrize(
    ("usual", "mark", "flag"),
    [
        (lambda i: 20 + i * i % 61, "-999", "--columns a:number=-999"),
        (lambda i: 20_000 + 997 * i % 60_000, "99999", "--columns a:number=99999"),
        (lambda i: round(math.sin(i), 3), "1e38", "--columns a:number=1e+38"),
        (lambda i: 1_000 + 37 * i, "0", "--columns a:number=0"),
        (lambda i: f"20{18 + i % 8}-03-{1 + i % 28:02d}", "9999-12-31", "--missing 9999-12-31"),
        (lambda i: 20 + i * i % 61, "95", ""),  # near the others
        (lambda i: 20 + i * i % 61, "inf", ""),  # no number at all
        (lambda i: 10 * (i % 7), "0", ""),
    ],
)
def test_outliers_may_be_missing_value_sentinels(file, call, usual, mark, flag):
    path = file("rows.csv", "a,y", *(f"{mark if i % 9 == 4 else usual(i)},{i % 2}" for i in range(100)))
    said = call("learn", path, "--label", "y").stderr
    assert (f"{flag})" in said and "far from all others" in said) if flag else "far from" not in said
    if flag:
        call("learn", path, "--label", "y", *flag.split(), says="missing in 11")


def test_outlying_parquet_dates_may_be_missing_value_sentinels(tmp_path, call):
    pyarrow = pytest.importorskip("pyarrow")
    for none, flag in ((date.max, "9999-12-31"), (datetime(9999, 12, 31, 2), "'9999-12-31 02:00:00'")):
        since = [none if i % 9 == 4 else type(none)(2018 + i % 8, 3, 1 + i % 28) for i in range(100)]
        table = pyarrow.table({"since": since, "y": [i % 2 for i in range(100)]})
        importlib.import_module("pyarrow.parquet").write_table(table, tmp_path / "rows.parquet")
        learn = ["learn", tmp_path / "rows.parquet", "--label", "y", "--columns", "since:date"]
        call(*learn, says=f"far from all others, may mean missing (--missing {flag})")
        call(*learn, "--missing", flag.strip("'"), says="missing in 11")


@pytest.mark.parametrize("names", ["NA EMEA APAC", "NA EU", "NA ZA BW"])
@pytest.mark.parametrize("flags", ["", "--columns region:category"])
def test_a_mark_of_numbers_may_be_a_name_elsewhere(file, call, names, flags):
    names = names.split()
    cells = ((names[i % len(names)], "NA" if i % 9 == 4 else i * i % 31, i % 2) for i in range(90))
    path = file("rows.csv", "region,a,y", *(f"{a},{b},{y}" for a, b, y in cells))
    said = call("learn", path, "--label", "y", *flags.split()).stderr
    assert "read with --columns region:category,a:number=NA (" in said


@pytest.mark.parametrize(
    ("lines", "label", "words"),
    [
        (["5.1,3.5,a", *(f"{i % 7}.5,{i % 5}.5,{'ab'[i % 2]}" for i in range(40))], "a", "its first line looks like a row"),
        (["0,1,2", *(f"{i % 7}.5,{i % 5}.5,{i % 2}" for i in range(40))], "2", ""),
        (["a,y", *(f"{i % 7},{['Yes', 'yes', 'no'][i % 3]}" for i in range(40))], "y", "'Yes' and 'yes' are two labels"),
    ],
)
def test_a_first_look_warns_once(file, call, lines, label, words):
    with warnings.catch_warnings(action="default"):
        said = call("learn", file("rows.csv", *lines), "--label", label, "--quiet").stderr
    assert said.count("warning: ") == said.count(words or "warning: ") == bool(words)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_run_continues_with_the_replacement_of_gaps_that_was_inferred(kind, tmp_path, call):
    """The first look names the mean where numbers have gaps: a run continues without the flag, and with it."""
    rows = [{"a": None if i % 7 == 2 else i % 5, "b": i % 3, "y": i % 2} for i in range(300)]
    path, state = write_rows(tmp_path / f"rows.{kind}", rows), tmp_path / "state"
    learn = ["learn", path, "--label", "y", "--checkpoint", state]
    assert "--when-missing mean" in call(*learn, "--max-rows", 100).stderr
    call(*learn, "--max-rows", 100)
    call(*learn, "--when-missing", "mean", says="300 rows")
    call("predict", path, "--model", state, "--to", tmp_path / "out.csv", "--when-missing", "mean", says="300 rows predicted")
    call(*learn, "--when-missing", "indicator", status=1, says="which was learned with --when-missing mean")


def test_a_declared_quantity_is_a_number_to_predict(tmp_path, call):
    """Also if it has few values, in the command line and in Python."""
    rows = [{"a": i * 7 % 11, "size": f"{i * 13 % 9} kg"} for i in range(100)]
    call("learn", write_rows(tmp_path / "rows.csv", rows), "--label", "size", "--columns", "size:quantity=kg", says="MAE")
    assert isinstance(table_model(rows, "size", columns="size:quantity=kg"), base.Regressor)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_declared_kind_that_values_lack_is_not_dropped_in_silence(kind, tmp_path, call):
    path = write_rows(tmp_path / f"rows.{kind}", [{"a": f"{i * 7 % 11}.5", "c": "uv"[i % 3 > 1], "y": i % 2} for i in range(60)])
    says = "a (said to be a duration, and has "
    done = call("learn", path, "--label", "y", "--columns", "a:duration", status=1, says=says)
    assert done.last.endswith("Try: --columns a:drop,c:category")


@pytest.mark.filterwarnings("default")
def test_cycles_without_dates_are_pointed_out(tmp_path, call):
    path = write_rows(tmp_path / "rows.csv", [{"a": i % 7, "y": i % 2} for i in range(60)])
    with pytest.warns(UserWarning, match="no column is a date, so cycles of day add nothing"):
        table_model(path, "y", cycles="day")
    call("learn", path, "--label", "y", "--cycles", "day", says="rows.csv: no column is a date, so cycles of day add nothing")
