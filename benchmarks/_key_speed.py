"""Measure the cost of keys of rows: in the encoder, in small models of each key, and in checkpoints; for `keys.py --speed`."""

from __future__ import annotations

import copy
import tempfile
import time
from typing import Any

import numpy as np
from common import print_table, summarise

from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.learners.keyed import KeyedClassifier
from streamsvm.stream import CheckpointFolder
from streamsvm.stream.tables import TableEncoder
from streamsvm.stream.tables.chunk import Table

FEATURES, LABELS, ENCODED_KEYS = 8, 8, 10_000
BATCH_ROWS, ENCODER_ROWS, MODEL_ROWS = 1_000, 4_096, 65_536
MAX_CATEGORIES = 65_536  # in a target encoding
SINGLE_ROWS = 20
DICT_KEYS, DICT = 2_000, "2,000 kernel machines in a dict"
NAMES = [*map(str, range(FEATURES)), "device"]
_now = time.process_time_ns


def make_encoder(kind: str, n_keys: int, n_labels: int) -> tuple[TableEncoder, Table]:
    """Return an encoder that has learned rows of keys with some labels (0: targets), and further rows of keys in random order."""
    rng = np.random.default_rng(1)
    keys = np.concatenate([rng.permutation(n_keys), rng.integers(n_keys, size=ENCODER_ROWS)]).tolist()
    y = rng.integers(n_labels, size=len(keys)).tolist() if n_labels else rng.normal(size=len(keys)).tolist()
    encoder = TableEncoder({"device": kind})
    for key, label in zip(keys[:n_keys], y, strict=False):
        encoder.learn_one({"device": f"d{key}"}, label)
    return encoder, Table(("device",), [[f"d{key}" for key in keys[n_keys:]]], y[n_keys:])


def encode_rows(encoder: TableEncoder, table: Table) -> float:
    """Encode and learn the rows of a table in one batch. Returns microseconds of CPU a row."""
    n = ENCODER_ROWS
    parsed = encoder.parse_table(table)
    start = _now()
    *_, update_encoder = parsed.encode_batch(0, n, np.ones(n, bool), None, table.y, np.ones(n))
    update_encoder()
    return (_now() - start) / 1e3 / n


def measure_encoder(repeats: int) -> dict[str, Any]:
    """Compare a column that is a key with a category: microseconds to encode and learn a row, and bytes per key and label."""
    lines, results = [], {}
    for n_labels in (2, LABELS, 0):
        pair = [make_encoder(kind, ENCODED_KEYS, n_labels) for kind in ("category", "key")]
        runs = [[encode_rows(*each) for each in pair] for _ in range(20 * repeats + 1)][1:]  # the first one compiles
        category, key = (summarise(times) for times in zip(*runs, strict=True))
        extra = summarise([times[1] - times[0] for times in runs])
        sizes = [make_encoder(kind, MAX_CATEGORIES, n_labels)[0].target_encoding.nbytes for kind in ("category", "key")]
        size = (sizes[1] - sizes[0]) / MAX_CATEGORIES / max(n_labels, 1)
        name = f"{n_labels} labels" if n_labels else "numbers"
        results[name] = {"category": category, "key": key, "extra": extra, "bytes": size}
        times = [f"{extra[quantile]:.3f}" for quantile in ("min", "median", "max")]
        lines.append([name, f"{category['median']:.3f}", f"{key['median']:.3f}", *times, f"{size:.1f}"])
    columns = ["labels", "us, category", "key", "more, min", "median", "max", "more bytes per key and label"]
    print_table(f"Microseconds of CPU to encode and learn a row of one of {ENCODED_KEYS:,} keys", columns, lines)
    return results


def make_rows(rng: np.random.Generator, n: int, n_keys: int) -> tuple[np.ndarray, list[bool]]:
    """Return n rows, float64 [n, 9], of keys in random order, with the number of the key in the last column, and their labels."""
    X = rng.normal(size=(n, FEATURES))
    y = X[:, 0] * X[:, 1] + X[:, 2] > 0.3 * rng.normal(size=n)
    return np.column_stack([X, rng.integers(n_keys, size=n)]), y.tolist()


def learn_rows(model: Any, X: np.ndarray, y: list[bool]) -> float:
    """Predict and learn rows, 1,000 at a time. Returns microseconds of CPU a row."""
    start = _now()
    for i in range(0, len(y), BATCH_ROWS):
        stop = i + BATCH_ROWS
        if model.predict_then_learn(X[i:stop], NAMES[: X.shape[1]], y[i:stop], False) is None:
            raise RuntimeError("rows of known features and labels are learned in batches")
    return (_now() - start) / 1e3 / len(y)


def prepare(model: Any, X: np.ndarray, y: list[bool]) -> Any:
    """Let a model learn rows: the first ones alone, because their features and labels are new. Returns the model."""
    for row, label in zip(X[:SINGLE_ROWS].tolist(), y, strict=False):
        model.learn_one(dict(zip(NAMES, row, strict=False)), label)
    learn_rows(model, X, y)
    return model


def make_model(rng: np.random.Generator, n_keys: int) -> KeyedClassifier:
    """Return small models that have learned about 15 rows of each key, beside a global model that costs little."""
    X, y = make_rows(rng, max(15 * n_keys, BATCH_ROWS), n_keys)
    X[:n_keys, -1] = np.arange(n_keys)
    return prepare(KeyedClassifier(BSGDClassifier(5, seed=0), key="device", max_keys=n_keys), X, y)


def learn_with_dict(learners: dict[int, Any], X: np.ndarray, y: list[bool]) -> float:
    """Predict and learn each row with the learner of its key in a dict. Returns microseconds of CPU a row."""
    rows = X.tolist()
    start = _now()
    for row, label in zip(rows, y, strict=True):
        x, learner = dict(zip(NAMES[:-1], row, strict=False)), learners[int(row[-1])]
        learner.predict_proba_one(x)
        learner.learn_one(x, label)
    return (_now() - start) / 1e3 / len(y)


def measure_models(repeats: int, key_counts: list[int]) -> dict[str, Any]:
    """Measure the small models of one key and of several numbers of keys in random order, and a dict of kernel machines:
    microseconds a row without the global model, ratios to one key in the same repeat, bytes per key, and times of checkpoints.
    """
    rng = np.random.default_rng(1)
    models = {n_keys: make_model(rng, n_keys) for n_keys in (1, *key_counts)}
    X, y = make_rows(rng, BATCH_ROWS, 1)
    alone, machine = (prepare(learner, X[:, :-1], y) for learner in (BSGDClassifier(5, seed=0), BSCAClassifier(15, seed=0)))
    learners = {key: copy.deepcopy(machine) for key in range(DICT_KEYS)}
    times: dict[Any, list[float]] = {name: [] for name in (*models, DICT)}
    for _ in range(repeats):
        for n_keys, model in models.items():
            X, y = make_rows(rng, MODEL_ROWS, n_keys)
            times[n_keys].append(learn_rows(model, X, y) - learn_rows(alone, X[:, :-1], y))
        times[DICT].append(learn_with_dict(learners, *make_rows(rng, MODEL_ROWS // 16, DICT_KEYS)))
    results, lines = {}, []
    for name, values in times.items():
        model, summary = models.get(name), summarise(values)
        ratios = summarise([value / one for value, one in zip(values, times[1], strict=True)])
        size = machine.nbytes if model is None else (model.nbytes - model.classifier.nbytes) / name
        results[str(name)] = {"microseconds": summary, "ratio": ratios, "bytes": size}
        numbers = [f"{summary[quantile]:.2f}" for quantile in ("min", "median", "max")]
        lines.append([f"{name:,} key{'s' * (name > 1)}" if model else name, *numbers, f"{ratios['median']:.2f}", f"{size:,.0f}"])
    columns = ["random order", "us, min", "median", "max", "/ one key", "bytes per key"]
    print_table("Microseconds of CPU to predict and learn a row with the small models of its key", columns, lines)
    return results | {"checkpoints": measure_checkpoints(models[key_counts[-1]], repeats)}


def measure_checkpoints(model: KeyedClassifier, repeats: int) -> dict[str, Any]:
    """Measure the seconds of a first checkpoint, with all keys, and of the one after rows of 1 % of the keys."""
    rng, n_keys = np.random.default_rng(2), model.max_keys
    seconds: dict[str, list[float]] = {"all keys": [], "1 % of the keys": []}
    for _ in range(repeats):
        saved = copy.deepcopy(model)
        with tempfile.TemporaryDirectory() as path, CheckpointFolder(path) as folder:
            for rows, times in enumerate(seconds.values()):
                X, y = make_rows(rng, n_keys // 100, n_keys)
                X[:, -1] = rng.choice(n_keys, len(X), replace=False)
                learn_rows(saved, X, y)
                start = time.perf_counter()
                folder.save(saved, None, rows=rows, position={})
                times.append(time.perf_counter() - start)
    results = {name: summarise(times) for name, times in seconds.items()}
    lines = [[name, *(f"{times[quantile]:.4f}" for quantile in ("min", "median", "max"))] for name, times in results.items()]
    print_table(f"Seconds of a checkpoint of {n_keys:,} keys", ["after rows of", "min", "median", "max"], lines)
    return results
