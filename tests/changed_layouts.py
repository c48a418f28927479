"""Copies of the package whose stores have another layout, as a later version might have, and a script that runs in them.

There, ``python tests/changed_layouts.py golden FOLDER`` loads the golden files in a folder, and prints their predictions
and what their experts output, before and after they learn the other rows. ``python tests/changed_layouts.py continue FILE FIRST
STOP`` continues a saved model with these rows of the Bananas data, and prints its accuracy.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "streamsvm"
GOLDEN = TESTS / "files" / "golden" / "version-1"


def before(file, text, *lines):
    """An edit that inserts lines before each place of a text."""
    return file, re.escape(text), "".join(lines).replace("\\", r"\\") + text


def widen(file, *names):
    """Edits that double the bytes of the items of arrays."""
    return [(file, rf"( {name}: Annotated\[np.ndarray, Array\(np\.)(float|int)32", r"\g<1>\g<2>64") for name in names]


ARRAYS = {
    "support_vectors": ("vectors", '("columns", "outputs")'),
    "weights": ("weights", '(3, "columns")'),
    "landmarks": ("prior", '("stride",)'),
    "neighbours": ("targets", '("rows",)'),
    "forest": ("rows", "(7,)"),
    "ensemble": ("weights", '("inputs", "experts")'),
}
LINEAR = r"( +)_make_linear_expert\(1.0\),\n"
#: Changes of layouts: edits of files of the package, as (file, regular expression, replacement).
CHANGES = {
    "field added": [
        ("core/memory/block.py", "STATE_END = 128, 384", "STATE_END = 192, 512"),
        before("core/steps/iterates.py", '        ("t", "i8"),', '        ("pauses", "f8", 2),\n'),
        before("core/steps/coordinate_ascent.py", '        ("reprocess", "i8"),', '        ("added", "i8"),\n'),
        before("core/memory/ensemble.py", '        ("scaling", "i8"),', '        ("added", "f8"),\n'),
        before("core/memory/support_vectors.py", '        ("n_support", "i8"),', '        ("n_removed", "i8"),\n'),
    ],
    "array added": [
        before(f"core/memory/{file}.py", f"    {name}: A", f"    extra: Annotated[np.ndarray, Array(np.float64, {shape})]\n")
        for file, (name, shape) in ARRAYS.items()
    ],
    "expert added": [
        ("learners/ensemble.py", LINEAR, r"\g<1>_SECOND_ORDER[0],\n\g<0>"),
        ("learners/ensemble.py", r"\*_FEATURE_EXPERTS", "_make_landmark_expert(20), *_FEATURE_EXPERTS"),
    ],
    "expert removed": [
        ("learners/ensemble.py", LINEAR, ""),
        ("learners/ensemble.py", r"    _SECOND_ORDER\[0\],\n", ""),
    ],
    "array widened": [
        *widen("core/memory/support_vectors.py", "norms", "weights"),
        *widen("core/memory/landmarks.py", "prior", "window"),
        *widen("core/memory/neighbours.py", "targets", "weights"),
        *widen("core/memory/forest.py", "ages", "errors", "fractions"),
    ],
}
CHANGES["stores"] = [edit for name in ("field added", "array added", "array widened") for edit in CHANGES[name]]
#: Each ensemble loses an expert, and has another one.
CHANGES["everything"] = [
    *CHANGES["stores"],
    ("learners/ensemble.py", r"    _SECOND_ORDER\[0\],\n", ""),
    ("learners/ensemble.py", LINEAR, r"\g<1>_SECOND_ORDER[0],\n"),
    CHANGES["expert added"][1],
]


def write_copy(folder, change):
    """Write a copy of the package with a change of layouts into a folder, and record its layouts."""
    shutil.copytree(PACKAGE, folder / "streamsvm", ignore=shutil.ignore_patterns("__pycache__"))
    version = "core/memory/saved_layout.py", "LAYOUT_VERSION = 1", "LAYOUT_VERSION = 2"
    for file, pattern, replacement in (version, *CHANGES[change]):
        path = folder / "streamsvm" / file
        content, n = re.subn(pattern, replacement, path.read_text())
        assert n, (file, pattern)
        path.write_text(content)
    run_in(folder, TESTS.parent / "release/layouts.py")


def run_in(folder, script, *arguments, compiled=False):
    """Return the output of a script that imports the package from a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(TESTS)]), "PYTHONDONTWRITEBYTECODE": "1"}
    if not compiled:
        environment["NUMBA_DISABLE_JIT"] = "1"
    command = [sys.executable, "-W", "ignore", str(script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def list_outputs(model, x):
    """Return the inputs of the stacks of an ensemble for a row, by expert and output; empty for other models."""
    if not hasattr(model, "experts"):
        return {}
    model.predict_one(x)
    names = [f"{expert.name}, {output}" for expert in model._expert_specs for output in expert.outputs]
    return dict(zip(names, model._store.views.inputs[:, 2:].T.tolist(), strict=True))


def answer(path):
    """Return the predictions of a golden model, and the outputs of its experts, when it is loaded and after it has learned. A
    copy that is saved and loaded again must be equal.
    """
    import saved_models
    from streamsvm.files.container import unpack_container
    from streamsvm.files.model_file import read_parts, serialize_parts

    def load(data):
        return read_parts(unpack_container(data))["model"]

    def describe(model):
        return saved_models.answers_of(model), [list_outputs(model, x) for x in saved_models.ROWS[::3]]

    models = [load(gzip.decompress(path.read_bytes()))]
    models.append(load(serialize_parts({"model": models[0]}, {})))
    states = []
    for learns in (False, True):
        if learns and not (saved_models.is_machine(models[0]) or path.name.startswith("Batch")):
            for model in models:
                saved_models.learn(model, saved_models.N_LEARNED, len(saved_models.ROWS))
        assert serialize_parts({"model": models[0]}, {}) == serialize_parts({"model": models[1]}, {}), path.name
        states.append(describe(models[0]))
        assert describe(models[1]) == states[-1]
    return states


def finish_run(path):
    """Return the end of a golden run that resumes from its checkpoint."""
    import saved_models

    with tempfile.TemporaryDirectory() as folder:
        saved_models.write_rows_of_runs(Path(folder))
        shutil.copytree(path, Path(folder, "state"))
        return saved_models.run(path.name, folder)


def continue_on_bananas(path, first, stop):
    """Return the share of correct predictions of a saved model for further rows, which it learns."""
    from river import datasets

    import streamsvm

    model, correct = streamsvm.load(path), 0
    for x, y in islice(datasets.Bananas(), first, stop):
        correct += model.predict_one(x) == y
        model.learn_one(x, y)
    return correct / (stop - first)


if __name__ == "__main__":
    if sys.argv[1] == "golden":
        answers = {path.name.partition(".")[0]: answer(path) for path in sorted(GOLDEN.glob("models/*.gz"))}
        runs = {f"run {path.name}": finish_run(path) for path in sorted(GOLDEN.glob("runs/*"))}
        print(json.dumps({**answers, **runs}))  # noqa: T201
    else:
        print(continue_on_bananas(sys.argv[2], *map(int, sys.argv[3:])))  # noqa: T201
