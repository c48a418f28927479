"""Options of sources, and Parquet and Arrow files."""

import json
import subprocess
import sys
from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from streamsvm.stream import ArrowSource, CSVSource, JSONLinesSource, StreamError, open_source

CSV = "id;zip;since;n;y\na1;01234;02.01.1970;-;ja\na2;75001;03.01.1970;2,5;nein\n"


def rows_of(source):
    with source:
        return [tuple(row) for row in source]


def test_options_of_text(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(("\ufeff" + CSV.replace("2,5", '"2.5"')).encode())
    options = {"delimiter": ";", "drop": "id", "categorical": ["zip"], "dates": {"since": "%d.%m.%Y"}, "missing": "-"}
    expected = [({"zip": "01234", "since": 86400.0}, "ja"), ({"zip": "75001", "since": 172800.0, "n": 2.5}, "nein")]
    assert rows_of(CSVSource(path, "y", **options)) == expected
    assert rows_of(open_source(str(path), label="y", features=["n"], delimiter=";")) == [({"n": "-"}, "ja"), ({"n": 2.5}, "nein")]
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"id": "a1", "zip": "01234", "since": "02.01.1970", "n": "-", "y": "ja"}\n')
    del options["delimiter"]
    assert rows_of(JSONLinesSource(lines, "y", **options)) == expected[:1]


def test_encodings(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes("größe,y\n1,ä\n".encode("latin-1"))
    assert rows_of(CSVSource(path, "y", encoding="Latin1")) == [({"größe": 1.0}, "ä")]
    with pytest.raises(StreamError, match=r"not UTF-8: .* latin-1"):
        rows_of(CSVSource(path, "y"))
    with pytest.raises(StreamError, match=r"utf-16 cannot be read line by line\. Convert it"):
        CSVSource(path, encoding="utf-16")
    with pytest.raises(StreamError, match="'ascii7' is not known"):
        CSVSource(path, encoding="ascii7")


def test_what_a_table_lacks_is_said(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(CSV)
    with pytest.raises(StreamError, match=r"no column 'y' for the label.*Is ';' the delimiter\?"):
        rows_of(CSVSource(path, "y"))
    with pytest.raises(StreamError, match=r"no column 'idd'. It has: id, zip"):
        rows_of(CSVSource(path, "y", delimiter=";", drop="idd"))
    with pytest.raises(StreamError, match="one character"):
        CSVSource(path, delimiter=";;")
    with pytest.raises(StreamError, match="drop means nothing for a libsvm"):
        open_source("rows.libsvm", drop="a")
    with pytest.raises(StreamError, match=r"drop means nothing for a stream with a URL. Put a .*TableEncoder"):
        open_source("kafka://localhost:9092/rows", drop="a")
    with pytest.raises(StreamError, match="standard input"):
        open_source("-", format="parquet")


def test_a_position_is_of_the_columns_that_were_read(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(CSV)
    options = {"delimiter": ";", "drop": "id", "dates": {"since": None}, "encoding": "latin-1"}
    source = CSVSource(path, "y", **options)
    next(iter(source))
    position = json.loads(json.dumps(source.position))
    source.close()
    again = CSVSource(path, "y", **options)
    again.seek(position)
    assert len(rows_of(again)) == 1
    for name in options:
        other = CSVSource(path, "y", **{key: value for key, value in options.items() if key != name})
        with pytest.raises(StreamError, match=rf"read with .*{name}=.*Ask for the same"):
            other.seek(position)
        other.close()


TABLE = {
    "n": [1, None, 3, 4, 5],
    "city": ["Paris", "Oslo", None, "Oslo", "Rome"],
    "at": [datetime(1970, 1, day) for day in range(1, 6)],
    "ok": [True, False, None, True, True],
    "y": ["a", "b", "a", None, "b"],
}


@pytest.fixture(params=["parquet", "arrow"])
def table_file(request, tmp_path):
    table = pa.table({**TABLE, "city": pa.array(TABLE["city"]).dictionary_encode()})
    path = tmp_path / f"rows.{request.param}"
    if request.param == "parquet":
        parquet.write_table(table, path, row_group_size=2)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            for batch in table.to_batches(max_chunksize=2):
                writer.write_batch(batch)
    return path


def test_tables_of_arrow_resume_after_any_row(table_file):
    options = {"drop": "ok", "dates": "at"}
    source = open_source(str(table_file), label="y", **options)
    rows, positions = [], [source.position]
    for row in source:
        rows.append(tuple(row))
        positions.append(source.position)
    source.close()
    assert rows[0] == ({"n": 1, "city": "Paris", "at": 0.0}, "a")
    assert rows[2] == ({"n": 3, "at": 2 * 86400.0}, "a")
    assert rows[3][1] is None
    assert len(rows) == 5
    for done, position in enumerate(positions):
        again = open_source(str(table_file), label="y", **options)
        again.seek(json.loads(json.dumps(position)))
        assert rows_of(again) == rows[done:]
        with pytest.raises(RuntimeError, match="read already"):
            again.seek(position)


def test_what_an_arrow_file_refuses(table_file, tmp_path):
    source = open_source(str(table_file), label="y")
    next(iter(source))
    position = source.position
    assert source.place.endswith("row 1")
    source.stop()
    assert list(source) == []
    source.close()
    for label, options, words in (("n", {}, "label 'y', not 'n'"), ("y", {"drop": "n"}, "no options, not with")):
        with open_source(str(table_file), label=label, **options) as other, pytest.raises(StreamError, match=words):
            other.seek(position)
    with open_source(str(table_file), label="y") as other:
        with pytest.raises(StreamError, match="another kind"):
            other.seek({"rows": 1})
        with pytest.raises(StreamError, match="not the file"):
            other.seek({**position, "file": "0"})
    with pytest.raises(StreamError, match=r"no column 'z' for the label\. It has: n, city"):
        open_source(str(table_file), label="z")
    kind = table_file.suffix[1:]
    for content in (b"", b"n,y\n1,2\n", table_file.read_bytes()[:-8]):
        path = tmp_path / f"bad.{kind}"
        path.write_bytes(content)
        with pytest.raises(StreamError, match="bad"):
            ArrowSource(path, "y")
    with pytest.raises(StreamError, match="No such file"):
        ArrowSource(tmp_path / f"none.{kind}")


def test_large_batches_of_arrow_are_held_in_pieces(tmp_path):
    table = pa.table({"n": list(range(5000)), "y": [0, 1] * 2500})
    path = tmp_path / "rows.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    source = ArrowSource(path, "y")
    assert max(batch.num_rows for batch in source._batches(1500)) == 1024
    source.seek({**source.position, "rows": 1500})
    assert next(iter(source)).x == {"n": 1500}
    source.close()


def test_without_pyarrow_the_remedy_is_said(table_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "streamsvm\[files\]"'):
        ArrowSource(table_file)


@pytest.mark.once
def test_a_corrupt_arrow_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "rows.arrow"
    names = pa.array(["Oslo", "Paris", None] * 50)
    table = pa.table({"city": names, "kind": names.dictionary_encode(), "y": [0, 1, 2] * 50})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    data, n = path.read_bytes(), 200
    script = (
        "import sys\nfrom streamsvm.stream import ArrowSource, StreamError\n"
        "refused = 0\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        with ArrowSource(path, label='y') as source: list(source)\n"
        "    except StreamError: refused += 1\n"
        "print(refused)\n"
    )
    rng, paths = np.random.default_rng(5), []
    for i in range(n):
        spoilt = bytearray(data)
        for at in rng.integers(200, len(data) - 200, 8):
            spoilt[at] = int(rng.choice([0, 127, 128, 255]))
        paths.append(tmp_path / f"{i}.arrow")
        paths[-1].write_bytes(spoilt)
    done = subprocess.run([sys.executable, "-c", script, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > n / 10
