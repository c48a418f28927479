"""Refused rows: each affects only itself, and becomes a dead letter with its reason."""

import base64
import csv
import json

import pytest
from river import compose, feature_extraction, linear_model, preprocessing

import poison
from killing import whole_and_killed
from refused import raises
from saved import dumps
from streamsvm import BSGDClassifier
from streamsvm.stream import CheckpointError, CheckpointFolder, IterableSource, LearningLoop, StreamError, load
from streamsvm.stream.refusals import MAX_RAW_BYTES, RefusedRowHandler

LEARNER = "bsgd,budget=20,max_classes=2"
#: A row that every model refuses.
BAD = ({"a": "text", "b": 1.0}, 1)


def letters_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def raw_of(letter):
    return base64.b64decode(letter["raw"]) if letter["encoding"] == "base64" else letter["raw"].encode()


def as_line(row, kind):
    if kind == "jsonl":
        return json.dumps(row).encode()
    return ",".join(map(repr, row.values())).encode()


@pytest.fixture(params=["jsonl", "csv"])
def streams(request, tmp_path):
    """The file of all rows, the file of the valid ones, the order of both, and the format."""
    kind = request.param
    order = poison.mixed(poison.JSON if kind == "jsonl" else poison.CSV)
    rows = poison.good_rows()
    header = b"a,b,c,y\n" * (kind == "csv")
    lines = [as_line(rows[item], kind) if isinstance(item, int) else item[0] for item in order]
    all_rows, good = tmp_path / f"whole.{kind}", tmp_path / f"good.{kind}"
    all_rows.write_bytes(header + b"".join(line + b"\n" for line in lines))
    good.write_bytes(header + b"".join(as_line(row, kind) + b"\n" for row in rows))
    return all_rows, good, order, kind


@pytest.mark.parametrize("scale", ["standard", "none"])
def test_fifty_kinds_of_invalid_rows(streams, tmp_path, scale, call):
    all_rows, good, order, kind = streams
    bad = [(number, *item) for number, item in enumerate(order) if not isinstance(item, int)]
    assert len(bad) == 50
    dead, out = tmp_path / "dead.jsonl", tmp_path / "out.jsonl"
    words = ["--label", "y", "--learner", f"{LEARNER},max_features={poison.MAX_FEATURES}", "--scale", scale]
    call("learn", good, *words, "--checkpoint", tmp_path / "good")
    done = call("learn", all_rows, *words, "--on-error", dead, "--to", out, "--checkpoint", tmp_path / "all_rows", "--quiet")
    assert done.stderr == ""
    letters = letters_of(dead)
    assert [(letter["row"], raw_of(letter).strip(b"\n")) for letter in letters] == [
        (number, raw.strip(b"\n")[:MAX_RAW_BYTES]) for number, raw, _ in bad
    ]
    wrong = [
        (raw[:60], reason, letter["kind"], letter["reason"])
        for (_, raw, reason), letter in zip(bad, letters, strict=True)
        if letter["kind"] != reason
    ]
    assert wrong == []
    line = 1 + (kind == "csv")
    assert [letter["place"] for letter in letters] == [f"{all_rows}, line {number + line:,}" for number, *_ in bad]
    assert dumps(load(tmp_path / "all_rows")) == dumps(load(tmp_path / "good"))
    facts = done.end
    assert (facts["rows"], facts["learned"], sum(facts["refused"].values())) == (650, 600, 50)
    assert facts["refused"] == {
        reason: sum(reason == kind_ for *_, kind_ in bad) for reason in dict.fromkeys(reason for *_, reason in bad)
    }
    numbers = [number for number, item in enumerate(order) if isinstance(item, int)]  # row numbers in the stream
    assert [json.loads(line)["row"] for line in out.read_text().splitlines()] == numbers


def test_predict_has_the_same_policy(streams, tmp_path, call):
    all_rows, good, order, _ = streams
    call("learn", good, "--label", "y", "--learner", f"{LEARNER},max_features=8", "--checkpoint", tmp_path / "good")
    dead, out = tmp_path / "dead.csv", tmp_path / "out.jsonl"
    words = ["predict", all_rows, "--model", tmp_path / "good", "--label", "y", "--to", out, "--quiet"]
    facts = call(*words, "--on-error", dead).end
    # A prediction ignores labels and new names.
    bad = [item for item in order if not isinstance(item, int) and item[1] not in ("label", "feature name")]
    refused = [kind for _, kind in bad]
    assert sum(facts["refused"].values()) == len(refused)
    assert facts["predicted"] == facts["rows"] - len(refused) == len(out.read_text().splitlines())
    with dead.open(newline="") as file:
        letters = list(csv.DictReader(file))
    assert [letter["kind"] for letter in letters] == refused
    assert [raw_of(letter).strip(b"\r\n") for letter in letters] == [raw.strip(b"\r\n")[:MAX_RAW_BYTES] for raw, _ in bad]
    call(*words, status=1, says="--on-error skip")


@pytest.mark.thorough
def test_a_killed_run_has_each_refused_row_once(tmp_path):
    order = poison.mixed(poison.JSON)
    rows = poison.good_rows()
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join((as_line(rows[item], "jsonl") if isinstance(item, int) else item[0]) + b"\n" for item in order))

    places = whole_and_killed(tmp_path, 8, 650, str(path), {"label": "y"}, "dead.jsonl")
    uninterrupted, killed = ([{**letter, "time": ""} for letter in letters_of(place / "dead.jsonl")] for place in places)
    assert len(uninterrupted) > 40
    assert killed == uninterrupted
    assert dumps(load(places[1])) == dumps(load(places[0]))


def learn(rows, model, **options):
    loop = LearningLoop(IterableSource(rows), model, **options)
    loop.run()
    return loop


def numbers(n=50):
    return [({"a": row["a"], "b": row["b"]}, row["y"]) for row in poison.good_rows()[:n]]


def test_transformers_still_get_text():
    rows = [({**x, "city": ("Rome", "Oslo")[i % 2]}, y) for i, (x, y) in enumerate(numbers())]
    bad = [({**rows[0][0], "a": "text"}, 1), ({**rows[0][0], "b": float("inf")}, 0), ({**rows[0][0], "city": "Paris"}, "1")]

    def model():
        scaled = compose.Select("a", "b") | preprocessing.StandardScaler()
        return scaled + (compose.Select("city") | preprocessing.OneHotEncoder()) | BSGDClassifier(budget=10, seed=1)

    expected = learn(rows, model())
    loop = learn([*rows[:20], *bad, *rows[20:]], model(), on_error="skip")
    assert loop.refused == {"not a number": 1, "not finite": 1, "label": 1}
    assert dumps(loop.model) == dumps(expected.model)
    raises(r"row 1: .*\(feature 'a' is 'text'\)\. To skip such rows: --on-error skip", learn, bad, model(), error=StreamError)


def test_rows_that_are_strings():
    rows = [("good words", True), ("bad words", False), ("good", True)] * 5
    model = feature_extraction.BagOfWords() | BSGDClassifier(budget=10, seed=1)
    assert learn([*rows, (None, True)], model, on_error="skip").refused == {"malformed": 1}
    assert model[-1].n_learned == 15


def test_rows_are_validated_for_a_river_model():
    rows = numbers()
    bad = [({"a": float("nan"), "b": 1.0}, 1), ({"a": 1e39, "b": 1.0}, 1)]
    expected = learn(rows, linear_model.LogisticRegression())
    loop = learn([*rows[:9], *bad, *rows[9:]], linear_model.LogisticRegression(), on_error="skip")
    assert loop.model.weights == expected.model.weights
    assert loop.refused == {"not finite": 2}


def test_the_suffix_names_the_feature_that_failed():
    # The last text feature is valid, because OneHotEncoder accepts it.
    x = {"bad": "text", "city": "Rome", "a": 1.0}
    model = (compose.Select("bad", "a") | preprocessing.StandardScaler()) + (
        compose.Select("city") | preprocessing.OneHotEncoder()
    )
    raises(r"\(feature 'bad' is 'text'\)", learn, [(x, 1)], model | BSGDClassifier(budget=5), error=StreamError)
    with pytest.raises(StreamError) as caught:  # the text is valid
        learn([({"city": "Rome"}, 1)], compose.Select("gone", "city") | preprocessing.OneHotEncoder() | BSGDClassifier(budget=5))
    assert "(feature" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "later", "taken"),
    [
        ([0, 1], [1.0, True, 0.0], True),
        ([0, 1], ["1", 0.5, "", "x", 1.5, [1], {}], False),
        (["ham", "spam"], [1, True, 2.5, "", "  ", "\ud800"], False),
        *[(["ham", "spam"], ["eggs", "1"], True), ([True, False], [1, 0], True), ([True, False], [2, "true", 0.5], False)],
        *[([0.0, 1], [2, 3.0, True], True), ([0.5, 1.5], [2.5], True), ([0.5, 1.5], ["0.5", 3], False)],
    ],
)
def test_labels_must_have_the_type_of_the_first_one(first, later, taken):
    for y in later:
        rows = [({"a": float(i)}, first[i % 2]) for i in range(10)]
        loop = learn([*rows, ({"a": 1.0}, y)], BSGDClassifier(budget=5, max_classes=5), on_error="skip")
        assert loop.refused == ({} if taken else {"label": 1}), y
        assert loop.learned == 10 + taken


def test_a_refused_label_does_not_set_the_type():
    rows = [({"a": 1.0}, "x" * 2000), *(({"a": float(i)}, i % 2) for i in range(9))]
    assert learn(rows, BSGDClassifier(budget=5), on_error="skip").learned == 9


@pytest.mark.parametrize("scaled", [False, True])
def test_labels_beyond_max_classes_are_refused_behind_any_transformer(tmp_path, scaled):
    def model():
        learner = BSGDClassifier(budget=5, max_classes=3, seed=0)
        return preprocessing.StandardScaler() | learner if scaled else learner

    good = [({"a": float(i)}, ("ham", "spam", "eggs")[i % 3]) for i in range(30)]
    rows = [*good[:15], *[({"a": 1.0}, f"more {i}") for i in range(5)], *good[15:], ({"a": 1.0}, "more 0")]
    loop, peer = learn(rows, model(), on_error="skip"), learn(good, model())
    assert (loop.refused, loop.learned) == ({"label": 6}, 30)
    assert dumps(loop.model) == dumps(peer.model)
    with pytest.raises(StreamError, match="row 16: label 'more 0' exceeds max_classes=3.*--on-error skip"):
        learn(rows, model())
    with CheckpointFolder(tmp_path) as folder:  # declared labels and those of an earlier run together may be too many
        learn(good[:1], model(), checkpoints=folder)
        loop = learn(rows, model(), checkpoints=folder, classes=["spam", "eggs", "more 0"], on_error="skip")
    assert loop.refused == {"label": 15}


def test_declared_labels(tmp_path):
    rows = [({"a": float(i)}, ("ham", "spam")[i % 2]) for i in range(10)]
    eggs, undeclared = ({"a": 1.0}, "eggs"), ({"a": 1.0}, "x")
    with CheckpointFolder(tmp_path) as folder:

        def refused(more, **options):
            model = BSGDClassifier(budget=5, max_classes=3)
            return learn([*rows, *more], model, checkpoints=folder, **options).refused

        assert refused([eggs], classes=["ham", "spam"], on_error="skip") == {"label": 1}
        assert refused([eggs] * 2, on_error="skip") == {"label": 2}  # the checkpoint has the classes
        with pytest.raises(StreamError, match="label 'x' is not among those declared: 'ham', 'spam', 'eggs'"):
            refused([eggs, eggs, undeclared], classes=["ham", "spam", "eggs"])


def test_empty_and_unlabelled_rows_are_counted(tmp_path):
    rows = [*numbers(10), ({}, 1), ({"a": 1.0}, None), ({}, None)]
    for _ in range(2):
        with CheckpointFolder(tmp_path) as folder:
            loop = learn(rows, BSGDClassifier(budget=5), checkpoints=folder)
        assert (loop.rows, loop.learned, loop.unlabelled, loop.empty) == (13, 11, 2, 2)


def test_refused_rows_are_counted_across_runs(tmp_path):
    rows = [*numbers(10), BAD, *numbers(10), BAD]
    dead = tmp_path / "dead.jsonl"

    def piece(on_error, n):
        with CheckpointFolder(tmp_path / "state") as folder:
            loop = LearningLoop(IterableSource(rows), BSGDClassifier(budget=5), checkpoints=folder, on_error=on_error)
            loop.run(n)
        return loop

    assert piece(dead, 11).refused == {"not a number": 1}
    assert piece("skip", 5).refused == {"not a number": 1}  # another policy applies to the next rows
    last = piece(dead, None)
    assert last.refused == {"not a number": 2}
    assert last._refusals.messages[0].startswith("2 refused rows (not a number), the first in this run: ")
    assert [letter["row"] for letter in letters_of(dead)] == [10, 21]
    assert letters_of(dead)[0]["encoding"] == "repr"
    dead.write_text("")
    with pytest.warns(UserWarning, match="a new file begins, for rows from 22 on"):
        piece(dead, None)


def test_a_loop_that_cannot_resume_does_not_change_dead_letters(tmp_path):
    rows = [*numbers(10), BAD]
    dead = tmp_path / "dead.jsonl"
    with CheckpointFolder(tmp_path / "state") as folder:
        learn(rows, BSGDClassifier(budget=5), checkpoints=folder, on_error=dead)
        before = dead.read_bytes()
        with pytest.raises(CheckpointError, match="other parameters"):
            LearningLoop(IterableSource(rows), BSGDClassifier(budget=5, kernel="poly"), checkpoints=folder, on_error=dead)
        assert dead.read_bytes() == before != b""
        learn(rows, BSGDClassifier(budget=5), checkpoints=folder, on_error=dead)
        assert dead.read_bytes() == before
    learn(numbers(10), BSGDClassifier(budget=5), on_error=dead)  # another run, without refused rows
    assert dead.read_bytes() == b""


def test_pieces_of_one_loop_write_one_file(tmp_path):
    dead = tmp_path / "dead.jsonl"
    loop = LearningLoop(IterableSource([BAD, *numbers(5), BAD, BAD]), BSGDClassifier(budget=5), on_error=dead)
    for _ in range(8):
        loop.run(1)
    assert [letter["row"] for letter in letters_of(dead)] == [0, 6, 7]


def test_limits():
    rows = [*numbers(300), *[BAD] * 20]
    assert learn(rows, BSGDClassifier(budget=5), on_error="skip", error_limit=20).learned == 300
    with pytest.raises(StreamError, match=r"row 320: .* The number of refused rows is now 20, and at most 19 are allowed"):
        learn(rows, BSGDClassifier(budget=5), on_error="skip", error_limit=19)
    for share, refused in ((0.0, 100), (0.5, 100), (0.2, 100)):
        loop = LearningLoop(IterableSource([BAD] * 1000), BSGDClassifier(budget=5), on_error="skip", error_share=share)
        raises("of the last rows 100% were refused", loop.run, error=StreamError)
        assert sum(loop.refused.values()) == refused
    # A stream that becomes bad ends soon, even after many valid rows.
    loop = LearningLoop(IterableSource([*numbers(600) * 20, *[BAD] * 5000]), BSGDClassifier(budget=5), on_error="skip")
    raises("of the last rows 50% were refused", loop.run, error=StreamError)
    assert 600 < sum(loop.refused.values()) < 800
    assert (
        learn([*numbers(9), *[BAD, numbers(1)[0], numbers(1)[0]] * 300], BSGDClassifier(budget=5), on_error="skip").learned == 609
    )


@pytest.mark.parametrize("share", [{}, {"error_share": 1.0}])
def test_a_stream_of_bad_rows_ends_with_an_error(share):
    n = 3000 if share else 9
    with pytest.raises(
        StreamError, match=f"none of its {n:,} rows was learned: 0 had no label, and refused were malformed {n:,}"
    ):
        learn([None] * n, BSGDClassifier(budget=5), on_error="skip", **share)


def test_long_and_binary_rows_in_dead_letters(tmp_path):
    dead = tmp_path / "dead.jsonl"
    refusals = RefusedRowHandler(dead)
    for raw in (("é" * 100_000).encode(), ("x" + "é" * 100_000).encode(), b"\xff" * 10, b"", None):
        refusals.handle_row(0, "here", raw, "kind", "reason")
    refusals.close()
    letters = letters_of(dead)
    expected = [(200_000, "utf-8"), (200_001, "utf-8"), (10, "base64"), (0, "utf-8"), (4, "repr")]
    assert [(letter["bytes"], letter["encoding"]) for letter in letters] == expected
    assert letters[0]["raw"] == "é" * (MAX_RAW_BYTES // 2)
    assert letters[1]["raw"] == "x" + "é" * (MAX_RAW_BYTES // 2 - 1)
    assert base64.b64decode(letters[2]["raw"]) == b"\xff" * 10


@pytest.mark.parametrize("reason", ["2 cells", "2 cells.", "is a quote not closed?"])
@pytest.mark.parametrize("options", [{"on_error": "stop"}, {"on_error": "skip", "limit": 0}, {"on_error": "skip", "share": 0.0}])
def test_a_reason_ends_with_one_mark(reason, options):
    handler, messages = RefusedRowHandler(**options), []
    for row in range(200):
        try:
            handler.handle_row(row, "rows.csv", b"", "malformed", reason)
        except StreamError as error:
            messages.append(str(error))
    sentence = reason if reason.endswith("?") else "2 cells."
    assert any(messages[0].startswith(f"rows.csv: {sentence} {word} ") for word in ("To", "The", "Now"))
