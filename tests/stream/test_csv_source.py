"""The source of CSV text: any cells, unclosed quotes, rows of several lines, headers, encodings and parser options."""

import bz2
import csv
import gzip
import io
import tracemalloc
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunks import check_chunks, chunks_of, text_of, write_text
from reading import read, read_chunks
from refused import raises
from streamsvm.stream import BadRow, CSVSource, StreamError

CSV = "id;zip;since;n;y\na1;01234;02.01.1970;-;ja\na2;75001;03.01.1970;2,5;nein\n"
cells = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@pytest.mark.filterwarnings("ignore:.*a line that looks like a row")
@given(st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_it_resumes_after_any_row_with_any_cells(tmp_path_factory, table, newline):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=newline, quoting=csv.QUOTE_ALL)
    writer.writerow(["a", "b", "y"])
    writer.writerows(table)
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_bytes(text.getvalue().encode())
    rows, positions = read(path)
    assert len(rows) == len(table)
    for done, position in enumerate(positions):
        assert repr(read(path, position)[0]) == repr(rows[done:])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", ["is empty"]),
        (b"a,a,y\n", ["line 1", "one name, 'a'"]),
        (b"5.1,3.5,1\n4.9,3.5,0\n", ["no column 'y'", "Is its first line a row?"]),
        (b"a,b,y\r1,2,0\r", ["carriage return alone", "tr "]),
        (gzip.compress(b"a,y\n", mtime=0), ["compressed by gzip", "gzip -d"]),
        (bz2.compress(b"a,y\n"), ["compressed by bzip2", ".bz2"]),
        *[(b"PK\x03\x04", ["a zip archive"]), (b"PAR1", ["a Parquet file"]), (b"a,b\n1,2\n", ["no column 'y'", "a, b"])],
        *[(b"a,\xff\n", ["line 1", "not UTF-8"]), (b'a,"y\n', ["line 1", "unexpected end"])],
        (bytes(9) + b"a,y\n", ["line 1", "NUL bytes", "tr -d"]),
    ],
)
def test_a_malformed_header_is_refused(tmp_path, text, words):
    path = tmp_path / "rows.csv"
    path.write_bytes(text)
    with pytest.raises(StreamError) as caught:
        read(path)
    assert all(word in str(caught.value) for word in words), caught.value


GOOD = "3,0\n" * 9


@pytest.mark.parametrize(
    ("text", "bad", "reason", "last"),
    [
        ('1,1\n"2,1\n' + "3,0\n" * 5000 + '4,"1\nx"\n', [1], "a row has over 1,000 lines", ({"a": 4.0}, "1\nx")),
        ('1,1\n"\n' + GOOD + '"x"z,5\n' + GOOD + '7,"x\ny, 2\n"\n', [1, 11], "',' expected after '\"'", ({"a": 7.0}, "x\ny, 2")),
    ],
    ids=["never closed", "a stray one"],
)
def test_an_unclosed_quote_makes_only_its_own_line_a_bad_row(tmp_path, text, bad, reason, last):
    (tmp_path / "rows.csv").write_text("a,y\n" + text)
    rows, _ = read(tmp_path / "rows.csv")
    assert [i for i, row in enumerate(rows) if isinstance(row, BadRow)] == bad
    assert reason in rows[1].reason
    assert rows[-1] == last


@pytest.mark.filterwarnings("ignore:.*is taken as part of the text")
@pytest.mark.parametrize("most", [2, 3, 9])
def test_an_open_quote_at_the_end_is_the_same_row_in_each_chunk(tmp_path, most):
    """Its line may be equal to one whose quote is part of the text."""
    path = write_text(tmp_path / "rows.tsv", 'a\ty\n"x\t1\n"z\t2\n"x\t1\nz\t3\n"x\t1\n')
    check_chunks(lambda: CSVSource(path, "y"), most)


def test_the_length_of_a_row_of_several_lines_is_limited(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('a,y\n"' + ("x" * 100_000 + '\n","') * 400 + "\n1,2\n")  # each line ends within the quotes of a cell
    tracemalloc.start()
    rows, _ = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows[0].reason == "a row has over 1,000 lines or 16,777,216 bytes: is a quote not closed?"
    assert rows[-1] == ({"a": 1.0}, 2)
    assert peak < 60 * 2**20


@pytest.mark.parametrize("most", [1, 1000])
def test_a_cell_of_several_lines_may_look_like_rows(tmp_path, most):
    notes = [*["a note"] * 9, *(f"ticket\nhello,{i},1\nthanks" for i in range(20))]
    rows = [{"note": note, "a": float(i % 7), "y": int(i % 7 > 3)} for i, note in enumerate(notes)]
    path = write_text(tmp_path / "rows.csv", text_of(rows, "csv"))
    with pytest.warns(UserWarning, match="lines 11 to 13:") as said, CSVSource(path, "y", columns="note:category") as source:
        rows_read = [chunk.row(i) for chunk in chunks_of(source, most) for i in range(len(chunk))]
    assert rows_read == [({"note": row["note"], "a": row["a"]}, row["y"]) for row in rows]
    assert len(said) == 1


@pytest.mark.parametrize("share", [1, 4], ids=["all", "one in four"])
def test_rows_of_several_lines_are_read_in_chunks(tmp_path, share):
    path = tmp_path / "rows.csv"
    notes = [f'"note\n{i}\nends"' if i % share == 0 else "short" for i in range(1000)]
    path.write_text("a,note,y\n" + "".join(f"{i},{note},1\n" for i, note in enumerate(notes)))
    with CSVSource(path, "y") as source:
        chunks = list(chunks_of(source, 500))
        assert source.position["line"] == 1 + 1000 + 2 * 1000 // share
    assert len(chunks) <= 7
    assert [chunk.row(i).x["note"] for chunk in chunks for i in range(len(chunk))] == [note.strip('"') for note in notes]
    assert all(len(chunk.table(()).unparsed_rows) == 0 for chunk in chunks)


@pytest.mark.parametrize("most", [2, 7, 1000])
@pytest.mark.parametrize("last_newline", ["", "\n"])
@pytest.mark.parametrize("options", [{}, {"columns": "on:date"}, {"delimiter": ";"}, {"encoding": "shift_jis"}], ids=str)
def test_chunks_with_rows_of_several_lines_have_the_same_rows(tmp_path, most, last_newline, options):
    good = ['1,"p\nq",2024-01-02,0', "2,p,2024-01-03,1", '3,"p\n5,p,2024-01-03,1\n",2024-01-03,1'] * 8
    odd = ['4,"p\nq",never,1', '5,"p\nq",2024-01-04', '6,"p""\n\n\n""q",2024-01-04,"1"', '7,"p"q\nr",2024-01-04,0']
    more = ["", "8,p", '9,5" p,2024-01-05,1', 'a,note,"on",y', '"a\n",note,on,y', '9,"p\n\xff",2024-01-05,1']
    last = ['9," p\r\n\rq",2024-01-05,1', '8,"p\nq",2024-01-02,"0\n"', '9,"p\nq\nr",2024-01-05,1']
    path, mark = tmp_path / "rows.csv", options.get("delimiter", ",")
    text = "\n".join(["a,note,on,y", *good, *odd, *more, *last]) + last_newline
    path.write_bytes(text.replace(",", mark).encode("latin-1"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        n = check_chunks(lambda: CSVSource(path, "y", **options), most)
    assert n >= 24 or most < 8  # fewer rows do not make a column one of texts


@pytest.mark.parametrize("most", [1, 1000])
def test_a_repeated_header_is_a_bad_row(tmp_path, most):
    path, good = tmp_path / "rows.csv", "1,2,1\n" * 20
    again = ["a,b c,y\n", ' "a",b c, "y"\n', '"a\t",b c,y\n']  # in a file that others were appended to
    path.write_text("".join([again[0], *(good + line for line in again), good]))
    with CSVSource(path, "y") as source:
        rows = [(chunk.row(i), chunk.raw(i).decode()) for chunk in chunks_of(source, most) for i in range(len(chunk))]
    bad = [(row, raw) for row, raw in rows if isinstance(row, BadRow)]
    assert [raw for _, raw in bad] == again
    assert [row.place.rpartition(" ")[2] for row, _ in bad] == ["22", "43", "64"]
    assert {row.reason for row, _ in bad} == {"the line that names the columns stands here again"}
    assert len(rows) == 83
    assert rows[-1][0] == ({"a": 1.0, "b c": 2.0}, 1)
    assert check_chunks(lambda: CSVSource(path, "y", columns="a:category,b c:category"), most + 2) == 80


def test_encodings(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes("größe,y\n1,ä\n".encode("latin-1"))
    assert read(path, encoding="Latin1")[0] == [({"größe": 1.0}, "ä")]
    for options, reason in (
        ({}, r"not UTF-8: .* --encoding cp1252"),
        ({"encoding": "utf-32"}, r"utf-32 cannot be read line by line\. Convert it"),
        ({"encoding": "ascii7"}, "'ascii7' is not known"),
    ):
        raises(reason, read, path, error=StreamError, **options)


def test_missing_columns_are_named(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(CSV)
    for options, reason in (
        ({}, r"no column 'y' for the label.*Is ';' the delimiter \(--delimiter ';'\)\?"),
        ({"delimiter": ";", "columns": "idd:drop"}, r"no column 'idd'. It has: id, zip"),
        ({"delimiter": ";;"}, "one character"),
    ):
        raises(reason, read, path, error=StreamError, **options)


def test_a_position_fits_only_the_same_column_kinds(tmp_path, caplog):
    path = write_text(tmp_path / "rows.csv", CSV)
    options = {"delimiter": ";", "encoding": "latin-1", "columns": {"since": "date"}}
    position = read(path, **options)[1][1]
    for name in options:
        remaining = {key: value for key, value in options.items() if key != name}
        if name == "columns":
            raises(rf"read with .*{name}=.*Ask for the same", read, path, position, error=StreamError, **remaining)
        elif name == "encoding":
            caplog.clear()
            assert len(read(path, position, **remaining)[0]) == len(read(path, position, **options)[0])
            (record,) = caplog.records
            assert "read with delimiter=';', encoding='iso8859-1'" in record.message or "encoding=" in record.message


def test_more_columns_of_texts_than_calls_can_be_nested(tmp_path):
    n, gap = 1500, 700
    cells = [[f"{'xy'[(i + k) % 2]}" if k != gap else f"{i}" for k in range(n)] for i in range(20)]
    cells[3][5], cells[4][6] = "7", ""
    path = tmp_path / "wide.csv"
    path.write_text("\n".join(map(",".join, [[*(f"c{k}" for k in range(n)), "y"], *([*row, "no"] for row in cells)])) + "\n")
    rows = read_chunks(CSVSource(path, "y"), 20)[0]
    expected = [{f"c{k}": float(cell) if cell.isdigit() else cell for k, cell in enumerate(row) if cell} for row in cells]
    assert [row.x for row in rows] == expected


@pytest.mark.parametrize("text", ["x", '"x"', " x", "nan", "1_0", "0x1F"])
def test_columns_become_texts_together_or_one_by_one(tmp_path, text):
    lines = [f"{text if i % 3 else i},{text if i % 4 else i},{text if i % 40 == 5 else i},{i},no" for i in range(100)]
    path = write_text(tmp_path / "rows.csv", "\n".join(["a,b,c,d,y", *lines]) + "\n")
    together, one_by_one = (read_chunks(CSVSource(path, "y"), most)[:2] for most in (100, 1))
    assert repr(together) == repr(one_by_one)
