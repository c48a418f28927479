"""Labels from another stream, on the command line."""

import csv
import json
from pathlib import Path

import pytest

from delayed_twin import check_sums, streams, write
from streamsvm.stream import load


@pytest.fixture
def files(tmp_path):
    rows, labels = streams(2, 600, 60.0)
    labels_path = str(write(tmp_path / "labels.jsonl", labels))
    return rows, labels, str(write(tmp_path / "rows.jsonl", rows)), f"{labels_path}?key=id&time=t&max_age=60"


WORDS = "--label", "y", "--quiet"


def test_joined_run_in_pieces_equals_uninterrupted_run(files, tmp_path, call):
    rows, labels, *paths = files

    def learn(state, *more):
        return call("learn", paths[0], "--labels", paths[1], *WORDS, "--checkpoint", tmp_path / state, *more).end

    uninterrupted = learn("whole")
    check_sums(uninterrupted["delayed"], len(rows), len(labels))
    assert uninterrupted["rows"] == len(rows) + len(labels)
    assert uninterrupted["learned"] == uninterrupted["delayed"]["joined"] > 400
    learn("pieces", "--max-rows", 333)
    assert learn("pieces") == uninterrupted | {"rows_per_second": pytest.approx(0, abs=1e9), "seconds": pytest.approx(0, abs=1e9)}
    files = [max((tmp_path / state).glob("*.ckpt")) for state in ("whole", "pieces")]
    assert files[0].read_bytes() == files[1].read_bytes()
    shown = json.loads(call("inspect", tmp_path / "whole", "--json").stdout)
    assert shown["delayed"]["counts"]["joined"] == uninterrupted["learned"]


def test_rows_are_predicted_without_their_key_and_time(files, tmp_path, call):
    rows, _, *paths = files
    call("learn", paths[0], "--labels", paths[1], *WORDS, "--checkpoint", tmp_path / "state")
    predicted = [row["y_pred"] for row in call("predict", paths[0], "--model", tmp_path / "state", "--to", "-").rows]
    model = load(tmp_path / "state")
    assert predicted == [model.predict_one({"a": row["a"], "b": row["b"]}) for row in rows]


def test_keys_of_csv_are_texts(file, tmp_path, call):
    keys, out = ("007", "7", "1e3", "q"), tmp_path / "out.csv"
    rows = file("rows.csv", "id,at,a", *(f"{key},1970-01-01T00:00:0{i},{i}" for i, key in enumerate(keys)))
    labels = file("labels.csv", "y,id,at", *(f"{i % 2},{key},{i + 10}" for i, key in enumerate(reversed(keys))))
    progress = call("learn", rows, "--labels", f"{labels}?key=id&time=at", *WORDS, "--to", out).end
    assert (progress["learned"], progress["delayed"]["pending"]) == (4, 0)
    with out.open() as lines:
        assert [line["key"] for line in csv.DictReader(lines)] == list(keys)


def test_progress_reports_unjoined_rows_and_labels(files, call):
    line = call("learn", files[2], "--labels", files[3], *WORDS[:-1]).last
    for text in ("expired", "labels too late", "duplicate rows", "duplicate labels", "labels without a row"):
        assert text in line


def test_expired_rows(files, tmp_path, call):
    letters = tmp_path / "letters.jsonl"

    def learn(parameters, *words):
        return call("learn", files[2], "--labels", files[3] + parameters, *WORDS, *words).end

    dropped = learn("")
    written = learn("&expired=dead-letter", "--on-error", letters)
    assert len(letters.read_text().splitlines()) == written["delayed"]["expired_rows"] == dropped["delayed"]["expired_rows"] > 50
    learned = learn("&expired=negative=false")
    assert learned["learned"] == dropped["learned"] + dropped["delayed"]["expired_rows"]
    assert learn("&max_rows=10")["delayed"]["expired_count"] > 100


@pytest.mark.parametrize(
    ("labels", "words", "message"),
    [
        ("{labels}", [], "Write --labels '{labels}?key=NAME'"),
        ("{labels}?kye=id", [], "Write --labels '{labels}?kye=id&key=NAME'"),
        ("kafka://h/t?codec=avro", [], "Write --labels 'kafka://h/t?codec=avro&key=NAME'"),
        ("{labels}?key=id&age=1h", [], "age=1h is not one of key, time"),
        ("{labels}?key=id&key=y", [], "is given twice"),
        ("{labels}?key=y", [], "must be three columns"),
        ("l.libsvm?key=id", [], "LIBSVM text"),
        ("{labels}?key=id&expired=dead-letter", [], "needs a place for dead letters"),
        ("{labels}?key=id&expired=forget", [], "expired must be one of"),
        ("{labels}?key=id&max_age=-1", [], "max_age must be a time such as 90s"),
        ("{labels}?key=id&max_rows=1_0", [], "max_rows must be an integer at least 1, not '1_0'"),
        ("{labels}?key=id", ["--from", "0:3"], "offsets of one topic"),
        ("{labels}?key=id", ["--to", "{labels}"], "would overwrite --labels"),
    ],
)
def test_invalid_labels_flags_are_refused(files, call, labels, words, message):
    named = {"labels": files[3].partition("?")[0]}
    words = [word.format(**named) for word in ("--labels", labels, *words)]
    call("learn", files[2], "--label", "y", *words, status=2, says=message.format(**named))


def test_invalid_label_streams_are_refused(files, file, call):
    place = files[3].partition("?")[0]
    call(
        "learn",
        files[2],
        "--labels",
        f"{place}?key=id",
        "--label",
        "y",
        status=1,
        says="name its column, --labels 'STREAM?key=ID&time=AT'",
    )
    inside = file("inside.jsonl", '{"id": 1, "t": 1.0, "a": 1.0, "y": true}')
    call("learn", inside, "--labels", files[3], *WORDS, status=1, says="contains its label")
    missing = Path(place).with_name("none.jsonl")
    call("learn", files[2], "--labels", f"{missing}?key=id&time=t", *WORDS, status=1, says=f"{missing}: No such file")


def test_missing_value_marks_are_not_labels_of_a_label_stream(file, call):
    rows = file("rows.csv", "id,at,a", *(f"{i},{i},{i % 7}" for i in range(60)))
    for name, *lines in (
        ("labels.csv", "id,at,y", *(f"{i},{i + 1},{'NA' if i % 9 == 0 else i % 2}" for i in range(60))),
        ("labels.jsonl", *(json.dumps({"id": i, "at": i + 1, "y": "NA" if i % 9 == 0 else i % 2}) for i in range(60))),
    ):
        labels = f"{file(name, *lines)}?key=id&time=at"
        progress = call("learn", rows, "--labels", labels, *WORDS, "--missing", "NA", "--on-error", "skip").end
        assert (progress["learned"], sum(progress["refused"].values())) == (53, 7)


def test_rows_that_contain_their_label(file, tmp_path, call):
    """The label in the rows may be an early one: it is refused, or dropped if the user says so."""
    rows = file("rows.csv", "id,at,a,y", *(f"{i},{i},{i % 7},{i % 3}" for i in range(90)))
    labels = file("labels.csv", "id,at,y", *(f"{i},{i + 5},{i % 7 > 3}" for i in range(90)))
    joined = ["--labels", f"{labels}?key=id&time=at", "--label", "y"]
    says = "each row contains its label, 'y': leave --labels out, or do not learn this column: --columns y:drop"
    call("learn", rows, *joined, status=1, says=says)
    end = call("learn", rows, *joined, "--columns", "y:drop", "--checkpoint", tmp_path / "state", "--quiet").end
    assert end["learned"] == 90
    for words in (joined, joined[:2]):  # the label of the checkpoint is the default
        scored = json.loads(call("score", rows, "--model", tmp_path / "state", *words, "--json").stdout)
        assert (scored["rows"], scored["scores"][0]["value"] > 0.9) == (90, True)
