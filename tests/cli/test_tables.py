"""Tables on the command line: the first look, flags, checkpoints that have them, and flags from a file."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_words import with_a_model
from streamsvm import load
from streamsvm.cli.arguments import names
from streamsvm.cli.first_look import column_of
from streamsvm.cli.main import _parser
from streamsvm.cli.screens import EXAMPLES
from streamsvm.cli.tables import columns_of, columns_text, flags_of
from streamsvm.stream.tables import Reading

ROOT = Path(__file__).parents[2]
PEOPLE = "id,city,since,age,y\n" + "".join(
    f"n{i},{'Paris' if i % 2 else 'Oslo'},{1 + i % 28:02d}.01.2024,{'?' if i % 7 == 0 else 20 + i % 40},{i % 2}\n"
    for i in range(300)
)
ANSWERS = ["--columns", "id:drop,city:category,since:date=%d.%m.%Y", "--missing", "?"]


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE)
    return path


def test_text_without_an_answer_stops_with_flags_that_serve(people, call):
    done = call("learn", people, "--label", "y")
    assert done.returncode == 1
    assert "first look" in done.stderr
    flags = done.stderr.splitlines()[-1].partition("Try: ")[2]
    assert flags == "--columns id:drop,city:category,since:date=%d.%m.%Y --missing '?'"
    done = call("learn", people, "--label", "y", *flags.replace("'", "").split(), "--quiet")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["metric"] > 0.95
    done = call("learn", people, "--label", "y", "--columns", "since:drop", "--quiet")
    assert "--columns since:drop,id:drop,city:category --missing '?'" in done.stderr  # the flag stands there with what it had


@pytest.mark.parametrize("flags", [[], ["--columns", "id:drop"]])
def test_bounded_values_are_counted(tmp_path, call, flags):
    path = tmp_path / "rows.csv"
    path.write_text("id,a,y\n" + "".join(f"{i % 50},{1e9 if i == 200 else i % 10},{i % 2}\n" for i in range(300)))
    done = call("learn", path, "--label", "y", "--bound", 8, "--quiet", *flags)
    assert json.loads(done.stdout.splitlines()[-1])["bounded"] == 1


def test_a_resumed_run_and_predict_need_no_flags_and_refuse_others(people, tmp_path, call):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    assert call("learn", people, "--label", "y", "--checkpoint", whole, *ANSWERS).returncode == 0
    assert call("learn", people, "--label", "y", "--checkpoint", pieces, *ANSWERS, "--max-rows", 123).returncode == 0
    done = call("learn", people, "--label", "y", "--checkpoint", pieces)
    assert done.returncode == 0, done.stderr
    assert "first look" not in done.stderr
    assert (whole / "checkpoint-000000000300.ckpt").read_bytes() == (pieces / "checkpoint-000000000300.ckpt").read_bytes()
    assert call("learn", people, "--label", "y", "--checkpoint", pieces, *ANSWERS).returncode == 0
    for flags, words in (
        (
            ["--columns", "id:drop,age:drop"],
            "contradicts the checkpoint, which was learned with --columns id:drop,city:category,since:date=%d.%m.%Y.",
        ),
        (["--when-missing", "mean"], "learned with no --when-missing"),
        (["--delimiter", ";"], "learned with no --delimiter"),
    ):
        done = call("learn", people, "--label", "y", "--checkpoint", pieces, *flags)
        assert done.returncode == 1
        assert words in done.stderr

    new = tmp_path / "new.csv"  # without what is dropped, and written in another way
    new.write_bytes("city;since;age\nOslo;02.01.2024;?\nParis;03.01.2024;30\nTromsø;03.01.2024;30\n".encode("latin-1"))
    assert "contradicts" in call("predict", new, "--model", pieces, "--to", "-", "--columns", "since:category").stderr
    done = call("predict", new, "--model", pieces, "--to", "-", "--delimiter", ";", "--encoding", "latin-1")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["y_pred"] for line in done.stdout.splitlines()[:2]] == [0, 1]
    rows = tmp_path / "new.jsonl"
    rows.write_text('{"city": "Oslo", "since": "02.01.2024", "age": "?", "id": "n7"}\n')
    done = call("predict", rows, "--model", pieces, "--to", "-")
    assert json.loads(done.stdout.splitlines()[0])["y_pred"] == 0, done.stderr
    assert load(pieces).predict_one({"city": "Paris", "age": "31"}) == 1


def test_delimiter_and_encoding_are_saved(tmp_path, call):
    path, state = tmp_path / "rows.csv", tmp_path / "state"
    path.write_bytes("größe\ty\n".encode("latin-1") + b"".join(b"%d\t%d\n" % (i % 5, i % 5 > 2) for i in range(100)))
    done = call("learn", path, "--label", "y", "--checkpoint", state, "--delimiter", "tab", "--encoding", "latin-1")
    assert done.returncode == 0, done.stderr
    assert call("learn", path, "--label", "y", "--checkpoint", state).returncode == 0
    assert call("predict", path, "--label", "y", "--model", state, "--to", "-").returncode == 0
    assert load(state).feature_names == ["größe"]


def test_a_text_among_numbers_costs_its_row_where_rows_may_fail(tmp_path, call):
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n" + "".join(f"{'oops' if i == 7 else i},{i % 2}\n" for i in range(60)))
    assert "Try: --missing oops" in call("learn", path, "--label", "y").stderr
    done = call("learn", path, "--label", "y", "--on-error", "skip", "--quiet")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["learned"] == 59


@pytest.mark.thorough
@pytest.mark.parametrize("text", ['{"a": 1, "city": "Oslo", "y": 1}\n', "a,city,y\n1,Oslo,1\n"])
def test_the_first_row_of_a_pipe_is_looked_at(text):
    words = ["learn", "-", "--format", "jsonl" if text[0] == "{" else "csv", "--label", "y"]
    command = [sys.executable, "-m", "streamsvm", *with_a_model(words)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    place = "standard input, line " + ("1" if text[0] == "{" else "2")
    assert f"{place}: 1 column needs a flag: city (text)" in done.stderr
    assert re.search(r"^  city +text +Oslo$", done.stderr, re.MULTILINE)
    words = [*command, "--columns", "city:category,town:category"]
    done = subprocess.run([*words[:-1], "city:category"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^  city +category +Oslo$", done.stderr, re.MULTILINE)
    if text[0] == "{":  # of which not all rows have all fields
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert re.search(r"^  town +category +not in this row$", done.stderr, re.MULTILINE)


def test_flags_from_a_file(people, tmp_path, call):
    config, state = tmp_path / "flags.toml", tmp_path / "state"
    config.write_text(
        f"source = '{people}'\nlabel = 'y'\nquiet = true\nstop-at-end = false\n"
        f"missing = ['?']\ncolumns = {{id = 'drop', city = 'category', since = 'date=%d.%m.%Y'}}\n"
        f"[learn]\ncheckpoint = '{state}'\nlearner = 'bsgd,budget=20,l2=0.001,gamma=0.25'\nmax_rows = 7\n"
        f"[predict]\nmodel = '{state}'\nto = '-'\nquiet = false\n"
    )
    done = call("learn", "--config", config, "--max-rows", 300)
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(call("inspect", state, "--json").stdout)
    assert facts["budget"] == 20
    assert facts["effective_gamma"] == 0.25
    assert "l2=0.001" in facts["parameters"]
    config.write_text(config.read_text().replace("quiet = true\n", ""))
    done = call("predict", "--config", config)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 300
    assert call("predict", people.with_name("none.csv"), "--config", config).stderr.endswith("No such file or directory\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lable = 'y'", "lable is no flag of learn or predict"),
        ("[learn]\nto-do = 1", "to-do is no flag of learn"),
        ("[predict]\nbudget = 1", "budget is no flag of predict"),
        ("learn = 1", "learn must be a table"),
        ("config = 'x'", "config is no flag"),
        ("label = 2024-01-01", "label cannot be"),
        ("label =", "not TOML"),
        ("window = 'many'", "must be a whole number"),
        ("label = 'y'", "required: SOURCE"),
    ],
)
def test_a_file_of_flags_that_is_wrong(tmp_path, call, text, words):
    config = tmp_path / "flags.toml"
    config.write_text(text)
    done = call("learn", "--config", config)
    assert done.returncode == 2
    assert words in done.stderr
    assert "No such file" in call("learn", "--config", tmp_path / "none.toml").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--columns", "city:drop,city:category"], "city stands there twice"),
        (["--format", "libsvm", "--columns", "1:drop"], "--columns 1:drop means nothing for LIBSVM text"),
        (["--format", "parquet", "--delimiter", ";"], "--delimiter ';' means nothing for parquet"),
        (["--when-missing", "median"], "invalid choice"),
    ],
)
def test_flags_that_mean_nothing(people, call, words, message):
    done = call("learn", people, "--label", "y", *words)
    assert done.returncode == 2
    assert message in done.stderr


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


def test_numbers_as_text_and_wide_tables(tmp_path, call):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({f"f{i}": str(n * i % 7) for i in range(50)} | {"y": n % 2}) + "\n" for n in range(30)))
    done = call("learn", path, "--label", "y")
    assert "and 11 of number, 1 of label" not in done.stderr.splitlines()[0]
    assert "  and 10 of number, 1 of label" in done.stderr.splitlines()
    flags = shlex.split(done.stderr.partition("Try: ")[2])
    assert call("learn", path, "--label", "y", *flags).returncode == 0


def test_a_number_that_counts_up_is_dropped_where_flags_are_needed(tmp_path, call):
    path = tmp_path / "rows.csv"
    path.write_text("id,city,y\n" + "".join(f"{i},{'ab'[i % 2]},{i % 3}\n" for i in range(40)))
    assert call("learn", path, "--label", "y").stderr.endswith("Try: --columns id:drop,city:category\n")


@pytest.mark.parametrize(
    ("cells", "flag", "served"),
    [
        (["31.12.2024", "30.11.2024"], "at:date", "--columns at:date=%d.%m.%Y"),
        (["2024-12-31", "never"], "at:date", "--missing never"),
        (["1st", "2nd", "3rd", "4th"], "at:date", "--columns at:date=FORMAT"),
        (["2024-12-31"], "at:date=%d.%m.%Y", "--columns at:date"),
    ],
)
def test_dates_that_are_written_in_another_way(tmp_path, call, cells, flag, served):
    path = tmp_path / "rows.csv"
    path.write_text("at,y\n" + "".join(f"{cell},{i % 2}\n" for i, cell in enumerate(cells)))
    done = call("learn", path, "--label", "y", "--columns", flag)
    assert done.stderr.endswith(f"Try: {served}\n")


def test_dates_that_are_written_as_numbers(tmp_path, call):
    path = tmp_path / "rows.csv"
    path.write_text("day,n,y\n" + "".join(f"202401{1 + i % 31:02d},{20240000 + i},{i % 2}\n" for i in range(62)))
    done = call("learn", path, "--label", "y")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stderr.splitlines() if "read it with --columns day:date" in line] == ["day"]
    state = tmp_path / "state"
    assert call("learn", path, "--label", "y", "--columns", "day:date", "--checkpoint", state).returncode == 0
    assert load(state)["TableEncoder"].transform_one({"day": "2024-01-16", "n": 20240031})["day"] == pytest.approx(0.0, abs=0.1)


def test_help_shows_groups_and_examples_that_parse(call):
    text = call("learn", "--help", "all").stdout
    assert all(f"\n{group}:\n" in text for group in ("source and predictions", "the table", "the model", "the score", "the run"))
    commands = re.findall(r"streamsvm (.*)", EXAMPLES.replace("\\\n", ""))
    assert len(re.findall(r"^  \S", EXAMPLES, re.MULTILINE)) == 5
    parser, _ = _parser()
    for command in commands:
        parser.parse_args([word.strip("'") for word in command.split()])


def test_names_with_commas():
    assert names('a, "b, c",d') == ["a", "b, c", "d"]


FIGURE = re.compile(r"0\.\d{4}|\d+ support vectors")


@pytest.mark.thorough
def test_transcripts_of_ten_tables():
    page = (ROOT / "docs" / "tables.md").read_text()
    spec = importlib.util.spec_from_file_location("tables_example", ROOT / "examples" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    assert len(tables.TABLES) == 10
    made = tables.page()
    assert FIGURE.sub("", made) == FIGURE.sub("", page)  # figures differ between processors
    for ours, shown in zip(re.findall(r"0\.\d{4}", made), re.findall(r"0\.\d{4}", page), strict=True):
        assert float(ours) == pytest.approx(float(shown), abs=0.02)


@pytest.mark.parametrize("regression", [True, False])
def test_decimal_commas(tmp_path, call, regression):
    path, plain = tmp_path / "umsatz.csv", tmp_path / "plain.csv"
    rows = [(1209.28 + 37.5 * i, 77.5 - i / 4, 1000.25 + i if regression else i % 2) for i in range(120)]

    def written(value):
        return f"{value:,.2f}".translate(str.maketrans(",.", ".,")) if isinstance(value, float) else str(value)

    path.write_text("umsatz;alter;y\n" + "".join(";".join(map(written, row)) + "\n" for row in rows))
    plain.write_text(
        "umsatz,alter,y\n"
        + "".join(",".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row) + "\n" for row in rows)
    )
    words = ["--label", "y", "--bound", "8", "--quiet", *(["--regression"] if regression else [])]
    done = call("learn", path, "--delimiter", ";", *words)
    assert done.returncode == 1
    assert done.stderr.endswith("Try: --decimal ,\n")
    done = call("learn", path, "--delimiter", ";", "--decimal", ",", *words, "--checkpoint", tmp_path / "state")
    assert done.returncode == 0, done.stderr
    expected = json.loads(call("learn", plain, *words).stdout.splitlines()[-1])
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["learned"], end["refused"]) == (120, {})
    assert end["metric"] == pytest.approx(expected["metric"], abs=0.02 if not regression else 1.0)
    done = call("predict", path, "--delimiter", ";", "--model", tmp_path / "state", "--to", tmp_path / "out.csv", "--quiet")
    assert json.loads(done.stdout)["predicted"] == 120


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.209,28", 1209.28),
        ("77,5", 77.5),
        ("-3", -3.0),
        ("13 100,0", 13100.0),
        ("1'000", 1000.0),
        ("1.5", 1.5),
        ("a,b", "a,b"),
        ("1,2,3", "1,2,3"),
    ],
)
def test_numbers_with_a_decimal_comma(text, value):
    assert Reading(decimal=",").row([("a", text)]) == {"a": value}


def test_odd_values_of_a_first_look(tmp_path, call):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": ' + "9" * 400 + ', "y": 1}\n' + '{"a": 1, "y": 0}\n' * 9)
    done = call("learn", path, "--label", "y", "--on-error", "skip")
    assert "1 to a huge number" in done.stderr
    assert "1 refused" in done.stderr
    path.write_text('{"a": NaN, "y": 1}\n{"a": NaN, "y": 0}\n')
    assert call("learn", path, "--label", "y").stderr.endswith("Try: --missing nan\n")
    path.write_text(f'{{"{"b" * 100_000}": 1, "two\\nlines": 2, "y": 1}}\n')
    done = call("learn", path, "--label", "y")
    assert len(done.stderr) < 2000
    assert "  two lines" in done.stderr
    path = tmp_path / "rows.csv"
    path.write_text("id,a,y\nA1,1,0\nB2,nan,1\nC3,2,0\n")
    done = call("learn", path, "--label", "y", "--columns", "id:drop")
    assert (done.returncode, "missing in 1" in done.stderr) == (0, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id", "id cannot be read: it is NAME:KIND,..., where KIND is drop, category, date, date=FORMAT or number"),
        ("id:drop,city:town", "city:town cannot be read"),
        ("id:drop,id:number", "id stands there twice"),
        ("id:drop city:category", "id:drop city:category cannot be read"),
        (":drop", "a name is empty"),
        ("*:drop", "nothing is left to learn from"),
        ("id:drop,*:drop", "nothing is left to learn from"),
        ("id:drop,y:category", "y is the label"),
        ("id:drop=x", "only dates have a format, and id is of kind drop"),
        ("*:number", "* stands for all other columns, which can be dropped: *:drop"),
        ("*:drop,a:number", "*:drop is about all other columns, and stands at the end"),
        ('"a:drop', '"a:drop cannot be read'),
    ],
)
def test_columns_that_cannot_be_read(people, call, text, message):
    done = call("learn", people, "--label", "y", "--columns", text)
    assert done.returncode == 2
    assert message in done.stderr


@given(
    st.dictionaries(
        st.text(),
        st.sampled_from(["drop", "category", "number"]) | st.none() | st.text(min_size=1),
        min_size=1,
    ),
    st.booleans(),
)
def test_columns_are_read_as_they_are_written(kinds, others_dropped):
    options = {
        "drop": [name for name, kind in kinds.items() if kind == "drop"],
        "categorical": [name for name, kind in kinds.items() if kind == "category"],
        "dates": {name: kind for name, kind in kinds.items() if kind not in ("drop", "category", "number")},
        "numbers": [name for name, kind in kinds.items() if kind == "number"],
    }
    if others_dropped and len(options["drop"]) < len(kinds):
        options["features"] = [*options["categorical"], *options["dates"], *options.pop("numbers")]
    assert columns_of(columns_text(options)) == {name: value for name, value in options.items() if value}
    assert shlex.split(flags_of(options)) == ["--columns", columns_text(options)]


def test_a_flag_that_stands_twice_is_one(people, tmp_path, call):
    config = tmp_path / "flags.toml"
    config.write_text("columns = {id = 'drop', city = 'drop'}\nmissing = '?'\n")
    words = ["--label", "y", "--config", config, "--learner", "linear", "--columns", "since:date=%d.%m.%Y"]
    done = call("learn", people, *words, "--columns", "city:category", "--checkpoint", tmp_path / "state")
    assert done.returncode == 0, done.stderr
    encoder = load(tmp_path / "state")["TableEncoder"]
    assert [[*of] for of in (encoder.drop, encoder.categorical, encoder.dates)] == [["id"], ["city"], ["since"]]


def test_the_order_of_columns_says_nothing(people, tmp_path, call):
    words = ["learn", people, "--label", "y", "--missing", "?", "--checkpoint", tmp_path / "state", "--columns"]
    assert call(*words, "since:drop,id:drop,city:category").returncode == 0
    assert call(*words, "city:category,id:drop,since:drop").returncode == 0
    said = call(*words, "id:number").stderr
    assert (
        "--columns id:number contradicts the checkpoint, which was learned with --columns since:drop,id:drop,city:category."
        in said
    )


def test_columns_that_are_said_to_hold_numbers(tmp_path, call):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"a": str(i % 7), "b": i % 5, "y": i % 2}) + "\n" for i in range(60)))
    assert "Try: --columns a:number\n" in call("learn", path, "--label", "y").stderr
    assert call("learn", path, "--label", "y", "--columns", "a:number").returncode == 0
    path = tmp_path / "rows.csv"
    path.write_text("id,city,y\n" + "".join(f"{i},{'ab'[i % 2]},{i % 3}\n" for i in range(40)))
    assert call("learn", path, "--label", "y", "--columns", "id:number").stderr.endswith(
        "Try: --columns city:category,id:number\n"
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("{id = true}", "id in columns must be drop, category, number, date or date=FORMAT, not True"),
        ("{id = 'drop, city:category'}", "id in columns must be"),
        ("true", "columns cannot be True"),
        ("{id = 'drop', '*' = 'drop'}", "nothing is left to learn from"),
    ],
)
def test_columns_of_a_file_that_cannot_be_read(people, tmp_path, call, columns, message):
    config = tmp_path / "flags.toml"
    config.write_text(f"columns = {columns}\n")
    done = call("learn", people, "--label", "y", "--config", config)
    assert done.returncode == 2
    assert message in done.stderr


def test_columns_of_a_file_as_a_list(people, tmp_path, call):
    config = tmp_path / "flags.toml"
    config.write_text("columns = ['id:drop', 'since:drop', '\"city\":category']\nmissing = '?'\nlearner = 'bsgd'\n")
    done = call("learn", people, "--label", "y", "--config", config)
    assert done.returncode == 0, done.stderr
