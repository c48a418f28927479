"""Several files as one source: positions, places, equal columns, and changed files."""

import pytest
import zstandard

from chunks import text_of, write_rows
from reading import read_chunks
from refused import raises
from streamsvm.stream import StreamError, open_source
from streamsvm.stream.file_names import detect_format

ROWS = [{"a": float(i), "b": i + 0.5, "y": i % 2} for i in range(9)]
PARTS = [ROWS[:3], ROWS[3:4], ROWS[4:9]]


def write(folder, kind, parts=PARTS):
    folder.mkdir(exist_ok=True)
    return [str(write_rows(folder / f"part-{i}.{kind}", rows)) for i, rows in enumerate(parts)]


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "libsvm", "parquet", "arrow"])
def test_it_resumes_after_any_row(tmp_path, kind):
    paths = write(tmp_path / "data", kind)
    specs = [str(tmp_path / "data"), f"{tmp_path}/data/part-*.{kind}", f"{tmp_path}/**/p*", paths]
    rows, places, positions = read_chunks(open_source(specs[0], label="y"))
    assert [row.y for row in rows] == [row["y"] for row in ROWS]
    assert [next(iter(row.x.values())) for row in rows] == [row["a"] for row in ROWS]
    first = 2 if "csv" in kind else 1
    numbers = [(i, n + first) for i, part in enumerate(PARTS) for n in range(len(part))]
    assert places == [f"{paths[i]}, {'row' if kind in ('parquet', 'arrow') else 'line'} {n}" for i, n in numbers]
    for most in (1, 2, 100):
        for done, position in enumerate(positions):
            source = open_source(specs[done % len(specs)], label="y")
            source.seek(position)
            assert source.position == position
            rest = read_chunks(source, most)
            assert (rest[0], rest[1], rest[2][-1]) == (rows[done:], places[done:], positions[-1])


def test_changed_files_before_the_position_are_refused(tmp_path):
    folder = tmp_path / "data"
    paths = write(folder, "csv")
    positions = read_chunks(open_source(str(folder), label="y"))[2]
    part = [(folder / f"part-{i}.csv") for i in range(3)]
    texts = [path_.read_text() for path_ in part]

    def refused(match, position, **options):
        with open_source(str(folder), label="y", **options) as source:
            raises(match, source.seek, position, error=StreamError)

    for changed, position, match in [
        (0, 4, "not those of the checkpoint"),
        (0, 6, "not those of the checkpoint"),
        (1, 6, "not those of the checkpoint"),
        (1, 4, "was changed before byte|ends at byte|not those of the checkpoint"),
    ]:
        part[changed].write_text(texts[changed].replace(".5", ".25"))
        refused(match, positions[position])
        part[changed].write_text(texts[changed])
    part[1].unlink()
    refused("not those of the checkpoint|Put the file back", positions[4])
    with open_source(str(folder), label="y") as source:  # a finished file is gone, and the others continue
        source.seek(positions[6])
        assert [row.x["a"] for row in source] == [6.0, 7.0, 8.0]
        assert source.position["files_done"] == 1
    part[0].unlink()
    for position in (positions[6], positions[-1]):
        with open_source(str(folder), label="y") as source:
            source.seek(position)
            assert len(list(source)) == 9 - positions.index(position)
    part[2].unlink()
    (folder / "part-9.csv").write_text(texts[2].replace(".5", ".25"))
    refused("another kind of stream|not the stream", positions[6])  # no checkpoint has read a new file, and it may be begun
    (folder / "part-9.csv").unlink()
    for path, text in zip(part, texts, strict=True):
        path.write_text(text)
    (folder / "part-00.csv").write_text(texts[0].replace(".5", ".75"))
    refused("not those of the checkpoint", positions[6])
    (folder / "part-00.csv").unlink()
    for position_ in ({}, {"files_done": 1}, positions[1] | {"files_done": "x"}, positions[1] | {"files_done": -1}):
        refused("another kind of stream", position_)
    refused("learned with the label|columns read with", positions[6], columns="a:drop")
    # New rows at the end of the last file, and files after it, come next.
    part[2].write_text(texts[2] + "9.0,9.5,1\n")
    (folder / "part-9.csv").write_text(texts[1])
    with open_source(str(folder), label="y") as source:
        source.seek(positions[-1])
        assert [row.x["a"] for row in source] == [9.0, 3.0]
    assert len(paths) == 3


def test_columns_must_agree_in_any_order(tmp_path):
    folder = tmp_path / "data"
    write(folder, "csv", [ROWS[:2], [{name: row[name] for name in "yba"} for row in ROWS[2:4]]])
    with open_source(str(folder), label="y") as source:
        assert [(row.x["a"], row.x["b"], row.y) for row in source] == [(float(i), i + 0.5, i % 2) for i in range(4)]
    (folder / "part-2.csv").write_text("a,c,y\n1,2,0\n")
    with open_source(str(folder), label="y") as source:
        raises("part-[02].csv has a column 'b', and .*part-[02].csv does not", list, source, error=StreamError)
    (folder / "part-2.csv").write_text("a,b\n1,2\n")
    with open_source(str(folder), label="y") as source:
        raises("no column 'y' for the label", list, source, error=StreamError)
    with open_source(str(folder), label="y", label_needed=False) as source:
        assert [row.y for row in source] == [0, 1, 0, 1, None]


def test_the_files_of_folders_patterns_and_lists(tmp_path):
    folder = tmp_path / "data"
    write(folder, "csv")
    for name in ("_SUCCESS", ".part.csv", "_part.csv", "README.md"):
        (folder / name).write_text("position_")
    (folder / "more.csv").mkdir()
    assert detect_format(str(folder)) == "csv"
    with open_source(str(folder), label="y") as source:
        assert len(list(source)) == 9
    (folder / "z.jsonl").write_text("{}\n")
    for spec, match in [
        (str(folder), "have two formats"),
        (str(folder / "more.csv"), r"is a folder without a file of rows\. Give a pattern and format: '.*/\*\.txt' --format csv$"),
        (f"{folder}/x*.csv", "no file matches this pattern"),
        ([str(folder / "part-0.csv"), "-"], "- is not a file: several sources are files"),
        ([str(folder / "part-0.csv"), str(folder / "none.csv")], r"none\.csv is not a file"),
    ]:
        raises(match, open_source, spec, label="y", error=StreamError)
    for name in ("=x", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / name / name).mkdir(parents=True)
        (tmp_path / name / name / "rows.csv").write_text("a,y\n1,0\n")
        raises("only subfolders such as region=north are read", open_source, str(tmp_path / name), label="y", error=StreamError)
    odd = folder / "part[1].csv"
    odd.write_text("a,y\n1,0\n")
    with open_source(str(odd), label="y") as source:
        assert len(list(source)) == 1


@pytest.mark.parametrize("frames", [1, 7])
def test_zstandard_is_decompressed(tmp_path, frames):
    rows = [{"a": float(i), "b": i % 7, "y": i % 2} for i in range(10_000)]
    data = text_of(rows, "csv").encode()
    size = len(data) // frames + 1
    packed = b"".join(zstandard.compress(data[i : i + size]) for i in range(0, len(data), size))
    path = tmp_path / "rows.csv.zst"
    path.write_bytes(packed)
    rows_read, _, positions = read_chunks(open_source(str(path), label="y"), 1000)
    assert [row.x["a"] for row in rows_read] == [row["a"] for row in rows]
    with open_source(str(path), label="y") as source:
        source.seek(positions[7])
        assert len(list(source)) == 10_000 - positions[7]["rows"]
    for damaged in (packed[:-100], packed[:50] + b"junk" + packed[50:], b"junk", packed + b"junk"):
        path.write_bytes(damaged)
        with open_source(str(path), label="y") as source:
            raises("rows.csv.zst, after byte|is empty", list, source, error=StreamError)
