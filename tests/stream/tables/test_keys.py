"""Keys: the memory of their last and recent labels, compared with dicts of rows, in batches, saved, merged, and refused."""

import copy
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refused import raises
from saved import dumps, loads
from streamsvm import BSGDClassifier, BSGDRegressor, table_model
from streamsvm.stream import LearningLoop, open_source
from streamsvm.stream.tables import TableEncoder
from streamsvm.stream.tables.target_encoding import MAX_LABELS, TargetEncoding

LABELS = {
    "two": ["no", "yes"],
    "as features": ["x", "rows", "last x", "recent x"],
    "many": [f"y{i}" for i in range(12)],
    "numbers": [0.5, -1.0, 2.25, 1.5],
}


class RowsOfKeys:
    """All labels of each key in a list: its features are computed from these anew for each row."""

    def __init__(self):
        self.labels, self.rows, self.known = {}, {}, []

    def learn(self, key, y, means):
        self.labels.setdefault(key, []).append((y, means))

    def features(self, column, key, means):
        """Return the features of a key's memory. ``means`` has the mean of all rows for each suffix."""
        if key is None:
            return {}
        labels, features = self.labels.get(key, []), {}
        for suffix, mean in means.items():
            targets = [y if suffix == "" else float(y == suffix) for y, _ in labels]
            recent = labels[0][1].get(suffix, 0.0) if labels else mean
            for target in targets:
                recent = float(np.float32(recent + 0.1 * (target - recent)))
            space = " " * (suffix != "")
            features[f"{column}~last{space}{suffix}"] = float(np.float32(targets[-1])) if targets else mean
            features[f"{column}~recent{space}{suffix}"] = recent
        return features | {f"{column}~rows": math.log(1 + min(len(labels), 100))}


@pytest.mark.parametrize("kind", LABELS)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 11), st.sampled_from([1.0, 0.5, 0.0]))))
def test_the_memory_of_a_key_equals_that_of_all_its_rows(kind, rows):
    encoder, twin, weights = TableEncoder(keys="device"), RowsOfKeys(), {}
    labels = LABELS[kind]
    for y in labels:  # all are known from the start
        encoder.learn_one({}, y)
        weights[y] = weights.get(y, 0.0) + 1.0
    targets, total = [(y, 1.0) for y in labels], float(len(labels))

    def means():
        if kind == "numbers":
            return {"": sum(y * w for y, w in targets) / sum(w for _, w in targets)}
        n = min(len(labels), MAX_LABELS + 1)
        suffixes = labels[:MAX_LABELS] if len(labels) > 2 else ["yes"]
        return {label: (weights[label] + 1.0) / (total + n) for label in suffixes}

    for key, i, w in rows:
        y, expected = labels[i % len(labels)], twin.features("device", key, means())
        features = encoder.transform_one({"device": key})
        assert expected.keys() <= features.keys()
        assert {name: features[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert expected or features == {}
        encoder.learn_one({"device": key}, y, w)
        if w:
            weights[y], total = weights[y] + w, total + w
            targets.append((y, w))
            if key is not None:
                twin.learn(key, y, means())


def test_the_memory_of_targets_is_scaled_if_numbers_are():
    rng, encoders = np.random.default_rng(0), [TableEncoder(keys="device", scaler=scaler) for scaler in (None, "standard")]
    y, names = (5e4 + 2e4 * rng.normal(size=50)).tolist(), ["device~last", "device~recent", "device~rows"]
    for encoder in encoders:
        encoder.learn_one({"device": "k0"}, 1e39)  # not learned
        assert {*encoder.transform_one({"device": "k0"}).values()} <= {0.0, 1.0}
    for i, target in enumerate(y):
        for encoder in encoders:
            encoder.learn_one({"device": f"k{i % 3}"}, target)
    for x in ({"device": "k1"}, {"device": "new"}):
        last, recent, rows = (encoders[0].transform_one(x)[name] for name in names)
        features, expected = (
            encoders[1].transform_one(x),
            [(last - np.mean(y)) / np.std(y), (recent - np.mean(y)) / np.std(y), rows],
        )
        assert [features[name] for name in names] == pytest.approx(expected, abs=1e-9)
        memory = {name: pytest.approx(value) for name, value in zip(names, (last, recent, rows), strict=True)}
        assert encoders[1].get_memory(x) == memory
        assert encoders[1].find_key_labels(features) == [pytest.approx(last)]
    x = {"device": "k1"}
    encoders[1].set_memory(x, {"device~last": 5e4, "device~recent": 6e4, "device~rows": 1.0})
    assert encoders[1].find_key_labels(encoders[1].transform_one(x)) == [pytest.approx(5e4)]
    assert encoders[1].get_memory(x)["device~recent"] == pytest.approx(6e4)


def test_the_rows_of_a_key_count_up_to_100_as_a_feature():
    encoder = TableEncoder(keys="device")
    for n in range(150):
        encoder.learn_one({"device": "b"}, n % 2)
        encoder.learn_one({"device": "a" if n < 120 else "b"}, 0)
    rows = {key: encoder.transform_one({"device": key})["device~rows"] for key in "abc"}
    assert rows == {"a": math.log(101), "b": math.log(101), "c": 0.0}
    state = encoder.column_state
    assert [state.target_encoding.count_rows(state.encode_category("device", key).key) for key in "abc"] == [120, 180, 0]


def make_frame(n, labels, seed=0):
    """Return a frame with a key, a number and a label, which depends on the last label of the key."""
    rng = np.random.default_rng(seed)
    keys, last, y = rng.integers(0, 40, n), rng.integers(0, len(labels), 40), []
    for key in keys:
        last[key] = rng.integers(0, len(labels)) if rng.random() < 0.2 else last[key]
        y.append(labels[last[key]])
    a = [f"{number:.3f}" for number in rng.normal(size=n)]
    return pd.DataFrame(
        {"device": [f"k{key}" if i % 17 else None for i, key in enumerate(keys)], "a": list(map(float, a)), "y": y}
    )


def make_model(kind):
    learner = BSGDRegressor(20, seed=1) if kind == "numbers" else BSGDClassifier(20, seed=1)
    return TableEncoder(keys="device") | learner


def state_of(model, rows):
    """Return the bytes of the encoder and predictions. A learner remembers whether its rows came as frames."""
    last = model._last_step
    return dumps(model["TableEncoder"]), list(map(getattr(last, "predict_proba_one", last.predict_one), rows))


@pytest.mark.parametrize("kind", LABELS)
def test_batches_of_any_size_learn_like_single_rows(kind):
    frame, w = make_frame(450, LABELS[kind]), np.arange(450) % 5 / 2.0
    X, y, one = frame[["device", "a"]], frame["y"].tolist(), make_model(kind)
    for x, label, weight in zip(X.to_dict("records"), y, w.tolist(), strict=True):
        one.learn_one(x, label, w=weight)
    rows = [one["TableEncoder"].transform_one(x) for x in X[:60].to_dict("records")]
    for size in (7, 64, 400):
        many = make_model(kind)
        for first in range(0, 450, size):
            many.learn_many(X[first : first + size], y[first : first + size], w[first : first + size])
        assert state_of(many, rows) == state_of(one, rows)
    features = one["TableEncoder"].transform_many(X[:60])
    for i, expected in enumerate(rows):
        assert {name: features[name].iloc[i] for name in features} == {name: expected.get(name, 0.0) for name in features}


def test_files_of_all_formats_give_one_model(tmp_path):
    frame = make_frame(600, LABELS["two"])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "rows.parquet")
    states, rows = [], [{"a": a, "device~last yes": 1.0} for a in (-1.0, 0.5)]
    for name in ("rows.csv", "rows.jsonl", "rows.parquet"):
        model = make_model("two")
        with open_source(tmp_path / name, label="y", columns="device:key") as source:
            LearningLoop(source, model).run()
        states.append(state_of(model, rows))
    model = make_model("two")
    model.learn_many(frame[["device", "a"]], frame["y"].tolist())
    assert states == [state_of(model, rows)] * 3


def test_a_key_is_declared_in_three_ways():
    frame = make_frame(60, LABELS["two"])
    encoders = [TableEncoder(keys="device"), TableEncoder("device:key"), TableEncoder("device:key=", keys=["device"])]
    encoders.append(encoders[0].clone())
    assert [encoder.keys for encoder in encoders] == [["device"]] * 4
    assert [encoder.columns["device"] for encoder in encoders] == ["key", "key", "key=", "key"]
    assert encoders[0].categories == ["device"]
    models = [table_model(frame, "y", key="device"), table_model(frame, "y", columns="device:key")]
    models.append(table_model(models[0].schema.with_options(columns="device:category"), key="device"))
    for model in models:
        assert model["TableEncoder"].keys == ["device"]
        assert "  device  key " in str(model.schema)
    changed = models[0].clone()
    changed.mutate({"TableEncoder": {"max_columns": 5}})
    assert repr(changed["TableEncoder"]) == repr(models[0]["TableEncoder"]).replace("1024", "5")
    raises("'device' is a key, and cannot be of the kind number", TableEncoder, "device:number", keys="device")
    raises("'y' is the label|y is the label", table_model, frame, "y", key="y")
    raises("there is no column 'devise'.*Perhaps", table_model, frame, "y", key="devise")
    raises("leave buckets out", TableEncoder, keys="device", buckets=8)
    raises("keys must be names of columns, not 3", TableEncoder, keys=[3])


def test_a_saved_encoder_continues_and_one_without_its_memory_is_refused():
    frame, encoder = make_frame(300, LABELS["many"]), TableEncoder(keys="device")
    rows = list(zip(frame[["device", "a"]].to_dict("records"), frame["y"], strict=True))
    for x, y in rows[:200]:
        encoder.learn_one(x, y)
    loaded = loads(dumps(encoder))
    for x, y in rows[200:]:
        assert loaded.transform_one(x) == encoder.transform_one(x)
        loaded.learn_one(x, y)
        encoder.learn_one(x, y)
    assert dumps(loaded) == dumps(encoder)
    state = encoder.__getstate__()
    without = TableEncoder("device:category")
    raises("corrupt", TableEncoder.__new__(TableEncoder).__setstate__, state | {"_statistics": without.target_encoding})
    raises("corrupt", TableEncoder.__new__(TableEncoder).__setstate__, state | {"columns": {"device": "category"}})
    state = encoder.target_encoding.__getstate__()
    memories = state["memories"]
    invalid = [memories[:-1], memories[:, :-1], memories.astype(float), memories[:, :0], -memories, memories + np.float32(np.inf)]
    for array in invalid:
        restore = TargetEncoding.__new__(TargetEncoding).__setstate__
        raises("do not fit", restore, state | {"memories": array})


@pytest.mark.parametrize("kind", LABELS)
def test_the_later_memory_wins_in_a_merge_and_rows_add_up(kind):
    labels = LABELS[kind]
    first, second = TableEncoder(keys="device"), TableEncoder(keys="device")
    labels = labels[:MAX_LABELS]  # others may have another place in the second encoder
    for i in range(40):
        first.learn_one({"device": "ab"[i // 2 % 2]}, labels[i % len(labels)])
    for i in range(60):
        second.learn_one({"device": "bc"[i // 2 % 2]}, labels[-1 - i % len(labels)])
    names, learned = first.transform_one({"device": "b"}), second.transform_one({"device": "b"})
    names = [name for name in names if name.startswith(("device~last", "device~recent"))]
    only_first, only_second = first.transform_one({"device": "a"}), second.transform_one({"device": "c"})
    first.merge_with(second)
    for key, expected in ("a", only_first), ("b", learned), ("c", only_second):
        merged = first.transform_one({"device": key})
        assert [merged[name] for name in names] == [expected[name] for name in names]
        assert merged["device~rows"] == pytest.approx(math.log({"a": 21, "b": 51, "c": 31}[key]))
    with_category = TableEncoder("device:category")
    raises("'device': 'key'.*'device': 'category'", first.merge_with, with_category)


def test_the_memory_belongs_to_its_column_in_explanations():
    frame = make_frame(300, LABELS["two"])
    model = table_model(frame, "y", key="device", learner=BSGDClassifier(20, seed=1))
    model.learn_many(frame)
    explanation = model.explain_one({"device": "k1", "a": 0.5})
    assert set(explanation.contributions) == {"device", "device (memory)", "a"}
    example = model.examples_one({"device": "k1", "a": 0.5}, 1)
    assert "device" in str(example)


def test_memory_is_bounded():
    encoder = TableEncoder(keys="device")
    for i in range(2000):
        encoder.learn_one({"device": i}, bool(i % 2))
    size = encoder.target_encoding.nbytes
    table = TableEncoder("device:category")
    for i in range(2000):
        table.learn_one({"device": i}, bool(i % 2))
    assert size - table.target_encoding.nbytes == 16 * 4096
    copied = copy.deepcopy(encoder)
    assert copied.transform_one({"device": 7}) == encoder.transform_one({"device": 7})
