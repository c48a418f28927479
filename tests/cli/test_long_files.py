"""A file that is too long to be read within a second is looked at in its middle and at its end, too."""

import gzip
import importlib
import json
import re

import pytest

LATER = {  # of a long file: what only its middle and its end show
    "a text": ("a", lambda i, n: "gone" if n * 0.505 < i < n * 0.53 else i % 7, "'gone' in "),
    "days that are no months": ("a", lambda i, n: f"{1 + 24 * (i > 0.6 * n)}/0{1 + i % 9}/2024", "a:date=%d/%m/%Y"),
    "an id": ("id", lambda i, _: 5000 + i, "looks like an id"),
}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("problem", LATER)
def test_the_middle_and_the_end_of_a_long_file(file, call, tmp_path, monkeypatch, kind, problem):
    monkeypatch.setattr("streamsvm.stream.schema.table_inference._MAX_CELLS", 0)
    name, value, said = LATER[problem]
    n = 60_000
    rows = [{name: value(i, n), "b": "x, y" if i % 2 else "z", "n": i % 5, "y": i % 2} for i in range(n)]
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        path = tmp_path / "rows.parquet"
        table = pyarrow.Table.from_pylist([row | {name: str(row[name])} if problem == "a text" else row for row in rows])
        importlib.import_module("pyarrow.parquet").write_table(table, path, row_group_size=n // 10)
    elif kind == "jsonl":
        path = file("rows.jsonl", *map(json.dumps, rows))
    else:
        path = file("rows.csv", f"{name},b,n,y", *(f'{row[name]},"{row["b"]}",{row["n"]},{row["y"]}' for row in rows))
    assert said in call("learn", path, "--label", "y", "--max-rows", 100).stderr


def test_sampled_parts_of_long_files_are_rows(file, call, tmp_path, monkeypatch):
    """Lines within a multi-line cell are not sampled as rows; compressed files are sampled only at their beginning."""
    monkeypatch.setattr("streamsvm.stream.schema.table_inference._MAX_CELLS", 0)
    lines = [f'{i % 7},"a text\nof,three\nlines",{i % 2}' for i in range(30_000)]
    said = call("learn", file("rows.csv", "a,b,y", *lines), "--label", "y", "--max-rows", 100).stderr
    assert re.search(r"^  a +number +0( to 6)?$", said, re.MULTILINE)
    lines = [f"{'word' if i > 2000 else i % 7},{i % 5},{i % 2}" for i in range(90_000)]
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress("\n".join(["a,b,y", *lines, ""]).encode(), 1))
    assert "word" not in call("learn", path, "--label", "y", "--max-rows", 100).stderr
    (tmp_path / "more").mkdir()
    for part in (0, 1):
        (tmp_path / "more" / f"{part}.csv").write_text("\n".join(["a,b,y", *lines[: 2000 + part * 50_000], ""]))
    assert "word" not in call("learn", tmp_path / "more", "--label", "y", "--max-rows", 100).stderr


def test_a_file_that_is_damaged_further_on(call, tmp_path, monkeypatch):
    """It is learned as far as it can be read."""
    monkeypatch.setattr("streamsvm.stream.schema.table_inference._MAX_CELLS", 0)
    pyarrow, parquet = pytest.importorskip("pyarrow"), importlib.import_module("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"a": list(range(40_000)), "y": [0, 1] * 20_000}), path, row_group_size=10_000)
    data = bytearray(path.read_bytes())
    offset = parquet.read_metadata(path).row_group(2).column(0).data_page_offset
    data[offset : offset + 2000] = bytes(2000)
    path.write_bytes(data)
    assert call("learn", path, "--label", "y", "--max-rows", 100, "--quiet").end["learned"] == 100
