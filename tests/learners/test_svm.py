"""The ensemble for labels: its experts equal separate learners, its scale follows the stream, and it is robust."""

import json
import pickle

import numpy as np
import pytest
from numba import config

from naive import NaiveNewton
from problems import accuracy, dicts, functions_of, learned_by, sine_classes, snapshot
from refused import refused
from streamsvm import BSCAClassifier, SVMClassifier, save
from streamsvm.cli.main import main
from streamsvm.core.steps import ensemble, label_predictions, newton, second_order
from streamsvm.core.steps.iterates import LAST_ITERATE
from streamsvm.learners import KernelRLSClassifier, OnlineLinearSVC
from streamsvm.learners.experts import AdditiveExpert, KernelMachineExpert, LandmarkExpert, LinearExpert, SecondOrderExpert

N = 130 if config.DISABLE_JIT else 600
TABLE = np.column_stack(sine_classes(2000, 4))


def rows(n=N, scale=1.0, shift=0.0, labels=("ham", "spam")):
    for *values, label in TABLE[:n]:
        yield {f"f{j}": float(v) for j, v in enumerate(np.array(values) * scale + shift)}, labels[int(label > 0)]


def learned(data, **parameters):
    model = SVMClassifier(**{"max_features": 5, "seed": 3, **parameters})
    learned_by(model, data)
    return model


@pytest.fixture(scope="module")
def model():
    return learned(rows())


@pytest.mark.once
def test_experts_equal_separate_learners():
    model = SVMClassifier("high", scaling=None, max_features=4, max_classes=2, seed=3)
    team, peers = model._expert_specs, []
    for number, expert in enumerate(team):
        if isinstance(expert, KernelMachineExpert) and not expert.resets:
            options = {"C": expert.state["C"], "gamma": 1.0, "scaling": None, "max_classes": 2}
            peer = BSCAClassifier(budget=expert.budget, seed=3 + number, **options)
            peer._rule_record["one_pass"] = 0  # the stack sees to noise: the experts differ in C
            peers.append((number, peer))
        elif isinstance(expert, LinearExpert):
            peers.append((number, OnlineLinearSVC(C=expert.state["C"])))
        elif isinstance(expert, LandmarkExpert):
            factor = expert.state["forgetting_factor"]
            peers.append((number, KernelRLSClassifier(expert.budget, gamma=1.0, forgetting_factor=factor, max_classes=2)))
    assert len(peers) == 7
    for x, y in rows(60 if config.DISABLE_JIT else 250):
        model.learn_one(x, y)
        for number, peer in peers:
            if not isinstance(peer, OnlineLinearSVC):
                peer._store.views.header["gamma"] = model._store.stores[number][0].views.header["gamma"]
                peer._store.views.cache["valid"] = 0
            peer.learn_one(x, y)
    probe = next(iter(rows(1)))[0]
    model.predict_one(probe)
    v = model._store.views
    for number, peer in peers:
        first = v.experts["first_input"][number]
        assert v.inputs[0, first] == pytest.approx(peer.decision_function_one(probe, output="last"), rel=1e-6)
        assert v.inputs[0, first + 1] == pytest.approx(peer.decision_function_one(probe, output="average"), rel=1e-6)
        if not isinstance(peer, OnlineLinearSVC):
            assert model._store.stores[number][0].n_support == peer.n_support


@pytest.mark.once
@pytest.mark.parametrize(("kind", "functions", "memory"), [(SecondOrderExpert, 1, 0.9999), (AdditiveExpert, 4, 0.999)])
def test_experts_of_second_order_equal_their_twin(kind, functions, memory):
    model = SVMClassifier(scaling=None, max_features=4, max_classes=2, seed=3)
    number = next(i for i, expert in enumerate(model._expert_specs) if type(expert) is kind)
    n = 1 + 4 * functions
    twin = NaiveNewton(n, memory, 1.0, np.zeros(n))
    for t, (x, y) in enumerate(rows(100, labels=(False, True)), 1):
        z = functions_of(x, functions)
        if t > 1:
            model.predict_one(x)
            actual = model._store.views.inputs[0, model._store.views.experts["first_input"][number]]
            assert actual == pytest.approx(twin.weights @ z, rel=1e-6, abs=1e-9)
        p = 1.0 / (1.0 + np.exp(-twin.weights @ z))
        model.learn_one(x, y)
        turn = (t + 16 * model._store.views.experts["number"][number]) % 64
        twin.learn(z, y - p, max(p * (1.0 - p), 0.02), turn == 0, turn == 32)


@pytest.mark.once
def test_the_additive_expert_resets_when_features_get_fewer_functions():
    model = SVMClassifier(max_features=40, seed=0)
    number = next(i for i, expert in enumerate(model._expert_specs) if isinstance(expert, AdditiveExpert))
    newton_number = model._store.views.experts["number"][number]
    rng = np.random.default_rng(0)
    for n, functions in ((16, 4), (17, 2), (32, 2), (33, 1)):
        for _ in range(20):
            x = dict(enumerate(rng.normal(size=n).tolist()))
            model.learn_one(x, x[0] > 0.0)
        assert model._rule_record[0]["functions"] == functions
        assert np.flatnonzero(model._store.views.newton_weights[newton_number, 0])[-1] == n * functions


@pytest.mark.once
def test_a_third_class_does_not_change_decisions_between_the_first_two():
    data = list(rows(90))
    model = learned(data)
    model._store.views.weights[:, 0] = 0.0  # the constant says nothing between several classes
    for matrix in (*model._store.views.curvatures, *model._store.views.inverses):
        matrix[0, 1:] = matrix[1:, 0] = 0.0
    before = [model.decision_function_one(x) for x, _ in data[:20]]
    model._labels.encode("eggs")
    model._resize(3)
    for (x, _), f in zip(data[:20], before, strict=True):
        model._features.fill_row(model._row, x, False)
        model._connect_experts()
        ensemble.compute_output(model._block, LAST_ITERATE)
        scores = dict(zip(model.labels, model._store.views.scores, strict=False))
        if abs(f) < 20.0 and model.active_combiner == "stacks":
            prior, n_spam = 2.0 / (90 + 3.0), sum(y == "spam" for _, y in data)
            p = (1.0 / (1.0 + np.exp(-f)) - (n_spam + 1) / 92 * prior) / (1.0 - prior)
            assert scores["spam"] - scores["ham"] == pytest.approx(np.log(p / (1.0 - p)), rel=1e-4, abs=1e-6)


@pytest.mark.once
@pytest.mark.parametrize("labels", [(False, True), ("ham", "spam"), ("ham", "spam", "eggs")], ids=str)
def test_first_probabilities_are_class_frequencies(labels):
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
            for of, count in counts.items():  # the stack's probability, between 0 and 1, has the remaining share
                least = share * (count + 1) / (n + len(labels))
                assert 0.8 * least <= p[of] <= max(least + 1.0 - share, 0.5) + 1e-9
        model.learn_one(x, label)
        counts[label] += 1
    v = model._store.views
    assert model._rule_record[0]["rows"] == 30
    if len(labels) == 2:
        assert v.counts[0] == counts[model.positive_label]
    else:
        assert v.counts[:3].tolist() == list(counts.values())


def first_of(model, kind, width=1.0):
    """The first store of the first expert of a kind and a width."""
    return next(
        stores[0]
        for expert, stores in zip(model._expert_specs, model._store.stores, strict=True)
        if isinstance(expert, kind) and expert.width == width
    )


@pytest.mark.once
def test_gamma_is_updated_without_scaling():
    model = learned(rows(200, scale=10.0), scaling=None)
    first = first_of(model, KernelMachineExpert).views.header[0]["gamma"]
    assert first == pytest.approx(1.0 / (100.0 * TABLE[:200, :4].var(axis=0).sum()), rel=0.12)
    learned_by(model, rows(200, scale=0.1))
    assert first_of(model, KernelMachineExpert).views.header[0]["gamma"] != first


@pytest.mark.once
def test_stored_vectors_are_rescaled():
    # Distances of stored rows use the current scale and damping, not those of the time when the rows were stored.
    model = learned(rows(100))
    v = model._store.views
    store = model._store.stores[0][0].views
    n, used = store.header[0]["n_support"], 4

    def given():
        return store.vectors[:used, :n] / (1.0 - v.damping[0, :used, None]) * v.spread[:used, None] + v.location[:used, None]

    raw = given()
    v.first[:used], v.moments[:used, 1] = v.first[:used] * 3.0, v.moments[:used, 1] * 3.0 + 1.0
    v.moments[:used, 2] *= 9.0
    model._common["t"] = 111
    model.learn_one(next(iter(rows(1)))[0], "ham")
    np.testing.assert_allclose(given()[:, :-1], raw[:, :-1], atol=1e-4)


@pytest.mark.once
@pytest.mark.parametrize("n", [50, pytest.param(800, marks=pytest.mark.skipif(config.DISABLE_JIT, reason="minutes"))])
def test_landmarks_are_rescaled_until_the_normal_equations_start(n):
    model = learned(rows(n), effort="high")
    v, store = model._store.views, first_of(model, LandmarkExpert).views
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


def test_a_prediction_does_not_change_a_resetting_additive_expert():
    twins = [SVMClassifier("low", max_features=20, max_classes=2, seed=0) for _ in range(2)]
    for i in range(30):
        for model in twins:
            model.learn_one({j: float((i * j) % 7) for j in range(16)}, i % 3 == 0)
    late = dict.fromkeys(range(16), 1.0) | {16: 0.0}  # a 17th feature: there is room for fewer functions of each
    twins[0].predict_one(late)
    for model in twins:
        model.learn_one(late, True)
    assert snapshot(twins[0]) == snapshot(twins[1])


def test_functions_beyond_the_memory_are_not_computed():
    model = SVMClassifier("low", max_features=70, max_classes=2, seed=0)
    for i in range(5):
        model.learn_one({j: float((i * j) % 7) for j in range(70)}, i % 3 == 0)
    model._rule_record["functions"] = 4
    loaded = pickle.loads(pickle.dumps(model))
    before = loaded._block[: len(loaded._store._saved)].copy()
    assert loaded.predict_one(dict.fromkeys(range(70), 1.0)) in (False, True)
    np.testing.assert_array_equal(loaded._block[: len(before)], before)


@pytest.mark.skipif(config.DISABLE_JIT, reason="the command line is not tested once more without compiled code")
def test_inspect_shows_the_experts(model, tmp_path, capsys):
    save(model, tmp_path / "model")
    main(["inspect", str(tmp_path / "model"), "--all"])
    shown = capsys.readouterr().out
    assert "follows" in shown
    assert all(report.name in shown for report in model.experts)
    main(["inspect", str(tmp_path / "model"), "--json"])
    assert json.loads(capsys.readouterr().out)["experts"] == [report._asdict() for report in model.experts]


# Bad input -------------------------------------------------------------------------------------------------------------------


@pytest.mark.once
def test_a_single_class_for_a_long_time():
    model = SVMClassifier(max_features=4, seed=0)
    X = TABLE[:N, :4] if config.DISABLE_JIT else np.tile(TABLE[:, :4], (8, 1))
    model.learn_many(X, ["ham"] * len(X))
    assert model.predict_proba_one({0: 1.0}) == {"ham": 1.0}
    rows = [(x, "spam" if label > 0 else "ham") for x, label in zip(dicts(TABLE[:N, :4]), TABLE[:N, 4], strict=True)]
    assert accuracy(model, rows, N // 2) > 0.65


def test_initial_weights_are_equal_for_all_experts():
    model = SVMClassifier(max_features=2)
    weights = model._store.views.weights
    assert not weights[:, :2].any()
    np.testing.assert_allclose(weights[:, 2:].sum(axis=1), 2.0)
    for inverse, ridge in zip(model._store.views.inverses, label_predictions.RIDGES, strict=True):
        np.testing.assert_array_equal(inverse, np.eye(weights.shape[1]) / ridge)
    assert model._store.views.newton_inverses[0, 0, 0] == 1.0 / second_order.NEWTON_RIDGE
    assert newton.ROWS_PER_INVERSE == 64


def test_only_the_output_auto_is_supported():
    model = SVMClassifier("low", max_features=2, seed=0)
    model.learn_one({"a": 1.0}, True)
    assert model.decision_function_one({"a": 1.0}, output="auto") > 0.0
    refused("output must be 'auto': SVMClassifier combines", model.decision_function_one, {"a": 1.0}, output="last")


@pytest.mark.once
def test_memory_per_label_is_as_documented():
    for features, two, base, per_label in (
        (2, 0.40e6, 0.42e6, 17.3e3),
        (16, 0.85e6, 0.98e6, 18.6e3),
        (256, 2.75e6, 2.75e6, 26.7e3),
    ):
        model, sizes = SVMClassifier(seed=0), {}
        for label in range(100):
            model.learn_one({f"{j}": float(label) for j in range(features)}, label)
            sizes[label + 1] = model.nbytes
        assert sizes[2] == pytest.approx(two, rel=0.02)
        assert [sizes[k] for k in (3, 10, 26, 100)] == pytest.approx([base + per_label * k for k in (3, 10, 26, 100)], rel=0.03)
    widest = SVMClassifier(seed=0)
    widest.learn_one({f"{j}": 1.0 for j in range(widest.max_features)}, "a")
    widest.learn_one({"0": 2.0}, "b")
    assert widest.nbytes == pytest.approx(6.2e6, rel=0.02)


def test_saving_between_new_labels_and_features_changes_no_byte():
    models = []
    for restarted in (False, True):
        model = SVMClassifier("low", seed=0)
        for i in range(30):
            model.learn_one({"a": i % 7 * 0.3, "b": i % 5 * 0.2, "c": i % 3}, i % 3)
        if restarted:
            model = pickle.loads(pickle.dumps(model))
        model.learn_one({"a": 1.0, "b": 2.0, "c": 1.0, "d": 1.0}, 1)
        models.append(model)
    assert pickle.dumps(models[0]) == pickle.dumps(models[1])
