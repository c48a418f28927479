"""What each expert of a committee says of a row, computed apart from what its own memory holds, with numpy alone."""

import numpy as np

from naive_forest import NaiveForest
from naive_forest_of_numbers import NaiveForestOfNumbers, predicted_before
from naive_neighbours import NaiveMemory, NaiveTable
from problems import functions_of, names_of
from streamsvm import SVMClassifier
from streamsvm.core.kernels import POLY
from streamsvm.learners.experts import (
    Additive,
    BudgetedMachine,
    Forest,
    Landmarks,
    LastLabel,
    LastTarget,
    Linear,
    Neighbours,
    common_of,
)


def scaled(model, x):
    """A row as experts take it."""
    given = np.array([x.get(name, 0.0) for name in model.feature_names])
    if model.scaling is None:
        return given.astype(np.float32).astype(float)
    v, n = model._store.views, len(given)
    varies = v.spread[:n] > 0.0
    z = np.where(varies, (given - v.location[:n]) / np.where(varies, v.spread[:n], 1.0), 0.0)
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
    """What expert ``number`` says of a row, [outputs, its inputs to the stacks]; for regression without what it corrects."""
    expert, stores, z, live = model._team[number], model._store.stores[number], scaled(model, x), model._outputs
    v, half = model._store.views, 1.0 if model._outputs == 1 else 0.5  # one against the rest
    labelled = isinstance(model, SVMClassifier)
    names = names_of(model) if labelled else None
    if isinstance(expert, BudgetedMachine):
        damped = z * (1.0 - v.damping[0, : len(z)])
        store, common, values = stores[0], common_of(stores[0]), kernels(stores[0], damped)
        rows, biases, n = store.views.coefficients, store.views.biases, store.n_support
        pairs = [(2 * k, 2 * k + 1) for k in range(live)]
        return np.array([iterates(common, rows[a, :n], rows[b, :n], biases[[a, b]], values) for a, b in pairs])
    if isinstance(expert, Linear):
        rows = [(common_of(s), *s.views.weights[:, : len(z)], s.views.biases, z) for s in list(stores)[:live]]
        return half * np.array([iterates(*row) for row in rows])
    if isinstance(expert, Landmarks):
        store, regressors = stores[0].views, np.array([1.0, *kernels(stores[0], z)])
        w, corrections = (numbers[:live, : len(regressors)] @ regressors for numbers in (store.weights, store.corrections))
        return half * np.column_stack([w + corrections, w])
    if isinstance(expert, Neighbours):
        memory, spread = NaiveMemory.of(stores[0], names), v.spread[: len(z)]
        memory.damping = v.damping[0]
        said = memory.say(z, spread if model.scaling is None else (spread > 0.0).astype(float), names or ())
        return said[-live:, None]
    if isinstance(expert, Forest):
        given = [x.get(name, 0.0) for name in model.feature_names]
        if labelled:
            return NaiveForest.of(stores[0]).say(given, range(len(names)))
        last, base = float(model._own[0]["last_target"]), predicted_before(v, v.experts["first_input"][number])
        return np.array([NaiveForestOfNumbers.of(stores[0]).say(given, last, base)])
    if isinstance(expert, LastLabel):
        table, own = NaiveTable(), model._own[0]
        table.counts = dict(zip(names, v.counts.tolist() if live > 1 else [own["rows"] - v.counts[0], v.counts[0]], strict=True))
        table.follows = {a: dict(zip(names, row, strict=False)) for a, row in zip(names, v.follows.tolist(), strict=False)}
        table.last = names[own["last"]]
        return table.say(names)
    if isinstance(expert, LastTarget):
        return np.array([[model._own[0]["last_target"]]])
    functions = model._own[0]["functions"] if isinstance(expert, Additive) else 1
    row = functions_of(dict(enumerate(z)), functions)
    return (v.newton_weights[v.experts["number"][number], :live, : len(row)] @ row)[:, None]
