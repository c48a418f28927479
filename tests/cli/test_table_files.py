"""Files as other programs write them: every door learns the table of their owner, or reports the parts that it leaves out."""

import bz2
import csv
import gzip
import io
import json
import random
import re
import subprocess
import warnings

import pandas as pd
import pyarrow as pa
import pytest
import zstandard

import streamsvm
from chunks import check_chunks, write_rows
from reading import read
from refused import raises
from streamsvm import load
from streamsvm.core.memory.features import make_natural_sort_key
from streamsvm.stream import ArrowSource, BadRow, CSVSource, JSONLinesSource, Row, StreamError, open_source
from streamsvm.stream.files_source import FilesSource

N = 240
draw = random.Random(5)
FRAME = pd.DataFrame(
    {"a": [round(draw.gauss(0, 1), 3) for _ in range(N)], "city": [draw.choice(["Oslo", "Rome", "Lima"]) for _ in range(N)]}
)
FRAME["y"] = ["yes" if (a > 0) == (city != "Rome") else "no" for a, city in zip(FRAME.a, FRAME.city, strict=True)]
SHUFFLED = FRAME.set_axis(draw.sample(range(N), N), axis=0)
LEARN = ["--label", "y", "--learner", "bsgd,budget=20", "--checkpoint"]


def text(frame=FRAME, **options):
    return frame.to_csv(index=False, lineterminator="\n", **options)


def write_text_rows(path, content):
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def of_r(separator, quoting=csv.QUOTE_NONNUMERIC):
    """The text that R's write.table writes: the names of the columns, and each row with its own name before it."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, quoting=quoting, lineterminator="\n")
    writer.writerow(FRAME.columns)
    writer.writerows([str(i), *row] for i, row in enumerate(FRAME.itertuples(index=False), 1))
    return out.getvalue()


def indexed(writer, name=None, frame=SHUFFLED):
    """Return a function that writes a frame with its index to a path."""
    return getattr(frame.rename_axis(name), writer)


def in_folders(suffix):
    """Return a function that writes a folder for each city, as Hive, Spark and pandas do."""

    def write(path):
        for city in dict.fromkeys(FRAME.city):
            folder = path / f"city={city}"
            folder.mkdir(parents=True)
            part = FRAME[FRAME.city == city].drop(columns="city")
            if suffix == "parquet":
                part.to_parquet(folder / "part-0.parquet", index=False)
            elif suffix == "jsonl":
                part.to_json(folder / "part-0.jsonl", orient="records", lines=True)
            else:
                part.to_csv(folder / "part-0.csv", index=False)

    return write


def in_months(path):
    path.mkdir()
    for month in range(1, 13):
        (path / f"month-{month}.csv").write_text(text(FRAME[20 * (month - 1) : 20 * month]))


def write_in(encoding, suffix):
    """Return a function that writes a file in UTF-16, with or without a byte order mark."""

    def write(path):
        path.write_text(text(FOREIGN) if suffix == "csv" else FOREIGN.to_json(orient="records", lines=True), encoding=encoding)

    return write


def write_arrow_stream(path):
    table = pa.Table.from_pandas(FRAME)
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=70)


CITIES = sorted(set(FRAME.city))
BY_LABEL = FRAME[["y", "a", "city"]]
BY_CITY = pd.concat([FRAME[FRAME.city == city] for city in CITIES])
LETTERS = {"Oslo": "Åmål", "Rome": "Köln", "Lima": "Lima"}
FOREIGN = FRAME.assign(city=FRAME.city.map(LETTERS))
INCHES = FRAME.assign(city=[{10: '"6 inch', 13: '6"'}.get(i % 20, city) for i, city in enumerate(FRAME.city)])
#: File or folder, what writes it, the frame that it means, and words of the first look or of a warning.
KINDS = {
    "index of pandas": ("rows.csv", indexed("to_csv"), SHUFFLED, "looks like an index"),
    "index with gaps": ("rows.csv", indexed("to_csv", None, FRAME[::2]), FRAME[::2], "looks like an index"),
    "index read as a column": ("rows.csv", indexed("to_csv", "Unnamed: 0"), SHUFFLED, "looks like an index"),
    "two indexes": ("rows.csv", indexed("to_csv", "Unnamed: 0.1", SHUFFLED.assign(**{"Unnamed: 0": range(N, 0, -1)})), FRAME, ""),
    "index that was reset": (
        "rows.jsonl",
        lambda path: SHUFFLED.reset_index().to_json(path, orient="records", lines=True),
        FRAME,
        "",
    ),
    "index in Parquet": ("rows.parquet", indexed("to_parquet"), SHUFFLED, "looks like an index"),
    "columns of Excel": (
        "rows.csv",
        lambda path: path.write_text(re.sub("\n", ",,,\n", text())),
        FRAME,
        "no value in these rows",
    ),
    "an empty column of Excel": ("rows.csv", lambda path: path.write_text(re.sub("\n", ",\n", text())), FRAME, ""),
    "delimiters at the ends of rows": (
        "rows.csv",
        lambda path: path.write_text(re.sub("\n", ",\n", text()).replace(",\n", "\n", 1)),
        FRAME,
        "no value in these rows",
    ),
    "a delimiter at the end of the header": ("rows.csv", lambda path: path.write_text(text().replace("\n", ",\n", 1)), FRAME, ""),
    "delimiter of Excel": ("rows.csv", lambda path: path.write_text("sep=;\r\n" + text(sep=";")), FRAME, "--delimiter ';'"),
    "marked delimiter of Excel": ("rows.csv", lambda path: path.write_text('\ufeff"sep=\t"\n' + text(sep="\t")), FRAME, ""),
    "a table of R": ("rows.csv", lambda path: path.write_text(of_r(",")), FRAME, "looks like an index"),
    "a table of R with blanks": ("rows.csv", lambda path: path.write_text(of_r(" ")), FRAME, "--delimiter ' '"),
    "a table of R without quotes": ("rows.tsv", lambda path: path.write_text(of_r("\t", csv.QUOTE_NONE)), FRAME, ""),
    "tsv": ("rows.tsv", lambda path: path.write_text(text(sep="\t")), FRAME, ""),
    "tab": ("rows.TAB", lambda path: path.write_text(text(sep="\t")), FRAME, ""),
    "packed tsv": ("rows.tsv.gz", lambda path: write_text_rows(path, text(sep="\t")), FRAME, ""),
    "inches": (
        "rows.tsv",
        lambda path: path.write_text(text(INCHES, sep="\t", quoting=csv.QUOTE_NONE)),
        INCHES,
        "is taken as part",
    ),
    "inches between commas": (
        "rows.csv",
        lambda path: path.write_text(text(INCHES, quoting=csv.QUOTE_NONE, quotechar="'")),
        INCHES,
        "is taken as part",
    ),
    "cp1252 after UTF-8": (
        "rows.csv",
        lambda path: path.write_bytes(text(FOREIGN[:120]).encode() + text(FOREIGN[120:], header=False).encode("cp1252")),
        FOREIGN,
        "read as cp1252",
    ),
    "cp1252 after UTF-8 in JSON": (
        "rows.jsonl",
        lambda path: path.write_bytes(
            b"".join(
                json.dumps(row, ensure_ascii=False).encode("utf-8" if i < 120 else "cp1252") + b"\n"
                for i, row in enumerate(FOREIGN.to_dict("records"))
            )
        ),
        FOREIGN,
        "read as cp1252",
    ),
    **{
        f"{name} in {encoding}": (f"rows.{name}", write_in(encoding, name), FOREIGN, "")
        for name in ("csv", "jsonl")
        for encoding in ("utf-16", "utf-16-le", "utf-16-be")
    },
    "byte order marks between joined files": (
        "rows.csv",
        lambda path: path.write_text(text(BY_LABEL[:120]) + "\ufeff" + text(BY_LABEL[120:], header=False), encoding="utf-8-sig"),
        BY_LABEL,
        "",
    ),
    "byte order marks between joined objects": (
        "rows.jsonl",
        lambda path: path.write_text(("\ufeff" + FRAME.to_json(orient="records", lines=True)) * 2),
        pd.concat([FRAME, FRAME]),
        "",
    ),
    "blank lines at the top": ("rows.csv", lambda path: path.write_text("\n\r\n" + text()), FRAME, ""),
    "other delimiters of Excel": ("rows.csv", lambda path: path.write_text("SEP=;;\n" + text(sep=";")), FRAME, "--delimiter ';'"),
    "psv": ("rows.psv", lambda path: path.write_text(text(sep="|")), FRAME, ""),
    "an Arrow stream": ("rows.arrow", write_arrow_stream, FRAME, ""),
    **{f"folders of {suffix}": ("rows", in_folders(suffix), BY_CITY, "city") for suffix in ("csv", "jsonl", "parquet")},
    "months": ("rows", in_months, FRAME, ""),
}


@pytest.mark.filterwarnings("ignore:.*is taken as part of the text", "ignore:.*read as cp1252")
@pytest.mark.parametrize("kind", KINDS)
def test_files_are_the_table_that_they_mean(kind, tmp_path, call):
    """The table is learned as a plain file of its rows, and predicted, scored and reported through its own file."""
    name, write, frame, words = KINDS[kind]
    path, plain = tmp_path / name, tmp_path / "plain.jsonl"
    write(path)
    frame.to_json(plain, orient="records", lines=True)
    with warnings.catch_warnings(action="default"):
        said = call("learn", path, *LEARN, tmp_path / "state").stderr
    assert words in said
    assert said.count("warning: ") == ("is taken" in words or "cp1252" in words)
    call("learn", plain, *LEARN, tmp_path / "plain")
    model, plain_model = load(tmp_path / "state"), load(tmp_path / "plain")
    rows = [{"a": 0.5, "city": city} for city in sorted(set(frame.city))] + [{"a": -0.5, "city": "Oslo"}]
    assert [model.predict_proba_one(x) for x in rows] == [plain_model.predict_proba_one(x) for x in rows]
    scores = [call("score", source, "--model", tmp_path / "state").stdout for source in (path, plain)]
    assert scores[0] == scores[1]
    call("predict", path, "--model", tmp_path / "state", "--to", tmp_path / "out.jsonl")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == len(frame)
    call("report", tmp_path / "state", path, "--to", tmp_path / "report.html")
    kinds = {column.name: column.kind for column in streamsvm.table_model(str(path), "y").schema.columns if column.values}
    assert {name: kind for name, kind in kinds.items() if kind != "dropped"} == {"a": "number", "city": "category", "y": "label"}


def test_folders_of_columns(tmp_path, call):
    """Numbers in the names of folders are numbers, a missing value has no column, and columns can be dropped."""
    for year, month, rows in ((2023, 12, 60), (2024, 2, 90), (2024, 10, 30)):
        folder = tmp_path / "t" / f"year={year}" / f"month={month}"
        folder.mkdir(parents=True)
        (folder / "part-0.csv").write_text(text(FRAME[:rows]))
    (tmp_path / "t" / "year=__HIVE_DEFAULT_PARTITION__").mkdir()
    (tmp_path / "t" / "year=__HIVE_DEFAULT_PARTITION__" / "x.csv").write_text(text(FRAME[:2]))
    with open_source(str(tmp_path / "t"), label="y") as source:
        rows = list(source)
        assert source.columns == ["a", "city", "y"]
    values = [(row.x.get("year"), row.x.get("month")) for row in rows[::30]]
    assert values == [*[(2023.0, 12.0)] * 2, *[(2024.0, 2.0)] * 3, (2024.0, 10.0), (None, None)]
    with open_source(f"{tmp_path}/t/*/*/*.csv", label="y", columns="year:drop,month:category") as source:
        rows = list(source)
    assert [row.x["month"] for row in rows] == ["12"] * 60 + ["2"] * 90 + ["10"] * 30
    assert not any("year" in row.x for row in rows)
    call("learn", tmp_path / "t", *LEARN, tmp_path / "state", "--columns", "yeer:drop", status=1, says="no column 'yeer'")
    call("learn", tmp_path / "t", *LEARN, tmp_path / "state", "--columns", "month:drop,year:category")
    assert set(load(tmp_path / "state")["TableEncoder"].learned_columns) == {"a", "city", "year"}


def test_an_older_run_resumes_its_order_and_columns(tmp_path):
    """Runs of earlier versions have read files in the order of their names as texts, without columns of folders."""
    for month in range(1, 13):
        (tmp_path / f"x={month}").mkdir()
        (tmp_path / f"x={month}" / "rows.csv").write_text(text(FRAME[20 * (month - 1) : 20 * month]))
    paths = sorted(map(str, tmp_path.glob("*/*.csv")))
    older_rows = [value for path in paths for value in pd.read_csv(path).a]
    for done in range(0, N, 7):
        with open_source(f"{tmp_path}/*/*.csv", label="y") as source:
            with FilesSource("t", paths, lambda path, _: CSVSource(path, "y"), "y") as older:
                rows = [row for _, row in zip(range(done), older, strict=False)]
                source.seek(older.position)
            rest = list(source)
        assert not any("x" in row.x for row in rest)
        assert done <= 20 or [row.x["a"] for row in rows + rest] == older_rows  # both orders have the same first file
        assert sorted(row.x["a"] for row in rows + rest) == sorted(FRAME.a)
        with open_source(f"{tmp_path}/*/*.csv", label="y") as first, open_source(f"{tmp_path}/*/*.csv", label="y") as second:
            rows = [row for _, row in zip(range(done), first, strict=False)]
            second.seek(first.position)
            assert [row.x["x"] for row in [*rows, *second][::20]] == list(range(1, 13))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_one_file_of_a_folder_of_columns(tmp_path, suffix):
    """A single file has the column, too, unless an earlier version has begun the run."""
    in_folders(suffix)(tmp_path / "t")
    path = tmp_path / "t" / "city=Rome" / f"part-0.{suffix}"
    rows, positions = read(path, columns="city:category")
    assert {row.x["city"] for row in rows} == {"Rome"}
    assert read(path, positions[5], columns="city:category")[0] == rows[5:]
    source = ArrowSource if suffix == "parquet" else CSVSource if suffix == "csv" else JSONLinesSource
    with source(path, "y") as older:
        assert [row.y for _, row in zip(range(5), older, strict=False)] == [row.y for row in rows[:5]]
        rest = read(path, older.position)[0]
    assert [row.x for row in rest] == [{"a": row.x["a"]} for row in rows[5:]]


def test_files_with_other_columns_are_reported_once(tmp_path, call):
    folder = tmp_path / "t"
    folder.mkdir()
    for month in range(1, 7):
        part = FRAME[40 * (month - 1) : 40 * month]
        part = part.assign(late=part.a * 2, kind=part.city.str.upper()) if month > 2 else part
        (folder / f"month-{month}.csv").write_text(text(part if month != 5 else part.drop(columns="a")))
    with warnings.catch_warnings(action="default"):
        said = call("learn", folder, *LEARN, tmp_path / "state").stderr
    assert "month-3.csv: column 'kind' is new, column 'late' is new (compared with " in said
    assert "month-5.csv: column 'a' is missing (compared with " in said
    assert said.count("warning: ") == 2
    assert set(load(tmp_path / "state")["TableEncoder"].learned_columns) == {"a", "city", "kind", "late"}


@pytest.mark.parametrize("log", ["_delta_log", ".hoodie", "metadata/version-hint.text", "metadata/00000-abc.metadata.json"])
@pytest.mark.parametrize("spec", ["", "/*.parquet", "/**/*.parquet"])
def test_files_of_earlier_versions_are_refused(tmp_path, log, spec):
    (tmp_path / log).mkdir(parents=True)
    (tmp_path / "city=Oslo").mkdir()
    for path in (tmp_path / "part-0.parquet", tmp_path / "city=Oslo" / "part-1.parquet"):
        FRAME.to_parquet(path)
    raises("table, and its files have rows that were deleted", open_source, f"{tmp_path}{spec}", label="y", error=StreamError)
    with open_source([str(tmp_path / "part-0.parquet")], label="y") as source:
        assert len(list(source)) == N


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_a_label_with_another_name_in_a_later_file_is_proposed(tmp_path, call, suffix):
    table = FRAME[["y", "a", "city"]]
    for i, frame in enumerate([table, table.rename(columns={"y": "Target"})]):
        path, writers = tmp_path / "rows" / f"{i}.{suffix}", {"csv": "to_csv", "parquet": "to_parquet", "arrow": "to_feather"}
        path.parent.mkdir(exist_ok=True)
        getattr(frame, writers[suffix])(path, **({"index": False} if suffix == "csv" else {}))
    says = "no column 'y' for the label. It has: Target, a, city. Perhaps 'Target'"
    call("learn", tmp_path / "rows", *LEARN, tmp_path / "state", status=1, says=says)


def test_files_in_ordinary_subfolders_are_pointed_out(tmp_path, call):
    for folder in (tmp_path / "t" / "2023" / "01", tmp_path / "t" / ".git"):
        folder.mkdir(parents=True)
        (folder / "rows.csv").write_text(text(FRAME[:120]))
    advice = f"'{tmp_path}/t/**/*.csv'"
    call(
        "learn",
        tmp_path / "t",
        *LEARN,
        tmp_path / "state",
        status=1,
        says=f"without a file of rows. Give a pattern and format: {advice} (only subfolders such as region=north are read)",
    )
    (tmp_path / "t" / "more.csv").write_text(text(FRAME[120:]))
    (tmp_path / "t" / "2023" / "settings.json").write_text("{}")
    with warnings.catch_warnings(action="default"):
        said = call("learn", tmp_path / "t", *LEARN, tmp_path / "state").stderr
    assert said.count("warning: ") == said.count(f"ordinary subfolders are not read. To read all, give the pattern {advice}") == 1
    assert call("learn", advice.strip("'"), *LEARN, tmp_path / "other", "--quiet").end["learned"] == N
    (tmp_path / "t" / "2023" / "01").rename(tmp_path / "t" / "_old")
    with warnings.catch_warnings(action="error"):
        open_source(str(tmp_path / "t"), label="y").close()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_label_in_the_names_of_folders_is_refused(tmp_path, suffix):
    in_folders(suffix)(tmp_path / "t")
    raises(
        "label 'city' is in the names of folders: write it into the rows",
        open_source,
        str(tmp_path / "t"),
        label="city",
        error=StreamError,
    )


@pytest.mark.parametrize("title", ["# made by x\n", "Sales, 2024\n\n,,\n", "% x\n% y\n"])
def test_lines_above_the_header_are_pointed_out(tmp_path, title, call):
    path, new = tmp_path / "rows.csv", tmp_path / "new.csv"
    path.write_text(title + text(quoting=csv.QUOTE_ALL))
    said = call("learn", path, *LEARN, tmp_path / "state", status=1).stderr
    command = re.search("names it. Leave out the lines before it: (tail .*)\n", said)[1]
    subprocess.run(command.replace("old.csv", str(path)).replace("new.csv", str(new)), shell=True, check=True)
    assert new.read_text() == text(quoting=csv.QUOTE_ALL)
    path.write_text("a,a,y\n1,2,y\n")
    assert call("learn", path, *LEARN, tmp_path / "state", status=1).stderr.endswith("two columns have one name, 'a'\n")


@pytest.mark.parametrize(("name", "delimiter"), [("rows.tsv", ","), ("rows.csv", "^"), ("rows.csv", ":")])
def test_the_delimiter_is_proposed(tmp_path, name, delimiter, call):
    (tmp_path / name).write_text(text(sep=delimiter))
    learn = ["learn", tmp_path / name, *LEARN, tmp_path / "state"]
    call(*learn, status=1, says=f"(--delimiter {delimiter!r})")
    assert call(*learn, "--delimiter", delimiter, "--quiet").end["learned"] == N


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_a_compressed_copy_is_refused(tmp_path, suffix):
    (tmp_path / "x.csv").write_text(text())
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstandard.compress}[suffix]
    (tmp_path / f"x.csv{suffix}").write_bytes(compress(text().encode()))
    for spec in (str(tmp_path), f"{tmp_path}/x*", [str(tmp_path / "x.csv"), str(tmp_path / f"x.csv{suffix}")]):
        raises(rf"x.csv and .*x.csv{suffix} have the same rows", open_source, spec, label="y", error=StreamError)
    with open_source(f"{tmp_path}/*.csv", label="y") as source:
        assert len(list(source)) == N
    (tmp_path / f"x.csv{suffix}").write_bytes(compress(text(FRAME[::-1]).encode()))  # other rows
    with open_source(str(tmp_path), label="y") as source:
        assert len(list(source)) == 2 * N


@pytest.mark.parametrize("name", ["x (1).csv", "x(2).csv", "x - Copy.csv", "x copy.csv"])
def test_a_copy_is_refused(tmp_path, name):
    (tmp_path / "x.csv").write_text(text())
    (tmp_path / name).write_text(text())
    raises("have the same rows: remove one", open_source, str(tmp_path), label="y", error=StreamError)
    (tmp_path / name).write_text(text(FRAME[::-1]))  # other rows
    with open_source(str(tmp_path), label="y") as source:
        assert len(list(source)) == 2 * N


@pytest.mark.filterwarnings("ignore:.*is taken as part of the text", "ignore:.*read as cp1252")
@pytest.mark.parametrize("kind", KINDS)
def test_they_resume_after_any_row(kind, tmp_path):
    name, write, frame, _ = KINDS[kind]
    write(tmp_path / name)
    options = {"delimiter": {"a table of R with blanks": " "}.get(kind)}
    rows, positions = read(tmp_path / name, **options)
    assert len(rows) == len(frame)
    for done in range(0, len(frame) + 1, 23):
        assert read(tmp_path / name, positions[done], **options)[0] == rows[done:]
    if name.startswith("rows.csv"):
        check_chunks(lambda: CSVSource(tmp_path / name, "y", **options), 30)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
def test_a_declared_column_may_be_in_later_files_alone(tmp_path, suffix):
    for i, names in enumerate((["a", "y"], ["a", "city", "y"])):
        write_rows(tmp_path / f"part-{i}.{suffix}", FRAME[names].to_dict("records"))
    with warnings.catch_warnings(record=True) as said, open_source(str(tmp_path), label="y", columns="city:category") as source:
        warnings.simplefilter("always")
        rows = list(source)
    assert [row.x.get("city") for row in rows] == [None] * N + list(FRAME.city)
    assert [("column 'city' is new" in str(warning.message)) for warning in said] == [True] * (suffix != "jsonl")


@pytest.mark.parametrize("as_data", [lambda frame: frame, lambda frame: frame.to_dict("records")], ids=["frame", "dicts"])
def test_an_index_in_memory_is_dropped(as_data):
    frame = SHUFFLED.rename_axis("index").reset_index()
    frame["Unnamed: 0.1"] = frame["index"] + 1
    schema = streamsvm.table_model(as_data(frame), "y").schema
    assert [column.name for column in schema.columns if column.kind == "dropped"] == ["index", "Unnamed: 0.1"]


def test_a_copy_of_a_parquet_file_is_refused(tmp_path):
    FRAME.to_parquet(tmp_path / "x.parquet")
    FRAME.to_parquet(tmp_path / "x (1).parquet")
    raises("have the same rows: remove one", open_source, str(tmp_path), label="y", error=StreamError)
    FRAME[::-1].to_parquet(tmp_path / "x (1).parquet")  # other rows
    with open_source(str(tmp_path), label="y") as source:
        assert len(list(source)) == 2 * N


def test_a_list_in_the_order_of_a_shell(tmp_path):
    in_months(tmp_path / "t")
    paths = sorted(map(str, (tmp_path / "t").iterdir()))
    with pytest.warns(UserWarning, match="the files are not in the order of the numbers in their names. Quote the pattern"):
        open_source(paths, label="y").close()
    open_source(sorted(paths, key=make_natural_sort_key), label="y").close()
    open_source(paths[::-1], label="y").close()


def test_a_header_in_another_order_is_refused(tmp_path, call):
    path = tmp_path / "rows.csv"
    learn = ["learn", path, *LEARN, tmp_path / "state", "--on-error", "skip"]
    path.write_text(text() + text(FRAME[["city", "a", "y"]]))
    call(*learn, status=1, says="names the columns in another order, 'city,a,y'. Split the file before this line")
    path.write_text(text() + "\ufeff" + text())
    end = call(*learn, "--quiet").end
    assert (end["learned"], end["refused"]) == (2 * N, {"malformed": 1})


@pytest.mark.parametrize(
    "lines",
    [
        ["title,about,y", '"Smith, J","one,two",no', '"Doe",x,yes'],  # quoted, as many cells
        ["a,b,y", "1,2,3,no", "4,5,6,yes"],  # perhaps a comma in a cell
        ["a,b,y", '"a",2,3,no', '"b",5,6,yes'],
    ],
)
def test_rows_that_are_not_of_r(tmp_path, lines):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([*lines, ""]))
    with CSVSource(path, "y") as source:
        assert [type(row) for row in source] == [Row if "," in lines[1].split(",")[1] or '"S' in lines[1] else BadRow] * 2
        assert source.columns == lines[0].split(",")
