"""The contract of all sources: positions, places, bad rows, chunks, passthrough columns and weights."""

import json
import re

import pytest

from chunks import SOURCES, TEXTS, check_chunks, chunks_of, source_of, text_of, write_rows, write_text
from reading import read, read_chunks
from refused import raises
from saved import dumps
from streamsvm import BSGDClassifier
from streamsvm.learners.preprocessing import BoundedScaler
from streamsvm.stream import (
    BadRow,
    CheckpointFolder,
    FileSink,
    IterableSource,
    LearningLoop,
    StreamError,
    WeightedSource,
    open_source,
)

ROWS = [{"a": float(i), "b c": None if i == 1 else i + 0.5, "y": i % 2} for i in range(7)]
each_source = pytest.mark.parametrize("kind", SOURCES)
each_text = pytest.mark.parametrize("kind", TEXTS)


def expected(row, kind):
    """A row as the source returns it: in LIBSVM text, features are numbered."""
    names = {"a": 1, "b c": 2} if "libsvm" in kind else {"a": "a", "b c": "b c"}
    return {names[name]: value for name, value in row.items() if name != "y" and value is not None}, row["y"]


@each_source
def test_it_resumes_after_any_row(tmp_path, kind):
    rows, places, positions = read_chunks(source_of(tmp_path, kind, ROWS), 1)
    for row, row_read in zip(ROWS, rows, strict=True):
        x, y = expected(row, kind)
        assert ({name: value for name, value in row_read.x.items() if value is not None}, row_read.y) == (x, y)
    first_line = 2 if "csv" in kind else 1
    assert [re.search(r"(line|row) (\d+)$", place)[2] for place in places] == [str(i + first_line) for i in range(7)]
    for most in (1, 3, 100):
        for done, position in enumerate(positions):
            source = source_of(tmp_path, kind, ROWS)
            source.seek(position)
            assert source.position == position
            rest = read_chunks(source, most)
            assert rest[:2] == (rows[done:], places[done:])
            assert (rest[2][-1], set(map(str, rest[2])) <= set(map(str, positions))) == (positions[-1], True)


@each_source
def test_foreign_positions_are_refused(tmp_path, kind):
    positions = read_chunks(source_of(tmp_path, kind, ROWS), 1)[2]

    def refused(match, position, rows=ROWS, **options):
        with source_of(tmp_path, kind, rows, **options) as source:
            raises(match, source.seek, position, error=StreamError)

    for position_ in ({"topic": 1}, positions[3] | {"rows": -1}, positions[3] | {"rows": "3"}):
        refused("another kind of stream", position_)
    with source_of(tmp_path, kind, ROWS) as source:
        next(iter(source))
        raises("read already", source.seek, positions[1], error=RuntimeError)
    if kind == "iterable":
        refused("has only 2 rows; the checkpoint has learned 7", positions[-1], ROWS[:2])
        return
    refused("not the (stream|file) of the checkpoint", positions[3], [{**ROWS[0], "a": 9.0}, *ROWS[1:]])
    refused("not the (stream|file) of the checkpoint|ends at byte", positions[-1], ROWS[:-1])
    if "libsvm" in kind:
        return
    path = write_rows(tmp_path / f"rows.{kind}", ROWS)
    with open_source(str(path), label="a") as source:
        raises("learned with the label 'y', not 'a'", source.seek, positions[3], error=StreamError)
    for then, now in (
        ({}, {"columns": "a:drop"}),
        ({"columns": "a:number,*:drop"}, {"columns": "b c:number,*:drop"}),
    ):
        position = read_chunks(source_of(tmp_path, kind, ROWS, **then), 1)[2][2]
        refused(r"columns read with .*, not with .*Ask for the same", position, **now)
        assert len(read(path, position, **then)[0]) == 5


@each_text
def test_rows_may_be_appended_but_not_changed(tmp_path, kind):
    rows, path = [{"a": 7.0, "b c": 8.0, "y": 1}] * 2000, tmp_path / f"rows.{kind}"
    text = text_of(rows, kind.split(".")[0])
    last = text.splitlines(keepends=True)[-1]
    position = read(write_text(path, text))[1][-1]
    assert read(write_text(path, text + last), position)[0] == [expected(rows[0], kind)]
    changed = text[: -len(last)] + last.replace("8.0", "9.0") + last
    raises("was changed before byte", read, write_text(path, changed), position, error=StreamError)
    raises("ends at byte", read, write_text(path, text[:-600]), position, error=StreamError)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "libsvm"])
def test_a_last_line_without_a_newline_must_not_grow(tmp_path, kind):
    text, path = text_of(ROWS, kind).rstrip("\n"), tmp_path / f"rows.{kind}"
    rows, (*_, position) = read(write_text(path, text))
    for more in ("\n{}", "\r\n{}\n"):
        with open_source(str(write_text(path, text + more.format(text.splitlines()[-1]))), label="y") as source:
            source.seek(position)
            (chunk,) = chunks_of(source)
            assert (len(chunk), chunk.row(0)) == (1, rows[-1])
            assert chunk.place(0) == f"{path}, line {position['line'] + 1}"
    grown = write_text(path, text + "5\n")
    raises(rf"line {position['line']}: the line has grown", read, grown, position, error=StreamError)


GOOD = {"csv": b"2,1\n", "jsonl": b'{"a": 2, "y": 1}\n', "libsvm": b"1 1:2\n"}
BAD = [
    ("csv", b"1,2,3\n", "3 cells for 2 columns: '1,2,3'"),
    ("csv", b'"1,1\n', "'1,1'|unexpected end|not closed|expected after"),
    ("csv", b'"' + b"x" * 200_000 + b'",1\n', "field larger"),
    ("csv", b"\xff,1\n", "not UTF-8: invalid start byte at byte 0 of the line"),
    ("csv", b"1" * (2**24 + 2**18) + b",1\n", "longer than 16,777,216 bytes"),
    ("jsonl", b'{"a": \n', "not JSON"),
    ("jsonl", b'{"a": 1, "y": 1, "a": 2}\n', "two values have the name 'a'"),
    ("jsonl", b"[\n", "in a list of rows, write each on a line of its own"),
    ("jsonl", b'{"a": 1' + b"0" * 5000 + b"}\n", "not JSON"),
    ("jsonl", b"[1, 2]\n", "not a JSON object"),
    ("jsonl", b'{"a": "\xff"}\n', "not UTF-8"),
    ("libsvm", b"1 1:2 3\n", "'3' is not index:value"),
    ("libsvm", b"1 1:2 1:3\n", "twice"),
    ("libsvm", b"1 1:2 3:1_5\n", "'3:1_5' is not index:value"),
    ("libsvm", b"1 1:2 2_0:1\n", "'2_0:1' is not index:value"),
    ("libsvm", b"1:2 2:3\n", "begin with a label"),
    ("libsvm", b"1 1:\xff\n", "not UTF-8"),
]


@pytest.mark.parametrize(("kind", "bad", "reason"), BAD, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize(("n_after", "packed"), [(0, True), (300, False)])
def test_a_malformed_row_is_a_bad_row_and_the_next_ones_are_read(tmp_path, kind, bad, reason, n_after, packed):
    good = GOOD[kind]
    header = b"a,y\n" * (kind == "csv")
    path = write_text(tmp_path / f"rows.{kind}{'.gz' * packed}", header + good + b"\n" + bad + good * n_after + bad + good)
    rows, raws, positions = [], [], []
    with open_source(str(path), label="y") as source:
        for chunk in chunks_of(source, 1):
            rows.append(chunk.row(0))
            raws.append(chunk.raw(0))
            positions.append(source.position)
    refused = [i for i, row in enumerate(rows) if isinstance(row, BadRow)]
    assert refused == [1, 2 + n_after]
    assert all(row == rows[0] for i, row in enumerate(rows) if i not in refused)
    assert raws[0] == raws[-1] == good
    line = 3 + len(header) // 4
    for i, at in zip(refused, (line, line + 1 + n_after), strict=True):
        assert rows[i].place.endswith(f"line {at:,}")
        assert re.search(reason, rows[i].reason), rows[i].reason
        raw = rows[i].raw.lstrip(b"\n")
        assert bad.startswith(raw)
        assert len(raw) == len(bad) or len(raw) > 2**24
    for i in refused:  # the position after a bad row
        assert [type(row) for row in read(path, positions[i])[0]] == [type(row) for row in rows[i + 1 :]]
    if len(bad) < 2**20:
        check_chunks(lambda: open_source(str(path), label="y"), 1000, ["a", 1])


WEIGHTS = [0.5, None, 0.0, 2.0, 1.0]
PEOPLE = [
    {
        "id": f"00{i}",
        "w": WEIGHTS[i % 5],
        "a": (i % 7) / 4,
        "b": None if i % 11 == 3 else (i % 5) / 4,
        "y": None if i % 13 == 7 else "yes" if i % 7 > 3 else "no",
    }
    for i in range(100)
]


@pytest.mark.parametrize("reading", [{}, {"columns": "a:number,b:number,*:drop"}])
@pytest.mark.parametrize("kind", [kind for kind in SOURCES if "libsvm" not in kind])
def test_weights_passthrough_columns_and_rows_without_a_label(tmp_path, kind, reading):
    """A run learns the same model as a plain loop over the rows, also if it is resumed in the middle."""
    model = BoundedScaler() | BSGDClassifier(budget=20, seed=1)
    predicted = []
    for row in PEOPLE:
        x = {name: row[name] for name in ("a", "b") if row[name] is not None}
        predicted.append(model.predict_one(x))
        if row["y"] is not None and row["w"] != 0.0:
            model.learn_one(x, row["y"], w=1.0 if row["w"] is None else row["w"])
    options = reading or {"columns": "id:drop"}
    for most in (33, None):
        if kind == "iterable":
            rows = [({name: row[name] for name in ("a", "b", "w") if row[name] is not None}, row["y"]) for row in PEOPLE]
            source, keep = WeightedSource(IterableSource(rows), "w"), ["w"]
        else:
            path, keep = write_rows(tmp_path / f"rows.{kind}", PEOPLE, 30), ["id", "w"]
            source = open_source(str(path), label="y", weight="w", **options)
        with source, CheckpointFolder(tmp_path / "state") as folder, FileSink(tmp_path / "out.jsonl") as sink:
            learner = BoundedScaler() | BSGDClassifier(budget=20, seed=1)
            loop = LearningLoop(source, learner, sink=sink, passthrough=keep, checkpoints=folder)
            progress = loop.run(most)
    model["BSGDClassifier"].note_columns(source.columns)  # rows of the plain loop have no order of columns
    assert dumps(loop.model) == dumps(model)
    assert (progress.rows, progress.unlabelled, progress.refused) == (100, 8, {})
    assert loop.metric.cm.n_samples == 91  # all but the first row are scored once
    lines = list(map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines()))
    assert [(line["y_pred"], line["y_true"]) for line in lines] == list(zip(predicted, [row["y"] for row in PEOPLE], strict=True))
    assert [line["w"] and float(line["w"]) for line in lines] == [row["w"] for row in PEOPLE]
    assert kind == "iterable" or [line["id"] for line in lines] == [row["id"] for row in PEOPLE]
