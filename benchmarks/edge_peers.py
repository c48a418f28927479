"""Compares our C code with that of emlearn, m2cgen and micromlgen on a Cortex-M4: bytes, stack, instructions, accuracy.

Ours are BSCA classifiers with 60 and 100 support vectors of 32, 16 and 8 bits a number that have learned all rows in one pass.
The forests of emlearn and m2cgen, and the multilayer perceptrons of emlearn, are scikit-learn's, fitted to the same rows; the
support vector machines of m2cgen and micromlgen store all support vectors, so they are fitted to the first 500 rows. All sources
are compiled by ``arm-none-eabi-gcc -Os``, linked with the C library, and called with a row of floats. Flash is that of the linked
program minus that of a program that does nothing; ``qemu-system-arm`` counts instructions and measures the stack. Accuracy is
that of the same C code, compiled for this computer, on held-out rows.
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import m2cgen
import micromlgen
import numpy as np
from _cortex_m4 import measure_source
from common import Split, make_parser, print_table, report_progress, write_json
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

from edge import load_device_split, train_model
from streamsvm.export.c import write_c
from streamsvm.export.convert import make_program

with np.errstate():  # importing emlearn changes numpy's error state
    import emlearn

BUDGETS, BITS = (60, 100), (32, 16, 8)
GAMMAS = {"digits": 0.001, "ijcnn1": 2.0, "magic04": 0.1}  # the same for our models
SVC_ROWS, TEST_ROWS = 500, 20_000
# Factors that convert features to 16-bit integers; thresholds of trees become integers, too.
INTEGER_FACTORS = {"digits": 100.0, "ijcnn1": 10_000.0, "magic04": 1000.0}

FORESTS = [
    (RandomForestClassifier, 3, None),
    (RandomForestClassifier, 10, 100),
    (RandomForestClassifier, 10, None),
    (ExtraTreesClassifier, 10, 100),
]

_LOOP_SOURCE = """
int answer(const float *x);
void answers(const float *x, int features, long n, int *out)
{
    long i;
    for (i = 0; i < n; i++) out[i] = answer(x + i * features);
}
"""


def make_ours(name: str, split: Split, folder: Path) -> Iterator[tuple[str, np.ndarray, list[Path]]]:
    for budget in BUDGETS:
        model = train_model(name, split, budget)
        program = make_program(model)
        for bits in BITS:
            files = write_c(program, folder, bits=bits)
            (folder / "answer.c").write_text('#include "model.h"\nint answer(const float *x) { return model_predict(x); }\n')
            labels = np.array(program.answer.labels)
            yield f"streamsvm, {budget} vectors, {bits} bits", labels, [files.source, folder / "answer.c"]


def make_forests(name: str, split: Split, folder: Path) -> Iterator[tuple[str, np.ndarray, list[Path]]]:
    n, factor = split.X.shape[1], INTEGER_FACTORS[name]
    y = np.unique(split.y, return_inverse=True)[1]
    for kind, count, leaves in FORESTS:
        forest = kind(count, max_leaf_nodes=leaves, random_state=0).fit(split.X, y)
        description = f"{'random forest' if kind is RandomForestClassifier else 'extra trees'}, {count} trees"
        description += f" of {leaves} leaves" if leaves else ""
        emlearn.convert(forest, method="inline", dtype="float").save(name="model", file=str(folder / "model.h"))
        yield f"emlearn, {description}", np.unique(split.y), [_write_answer(folder, f"model_predict(x, {n})")]
        if count == 3:
            yield f"m2cgen, {description}", np.unique(split.y), _write_m2cgen(folder, forest, n, len(np.unique(y)))
    integer_forest = RandomForestClassifier(10, random_state=0).fit(np.rint(factor * split.X), y)
    emlearn.convert(integer_forest, method="loadable", dtype="int16_t").save(name="model", file=str(folder / "model.h"))
    declarations = f"int16_t given[{n}];\n    int j;\n    for (j = 0; j < {n}; j++)"
    declarations += f" given[j] = (int16_t)(x[j] * {factor}f + (x[j] < 0 ? -0.5f : 0.5f));"
    answer = _write_answer(folder, f"model_predict(given, {n})", declarations)
    yield "emlearn, random forest, 10 trees, as a table", np.unique(split.y), [answer]


def make_networks(_: str, split: Split, folder: Path) -> Iterator[tuple[str, np.ndarray, list[Path]]]:
    y = np.unique(split.y, return_inverse=True)[1]
    for units in (8, 32):
        network = MLPClassifier((units,), max_iter=200, early_stopping=len(y) > 10_000, random_state=0).fit(split.X, y)
        with contextlib.chdir(folder):  # it writes temporary files to the current folder
            emlearn.convert(network, method="inline").save(name="model", file=str(folder / "model.h"))
        call = f"model_predict(x, {split.X.shape[1]})"
        yield f"emlearn, perceptron of {units} units", np.unique(split.y), [_write_answer(folder, call)]


def make_machines(name: str, split: Split, folder: Path) -> Iterator[tuple[str, np.ndarray, list[Path]]]:
    X, y = split.X[:SVC_ROWS], np.unique(split.y, return_inverse=True)[1][:SVC_ROWS]
    machine = SVC(C=10.0, gamma=GAMMAS[name]).fit(X, y)
    description, labels = f"SVC of {SVC_ROWS} rows, {len(machine.support_)} vectors", np.unique(split.y)
    yield f"m2cgen, {description}", labels, _write_m2cgen(folder, machine, X.shape[1], len(labels))
    (folder / "cstdarg").write_text("#include <stdarg.h>\n")  # replaces a header of the C++ library, which is not linked
    (folder / "model.h").write_text(micromlgen.port(machine))
    call = "machine.predict(const_cast<float *>(x))"
    answer = _write_answer(
        folder, call, "static Eloquent::ML::Port::SVM machine;", "#include <math.h>\n#include <stdint.h>\n", "cpp"
    )
    yield f"micromlgen, {description}", labels, [answer]


def _write_m2cgen(folder: Path, model: Any, n: int, labels: int) -> list[Path]:
    text = m2cgen.export_to_c(model)
    (folder / "model.h").write_text(text)
    declarations = f"double given[{n}];\n    int j;\n    for (j = 0; j < {n}; j++) given[j] = x[j];"
    if "double score(" in text:  # one decision value
        return [_write_answer(folder, "score(given) > 0.0", declarations)]
    # A support vector machine returns a decision value for each pair of labels, a forest a probability of each.
    if isinstance(model, SVC):
        width = labels * (labels - 1) // 2
        declarations += (
            f"\n    double out[{width}];\n    int votes[{labels}] = {{0}}, a, b, best = 0;\n    score(given, out);\n    j = 0;"
        )
        declarations += (
            f"\n    for (a = 0; a < {labels}; a++) for (b = a + 1; b < {labels}; b++) votes[out[j++] > 0.0 ? a : b]++;"
        )
        declarations += f"\n    for (a = 1; a < {labels}; a++) if (votes[a] > votes[best]) best = a;"
        return [_write_answer(folder, "best", declarations)]
    declarations += f"\n    double out[{labels}];\n    int best = 0;\n    score(given, out);"
    declarations += f"\n    for (j = 1; j < {labels}; j++) if (out[j] > out[best]) best = j;"
    return [_write_answer(folder, "best", declarations)]


def _write_answer(folder: Path, call: str, setup: str = "", includes: str = "", suffix: str = "c") -> Path:
    """Write a source file whose function ``answer`` returns the value of a C expression, and return its path."""
    path = folder / f"answer.{suffix}"
    extern = '#ifdef __cplusplus\nextern "C"\n#endif\n'
    path.write_text(
        f'{includes}#include "model.h"\n{extern}int answer(const float *x)\n{{\n    {setup}\n    return (int)({call});\n}}\n'
    )
    return path


def measure_accuracy(folder: Path, sources: list[Path], labels: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
    """Return the accuracy (percent) of C sources, compiled for this computer; they return indices into ``labels``."""
    (folder / "rows.c").write_text(_LOOP_SOURCE)
    with tempfile.NamedTemporaryFile(suffix=".so", dir=folder) as library:
        command = ["gcc", "-O1", "-shared", "-fPIC", f"-I{folder}", f"-I{emlearn.includedir}", "-o", library.name]
        subprocess.run([*command, *sources, folder / "rows.c", "-lm"], check=True, capture_output=True)
        X, out = np.ascontiguousarray(X, np.float32), np.empty(len(X), np.intc)
        run = ctypes.CDLL(library.name).answers
        run(ctypes.c_void_p(X.ctypes.data), X.shape[1], ctypes.c_long(len(X)), ctypes.c_void_p(out.ctypes.data))
    return 100.0 * float((labels[out] == y).mean())


def main() -> None:
    parser = make_parser(__doc__, "edge_peers")
    parser.add_argument("--sets", nargs="*", choices=list(GAMMAS), default=list(GAMMAS))
    args = parser.parse_args()
    results = []
    for name in args.sets:
        split = load_device_split(name, args.data)
        order = np.random.default_rng(0).permutation(len(split.y_test))[:TEST_ROWS]
        X, y = split.X_test[order], split.y_test[order]
        for make_variants in (make_ours, make_forests, make_networks, make_machines):
            with tempfile.TemporaryDirectory() as folder_name:
                folder = Path(folder_name)
                for description, labels, sources in make_variants(name, split, folder):
                    right = measure_accuracy(folder, sources, labels, X, y)
                    needs = measure_source(
                        folder,
                        sources,
                        "int answer(const float *x);",
                        "sink += answer(rows[i]);",
                        X[:20],
                        f"-I{emlearn.includedir}",
                    )
                    results.append({"data": name, "model": description, **needs._asdict(), "accuracy": right})
                    report_progress(f"{name}: {results[-1]}")
    names = ["data", "model", "flash", "ram", "stack", "instructions", "accuracy"]
    cells = [
        [f"{v:.1f}" if isinstance(v := row[k], float) else f"{v:,}" if isinstance(v, int) else v or "-" for k in names]
        for row in results
    ]
    print_table("On a Cortex-M4: bytes, instructions of a prediction, % of held-out rows", names, cells)
    write_json(args.out, {"models": results})


if __name__ == "__main__":
    main()
