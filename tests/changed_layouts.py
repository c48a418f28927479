"""Copies of the package whose stores have another layout, as a later version might have, and a script that runs in them.

``python tests/changed_layouts.py golden FOLDER`` in such a copy loads the golden models in a folder, and prints what they predict
and what their experts output, before and after they learn the other rows. ``python tests/changed_layouts.py continue FILE``
continues a saved model on the Bananas data, and prints its accuracy. A copy is interpreted, not compiled.
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "streamsvm"

_VERSION = ("core/memory/saved_layout.py", "LAYOUT_VERSION = 1", "LAYOUT_VERSION = 2")
_ROOM = ("core/memory/block.py", "STATE_BEGIN, STATE_END = 128, 384", "STATE_BEGIN, STATE_END = 192, 512")
#: Changes of layouts: edits of files of the package, as (file, text, replacement).
CHANGES = {
    "field added": [
        _ROOM,
        ("core/steps/iterates.py", '        ("t", "i8"),', '        ("pauses", "f8", 2),\n        ("t", "i8"),'),
        (
            "core/steps/coordinate_ascent.py",
            '        ("reprocess", "i8"),',
            '        ("added", "i8"),\n        ("reprocess", "i8"),',
        ),
        ("core/memory/ensemble.py", '        ("scaling", "i8"),', '        ("added", "f8"),\n        ("scaling", "i8"),'),
        (
            "core/memory/support_vectors.py",
            '        ("n_support", "i8"),',
            '        ("n_removed", "i8"),\n        ("n_support", "i8"),',
        ),
    ],
    "array added": [
        (
            f"core/memory/{file}.py",
            f"    {name}: Annotated",
            f"    added: Annotated[np.ndarray, Array(np.float64, {shape})]\n    {name}: Annotated",
        )
        for file, name, shape in (
            ("support_vectors", "vectors", '("columns", "outputs")'),
            ("weights", "weights", '(3, "columns")'),
            ("landmarks", "prior", '("stride",)'),
            ("neighbours", "targets", '("rows",)'),
            ("forest", "rows", "(7,)"),
            ("ensemble", "weights", '("inputs", "experts")'),
        )
    ],
    "expert added": [
        (
            "learners/ensemble.py",
            "        _make_linear_expert(1.0),\n",
            "        _make_linear_expert(1.0),\n        _SECOND_ORDER[0],\n",
        ),
        ("learners/ensemble.py", "_make_linear_expert(1.0),", "_make_linear_expert(30.0),\n        _make_linear_expert(1.0),"),
        (
            "learners/ensemble.py",
            "    _ADDITIVE,\n    LastTarget",
            "    _make_linear_expert(3.0),\n    _ADDITIVE,\n    LastTarget",
        ),
    ],
    "expert removed": [
        (
            "learners/ensemble.py",
            "        _make_ascent_expert(1.0, 1.0, resets=True),\n        _make_linear_expert(1.0),\n",
            "        _make_ascent_expert(1.0, 1.0, resets=True),\n",
        ),
        ("learners/ensemble.py", "    _SECOND_ORDER[0],\n    _ADDITIVE,", "    _ADDITIVE,"),
    ],
    "array widened": [
        (
            "core/memory/support_vectors.py",
            "norms: Annotated[np.ndarray, Array(np.float32,",
            "norms: Annotated[np.ndarray, Array(np.float64,",
        ),
        (
            "core/memory/support_vectors.py",
            "    weights: Annotated[np.ndarray, Array(np.float32,",
            "    weights: Annotated[np.ndarray, Array(np.float64,",
        ),
        (
            "core/memory/landmarks.py",
            "prior: Annotated[np.ndarray, Array(np.float32,",
            "prior: Annotated[np.ndarray, Array(np.float64,",
        ),
        (
            "core/memory/neighbours.py",
            "targets: Annotated[np.ndarray, Array(np.float32,",
            "targets: Annotated[np.ndarray, Array(np.float64,",
        ),
        ("core/memory/forest.py", "ages: Annotated[np.ndarray, Array(np.int32,", "ages: Annotated[np.ndarray, Array(np.int64,"),
    ],
}


def write_copy(folder, change):
    """Write a copy of the package with a change of layouts into a folder, and record its layouts."""
    shutil.copytree(PACKAGE, folder / "streamsvm", ignore=shutil.ignore_patterns("__pycache__"))
    for file, text, replacement in (_VERSION, *CHANGES[change]):
        path = folder / "streamsvm" / file
        content = path.read_text()
        assert text in content, (file, text)
        path.write_text(content.replace(text, replacement))
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
    last = model[-1] if hasattr(model, "steps") else model
    if not hasattr(last, "experts"):
        return {}
    last.predict_one(x)
    names = [f"{expert.name}, {output}" for expert in last._expert_specs for output in expert.outputs]
    return dict(zip(names, last._store.views.inputs[:, 2:].T.tolist(), strict=True))


def answer(path):
    """Return the predictions of a golden model, and the outputs of its experts, when it is loaded and after it has learned."""
    import saved_models
    from streamsvm.files.container import unpack_container
    from streamsvm.files.model_file import read_parts, serialize_parts

    def load(data):
        return read_parts(unpack_container(data))["model"]

    def describe(model):
        return saved_models.answers_of(model), [list_outputs(model, x) for x in saved_models.ROWS[::3]]

    model = load(gzip.decompress(path.read_bytes()))
    before = describe(model)
    data = serialize_parts({"model": model}, {})
    again = load(data)
    assert serialize_parts({"model": again}, {}) == data
    assert describe(again) == before
    if saved_models.is_machine(model) or path.name.startswith("Batch"):
        return before, before
    for each in (model, again):
        saved_models.learn(each, saved_models.N_LEARNED, len(saved_models.ROWS))
    assert describe(again) == describe(model)
    return before, describe(model)


def continue_on_bananas(path, first, stop):
    """Return the share of correct predictions of a saved model for further rows, which it learns."""
    from itertools import islice

    from river import datasets

    import streamsvm

    model, correct = streamsvm.load(path), 0
    for x, y in islice(datasets.Bananas(), first, stop):
        correct += model.predict_one(x) == y
        model.learn_one(x, y)
    return correct / (stop - first)


if __name__ == "__main__":
    if sys.argv[1] == "golden":
        paths = sorted(Path(sys.argv[2]).glob("*.gz"))
        print(json.dumps({path.name.partition(".")[0]: answer(path) for path in paths}))  # noqa: T201
    else:
        print(continue_on_bananas(sys.argv[2], *map(int, sys.argv[3:])))  # noqa: T201
