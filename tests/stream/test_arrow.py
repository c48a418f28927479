"""The source of Parquet and Arrow files: columns and rows, resuming, and refused files."""

import math
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from chunks import check_table, chunks_of
from reading import read
from refused import raises
from streamsvm import BSGDClassifier
from streamsvm.stream import ArrowSource, FileSink, LearningLoop, StreamError, open_source

TABLE = {
    "n": [1, None, 3, 4, 5],
    "city": ["Paris", "Oslo", None, "Oslo", "Rome"],
    "at": [datetime(1970, 1, day) for day in range(1, 6)],
    "ok": [True, False, None, True, True],
    "y": ["a", "b", "a", None, "b"],
}


def write(path, table, most=None):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=most)
    return path


@pytest.fixture(params=["parquet", "arrow"])
def table_file(request, tmp_path):
    table = pa.table({**TABLE, "city": pa.array(TABLE["city"]).dictionary_encode()})
    path = tmp_path / f"rows.{request.param}"
    if request.param == "arrow":
        return write(path, table, 2)
    parquet.write_table(table, path, row_group_size=2)
    return path


def test_a_file_without_the_columns_or_of_another_format_is_refused(table_file, tmp_path):
    with open_source(str(table_file), label="y") as source:
        source.read(1)
        source.stop()
        assert list(source) == []
    raises(r"no column 'z' for the label\. It has: n, city", read, table_file, None, "z", error=StreamError)
    kind = table_file.suffix[1:]
    for content in (b"", b"n,y\n1,2\n", table_file.read_bytes()[:-8]):
        (tmp_path / f"bad.{kind}").write_bytes(content)
        raises("bad", ArrowSource, tmp_path / f"bad.{kind}", "y", error=StreamError)
    raises("No such file", ArrowSource, tmp_path / f"none.{kind}", error=StreamError)


TEXTS = ["Oslo", " Rome ", "NA", "", "7", "1,5", "2024-01-02", "nan"]
WHOLE = [2024, 7, -1, 0, 20240131, 1, 99, 3]
FLOATS = [0.5, -0.0, math.nan, math.inf, 7.0, 1e12, 1.0, -2.5]
#: Values of eight rows by the type of their column.
TYPES = {
    **{kind: [abs(value) % 100 for value in WHOLE] for kind in ("int8", "uint8", "int16", "uint16", "uint32", "uint64")},
    **dict.fromkeys(("int32", "int64"), WHOLE),
    "float16": [0.5, -0.0, math.nan, math.inf, 7.0, 1.0, 2.0, -2.5],
    **dict.fromkeys(("float32", "float64"), FLOATS),
    **dict.fromkeys(("string", "large_string"), TEXTS),
    "bool": [True, False] * 4,
    "binary": [b"x", b""] * 4,
    "date32": [date(2024, 1, day) for day in range(1, 9)],
    **{f"timestamp[{unit}]": [datetime(2024, 1, day, 2, 3) for day in range(1, 9)] for unit in ("s", "ms", "us")},
}


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("nulls", [False, True])
def test_columns_and_rows_have_equal_values(tmp_path, kind, nulls):
    columns = {
        name: pa.array([None if nulls and i % 3 == 1 else value for i, value in enumerate(values)], pa.type_for_alias(name))
        for name, values in TYPES.items()
    }
    columns |= {"codes": columns["string"].dictionary_encode(), "coded": columns["int64"].dictionary_encode()}
    columns |= {
        "list": pa.array([[1], None] * 4),
        "null": pa.nulls(8),
        "zoned": columns["timestamp[us]"].cast(pa.timestamp("us", "UTC")),
    }
    decimals = pa.array([Decimal(i) / 2 for i in range(8)], pa.decimal128(10, 3))
    flat, path = pa.table({**columns, "decimal": decimals}), tmp_path / f"rows.{kind}"
    inner = pa.table({"a": pa.array([{"b": i, "c": {"d": "x"}} if i % 2 else None for i in range(8)]), "y": decimals})
    for table in (flat, inner):
        write(path, table) if kind == "arrow" else parquet.write_table(table, path)
        with ArrowSource(path) as source:
            names = source.columns
        ways = [{}, {"missing": ["NA", "7", "1", "nan"]}, {"decimal": ","}, {"columns": dict.fromkeys(names, "category")}]
        ways += [
            {"columns": dict.fromkeys(names, "date")},
            {"columns": dict.fromkeys(names, "date=ms"), "missing": ["7", "2024-01-02"]},
            {"columns": dict.fromkeys(names[:3], "number") | {"*": "drop"}},
            {"columns": dict.fromkeys(names[4:], "drop")},
        ]
        for options in ways:
            for most in (3, 100):
                with ArrowSource(path, **options) as source:
                    assert sum(len(check_table(chunk)) for chunk in chunks_of(source, most)) == 8
        for label in names:
            with ArrowSource(path, label, missing="7") as source:
                assert all(check_table(chunk).y for chunk in chunks_of(source))


def test_large_batches_are_split(tmp_path):
    path = write(tmp_path / "rows.arrow", pa.table({"n": list(range(5000)), "y": [0, 1] * 2500}))
    with ArrowSource(path, "y") as source:
        assert max(batch.num_rows for batch in source._iter_batches(1500)) == 1024
        source.seek({**source.position, "rows": 1500})
        assert next(iter(source)).x == {"n": 1500}


def test_without_pyarrow_the_error_names_the_package(table_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    raises(r'pip install "streamsvm\[files\]"', ArrowSource, table_file, error=ModuleNotFoundError)


@pytest.mark.once
def test_a_corrupt_file_is_refused_before_it_is_read(tmp_path):
    names = pa.array(["Oslo", "Paris", None] * 50)
    table = pa.table({"city": names, "kind": names.dictionary_encode(), "y": [0, 1, 2] * 50})
    data, n = write(tmp_path / "rows.arrow", table).read_bytes(), 200
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


def test_a_time_that_datetime_cannot_hold_is_a_bad_row(tmp_path):
    times = pa.array([*range(499), 253_402_300_800_000, 10**17]).cast(pa.timestamp("ms"))
    parquet.write_table(pa.table({"at": times, "a": [i % 7 for i in range(501)], "y": [0, 1, 1] * 167}), tmp_path / "a.parquet")
    for reading, refused in (({"columns": "at:date"}, {"not a number": 2}), ({"columns": "at:drop"}, {})):
        with ArrowSource(tmp_path / "a.parquet", "y", **reading) as source, FileSink(tmp_path / "out.jsonl") as sink:
            progress = LearningLoop(source, BSGDClassifier(budget=5), sink=sink, passthrough=["at"], on_error="skip").run()
        assert (progress.rows, progress.refused) == (501, refused)


def test_decimals_are_numbers_and_structs_are_columns_by_their_path(tmp_path):
    path = tmp_path / "rows.parquet"
    after = [{"a": Decimal("1.500"), "at": {"x": 1}}, {"a": None, "at": None}, None]
    labels = pa.array([Decimal(1), Decimal(0), Decimal(1)], pa.decimal128(5, 0))
    kind = pa.struct([("a", pa.decimal128(10, 3)), ("at", pa.struct([("x", pa.int64())]))])
    columns = {"after": pa.array(after, kind), "before": pa.array([{"a": 1}] * 3), "n": [1, 2, 3], "y": labels}
    parquet.write_table(pa.table(columns), path)
    with ArrowSource(path, "y", columns="before:drop") as source:
        assert source.columns == ["after.a", "after.at.x", "n", "y"]
        assert list(source) == [({"after.a": 1.5, "after.at.x": 1, "n": 1}, 1), ({"n": 2}, 0), ({"n": 3}, 1)]
    with ArrowSource(path, "after.a", columns="n:number,*:drop") as source:
        assert list(source) == [({"n": 1}, 1.5), ({"n": 2}, None), ({"n": 3}, None)]
    with ArrowSource(path, "n", columns="before:drop,y:drop", missing="2") as source:
        assert [row.y for row in source] == [1, None, 3]
