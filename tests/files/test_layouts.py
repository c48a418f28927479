"""Golden files continue in versions of the package with another layout, and files of other layouts are checked as any other."""

import gzip
import inspect
import json
from collections import Counter
from itertools import islice

import layouts
import numpy as np
import pytest
from river import base, datasets

import changed_layouts
import streamsvm
from changed_layouts import CHANGES, GOLDEN, continue_on_bananas, list_outputs, run_in, write_copy
from lists import OF_RELEASE
from refused import refused
from saved_models import ROWS
from streamsvm import BSGDClassifier, KernelRLSRegressor, SVMClassifier, SVMRegressor
from streamsvm.core.memory import saved_layout
from streamsvm.core.memory.ensemble import EnsembleStore
from streamsvm.core.memory.forest import ForestStore
from streamsvm.files.codecs import OWN_CLASSES, RENAMED_CLASSES
from streamsvm.files.container import unpack_container
from streamsvm.files.model_file import read_parts
from streamsvm.learners import OnlineLinearSVC

EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def test_the_present_layouts_are_recorded():
    # If this fails, a layout has changed: increase LAYOUT_VERSION, and run `python release/layouts.py`.
    recorded = json.loads(layouts.PATH.read_text())
    assert recorded[str(saved_layout.LAYOUT_VERSION)] == layouts.describe_layouts()
    assert list(recorded) == [str(number) for number in range(1, saved_layout.LAYOUT_VERSION + 1)]


@pytest.mark.thorough
@pytest.mark.parametrize("change", CHANGES if OF_RELEASE else ["stores", "everything"])
def test_golden_files_continue_in_a_version_with_another_layout(change, tmp_path):
    """For a release also with each change alone."""
    write_copy(tmp_path, change)
    answers = json.loads(run_in(tmp_path, changed_layouts.__file__, "golden"))
    changes_experts = change == "everything" or "expert" in change
    assert answers.keys() == EXPECTED.keys()
    for name, answer in answers.items():
        expected = EXPECTED[name]
        if name.startswith("run "):
            assert answer["rows"] == expected["rows"]
            for score, values in expected["scores"].items():
                assert answer["scores"][score] == pytest.approx(values, rel=1e-5), (name, score)
            continue
        (saved, outputs), (learned, _) = answer
        if not outputs[0] or not changes_experts:
            np.testing.assert_allclose(saved, expected["saved"], rtol=1e-5, atol=1e-5, err_msg=name)
            if "learned" in expected:
                np.testing.assert_allclose(learned, expected["learned"], rtol=1e-5, atol=1e-5, err_msg=name)
        if not outputs[0]:
            continue
        model = read_parts(unpack_container(gzip.decompress((GOLDEN / f"models/{name}.safetensors.gz").read_bytes())))["model"]
        for x, row in zip(ROWS[::3], outputs, strict=True):
            before = list_outputs(model, x)
            assert (row.keys() > before.keys() & row.keys()) == (change in ("expert added", "everything"))
            assert (before.keys() > before.keys() & row.keys()) == (change in ("expert removed", "everything"))
            for expert in before.keys() & row.keys():
                assert row[expert] == pytest.approx(before[expert], rel=1e-4, abs=1e-5), (name, expert)


@pytest.mark.thorough
@pytest.mark.parametrize("change", CHANGES if OF_RELEASE else ["everything"])
def test_the_accuracy_stays_that_of_an_uninterrupted_run(change, tmp_path):
    """For a release also with each change alone, in compiled code: to compile a layout takes three times as long as the rows."""
    write_copy(tmp_path, change)
    path = tmp_path / "model.safetensors"
    model = SVMClassifier("low", seed=0)
    for x, y in islice(datasets.Bananas(), 2000):
        model.learn_one(x, y)
    streamsvm.save(model, path)
    uninterrupted = continue_on_bananas(path, 2000, 3500)
    accuracy = float(run_in(tmp_path, changed_layouts.__file__, "continue", path, 2000, 3500, compiled=OF_RELEASE))
    assert accuracy == pytest.approx(uninterrupted, abs=0.002), change


def test_files_of_newer_layouts_are_refused():
    state = SVMClassifier("low", max_features=3).__getstate__()
    assert "layout" not in state
    for number in (saved_layout.LAYOUT_VERSION + 1, 0, "1", None):
        model = SVMClassifier.__new__(SVMClassifier)
        refused(f"layout {number!r}, and this version knows .*upgrade", model.__setstate__, {**state, "layout": number})


def find_own_objects(value, found, depth=0):
    """Add an object of each class of the library within a value to ``found``, by the name of the class."""
    if type(value).__module__.startswith("streamsvm"):
        found.setdefault(type(value).__name__, value)
    nested = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for item in [*nested, *vars(value).values()] if hasattr(value, "__dict__") and not isinstance(value, type) else nested:
        if depth < 8:
            find_own_objects(item, found, depth + 1)


@pytest.mark.thorough
def test_files_without_a_newer_parameter_have_its_default():
    found, tried = {}, Counter()
    for path in sorted(GOLDEN.glob("models/*.gz")):
        find_own_objects(read_parts(unpack_container(gzip.decompress(path.read_bytes())))["model"], found)
    for name in OWN_CLASSES:
        value = found[RENAMED_CLASSES.get(name, name)]
        kind = type(value)
        for parameter, declared in inspect.signature(kind).parameters.items():
            if declared.default is inspect.Parameter.empty or not hasattr(value, "__dict__"):
                continue
            if getattr(value, parameter, inspect) != declared.default:
                continue
            state = value.__getstate__() if hasattr(kind, "__setstate__") else dict(vars(value))
            state.get("parameters", state).pop(parameter, None)
            older = kind.__new__(kind)
            older.__setstate__(state) if hasattr(kind, "__setstate__") else vars(older).update(state)
            assert getattr(older, parameter) == declared.default, (name, parameter)
            tried[name] += 1
    assert len(tried) >= 35


MODELS = [
    BSGDClassifier(budget=20, max_features=8, seed=0),
    OnlineLinearSVC(max_features=8),
    KernelRLSRegressor(budget=20, max_features=8),
    SVMClassifier("low", max_features=8, seed=0),
    SVMRegressor("low", max_features=8, seed=0),
]


def trained(model, n):
    for i, x in enumerate(ROWS[:n]):
        model.learn_one(x, x["a"] * x["c"] if isinstance(model, base.Regressor) else "rst"[i % model.max_classes % 3])
    return model


def restored(model, **changes):
    copied = type(model).__new__(type(model))
    copied.__setstate__({**model.__getstate__(), **changes})
    return copied


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_reading_by_names_gives_equal_bytes(model):
    model = trained(model.clone(), 45)
    by_names = restored(model, layout_name=model._layout_name)
    assert by_names._store.snapshot() == model._store.snapshot()
    assert [by_names.predict_one(x) for x in ROWS] == [model.predict_one(x) for x in ROWS]


def test_header_fields_that_are_fixed_are_those_of_the_new_store():
    store, forged = (ForestStore(rows=24, max_features=4, labels=0) for _ in range(2))
    forged._header["extra_columns"] = 2**20  # compiled code would read beyond the rows
    part = saved_layout.Part("", "ForestStore", np.dtype([]))
    layout = saved_layout.find_layout(saved_layout.LAYOUT_VERSION, "", [part])
    saved_layout.convert_store(store, forged.snapshot(), layout, part, part)
    assert store.snapshot() == ForestStore(rows=24, max_features=4, labels=0).snapshot()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_forged_stores_are_refused_or_work_when_they_are_converted(model):
    model, rng = trained(model.clone(), 45), np.random.default_rng(0)
    store, outcomes = model._store.snapshot(), set()
    for trial in range(30):
        forged = bytearray(store)
        if trial % 3 == 0:  # a size or a count
            place = 8 * int(rng.integers(0, 24)) + 8 * (type(model._store) is EnsembleStore)
            forged[place : place + 8] = int(rng.choice([-1, 0, 1, 7, 2**20, 2**31, 2**62])).to_bytes(8, "little", signed=True)
        elif trial % 3 == 1:
            del forged[int(rng.integers(0, len(forged))) :]
        else:
            forged[int(rng.integers(0, len(forged)))] ^= 1 << int(rng.integers(0, 8))
        try:
            changed = restored(model, layout_name=model._layout_name, store=bytes(forged))
        except ValueError:
            outcomes.add("refused")
            continue
        outcomes.add("works")
        for x in ROWS[45:]:
            changed.predict_one(x)
    assert outcomes == {"refused", "works"}
