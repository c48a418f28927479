"""The streams of ``streams.py``: data files, river's data sets and river's generators with concept drift, in two fixed halves.

A constant can be chosen on half A and confirmed on half B. The halves are similar: each has a real stream with autocorrelated
labels, noisy and clean tables, small sets, slow and abrupt drift, streams for linear models (both SEA; Hyperplane and a9a), and
regression. Closely related streams (both SEA, both of phishing, both that switch functions of Agrawal) are in the same half:
a twin of the stream on which a constant was chosen cannot confirm it.

The later streams (`LATER`) have many labels, or recurring concepts. Each half has a table with many labels, generators with
many labels, recurring functions, categorical features (krkopt; STAGGER), and labels that depend on the previous one (chess,
in runs; markov, without runs). Relatives of LED and clusters are in half A, as before, and Agrawal is in half B.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from common import load_file, to_dicts
from river import datasets, preprocessing
from river.datasets import synth

from streamsvm.learners.preprocessing import BoundedScaler

DATA_ROWS = 10_000  # of data files, by default
DRIFT_ROWS = 12_000  # of generators with drift, by default
CONCEPT_ROWS = 3_000  # of a concept that ends abruptly
RETURNING_ROWS = 2_000  # of a recurring concept

Pair = tuple[dict[Any, float], Any]
SCALERS: dict[str, Callable[[], Any] | None] = {
    "standard": preprocessing.StandardScaler,
    "bounded": BoundedScaler,
    "none": None,
}


@dataclass(frozen=True)
class Stream:
    """A stream: its half, its kind, and a function that makes its rows.

    ``rows`` takes a seed, the number of rows (None: all) and the folder of the data sets. ``seeded`` is whether the rows or
    their order depend on the seed. ``changes`` are the numbers of the rows where the concept changes abruptly.
    """

    half: str
    kind: str
    rows: Callable[[int, int | None, Path | None], Iterable[Pair]]
    seeded: bool = True
    default_rows: int = DATA_ROWS
    regression: bool = False
    changes: tuple[int, ...] = ()
    endless: bool = False

    def count(self, rows: int | None, all_rows: bool) -> int | None:
        """Return the number of rows to use: ``rows`` if it is given, else the default; None for all rows of a finite stream."""
        if rows is not None:
            return rows
        return None if all_rows and not self.endless else self.default_rows


# Data files -----------------------------------------------------------------------------------------------------------


def _read_file(name: str, shuffled: bool, has_targets: bool = False) -> Callable[[int, int | None, Path | None], Iterable[Pair]]:
    """Return a `Stream.rows` for a data file. With ``has_targets``, its ``y`` has targets or label codes, else -1 and 1."""

    def rows(seed: int, count: int | None, folder: Path | None) -> Iterable[Pair]:
        arrays = load_file(name, folder)
        X, y = arrays["X"], arrays["y"]
        order = np.random.default_rng(seed).permutation(len(y)) if shuffled else np.arange(len(y))
        order = order[:count]
        # Features become Python's floats. Binary labels become bools, which every learner accepts.
        return zip(to_dicts(X[order]), (y[order] if has_targets else y[order] > 0).tolist(), strict=True)

    return rows


def _read_river(kind: type, shuffled: bool = False) -> Callable[[int, int | None, Path | None], Iterable[Pair]]:
    def rows(seed: int, count: int | None, _: Path | None) -> Iterable[Pair]:
        pairs = list(kind())
        if shuffled:
            pairs = [pairs[i] for i in np.random.default_rng(seed).permutation(len(pairs))]
        return pairs[:count]

    return rows


# River's generators ---------------------------------------------------------------------------------------------------


def _generate(make: Callable[[int], Iterable[Pair]]) -> Callable[[int, int | None, Path | None], Iterable[Pair]]:
    def rows(seed: int, count: int | None, _: Path | None) -> Iterable[Pair]:
        return itertools.islice(iter(make(seed)), count)

    return rows


def _concatenate_concepts(parts: list[Iterable[Pair]], length: int = CONCEPT_ROWS) -> Iterator[Pair]:
    """Yield ``length`` rows of each concept; the last concept has no end."""
    for part in parts[:-1]:
        yield from itertools.islice(iter(part), length)
    yield from parts[-1]


def _repeat_concepts(parts: list[Iterable[Pair]]) -> Iterator[Pair]:
    """Yield rows of the concepts in turn, endlessly; each concept continues with its next rows."""
    for part in itertools.cycle([iter(part) for part in parts]):
        yield from itertools.islice(part, RETURNING_ROWS)


def _generate_sea(seed: int) -> Iterator[Pair]:
    return _concatenate_concepts([synth.SEA(variant, noise=0.1, seed=4 * seed + variant) for variant in (0, 1, 2, 3)])


def _generate_agrawal(seed: int) -> Iterator[Pair]:
    functions = (0, 3, 6, 8)
    return _concatenate_concepts(
        [synth.Agrawal(function, seed=10 * seed + function, perturbation=0.05) for function in functions]
    )


def _generate_led_digits(seed: int) -> Iterator[Pair]:
    """Yield rows for LED digits: seven segments, a tenth of them wrong, and 17 irrelevant features.

    At half of the rows, three segments are swapped with irrelevant features.
    """
    parts = [
        synth.LEDDrift(seed=2 * seed + i, noise_percentage=0.1, irrelevant_features=True, n_drift_features=3 * i) for i in (0, 1)
    ]
    return _concatenate_concepts(parts, DRIFT_ROWS // 2)


def _generate_led(seed: int) -> Iterator[Pair]:
    """Yield the rows of `_generate_led_digits`; the label is whether the digit is at least 5."""
    return ((x, y >= 5) for x, y in _generate_led_digits(seed))


def _generate_rbf(seed: int) -> Iterable[Pair]:
    return synth.RandomRBFDrift(seed_model=seed, seed_sample=seed, n_centroids=20, change_speed=0.001, n_drift_centroids=10)


def _generate_hyperplane(seed: int) -> Iterable[Pair]:
    return synth.Hyperplane(seed=seed, n_drift_features=2, mag_change=0.001, noise_percentage=0.05)


def _generate_gradual(seed: int) -> Iterable[Pair]:
    return synth.ConceptDriftStream(seed=seed, position=DRIFT_ROWS // 2, width=1_000)


def _generate_random_tree(seed: int) -> Iterable[Pair]:
    return synth.RandomTree(seed_tree=seed, seed_sample=seed, n_classes=3 + seed % 4)


def _generate_rbf_40(seed: int) -> Iterable[Pair]:
    return synth.RandomRBF(seed_model=seed, seed_sample=seed, n_classes=40, n_features=10, n_centroids=120)


def _generate_agrawal_back(seed: int) -> Iterator[Pair]:
    return _repeat_concepts([synth.Agrawal(function, seed=10 * seed + function, perturbation=0.05) for function in (0, 4)])


def _generate_stagger_back(seed: int) -> Iterator[Pair]:
    return _repeat_concepts([synth.STAGGER(function, seed=3 * seed + function) for function in (0, 1, 2)])


def _generate_mixed_back(seed: int) -> Iterator[Pair]:
    return _repeat_concepts([synth.Mixed(function, seed=2 * seed + function) for function in (0, 1)])


def _generate_markov(seed: int) -> Iterator[Pair]:
    """Yield rows whose six labels are a Markov chain: the successor of the last label in a cycle, or (20 %) a random label.

    The features are only weakly related to the label.
    """
    rng = np.random.default_rng(seed)
    centers = 0.5 * rng.normal(size=(6, 4))
    cycle = rng.permutation(6)
    successor = dict(zip(cycle.tolist(), np.roll(cycle, -1).tolist(), strict=True))
    label = 0
    while True:
        label = int(rng.integers(6)) if rng.random() < 0.2 else successor[label]
        yield dict(enumerate((centers[label] + rng.normal(size=4)).tolist())), label


_ABRUPT_CHANGES = (CONCEPT_ROWS, 2 * CONCEPT_ROWS, 3 * CONCEPT_ROWS)
_RETURNS = tuple(range(RETURNING_ROWS, DRIFT_ROWS, RETURNING_ROWS))


def _make_drift_stream(half: str, make: Callable[[int], Iterable[Pair]], changes: tuple[int, ...] = ()) -> Stream:
    kind = "abrupt drift" if changes else "slow drift"
    return Stream(half, kind, _generate(make), default_rows=DRIFT_ROWS, changes=changes, endless=True)


def _make_recurring_stream(half: str, make: Callable[[int], Iterable[Pair]]) -> Stream:
    return Stream(half, "concepts come back", _generate(make), default_rows=DRIFT_ROWS, changes=_RETURNS, endless=True)


FIRST: dict[str, Stream] = {
    "elec2": Stream("A", "real, labels in runs", _read_file("elec2", shuffled=False), seeded=False),
    "sea_stream": Stream(
        "A", "abrupt drift", _read_file("sea_stream", shuffled=False), seeded=False, changes=(10_000, 20_000, 30_000)
    ),
    "sea_abrupt": _make_drift_stream("A", _generate_sea, _ABRUPT_CHANGES),
    "rbf_drift": _make_drift_stream("A", _generate_rbf),
    "led": _make_drift_stream("A", _generate_led, (DRIFT_ROWS // 2,)),
    "magic04": Stream("A", "noisy table", _read_file("magic04", shuffled=True)),
    "ijcnn1": Stream("A", "real, in time", _read_file("ijcnn1", shuffled=False), seeded=False),
    "phishing": Stream("A", "table", _read_file("phishing", shuffled=True)),
    "Phishing": Stream("A", "small table", _read_river(datasets.Phishing), seeded=False),
    "kin40k": Stream("A", "regression", _read_file("kin40k", shuffled=True, has_targets=True), regression=True),
    "abalone": Stream("A", "regression", _read_file("abalone", shuffled=True, has_targets=True), regression=True),
    "eeg_eye": Stream("B", "real, labels in runs", _read_file("eeg_eye", shuffled=False), seeded=False),
    "agrawal": _make_drift_stream("B", _generate_agrawal, _ABRUPT_CHANGES),
    "hyperplane": _make_drift_stream("B", _generate_hyperplane),
    "concept_drift": _make_drift_stream("B", _generate_gradual),
    "a9a": Stream("B", "noisy table", _read_file("a9a", shuffled=True)),
    "skin": Stream("B", "table", _read_file("skin", shuffled=True)),
    "Bananas": Stream("B", "small table", _read_river(datasets.Bananas), seeded=False),
    "ImageSegments": Stream("B", "small table, 7 classes", _read_river(datasets.ImageSegments, shuffled=True)),
    "cpusmall": Stream("B", "regression", _read_file("cpusmall", shuffled=True, has_targets=True), regression=True),
    "TrumpApproval": Stream("B", "regression in time", _read_river(datasets.TrumpApproval), seeded=False, regression=True),
    "Friedman": Stream("B", "regression", _generate(lambda seed: synth.Friedman(seed=seed)), regression=True, endless=True),
}

LATER: dict[str, Stream] = {
    "krkopt": Stream("A", "table, 18 labels", _read_file("krkopt", shuffled=False, has_targets=True), seeded=False),
    "chess": Stream(
        "A", "8 labels in runs, concepts come back", _read_file("chess", shuffled=False, has_targets=True), seeded=False
    ),
    "led_digits": Stream(
        "A", "10 labels", _generate(_generate_led_digits), default_rows=DRIFT_ROWS, changes=(DRIFT_ROWS // 2,), endless=True
    ),
    "rbf_40": Stream("A", "40 labels", _generate(_generate_rbf_40), endless=True),
    "mixed_back": _make_recurring_stream("A", _generate_mixed_back),
    "letter": Stream("B", "table, 26 labels", _read_file("letter", shuffled=False, has_targets=True), seeded=False),
    "random_tree": Stream("B", "3 to 6 labels, by the seed", _generate(_generate_random_tree), endless=True),
    "markov": Stream("B", "6 labels, each depends on the last", _generate(_generate_markov), endless=True),
    "agrawal_back": _make_recurring_stream("B", _generate_agrawal_back),
    "stagger_back": _make_recurring_stream("B", _generate_stagger_back),
    "cadata": Stream("A", "regression", _read_file("cadata", shuffled=True, has_targets=True), regression=True),
    "Planes2D": Stream("A", "regression", _generate(lambda seed: synth.Planes2D(seed=seed)), regression=True, endless=True),
    "friedman_drift": Stream(
        "B",
        "regression, a concept comes back",
        _generate(lambda seed: synth.FriedmanDrift("gra", position=_ABRUPT_CHANGES[:2], seed=seed)),
        default_rows=DRIFT_ROWS,
        changes=_ABRUPT_CHANGES[:2],
        regression=True,
        endless=True,
    ),
}

STREAMS = {**FIRST, **LATER}
#: Groups of streams that ``--streams`` accepts, besides names of streams.
GROUPS = {"all": STREAMS, "first": FIRST, "more": LATER}


@dataclass(frozen=True)
class Rows:
    """The rows of a stream, scaled for prediction and for learning, and their labels or targets.

    They are scaled as in river's pipelines: for prediction by the rows before, for learning by the rows up to and including it.
    """

    predicted: list[dict[Any, float]]
    learned: list[dict[Any, float]]
    y: list[Any]

    @property
    def n_classes(self) -> int:
        """Number of different labels."""
        return len(set(self.y))


def _change_units(pairs: Iterable[Pair], seed: int) -> Iterator[Pair]:
    """Multiply each feature by a random factor from 1e-3 to 1e3, and shift it by up to ten times the factor."""
    rng = np.random.default_rng(seed)
    units: dict[Any, tuple[float, float]] = {}
    for x, y in pairs:
        for name in x:
            if name not in units:
                factor = 10.0 ** rng.uniform(-3.0, 3.0)
                units[name] = factor, factor * rng.uniform(-10.0, 10.0)
        yield {name: units[name][0] * value + units[name][1] for name, value in x.items()}, y


@lru_cache(maxsize=1)  # all learners run on a stream before the next one begins
def make_rows(name: str, seed: int, count: int | None, folder: Path | None, scaler: str, units: bool) -> Rows:
    """Return the scaled rows of a stream; with ``units``, the units of its features are changed before."""
    make = SCALERS[scaler]
    predicted, learned, labels = [], [], []
    transformer = None if make is None else make()
    pairs = STREAMS[name].rows(seed, count, folder)
    for x, y in _change_units(pairs, seed) if units else pairs:
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
