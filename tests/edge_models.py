"""Models of all kinds that can be exported, by name: all learners, ensembles, batch machines, pipelines and wrappers."""

import copy
import math
import random
from functools import cache

import numpy as np
from river import base, compose, preprocessing
from sklearn.datasets import make_classification

from lists import OF_RELEASE
from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, SVMClassifier, SVMRegressor, learners
from streamsvm.batch import CSMOClassifier, CSMOOneClass, CSMORegressor, HierarchicalSVC, HSSADMMClassifier
from streamsvm.edge.program import Answer, Column, Program
from streamsvm.export.convert import make_program
from streamsvm.export.learners import add_neighbours, add_scale
from streamsvm.learners.costs import CostSensitiveClassifier
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.learners.thresholds import TunedThresholdClassifier
from streamsvm.linear import OutOfCoreLinearSVC, OutOfCoreLinearSVR
from streamsvm.stream.tables import TableEncoder

LEARNERS = {name: getattr(learners, name) for name in learners.__all__}


def rows(n, classes, seed=0):
    """Yield rows of five features with different scales and some missing values, and a target.

    The target is a number (``classes`` 0), 0 or 1 (2 classes), or a text (more classes).
    """
    rng = random.Random(seed)
    for _ in range(n):
        x = {name: rng.gauss(0.0, 1.0) for name in "abcde"}
        value = x["a"] + x["b"] * x["c"] + 0.3 * rng.gauss(0.0, 1.0)
        x = {name: 3.0 * number + index for index, (name, number) in enumerate(x.items()) if rng.random() > 0.1}
        yield x, value if classes == 0 else int(value > 0.0) if classes == 2 else f"class {int(value > -0.7) + int(value > 0.7)}"


def learned(model, n, classes, seed=0):
    for x, y in rows(n, classes, seed):
        if isinstance(model, base.AnomalyDetector):
            model.learn_one(x)
        else:
            model.learn_one(x, y)
    return model


def learner_cases():
    """Yield name, class, arguments and number of classes (0: regression) for each learner, from its own test parameters."""
    for name, kind in LEARNERS.items():
        for number, parameters in enumerate(kind._unit_test_params()):
            arguments = ({"seed": 0} if "seed" in kind()._get_params() else {}) | {**parameters, "max_features": 20}
            counts = [0] if not issubclass(kind, base.Classifier) else [2, 3] if kind(**arguments).max_classes > 2 else [2]
            for classes in counts:
                yield f"{name} {number} of {classes}", kind, arguments, classes


def problem(classes, n=300):
    X, y = make_classification(n, 5, n_informative=4, n_redundant=0, n_classes=classes, random_state=0)
    return X, y.astype(np.int64)


MACHINES = [
    CSMOClassifier(gamma=0.5),
    CSMOClassifier(kernel="linear"),
    CSMOClassifier(kernel="poly", coef0=1.0),
    CSMOClassifier(kernel="sigmoid", gamma=0.01),
    CSMOClassifier(break_ties=True),
    CSMOClassifier(decision_function_shape="ovo"),
    HSSADMMClassifier(),
    HierarchicalSVC(n_trees=2, leaf_size=40, rank=20, random_state=0),
    HierarchicalSVC(kernel="poly", coef0=1.0, n_trees=2, leaf_size=40, rank=20, random_state=0),
]
REGRESSORS = [CSMORegressor(), OutOfCoreLinearSVR()]


def fitted(model, classes=2):
    """Return a fitted machine; its labels are texts."""
    X, y = problem(classes)
    if isinstance(model, CSMOOneClass):
        return model.fit(X)
    if model in REGRESSORS or isinstance(model, type(REGRESSORS[0])):
        return model.fit(X, X[:, 0] + np.sin(X[:, 1]))
    return type(model)(**model.get_params()).fit(X[:200], np.array(["no", "yes", "maybe", "never"])[y[:200]])


def bsgd(**parameters):
    return BSGDClassifier(budget=30, gamma=0.2, scaling=None, seed=0, **parameters)


SCALERS = [
    preprocessing.StandardScaler(),
    preprocessing.StandardScaler(with_std=False),
    preprocessing.MinMaxScaler(),
    preprocessing.MaxAbsScaler(),
    preprocessing.RobustScaler(),
    preprocessing.RobustScaler(with_centering=False),
    BoundedScaler(3.0),
    compose.Pipeline(BoundedScaler(), preprocessing.MinMaxScaler()),
    compose.Pipeline(compose.Select("a", "c"), preprocessing.StandardScaler()),
]


def behind(scaler):
    """Return a pipeline of a scaler and a learner, and rows that it has learned."""
    pairs = [(x, y) for x, y in rows(400, 2) if "a" in x and "c" in x]
    steps = scaler.steps.values() if isinstance(scaler, compose.Pipeline) else [scaler]
    model = compose.Pipeline(*(step.clone() for step in steps), bsgd())
    for x, y in pairs:
        model.learn_one(x, y)
    return model, [x for x, _ in pairs[:100]]


def of_table(classes):
    """Return a pipeline of a TableEncoder and a learner, and rows that it has learned."""
    learner = BSCARegressor(budget=30, seed=0) if classes == 0 else BSGDClassifier(budget=30, seed=0)
    model = TableEncoder("city:category", max_values=3, buckets=4) | learner
    cities = ["Paris", "Oslo", "Rom", "Bern", "Bonn", "", 7.0]
    pairs = [({**x, "city": cities[i % 7]}, y) for i, (x, y) in enumerate(rows(400, classes))]
    for x, y in pairs:
        model.learn_one(x, y)
    return model, [x for x, _ in pairs[:100]]


def of_dates(classes):
    """Return a pipeline of a TableEncoder with cycles and a learner, which has learned dates that float32 holds exactly."""
    model = TableEncoder("at:date", cycles=["day", "week"]) | BSGDClassifier(budget=30, seed=0)
    for i, (x, y) in enumerate(rows(400, classes)):
        model.learn_one({**x, "at": 1.7e9 // 128.0 * 128.0 + 12_800.0 * i}, y)
    return model


def of_names(classes, n=600, seed=0, columns="city:category,size:category", **parameters):
    """Return a pipeline of a TableEncoder with target encoding and a learner, and rows: learned ones, and new ones.

    Categories have a one-hot column, a target encoding, both, or neither, or are missing; some have several spellings.
    """
    learner = BSCARegressor(budget=30, seed=0) if classes == 0 else BSGDClassifier(budget=30, seed=0)
    model = TableEncoder(columns, **parameters) | learner
    rng, pairs = random.Random(seed), list(rows(2 * n, classes, seed))
    for number, (x, y) in enumerate(pairs):
        city = int(rng.expovariate(0.03)) + (200 if number >= n and rng.random() < 0.2 else 0) if number > 20 else number % 2
        x["city"] = rng.choice([f"c{city}", f" c{city}", city, float(city), f"{city}.0", None, ""])
        x["size"] = rng.choice([True, "TRUE", "false", 1.5, math.nan])
        if number < n:
            model.learn_one(x, y if classes == 0 or rng.random() < 0.7 else [y, city % classes][classes == 2])
    return model, [x for x, _ in pairs]


def scaled_targets():
    model = BoundedTargetScaler(BSCARegressor(budget=30, seed=0))
    for x, y in rows(300, 0):
        model.learn_one(x, 100.0 + 20.0 * y)
    return model


def labelled(labels, name="a"):
    """Return a learner of one feature, which is the index of the row's label."""
    model = BSGDClassifier(budget=5)
    for number in range(20):
        model.learn_one({name: float(number % len(labels))}, labels[number % len(labels)])
    return model


def tuned():
    model = TunedThresholdClassifier(BSCAClassifier(budget=30, seed=0))
    for x, y in rows(600, 2):
        model.learn_one(x, y)
    model._threshold_index = 62  # a threshold other than 1/2
    return model


def costly(kind, classes):
    """Return a cost-sensitive classifier."""
    costs = {1: 3.0} if classes == 2 else {"class 0": 0.4, "class 2": 2.5}
    return learned(CostSensitiveClassifier(kind(seed=0, max_features=20), costs), 600, classes)


def of_whole_numbers(kind, labels, values):
    """Return an ensemble that has learned rows of integers, so that many distances are equal, and further rows."""
    rng, n = np.random.default_rng(0), 600 if values > 2 else 2000  # with two values, many rows are equal
    X = rng.integers(0, values, size=(n + 1000, 7)).astype(float)
    f = X[:, 0] - X[:, 1] + np.abs(X[:, 2] - X[:, 3]) + rng.normal(size=len(X))
    model = kind(seed=0, max_features=8)
    model.learn_many(X[:n], np.digitize(f[:n], np.quantile(f, np.arange(1, labels) / labels)) if labels else f[:n])
    return model, X[n:]


#: Cases of `of_whole_numbers`: class, number of labels, and number of values of a feature.
WHOLE_NUMBERS = [(SVMClassifier, 2, 6), (SVMClassifier, 3, 6), (SVMRegressor, 0, 6), (SVMClassifier, 2, 2), (SVMClassifier, 5, 2)]


def makers():
    """Return functions that make a trained model, by name: one for everything that can be exported."""
    functions = {
        name: lambda kind=kind, arguments=arguments, classes=classes: learned(kind(**arguments), 300, classes)
        for name, kind, arguments, classes in learner_cases()
    }
    for number, machine in enumerate(MACHINES):
        for classes in (2, 4):
            if classes == 4 or not machine.get_params().get("break_ties"):
                name = f"{type(machine).__name__} {number} of {classes}"
                functions[name] = lambda machine=machine, classes=classes: fitted(machine, classes)
    for machine in (*REGRESSORS, OutOfCoreLinearSVC(), CSMOOneClass(nu=0.2)):
        functions[type(machine).__name__] = lambda machine=machine: fitted(machine)
    for number, scaler in enumerate(SCALERS):
        functions[f"scaler {number}"] = lambda scaler=scaler: behind(scaler)[0]
    for classes in (0, 2, 3):
        functions[f"table of {classes}"] = lambda classes=classes: of_table(classes)[0]
        functions[f"names of {classes}"] = lambda classes=classes: of_names(classes)[0]
    for name, (kind, classes) in {
        "costs of 2": (BSGDClassifier, 2),
        "costs of 3": (BSGDClassifier, 3),
        "costs of an ensemble": (SVMClassifier, 3),
    }.items():
        functions[name] = lambda kind=kind, classes=classes: costly(kind, classes)
    return functions | {"scaled targets": scaled_targets, "tuned threshold": tuned, "dates of 2": lambda: of_dates(2)}


MAKERS = makers()


def kind_of(name):
    return name if "CSMO" in name else (name.split()[0], name.split()[-1])


#: Names of `MAKERS`: the first one of each class with each number of labels, and all machines, because of their kernels.
OF_EACH = list({kind_of(name): name for name in reversed(MAKERS)}.values())[::-1]
#: Names of models for tests of each model: `OF_EACH`, and before a release, those with other parameters, too.
NAMES = list(MAKERS) if OF_RELEASE else OF_EACH


@cache
def _program_of(name):
    return make_program(MAKERS[name]())


def program(name):
    """Return the program of a model of `MAKERS`, or a program of `MEMORIES` or `FORESTS`."""
    if name in MEMORIES:
        return memory(**MEMORIES[name])
    return forest(**FORESTS[name]) if name in FORESTS else copy.deepcopy(_program_of(name))


def memory(labels, n=40, features=5, seed=0, **options):
    """Return a program of nearest neighbours with class indices (``labels`` 0: numbers) as targets; some rows are duplicates."""
    rng = np.random.default_rng(seed)
    program = Program([Column(name, name) for name in "abcdefgh"[:features]])
    value = add_scale(program, program.add("impute", 0, float32=True), np.arange(features, dtype=float), np.full(features, 3.0))
    vectors = rng.normal(size=(n, features)).astype(np.float32)
    vectors[n // 2 :: 3] = vectors[: len(vectors[n // 2 :: 3])]
    targets = rng.integers(0, labels, n).astype(float) if labels else rng.normal(size=n)
    weights = rng.uniform(0.1, 2.0, n).astype(np.float32)
    arrays = {"feature_weights": rng.uniform(0.0, 2.0, features), "targets": targets, "weights": weights}
    value = add_neighbours(program, value, labels, {"vectors": vectors, **arrays}, **options)
    program.answer = Answer("class", value, value, tuple(range(labels))) if labels else Answer("number", value, value)
    return program


MEMORIES = {
    **{f"memory of {labels}": {"labels": labels} for labels in (0, 2, 3, 12)},
    "memory of one feature": {"labels": 3, "features": 1},
    "memory of no feature": {"labels": 2, "features": 0},
    "memory of fewer rows than vote": {"labels": 2, "n": 7},
    "memory of one row": {"labels": 0, "n": 1},
    "memory of which one votes": {"labels": 3, "neighbours": 1, "max_difference": 0.3},
    "memory of full groups": {"labels": 2, "n": 64, "features": 8, "neighbours": 20, "offset": 0.1, "power": 8},
}


def forest(labels, trees=5, features=5, depth=6, seed=0):
    """Return a program of random trees; some nodes test for equality, and leaves have one label or two."""
    rng, arrays = np.random.default_rng(seed), {name: [] for name in ("left", "feature", "equal", "thresholds", "counts")}
    roots, targets = [], []
    for _ in range(trees):
        queue = [0]
        roots.append(len(arrays["left"]))
        next_node = roots[-1] + 1
        while queue:
            depth_of_node = queue.pop(0)
            is_inner = depth_of_node < depth and features > 0 and rng.random() < 0.8
            test = (next_node, rng.integers(features), rng.random() < 0.3, rng.integers(-5, 6)) if is_inner else ()
            values = test or (-1, len(targets), 0, 0)
            for name, value in zip(arrays, values, strict=False):
                arrays[name].append(value)
            if is_inner:
                queue, next_node = [*queue, depth_of_node + 1, depth_of_node + 1], next_node + 2
            else:
                targets.append(rng.permutation(labels)[:2])
                arrays["counts"].append([rng.integers(120), rng.integers(120) * rng.integers(2)])
    types = {"left": np.int16, "feature": np.int16, "equal": np.int8, "thresholds": np.float32, "counts": np.int8}
    program = Program([Column(name, name) for name in "abcdefgh"[:features]])
    value = program.add(
        "forest",
        program.add("impute", 0, float32=False),
        labels=labels,
        roots=np.array(roots, np.int32),
        targets=np.array(targets, np.int16),
        votes=rng.uniform(0.02, 1.0, trees).astype(np.float32),
        **{name: np.array(arrays[name], dtype) for name, dtype in types.items()},
    )
    value = program.add("log", value, least=0.02)
    weights = np.array([[-1.0, 1.0]]) if labels == 2 else np.eye(labels)
    value = program.add("linear", value, weights=weights, biases=np.zeros(len(weights)))
    program.answer = Answer("class", value, value, tuple(range(labels)))
    return program


FORESTS = {
    **{f"forest of {labels}": {"labels": labels} for labels in (2, 3, 40)},
    "forest of one tree": {"labels": 3, "trees": 1},
    "forest of leaves": {"labels": 2, "depth": 0},
    "forest of many nodes": {"labels": 300, "trees": 16, "depth": 10},
}


def matrix(program, n=200, seed=0):
    """Return rows for a program, float32 [n, columns], similar to those that models have learned; some numbers are not finite."""
    rng = np.random.default_rng(seed)
    X = (3.0 * rng.normal(size=(n, len(program.columns))) + np.arange(len(program.columns))).astype(np.float32)
    if any(step.op == "forest" for step in program.steps):
        X[::2] = np.rint(X[::2])  # so that some tests for equality pass
    for value in (math.nan, math.inf, -math.inf):
        X[rng.random(X.shape) < 0.02] = value
    for number, column in enumerate(program.columns):
        if column.text is not None or column.bucket is not None:
            X[:, number] = rng.random(n) < 0.3
        elif column.table is not None:
            values = program.tables[column.table[0]].values[:, column.table[1]]
            X[:, number] = np.where(rng.random(n) < 0.3, 0.0, rng.choice(values, n))
    return X


def outside(program, f, choice, band=1e-4):
    """Return a mask of the rows whose labels do not depend on rounding, from decision values and choices [n, width]."""
    if program.answer.kind != "class":
        return np.ones(len(f), bool)
    if program.answer.costs is not None:
        choice = program.answer.calibration.compute_probabilities(f) * np.array(program.answer.costs)
    margins = []
    for values in (f, choice):
        if values.shape[1] == 1:
            margins.append(np.abs(values[:, 0]))
        else:
            ordered = np.sort(values, axis=1)
            margins.append(ordered[:, -1] - ordered[:, -2])
    return np.minimum(*margins) > band
