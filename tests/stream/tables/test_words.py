"""The scores of words in explanations and reports: compared with counts of words, for each kind of label and hostile texts."""

import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm import BSGDClassifier, BSGDRegressor, OneClassBSGD, table_model
from streamsvm.core.explaining import format_words
from streamsvm.export.report.contents import ReportRows, make_report
from streamsvm.files.characters import Characters, list_character_kinds, split_words
from streamsvm.learners.preprocessing import BoundedTargetScaler
from streamsvm.stream.checkpoint import Checkpoint
from streamsvm.stream.page import render_page
from streamsvm.stream.tables import TableEncoder
from streamsvm.stream.tables.tokens import hash_text

TEXTS = {"spam": ["free prize", "win a free prize now"], "ham": ["see you at home", "a call"], "news": ["prize for peace", "war"]}


def learn(labels, learner=None, columns="body:text,title:drop"):
    """Return a model that has learned the texts of these labels in turn, ten times."""
    model = TableEncoder(columns) | (learner or BSGDClassifier(20, seed=1))
    for i in range(10 * len(labels)):
        y = labels[i % len(labels)]
        model.learn_one({"body": TEXTS[y][i // len(labels) % 2], "title": TEXTS[y][0].upper(), "n": i % 3}, y)
    return model


def count_words(labels):
    """Return the log odds of each word by label, from the counts of words."""
    counts = {y: Counter(" ".join(TEXTS[y] * 5).split()) for y in labels}
    tokens = {text[i : i + 4] for y in labels for text in TEXTS[y] for i in range(max(len(text) - 3, 1))}
    for text in (text for y in labels for text in TEXTS[y]):
        words = text.split()
        tokens |= {("word", word) for word in words} | set(itertools.pairwise(words))
    vocabulary, scores = {word for count in counts.values() for word in count}, {}
    for word in vocabulary:
        n_pairs = {y: 5 * sum(len(text.split()) - 1 for text in TEXTS[y]) for y in labels}
        logs = {y: math.log((n[word] + 0.2) / (n.total() + n_pairs[y] + 0.02 * len(tokens))) for y, n in counts.items()}
        scores[word] = {y: value - sum(logs.values()) / len(logs) for y, value in logs.items()}
    return scores


@given(st.text(st.one_of(st.characters(), st.sampled_from("aÀ_1é,' \0\u0301\ud800漢İ\N{GRINNING FACE}ΣÅ")), max_size=30))
def test_words_are_those_that_are_hashed(text):
    def hash_words(codes):
        keys, ends = np.zeros(3 * len(codes) + 2, np.uint32), np.zeros(3, np.int64)
        hash_text(codes, list_character_kinds(), keys, ends)
        return keys[: ends[0]].tolist()

    codes = Characters.from_texts([text]).codes
    words = split_words(codes)
    keys = [hash_words(np.array([*map(ord, word)], np.uint32)) for word in words]
    assert keys == [[key] for key in dict.fromkeys(hash_words(codes))]
    characters = {code for code in codes.tolist() if code > 0xFFFF or list_character_kinds()[code]}
    assert set(map(ord, "".join(words))) == characters


@pytest.mark.parametrize("labels", [["ham", "spam"], ["spam", "ham"], ["ham", "spam", "news"]])
def test_words_have_the_log_odds_of_the_explained_label(labels):
    model, expected = learn(labels), count_words(labels)
    row = {"body": "You win a FREE prize, unknown at home... a prize", "n": 1}
    for label in (None, *labels):
        explanation = model.explain_one(row, label=label)
        by_word = {word: expected[word][explanation.prediction] for word in ("you", "win", "a", "free", "prize", "at", "home")}
        words = explanation.words["body"]
        assert words == pytest.approx({word: by_word[word] for word in words}, rel=1e-5)
        assert sorted(map(abs, words.values()), reverse=True) == [abs(score) for score in words.values()]
        assert min(map(abs, words.values())) >= sorted(map(abs, by_word.values()))[1] - 1e-6
        assert len(words) == 5
        line = "  body = You win a FREE prize, unknown at home..."
        assert f"{line}\n{'':14}{explanation.prediction!r}: {format_words(words)}\n" in str(explanation)


def test_words_of_a_regression_have_mean_targets_in_standard_deviations():
    model = TableEncoder("body:text") | BoundedTargetScaler(BSGDRegressor(20, seed=1))
    for i in range(400):
        model.learn_one({"body": ("good film", "bad film")[i % 2]}, (7.0, 3.0)[i % 2])
    explanation = model.explain_one({"body": "Bad, not good"})
    assert explanation.words == {"body": pytest.approx({"good": 1.0, "bad": -1.0}, abs=0.05)}
    assert f"\n{'':14}{format_words(explanation.words['body'])}\n" in str(explanation)
    table = make_report(Checkpoint(model, None, {}), ReportRows("rows", [{"body": "bad good film"}], [None]))["words"]["table"]
    words = model.score_words({"body": "bad good film"})["body"][None]
    assert [row[:2] for row in table[1:]] == [["body", "larger"], ["body", "smaller"]]
    assert table[1][2].startswith(format_words({"good": words["good"]}))
    assert table[2][2].startswith(format_words({"bad": words["bad"]}))


def test_columns_of_texts_have_words_of_their_own_and_missing_ones_none():
    model = learn(["ham", "spam"], columns="body:text,title:text")
    explanation = model.explain_one({"body": "at home", "title": "At home: a prize"})
    assert explanation.words["body"].keys() == {"at", "home"}
    assert explanation.words["title"].keys() == {"at", "home", "prize"}  # no title has the word "a"
    assert explanation.contributions.keys() == {"body", "title", "n"}
    assert model.explain_one({"body": None, "title": "-"}).words == {"title": {}}
    assert model.explain_one({"n": 2}).words == {}
    model.learn_one({"body": "war"}, "news")  # with three labels, minima are not encoded any more
    assert model.explain_one({"body": "at home"}).contributions.keys() == {"body", "title", "n"}


def test_models_without_labels_or_scores_of_a_label_name_no_words():
    detector = learn(["ham"], OneClassBSGD(10))
    assert detector.explain_one({"body": "a call", "n": 1}).words == {"body": {}}
    many = TableEncoder("body:text") | BSGDClassifier(20, seed=1)
    for i in range(120):
        many.learn_one({"body": f"word{i % 24}"}, f"label{i % 24}")
    assert many.explain_one({"body": "word3"}, label="label3").words["body"]["word3"] > 0.0
    assert many.explain_one({"body": "word3"}, label="label23").words == {"body": {}}  # the first 20 labels have scores
    assert many.score_words({"body": "word3"})["body"].keys() == {f"label{i}" for i in range(20)}


@pytest.mark.parametrize(
    "text", ["x" * 16_384, "</script><b>\U000e0001\x1b[2J", "a\ud83d 'b\udc00'", "\N{GRINNING FACE}" * 99, "\0" * 9]
)
def test_words_of_hostile_texts_are_short_and_printable(text):
    model = TableEncoder("body:text") | BSGDClassifier(20, seed=1)
    for i in range(20):
        model.learn_one({"body": f"1 {text}" if i % 2 else "0 harmless"}, i % 2 == 0)
    row = {"body": f"0 {text}"}
    n_words = len(set(split_words(Characters.from_texts([row["body"]]).codes)))
    explanation = model.explain_one(row)
    assert len(explanation.words["body"]) == min(n_words, 5)
    assert all(len(word) <= 40 for word in explanation.words["body"])
    assert format_words(explanation.words["body"]).isprintable()
    report = make_report(Checkpoint(model, None, {}), ReportRows("rows", [row], [None]))
    cells = [cell for line in report["words"]["table"] for cell in line] + [
        part[1] for part in report["explained"]["rows"][0]["parts"]
    ]
    assert all(len(cell) < 500 and cell.isprintable() for cell in cells if cell is not None)
    assert json.dumps(explanation.words).isascii()
    assert render_page(report).count("</script>") == 2


def test_examples_show_texts_as_their_number_of_words():
    model = learn(["ham", "spam"])
    [example] = model.examples_one({"body": "free prize", "n": 0}, 1).nearest["spam"]
    features = model["TableEncoder"].transform_one({"body": "free prize"})
    assert features["body~words"] == pytest.approx(math.log(3.0))
    assert example.values["body"].startswith(("2 words (spam +", "5 words (spam +"))
    state = model["TableEncoder"].column_state
    assert state.decode_features({})["body"] == "0 words"
    assert state.decode_features({"body~words": 1e30})["body"] == "16,384 words"
    expected = f"2 words (spam {features['body~spam words mean']:+.2g})"
    assert state.decode_features(features)["body"] == expected


def test_a_report_lists_the_most_telling_words_of_each_label():
    labels = ["ham", "spam", "news"]
    model, expected = learn(labels), count_words(labels)
    rows = [{"body": text, "n": 1} for y in labels for text in TEXTS[y]]
    report = make_report(Checkpoint(model, None, {}), ReportRows("rows", rows, [y for y in labels for _ in TEXTS[y]]))
    head, *lines = report["words"]["table"]
    assert head == ["column", "label", "words"]
    assert [line[:2] for line in lines] == [["body", y] for y in labels]
    for _, label, words in lines:
        best = sorted((word for word in expected if expected[word][label] > 0.0), key=lambda word: -expected[word][label])
        assert {part.split()[1].strip("'") for part in words.split(", ")} == set(best[:12])
        assert words.split(", ")[0].startswith(f"{expected[best[0]][label]:+.2g} ")
    assert "6 rows" in report["words"]["sentence"]
    part = report["explained"]["rows"][0]["parts"][0]
    assert part[1] == f"see you at home ({format_words(model.explain_one(rows[0]).words['body'])})"


def test_a_report_without_rows_says_how_to_see_words():
    rows = [{"body": text, "n": i, "y": y} for y in ("ham", "spam") for i, text in enumerate(TEXTS[y] * 9)]
    for columns, expected in (
        ("body:text", "explanations, telling words, and scores"),
        ("body:drop", "explanations, and scores"),
    ):
        report = make_report(Checkpoint(table_model(rows, label="y", columns=columns), None, {}))
        assert "words" not in report
        [note] = [note for note in report["notes"] if "give rows: streamsvm report STATE ROWS" in note]
        assert expected in note
