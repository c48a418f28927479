"""Models of a few partitions, as workers of a group leave them in folders of checkpoints."""

import random

from river import preprocessing

from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, BSGDRegressor
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.stream import CheckpointFolder


def table(n, seed=0, far=0.0):
    """Rows of two numbers and a name; partitions may have numbers of another location and spread."""
    rng = random.Random(seed)
    for _ in range(n):
        a, city = rng.gauss(far, 1.0 + far), rng.choice("abc")
        b = 1000.0 * rng.gauss(1.0, 1.0)
        yield {"a": a, "b": b, "city": city}, int((a > 0.0) != (b > 1000.0)) if city != "c" else 1


def numbers(n, seed=0, far=0.0):
    for x, y in table(n, seed, far):
        del x["city"]
        yield x, y


def learned(make, rows):
    model = make()
    for x, y in rows:
        model.learn_one(x, y)
    return model


MAKERS = {
    "learner": lambda: BSGDClassifier(budget=40, seed=0),
    "bounded": lambda: BoundedScaler() | BSGDClassifier(budget=40, scaling=None, seed=0),
    "standard": lambda: preprocessing.StandardScaler() | BSCAClassifier(budget=40, scaling=None, seed=0),
    "scaled twice": lambda: BoundedScaler() | BSGDClassifier(budget=40, seed=0),
    "targets": lambda: BoundedScaler() | BoundedTargetScaler(BSGDRegressor(budget=40, scaling=None, seed=0)),
    "only targets": lambda: BoundedTargetScaler(BSCARegressor(budget=40, seed=0)),
}


def save(folder, n, seed=0, make=MAKERS["bounded"], **position):
    with CheckpointFolder(folder) as opened:
        return opened.save(learned(make, numbers(n, seed)), None, rows=n, position=position)
