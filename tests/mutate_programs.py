"""Mutates saved models with valid checksums, loads them, and predicts: without crashes, hangs and unbounded memory.

``python tests/mutate_programs.py N SEED`` mutates N files, those of ``golden`` and a few more, and prints the outcomes as JSON.
It fails if a reader raises anything but its own errors, takes more than a second, exceeds a memory limit, or makes invalid
predictions.
"""

import copy
import io
import json
import math
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from edge_models import forest, memory, program
from mutated_files import at, nodes
from streamsvm import edge
from streamsvm.edge.predictor import PROGRAM_KEY
from streamsvm.export.quantise import quantise_program
from streamsvm.files.container import DTYPES, pack_container, unpack_container

GOLDEN = Path(__file__).parent / "edge" / "golden"
MAX_MEMORY_BYTES = 2**31  # address space, in addition to that of the process at its start
MAX_SECONDS_PER_MB = 1.0  # processor time for a file, and for each megabyte of it

EXTREMES = [
    *(0, 1, -1, 2, 3, 7, 255, 2**20, 2**31 - 1, 2**31, 2**62, 2**63, 10**30, 10**300, -(2**63), 0.5, -0.0, 1e-320, 1e308, -1e308),
    *(math.nan, math.inf, -math.inf, True, False, None, "", "a", "kernel", "rbf", "\ud800", "x" * 5000, [], [[]], {}, {"a": 1}),
    *([0], [0, 0], [0] * 100, list(range(50)), {"kind": "margin"}, "program.0", "program.1"),
]
STEPS = [
    *("impute", "fill", "cycles", "scale", "select", "clip", "hinges", "kernel", "fourier"),
    *("neighbours", "trees", "forest", "log", "linear", "concat", "votes", "pair_scores", "experts"),
]
NUMBERS = [0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, -1e300, 1.7e308, math.nan, math.inf, -math.inf, 5e-324]


def mutate_json(rng, tree):
    """Change one entry of a program's JSON in place."""
    paths = [path for path in nodes(tree) if path]
    path = rng.choice(paths)
    parent, key = at(tree, path[:-1]), path[-1]
    kind = rng.randrange(7)
    if kind == 0:
        del parent[key]
    elif kind == 1:
        parent[key] = copy.deepcopy(at(tree, rng.choice(paths)))
    elif kind == 2 and type(parent[key]) in (int, float):
        parent[key] += rng.choice((1, -1, 1000, 2**40, 0.5))
    elif kind == 3 and isinstance(parent, list):
        max_copies = 2**20 // len(json.dumps(parent[key])) + 1  # so that mutating is not slower than reading
        parent += [copy.deepcopy(parent[key])] * min(rng.choice((1, 2, 100, 10**4)), max_copies)
    elif kind == 4 and isinstance(parent, dict):
        parent[rng.choice(list(parent))] = parent.pop(key)
    elif kind == 5 and key == "op":
        parent[key] = rng.choice(STEPS)
    else:
        parent[key] = copy.deepcopy(rng.choice(EXTREMES))


def mutate_array(rng, arrays):
    """Change the numbers, the dtype or the shape of a random array, or remove it."""
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    kind = rng.randrange(6)
    if kind == 0 and array.size:
        data = bytearray(array.tobytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        array = np.frombuffer(bytes(data), array.dtype).reshape(array.shape)
    elif kind == 1 and array.size:
        array = array.copy()
        with np.errstate(all="ignore"):
            array.reshape(-1)[rng.randrange(array.size)] = (
                rng.choice(NUMBERS)
                if array.dtype.kind == "f"
                else np.array(rng.choice((0, 1, -1, 2**31 - 1, 2**62, -(2**63))), np.int64).astype(array.dtype)
            )
    elif kind == 2:
        array = array.astype(rng.choice(list(DTYPES.values()))) if array.dtype != bool else array
    elif kind == 3:
        array = np.ascontiguousarray(array.T if rng.random() < 0.5 else array.ravel())
    elif kind == 4:
        array = array[: rng.randrange(len(array) + 1)] if array.ndim else array
    else:
        array = np.zeros(rng.choice(((0,), (0, 0), (2, 0), (0, 3), (1,), (3, 1, 1), (100, 100))))
    arrays[name] = array
    if rng.random() < 0.05:
        del arrays[name]


def mutate_file(rng, strings, arrays):
    """Return a file with one to three changes in its program, and a valid checksum."""
    strings, arrays = dict(strings), dict(arrays)
    tree = json.loads(strings[PROGRAM_KEY])
    for _ in range(rng.choice((1, 1, 2, 3))):
        program_arrays = {name: array for name, array in arrays.items() if name.startswith(PROGRAM_KEY)}
        if rng.random() < 0.4 and program_arrays:
            old_names = set(program_arrays)
            mutate_array(rng, program_arrays)
            arrays = {name: array for name, array in arrays.items() if name not in old_names} | program_arrays
        else:
            mutate_json(rng, tree)
            if not isinstance(tree, dict):
                break
    strings[PROGRAM_KEY] = json.dumps(tree)
    if rng.random() < 0.02:
        strings[PROGRAM_KEY] = rng.choice(("", "{", "[" * 10**5, "null", "1", '{"a":1,"a":2}', strings[PROGRAM_KEY][:-5]))
    if rng.random() < 0.3:
        return pack_npz(strings, arrays)
    return pack_container({name: np.ascontiguousarray(array) for name, array in arrays.items()}, strings)


def pack_npz(strings, arrays):
    data = io.BytesIO()
    np.savez(
        data,
        **{PROGRAM_KEY: np.frombuffer(strings[PROGRAM_KEY].encode(), np.uint8)},
        **{n: a for n, a in arrays.items() if "." in n},
    )
    return data.getvalue()


class TooLongError(BaseException):
    """A reader took too long."""


def _stop(*_):
    raise TooLongError


def check_predictor(predictor, rng):
    """Call all methods of a predictor on a few rows, and check the results."""
    n = len(predictor.columns)
    if n > 10**5:
        return
    X = np.array([[rng.choice((*NUMBERS, 0.3, -2.0)) for _ in range(min(n, 50))] for _ in range(3)]).reshape(3, min(n, 50))
    X = np.tile(X, (1, n // 50 + 1))[:, :n] if n else np.zeros((3, 0))
    predictions = predictor.predict_many(X)
    assert predictions.shape == (3,)
    columns = predictor.program.columns
    numbers = {column.field for column in columns if column.text is column.bucket is column.table is None}
    texts = {column.field: "See you, 明天 " * 1000 for column in columns if predictor.program.is_text(column)}
    texts = {field: text for field, text in texts.items() if field not in numbers}  # a mutated column may be both
    prediction = predictor.predict_one(dict(zip(predictor.columns, [None] * n, strict=True)) | texts)
    assert predictor.kind != "class" or prediction in predictor.labels
    f = predictor.decision_function_many(X)
    assert f.shape[0] == 3
    assert f.dtype == np.float64
    try:
        p = predictor.predict_proba_many(X)
    except ValueError as error:
        assert "no probabilities" in str(error)
    else:
        assert p.shape == (3, len(predictor.labels))
        is_finite = np.isfinite(f).reshape(3, -1).all(axis=1)
        assert ((p[is_finite] >= -1e-9) & (p[is_finite] <= 1.0 + 1e-9)).all()


def load_with_numpy(data, rng):
    try:
        predictor = edge.loads(data)
    except edge.ExportError:
        return "refused"
    check_predictor(predictor, rng)
    return "answers"


def load_with_library(data, path):
    import streamsvm
    from streamsvm.files.container import ModelFileError

    if data[:2] == b"PK":
        return "not of the library"
    path.write_bytes(data)
    try:
        streamsvm.load(path)
    except ModelFileError:
        return "refused"
    return "loaded"


def iter_files():
    """Yield name, strings and arrays of the golden files, and of programs with operations that no golden file has."""
    memories = [(f"memory of {labels}", memory(labels), bits) for labels, bits in ((0, 16), (2, 32), (3, 32), (3, 16))]
    memories += [(f"forest of {labels}", forest(labels, trees=3, depth=4), 32) for labels in (2, 12)]
    programs = ("Gaussian kernel", program("BSGDClassifier 0 of 2"), 8), ("names", program("names of 3"), 32)
    for name, program_to_save, bits in (*memories, *programs):
        text, arrays = quantise_program(program_to_save, bits).serialise()
        yield f"{name}, {bits} bits", {PROGRAM_KEY: text}, arrays
    for path in sorted(GOLDEN.glob("*/*.*")):
        if path.suffix == ".safetensors":
            container = unpack_container(path.read_bytes())
            yield path.name, dict(container.strings), dict(container.arrays)


def run_mutations(n, seed, path, with_library=True):
    """Mutate and read n files; return the counts of the outcomes, and the failures."""
    rng, fates, failures = random.Random(seed), Counter(), []
    originals = list(iter_files())
    signal.signal(signal.SIGPROF, _stop)
    for number in range(n):
        name, strings, arrays = rng.choice(originals)
        try:
            mutated = mutate_file(rng, strings, arrays)
        except Exception:  # noqa: BLE001 - two mutations may be incompatible
            fates["not made"] += 1
            continue
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 20 * MAX_SECONDS_PER_MB)  # interrupts a hang
        try:
            fates["edge " + load_with_numpy(mutated, rng)] += 1
            if with_library:
                fates["library " + load_with_library(mutated, path)] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            fates["failed"] += 1
            failures.append(f"{seed} {number} {name}: {traceback.format_exc(limit=-4)}")
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        if time.process_time() - start > MAX_SECONDS_PER_MB * (1.0 + len(mutated) / 2**20):
            failures.append(f"{seed} {number} {name}: took {time.process_time() - start:.1f} s")
            path.with_suffix(f".{number}").write_bytes(mutated)
    return fates, failures


def main():
    """Run with the arguments of the command line."""
    import tempfile

    n, seed = map(int, sys.argv[1:])
    warnings.simplefilter("ignore")
    path = Path(tempfile.mkdtemp()) / "model"
    for _, strings, arrays in iter_files():
        load_with_library(pack_container(arrays, {PROGRAM_KEY: strings[PROGRAM_KEY]}), path)  # imports
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_MEMORY_BYTES,) * 2)
    fates, failures = run_mutations(n, seed, path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 2**10
    print(json.dumps({"fates": fates, "failures": failures[:20], "peak MiB": peak}, indent=1))  # noqa: T201
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
