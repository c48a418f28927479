"""Flags about tables: how they are written, runs and predictions that have them from a checkpoint, and what contradicts it."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm import load
from streamsvm.stream.tables.column_kinds import format_columns, parse_columns
from streamsvm.stream.tables.table_schema import format_flags

ROOT = Path(__file__).parents[2]
ANSWERS = ["--columns", "id:drop,city:category,since:date=%d.%m.%Y", "--missing", "?"]


@pytest.fixture
def learn(file, call):
    """Learns a table of people."""
    people = (
        f"n{i},{'Paris' if i % 2 else 'Oslo'},{1 + i % 28:02d}.01.2024,{'?' if i % 7 == 0 else 20 + i % 40},{i % 2}"
        for i in range(300)
    )
    path = file("people.csv", "id,city,since,age,y", *people)
    return lambda *words, **checks: call("learn", path, "--label", "y", *words, **checks)


def test_text_without_an_answer_stops_with_flags_that_serve(learn):
    flags = learn("--ask", status=1, says="first look").last.partition("Try: ")[2]
    assert flags == "--columns id:drop,city:category,since:date=%d.%m.%Y --missing '?'"
    assert learn(*shlex.split(flags), "--quiet").end["metric"] > 0.95
    # The message contains the flag with the saved value.
    said = "--columns since:drop,id:drop,city:category --missing '?'"
    learn("--columns", "since:drop", "--quiet", "--ask", status=1, says=said)


@pytest.mark.parametrize("flags", [[], ["--columns", "id:drop"]])
def test_bounded_values_are_counted(file, call, flags):
    path = file("rows.csv", "id,a,y", *(f"{i % 50},{1e9 if i == 200 else i % 10},{i % 2}" for i in range(300)))
    assert call("learn", path, "--label", "y", "--bound", 8, "--quiet", *flags).end["bounded"] == 1


def test_a_resumed_run_and_predict_need_no_flags_and_refuse_others(learn, file, tmp_path, call):
    whole_folder, pieces = tmp_path / "whole", tmp_path / "pieces"
    learn("--checkpoint", whole_folder, *ANSWERS)
    learn("--checkpoint", pieces, *ANSWERS, "--max-rows", 123)
    assert "first look" not in learn("--checkpoint", pieces).stderr
    assert (whole_folder / "checkpoint-000000000300.ckpt").read_bytes() == (pieces / "checkpoint-000000000300.ckpt").read_bytes()
    learn("--checkpoint", pieces, "--columns", "since:date=%d.%m.%Y,city:category,id:drop", "--missing", "?")  # in any order
    for flags, words in (
        (
            ["--columns", "age:category"],
            "contradicts the checkpoint, which was learned with --columns id:drop,city:category,since:date=%d.%m.%Y.",
        ),
        (["--columns", "id:drop,age:drop"], "--columns age:drop contradicts the model, which has learned it. Leave the flag out"),
        (["--when-missing", "indicator"], "learned with --when-missing mean"),
        (["--delimiter", ";"], "Is ',' the delimiter"),
    ):
        learn("--checkpoint", pieces, *flags, status=1, says=words)

    predict, new = ["--model", pieces, "--to", "-"], tmp_path / "new.csv"  # without dropped columns, and in another format
    new.write_bytes("city;since;age\nOslo;02.01.2024;?\nParis;03.01.2024;30\nTromsø;03.01.2024;30\n".encode("latin-1"))
    call("predict", new, *predict, "--columns", "since:category", status=1, says="contradicts")
    predictions = call("predict", new, *predict, "--delimiter", ";", "--encoding", "latin-1").rows
    assert [row["y_pred"] for row in predictions[:2]] == [0, 1]
    rows = file("new.jsonl", '{"city": "Oslo", "since": "02.01.2024", "age": "?", "id": "n7"}')
    assert call("predict", rows, *predict).rows[0]["y_pred"] == 0
    assert load(pieces).predict_one({"city": "Paris", "age": "31"}) == 1


def test_delimiter_and_encoding_are_saved(tmp_path, call):
    path, state = tmp_path / "rows.csv", tmp_path / "state"
    path.write_bytes("größe\ty\n".encode("latin-1") + b"".join(b"%d\t%d\n" % (i % 5, i % 5 > 2) for i in range(100)))
    call("learn", path, "--label", "y", "--checkpoint", state, "--delimiter", "tab", "--encoding", "latin-1")
    call("learn", path, "--label", "y", "--checkpoint", state)
    call("predict", path, "--label", "y", "--model", state, "--to", "-")
    assert load(state).feature_names == ["größe"]


@pytest.mark.parametrize("regression", [True, False])
def test_decimal_commas(file, tmp_path, call, regression):
    rows = [(1209.28 + 37.5 * i, 77.5 - i / 4, 1000.25 + 41 * i % 120 if regression else i % 2) for i in range(120)]

    def written(value, form):
        return format(value, form) if isinstance(value, float) else str(value)

    plain = file("plain.csv", "umsatz,alter,y", *(",".join(written(value, ".2f") for value in row) for row in rows))
    commas = str.maketrans(",.", ".,")
    path = file("umsatz.csv", "umsatz;alter;y", *(";".join(written(v, ",.2f").translate(commas) for v in row) for row in rows))
    words = ["--label", "y", "--bound", "8", "--quiet", *(["--regression"] if regression else [])]
    assert call("learn", path, "--delimiter", ";", *words, "--ask", status=1).stderr.endswith("Try: --decimal ,\n")
    progress = call("learn", path, "--delimiter", ";", "--decimal", ",", *words, "--checkpoint", tmp_path / "state").end
    assert (progress["learned"], progress["refused"]) == (120, {})
    assert progress["metric"] == pytest.approx(call("learn", plain, *words).end["metric"], abs=0.02 if not regression else 1.0)
    predict = ["predict", path, "--delimiter", ";", "--model", tmp_path / "state", "--to", tmp_path / "out.csv", "--quiet"]
    assert call(*predict).end["predicted"] == 120


MARKS = st.lists(st.text(min_size=1).filter(lambda text: "|" not in text), max_size=2).map("|".join)
KINDS = st.sampled_from(["drop", "date", "category", "number", "category=", "number="])
KINDS |= st.text(min_size=1).map("date={}".format) | MARKS.map("category={}".format) | MARKS.map("number={}".format)


@given(st.dictionaries(st.text().filter(lambda name: name != "*"), KINDS, min_size=1), st.booleans())
def test_columns_are_read_as_they_are_written(kinds, others_dropped):
    if others_dropped:
        kinds["*"] = "drop"
    text = format_columns(kinds)
    assert parse_columns(text) == parse_columns(kinds) == kinds
    assert shlex.split(format_flags({"columns": kinds})) == (
        [f"--columns={text}"] if text.startswith("-") else ["--columns", text]
    )


FIGURE = re.compile(r"0\.\d{4}|\d+ support vectors")


@pytest.mark.thorough
def test_transcripts_of_ten_tables():
    page = (ROOT / "docs" / "tables.md").read_text()
    spec = importlib.util.spec_from_file_location("tables_example", ROOT / "examples" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    assert len(tables.TABLES) == 10
    made = tables.make_page()
    assert FIGURE.sub("", made) == FIGURE.sub("", page)  # figures differ between processors
    for ours, shown in zip(re.findall(r"0\.\d{4}", made), re.findall(r"0\.\d{4}", page), strict=True):
        assert float(ours) == pytest.approx(float(shown), abs=0.02)
