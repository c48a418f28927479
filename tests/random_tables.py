"""Small random tables for tests: columns of many kinds, with gaps and in several orders, written in each format."""

import bz2
import csv
import datetime as dt
import gzip
import io
import json
import random
from dataclasses import dataclass

import pandas as pd
import polars as pl
import pyarrow as pa
from pyarrow import feather, parquet

START = dt.datetime(2024, 3, 1, 8)
#: Functions that write a number from 0 to 1,000, by notation; tables of all formats hold the texts.
NOTATIONS = {
    "decimal comma": lambda value: f"{value:.2f}".replace(".", ","),
    "German": lambda value: f"{10 * value:,.2f}".translate(str.maketrans(",.", ".,")) + " €",
    "dollars": lambda value: f"${100 * value:,.2f}",
    "percent": lambda value: f"{value / 10:.1f}%",
    "limit": lambda value: "<50" if value < 50 else ">950" if value > 950 else f"{value:.1f}",
    "unit": lambda value: f"{value:.1f} kg",
    "no-break space": lambda value: f"\u00a0{value:.1f}",
    "hexadecimal": lambda value: f"0x{int(value):04X}",
    "exponent": lambda value: f"{value:.3e}",
    "duration": lambda value: f"0 days {int(value) // 60:02d}:{int(value) % 60:02d}:00",
}
DATE_FORMATS = ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%d.%m.%Y", "%d/%m/%Y %H:%M", "%Y-%m-%dT%H:%M:%SZ", "%d %b %Y", "%Y%m%d"]
NAMES = ["a", "b", "Größe", "c d", "price", "x1", "Rate %", "e", "f_2", "level"]
WORDS = ["Oslo", "Paris", "São Paulo", "New York", "Rome", "Köln", "a, b", 'say "so"', "x;y", "pro", "basic"]
ENCODINGS = ["utf-8", "utf-8", "utf-8-sig", "cp1252", "utf-16"]


@dataclass
class Column:
    """A column: ``texts`` as in a text file, and ``values`` as in a typed format; None in both for a gap."""

    name: str
    kind: str
    texts: list
    values: list


@dataclass
class Table:
    """The columns of a table. The last one is the label ``y``."""

    columns: list
    regression: bool
    order: str

    def __len__(self):
        return len(self.columns[0].texts)

    @property
    def names(self):
        return [column.name for column in self.columns]

    @property
    def kinds(self):
        return [column.kind for column in self.columns]

    def to_dicts(self, typed=True, absent=False, nested=False):
        """Return the rows as dicts: with values or texts, with gaps as None or as absent keys, and ``m.p`` as ``{"m": ...}``."""
        rows = []
        is_text = {column.name: not typed and column.name != "y" for column in self.columns}  # a label "true" is not a boolean
        columns = [column.texts if is_text[column.name] else column.values for column in self.columns]
        for cells in zip(*columns, strict=True):
            row = {}
            for name, cell in zip(self.names, cells, strict=True):
                if cell is None and absent:
                    continue
                outer, _, inner = name.partition(".")
                (row.setdefault(outer, {}) if nested and inner else row)[inner if nested and inner else name] = cell
            rows.append(row)
        return rows


def make_values(rng, kind, n):
    """Return the texts and values of a column without gaps."""
    if kind == "number":
        scale, digits = 10.0 ** rng.randint(-3, 5), rng.choice([1, 3, 6])
        values = [float(f"{scale * rng.gauss(rng.choice([0, 2]), 1):.{digits}e}") for _ in range(n)]
    elif kind == "whole":
        values = [rng.randrange(rng.choice([2, 9, 400])) for _ in range(n)]
    elif kind in NOTATIONS:
        texts = [NOTATIONS[kind](rng.uniform(0, 1000)) for _ in range(n)]
        return texts, texts
    elif kind == "category":
        words = rng.sample(WORDS, rng.randint(2, 6))
        values = [rng.choice(words) for _ in range(n)]
    elif kind == "code":
        codes = [f"{rng.randrange(500):0{rng.choice([3, 5])}d}" for _ in range(rng.randint(3, 20))]
        values = [rng.choice(codes) for _ in range(n)]
    elif kind == "many":
        values = [f"v{rng.randrange(60)}" for _ in range(n)]
    elif kind == "date":
        form = rng.choice(DATE_FORMATS)
        moments = [START + dt.timedelta(minutes=rng.randrange(200_000)) for _ in range(n)]
        texts = [moment.strftime(form) for moment in moments]
        return texts, [dt.datetime.strptime(text, form) for text in texts]
    elif kind == "time":
        values = [(START + dt.timedelta(minutes=rng.randrange(1440))).time() for _ in range(n)]
        return [value.strftime("%H:%M:%S") for value in values], values
    elif kind == "bool":
        values = [rng.random() < 0.4 for _ in range(n)]
        return list(map(str, values)), values
    elif kind == "id":
        values = list(range(1, n + 1))
    elif kind == "constant":
        values = [rng.choice([7, 0.5, "same"])] * n
    else:
        values = [1 if rng.random() < 0.3 else None for _ in range(n)]
    return [None if value is None else str(value) for value in values], values


KINDS = ["number", "number", "whole", "category", "code", "many", "date", "time", "bool", "id", "constant", *NOTATIONS]
TEXT_KINDS = ["category", "code", "many"]
LABELS = ["words", "words", "three", "0/1", "bool", "True/False", "float", "whole", "dollars"]


def make_labels(rng, kind, n, scores):
    """Return texts and values of labels that depend on ``scores`` from 0 to 1."""
    noisy = [min(1.0, max(0.0, score + rng.gauss(0, 0.2))) for score in scores]
    if kind == "words":
        values = ["yes" if score > 0.5 else "no" for score in noisy]
    elif kind == "three":
        values = ["lmh"[min(2, int(3 * score))] for score in noisy]
    elif kind == "0/1":
        values = [int(score > 0.5) for score in noisy]
    elif kind in ("bool", "True/False"):
        values = [score > 0.5 for score in noisy]
        texts = [str(value) for value in values] if kind == "True/False" else ["true" if value else "false" for value in values]
        return texts, values
    elif kind == "float":
        values = [round(100 * score, 2) + 0.005 for score in noisy]
    elif kind == "whole":
        values = [int(1000 * score) for score in noisy]
    else:
        texts = [NOTATIONS["dollars"](1000 * score) for score in noisy]
        return texts, texts
    return list(map(str, values)), values


def make_table(rng):
    """Return a random table of 60 to 120 rows and 2 to 6 columns besides the label. Some have 200 more, and late gaps."""
    n = rng.randint(60, 120)
    n_complete = 0 if n % 10 else 210
    n += n_complete and 200
    kinds = ["present"] * rng.randint(4, 6) if rng.random() < 0.08 else [rng.choice(KINDS) for _ in range(rng.randint(2, 6))]
    if not {*kinds} - {"id", "constant"}:
        kinds.append("number")
    names = rng.sample(NAMES, len(kinds))
    if rng.random() < 0.15 and "present" not in kinds:
        names[:2] = ["m.p", "m.q"][: len(names)]
    columns = []
    for name, kind in zip(names, kinds, strict=True):
        texts, values = make_values(rng, kind, n)
        if kind not in ("id", "constant", "present") and rng.random() < 0.3:
            share, mark = rng.choice([0.02, 0.2, 0.6]), rng.choice([None, None, "NA", "-", "nan"])
            gaps = [rng.random() < share and i >= n_complete for i in range(n)]
            is_text = kind in TEXT_KINDS  # its typed values have the marker, too
            mark = None if kind == "bool" else mark
            texts = [mark if gap else text for gap, text in zip(gaps, texts, strict=True)]
            values = [(mark if is_text else None) if gap else value for gap, value in zip(gaps, values, strict=True)]
        is_called_id = kind == "id" and rng.random() < 0.5 and all(column.name != "id" for column in columns)
        columns.append(Column("id" if is_called_id else name, kind, texts, values))
    numbers = [column for column in columns if column.kind not in TEXT_KINDS]
    markers = {text for column in numbers for text, value in zip(column.texts, column.values, strict=True) if value is None}
    for column in columns:  # a marker of numbers means "missing" in all columns
        column.values = [None if column.kind in TEXT_KINDS and value in markers else value for value in column.values]
    kind = rng.choice(LABELS)
    texts, values = make_labels(rng, kind, n, [column_rank(columns, i) for i in range(n)])
    if rng.random() < 0.15:
        gaps = [rng.random() < 0.1 for _ in range(n)]
        texts, values = ([None if gap else cell for gap, cell in zip(gaps, cells, strict=True)] for cells in (texts, values))
    columns.append(Column("y", kind, texts, values))
    order = rng.choice(["random", "random", "random", "sorted by label", "newest first"])
    dates = [column for column in columns if column.kind == "date"]
    if order == "sorted by label":
        sort_rows(columns, lambda i: (texts[i] is not None, texts[i] or ""))
    elif order == "newest first" and dates:
        moments = dates[0].values
        sort_rows(columns, lambda i: -(moments[i] or START).timestamp())
    return Table(columns, kind in ("float", "whole", "dollars"), order)


def column_rank(columns, i):
    """Return a number from 0 to 1 that depends on the first informative column of row ``i``."""
    column = next((column for column in columns if column.kind not in ("id", "constant")), columns[0])
    return random.Random(repr(column.texts[i])).random()


def sort_rows(columns, key):
    order = sorted(range(len(columns[0].texts)), key=key)
    for column in columns:
        column.texts, column.values = [column.texts[i] for i in order], [column.values[i] for i in order]


def csv_text(table, rows=slice(None), delimiter=",", quoting=csv.QUOTE_MINIMAL, end="\n"):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end)
    writer.writerow(table.names)
    writer.writerows(
        [["" if cell is None else cell for cell in row] for row in zip(*(c.texts for c in table.columns), strict=True)][rows]
    )
    return text.getvalue()


def json_cell(value):
    return value.isoformat() if isinstance(value, dt.time) else str(value) if isinstance(value, dt.datetime) else value


def json_rows(table, **options):
    return [
        json.dumps({k: v if isinstance(v, dict) else json_cell(v) for k, v in row.items()}, default=json_cell)
        for row in table.to_dicts(**options)
    ]


def arrow_table(table, typed=True, nested=False):
    rows = table.to_dicts(typed=typed, nested=nested)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return pa.table(columns)


def pandas_frame(table):
    *_, label = table.columns
    frame = pd.DataFrame({column.name: column.values for column in table.columns})
    return frame.assign(y=pd.Series(label.values, dtype=object)) if None in label.values else frame  # 0 would become 0.0


def polars_frame(table):
    return pl.DataFrame({column.name: column.values for column in table.columns}, strict=False)


def write_plain_csv(table, folder, rng):
    path = folder / "rows.csv"
    path.write_text(csv_text(table), encoding="utf-8", newline="")
    return path


def write_csv(table, folder, rng):
    """Write a CSV file in another dialect, encoding or compression."""
    delimiter, quoting = rng.choice(",;|\t"), rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    text, encoding = csv_text(table, slice(None), delimiter, quoting, rng.choice(["\n", "\r\n"])), rng.choice(ENCODINGS)
    suffix = ".tsv" if delimiter == "\t" and rng.random() < 0.7 else ".csv"
    data = text.encode(encoding)
    pack, ending = rng.choice([(bytes, ""), (bytes, ""), (gzip.compress, ".gz"), (bz2.compress, ".bz2")])
    path = folder / f"dialect{suffix}{ending}"
    path.write_bytes(pack(data))
    return path


def write_parts(table, folder, rng):
    """Write several files, and return their pattern."""
    (folder / "parts").mkdir()
    step = len(table) // 3 + 1
    for i in range(3):
        (folder / "parts" / f"part-{9 + i}.csv").write_text(
            csv_text(table, slice(i * step, (i + 1) * step)), encoding="utf-8", newline=""
        )
    return folder / "parts" / "*.csv"


def write_lines(path, rows):
    path.write_text("\n".join([*rows, ""]))
    return path


def write_jsonl(table, folder, rng):
    return write_lines(folder / "rows.jsonl", json_rows(table, nested=True))


def write_jsonl_absent(table, folder, rng):
    path = folder / "absent.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join([*json_rows(table, absent=True), ""]).encode()))
    return path


def write_text_jsonl(table, folder, rng):
    return write_lines(folder / "texts.jsonl", json_rows(table, typed=False))


def write_objects(table, folder, rng):
    path = folder / "objects.json"
    path.write_text("\n".join(json.dumps(json.loads(row), indent=2) for row in json_rows(table)))
    return path


def write_parquet(table, folder, rng):
    parquet.write_table(arrow_table(table, nested=True), folder / "rows.parquet")
    return folder / "rows.parquet"


def write_text_parquet(table, folder, rng):
    parquet.write_table(arrow_table(table, typed=False), folder / "texts.parquet")
    return folder / "texts.parquet"


def write_pandas_parquet(table, folder, rng):
    pandas_frame(table).to_parquet(folder / "pandas.parquet")
    return folder / "pandas.parquet"


def write_arrow(table, folder, rng):
    path = folder / "rows.arrow"
    with pa.ipc.new_file(path, (arrow := arrow_table(table)).schema) as writer:
        writer.write_table(arrow, 17)
    return path


def write_feather(table, folder, rng):
    feather.write_feather(arrow_table(table), folder / "rows.feather", compression="lz4")
    return folder / "rows.feather"


def are_plain_numbers(table):
    """Return whether LIBSVM text can hold a table: all columns are numbers without gaps, and each row has a label."""
    *columns, label = table.columns
    kinds_fit = {column.kind for column in columns} <= {"number", "whole", "exponent"} and label.kind != "dollars"
    return kinds_fit and all(None not in column.values for column in table.columns)


def write_libsvm(table, folder, rng):
    """Write LIBSVM text, whose features are numbers in the order of the names of the columns."""
    *columns, label = table.columns
    cells = zip(*(column.texts for column in sorted(columns, key=lambda column: column.name)), strict=True)
    rows = [" ".join(f"{i + 1}:{text}" for i, text in enumerate(row)) for row in cells]
    return write_lines(folder / "rows.libsvm", [f"{y} {row}" for y, row in zip(label.texts, rows, strict=True)])


#: Functions that write a table into a folder, and return the path, by format.
FILES = {
    "csv": write_plain_csv,
    "dialect": write_csv,
    "parts": write_parts,
    "jsonl": write_jsonl,
    "absent": write_jsonl_absent,
    "text jsonl": write_text_jsonl,
    "objects": write_objects,
    "parquet": write_parquet,
    "text parquet": write_text_parquet,
    "pandas parquet": write_pandas_parquet,
    "arrow": write_arrow,
    "feather": write_feather,
}
#: Functions that make a table for Python, by its form.
FRAMES = {
    "dicts": lambda table: table.to_dicts(nested=True),
    "absent dicts": lambda table: table.to_dicts(absent=True),
    "text dicts": lambda table: table.to_dicts(typed=False),
    "pandas": pandas_frame,
    "polars": polars_frame,
    "pyarrow": arrow_table,
}
