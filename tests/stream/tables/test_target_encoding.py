"""Target encoding: compared with a naive implementation, in batches, saved, merged, and in bounded memory."""

import copy
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refused import raises
from saved import dumps, loads
from streamsvm import BSGDClassifier, BSGDRegressor, SVMClassifier
from streamsvm.files.category_names import compute_column_seed, compute_name_key
from streamsvm.stream import Table
from streamsvm.stream.tables import TableEncoder, TableModel, target_encoding
from streamsvm.stream.tables.target_encoding import MAX_LABELS, TargetEncoding

KEYS = [compute_name_key(compute_column_seed("c"), name) for name in "abcdef"]


class NaiveEncoding:
    """Counts labels of categories in dicts, without a limit."""

    def __init__(self):
        self.labels, self.categories, self.totals = [], {}, {}

    def learn(self, keys, y, w):
        if y is None:
            return
        if y not in self.labels:
            self.labels.append(y)
        code = min(self.labels.index(y), MAX_LABELS)
        for counts, max_weight in [(self.categories.setdefault(key, {}), 1000.0) for key in keys] + [(self.totals, 10_000.0)]:
            counts[code] = counts.get(code, 0.0) + min(w, 1e6)
            if sum(counts.values()) > max_weight:
                counts.update({label: value / 2 for label, value in counts.items()})

    def odds(self, key, label):
        n = min(len(self.labels), MAX_LABELS + 1)
        counts, code = self.categories.get(key, {}), self.labels.index(label)
        if not counts:
            return 0.0
        share = (self.totals.get(code, 0.0) + 1.0) / (sum(self.totals.values()) + n)
        of_label, weight = counts.get(code, 0.0), sum(counts.values())
        odds = (of_label + 5.0 * share) / (weight - of_label + 5.0 * (1.0 - share))
        return math.log(odds) - math.log(share / (1.0 - share))


rows = st.tuples(st.lists(st.sampled_from(KEYS), max_size=3, unique=True), st.integers(0, 11), st.sampled_from([1.0, 0.5, 400.0]))


@given(st.lists(rows, max_size=60), st.integers(2, 12))
def test_log_odds_equal_those_of_a_naive_implementation(rows, n_labels):
    encoding, naive = TargetEncoding(), NaiveEncoding()
    for keys, y, w in rows:
        label = f"y{y % n_labels}"
        encoding.learn_row(keys, label, w)
        naive.learn(keys, label, w)
    labels = naive.labels[:MAX_LABELS] if len(naive.labels) > 2 else [max(naive.labels, default=None)] * (len(naive.labels) == 2)
    assert encoding.suffixes == labels
    expected = [[naive.odds(key, label) for label in labels] for key in KEYS]
    np.testing.assert_allclose(
        encoding.encode_categories(KEYS), np.array(expected).reshape(len(KEYS), len(labels)), rtol=1e-9, atol=1e-12
    )


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.floats(-100.0, 100.0), st.sampled_from([1.0, 0.25])), min_size=1, max_size=60)
)
def test_regression_encodings_are_smoothed_means_in_standard_deviations(rows):
    encoding = TargetEncoding()
    for key, y, w in rows:
        encoding.learn_row([key], y, w)
    y, w = (np.array([row[position] for row in rows]) for position in (1, 2))
    mean = np.average(y, weights=w)
    spread = math.sqrt(np.average((y - mean) ** 2, weights=w))
    for key in KEYS:
        mask = np.array([row[0] == key for row in rows])
        expected = np.sum(w[mask] * (y[mask] - mean)) / (np.sum(w[mask]) + 5.0) / spread if spread > 1e-6 else 0.0
        assert spread <= 1e-6 or encoding.encode_categories([key])[0, 0] == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_a_row_is_not_encoded_by_its_own_label():
    encoder, rng = TableEncoder("id:category"), np.random.default_rng(0)
    values = []
    for i in range(500):
        x = {"id": f"n{i}"}
        values += encoder.transform_one(x).values()
        encoder.learn_one(x, bool(rng.integers(2)))
    assert values.count(0.0) == len(values) > 400


def table_of(n, names, seed=0):
    rng = np.random.default_rng(seed)
    columns = [[f"{name}{i}" for i in rng.integers(0, n_categories, n)] for name, n_categories in names.items()]
    y = [int(name[1:]) % 3 == 0 if rng.random() < 0.9 else bool(rng.integers(2)) for name in columns[0]]
    return Table(tuple(names), [*columns]), y


@pytest.mark.parametrize("is_regression", [False, True])
def test_a_full_hash_table_encodes_batches_like_single_rows(monkeypatch, is_regression):
    monkeypatch.setattr(target_encoding, "MAX_CATEGORIES", 512)
    table, y = table_of(3000, {"a": 5, "b": 700, "c": 30})
    y = [float(label) + i % 7 / 8 if is_regression else label for i, label in enumerate(y)]
    many = TableEncoder("a:category,b:key,c:category")
    one = copy.deepcopy(many)
    first = n_in_batches = 0
    while first < len(y):
        is_learned = np.arange(first, len(y)) % 9 > 0
        batch = many.parse_table(table).encode_batch(first, len(y), is_learned, None, y[first:])
        for i, row in enumerate(batch.X, first):
            expected = one.transform_one(table.row(i).x)
            assert dict(zip(batch.names, row, strict=True)) == {name: expected.get(name, 0.0) for name in batch.names}
            if i % 9:
                one.learn_one(table.row(i).x, y[i])
        batch.update_encoder()
        first, n_in_batches = first + len(batch.X), n_in_batches + len(batch.X)
        if first < len(y):
            for encoder in (many, one):
                encoder.learn_one(table.row(first).x, y[first])
            first += 1
    assert n_in_batches > 2000
    assert dumps(many) == dumps(one)
    assert len(many.target_encoding.keys) > 256


LABELS = {
    "texts": (["no", "yes"], False, ["yes"]),
    "bools": ([True, False], False, ["True"]),
    "of numpy": ([np.int64(3), np.str_("x") and 1], False, ["3"]),
    "many": ([f"y{i}" for i in range(100)], False, [f"y{i}" for i in range(8)]),
    "floats": ([1.0, 0.0], True, [""]),
    "a fraction at last": ([1, 2, 2.5], True, [""]),
    "many whole numbers": (list(range(65)), True, [""]),
    "none": ([None, math.nan], None, []),
    "long": (["x" * 500, "a"], False, [f"{'x' * 50}#"]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_determine_suffixes_and_regression(kind):
    labels, is_regression, suffixes = LABELS[kind]
    encoding = TargetEncoding()
    for y in labels * 2:
        encoding.learn_row(KEYS[:1], y)
    assert encoding.is_regression is is_regression
    assert [suffix[:51] for suffix in encoding.suffixes] == suffixes
    assert loads(dumps(TableEncoder("c:category"))).target_encoding.suffixes == []


def train_encoder(table, y, rows):
    encoder = TableEncoder("a:category,b:key")
    for i in rows:
        encoder.learn_one(table.row(i).x, y[i])
    return encoder


@pytest.mark.parametrize("labels", [2, 8, 0])
def test_merging_encoders_equals_learning_all_rows(labels):
    table, _ = table_of(900, {"a": 4, "b": 60})
    rng = np.random.default_rng(1)
    y = [f"y{i:02d}" for i in rng.integers(0, labels, 900)] if labels else rng.random(900).tolist()
    expected = train_encoder(table, y, range(900)).target_encoding
    parts = [train_encoder(table, y, range(part, 900, 3)) for part in range(3)]
    merged = parts[0]
    before = [dumps(encoder) for encoder in parts[1:]]
    merged.merge_with(*parts[1:])
    assert [dumps(encoder) for encoder in parts[1:]] == before
    keys = [compute_name_key(compute_column_seed("b"), f"b{i}") for i in range(60)]
    encoding = merged.target_encoding
    common = [suffix for suffix in encoding.suffixes if suffix in expected.suffixes]
    assert common
    values = encoding.encode_categories(keys)[:, list(map(encoding.suffixes.index, common))]
    expected_values = expected.encode_categories(keys)[:, list(map(expected.suffixes.index, common))]
    np.testing.assert_allclose(values, expected_values, rtol=1e-9, atol=1e-12)
    loaded = loads(dumps(merged)).target_encoding
    assert loaded.encode_categories(keys).tolist() == encoding.encode_categories(keys).tolist()


def test_classification_and_regression_encodings_cannot_be_merged():
    table, y = table_of(60, {"a": 4, "b": 9})
    labels, numbers = train_encoder(table, y, range(60)), train_encoder(table, [0.5] * 60, range(60))
    before = dumps(labels)
    raises("learned labels cannot be merged with those that have learned numbers", labels.merge_with, numbers)
    assert dumps(labels) == before


@given(st.data())
def test_a_loaded_encoder_continues_like_the_original(data):
    table, y = table_of(120, {"a": 9, "b": 60}, data.draw(st.integers(0, 5)))
    encoder = train_encoder(table, y, range(60))
    loaded = loads(dumps(encoder))
    for i in range(60, 120):
        encoder.learn_one(table.row(i).x, y[i])
        loaded.learn_one(table.row(i).x, y[i])
        assert loaded.transform_one(table.row(i).x) == encoder.transform_one(table.row(i).x)
    assert dumps(encoder) == dumps(loaded)


def test_saved_arrays_with_wrong_types_or_shapes_are_refused():
    encoding = TargetEncoding()
    for i in range(40):
        encoding.learn_row(KEYS[: 1 + i % 4], "xy"[i % 2])
    state = encoding.__getstate__()
    keys, counts = state["keys"], state["counts"]
    invalid = {
        "table_size": (0, 255, 384, 2**20, "256"),
        "of_numbers": (True, "a", 2),
        "labels": ([], ["x"], list("xyz"), ["x", None], ["x", ("y",)], ["x", float("nan")]),
        "keys": (keys[:-1], keys.astype(np.int64), keys.astype(">u4"), keys[:, None]),
        "last_rows": (state["last_rows"].astype(np.int32), state["last_rows"][1:]),
        "counts": (counts[:, :1], counts.astype(np.float32)),
        "totals": (np.ones(3), np.ones(2, np.int64)),
    }
    for name, values in invalid.items():
        for value in values:
            raises("do not fit", TargetEncoding.__new__(TargetEncoding).__setstate__, state | {name: value})
    raises("rows must be", TargetEncoding.__new__(TargetEncoding).__setstate__, state | {"rows": -1})


def test_an_encoder_with_buckets_is_saved_without_target_encoding():
    encoder = TableEncoder("c:category", max_values=64, buckets=32)
    for name in "aabbb":
        encoder.learn_one({"c": name, "n": 1.0})
    loaded = loads(dumps(encoder))
    assert loaded.transform_one({"c": "a", "n": 2.0}) == {"c=a": 1.0, "n": 2.0}
    assert not loaded._supervised
    assert dumps(loaded) == dumps(encoder)


@pytest.mark.once
def test_a_million_categories_in_a_hundred_columns_fit_into_eight_megabytes():
    names = [f"c{i}" for i in range(100)]
    encoder, rng = TableEncoder(dict.fromkeys(names, "category")), np.random.default_rng(0)
    n = 1000
    table = Table(tuple(names), [[f"v{i}" for i in rng.integers(0, 10_000, n)] for _ in names])
    labels = [f"y{i % 12}" for i in range(n)]
    for i in range(40):
        encoder.learn_one(table.row(i).x, labels[i])
    encoder.learn_many(pd.DataFrame(dict(zip(names, table.columns, strict=True))), labels)
    assert len(encoder.target_encoding.keys) > 60_000
    assert encoder.target_encoding.nbytes < 6 * 2**20
    assert len(dumps(encoder)) < 8 * 2**20


def make_regressor():
    return BSGDRegressor(20, seed=1)


@pytest.mark.parametrize(
    "make", [lambda: BSGDClassifier(20, seed=1), lambda: SVMClassifier(seed=1, effort="low"), make_regressor]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_learn_many_equals_learn_one_for_each_row(make, weighted):
    table, y = table_of(400, {"a": 4, "b": 60})
    X = pd.DataFrame(dict(zip(table.names, table.columns, strict=True)))
    y = list(map(float, y)) if make is make_regressor else y
    w = [(i % 3) / 2 + 0.5 for i in range(400)] if weighted else None
    many, one = (TableEncoder("a:category,b:key") | make() for _ in range(2))
    assert type(many) is TableModel
    many.learn_many(X[:150], y[:150], w and w[:150])
    many.learn_many(X[150:], y[150:], w and w[150:])
    for i in range(400):
        one.learn_one(table.row(i).x, y[i], **({"w": w[i]} if weighted else {}))
    assert dumps(many) == dumps(one)
    assert list(many.predict_many(X)) == [one.predict_one(table.row(i).x) for i in range(400)]
    raises("X has 2 rows, y 1", many.learn_many, X[:2], y[:1])
