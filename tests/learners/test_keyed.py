"""Small models per key: beside a learner per key, in batches, evicted and stored, refused, saved, merged and explained."""

import copy
import itertools
import math
import pickle
from collections import OrderedDict

import numpy as np
import pandas
import pytest
from numba import config
from river import compose, linear_model, preprocessing

from naive_keyed import NaiveKeys
from refused import raises, refused
from saved import dumps, loads
from streamsvm import BSCAClassifier, BSCARegressor, table_model
from streamsvm.core.saved import BLOCK_STORE
from streamsvm.edge.step import ExportError
from streamsvm.export.convert import make_program
from streamsvm.files.container import ModelFileError
from streamsvm.learners.costs import CostSensitiveClassifier
from streamsvm.learners.keyed import KeyedClassifier, KeyedRegressor
from streamsvm.learners.keyed_models import MAX_FEATURES, KeyModels
from streamsvm.stream.tables import TableEncoder

N = 80 if config.DISABLE_JIT else 300
KINDS = {"two": 2, "three": 3, "numbers": 0}


def rows(n, classes, seed=0, keys=7):
    """Rows with a new feature and a new label midway, missing keys, and rows that equal the one before except for the key."""
    rng = np.random.default_rng(seed)
    slopes, values = rng.normal(size=(keys, 3)), np.zeros(3)
    for i in range(n):
        key = int(rng.integers(keys))
        values = values if i % 5 == 0 else rng.normal(size=3).round(2)
        x = dict(zip("abc", values.tolist(), strict=True))
        if i > n // 2:
            x["d"] = float(rng.normal())
        if i % 13 == 0:
            del x["b"]
        x["device"] = key if i % 11 else None
        number = float(slopes[key] @ values)
        middle = "middle" if i > n // 3 or abs(number) < 0.7 else "low"
        y = (
            number
            if classes == 0
            else number > 0
            if classes == 2
            else "low"
            if number < -0.7
            else "high"
            if number > 0.7
            else middle
        )
        yield x, y, float(rng.choice([1.0, 1.0, 0.0, 2.5]))


@pytest.mark.parametrize("kind", KINDS)
def test_models_equal_a_learner_per_key(kind):
    models = KeyModels("device", KINDS[kind] == 0, 100, None)
    naive, compared = NaiveKeys(KINDS[kind] == 0), 0
    for x, y, w in rows(N, KINDS[kind]):
        predictions, expected = models.process_row(x, y, w), naive.process(x, y, 0.0)
        models.commit()
        naive.process(x, y, w)
        if predictions:  # empty before the second label
            compared += 1
            assert list(predictions.values()) == pytest.approx(expected, abs=1e-9)
    assert compared >= 0.9 * N
    assert models.n_keys == 7
    names = {"two": [True], "three": ["middle", "low", "high"], "numbers": [""]}[kind]
    kinds = ["linear", "bayes"][: 1 + (kind != "numbers")]
    expected = [f"device own {model} {name}".strip() for model in kinds for name in names]
    assert sorted(predictions) == sorted([*expected, "device own rows"])


def regressor(**parameters):
    model = BSCARegressor(20, seed=0)
    model.expect_scaled_targets()
    return KeyedRegressor(model, "device", **parameters)


MADE = {
    "two": lambda **of: KeyedClassifier(BSCAClassifier(20, seed=0), "device", **of),
    "three": lambda **of: KeyedClassifier(BSCAClassifier(20, seed=0), "device", **of),
    "numbers": regressor,
}


@pytest.mark.parametrize("parameters", [{}, {"max_keys": 4}, {"max_keys": 5, "idle": 12}], ids=["all", "four", "idle"])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_equal_row_by_row(kind, parameters):
    one, many, rng = MADE[kind](**parameters), MADE[kind](**parameters), np.random.default_rng(1)
    data, start, n_together = list(rows(2 * N, KINDS[kind])), 0, 0
    predictions, together = [], []
    for x, y, w in data:
        predictions.append(one.predict_one(x))
        one.learn_one(x, y, w=w)
    while start < len(data):
        part = data[start : start + int(rng.integers(1, 40))]
        X = np.array([[np.nan if (value := x.get(name)) is None else value for name in (*"abcd", "device")] for x, _, _ in part])
        X[:, :4] = np.nan_to_num(X[:, :4])
        names = [*"abcd", "device"] if start > N + 1 else [*"abc", "device"]
        columns = [*range(4), 4] if start > N + 1 else [0, 1, 2, 4]
        weights = np.array([w for _, _, w in part])
        results = None
        if start > N + 1 or not any("d" in x for x, _, _ in part):
            ys = [y if w > 0.0 or rng.random() < 0.5 else None for _, y, w in part]
            results = many.predict_then_learn(X[:, columns], names, ys, False, weights)
        if results is None:
            for x, y, w in part:
                together.append(many.predict_one(x))
                many.learn_one(x, y, w=w)
        else:
            n_together += len(part)
            together += results[0]
        start += len(part)
    assert n_together > N
    assert together == predictions
    assert dumps(many) == dumps(one)
    assert many.key_models.n_keys == one.key_models.n_keys == min(parameters.get("max_keys", 7), 7)


def test_the_key_with_the_oldest_last_row_is_forgotten():
    model, recent, rng = MADE["two"](max_keys=60), OrderedDict(), np.random.default_rng(0)
    for i in range(4 * N):
        key = f"k{int(rng.exponential(40))}"
        x = {"a": float(rng.normal()), "device": key}
        model.learn_one(x, x["a"] > 0)
        recent[key] = recent.pop(key, 0) + 1
        if len(recent) > 60:
            recent.popitem(last=False)
        if i % 20 == 0:
            rows_of = model.key_models.process_row({**x, "device": next(iter(recent))}).get("device own rows")
            assert rows_of in (None, pytest.approx(math.log(1 + recent[next(iter(recent))])))
    assert list(model.key_models._blocks) == list(recent)


def test_memory_is_bounded_for_keys_that_never_repeat():
    model = MADE["numbers"](max_keys=100)
    model.learn_one({"a": 1.0, "device": -1}, 0.5)
    X = np.column_stack([np.random.default_rng(0).normal(size=20 * N), np.arange(20 * N)])
    sizes = set()
    for start in range(0, len(X), 100):
        model.predict_then_learn(X[start : start + 100], ["a", "device"], X[start : start + 100, 0].tolist(), False)
        sizes.add(model.nbytes)
    assert (model.key_models.n_keys, len(sizes)) == (100, 1)


def test_an_idle_key_starts_again():
    model = MADE["numbers"](idle=5)
    for i in range(20):
        model.learn_one({"a": i % 3, "device": "a"}, float(i % 3))
    for i in range(6):
        assert model.key_models.process_row({"a": 1.0, "device": "a"})["device own rows"] == pytest.approx(math.log(21))
        model.learn_one({"a": i % 3, "device": "b"}, float(i % 3))
    assert model.key_models.process_row({"a": 1.0, "device": "a"})["device own rows"] == 0.0
    model.learn_one({"a": 1.0, "device": "a"}, 1.0)
    assert model.key_models.process_row({"a": 1.0, "device": "a"})["device own rows"] == pytest.approx(math.log(2))


class DictStore(dict):
    """A store, and a table, of blocks in memory."""

    number = 7

    def read(self, keys, parse):
        return {key: parse(self[key][1]) for key in keys if key in self}

    def read_recent(self, limit, parse):
        rows = sorted(((key, row[0], parse(row[1])) for key, row in self.items()), key=lambda row: -row[1])
        return iter(rows if limit < 0 else rows[:limit])

    def write(self, blocks, oldest=0):
        self.update({key: (last_row, block) for key, last_row, block in blocks if last_row >= oldest})

    def attach(self, table):
        assert table in (None, self)
        return self

    def open(self, number):
        assert number == self.number
        return self

    def call(self, function, *arguments):
        """Call a function while a checkpoint of this store is written or read."""
        token = BLOCK_STORE.set(self)
        try:
            return function(*arguments)
        finally:
            BLOCK_STORE.reset(token)


@pytest.mark.parametrize("kind", KINDS)
def test_evicted_keys_continue_from_the_store(kind):
    """Also a key that was stored with fewer features and labels, in a copy with other parameters, and in a run that resumes."""
    large, small, data, store = MADE[kind](), MADE[kind](max_keys=2), list(rows(N, KINDS[kind])), DictStore()
    store.call(dumps, small)
    for i, (x, y, w) in enumerate(data):
        assert small.predict_one(x) == large.predict_one(x)
        small.learn_one(x, y, w=w)
        large.learn_one(x, y, w=w)
        if i == N // 4:
            small.mutate({"max_keys": 3})
        elif i == N // 2:
            small.mutate({"max_keys": 2})
        elif i == 3 * N // 4:
            saved, others = store.call(dumps, small), {**store}
            small = store.call(loads, saved)
            assert (small.key_models.n_keys, {**store}) == (0, others)
            raises("beside the checkpoint", loads, saved, error=ModelFileError)
    assert small.key_models.n_keys == 2
    blocks = {**large.key_models._blocks}
    for model in (pickle.loads(pickle.dumps(small)), copy.deepcopy(small)):  # the last keys
        models = model.key_models
        assert [*models._blocks.items()] == [*blocks.items()][-2:]
        assert models.store is None
    store.call(dumps, small)
    assert {key: small.key_models._parse_block(block) for key, (_, block) in store.items()} == blocks


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_row_leaves_no_trace(kind, monkeypatch):
    model = MADE[kind](max_keys=5)
    for x, y, w in rows(N // 2, KINDS[kind]):
        model.learn_one(x, y, w=w)
    x, new_y = {"a": 1.0, "b": 0.5, "c": 0.0, "device": 3}, 1.5 if kind == "numbers" else "new" if kind == "three" else y
    refused("finite", model.learn_one, {**x, "b": math.nan, "e": 1.0}, new_y)
    refused("the key \\[1\\] is not a text", model.learn_one, {**x, "device": [1]}, y)
    refused("the key 'aaa", model.learn_one, {**x, "device": "a" * 2000}, y)
    refused("missing|finite|number", model.learn_one, {**x, "e": 1.0, "device": 99}, None)
    refused("mapping", model.learn_one, [1.0], y)
    names, X = [*"abc", "device"], np.random.default_rng(0).normal(size=(12, 4)).round()
    before = pickle.dumps(model)
    for answer in (None, KeyboardInterrupt, ValueError):

        def refuse(*_, answer=answer, **__):
            if answer is not None:
                raise answer
            return answer

        wrapped = type(model._wrapped_model)
        with monkeypatch.context() as patch:
            patch.setattr(wrapped, "learn_one", refuse)
            patch.setattr(wrapped, "predict_then_learn", refuse)
            for call in (
                lambda: model.predict_then_learn(X, names, [y] * 12, False),
                *((lambda: model.learn_one({**x, "e": 1.0, "device": 77}, new_y),) if answer else ()),
            ):
                if answer is None:
                    assert call() is None
                else:
                    with pytest.raises(answer):
                        call()
        assert pickle.dumps(model) == before
    for bad in (np.full_like(X, np.inf), X[:, :3]):
        assert model.predict_then_learn(bad, names[: bad.shape[1]], [y] * 12, False) is None
    assert pickle.dumps(model) == before
    model.check_one(x, y)
    model.predict_one({**x, "f": 1.0})
    assert pickle.dumps(model) == before
    learn, n = wrapped.predict_then_learn, model.key_models.n_learned

    def learn_and_interrupt(*rows, **parameters):
        learn(*rows, **parameters)
        raise KeyboardInterrupt

    monkeypatch.setattr(wrapped, "predict_then_learn", learn_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.predict_then_learn(np.column_stack([X[:, :3], np.zeros(12), X[:, 3]]), [*"abcd", "device"], [y] * 12, False)
    assert model.key_models.n_learned == n + 12  # both have learned the rows


class InterruptedDict(OrderedDict):
    """Raises a KeyboardInterrupt once, before an item is moved or removed."""

    is_interrupted = False

    def move_to_end(self, key, last=True):
        self.interrupt("move")
        super().move_to_end(key, last)

    def pop(self, key, *default):
        self.interrupt("pop")
        return super().pop(key, *default)

    def interrupt(self, event):
        if event == self.event and not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt


@pytest.mark.parametrize("event", ["move", "pop"])
@pytest.mark.parametrize("with_batches", [False, True])
def test_an_interrupt_while_a_key_is_evicted_loses_no_row(with_batches, event):
    model = MADE["two"](max_keys=3)
    for x, y, w in rows(40, 2):
        model.learn_one(x, y, w=w)
    twin, models = copy.deepcopy(model), model.key_models
    models._blocks = InterruptedDict(models._blocks)
    models._blocks.event = event
    batch = np.ones((2, 4)) * 77, [*"abc", "device"], [True, False], False
    row = {"a": 1.0, "device": 77}, True
    with pytest.raises(KeyboardInterrupt):
        model.predict_then_learn(*batch) if with_batches else model.learn_one(*row)
    twin.predict_then_learn(*batch) if with_batches else twin.learn_one(*row)
    assert pickle.dumps(models.get_state()) == pickle.dumps(twin.key_models.get_state())
    for key in (78, 79):
        model.learn_one({"a": 1.0, "device": key}, True)
        twin.learn_one({"a": 1.0, "device": key}, True)
    assert {*models._blocks} == {*twin.key_models._blocks}


def test_more_features_and_labels_than_the_maximum():
    model, rng = MADE["two"](), np.random.default_rng(0)
    for i in range(60):
        x = dict(enumerate(rng.normal(size=MAX_FEATURES + 4).tolist()))
        model.learn_one({**x, "device": i % 3}, f"label {i % 11}")
    assert (len(model.key_models.features), len(model.key_models.labels.seen), len(model.labels)) == (MAX_FEATURES, 8, 11)
    assert 0 < model.key_models.n_learned < 60
    X = np.column_stack([rng.normal(size=(9, MAX_FEATURES + 4)), np.arange(9) % 3])
    predictions = model.predict_then_learn(X, [*x, "device"], [f"label {i}" for i in range(9)], False)[0]
    assert len(predictions) == 9
    model = KeyedClassifier(BSCAClassifier(5, seed=0), "device")
    for i in range(9):
        model.learn_one({"a": 1.0, "device": 1}, f"label {i}")
    model.learn_one({"a": 1.0, "b": 1.0, "device": 1}, "label 8")  # a label without models, with a new feature
    assert (model.key_models.features.names, model.key_models.n_learned) == (["a", "b"], 8)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_models_continue_identically(kind):
    model, data = MADE[kind](max_keys=6), list(rows(N, KINDS[kind]))
    for x, y, w in data[: N // 2]:
        model.learn_one(x, y, w=w)
    loaded, unpickled, copied = loads(dumps(model)), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)
    for x, y, w in data[N // 2 :]:
        assert loaded.predict_one(x) == unpickled.predict_one(x) == copied.predict_one(x) == model.predict_one(x)
        for learner in (model, loaded, unpickled, copied):
            learner.learn_one(x, y, w=w)
    assert dumps(model) == dumps(loaded) == dumps(unpickled) == dumps(copied)
    model.mutate({"max_keys": 3})
    assert (model.key_models.n_keys, model.max_keys) == (3, 3)
    assert set(model.key_models._blocks) <= set(loaded.key_models._blocks)
    refused("cannot change after construction", model.mutate, {"key": "b"})


def test_corrupt_states_are_refused():
    model = MADE["three"]()
    for x, y, w in rows(N, 3):
        model.learn_one(x, y, w=w)
    state, good = model.__getstate__(), model.__getstate__()["key_models"]
    KeyedClassifier.__new__(KeyedClassifier).__setstate__(state)
    dtype, n, shared = model.key_models._start.dtype, len(good["keys"]), good["shared"]
    changes = [("shared", value) for value in (np.full_like(shared, np.nan), np.full_like(shared, -1.0), shared[1:], [1.0])]
    changes += [("blocks", value) for value in (b"", good["blocks"][:-8], good["blocks"][: -len(good["blocks"]) // n], bytes(99))]
    changes += [
        ("keys", value) for value in (good["keys"][:-1], [*good["keys"][:-1], good["keys"][0]], [*good["keys"][:-1], None])
    ]
    changes += [("features", ["a"]), ("labels", ["low"]), ("n_learned", -1), ("n_learned", 5)]
    for field, value in [
        *(("rows", 0.0), ("rows", math.nan), ("last_row", 1e9), ("last_row", 0.0), ("columns", 8.0), ("outputs", 2.0)),
        *(("linear", math.inf), ("covariance", -1.0), ("counts", -1.0), ("means", 1e200), ("squares", -1.0)),
    ]:
        blocks = np.frombuffer(bytearray(good["blocks"]), dtype)
        blocks[field][2] = value
        changes.append(("blocks", blocks.tobytes()))
    for name, value in changes:
        corrupt = {**state, "key_models": {**good, name: value}}
        raises("saved|snapshot|n_learned", KeyedClassifier.__new__(KeyedClassifier).__setstate__, corrupt)


def test_merged_models_have_the_keys_of_all():
    parts = [MADE["two"]() for _ in range(2)]
    for number, model in enumerate(parts):
        for x, y, _ in rows(N, 2, seed=number, keys=4 + 3 * number):
            x = dict(reversed(x.items())) if number else x
            model.learn_one({"z" * number or "a": 0.0, **x}, y if number else not y)
    kept = copy.deepcopy(parts)
    parts[0].merge_with(parts[1])
    merged = parts[0].key_models
    assert merged.n_keys == 7
    assert merged.n_learned == sum(part.key_models.n_learned for part in kept)
    x = {"a": 0.3, "b": -1.0, "c": 0.5, "d": 0.1}
    for key in range(7):
        rows_of = [part.key_models.process_row({**x, "device": key})["device own rows"] for part in kept]
        assert merged.process_row({**x, "device": key})["device own rows"] == max(rows_of)
    assert pickle.dumps(pickle.loads(pickle.dumps(parts[0]))) == pickle.dumps(parts[0])
    other = KeyedClassifier(BSCAClassifier(20, seed=0), "other")
    refused("different parameters cannot be merged.*KeyedClassifier key: 'device' -> 'other'", parts[0].merge_with, other)
    refused("cannot be merged", KeyedClassifier(linear_model.LogisticRegression(), "device").merge_with)


@pytest.mark.parametrize("classes", [2, 3, 0])
def test_merged_blocks_predict_alike(classes):
    """With columns and labels in another order."""
    models = [KeyModels("device", classes == 0, 10, None) for _ in range(2)]
    data = [(x, y if classes == 0 else str(y), w) for x, y, w in rows(N, classes) if x["device"] is not None]
    for x, y, w in data:
        models[0].process_row(x, y, w)
        models[0].commit()
    models[1].features.find_columns(["c", "d"], True)
    for label in models[0].labels.seen[::-1][: classes - 1]:
        models[1].labels.encode(label)
    models[1]._grow()
    models[1].merge_with(models[0])
    assert models[1].features.names != models[0].features.names
    expected, predictions = (model.process_row(data[-1][0]) for model in models)
    if classes == 2:
        assert models[0].labels.seen[::-1] == models[1].labels.seen
        assert predictions == pytest.approx(expected, abs=0.1)  # the first rows had a single label
    else:
        assert models[0].labels.seen[0] != models[1].labels.seen[0] if classes else True
        assert predictions == pytest.approx(expected, abs=1e-9)


def test_merged_models_have_the_first_labels():
    parts = []
    for labels in (range(6), range(4, 12)):
        parts.append(MADE["three"]())
        for (x, _, w), y in zip(rows(N, 3), itertools.cycle(labels), strict=False):
            parts[-1].learn_one({**x, "device": f"{x['device']} {labels}"}, str(y), w=w)
    merged = copy.deepcopy(parts[0])
    merged.merge_with(parts[1])
    models = merged.key_models
    seen = models.labels.seen
    assert seen == [*dict.fromkeys(label for part in parts for label in part.key_models.labels.seen)][:8]
    for key in models._blocks:
        (part,) = (part.key_models for part in parts if key in part.key_models._blocks)
        old, new = (each._join_blocks([each._blocks[key]])[0] for each in (part, models))
        kept = [(i, seen.index(label)) for i, label in enumerate(part.labels.seen) if label in seen]
        columns = [part.features.names.index(name) for name in models.features.names]
        for i, k in kept:
            assert new["linear"][k].tolist() == old["linear"][i][[0, *(1 + column for column in columns)]].tolist()
            assert new["means"][k, : len(columns)].tolist() == old["means"][i, columns].tolist()
            assert new["counts"][k] == old["counts"][i]
        assert new["counts"].sum() == pytest.approx(sum(old["counts"][i] for i, _ in kept))
    assert len({key.partition(" ")[2] for key in models._blocks}) == 2


def test_contributions_of_the_models_count_together():
    for make, label in ((MADE["two"], True), (MADE["numbers"], None)):
        model = make()
        for x, y, _ in rows(N, 2 if label else 0):
            model.learn_one(x, y)
        x = {"a": 1.0, "b": 0.5, "c": -1.0, "device": 2}
        explanation = model.explain_one(x)
        assert set(explanation.contributions) == {"a", "b", "c", "d", "device (own models)"}
        assert explanation.prediction == pytest.approx(model.predict_one(x))
        assert explanation.values["device (own models)"] == 2
        assert explanation.contributions["device (own models)"] != 0.0
        grouped = model.explain_one(x, {"a": 0.0}, {"a": "first", "device": "which"})
        assert set(grouped.contributions) == {"first", "b", "c", "d", "which"}
        assert any(model.examples_one(x, 2).nearest.values())
        assert set(model.feature_names) == {*"abcd", "device"}


def devices(n):
    """Rows of a table: devices differ in their normal temperature; some are not named."""
    rng = np.random.default_rng(0)
    normal = rng.normal(scale=2.0, size=10)
    for i in range(n):
        device, temperature = int(rng.integers(10)), float(rng.normal())
        name = f"d{device}" if i % 17 else None
        yield {"device": name, "t": temperature + normal[device], "y": "high" if temperature > 0.0 else "low"}


def test_the_features_of_two_labels_do_not_depend_on_their_order():
    models = [MADE["two"]() for _ in range(2)]
    for labels, model in zip((("no", "yes"), ("yes", "no")), models, strict=True):
        for y in labels * 3:
            model.learn_one({"device": 1, "a": float(y == "no")}, y)
    names = ["device own linear yes", "device own bayes yes", "device own rows"]
    assert [[*model.key_models.outputs] for model in models] == [names, names]
    first, second = (model.key_models.process_row({"device": 1, "a": 0.0}) for model in models)
    assert first["device own bayes yes"] > 0.0
    assert second["device own bayes yes"] > 0.0


def test_other_pipelines_pass_a_key_on_request():
    silent, passed = (compose.Discard("b") | TableEncoder(keys="device") | MADE["two"]() for _ in range(2))
    passed["TableEncoder"].pass_key("device")
    for i in range(20):
        x = {"device": f"d{i % 3}" if i % 5 else None, "a": 1.0, "b": i}
        passed.learn_one(x, "xy"[i % 2])
        if i < 2:  # without the memory of a key before the second label
            silent.learn_one(x, "xy"[i % 2])
    assert passed["KeyedClassifier"].key_models.n_keys == 3
    assert passed.clone()["TableEncoder"].column_state.key_feature == "device"
    raises(r"no 'device': call encoder.pass_key\('device'\)", silent.learn_one, {"device": "d1", "a": 1.0}, "x")


@pytest.mark.once
def test_tables_pass_their_key():
    table = pandas.DataFrame(devices(800))
    model = table_model(table, "y", learner=BSCAClassifier(30, seed=0), key="device", models_per_key=True)
    plain = table_model(table, "y", learner=BSCAClassifier(30, seed=0), key="device")
    costs = TableEncoder(keys="device") | CostSensitiveClassifier(
        KeyedClassifier(BSCAClassifier(30, seed=0), "device"), {"low": 1.0}
    )
    rows_of_table = table.drop(columns="y").astype(object).where(table.notna(), None)
    for learned in (model, plain):
        learned.learn_many(table)
    for x, y in zip(rows_of_table.to_dict("records"), table["y"], strict=True):
        costs.learn_one(x, y)
    keys, others = (learned._last_step for learned in (model, costs))
    assert keys.key_models.get_state() | {"shared": 0} == others.classifier.key_models.get_state() | {"shared": 0}
    assert (keys.key_models.n_keys, keys.key_models.features.names) == (10, ["t"])
    loaded = loads(dumps(model))
    assert list(loaded.predict_many(table)) == [loaded.predict_one(x) for x in rows_of_table.to_dict("records")]
    assert model.score(table) > plain.score(table) + 0.1
    explanation = loaded.explain_one(rows_of_table.to_dict("records")[3])
    parts = {"device", "device (memory)", "device (own models)"}
    assert set(explanation.contributions) == {*parts, "t"}
    assert {explanation.values[part][:1] for part in parts} == {"d"}
    raises("a program has no small models of keys", make_program, model, error=ExportError)
    raises("models_per_key=True: .* needs one column that is a key", table_model, table, "y", models_per_key=True)
    raises("models_per_key='t': it is True or False", table_model, table, "y", key="device", models_per_key="t")


def test_rows_without_a_key_are_the_same_in_a_frame():
    rows = [row | {"device": f"d{i % 4}" if i < 50 or i % 5 else None} for i, row in enumerate(devices(100))]
    table, learner = pandas.DataFrame(rows), BSCAClassifier(30, seed=0)
    by_row, by_frame = (table_model(table, "y", learner=learner.clone(), key="device", models_per_key=True) for _ in "ab")
    by_frame.learn_many(table)
    for x in rows:
        by_row.learn_one(x, x.pop("y"))
    assert dumps(by_row) == dumps(by_frame)


def test_parameters_are_validated():
    raises("must be a river classifier", KeyedClassifier, BSCARegressor(), "device")
    raises("key must be the name of a field", KeyedClassifier, BSCAClassifier(), 3)
    raises("max_keys", KeyedClassifier, BSCAClassifier(), "device", max_keys=0)
    raises("idle", KeyedClassifier, BSCAClassifier(), "device", idle=0)
    raises(
        "predict_then_learn",
        lambda: KeyedClassifier(linear_model.LogisticRegression(), "a").predict_then_learn,
        error=AttributeError,
    )


def test_a_scaler_that_changes_the_key_is_noticed():
    model = preprocessing.StandardScaler() | KeyedClassifier(BSCAClassifier(), "device")
    model.learn_one({"device": 0, "a": 0.0}, "x")
    model.learn_one({"device": 1, "a": 1.0}, "y")
    with pytest.warns(UserWarning, match="the key 'device' is a fraction: put a scaler into the KeyedClassifier"):
        model.learn_one({"device": 2, "a": 2.0}, "x")


@pytest.mark.filterwarnings("ignore:the key 'device' is a fraction")
def test_equal_numbers_are_the_same_key():
    model = MADE["two"]()
    for key in (1, 1.0, True, np.int64(1), np.float64(1.0), np.bool_(True), "1", 2.5, math.nan, None, math.inf, 10**400):
        model.learn_one({"a": 1.0, "device": key}, True)
    assert list(model.key_models._blocks) == [1, "1", 2.5]
    assert model.key_models.n_learned == 8
