"""The committee: its experts are the learners themselves, its scale follows the stream, and nothing that comes breaks it."""

import copy
import json
import pickle

import numpy as np
import pytest
from numba import config
from river import datasets

from lists import first
from problems import blobs, sine_classes, snapshot
from refused import refused
from streamsvm import BSCAClassifier, SVMClassifier, load, save
from streamsvm.cli.main import main
from streamsvm.core.memory import committee as kinds
from streamsvm.core.steps import committee, newton, second_order, stack
from streamsvm.core.steps.iterates import LAST
from streamsvm.learners import KernelRLSClassifier, OnlineLinearSVC
from streamsvm.learners.committee import states

N = 130 if config.DISABLE_JIT else 600
TABLE = np.column_stack(sine_classes(2000, 4))


def rows(n=N, scale=1.0, shift=0.0, labels=("ham", "spam")):
    for *values, label in TABLE[:n]:
        yield {f"f{j}": float(v) for j, v in enumerate(np.array(values) * scale + shift)}, labels[int(label > 0)]


def learned(data, **parameters):
    model = SVMClassifier(**{"max_features": 5, "seed": 3, **parameters})
    for x, y in data:
        model.learn_one(x, y)
    return model


def accuracy(data, **parameters):
    """Prequential, over the second half."""
    model, data, right = SVMClassifier(**{"max_features": 8, "seed": 3, **parameters}), list(data), []
    for x, y in data:
        right.append(model.predict_one(x) == y)
        model.learn_one(x, y)
    return float(np.mean(right[len(right) // 2 :]))


@pytest.fixture(scope="module")
def model():
    return learned(rows())


@pytest.mark.once
def test_experts_are_the_learners_themselves():
    model = SVMClassifier("high", scaling=None, max_features=4, max_classes=2, seed=3)
    team, stores = model._team, model._store.stores
    peers = []
    for number, expert in enumerate(team):
        if expert.kind == kinds.ASCENT:
            options = {"C": expert.state["C"], "gamma": 1.0, "scaling": None, "max_classes": 2}
            peer = BSCAClassifier(budget=expert.budget, seed=3 + number, **options)
            peer._own["one_pass"] = 0  # the stack sees to noise: the experts differ in C
            peers.append((number, peer))
        elif expert.kind == kinds.LINEAR:
            peers.append((number, OnlineLinearSVC(C=expert.state["C"])))
        elif expert.kind == kinds.LANDMARKS:
            factor = expert.state["forgetting_factor"]
            peers.append((number, KernelRLSClassifier(expert.budget, gamma=1.0, forgetting_factor=factor, max_classes=2)))
    assert len(peers) == 9
    for x, y in rows(60 if config.DISABLE_JIT else 250):
        model.learn_one(x, y)
        for number, peer in peers:
            if not isinstance(peer, OnlineLinearSVC):
                peer._store.views.header["gamma"] = stores[number][0].views.header["gamma"]
                peer._store.views.cache[0] = 0
            peer.learn_one(x, y)
    probe = next(iter(rows(1)))[0]
    model.predict_one(probe)
    v = model._store.views
    for number, peer in peers:
        first = v.experts[number, 3]
        assert v.at_hand[0, first] == pytest.approx(peer.decision_function_one(probe, output="last"), rel=1e-6)
        assert v.at_hand[0, first + 1] == pytest.approx(peer.decision_function_one(probe, output="average"), rel=1e-6)
        if not isinstance(peer, OnlineLinearSVC):
            assert stores[number][0].n_support == peer.n_support


def functions_of(x, n):
    """The row of an expert of second order: 1, and n functions of each feature."""
    z = [1.0]
    for value in np.clip(np.array(list(x.values()), np.float32).astype(float), -5.0, 5.0):
        z += [value, abs(value) - 0.8, max(value - 0.8, 0.0), max(-value - 0.8, 0.0)][:n]
    return np.array(z)


@pytest.mark.once
@pytest.mark.parametrize(
    ("kind", "functions", "memory"),
    [(kinds.NEWTON, 1, 0.999), (kinds.SLOW_NEWTON, 1, 0.9999), (kinds.ADDITIVE, 4, 0.999)],
)
def test_experts_of_second_order_as_their_twin(kind, functions, memory):
    model = SVMClassifier(scaling=None, max_features=4, max_classes=2, seed=3)
    number = next(i for i, expert in enumerate(model._team) if expert.kind == kind)
    n = 1 + 4 * functions
    A, w = np.eye(n), np.zeros(n)
    seen = A.copy()
    for t, (x, y) in enumerate(rows(100, labels=(False, True)), 1):
        z = functions_of(x, functions)
        if t > 1:
            model.predict_one(x)
            found = model._store.views.at_hand[0, model._store.views.experts[number, 3]]
            assert found == pytest.approx(w @ z, rel=1e-6, abs=1e-9)
        p = 1.0 / (1.0 + np.exp(-w @ z))
        h = max(p * (1.0 - p), 0.02)
        seen = memory * seen + h * np.outer(z, z)
        A = memory * A + h * np.outer(z, z) + (1.0 - memory) * np.eye(n)
        w = w + np.linalg.solve(seen, z) * (y - p)
        model.learn_one(x, y)
        if (t + 16 * model._store.views.experts[number, 4]) % 64 == 0:
            w, seen = w - np.linalg.solve(A, 64 * (1.0 - memory) * w), A.copy()


@pytest.mark.once
def test_the_sum_of_functions_begins_anew_where_features_get_fewer_of_them():
    model = SVMClassifier(max_features=40, seed=0)
    number = next(i for i, expert in enumerate(model._team) if expert.kind == kinds.ADDITIVE)
    newton_number = model._store.views.experts[number, 4]
    rng = np.random.default_rng(0)
    for n, functions in ((16, 4), (17, 2), (32, 2), (33, 1)):
        for _ in range(20):
            x = dict(enumerate(rng.normal(size=n).tolist()))
            model.learn_one(x, x[0] > 0.0)
        assert model._own[0]["functions"] == functions
        assert np.flatnonzero(model._store.views.newton_weights[newton_number, 0])[-1] == n * functions


@pytest.mark.parametrize("effort", first(1, ["high", "low", "normal"], others=pytest.mark.once))
@pytest.mark.parametrize("classes", [2, 4])
def test_many_rows_are_as_one_after_the_other(classes, effort):
    X, y = blobs(classes, 50 if config.DISABLE_JIT else N)
    one = SVMClassifier(effort, max_features=2, seed=1)
    many = SVMClassifier(effort, max_features=2, seed=1)
    for values, label in zip(X, y.tolist(), strict=True):
        one.learn_one(dict(enumerate(values.tolist())), label)
    many.learn_many(X[:7], y[:7].tolist())
    many.learn_many(X[7:], y[7:].tolist())
    assert snapshot(one) == snapshot(many)
    for name in ("predict", "predict_proba", "decision_function"):
        single = [getattr(one, f"{name}_one")(dict(enumerate(values.tolist()))) for values in X[:9]]
        if isinstance(single[0], dict):
            single = [[of[label] for label in (one.labels if classes > 2 else sorted(of))] for of in single]
        np.testing.assert_array_equal(np.array(single), getattr(many, f"{name}_many")(X[:9]))


@pytest.mark.once
def test_probabilities_begin_at_equal_ones_and_agree_with_predictions():
    model, wrong = SVMClassifier(max_features=4, max_classes=2, seed=0), 0.0
    for i, (x, y) in enumerate(rows(labels=(False, True))):
        p = model.predict_proba_one(x)
        assert sum(p.values()) == pytest.approx(1.0)
        assert abs(p[True] - 0.5) <= 0.5 * (i + 1) / (i + 3) + 1e-9
        if i:
            assert model.predict_one(x) == (p[True] > 0.5)
            assert (model.decision_function_one(x) > 0.0) == (p[True] > 0.5)
        wrong -= np.log(p[y])
        model.learn_one(x, y)
    assert wrong / N < 0.6


@pytest.mark.once
def test_several_classes():
    X, y = blobs(4, N)
    model, right = SVMClassifier(max_features=2, seed=0), []
    for values, label in zip(X, y.tolist(), strict=True):
        x = dict(enumerate(values.tolist()))
        p = model.predict_proba_one(x)
        if p:
            assert sum(p.values()) == pytest.approx(1.0)
            assert max(p, key=p.get) == model.predict_one(x)
            right.append(model.predict_one(x) == label)
        model.learn_one(x, label)
    assert np.mean(right) > (0.5 if config.DISABLE_JIT else 0.6)
    assert model.labels == list(dict.fromkeys(y.tolist()))


@pytest.mark.once
def test_a_third_class_leaves_the_decision_between_the_first_two():
    data = list(rows(90))
    model = learned(data)
    model._store.views.weights[:, 0] = 0.0  # the constant says nothing between several classes
    for matrix in (*model._store.views.curvatures, *model._store.views.inverses):
        matrix[0, 1:] = matrix[1:, 0] = 0.0
    before = [model.decision_function_one(x) for x, _ in data[:20]]
    model._labels.target("eggs")
    model._resize(3)
    for (x, _), f in zip(data[:20], before, strict=True):
        committee.decide(model._block, LAST)
        model._features.fill(model._row, x, False)
        model._connect()
        committee.decide(model._block, LAST)
        scores = dict(zip(model.labels, model._store.views.scores, strict=False))
        if abs(f) < 20.0 and model.follows == "stacks":
            prior, n_spam = 2.0 / (90 + 3.0), sum(y == "spam" for _, y in data)
            p = (1.0 / (1.0 + np.exp(-f)) - (n_spam + 1) / 92 * prior) / (1.0 - prior)
            assert scores["spam"] - scores["ham"] == pytest.approx(np.log(p / (1.0 - p)), rel=1e-4, abs=1e-6)


@pytest.mark.once
@pytest.mark.parametrize("labels", [(False, True), ("ham", "spam"), ("ham", "spam", "eggs")], ids=str)
def test_probabilities_begin_at_the_frequencies_of_the_classes(labels):
    model, counts = SVMClassifier(max_features=5, seed=3), dict.fromkeys(labels, 0)
    assert model.predict_proba_one({"f0": 1.0}) == {}
    rng = np.random.default_rng(0)
    for n in range(30):
        label = labels[n] if n < len(labels) else labels[0] if rng.random() < 0.8 else labels[-1]
        x = {f"f{j}": float(v) for j, v in enumerate(rng.normal(size=4))}  # says nothing
        if len(model.labels) == len(labels):
            p = model.predict_proba_one(x)
            assert sum(p.values()) == pytest.approx(1.0)
            assert max(p, key=p.get) == model.predict_one(x)
            share = max(2.0 / (n + 3.0), 25.0 / (25.0 + n * n))
            for of, count in counts.items():  # what the stack says, between 0 and 1, has the other share
                least = share * (count + 1) / (n + len(labels))
                assert 0.8 * least <= p[of] <= max(least + 1.0 - share, 0.5) + 1e-9
        model.learn_one(x, label)
        counts[label] += 1
    v = model._store.views
    assert model._own[0]["rows"] == 30
    if len(labels) == 2:
        assert v.counts[0] == counts[model.positive_label]
    else:
        assert v.counts[:3].tolist() == list(counts.values())


@pytest.mark.once
def test_units_and_origins_of_features_do_not_matter():
    scale, shift = np.array([1e-3, 1e3, 7.0, 0.02]), np.array([5.0, -3e3, 100.0, 0.0])
    assert accuracy(rows(scale=scale, shift=shift)) == pytest.approx(accuracy(rows()), abs=0.02)


def first_of(model, kind, width=1.0):
    """The first store of the first expert of a kind and a width."""
    return next(
        stores[0]
        for expert, stores in zip(model._team, model._store.stores, strict=True)
        if expert.kind == kind and expert.width == width
    )


@pytest.mark.once
def test_gamma_follows_without_scaling():
    model = learned(rows(200, scale=10.0), scaling=None)
    first = first_of(model, kinds.ASCENT).views.header[0]["gamma"]
    assert first == pytest.approx(1.0 / (100.0 * TABLE[:200, :4].var(axis=0).sum()), rel=0.12)
    for x, y in rows(200, scale=0.1):
        model.learn_one(x, y)
    assert first_of(model, kinds.ASCENT).views.header[0]["gamma"] != first


@pytest.mark.once
def test_stored_vectors_follow_the_scale():
    # The rows that are stored have today's distances, whatever the scale was when they came.
    model = learned(rows(100))
    v = model._store.views
    store = model._store.stores[0][0].views
    n, used = store.header[0]["n_support"], 4
    raw = store.vectors[:used, :n] * v.spread[:used, None] + v.location[:used, None]
    v.first[:used], v.moments[:used, 1] = v.first[:used] * 3.0, v.moments[:used, 1] * 3.0 + 1.0
    v.moments[:used, 2] *= 9.0
    model._common["t"] = 111
    model.learn_one(next(iter(rows(1)))[0], "ham")
    again = store.vectors[:used, :n] * v.spread[:used, None] + v.location[:used, None]
    np.testing.assert_allclose(again[:, :-1], raw[:, :-1], atol=1e-4)


@pytest.mark.once
@pytest.mark.parametrize("effort", ["low", "normal", "high"])
def test_snapshots_go_on_as_the_model_does(effort, tmp_path):
    data = list(rows(60 if config.DISABLE_JIT else N))
    model = learned(data[: len(data) // 2], effort=effort)
    copies = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    if not config.DISABLE_JIT:
        save(model, tmp_path / "model")
        copies.append(load(tmp_path / "model"))
    for x, y in data[len(data) // 2 :]:
        for each in (model, *copies):
            each.learn_one(x, y)
    assert len({snapshot(each) for each in (model, *copies)}) == 1


@pytest.mark.once
def test_rows_that_are_refused_leave_nothing(model):
    for x in ({"f0": float("nan")}, {"f0": 1e30, "new": 1.0}, {"f0": "1"}, {f"f{j}": 1.0 for j in range(9)}):
        refused("feature|too large", model.learn_one, x, "a third")
    refused("row 1", model.learn_many, np.array([[1.0], [np.inf]]), ["ham", "eggs"])
    refused("feature 'f0' is nan", model.predict_one, {"f0": float("nan")})


def corrupted(model, change):
    state = copy.deepcopy(model)
    change(state)
    return pickle.dumps(state)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m._own.__setitem__("choice", 3), "its choice is 3"),
        (lambda m: m._store.views.counts.__setitem__(0, 1e9), "rows of its classes"),
        (lambda m: m._own.__setitem__("last", 7), "its last label is number 7"),
        (lambda m: m._own.__setitem__("scaling", 0), "its scaling is 0"),
        (lambda m: m._store._header.__setitem__("used", 5), "an expert has 4 features"),
        (lambda m: m._store._header.__setitem__("live", 2), "2 outputs"),
        (lambda m: m._store.views.weights.__setitem__((0, 0), np.nan), "weights hold nan"),
        (lambda m: m._store.views.curvatures.__setitem__((0, 0, 0), -1.0), "not positive definite"),
        (lambda m: m._store.views.newton_inverses.__setitem__((0, 1, 2), 1e9), "not positive definite"),
        (lambda m: m._store.stores[0][0].views.header.__setitem__("n_support", 400), "400 support vectors"),
        (lambda m: m._store.stores[0][0].views.header.__setitem__("live", 4), "live of an expert is 4"),
        (lambda m: first_of(m, kinds.LINEAR).views.weights.__setitem__((0, 0), np.inf), "weights or biases"),
        (lambda m: m._store.stores[0][0].block[128:136].view(np.int64).__setitem__(0, -1), "its t is -1"),
    ],
)
def test_states_that_compiled_code_could_not_trust_are_refused(model, change, match):
    refused(match, pickle.loads, corrupted(model, change))


def test_a_snapshot_that_is_refused_changes_nothing(model):
    twin = copy.deepcopy(model)
    good, before = twin._store.snapshot(), snapshot(twin)
    for bad in (good[:-8], good + b"\0", b"", good[:64] + b"\xff" * 8 + good[72:]):
        refused("snapshot", twin._store.restore, bad)
        assert snapshot(twin) == before


@pytest.fixture(scope="module")
def of_high_effort():
    return learned(rows(40 if config.DISABLE_JIT else 900), effort="high")


@pytest.mark.once
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda h, s, v: h.__setitem__("n_support", 301), "301 landmarks"),
        (lambda h, s, v: h.__setitem__("live", 2), "live of an expert is 2"),
        (lambda h, s, v: h.__setitem__("kernel", 1), "kernel of an expert"),
        (lambda h, s, v: s.__setitem__("size", 299), "where its work stands"),
        (lambda h, s, v: s.__setitem__("ridge", 0.0), "its ridge is 0"),
        (lambda h, s, v: v.window_targets.__setitem__(slice(None), 0.5), "targets that are no labels"),
    ],
)
def test_states_of_least_squares_that_compiled_code_could_not_trust_are_refused(of_high_effort, change, match):
    def corrupt(model):
        store = first_of(model, kinds.LANDMARKS)
        change(store.views.header[0], states(store, kinds.LANDMARKS)[1][0], store.views)

    refused(match, pickle.loads, corrupted(of_high_effort, corrupt))


@pytest.mark.once
@pytest.mark.parametrize("n", [50, pytest.param(800, marks=pytest.mark.skipif(config.DISABLE_JIT, reason="minutes"))])
def test_landmarks_follow_the_scale_until_the_normal_equations_are_of_them(n):
    model = learned(rows(n), effort="high")
    v, store = model._store.views, first_of(model, kinds.LANDMARKS).views
    size, used = store.header[0]["n_support"], 4
    before = store.vectors[:used, :size].copy()
    raw = before * v.spread[:used, None] + v.location[:used, None]
    v.first[:used], v.moments[:used, 1] = v.first[:used] * 3.0, v.moments[:used, 1] * 3.0 + 1.0
    v.moments[:used, 2] *= 9.0
    model._common["t"] = 1023
    model.learn_one(next(iter(rows(1)))[0], "ham")
    after = store.vectors[:used, :size]
    if n == 800:
        np.testing.assert_array_equal(after, before)
    else:
        again = after * v.spread[:used, None] + v.location[:used, None]
        np.testing.assert_allclose(again, raw, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.skipif(config.DISABLE_JIT, reason="minutes")
@pytest.mark.parametrize("effort", ["low", "normal", "high"])
def test_long_streams_leave_models_that_can_be_kept(effort):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20_000, 4))
    y = X[:, 0] * X[:, 1] + 0.5 * X[:, 2] > 0.0
    X[5_000, 0] = 100.0
    model = SVMClassifier(effort, max_features=4, max_classes=2, seed=1)
    for i in range(0, len(X), 4_000):
        model.learn_many(X[i : i + 4_000], y[i : i + 4_000])
        assert snapshot(pickle.loads(pickle.dumps(model))) == snapshot(model)
    assert (model.predict_many(X[-2_000:]) == y[-2_000:]).mean() > 0.93


def test_a_prediction_leaves_nothing_where_the_additive_expert_begins_anew():
    twins = [SVMClassifier("low", max_features=20, max_classes=2, seed=0) for _ in range(2)]
    for i in range(30):
        for model in twins:
            model.learn_one({j: float((i * j) % 7) for j in range(16)}, i % 3 == 0)
    late = dict.fromkeys(range(16), 1.0) | {16: 0.0}  # a 17th feature: there is room for fewer functions of each
    twins[0].predict_one(late)
    for model in twins:
        model.learn_one(late, True)
    assert snapshot(twins[0]) == snapshot(twins[1])


def test_more_functions_than_there_is_room_for_are_not_computed():
    model = SVMClassifier("low", max_features=70, max_classes=2, seed=0)
    for i in range(5):
        model.learn_one({j: float((i * j) % 7) for j in range(70)}, i % 3 == 0)
    model._own["functions"] = 4
    loaded = pickle.loads(pickle.dumps(model))
    before = loaded._block[: len(loaded._store._saved)].copy()
    assert loaded.predict_one(dict.fromkeys(range(70), 1.0)) in (False, True)
    np.testing.assert_array_equal(loaded._block[: len(before)], before)


def test_parameters():
    refused("effort must be one of 'low', 'normal', 'high'", SVMClassifier, "most")
    refused("scaling must be one of 'auto', None", SVMClassifier, scaling="robust")
    assert SVMClassifier().nbytes < 3_000_000
    assert SVMClassifier(max_features=22).nbytes < SVMClassifier().nbytes


def test_reports(model):
    reports = model.experts
    assert len({(report.name, report.output) for report in reports}) == len(reports) == 22
    assert all(0.0 <= report.error <= 1.0 for report in reports)
    assert model.follows in ("stacks", "votes", "best")


@pytest.mark.skipif(config.DISABLE_JIT, reason="the command line is not tested once more without compiled code")
def test_inspect_shows_the_experts(model, tmp_path, capsys):
    save(model, tmp_path / "model")
    main(["inspect", str(tmp_path / "model")])
    shown = capsys.readouterr().out
    assert "follows" in shown
    assert all(report.name in shown for report in model.experts)
    main(["inspect", str(tmp_path / "model"), "--json"])
    assert json.loads(capsys.readouterr().out)["experts"] == [report._asdict() for report in model.experts]


# Bad input -------------------------------------------------------------------------------------------------------------------


@pytest.mark.once
def test_features_that_are_constant_for_long_or_come_late():
    def changed():
        for i, (x, y) in enumerate(rows()):
            late = {"f0": x.pop("f0")} if i >= N // 3 else {}
            constant = 7.0 + (x.pop("f1") if i >= N // 3 else 0.0)
            yield {**x, **late, "f1": constant, "f5": 3.25}, y

    assert accuracy(changed()) > accuracy(rows()) - (0.2 if config.DISABLE_JIT else 0.1)


@pytest.mark.once
def test_a_sensor_that_jumps():
    def jumping():
        for i, (x, y) in enumerate(rows()):
            yield {**x, "f3": x["f3"] + (1e6 if i % 50 == 20 or N // 3 < i < N // 2 else 0.0)}, y

    model = learned(jumping())
    assert np.isfinite(model._store.views.weights).all()
    assert accuracy(jumping()) > accuracy(rows()) - 0.15


@pytest.mark.once
def test_a_class_that_vanishes_and_returns():
    model = learned(rows(100))
    for x, _ in rows(300):
        model.learn_one(x, "ham")
    assert model.predict_one({"f0": 0.1}) == "ham"
    data = list(rows())
    for x, y in data:
        model.learn_one(x, y)
    assert np.mean([model.predict_one(x) == y for x, y in data[-100:]]) > 0.7


@pytest.mark.once
def test_one_class_for_long_before_the_second_comes():
    model = SVMClassifier(max_features=4, seed=0)
    X = TABLE[:N, :4] if config.DISABLE_JIT else np.tile(TABLE[:, :4], (50, 1))
    model.learn_many(X, ["ham"] * len(X))
    assert model.predict_proba_one({0: 1.0}) == {"ham": 1.0}
    right = []
    for *values, label in TABLE[:N]:
        x, y = dict(enumerate(values)), "spam" if label > 0 else "ham"
        right.append(model.predict_one(x) == y)
        model.learn_one(x, y)
    assert np.mean(right[N // 2 :]) > 0.65


@pytest.mark.once
def test_duplicates_only():
    model = SVMClassifier(max_features=4, seed=0)
    for i in range(N):
        model.learn_one({"a": 1.0, "b": -2.0}, i % 4 == 0)
    assert model.predict_one({"a": 1.0, "b": -2.0}) is False
    assert model.predict_proba_one({"a": 1.0, "b": -2.0})[True] == pytest.approx(0.25, abs=0.12)
    assert all(store[0].n_support <= 300 for store in model._store.stores if store and hasattr(store[0], "n_support"))


@pytest.mark.once
def test_weights_of_rows():
    model, zero = learned(rows(60)), learned(rows(60))
    zero.learn_one({"f0": 1.0, "f9": 2.0}, "eggs", w=0.0)
    assert snapshot(zero) == snapshot(model)
    for _ in range(2):  # the stacks take no single row for proof that the experts were wrong
        model.learn_one({"f0": 1.0}, "ham", w=1e9)
    assert model.predict_one({"f0": 1.0}) == "ham"
    assert all(np.isfinite(report.weight) for report in model.experts)


@pytest.mark.once
def test_more_features_than_the_experts_of_second_order_take():
    model = SVMClassifier(max_features=80, seed=0)
    rng = np.random.default_rng(0)
    for _ in range(150 if not config.DISABLE_JIT else 30):
        x = dict(enumerate(rng.normal(size=70).tolist()))
        model.learn_one(x, x[69] + x[0] > 0.0)
    assert model._store.views.newton_weights.shape[-1] == 65
    assert model._store.views.newton_weights[0, 0, 64] != 0.0


@pytest.mark.once
def test_ahead_of_its_experts_on_a_stream_of_river():
    data = list(datasets.Phishing())[: 150 if config.DISABLE_JIT else None]
    assert accuracy(data, max_features=9) > 0.85


def test_first_weights_count_all_experts_alike():
    model = SVMClassifier(max_features=2)
    weights = model._store.views.weights
    assert not weights[:, :2].any()
    np.testing.assert_allclose(weights[:, 2:].sum(axis=1), 2.0)
    for inverse, ridge in zip(model._store.views.inverses, stack.RIDGES, strict=True):
        np.testing.assert_array_equal(inverse, np.eye(weights.shape[1]) / ridge)
    assert model._store.views.newton_inverses[0, 0, 0] == 1.0 / second_order.NEWTON_RIDGE
    assert newton.ROWS_OF_INVERSE == 64


def test_an_output_of_one_expert_cannot_be_asked_for():
    model = SVMClassifier("low", max_features=2, seed=0)
    model.learn_one({"a": 1.0}, True)
    assert model.decision_function_one({"a": 1.0}, output="auto") > 0.0
    refused("output must be 'auto': SVMClassifier combines", model.decision_function_one, {"a": 1.0}, output="last")
