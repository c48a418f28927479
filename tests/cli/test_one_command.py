"""A table is learned by one command: what its first look proposes is done, and said."""

import gzip
import json

import pytest

from streamsvm import load
from streamsvm.stream.csv_dialect import detect_csv_options
from streamsvm.stream.schema.source_sample import sample_files


def shoppers(n=400):
    """Rows of a table in German, with semicolons, decimal commas and umlauts."""
    cities = ["K\u00f6ln", "Bonn", "Z\u00fcrich"]
    rows = (f"{i};{cities[i % 3]};{i % 9 + 1}.{100 + i % 90},5{i % 10};{1 + i % 28:02d}.03.2024;{i % 3 == 1:d}" for i in range(n))
    return ["id;Ort;Umsatz;Tag;gekauft", *rows]


def test_a_table_from_elsewhere_is_read_without_a_flag(tmp_path, call):
    path = tmp_path / "kunden.csv"
    path.write_bytes("\n".join(shoppers()).encode("latin-1"))
    done = call("learn", path, "--label", "gekauft", "--checkpoint", tmp_path / "state")
    said = done.stderr.partition("read with ")[2].partition(" (")[0]
    with_flags = ["--columns", "id:drop,Ort:category,Tag:date=%d.%m.%Y", "--encoding", "cp1252", "--delimiter", ";"]
    for flag in ("--columns id:drop,Ort:category,Tag:date=%d.%m.%Y", "--encoding cp1252", "--delimiter ';'", "--decimal ,"):
        assert flag in said
    second_run = call("learn", path, "--label", "gekauft", *with_flags, "--decimal", ",", "--checkpoint", tmp_path / "other")
    assert done.last.split()[4:6] == second_run.last.split()[4:6]
    one, two = (load(tmp_path / name)["TableEncoder"] for name in ("state", "other"))
    row = {"id": 7, "Ort": "Z\u00fcrich", "Umsatz": "1.234,5", "Tag": "03.03.2024"}
    assert one.transform_one(row) == two.transform_one(row)
    # A checkpoint keeps the reading, and predictions need no flag.
    call("learn", path, "--label", "gekauft", "--checkpoint", tmp_path / "state", says="continuing after row 400")
    predict = ["predict", path, "--model", tmp_path / "state", "--to", tmp_path / "out.csv", "--quiet"]
    assert call(*predict).end["predicted"] == 400


def test_regression_is_resumed_and_predicted(file, call, tmp_path):
    path = file("rows.csv", "a,y", *(f"{i % 50},{(i % 50) * 1.5}" for i in range(500)))
    learn = ["learn", path, "--label", "y", "--checkpoint", tmp_path / "state", "--quiet"]
    assert call(*learn, "--max-rows", 300).end["metric_name"] == "MAE"
    progress = call(*learn).end
    assert (progress["metric_name"], progress["rows"]) == ("MAE", 500)


@pytest.mark.parametrize(
    ("labels", "metric"),
    [
        ([f"{i}" for i in range(26)], "Accuracy"),
        ([f"{i}" for i in range(150)], "MAE"),
        ([f"{i / 2}" for i in range(6)], "MAE"),
        (["1.5", "2.5"], "Accuracy"),
    ],
)
def test_which_labels_are_numbers_to_predict(file, call, labels, metric):
    path = file("rows.csv", "a,y", *(f"{i % 50},{labels[i % len(labels)]}" for i in range(400)))
    assert call("learn", path, "--label", "y", "--quiet").end["metric_name"] == metric


def test_a_label_beyond_all_floats_is_a_label(file, call):
    rows = [f'{{"a": {i % 7}, "y": {10**400 if i == 5 else i % 2}}}' for i in range(60)]
    progress = call("learn", file("rows.jsonl", *rows), "--label", "y", "--quiet").end
    assert (progress["learned"], progress["metric_name"]) == (60, "Accuracy")


def test_inferred_flags_are_logged_as_an_event(file, call):
    path = file("rows.csv", "a,b,y", *(f"{i % 7},{'uv'[i % 2]},{i % 2}" for i in range(60)))
    lines = call("learn", path, "--label", "y", "--log-format", "json").stderr.splitlines()
    (event,) = (line for line in map(json.loads, lines) if line.get("event") == "reading")
    assert event["flags"] == "--columns b:category"


@pytest.mark.parametrize(
    ("name", "first", "message"),
    [
        ("rows.csv", "a,y,b\n1,2,3\n", "has 'a', 'y', 'b'. Perhaps --label y"),
        ("rows.csv", "a;b\n1;2\n", "has 'a', 'b'. Perhaps --label b"),
        ("rows.jsonl", '{"a": 1, "the class": 2}\n', "has 'a', 'the class'. Perhaps --label 'the class'"),
    ],
)
def test_a_label_is_proposed(tmp_path, call, name, first, message):
    (tmp_path / name).write_text(first)
    call("learn", tmp_path / name, status=2, says=message)


@pytest.mark.parametrize(
    ("data", "label", "options", "expected"),
    [
        (b"a,b,y\n1,2,3\n", "y", {}, {}),
        (b"a;b;y\n1,5;2;3\n", "y", {}, {"delimiter": ";"}),
        (b"a\tb,c\ty\n1\t2,3\t3\n", "y", {}, {"delimiter": "\t"}),
        (b"a|b|y\n1|2|3\n", "y", {}, {"delimiter": "|"}),
        (b"a|b|y\n1|2|3\n", "y", {"delimiter": ","}, {}),
        (b'a,"b;c;d",y\n1,2,3\n', "y", {}, {}),
        (b"a;b,c;d,e;y\n1;2,3;4,5;6\n", "y", {}, {"delimiter": ";"}),
        (b'a,t,y\n1,"x;\ny;",3\n2,z,4\n', "y", {}, {}),
        (b"y\n1\n", "y", {}, {}),
        (b"", "y", {}, {}),
        (b"\xef\xbb\xbfa;y\n1;2\n", "a", {}, {"delimiter": ";"}),
        ("a,\u00e9,y\n1,2,3\n".encode(), "y", {}, {}),
        ("a,\u00e9,y\n1,2,3\n".encode("latin-1"), "y", {}, {"encoding": "cp1252"}),
        ("a,\u00e9,y\n1,2,3\n".encode("latin-1"), "y", {"encoding": "latin-1"}, {}),
        (b"a,\x81,y\n1,2,3\n", "y", {}, {}),
        (b"a,y\n\xff,1\n" + b"1,2\n" * 9 + b"\xe4,1\n", "y", {}, {}),  # damaged
        (b"a,y\n\xff,1\n" + b"1,2\n" * 9 + b"\xe4,1\n\xc3,2\n", "y", {}, {"encoding": "cp1252"}),
        (b"a,y\n\xff,1\n" + b"1,2\n" * 9 + b"\xe4,1\n\xc3,2\n\xc3\xa4,3\n", "y", {}, {}),
    ],
)
def test_how_text_is_written(tmp_path, data, label, options, expected):
    for name, packed in (("rows.csv", data), ("rows.csv.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(packed)
        assert detect_csv_options(sample_files(str(tmp_path / name), "csv").head, label, options) == expected


def test_schema_inference_ignores_unreadable_sources(tmp_path):
    (tmp_path / "damaged.csv.gz").write_bytes(b"\x1f\x8b\x08")
    assert sample_files(str(tmp_path / "damaged.csv.gz"), "csv").head == b""
    assert sample_files(str(tmp_path / "none.csv"), "csv") is None
    assert sample_files("-", "csv") is None
