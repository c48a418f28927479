"""Chunks of text in columns have the values of the same lines, parsed one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunks import check_chunks, write_rows
from streamsvm import BSGDClassifier
from streamsvm.stream import CSVSource, JSONLinesSource, LearningLoop, LIBSVMSource, open_source

pytestmark = pytest.mark.once

CELLS = ["0", "1", "-1", "-0", "-0.0", "-0e3", "1e-05", "-1e-05", "1E-5", "1e400", "1e39", "01", "+1", ".5", "1.", "1_0"]
CELLS += ["nan", "inf", "text", "٣", "[1]", "1]", "''", "true", "null", "1;2", "x\ty"]
CELLS += ["", " ", " 1", "1 ", "1\t", '"1"', '"1,2"', '"a ""b"""', "\0", "1\r", "9007199254740993", "1e308"]
LABELS = ["1", "0", "1.0", "007", "yes", "YES", "-0", "true", "True", "1e3", "é", "", " 1", "1 ", '"1"']
NUMBERS = ["0", "-2.5", "1e3", "0.1", "7", "", "1.209,28", "-3", "20240131", "1700000000000"]
TEXTS = ["Oslo", "x y", '"q; z"', "7", "NA", "", '"NA"', "\xe9", "-999"]
DATES = ["2024-01-02", "2024-01-03", "2024-01-02T03:04", "2024-02-30", "02.01.2024", "1700000000", ""]
ODD_CELLS = [*CELLS, *LABELS, *TEXTS, *DATES, *(f'"{space}"' for space in (" 1", "1 ", " ", "\t", "a\nb"))]
ODD_CELLS += [" nan ", '"', '"a', 'b"c', '"1"x', "\x85", "\xa01", "\x1f", "(1,5)", "3 %"]
WAYS = [
    *[{}, {"missing": ["NA", "-999", "0"]}, {"decimal": ","}, {"columns": "a:category"}, {"columns": "a:date"}],
    {"columns": "a:date=%d.%m.%Y", "missing": "2024-01-02"},
    {"columns": "a:date=ms,b c:category"},
    {"columns": "a:number,*:drop", "missing": "nan"},
    {"columns": "a:drop", "decimal": "."},
    {"columns": "a:number=NA|-999", "missing": "0"},
    {"columns": "a:date", "missing": ["7", "2024-01-02"]},
]


@st.composite
def csv_texts(draw):
    """CSV text, the number of columns, and the delimiter."""
    mark, width = draw(st.sampled_from(",;\t|")), draw(st.integers(1, 3))
    names = ["a", "b c", "d"][:width]
    usual = [st.sampled_from(draw(st.sampled_from([NUMBERS, TEXTS, DATES, ODD_CELLS]))) for _ in names]
    rows = st.tuples(*usual) | st.tuples(*usual) | st.tuples(*(st.sampled_from(ODD_CELLS) for _ in names))
    odd_lines = st.sampled_from(
        ["", " ", "\r", mark, mark * width, '"', mark.join(names), mark.join(f'"{name}"' for name in names)]
    )
    lines = draw(st.lists(rows.map(mark.join) | rows.map(mark.join) | odd_lines, min_size=1, max_size=40))
    return draw(st.sampled_from(["\n", "\r\n"])).join([mark.join(names), *lines, ""]), names, mark


@pytest.mark.filterwarnings("ignore:.*looks like a row", "ignore:.*is taken as part of the text")
@given(st.data(), csv_texts(), st.sampled_from(["utf-8", "utf-8", "latin-1", "cp1252", "ascii", "shift_jis"]))
def test_columns_of_csv_have_the_values_of_rows(tmp_path_factory, data, text, encoding):
    text, names, mark = text
    written = text.encode(encoding, "replace")
    if data.draw(st.booleans()):
        at = data.draw(st.integers(text.index("\n") + 1, len(written)))
        written = written[:at] + data.draw(st.sampled_from([b"\xff", b"\xef\xbb\xbf", b'"'])) + written[at:]
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_bytes(written)
    label, keep = data.draw(st.sampled_from([None, *names[1:]])), data.draw(st.sets(st.sampled_from(names)))
    options = data.draw(
        st.sampled_from(
            [options for options in WAYS if "b c" not in options.get("columns", "") or ("b c" in names and label != "b c")]
        )
    )

    def opened():
        source = CSVSource(path, label, delimiter=mark, encoding=encoding, **options)
        source.request_passthrough(sorted(keep))
        return source

    check_chunks(opened, data.draw(st.sampled_from([3, 1000])))


VALUES = st.sampled_from(
    ["0", "-1", "2.5", "-0.0", "1e400", "NaN", "true", "null", '"x"', '"1,5"', '"2024-01-02"', "[1]", '{"b": 1}', "1" * 30]
)
FIELDS = {"a": VALUES, "b": st.sampled_from(["1", "2.5", "null"]), "\xe9": st.sampled_from(["1", "-3"]), "y": VALUES}


@given(st.data(), st.sampled_from([["a", "b", "\xe9"], ["b", "a", "none"], ["a", 1], []]), st.sampled_from(WAYS[:6]))
def test_columns_of_json_lines_have_the_values_of_rows(tmp_path_factory, data, known_features, options):
    rows = st.fixed_dictionaries({}, optional=FIELDS) | st.just({"a": "1", "b": "2", "\xe9": "3", "y": "0"})
    lines = rows.map(lambda row: "{" + ", ".join(f'"{name}": {value}' for name, value in row.items()) + "}")
    odd_lines = st.sampled_from(
        ["", " ", "{", "[1]", "{}", ' {"a": 1}', '{"a": 1}\r', '{"\\u0061": 1}', '{"a": 1, "a": 2}', '{"a": "\x80"}']
    )
    text = "\n".join([*data.draw(st.lists(lines | lines | odd_lines, min_size=1, max_size=30)), ""])
    path = tmp_path_factory.mktemp("json") / "rows.jsonl"
    path.write_bytes(text.encode().replace(b"\xc2\x80", b"\xff"))

    def opened():
        source = JSONLinesSource(path, "y", **options)
        source.request_passthrough(["a"])
        return source

    check_chunks(opened, data.draw(st.sampled_from([3, 1000])), known_features)


def test_libsvm_text_with_many_other_features(tmp_path):
    path = write_rows(tmp_path / "rows.libsvm", [{"a": i, "b": i % 3, "c": i % 2 or None, "y": i % 2} for i in range(100)])
    assert check_chunks(lambda: LIBSVMSource(path), 1000, [1, 2]) == 100  # read one by one
    assert check_chunks(lambda: LIBSVMSource(path), 1000, [3, 1, 2]) == 100


@given(st.data(), st.sampled_from([[1, 2, 3], [3, 1], ["a", 2, 1.0, True], [-1], []]))
def test_columns_of_libsvm_text_have_the_values_of_rows(tmp_path_factory, data, known_features):
    label = st.sampled_from(["1", "-1", "+1", "1.0", "x", "\xe9", "1:2", "nan", "1_0", "a\xa0b", "\xa0"])
    pairs = st.dictionaries(st.sampled_from([1, 2, 3]), st.floats(-2, 2).map(repr) | st.sampled_from(CELLS), max_size=3)
    rows = st.tuples(label, pairs.map(lambda x: [f"{name}:{value}" for name, value in x.items()])).map(
        lambda row: " ".join([row[0], *row[1]])
    )
    odd_lines = st.sampled_from(
        ["", " ", "#", "# x", "\xa0", "\x1c", "\x1c# x", "1 1:1 1:1", "1 01:1", "1 1:2 # x", "1 \x1f1:2", "\ufeff1 1:2"]
    )
    path = tmp_path_factory.mktemp("libsvm") / "rows.svm"
    path.write_bytes("\n".join([*data.draw(st.lists(rows | rows | odd_lines, min_size=1, max_size=30)), ""]).encode())
    check_chunks(lambda: LIBSVMSource(path), data.draw(st.sampled_from([3, 1000])), known_features)


@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("kind", [JSONLinesSource, CSVSource])
def test_usual_lines_are_read_without_a_dict_for_each(tmp_path, monkeypatch, kind, weight):
    rows = [{"a": i / 7, "b": i % 9, "w": 1 + i % 3, "y": int(i % 9 > 4)} for i in range(4000)]
    path = write_rows(tmp_path / f"rows.{'csv' if kind is CSVSource else 'jsonl'}", rows)
    parsed, read = [], kind._parse_line
    monkeypatch.setattr(kind, "_parse_line", lambda self, line: parsed.append(line) or read(self, line))
    with open_source(str(path), label="y", weight=weight) as source:
        LearningLoop(source, BSGDClassifier(20)).run()
    assert len(parsed) < 100
