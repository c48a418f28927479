"""Small synthetic problems, and helpers that train models and compare their states."""

import numpy as np
from numba import config

import naive_batch
from saved import dumps
from streamsvm.core.memory.block import STATE_BEGIN, view_record
from streamsvm.core.memory.ensemble import EnsembleStore, ExpertSpec
from streamsvm.core.steps import newton, stack, target_predictions
from streamsvm.core.steps.iterates import COMMON_STATE, EPSILON_INSENSITIVE

ROWS = 50 if config.DISABLE_JIT else 150
EPOCHS = 60 if config.DISABLE_JIT else 400
EXACT = {"relaxation": 1.0, "averaging": 0, "gamma": 0.8, "scaling": None, "seed": 0}


def blobs(classes=2, rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=rows)
    X = rng.normal(size=(rows, 2)) + 1.2 * np.column_stack([np.cos(2 * np.pi * y / classes), np.sin(2 * np.pi * y / classes)])
    return X.astype(np.float32), y


def sine_classes(n, d, noise=0.5):
    """Return rows and labels -1 and 1 with a curved boundary."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, np.where(np.sin(2.0 * X[:, 0]) + X[:, 1] + noise * rng.normal(size=n) > 0.0, 1, -1)


def sine_curve(n, d, noise):
    """Return rows and targets on a curve."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(n, d))
    return X, np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1] ** 2 + noise * rng.normal(size=n)


def waves(n):
    """Return rows and targets of a wavy function."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, size=(n, 2))
    return X, np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=n)


def gram(X, gamma=0.8):
    return naive_batch.kernel_matrix(X, X, gamma=gamma)


def snapshot(model):
    """Return the complete state of a model as bytes; equal models have equal bytes."""
    return dumps(model)


def learned_by(model, rows):
    """Let a model learn rows, (x, y) or (x, y, weight), and return it."""
    for row in rows:
        model.learn_one(*row)
    return model


def answers(model, rows):
    """Return the prediction of a model for each row before it learns the row."""
    predictions = []
    for x, *y in rows:
        predictions.append(model.predict_one(x))
        model.learn_one(x, *y)
    return predictions


def accuracy(model, rows, first=0):
    """Return the prequential accuracy of a model from row ``first`` on."""
    rows = list(rows)
    return float(np.mean([answer == row[1] for answer, row in zip(answers(model, rows), rows, strict=True)][first:]))


def dicts(X):
    """Return the rows of an array as dicts with column indices as names."""
    return [dict(enumerate(x)) for x in np.asarray(X).tolist()]


def functions_of(x, n):
    """Return the row of an ensemble's second-order expert: 1, and n functions of each feature."""
    z = [1.0]
    for value in np.clip(np.array(list(x.values()), np.float32).astype(float), -5.0, 5.0):
        z += [value, abs(value) - 0.8, max(value - 0.8, 0.0), max(-value - 0.8, 0.0)][:n]
    return np.array(z)


def sectors(n, seed=0, classes=2, spread=(1.0, 20.0), centre=(0.0, 7.0)):
    """Return rows of two features with different units, and labels that are sectors of a circle."""
    Z = np.random.default_rng(seed).normal(size=(n, 2))
    angles = np.arctan2(Z[:, 0], Z[:, 1])
    y = ((angles + np.pi) // (2.0 * np.pi / classes)).astype(int).clip(0, classes - 1)
    return (Z * spread + centre).astype(np.float32), y


def of_experts(kind, *team, **parameters):
    """Return an ensemble with only these experts; one of them must have a budget."""
    return type(kind.__name__, (kind,), {"_specs_by_effort": {"normal": team}})(**parameters)


def ensemble_of(answers, outputs):
    """Return the block of an ensemble of two experts, its arrays, and the common state of all learners."""
    numbers = answers is target_predictions
    store = EnsembleStore([ExpertSpec(2), ExpertSpec(2)], 1, outputs, numbers)
    v, c = store.views, view_record(store.block, STATE_BEGIN, COMMON_STATE)
    if numbers:
        c["loss"] = EPSILON_INSENSITIVE
    for curvature, inverse, ridge, weights in zip(v.curvatures, v.inverses, answers.RIDGES, v.weights, strict=True):
        newton.reset_curvature(curvature, inverse, ridge)
        stack.fill_initial_weights(weights, answers.INITIAL_WEIGHT_SUM)
    return store.block, v, c


def names_of(model):
    """Return the labels of a classifier by class index; None for unused indices."""
    labels = model._labels
    if labels.class_labels:
        return list(labels.class_labels)
    return [next((label for label, target in labels.targets.items() if target == sign), None) for sign in (-1.0, 1.0)]


def place_of(model, kind):
    """Return the stores of the first expert of a kind, and the index of its first input to the stacks."""
    number = next(i for i, expert in enumerate(model._expert_specs) if isinstance(expert, kind))
    return model._store.stores[number], int(model._store.views.experts["first_input"][number])
