"""Both ensembles: batches, saved states and units of features, and robustness against disturbed streams."""

import copy
import functools
import math
import pickle

import numpy as np
import pytest
from numba import config

from lists import first
from naive_forest import NaiveForest
from naive_forest_of_numbers import NaiveForestOfNumbers, predicted_before
from naive_neighbours import NaiveMemory, NaiveTable
from problems import answers, dicts, functions_of, learned_by, names_of, place_of, sine_classes, sine_curve, snapshot
from refused import refused
from spoilt import spoil
from streamsvm import SVMClassifier, SVMRegressor
from streamsvm.core.kernels import POLY
from streamsvm.learners.experts import (
    AdditiveExpert,
    ForestExpert,
    KernelMachineExpert,
    LandmarkExpert,
    LastLabelExpert,
    LastTargetExpert,
    LinearExpert,
    NeighboursExpert,
    read_common,
)

N = 60 if config.DISABLE_JIT else 600
TABLES = {SVMClassifier: np.column_stack(sine_classes(2000, 4)), SVMRegressor: np.column_stack(sine_curve(1000, 3, 0.1))}
KINDS = [pytest.param(SVMClassifier, marks=pytest.mark.once), SVMRegressor]
EFFORTS = ["low", "normal", "high"]


def rows(kind, n=N, scale=1.0, shift=0.0):
    for *values, target in TABLES[kind][:n]:
        x = {f"f{j}": float(v) for j, v in enumerate(np.array(values) * scale + shift)}
        yield x, target if kind is SVMRegressor else ("ham", "spam")[int(target > 0)]


def made(kind, **parameters):
    return kind(**{"effort": "normal" if kind is SVMClassifier else "low", "max_features": 6, "seed": 3, **parameters})


def learned(kind, data, **parameters):
    model = made(kind, **parameters)
    learned_by(model, data)
    return model


def losses(kind, data, **parameters):
    """Prequential: labels that are wrong, or errors of numbers."""
    data = list(data)
    said, wanted = answers(made(kind, **parameters), data), [y for _, y in data]
    if kind is SVMClassifier:
        return np.array([answer != y for answer, y in zip(said, wanted, strict=True)], float)
    assert np.isfinite(said).all()
    return np.abs(np.subtract(said, wanted))


def loss(kind, data, **parameters):
    """Over the second half."""
    values = losses(kind, data, **parameters)
    return float(values[len(values) // 2 :].mean())


@functools.cache
def plain(kind):
    return loss(kind, rows(kind))


@functools.cache
def whole(kind, effort=None):
    """A model that has learned; it is not changed."""
    n = N if effort is None else 40 if config.DISABLE_JIT else 900
    return learned(kind, rows(kind, n), **({} if effort is None else {"effort": effort}))


@pytest.mark.thorough
@pytest.mark.skipif(config.DISABLE_JIT, reason="minutes")
@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("kind", KINDS)
def test_models_can_be_saved_after_long_streams(kind, effort):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(10_000, 4))
    y = X[:, 0] * X[:, 1] + 0.5 * X[:, 2]
    y = y > 0.0 if kind is SVMClassifier else y
    X[2_500, 0] = 100.0
    model = kind(effort, max_features=4, seed=1, **({"max_classes": 2} if kind is SVMClassifier else {}))
    for i in range(0, len(X), 2_500):
        model.learn_many(X[i : i + 2_500], y[i : i + 2_500])
        assert snapshot(pickle.loads(pickle.dumps(model))) == snapshot(model)
    answers = np.array(model.predict_many(X[-2_000:]))
    if kind is SVMClassifier:
        assert (answers == y[-2_000:]).mean() > 0.93
    else:
        assert np.abs(answers - y[-2_000:]).mean() < 0.1 or effort == "low"


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_and_reports_of_ensembles(kind):
    refused("effort must be one of 'low', 'normal', 'high'", kind, "most")
    refused("scaling must be one of 'auto', None", kind, scaling="robust")
    model = whole(kind)
    reports = model.experts
    assert len({(report.name, report.output) for report in reports}) == len(reports) >= 19 * (kind is SVMClassifier)
    largest = 1.0 if kind is SVMClassifier else 20.0 * np.std(TABLES[kind][:N, -1])
    assert all(0.0 <= report.error <= largest for report in reports)
    assert model.active_combiner in ("stacks", "votes", "best")
    assert kind().nbytes < {SVMClassifier: 450_000, SVMRegressor: 3_000_000}[kind]
    assert kind("low").nbytes < kind().nbytes < kind("high").nbytes


def late(i, x):
    """One feature comes late, one is constant until then, and one always."""
    if i >= N // 3:
        return {**x, "f1": 7.0 + x["f1"], "f5": 3.25}
    return {name: value for name, value in x.items() if name != "f2"} | {"f1": 7.0, "f5": 3.25}


def jumping(i, x):
    """A sensor that jumps."""
    return {**x, "f2": x["f2"] + (1e6 if i % 50 == 20 or N // 3 < i < N // 2 else 0.0)}


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS)
def test_disturbed_streams_cost_little_accuracy(kind):
    scale, shift = np.array([1e-3, 1e3, 7.0, 0.02]), np.array([5.0, -3e3, 100.0, 0.0])
    d, labels = TABLES[kind].shape[1] - 1, kind is SVMClassifier
    moved = loss(kind, rows(kind, scale=scale[:d], shift=shift[:d]))
    assert moved == pytest.approx(plain(kind), **({"abs": 0.02} if labels else {"rel": 0.05}))
    lost = plain(kind) + (0.2 if config.DISABLE_JIT else 0.1) if labels else 1.5 * plain(kind) + 0.1
    assert loss(kind, [(late(i, x), y) for i, (x, y) in enumerate(rows(kind))]) < lost
    data = [(jumping(i, x), y) for i, (x, y) in enumerate(rows(kind))]
    assert np.isfinite(learned(kind, data)._store.views.weights).all()
    assert loss(kind, data) < (plain(kind) + 0.15 if labels else 1.5 * np.std(TABLES[kind][:N, -1]))


@pytest.mark.parametrize("kind", KINDS)
def test_streams_of_duplicates(kind):
    model, x = made(kind), {"a": 1.0, "b": -2.0}
    for i in range(N):
        model.learn_one(x, i % 4 == 0 if kind is SVMClassifier else float(i % 2))
    if kind is SVMClassifier:
        assert model.predict_one(x) is False
        assert model.predict_proba_one(x)[True] == pytest.approx(0.25, abs=0.12)
        assert all(store[0].n_support <= 300 for store in model._store.stores if store and hasattr(store[0], "n_support"))
    else:
        assert model.predict_one(x) == pytest.approx(0.5, abs=0.6)


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS)
def test_row_weights_of_ensembles(kind):
    model, zero = (learned(kind, rows(kind, 60)) for _ in range(2))
    zero.learn_one({"f0": 1.0, "f9": 2.0}, "eggs" if kind is SVMClassifier else 3.0, w=0.0)
    assert snapshot(zero) == snapshot(model)
    probe = {"f0": 1.0, "f1": 0.5}
    if kind is SVMRegressor:
        light, heavy, before = copy.deepcopy(model), copy.deepcopy(model), model.predict_one(probe)
        light.learn_one(probe, before + 2.0, w=1e-3)
        heavy.learn_one(probe, before + 2.0, w=1e3)
        assert abs(light.predict_one(probe) - before) < abs(heavy.predict_one(probe) - before)
    for _ in range(2):  # the stacks take no single row for proof that the experts were wrong
        model.learn_one(probe, "ham" if kind is SVMClassifier else 0.0, w=1e9)
    assert model.predict_one(probe) == "ham" if kind is SVMClassifier else math.isfinite(model.predict_one(probe))
    assert all(np.isfinite(report.weight) for report in model.experts)


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS)
def test_more_features_than_experts_of_second_order_use(kind):
    model = made(kind, max_features=80)
    rng = np.random.default_rng(0)
    for _ in range(30 if config.DISABLE_JIT else 150):
        x = dict(enumerate(rng.normal(size=70).tolist()))
        model.learn_one(x, x[69] + x[0] > 0.0 if kind is SVMClassifier else x[69] + x[0])
    assert model._store.views.newton_weights.shape[-1] == 65
    assert model._store.views.newton_weights[0, 0, 64] != 0.0
    assert model.predict_one(x) in (True, False) if kind is SVMClassifier else math.isfinite(model.predict_one(x))


# States that are saved --------------------------------------------------------------------------------------------------------


def first_of(model, kind):
    """The first store of the first expert of a kind."""
    return next(
        stores[0] for expert, stores in zip(model._expert_specs, model._store.stores, strict=True) if isinstance(expert, kind)
    )


def remembered(model):
    """The rows that a model remembers."""
    return place_of(model, NeighboursExpert)[0][0].views


def of_expert(field, value, number=0):
    """Spoil the store of an expert: its header, or its first number."""

    def change(model):
        store = model._store.stores[number][0]
        if field == "t":
            store.block[128:136].view(np.int64)[0] = value
        else:
            store.views.header[field] = value

    return change


def of_memory(field, value):
    return lambda model: spoil(remembered(model), field, value)


#: Corrupt states by error message: fields of the state with invalid values, or functions that corrupt a model.
OF_BOTH = {"its choice is 3": {"choice": [3]}, "its scaling is 0": {"scaling": [0]}, "2 outputs": {"n_outputs": [2]}}
OF_LABELS = OF_BOTH | {
    "the index of its last label is 7": {"last": [7]},
    "transitions hold": {("transitions", (1, 0)): [-1.0, np.nan]},
    "weights hold nan": {("weights", (0, 0)): [np.nan]},
    "not positive definite": {("curvatures", (0, 0, 0)): [-1.0], ("newton_inverses", (0, 1, 2)): [1e9]},
    "drifts hold numbers of experts without": {("drifts", (2, 1)): [1.5], ("drifts", (0, 0)): [1.0]},
    "targets that are not labels": [of_memory(("targets", 0), target) for target in (2.0, 0.5, -1.0)],
    "an expert has 3 features": [lambda m: setattr(first_of(m, LinearExpert), "used", 3)],
    "400 support vectors": [of_expert("n_support", 400)],
    "4 outputs": [of_expert("n_outputs", 4)],
    "its t is -1": [of_expert("t", -1)],
    "weights or biases": [lambda m: first_of(m, LinearExpert).views.weights.__setitem__((0, 0), np.inf)],
}
OF_NUMBERS = OF_BOTH | {
    "its last_target is nan": {"last_target": [np.nan]},
    "negative number of values or sum of": {("target_moments", (0, 2)): [-1.0]},
    "too many values": {("target_moments", (0, 0)): [1e30]},
    "target_first hold nan": {("target_first", (0, 0)): [np.nan]},
    "errors hold 30": {("errors", 3): [30.0]},
    "damping hold 0.99": {("damping", (1, 0)): [0.99]},
    "damping hold numbers beyond": {("damping", (0, 3)): [0.5]},
    "not positive definite": {("inverses", (1, 0, 0)): [-1.0]},
    "kernel of an expert is 1": [of_expert("kernel", 1, -1)],
    "its t is -1": [of_expert("t", -1, -1)],
}


def of_landmarks(change):
    def changed(model):
        store = first_of(model, LandmarkExpert)
        spoil(store.views, *change, LandmarkExpert("landmarks", {}).get_states(store)[1])

    return changed


OF_LEAST_SQUARES = {
    "301 landmarks": [of_landmarks(("n_support", 301))],
    "2 outputs": [of_landmarks(("n_outputs", 2))],
    "kernel of an expert": [of_landmarks(("kernel", 1))],
    "its stored rows do not fit": [of_landmarks(("n_stored", 10**6))],
    "its ridge is 0": [of_landmarks(("ridge", 0.0))],
    "targets that are not labels": [of_landmarks((("window_targets", ...), 0.5))],
}


@pytest.mark.once
@pytest.mark.parametrize(
    ("kind", "effort", "wrong"),
    [(SVMClassifier, None, OF_LABELS), (SVMRegressor, None, OF_NUMBERS), (SVMClassifier, "high", OF_LEAST_SQUARES)],
)
def test_corrupt_states_are_refused(kind, effort, wrong):
    saved = pickle.dumps(whole(kind, effort))
    for match, fields in wrong.items():
        for change in fields if isinstance(fields, list) else [(field, value) for field in fields for value in fields[field]]:
            model = pickle.loads(saved)
            change(model) if callable(change) else spoil(model._store.views, *change, model._rule_record)
            refused(match, pickle.loads, pickle.dumps(model))


def test_an_expert_with_fewer_outputs_is_refused():
    model = made(SVMClassifier)
    model._store.stores[0][0].n_outputs = 1
    refused("n_outputs of an expert is 1, not 2", pickle.loads, pickle.dumps(model))


def test_models_with_unrecorded_experts_are_refused():
    model = made(SVMClassifier)
    state = model.__getstate__()
    last = len(model._store.stores[-2][0].snapshot()) + 8  # that of the forest, before the last label, which has none
    for stop, message in (
        (last, "stores of 7 experts, not 8.*That version can continue to learn; streamsvm.edge.load predicts"),
        (1, "is cut off"),
    ):
        refused(message, SVMClassifier.__new__(SVMClassifier).__setstate__, {**state, "store": state["store"][:-stop]})


@pytest.mark.once
@pytest.mark.parametrize("kind", [SVMClassifier, SVMRegressor])
def test_a_refused_snapshot_does_not_change_the_model(kind):
    twin = copy.deepcopy(whole(kind))
    good, before = twin._store.snapshot(), snapshot(twin)
    wrong_snapshot = made(SVMRegressor if kind is SVMClassifier else SVMClassifier)._store.snapshot()
    for bad in (good[:-8], good + b"\0", b"", good[:64] + b"\xff" * 8 + good[72:], wrong_snapshot):
        refused("snapshot", twin._store.restore, bad)
        assert snapshot(twin) == before


# Experts ----------------------------------------------------------------------------------------------------------------------


def scaled(model, x):
    """A row as experts take it."""
    row = np.array([x.get(name, 0.0) for name in model.feature_names])
    if model.scaling is None:
        return row.astype(np.float32).astype(float)
    v, n = model._store.views, len(row)
    varies = v.spread[:n] > 0.0
    z = np.where(varies, (row - v.location[:n]) / np.where(varies, v.spread[:n], 1.0), 0.0)
    return np.clip(z, -8.0, 8.0).astype(np.float32).astype(float)


def kernels(store, z):
    h, S = store.views.header[0], store.vectors.astype(float)
    if h["kernel"] == POLY:
        return (h["gamma"] * S @ z + h["coef0"]) ** h["degree"]
    return np.exp(-h["gamma"] * ((S - z) ** 2).sum(axis=1))


def iterates(common, u, v, biases, values):
    """The last iterate and the average one, of coefficients u and v."""
    last, average = common["scale"] * u, common["average_v"] * v + common["average_u"] * u
    return [last @ values + biases[0], average @ values + biases[1]]


def said_by(model, number, x):
    """The prediction of an expert for a row, [outputs, its inputs to the stacks]; a residual for boosting experts."""
    expert, stores, z, live = model._expert_specs[number], model._store.stores[number], scaled(model, x), model._n_outputs
    v, half = model._store.views, 1.0 if model._n_outputs == 1 else 0.5  # one against the rest
    labelled = isinstance(model, SVMClassifier)
    names = names_of(model) if labelled else None
    if isinstance(expert, KernelMachineExpert):
        damped = z * (1.0 - v.damping[0, : len(z)])
        store, common, values = stores[0], read_common(stores[0]), kernels(stores[0], damped)
        rows, biases, n = store.views.coefficients, store.views.biases, store.n_support
        pairs = [(2 * k, 2 * k + 1) for k in range(live)]
        return np.array([iterates(common, rows[a, :n], rows[b, :n], biases[[a, b]], values) for a, b in pairs])
    if isinstance(expert, LinearExpert):
        rows = [(read_common(s), *s.views.weights[:, : len(z)], s.views.biases, z) for s in list(stores)[:live]]
        return half * np.array([iterates(*row) for row in rows])
    if isinstance(expert, LandmarkExpert):
        store, regressors = stores[0].views, np.array([1.0, *kernels(stores[0], z)])
        w, corrections = (numbers[:live, : len(regressors)] @ regressors for numbers in (store.weights, store.corrections))
        return half * np.column_stack([w + corrections, w])
    if isinstance(expert, NeighboursExpert):
        memory, spread = NaiveMemory.of(stores[0], names), v.spread[: len(z)]
        memory.damping = v.damping[0]
        said = memory.say(z, spread if model.scaling is None else (spread > 0.0).astype(float), names or ())
        return said[-live:, None]
    if isinstance(expert, ForestExpert):
        plain_row = [x.get(name, 0.0) for name in model.feature_names]
        if labelled:
            return NaiveForest.of(stores[0]).say(plain_row, range(len(names)))
        last, base = float(model._rule_record[0]["last_target"]), predicted_before(v, v.experts["first_input"][number])
        return np.array([NaiveForestOfNumbers.of(stores[0]).say(plain_row, last, base)])
    if isinstance(expert, LastLabelExpert):
        table, own = NaiveTable(), model._rule_record[0]
        table.counts = dict(zip(names, v.counts.tolist() if live > 1 else [own["rows"] - v.counts[0], v.counts[0]], strict=True))
        table.follows = {a: dict(zip(names, row, strict=False)) for a, row in zip(names, v.transitions.tolist(), strict=False)}
        table.last = names[own["last"]]
        return table.say(names)
    if isinstance(expert, LastTargetExpert):
        return np.array([[model._rule_record[0]["last_target"]]])
    functions = model._rule_record[0]["functions"] if isinstance(expert, AdditiveExpert) else 1
    row = functions_of(dict(enumerate(z)), functions)
    return (v.newton_weights[v.experts["number"][number], :live, : len(row)] @ row)[:, None]


def _turning(n, labels):
    """Rows with different units and one late feature, and labels that depend on the previous label, or targets."""
    rng = np.random.default_rng(labels)
    X = rng.normal(size=(n, 3))
    y = X[:, 0] * X[:, 1] + 0.5 * X[:, 2]
    for t, (row, value) in enumerate(zip(X.tolist(), y.tolist(), strict=True)):
        x = {"a": 5.0 + row[0], "b": 100.0 * row[1], **({"c": 0.1 * row[2]} if t > n // 4 else {})}
        yield x, (t + int(3.0 * abs(value))) % labels if labels else value


@pytest.mark.parametrize(
    ("effort", "labels", "scaling"),
    [
        *(("low", 2, "auto"), ("low", 0, None), ("normal", 2, "auto"), ("normal", 3, "auto"), ("normal", 0, "auto")),
        *(pytest.param("high", *arguments, marks=pytest.mark.once) for arguments in ((12, "auto"), (2, None), (0, "auto"))),
    ],
)
def test_inputs_of_the_stacks_are_the_predictions_of_separate_experts(effort, labels, scaling):
    kind = SVMClassifier if labels else SVMRegressor
    model, data = made(kind, effort=effort, scaling=scaling), list(_turning(45 if config.DISABLE_JIT else 400, labels))
    learned_by(model, data[:-5])
    v, base, first = model._store.views, place_of(model, AdditiveExpert)[1], 0
    assert model._n_outputs == (labels if labels > 2 else 1)
    for x, y in data[-5:]:
        model.predict_one(x)
        for number, expert in enumerate(model._expert_specs):
            said, first = said_by(model, number, x), v.experts["first_input"][number]
            if v.experts["base_input"][number]:
                said = said + np.clip(v.inputs[0, base], -10.0, 10.0)
            actual, expected = (
                v.inputs[: model._n_outputs, first : first + said.shape[1]],
                said if labels else said.clip(-10.0, 10.0),
            )
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * (1.0 + np.abs(said).max()), err_msg=expert.name)
            assert np.abs(said).max() > 0.0
        assert first + said.shape[1] == v.inputs.shape[1]
        assert (v.inputs[:, 0] == float(model._n_outputs == 1)).all()
        model.learn_one(x, y)
    assert v.damping.any() == (effort != "low" and scaling == "auto" and not config.DISABLE_JIT)


@pytest.mark.parametrize("scaling", first(1, ["auto", None], pytest.mark.once))
@pytest.mark.parametrize("kind", [SVMClassifier, SVMRegressor])
def test_irrelevant_features_are_damped(kind, scaling):
    """A twin finds what each counts from the relevance, and gamma and the norms from that; vectors have moved with it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80 if config.DISABLE_JIT else 800, 4))
    model, numbers = made(kind, effort="normal", scaling=scaling), kind is SVMRegressor
    targets = np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1]
    learned_by(model, zip(dicts(X[:8]), (targets[:8] if numbers else targets[:8] > 0.0).tolist(), strict=True))
    v, sought = model._store.views, np.zeros(4)
    for t, (x, target) in enumerate(zip(dicts(X[8:]), targets[8:].tolist(), strict=True), 9):
        memory = remembered(model)
        relevance, n_informative, in_use = memory.relevance[:4].copy(), memory.header["n_informative"][0], v.damping[0, :4].copy()
        model.learn_one(x, target if numbers else target > 0.0)
        if scaling is None or t % 16 != 0 or n_informative <= 50:
            assert v.damping[:, :4].tolist() == [in_use.tolist(), sought.tolist()]
            continue
        most, full, none = (0.8, 1.0, 0.0) if numbers else (0.98, 0.1, -0.1)
        largest = max(relevance.max(), 0.0)
        to = most * np.clip((full * largest - relevance) / (full - none), 0.0, largest) / max(largest, 0.01)
        sought = np.where((to > sought) & (not numbers), sought + 0.5 * 16.0 / t * (to - sought), to)
        np.testing.assert_allclose(v.damping[1, :4], sought, rtol=1e-9, atol=1e-12)
        moved = np.abs(sought - in_use).max() > 0.05
        np.testing.assert_allclose(v.damping[0, :4], sought if moved else in_use, rtol=1e-9, atol=1e-12)
        sought = v.damping[1, :4].copy()
    damping = v.damping[0, :4]
    if scaling is None:
        return
    assert damping[0] < 0.05
    assert damping[2:].min() > 0.6 or config.DISABLE_JIT
    for expert, stores in zip(model._expert_specs, model._store.stores, strict=True):
        if isinstance(expert, KernelMachineExpert):
            h, vectors, norms = stores[0].views.header[0], stores[0].vectors, stores[0].views.norms[: stores[0].n_support]
            assert h["gamma"] == pytest.approx(expert.width / np.square(1.0 - damping).sum())
            np.testing.assert_allclose(norms, np.square(vectors).sum(1), rtol=1e-5)
            assert 0.99999 < h["largest_norm"] / norms.max() < 1.5  # it may be that of one that was merged since
            np.testing.assert_allclose(vectors.std(0), 1.0 - damping, rtol=0.4)


@pytest.mark.once
@pytest.mark.parametrize("kind", [SVMClassifier, SVMRegressor])
def test_damping_ends_with_more_features_than_the_memory_stores(kind):
    """Damping is reset, because relevance stays constant with more features than the memory stores."""
    rng, model = np.random.default_rng(0), made(kind, effort="normal", max_features=600)
    X = rng.normal(size=(416, 4))
    targets = np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1]
    data = list(zip(dicts(X), (targets if kind is SVMRegressor else targets > 0.0).tolist(), strict=True))
    learned_by(model, data[:399])
    assert model._store.views.damping.max() > 0.3
    data[399][0].update({f"more {number}": 1.0 for number in range(512)})
    learned_by(model, data[399:])
    assert not model._store.views.damping.any()


@pytest.mark.parametrize("scaling", ["auto", None])
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_before_a_new_feature_do_not_change_the_model(kind, scaling):
    asked, silent = (kind("low", scaling=scaling, seed=0) for _ in range(2))
    for i, (x, y) in enumerate(rows(kind, 60)):
        if i == 49:
            asked.predict_one(x)
            x["new"] = 0.0
        asked.learn_one(x, y), silent.learn_one(x, y)
    assert asked._store.snapshot() == silent._store.snapshot()
