"""The streams of the suite: data files, river's own data and river's generators of drift, in two fixed halves.

Half A and half B are there so that a constant can be chosen on one and confirmed on the other. They are alike in kind: each has a
real stream whose labels come in runs, noisy and clean tables, small sets, slow and abrupt drift, streams that a linear model
suits (both SEA; Hyperplane and a9a), and regression. Streams that are near relatives (both SEA, both of phishing, both that
switch functions of Agrawal) lie in the same half: chosen on one and confirmed on its twin would be confirmed by nothing.

The later streams (``MORE``) have many labels, or concepts that come back. Each half has a table of many labels, generators of
many labels, functions that come back, features that are names (krkopt; STAGGER), and labels that depend on the last one (chess,
in runs; markov, without runs). LED and clusters, which half A had, have their relatives there, and Agrawal in half B.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from common import dict_rows, load_file
from river import datasets, preprocessing
from river.datasets import synth

from streamsvm.learners.preprocessing import BoundedScaler

ROWS = 10_000  # of data, unless asked for otherwise
GENERATED = 12_000  # of generators with drift
CONCEPT = 3_000  # rows of a concept that ends abruptly
RETURN = 2_000  # rows of a concept that comes back

Pair = tuple[dict[Any, float], Any]
SCALERS: dict[str, Callable[[], Any] | None] = {
    "standard": preprocessing.StandardScaler,
    "bounded": BoundedScaler,
    "none": None,
}


@dataclass(frozen=True)
class Stream:
    """A stream: its half, its kind, and how its rows are made from a seed.

    ``rows`` takes a seed, the number of rows (None: all that there are) and the folder of the data sets. ``seeded`` says whether
    another seed gives other rows or another order. ``changes`` are the rows at which its concept changes abruptly.
    """

    half: str
    kind: str
    rows: Callable[[int, int | None, Path | None], Iterable[Pair]]
    seeded: bool = True
    default_rows: int = ROWS
    regression: bool = False
    changes: tuple[int, ...] = ()
    endless: bool = False

    def count(self, rows: int | None, whole: bool) -> int | None:
        """How many rows are taken; None: all that there are."""
        if rows is not None:
            return rows
        return None if whole and not self.endless else self.default_rows


# Data files -----------------------------------------------------------------------------------------------------------


def _file(name: str, shuffled: bool, as_it_is: bool = False) -> Callable[[int, int | None, Path | None], Iterable[Pair]]:
    """Rows of a file; ``as_it_is``: its ``y`` holds targets or codes of labels, and not signs."""

    def rows(seed: int, count: int | None, folder: Path | None) -> Iterable[Pair]:
        arrays = load_file(name, folder)
        X, y = arrays["X"], arrays["y"]
        order = np.random.default_rng(seed).permutation(len(y)) if shuffled else np.arange(len(y))
        order = order[:count]
        # float32 as Python's floats; one of two labels is a bool, which every learner takes.
        return zip(dict_rows(X[order]), (y[order] if as_it_is else y[order] > 0).tolist(), strict=True)

    return rows


def _river(kind: type, shuffled: bool = False) -> Callable[[int, int | None, Path | None], Iterable[Pair]]:
    def rows(seed: int, count: int | None, _: Path | None) -> Iterable[Pair]:
        pairs = list(kind())
        if shuffled:
            pairs = [pairs[i] for i in np.random.default_rng(seed).permutation(len(pairs))]
        return pairs[:count]

    return rows


# River's generators ---------------------------------------------------------------------------------------------------


def _generator(make: Callable[[int], Iterable[Pair]]) -> Callable[[int, int | None, Path | None], Iterable[Pair]]:
    def rows(seed: int, count: int | None, _: Path | None) -> Iterable[Pair]:
        return itertools.islice(iter(make(seed)), count)

    return rows


def _concepts(parts: list[Iterable[Pair]], length: int = CONCEPT) -> Iterator[Pair]:
    """One concept after the other, the last without end."""
    for part in parts[:-1]:
        yield from itertools.islice(iter(part), length)
    yield from parts[-1]


def _returning(parts: list[Iterable[Pair]]) -> Iterator[Pair]:
    """Concepts in turn, without end: each goes on where it stopped."""
    for part in itertools.cycle([iter(part) for part in parts]):
        yield from itertools.islice(part, RETURN)


def _sea(seed: int) -> Iterator[Pair]:
    return _concepts([synth.SEA(variant, noise=0.1, seed=4 * seed + variant) for variant in (0, 1, 2, 3)])


def _agrawal(seed: int) -> Iterator[Pair]:
    functions = (0, 3, 6, 8)
    return _concepts([synth.Agrawal(function, seed=10 * seed + function, perturbation=0.05) for function in functions])


def _led_digits(seed: int) -> Iterator[Pair]:
    """A digit, from seven segments, a tenth of them wrong, and 17 features that say nothing.

    Half way, three segments change places with those.
    """
    parts = [
        synth.LEDDrift(seed=2 * seed + i, noise_percentage=0.1, irrelevant_features=True, n_drift_features=3 * i) for i in (0, 1)
    ]
    return _concepts(parts, GENERATED // 2)


def _led(seed: int) -> Iterator[Pair]:
    """The same, but whether the digit is 5 or more."""
    return ((x, y >= 5) for x, y in _led_digits(seed))


def _rbf(seed: int) -> Iterable[Pair]:
    return synth.RandomRBFDrift(seed_model=seed, seed_sample=seed, n_centroids=20, change_speed=0.001, n_drift_centroids=10)


def _hyperplane(seed: int) -> Iterable[Pair]:
    return synth.Hyperplane(seed=seed, n_drift_features=2, mag_change=0.001, noise_percentage=0.05)


def _gradual(seed: int) -> Iterable[Pair]:
    return synth.ConceptDriftStream(seed=seed, position=GENERATED // 2, width=1_000)


def _random_tree(seed: int) -> Iterable[Pair]:
    return synth.RandomTree(seed_tree=seed, seed_sample=seed, n_classes=3 + seed % 4)


def _rbf_40(seed: int) -> Iterable[Pair]:
    return synth.RandomRBF(seed_model=seed, seed_sample=seed, n_classes=40, n_features=10, n_centroids=120)


def _agrawal_back(seed: int) -> Iterator[Pair]:
    return _returning([synth.Agrawal(function, seed=10 * seed + function, perturbation=0.05) for function in (0, 4)])


def _stagger_back(seed: int) -> Iterator[Pair]:
    return _returning([synth.STAGGER(function, seed=3 * seed + function) for function in (0, 1, 2)])


def _mixed_back(seed: int) -> Iterator[Pair]:
    return _returning([synth.Mixed(function, seed=2 * seed + function) for function in (0, 1)])


def _markov(seed: int) -> Iterator[Pair]:
    """Six labels in a chain: the next is the last one's successor in a cycle or, a fifth of the time, any.

    The features say little.
    """
    rng = np.random.default_rng(seed)
    centers = 0.5 * rng.normal(size=(6, 4))
    cycle = rng.permutation(6)
    successor = dict(zip(cycle.tolist(), np.roll(cycle, -1).tolist(), strict=True))
    label = 0
    while True:
        label = int(rng.integers(6)) if rng.random() < 0.2 else successor[label]
        yield dict(enumerate((centers[label] + rng.normal(size=4)).tolist())), label


_ABRUPT = (CONCEPT, 2 * CONCEPT, 3 * CONCEPT)
_BACK = tuple(range(RETURN, GENERATED, RETURN))


def _drift(half: str, make: Callable[[int], Iterable[Pair]], changes: tuple[int, ...] = ()) -> Stream:
    kind = "abrupt drift" if changes else "slow drift"
    return Stream(half, kind, _generator(make), default_rows=GENERATED, changes=changes, endless=True)


def _back(half: str, make: Callable[[int], Iterable[Pair]]) -> Stream:
    return Stream(half, "concepts come back", _generator(make), default_rows=GENERATED, changes=_BACK, endless=True)


FIRST: dict[str, Stream] = {
    "elec2": Stream("A", "real, labels in runs", _file("elec2", shuffled=False), seeded=False),
    "sea_stream": Stream(
        "A", "abrupt drift", _file("sea_stream", shuffled=False), seeded=False, changes=(10_000, 20_000, 30_000)
    ),
    "sea_abrupt": _drift("A", _sea, _ABRUPT),
    "rbf_drift": _drift("A", _rbf),
    "led": _drift("A", _led, (GENERATED // 2,)),
    "magic04": Stream("A", "noisy table", _file("magic04", shuffled=True)),
    "ijcnn1": Stream("A", "real, in time", _file("ijcnn1", shuffled=False), seeded=False),
    "phishing": Stream("A", "table", _file("phishing", shuffled=True)),
    "Phishing": Stream("A", "small table", _river(datasets.Phishing), seeded=False),
    "kin40k": Stream("A", "regression", _file("kin40k", shuffled=True, as_it_is=True), regression=True),
    "abalone": Stream("A", "regression", _file("abalone", shuffled=True, as_it_is=True), regression=True),
    "eeg_eye": Stream("B", "real, labels in runs", _file("eeg_eye", shuffled=False), seeded=False),
    "agrawal": _drift("B", _agrawal, _ABRUPT),
    "hyperplane": _drift("B", _hyperplane),
    "concept_drift": _drift("B", _gradual),
    "a9a": Stream("B", "noisy table", _file("a9a", shuffled=True)),
    "skin": Stream("B", "table", _file("skin", shuffled=True)),
    "Bananas": Stream("B", "small table", _river(datasets.Bananas), seeded=False),
    "ImageSegments": Stream("B", "small table, 7 classes", _river(datasets.ImageSegments, shuffled=True)),
    "cpusmall": Stream("B", "regression", _file("cpusmall", shuffled=True, as_it_is=True), regression=True),
    "TrumpApproval": Stream("B", "regression in time", _river(datasets.TrumpApproval), seeded=False, regression=True),
    "Friedman": Stream("B", "regression", _generator(lambda seed: synth.Friedman(seed=seed)), regression=True, endless=True),
}

MORE: dict[str, Stream] = {
    "krkopt": Stream("A", "table, 18 labels", _file("krkopt", shuffled=False, as_it_is=True), seeded=False),
    "chess": Stream("A", "8 labels in runs, concepts come back", _file("chess", shuffled=False, as_it_is=True), seeded=False),
    "led_digits": Stream(
        "A", "10 labels", _generator(_led_digits), default_rows=GENERATED, changes=(GENERATED // 2,), endless=True
    ),
    "rbf_40": Stream("A", "40 labels", _generator(_rbf_40), endless=True),
    "mixed_back": _back("A", _mixed_back),
    "letter": Stream("B", "table, 26 labels", _file("letter", shuffled=False, as_it_is=True), seeded=False),
    "random_tree": Stream("B", "3 to 6 labels, by the seed", _generator(_random_tree), endless=True),
    "markov": Stream("B", "6 labels, each depends on the last", _generator(_markov), endless=True),
    "agrawal_back": _back("B", _agrawal_back),
    "stagger_back": _back("B", _stagger_back),
    "cadata": Stream("A", "regression", _file("cadata", shuffled=True, as_it_is=True), regression=True),
    "Planes2D": Stream("A", "regression", _generator(lambda seed: synth.Planes2D(seed=seed)), regression=True, endless=True),
    "friedman_drift": Stream(
        "B",
        "regression, a concept comes back",
        _generator(lambda seed: synth.FriedmanDrift("gra", position=_ABRUPT[:2], seed=seed)),
        default_rows=GENERATED,
        changes=_ABRUPT[:2],
        regression=True,
        endless=True,
    ),
}

STREAMS = {**FIRST, **MORE}
#: What a word of ``--streams`` stands for, besides the names.
GROUPS = {"all": STREAMS, "first": FIRST, "more": MORE}


@dataclass(frozen=True)
class Rows:
    """Rows as they are predicted and as they are learned, and their labels or targets.

    They are scaled as river's pipelines do: a row is predicted by the scale of the rows before it, and learned by that with it.
    """

    predicted: list[dict[Any, float]]
    learned: list[dict[Any, float]]
    y: list[Any]

    @property
    def n_classes(self) -> int:
        """The different labels."""
        return len(set(self.y))


def _in_other_units(pairs: Iterable[Pair], seed: int) -> Iterator[Pair]:
    """Multiply each feature by a factor of its own from 1e-3 to 1e3, and shift it by up to ten times that."""
    rng = np.random.default_rng(seed)
    of: dict[Any, tuple[float, float]] = {}
    for x, y in pairs:
        for name in x:
            if name not in of:
                factor = 10.0 ** rng.uniform(-3.0, 3.0)
                of[name] = factor, factor * rng.uniform(-10.0, 10.0)
        yield {name: of[name][0] * value + of[name][1] for name, value in x.items()}, y


@lru_cache(maxsize=1)  # all learners meet the same rows, one stream after the other
def rows_of(name: str, seed: int, count: int | None, folder: Path | None, scaler: str, units: bool) -> Rows:
    """The rows of a stream, in other units if asked for, and scaled."""
    make = SCALERS[scaler]
    predicted, learned, labels = [], [], []
    transformer = None if make is None else make()
    pairs = STREAMS[name].rows(seed, count, folder)
    for x, y in _in_other_units(pairs, seed) if units else pairs:
        if transformer is None:
            before = after = dict(x)
        else:
            before = transformer.transform_one(x)
            transformer.learn_one(x)
            after = transformer.transform_one(x)
        predicted.append(before)
        learned.append(after)
        labels.append(y)
    return Rows(predicted, learned, labels)
