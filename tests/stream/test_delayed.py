"""Delayed labels from a second stream: results equal a replay in memory, also for invalid messages and killed runs."""

import datetime
import json
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import base, dummy, metrics

from delayed_twin import FATES, check_replayed, check_sums, correct_times, replay, streams, with_wrong_clocks, write
from killing import whole_and_killed
from loops import make_model
from refused import raises
from saved import dumps
from streamsvm.stream import (
    BadRow,
    CheckpointFolder,
    DelayedLabels,
    DelayedLearningLoop,
    FileSink,
    IterableSource,
    JoinedSource,
    JSONLinesSource,
    StreamError,
)
from streamsvm.stream.delayed.buffer import PendingRow
from streamsvm.stream.delayed.events import parse_event_time
from streamsvm.stream.tables import TableEncoder

JOIN = {"key": "id", "time": "t"}


def iterable(rows, name="rows"):
    return IterableSource([({k: v for k, v in row.items() if k != "y"}, row.get("y")) for row in rows], name)


def join(rows, labels, **options):
    return JoinedSource(iterable(rows), iterable(labels, "labels"), **JOIN, **options)


def learn(rows, labels, model=None, delayed=None, max_age=None, **options):
    delayed = DelayedLabels() if delayed is None else delayed
    loop = DelayedLearningLoop(
        join(rows, labels, max_age=max_age), model or make_model(), metrics.Accuracy(), delayed=delayed, **options
    )
    return loop.run(), loop


def row(key, time, **x):
    return {"id": key, "t": time, **(x or {"a": 1.0})}


def label(key, time, y=True):
    return {"id": key, "t": time, "y": y}


@pytest.mark.parametrize("negative", [None, False])
def test_the_model_equals_that_of_a_replay_in_memory(negative):
    rows, labels = streams(3, 1500, 60.0)
    model = make_model()
    metric, counts = replay(rows, labels, model, 60.0, negative=negative)
    limits = {"max_age": 60.0} | ({} if negative is None else {"expired": "negative", "negative": negative})
    progress, loop = learn(rows, labels, delayed=DelayedLabels(**limits))
    assert dumps(loop.model) == dumps(model)
    assert dumps(loop.metric) == dumps(metric)
    assert {name: progress.delayed[name] for name in FATES} == counts
    check_sums(progress.delayed, len(rows), len(labels))
    assert progress.rows == len(rows) + len(labels)
    assert progress.learned == counts["joined"] + (counts["expired_age"] if negative is not None else 0)
    assert min(counts[fate] for fate in FATES if fate not in ("refused", "expired_count", "early", "pending")) > 0


@pytest.mark.filterwarnings("ignore:.*none were joined so far")
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef"), st.integers(0, 4), st.booleans()), max_size=40),
    st.integers(0, 8),
    st.integers(1, 3),
    st.integers(0, 39),
)
def test_resumed_random_streams_equal_a_replay(messages, max_age, max_rows, cut):
    rows, labels, now = [], [], 0.0
    for is_row, key, step, y in messages:
        now += step
        (rows if is_row else labels).append({"id": key, "t": now, **({"a": now, "b": 1.0} if is_row else {"y": y})})
    replayed_model = dummy.NoChangeClassifier()
    metric, counts = replay(rows, labels, replayed_model, max_age, max_rows)
    model = dummy.NoChangeClassifier()
    source, delayed = join(rows, labels), DelayedLabels(max_age=max_age, max_rows=max_rows)
    loop = DelayedLearningLoop(source, model, metrics.Accuracy(), delayed=delayed)
    if not messages:
        return
    loop.run(cut)
    facts, entries = delayed.state, delayed.serialise_entries()
    resumed, new_source = DelayedLabels(max_age=max_age, max_rows=max_rows), join(rows, labels)
    resumed.restore(json.loads(json.dumps(facts)), entries)
    assert (resumed.state, resumed.serialise_entries()) == (facts, entries)
    assert resumed.nbytes == delayed.nbytes
    new_source.seek(json.loads(json.dumps(dict(source.position))))
    loop = DelayedLearningLoop(new_source, model, loop.metric, delayed=resumed)
    loop.rows = min(cut, len(messages))
    loop.run()
    assert {name: resumed.counts[name] for name in FATES} == counts
    assert dumps(loop.metric) == dumps(metric)
    check_sums(resumed.counts, len(rows), len(labels))


@pytest.mark.thorough
@pytest.mark.once
def test_killed_learner_ends_with_the_bytes_of_a_replay(tmp_path):
    rows, labels = (with_wrong_clocks(messages, 5, 3000.0) for messages in streams(11, 1800, 60.0))
    url = str(write(tmp_path / "rows.jsonl", rows))
    options = {"labels": str(write(tmp_path / "labels.jsonl", labels)), "label": "y", "join": JOIN, "delayed": {"max_age": 60.0}}
    options["passthrough"] = ["t", "id"]
    uninterrupted, killed = whole_and_killed(tmp_path, 8, len(rows) + len(labels), url, options, predictions="out.csv")
    assert max(uninterrupted.glob("*.ckpt")).read_bytes() == max(killed.glob("*.ckpt")).read_bytes()
    check_replayed(killed, correct_times(rows, 60.0), correct_times(labels, 60.0), 60.0)


def test_the_prediction_made_before_the_label_is_scored():
    class Changing(dummy.NoChangeClassifier):
        """Predicts the label learned last."""

    rows = [row("a", 0.0), row("b", 2.0), row("c", 3.0), row("d", 9.0)]
    labels = [label("a", 1.0, True), label("c", 4.0, False), label("b", 5.0, False), label("d", 6.0, False)]
    progress, loop = learn(rows, labels, Changing())
    # a: no prediction; b and c: True, when they came; d: its label came first, and scores the prediction when d comes.
    assert (progress.learned, loop.metric.cm.n_samples, loop.metric.cm[False][True], loop.metric.cm[False][False]) == (4, 3, 2, 1)


def test_predictions_are_written_before_labels_come(tmp_path):
    with FileSink(tmp_path / "out.jsonl") as sink:
        learn([row("a", 0.0), row(7, 2.0)], [label(7.0, 1.0, False), label("a", 3.0)], dummy.NoChangeClassifier(), sink=sink)
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["row"], line["key"], line["y_true"]) for line in written] == [(0, "a", None), (2, "7", False)]


def test_expired_rows_are_dead_letters(tmp_path):
    letters = tmp_path / "letters.jsonl"
    delayed = DelayedLabels(max_age=5.0, expired="dead-letter")
    progress, _ = learn([row("a", 0.0), row("b", 9.0)], [label("b", 10.0)], delayed=delayed, on_error=letters, error_limit=0)
    (letter,) = map(json.loads, letters.read_text().splitlines())
    assert (letter["row"], letter["kind"], letter["raw"]) == (0, "expired", "{'key': 'a', 'x': {'a': 1.0}}")
    assert letter["place"] == "rows with labels from labels: row 0, key 'a'"
    assert (progress.refused, progress.delayed["expired_rows"], progress.learned) == ({}, 1, 1)
    with pytest.raises(ValueError, match="needs a file or topic for these"):
        DelayedLearningLoop(join([], []), make_model(), delayed=DelayedLabels(expired="dead-letter"), on_error="skip")


def test_dead_letters_of_expired_rows_stay_if_their_file_is_used_again(tmp_path):
    rows, labels = [row(key, 10.0 * i) for i, key in enumerate("abcdef")], [label("a", 1.0)]
    for name, n in (("x", 4), ("y", 2), ("x", 1)):
        delayed = DelayedLabels(max_age=5.0, expired="dead-letter")
        with CheckpointFolder(tmp_path / "state") as folder:
            options = {"delayed": delayed, "checkpoints": folder, "on_error": tmp_path / f"{name}.jsonl"}
            DelayedLearningLoop(join(rows, labels), make_model(), **options).run(n)
    texts = [(tmp_path / name).read_text().splitlines() for name in ("x.000001.jsonl", "y.jsonl", "x.jsonl")]
    assert [[json.loads(line)["row"] for line in lines] for lines in texts] == [[2], [3, 4], [5]]


def test_a_row_refused_when_its_label_comes_is_settled(tmp_path):
    letters = tmp_path / "letters.jsonl"
    rows = [row("a", 0.0), row("b", 1.0), row("c", 2.0, a=2.0), row("d", 9.0), row("e", 10.0, a="word")]
    labels = [label("a", 3.0), label("b", 4.0, "yes"), label("b", 5.0), label("d", 6.0, "no"), label("c", 7.0, False)]
    labels += [label("e", 11.0)]
    progress, _ = learn(rows, labels, on_error=letters)
    assert progress.refused == {"label": 2, "not a number": 1}
    assert (progress.learned, progress.delayed["joined"], progress.delayed["refused"], progress.delayed["duplicate_labels"]) == (
        2,
        4,
        2,
        1,
    )
    check_sums(progress.delayed, len(rows), len(labels), refused=1)
    dead_letters = [json.loads(line) for line in letters.read_text().splitlines()]
    assert dead_letters[0]["raw"] == "({'a': 1.0}, 'yes')"
    assert "the label of row 1, key 'b'" in dead_letters[0]["place"]
    assert "word" in dead_letters[2]["reason"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (datetime.date(1970, 1, 2), 86_400.0),
        (datetime.datetime(1970, 1, 1, 1), 3600.0),
        (datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))), 0.0),
        ("1970-01-02", 86_400.0),
        (np.float32(0.5), 0.5),
        *((1_709_251_200 * 10**power, 1_709_251_200.0) for power in (0, 3, 6, 9)),
    ],
)
def test_event_times_are_parsed(value, seconds):
    assert parse_event_time(value) == seconds


@pytest.mark.parametrize("value", [math.nan, 10**400, -(10**400), datetime.time(1)])
def test_invalid_event_times_are_refused(value):
    raises("the event time is .*(it must be seconds|in the future|too long ago)", parse_event_time, value)


@pytest.mark.parametrize(
    ("which", "bad", "reason"),
    [
        ("rows", {"t": 1.0, "a": 1.0}, "the key is missing"),
        ("rows", {"id": 1.5, "t": 1.0, "a": 1.0}, "the key is 1.5: it must be a text or a whole number"),
        ("labels", {"id": [1], "t": 1.0, "y": True}, "the key is"),
        ("labels", {"id": True, "t": 1.0, "y": True}, "the key is True"),
        ("labels", {"id": 1e17, "t": 1.0, "y": True}, "a float must be below 2"),
        ("labels", {"id": "k" * 257, "t": 1.0, "y": True}, "from 1 to 256 characters"),
        ("labels", {"id": "\ud800", "t": 1.0, "y": True}, "half of a surrogate pair"),
        ("rows", {"id": "k", "a": 1.0}, "the event time is missing"),
        ("rows", {"id": "k", "t": "soon", "a": 1.0}, "the event time is 'soon'"),
        ("rows", {"id": "k", "t": -1e22, "a": 1.0}, "too long ago"),
        ("rows", {"id": "k", "t": "nan", "a": 1.0}, "the event time is 'nan': it must be"),
        ("labels", {"id": "k", "t": "2999-01-01", "y": True}, "which is in the future"),
        ("labels", {"id": "k", "t": 1.0, "y": None}, "has no label"),
        ("labels", {"id": "k", "t": 1.0, "y": [1]}, "label [1] is invalid"),
        ("labels", {"id": "k", "t": 1.0, "y": 2**63}, "number below 2**63"),
        ("rows", {"id": "k", "t": 1.0, "y": True}, "the row contains its label"),
        ("rows", {"id": "k", "t": 1.0, "a": [1.0]}, "only numbers and texts"),
        ("rows", {"id": "k", "t": 1.0, "a": "x" * 2**21}, "one that waits may"),
    ],
)
@pytest.mark.parametrize("format", ["iterable", "jsonl"])
def test_invalid_messages_are_refused_without_effect(which, bad, reason, format, tmp_path):  # noqa: A002
    streams_ = {"rows": [row("a", 0.0), row("b", 2.0)], "labels": [label("a", 0.5), label("b", 3.0, False)]}
    streams_[which].insert(1, bad)
    letters = tmp_path / "letters.jsonl"
    sources = [iterable(messages, name) for name, messages in streams_.items()]
    if format == "jsonl":
        sources = [JSONLinesSource(write(tmp_path / f"{name}.jsonl", messages), "y") for name, messages in streams_.items()]
    loop = DelayedLearningLoop(JoinedSource(*sources, **JOIN), make_model(), delayed=DelayedLabels(), on_error=letters)
    progress = loop.run()
    loop.source.close()
    (letter,) = map(json.loads, letters.read_text().splitlines())
    assert reason in letter["reason"]
    assert letter["place"].startswith(loop.source._sources[which == "labels"].name)
    assert (progress.rows, progress.learned, sum(progress.refused.values())) == (5, 2, 1)
    expected = make_model()
    for y in (True, False):
        expected.learn_one({"a": 1.0}, y)
    assert dumps(loop.model) == dumps(expected)


@pytest.mark.parametrize(
    ("max_age", "ahead", "refused"), [(1800.0, 3000.0, 1), (86_400.0, 300.0, 0), (86_400.0, 4000.0, 1), (0.0, 5.0, 0)]
)
def test_times_beyond_the_clock_slack_are_refused(max_age, ahead, refused):
    now = time.time()
    rows, labels = [row("a", now - 5.0), row("b", now + ahead), row("c", now + ahead)], [label("a", now)]
    source = join(rows, labels, max_age=max_age)
    reasons = [row.reason for row in source if type(row) is BadRow]
    assert len(reasons) == 2 * refused
    assert all("which is in the future" in reason for reason in reasons)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([0, 1, 9, 11, 30, 500, -3, -40]), st.booleans()), max_size=30),
    st.integers(0, 29),
)
def test_the_merged_order_equals_that_of_a_naive_implementation(messages, cut):
    sides, now = ([], []), 0.0
    for i, (is_label, step, bad) in enumerate(messages):
        now += step
        key = "x" * 300 if bad and i % 3 == 0 else i
        sides[is_label].append(label(key, now) if is_label else row(key, now))

    def source():
        return join(*sides, max_age=40.0)

    valid = [correct_times([message for message in side if message["id"] != "x" * 300], 40.0) for side in sides]
    expected = [(message["t"], side, str(message["id"])) for side in (0, 1) for message in valid[side]]
    expected.sort(key=lambda event: event[:2])
    rows = list(source())
    events = [row.y for row in rows if type(row) is not BadRow]
    assert [(event.time, int(type(event).__name__ == "ArrivedLabel"), event.key) for event in events] == expected
    first, resumed = source(), source()
    first_rows = [row for _, row in zip(range(cut), first, strict=False)]
    resumed.seek(json.loads(json.dumps(dict(first.position))))
    assert [*first_rows, *resumed] == rows


def test_one_warning_for_many_rows_that_expire_at_once():
    rows = [row(i, float(i)) for i in range(100)] + [row("next day", 90_000.0), row("and", 90_001.0)]
    rows += [row(1000 + i, 90_002.0 + i) for i in range(100)] + [row("a day later", 180_500.0), row("and so on", 180_500.0)]
    with pytest.warns(UserWarning, match="expired at once|joined so far") as warned:
        learn(rows, [label("nobody", 180_600.0)], dummy.NoChangeClassifier(), DelayedLabels(max_age=1800.0))
    messages = [str(warning.message) for warning in warned]
    (message,) = (text for text in messages if "expired at once" in text)
    assert "the event time is 89,901 s ahead of the message before, and 100 of 100 rows and labels" in message
    assert "max_age=1,800" in message


def test_the_buffer_is_bounded():
    rows = [row(i, float(i), a="x" * 1000) for i in range(7000)]
    labels = [label(f"other {i}", float(i)) for i in range(3000)]
    delayed = DelayedLabels(max_age=None, max_bytes=2**22, max_rows=3500)
    loop = DelayedLearningLoop(join(rows, labels), dummy.NoChangeClassifier(), delayed=delayed)
    max_bytes = 0
    while loop.run(1000).rows % 1000 == 0 and loop.rows < len(rows) + len(labels):
        counts = delayed.counts
        max_bytes = max(max_bytes, counts["bytes"])
        assert counts["bytes"] <= 2**22
        assert max(counts["pending"], counts["early"], counts["settled"]) <= 3500
    counts = delayed.counts
    assert max_bytes > 2**22 - 2000
    assert counts["expired_bytes"] > 4000
    assert counts["settled"] == 3500
    check_sums(counts, len(rows), len(labels))
    resumed = DelayedLabels()
    resumed.restore(delayed.state, delayed.serialise_entries())
    assert (
        resumed.nbytes == delayed.nbytes == sum(400 + len(k) + len(p.row) + len(p.prediction) for k, p in delayed._rows.items())
    )


def test_a_further_pass_reads_appended_messages(tmp_path):
    rows, labels = streams(5, 300, 60.0)
    halves = [sum(message["t"] < 150.0 for message in messages) for messages in (rows, labels)]
    paths = [tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"]
    for path, messages, half in zip(paths, (rows, labels), halves, strict=True):
        write(path, messages[:half])

    def run():
        with CheckpointFolder(tmp_path / "state") as folder:
            source = JoinedSource(*(JSONLinesSource(path, "y") for path in paths), **JOIN)
            delayed = DelayedLabels(max_age=60.0)
            loop = DelayedLearningLoop(source, make_model(), delayed=delayed, checkpoints=folder)
            progress = loop.run()
            source.close()
            return progress, dumps(loop.model)

    first, _ = run()
    assert first.rows == sum(halves)
    assert run()[0].rows == sum(halves)
    for path, messages in zip(paths, (rows, labels), strict=True):
        write(path, messages)
    progress, model = run()
    assert progress.rows == len(rows) + len(labels)
    assert model == dumps(learn(rows, labels, delayed=DelayedLabels(max_age=60.0))[1].model)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts, lines: (facts, lines[:-1] + b", []]"),
        lambda facts, lines: (facts | {"counts": facts["counts"] | {"joined": -1}}, lines),
        lambda facts, lines: (facts, lines.replace(b"e", b"\xff")),
        lambda facts, lines: (facts, lines.replace(b"[[", b"[" * 10**6)),
        lambda facts, lines: (None, lines),
    ],
)
def test_a_corrupt_buffer_is_refused(change):
    delayed = DelayedLabels(max_age=10.0)
    for i, key in enumerate("ab"):
        delayed.add_row(key, PendingRow(float(i), i, '[["x"],[1.5]]', "[true]"))
    list(delayed.expire(3.0))
    delayed.add_label("early", 3.0, 1)
    delayed.add_label("b", 3.0, 1)
    facts, lines = delayed.state, delayed.serialise_entries()
    DelayedLabels().restore(facts, lines)
    new = DelayedLabels()
    before = new.state
    with pytest.raises((ValueError, TypeError, RecursionError)):
        new.restore(*change(facts, lines))
    assert new.state == before


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        *[({"max_age": -1.0}, "max_age"), ({"max_rows": 0}, "max_rows"), ({"max_bytes": 1000}, "max_bytes")],
        *[({"expired": "forget"}, "expired"), ({"expired": "negative"}, "needs the label"), ({"negative": 0}, "leave it out")],
    ],
)
def test_parameters_are_checked(parameters, message):
    raises(message, DelayedLabels, **parameters)


def test_streams_that_cannot_be_joined_cause_warnings_or_errors():
    states = r"2 wait for a label, 1 labels wait for a row. Is the key right\? 'a' waits in the first row, 'c' in"
    with pytest.warns(UserWarning, match=f"of 2 rows and 1 labels, none were joined so far: {states} the first label"):
        learn([row("a", 0.0), row("b", 1.0)], [label("c", 1.0)])
    with pytest.warns(UserWarning, match="none were joined so far: 1 expired, 1 labels too late$"):
        learn([row("a", 0.0)], [label("a", 9.0)], delayed=DelayedLabels(max_age=5.0))
    with pytest.warns(UserWarning, match="none were joined so far: 1 wait for a label, 1 labels without a row$"):
        learn([row("b", 99.0)], [label("a", 1.0)], delayed=DelayedLabels(max_age=5.0))
    raises("have no rows", learn, [], [], error=StreamError)
    alone = DelayedLearningLoop(iterable([row("a", 0.0)]), make_model(), delayed=DelayedLabels(), on_error="skip")
    raises("make a JoinedSource", alone.run, error=StreamError)
    raises("name its column", JoinedSource, iterable([]), iterable([]), key="id", error=StreamError)  # rows without times


def test_chunks_of_joined_streams_have_places_and_passthrough_columns():
    source = join([row("a", 0.0, b="x"), row(1.5, 2.0)], [label("a", 1.0)])
    assert source.request_passthrough(["b", "t"]) == ["b", "t"]
    bad, first, second = (source.read(9) for _ in range(3))  # the invalid row is read ahead
    places = [(len(chunk), chunk.place(0), chunk.row(0).y[:2]) for chunk in (first, second)]
    assert places == [(1, "rows, row 1", ("a", 0.0)), (1, "labels, row 1", ("a", 1.0))]
    assert [chunk.passthrough_columns(0, 1) for chunk in (first, second, bad)] == [
        [["x"], [0.0]],
        [[None], [None]],
        [[None], [None]],
    ]
    assert [chunk.passthrough_columns(1, 1) for chunk in (first, second, bad)] == [[[], []]] * 3
    assert [chunk.messages(0, 1) for chunk in (first, second, bad)] == [None] * 3
    assert (bad.place(0), bad.row(0).place) == ("rows, row 2", "rows, row 2")
    assert source.read(9) is None


class Features(base.Classifier):
    """Collects the features of predicted and of learned rows, by the row's number."""

    def __init__(self):
        self.predicted, self.learned = {}, {}

    def predict_one(self, x):
        self.predicted[x["i"]] = x
        return True

    def learn_one(self, x, y):
        self.learned[x["i"]] = x


def test_a_row_is_learned_with_the_memory_of_its_key_when_it_was_predicted():
    rows = [row(i, 10.0 * i, device="ab"[i % 2], i=float(i)) for i in range(60)]
    labels = [label(i, 10.0 * i + 55.0, i // 2 % 3 == 0) for i in range(60)]
    last = Features()
    progress, _ = learn(rows, labels, TableEncoder(keys="device") | last)
    assert progress.delayed["joined"] == len(last.learned) == 60
    names = ["device~last True", "device~recent True", "device~rows"]
    remembered = [i for i, x in last.predicted.items() if "device~rows" in x]
    assert len(remembered) > 50
    assert all(last.predicted[i][name] == last.learned[i][name] for i in remembered for name in names)
    assert math.log(1 + 27) == max(last.learned[i]["device~rows"] for i in remembered)  # three rows of each key were waiting
