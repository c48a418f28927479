"""Encoding of texts: compared with a naive implementation, row by row and in batches, saved, merged, and in bounded memory."""

import copy
import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refused import raises
from saved import dumps, loads
from streamsvm import BSGDClassifier, SVMClassifier, SVMRegressor, table_model
from streamsvm.files.characters import MAX_TEXT_LENGTH, Characters, list_character_kinds
from streamsvm.stream import Table
from streamsvm.stream.schema import table_inference
from streamsvm.stream.tables import TableEncoder, batch_encoding, text_encoding, token_counts
from streamsvm.stream.tables.target_encoding import TargetEncoding
from streamsvm.stream.tables.text_encoding import TextEncoding
from streamsvm.stream.tables.tokens import hash_text

WORDS = ["free", "prize", "you", "at", "home", "é_1", "漢字", "\N{GRINNING FACE}", "x"]
texts = st.lists(st.sampled_from([*WORDS, "FREE", ",", "\0", "\ud800"]), max_size=8).map(" ".join)


def split_tokens(text):
    """Return the words, the pairs of words and the 4-grams of a text, as lists of texts."""
    text = text[:MAX_TEXT_LENGTH].lower()[:MAX_TEXT_LENGTH]
    words = re.findall(
        r"[\u3041-\u30FF\u3400-\u9FFF\U00010000-\U0010FFFF]|[^\W\u3041-\u30FF\u3400-\u9FFF\U00010000-\U0010FFFF]+", text
    )
    grams = [text[i : i + 4] for i in range(max(len(text) - 3, 1))] * (text != "")
    return words, list(itertools.pairwise(words)), grams


class NaiveTextEncoding:
    """Counts the labels of tokens in dicts, without a limit."""

    def __init__(self, n_labels):
        self.counts, self.totals, self.n_labels = {}, np.zeros((2, n_labels)), n_labels

    def learn(self, text, label, w):
        words, pairs, grams = split_tokens(text)
        for token in (*words, *pairs, *(("gram", gram) for gram in grams)):
            counts = self.counts.setdefault(token, np.zeros(self.n_labels))
            counts[label] += w
            if counts[label] > 1000.0:
                counts /= 2
        self.totals[:, label] += [w * (len(words) + len(pairs)), w * len(grams)]

    def encode(self, text):
        words, pairs, grams = split_tokens(text)
        features = []
        for label, (tokens, totals) in itertools.product(
            range(self.n_labels), zip((words + pairs, [("gram", gram) for gram in grams]), self.totals, strict=True)
        ):
            average = np.log(totals + 0.02 * max(len(self.counts), 1))
            logs = [np.log(self.counts[token] + 0.2) for token in tokens if token in self.counts]
            scores = [log[label] - log.mean() - (average[label] - average.mean()) for log in logs] or [0.0]
            features += [sum(scores) / math.sqrt(len(scores)), max(scores), *([min(scores)] * (self.n_labels == 2))]
        return [math.log1p(len(words)), *features]


def encode(encoding, labels, text):
    return encoding.encode_rows(Characters.from_texts([text]), labels)[0]


def learn(encoding, labels, text, y, w=1.0):
    target = labels.learn_row([], y, w)
    encoding.learn_rows(Characters.from_texts([text]), labels, np.array([target]), np.array([w]))


@given(st.lists(st.tuples(texts, st.integers(0, 3), st.sampled_from([1.0, 0.5, 400.0])), max_size=30), texts, st.integers(2, 4))
def test_log_odds_equal_those_of_a_naive_implementation(rows, text, n_labels):
    labels, encoding, naive = TargetEncoding(), TextEncoding(), NaiveTextEncoding(n_labels)
    for label in range(n_labels):
        learn(encoding, labels, "", f"y{label}")
    for row_text, y, w in rows:
        learn(encoding, labels, row_text, f"y{y % n_labels}", w)
        naive.learn(row_text, y % n_labels, w)
    expected = naive.encode(text)
    if n_labels == 2:  # only the larger label has features
        expected = [expected[0], *expected[7:]]
    np.testing.assert_allclose(encode(encoding, labels, text), expected, rtol=1e-6, atol=1e-9)


@given(texts)
def test_tokens_have_the_keys_of_python_integers(text):
    def make_key(number):
        number &= 2**64 - 1
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            number = (number ^ (number >> shift)) * factor & (2**64 - 1)
        return max((number ^ (number >> 31)) >> 32, 1)

    words, _, grams = split_tokens(text)
    hashes = []
    for word in words:
        hashes.append(0)
        for char in word:
            hashes[-1] = (hashes[-1] + ord(char)) * 0x9E3779B97F4A7C15 & (2**64 - 1)
    codes, keys, ends = Characters.from_texts([text]).codes, np.zeros(3 * len(text) + 9, np.uint32), np.zeros(3, np.int64)
    hash_text(codes, list_character_kinds(), keys, ends)
    expected = [*hashes, *(3 * first + second for first, second in itertools.pairwise(hashes))]
    expected += [~sum(ord(char) << 16 * i for i, char in enumerate(reversed(gram))) for gram in grams]
    assert keys[: ends[2]].tolist() == list(map(make_key, expected))
    assert ends.tolist() == [len(words), len(words) + max(len(words) - 1, 0), len(expected)]


def test_regression_scores_are_shrunken_means_of_standardised_targets():
    labels, encoding = TargetEncoding(), TextEncoding()
    for word, y in [("good", 3.0), ("bad", 1.0)] * 4:
        learn(encoding, labels, word, y)
    features = dict(zip(encoding.make_names("t", labels), encode(encoding, labels, "good good bad"), strict=True))
    targets, mean, squares = [], 0.0, 0.0
    for n, y in enumerate([3.0, 1.0] * 4, 1):
        squares += (y - mean) * (y - mean - (y - mean) / n)
        mean += (y - mean) / n
        targets.append((y - mean) / math.sqrt(squares / n) if squares else 0.0)
    good, bad = sum(targets[::2]) / 5.0, sum(targets[1::2]) / 5.0
    assert features["t~ words mean"] == pytest.approx((2 * good + bad) / math.sqrt(3.0), rel=1e-5)
    assert features["t~ words max"] == pytest.approx(good, rel=1e-5)
    assert features["t~ words min"] == pytest.approx(bad, rel=1e-5)


def make_rows(n, seed=0):
    rng = np.random.default_rng(seed)
    columns = [[" ".join(rng.choice(WORDS + [f"w{j}" for j in range(50)], rng.integers(0, 9))) for _ in range(n)] for _ in "ab"]
    columns[1] = [None if rng.random() < 0.2 else text for text in columns[1]]
    y = ["spam" if "free" in text or rng.random() < 0.1 else "ham" for text in columns[0]]
    return Table(("a", "b", "city", "n"), [*columns, (["x", "y", "z"] * n)[:n], rng.normal(size=n)]), y


@pytest.mark.parametrize("kind", ["labels", "three labels", "numbers"])
@pytest.mark.parametrize("is_discarded", [False, True])
def test_batches_are_encoded_like_single_rows(monkeypatch, kind, is_discarded):
    monkeypatch.setattr(text_encoding, "MAX_TOKENS", 512)  # most tokens replace others
    table, y = make_rows(900)
    y = [float(label == "ham") + i % 7 / 8 if kind == "numbers" else label for i, label in enumerate(y)]
    y = [label if i % 5 or kind == "labels" else "other" if kind == "three labels" else label for i, label in enumerate(y)]
    many = TableEncoder("a:text,b:text,city:category", when_missing="indicator")
    one = copy.deepcopy(many)
    first = n_in_batches = 0
    while first < len(y):
        stop = min(first + 200, len(y))
        is_learned = np.arange(first, stop) % 9 > 0
        batch = many.parse_table(table).encode_batch(
            first, stop, is_learned, None, y[first:stop], np.linspace(0.5, 2, stop - first)
        )
        weights = np.linspace(0.5, 2, stop - first)
        if is_discarded:
            assert many.transform_one(table.row(first).x) == one.transform_one(table.row(first).x)
        for i, row in enumerate(batch.X, first):
            expected = one.transform_one(table.row(i).x)
            assert dict(zip(batch.names, row, strict=True)) == {name: expected.get(name, 0.0) for name in batch.names}
            if i % 9:
                one.learn_one(table.row(i).x, y[i], weights[i - first])
        batch.update_encoder()
        first, n_in_batches = first + len(batch.X), n_in_batches + len(batch.X)
        if not len(batch.X):
            for encoder in (many, one):
                encoder.learn_one(table.row(first).x, y[first])
            first += 1
    assert n_in_batches > 800
    assert dumps(many) == dumps(one)


def make_regressor():
    return SVMRegressor(seed=1, effort="low")


@pytest.mark.once
@pytest.mark.parametrize(
    "make", [lambda: BSGDClassifier(20, seed=1), lambda: SVMClassifier(seed=1, effort="low"), make_regressor]
)
def test_learn_many_equals_learn_one_for_each_row(make):
    table, y = make_rows(300)
    X = pd.DataFrame(dict(zip(table.names, table.columns, strict=True)))
    y = [float(label == "ham") for label in y] if make is make_regressor else y
    many, one = (TableEncoder("a:text,b:text,city:category") | make() for _ in range(2))
    many.learn_many(X[:150], y[:150])
    many.learn_many(X[150:], y[150:])
    for i in range(300):
        one.learn_one(table.row(i).x, y[i])
    assert dumps(many) == dumps(one)
    assert list(many.predict_many(X)) == [one.predict_one(table.row(i).x) for i in range(300)]


def test_a_batch_that_is_not_learned_leaves_no_trace():
    table, y = make_rows(200)
    encoder = TableEncoder("a:text,b:text,city:category")
    for i in range(100):
        encoder.learn_one(table.row(i).x, y[i])
    before = dumps(encoder)
    batch = encoder.parse_table(table).encode_batch(100, 200, np.ones(100, bool), None, y[100:], np.ones(100))
    assert len(batch.X) > 50
    assert dumps(encoder) == before


@pytest.mark.parametrize("when_missing", ["mean", "indicator"])
def test_other_categories_are_hashed_beside_texts(when_missing):
    table, y = make_rows(90)
    many, one = (TableEncoder("a:text,city:category", buckets=3, max_values=1, when_missing=when_missing) for _ in range(2))
    X = pd.DataFrame({"a": table.columns[0], "city": [*"xyzuv", None] * 15})
    weights = [0.0, 0.5, 2.0] * 30
    many.learn_many(X, y, weights)
    for row, label, w in zip(X.to_dict("records"), y, weights, strict=True):
        one.learn_one(row, label, w)
    assert dumps(many) == dumps(one)
    assert many.target_encoding.keys.size == 0
    features = pd.DataFrame([one.transform_one(row) for row in X.to_dict("records")]).fillna(0.0)
    pd.testing.assert_frame_equal(many.transform_many(X), features, check_like=True)


def test_texts_count_as_columns_in_batches():
    encoder = TableEncoder("a:text,b:text", max_columns=2)
    encoder.learn_many(pd.DataFrame({"a": ["one", "two"], "n": [1.0, 2.0]}), ["x", "y"])
    for method in (encoder.transform_many, encoder.learn_many):
        X = pd.DataFrame({"a": ["one", "two"], "b": [None, "three"]})
        raises("row 1: feature 'b' exceeds the limit of columns", method, X)


def test_ctrl_c_while_a_batch_is_encoded_leaves_no_trace(monkeypatch):
    def interrupt(*args):
        process_texts(*args)
        raise KeyboardInterrupt

    process_texts, (table, y) = text_encoding.process_texts, make_rows(200)
    encoder = TableEncoder("a:text,b:text,city:category")
    for i in range(100):
        encoder.learn_one(table.row(i).x, y[i])
    before = dumps(encoder)
    monkeypatch.setattr(text_encoding, "process_texts", interrupt)
    with pytest.raises(KeyboardInterrupt):
        encoder.parse_table(table).encode_batch(100, 200, np.ones(100, bool), None, y[100:], np.ones(100))
    assert dumps(encoder) == before


def test_texts_are_learned_without_labels_as_numbers_of_words():
    encoder = TableEncoder("body:text")
    for text in ("one two", "three"):
        encoder.learn_one({"body": text})
    assert encoder.transform_one({"body": "a b c"}) == {"body~words": pytest.approx(math.log(4.0))}
    assert encoder.learned_columns == ["body"]


def test_missing_texts_have_no_features_or_an_indicator():
    for when_missing, expected in (("mean", {}), ("indicator", {"body is missing": 1.0})):
        encoder = TableEncoder("body:text", when_missing=when_missing)
        for y in (True, False, True):
            encoder.learn_one({"body": f"a text {y}"}, y)
        for row in ({}, {"body": None}, {"body": "  "}, {"body": math.nan}):
            assert encoder.transform_one(row) == expected


@pytest.mark.parametrize("is_regression", [False, True])
def test_merged_encoders_equal_one_that_learned_all_rows(is_regression):
    table, y = make_rows(300)
    y = [float(label == "ham") for label in y] if is_regression else y
    y[200:] = y[200:] if is_regression else ["third" if label == "ham" else label for label in y[200:]]
    whole, *parts = (TableEncoder("a:text,b:text,city:category") for _ in range(3))
    for i in range(300):
        whole.learn_one(table.row(i).x, y[i])
        parts[i >= 150].learn_one(table.row(i).x, y[i])
    parts[0].merge_with(parts[1])
    a, b = (encoder.transform_one(table.row(7).x) for encoder in (whole, parts[0]))
    assert a.keys() == b.keys()
    # Targets of a regression are standardised with the mean of all rows before, which differs.
    tolerance = 0.3 if is_regression else 1e-6
    np.testing.assert_allclose(list(a.values()), [b[name] for name in a], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("labels", [["x", "y", "z", "u"], [0, 1, 0.5, 1.5]])
def test_labels_that_came_after_the_last_text_of_a_column_are_merged(labels):
    whole, *parts = (TableEncoder("a:text,b:text") for _ in range(3))
    rows = [({"ab"[i // 2]: f"word{i}"}, label) for i, label in enumerate(labels)]
    # In a regression, the texts before the first fraction are forgotten.
    for encoder in (whole, *parts, *[whole] * (labels[0] == "x")):
        for x, y in rows:
            encoder.learn_one(x, y)
    parts[0].merge_with(parts[1])
    assert parts[0].transform_one({"a": "word0"}) == whole.transform_one({"a": "word0"})


def test_memory_is_bounded_and_recent_tokens_are_kept(monkeypatch):
    monkeypatch.setattr(text_encoding, "MAX_TOKENS", 1024)
    labels, encoding = TargetEncoding(), TextEncoding()
    n_bytes = encoding._records.nbytes
    for i in range(3000):
        learn(encoding, labels, f"word{i} seldom{i}", "ab"[i % 2])
    assert encoding._records.nbytes == n_bytes
    assert encode(encoding, labels, "seldom2999")[2] != 0.0
    assert encode(encoding, labels, "seldom1")[2] == 0.0


@pytest.mark.parametrize("text", ["x" * 1_000_000, "\N{GRINNING FACE}" * 40_000, "\0" * 50_000, "a\ud83d b\udc00", "İ" * 20_000])
def test_hostile_texts_are_learned_in_bounded_memory(text):
    encoder = TableEncoder("body:text")
    for y in (True, False, True):
        encoder.learn_one({"body": text}, y)
    features = encoder.transform_one({"body": text})
    assert len(features) == 7
    assert np.isfinite(list(features.values())).all()
    assert len(Characters.from_texts([text]).codes) <= MAX_TEXT_LENGTH
    assert loads(dumps(encoder)).transform_one({"body": text}) == features


def test_a_value_without_a_text_is_refused_with_its_row():
    encoder = TableEncoder("body:text")
    encoder.learn_one({"body": "a text"}, True)
    frame = pd.DataFrame({"body": pd.Series(["a", 10**5000], dtype=object)})  # Python refuses to write so many digits
    raises("row 1: .*digits", (encoder | BSGDClassifier()).predict_many, frame)


def test_the_number_of_columns_of_texts_is_limited(monkeypatch):
    raises("columns have 65 texts", TableEncoder, {f"t{i}": "text" for i in range(65)})
    monkeypatch.setattr(table_inference, "MAX_TEXT_COLUMNS", 3)
    rows = [{**dict.fromkeys("abcd", f"we met on day {'i' * i} at the lake"), "y": i % 2} for i in range(30)]
    kinds = table_model(rows, label="y", columns="d:text").schema.options["columns"]
    assert kinds == {"a": "text", "b": "text", "c": "category", "d": "text"}


def test_all_columns_of_texts_together_limit_a_batch(monkeypatch):
    monkeypatch.setattr(batch_encoding, "_MAX_CHARACTERS", 1000)
    for n_characters, n_rows in (10, 49), (5000, 8):  # fewer rows are learned singly, after they were encoded together in vain
        rows = Table(["a", "b"], [["x" * n_characters] * 200] * 2)
        encoder = TableEncoder("a:text,b:text")
        encoder.learn_one(rows.row(0).x, True)
        batch = encoder.parse_table(rows).encode_batch(0, 200, np.ones(200, bool), None, [True] * 200, np.ones(200))
        assert len(batch.X) == n_rows


def test_counts_are_halved_so_that_a_changed_meaning_is_learned():
    labels, encoding = TargetEncoding(), TextEncoding()
    for i in range(3000):
        learn(encoding, labels, "sign", "ab"[i % 2] if i < 10 else "a")
    for _ in range(1500):
        learn(encoding, labels, "sign", "b")
    assert encoding._records.view(np.float32)[:, 2:].max() <= 1000.0
    assert encoding._totals.max() <= token_counts._MAX_TOTAL_WEIGHT
    assert encode(encoding, labels, "sign")[2] > -1.0  # the label a had nearly all before


def test_small_weights_are_counted_exactly():
    labels, encoding = TargetEncoding(), TextEncoding()
    for label, word in [("ham", "home"), ("spam", "prize")]:
        learn(encoding, labels, word, label, 0.01)
    assert encode(encoding, labels, "prize")[2] == pytest.approx(0.5 * (math.log(0.21) - math.log(0.2)), rel=1e-5)


def test_saved_arrays_with_wrong_types_or_shapes_are_refused():
    encoding = TextEncoding()
    labels = TargetEncoding()
    for label in ("spam", "ham"):
        learn(encoding, labels, "a text", label)
    state = encoding.__getstate__()
    loaded = TextEncoding.__new__(TextEncoding)
    loaded.__setstate__(state)
    assert all(np.array_equal(a, b) for a, b in zip(loaded.__getstate__().values(), state.values(), strict=True))
    zero_key = state["keys"].copy()
    zero_key[0] = 0
    for name, value in {
        "keys": state["keys"].astype(np.uint64),
        "times": state["times"][1:],
        "counts": state["counts"][:, :1],
        "totals": np.zeros((4, 2)),
        "of_numbers": "yes",
        "rows": -1,
    }.items():
        raises(("corrupt|rows"), loaded.__setstate__, {**state, name: value})
    raises("corrupt", loaded.__setstate__, {**state, "keys": zero_key})
    for count in (1e4, 3e38):  # beyond the table of logarithms
        loaded.__setstate__({**state, "counts": np.full_like(state["counts"], [count, 0.0])})
        expected = 0.5 * (math.log(count + 0.2) - math.log(0.2))  # spam, the larger label, has all
        assert encode(loaded, labels, "a text")[2] == pytest.approx(expected, rel=1e-6)
