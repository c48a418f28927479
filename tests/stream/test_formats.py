"""A table in different formats: learning from each gives the same bytes, and the same predictions of the others."""

import copy
import csv
import datetime
import gzip
import json
import random
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from saved import dumps
from streamsvm import BSGDClassifier
from streamsvm.stream import FileSink, IterableSource, LearningLoop, PredictionLoop, open_source
from streamsvm.stream.tables import TableEncoder

READING = {"columns": "code:category,city:category,member:category,size:category,at:date,id:drop"}
N = 400


def rows():
    """Rows as Python objects, with columns of each kind and missing values."""
    draw, first_day, rows_made = random.Random(3), datetime.datetime(2025, 1, 1), []
    for i in range(N):
        a, code, member = draw.gauss(0.0, 1.0), draw.randrange(1, 90), draw.random() < 0.5
        rows_made.append(
            {
                "id": f"k-{i}",
                "a": round(a, 4),
                "b": None if draw.random() < 0.1 else draw.randrange(50),
                "code": None if draw.random() < 0.1 else code,
                "city": None if draw.random() < 0.1 else draw.choice(["Ulm", "Köln", 'the "Loop"', "Bari, Sud"]),
                "member": member,
                "size": Decimal(draw.randrange(1, 9)) / 4 + Decimal("0.00"),
                "at": first_day + datetime.timedelta(minutes=37 * i),
                "y": "yes" if (a > 0.0) ^ (member and code > 30) else "no",
            }
        )
    return rows_made


ROWS = rows()


def text_of(value, **spelling):
    """A value as text in a file."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return spelling.get("bools", ("false", "true"))[value]
    return f"{value}.0" if type(value) is int and spelling.get("floats") else str(value)


def as_csv(path, rows, **spelling):
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerows([list(rows[0]), *([text_of(value, **spelling) for value in row.values()] for row in rows)])


def as_json(path, rows, texts=False):
    def plain(value):
        if isinstance(value, datetime.datetime | Decimal) or (texts and value is not None and not isinstance(value, bool)):
            return f" {value} " if texts else str(value)
        return value

    path.write_text("".join(json.dumps({name: plain(value) for name, value in row.items()}) + "\n" for row in rows))


def table_of(rows, dictionary=False, binary=False):
    table = pa.Table.from_pylist(rows)
    if dictionary or binary:
        for name in ("city", "y"):
            column = table[name].cast(pa.binary()) if binary else table[name].dictionary_encode()
            table = table.set_column(table.column_names.index(name), name, column)
    return table


def as_arrow(path, rows, **options):
    table = table_of(rows, **options)
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=150)
        return
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=150)


#: The suffix of each format, and the function that writes it.
FORMATS = {
    "csv": (".csv", as_csv),
    "csv as pandas writes gaps": (".csv", lambda path, rows: as_csv(path, rows, floats=True, bools=("False", "True"))),
    "csv, packed": (".csv.gz", lambda path, rows: as_csv(path, rows, bools=("FALSE", "TRUE"))),
    "json": (".jsonl", as_json),
    "json, texts": (".jsonl", lambda path, rows: as_json(path, rows, texts=True)),
    "parquet": (".parquet", as_arrow),
    "parquet, dictionaries": (".parquet", lambda path, rows: as_arrow(path, rows, dictionary=True)),
    "parquet, bytes": (".parquet", lambda path, rows: as_arrow(path, rows, binary=True)),
    "arrow": (".arrow", as_arrow),
    "dicts": (None, None),
}


def opened(tmp_path, kind, rows):
    """A source of the rows in a format."""
    suffix, write = FORMATS[kind]
    if suffix is None:
        return IterableSource([({name: value for name, value in row.items() if name != "y"}, row["y"]) for row in rows])
    path = tmp_path / f"{kind.replace(' ', '-').replace(',', '')}{suffix}"
    write(path, rows)
    return open_source(str(path), label="y", **READING)


def learned(source):
    with source:
        return LearningLoop(source, TableEncoder(**READING, max_values=20) | BSGDClassifier(30, seed=1)).run().model


def predicted(source, model, path):
    with source, FileSink(path) as sink:
        PredictionLoop(source, model, sink).run()
    return [json.loads(line)["y_pred"] for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def model_of_dicts(tmp_path_factory):
    """The model of the rows as dicts, one after the other."""
    return learned(opened(tmp_path_factory.mktemp("dicts"), "dicts", ROWS))


@pytest.mark.parametrize("kind", list(FORMATS))
def test_a_table_is_the_same_in_every_format(tmp_path, model_of_dicts, kind):
    source, expected = opened(tmp_path, kind, ROWS), copy.deepcopy(model_of_dicts)
    model = learned(source)
    if source.columns:  # dicts have no order of columns
        expected["BSGDClassifier"].note_columns(source.columns)
    assert dumps(model) == dumps(expected)
    assert predicted(opened(tmp_path, kind, ROWS), model_of_dicts, tmp_path / "out.jsonl") == [
        model_of_dicts.predict_one({name: value for name, value in row.items() if name != "y"}) for row in ROWS
    ]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.Table.from_pylist], ids=["pandas", "polars", "pyarrow"])
def test_frames_give_the_same_as_dicts(model_of_dicts, make):
    frame = make([{name: value for name, value in row.items() if name != "y"} for row in ROWS])
    predictions = model_of_dicts.predict_many(frame)
    one_by_one = [model_of_dicts.predict_one({name: value for name, value in row.items() if name != "y"}) for row in ROWS]
    assert list(predictions.to_pylist() if hasattr(predictions, "to_pylist") else predictions) == one_by_one
    encoder, other_encoder = (TableEncoder(**READING, max_values=20, cycles="day", when_missing="indicator") for _ in range(2))
    encoder.learn_many(frame)
    for row in ROWS:
        other_encoder.learn_one({name: value for name, value in row.items() if name != "y"})
    assert dumps(encoder) == dumps(other_encoder)
    assert type(encoder.transform_many(frame)) is type(frame)
