"""Golden files continue in versions of the package with another layout, and files of other layouts are checked as any other."""

import gzip
import json
from itertools import islice

import numpy as np
import pytest
from river import datasets

import changed_layouts
import streamsvm
from changed_layouts import CHANGES, GOLDEN, continue_on_bananas, list_outputs, run_in, write_copy
from refused import refused
from release import layouts
from saved_models import ROWS
from streamsvm import SVMClassifier
from streamsvm.core.memory import saved_layout
from streamsvm.files.container import unpack_container
from streamsvm.files.model_file import read_parts

EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def test_the_present_layouts_are_recorded():
    # If this fails, a layout has changed: increase LAYOUT_VERSION, and run `python release/layouts.py`.
    recorded = json.loads(layouts.PATH.read_text())
    assert recorded[str(saved_layout.LAYOUT_VERSION)] == layouts.describe_layouts()
    assert list(recorded) == [str(number) for number in range(1, saved_layout.LAYOUT_VERSION + 1)]


@pytest.fixture(scope="module", params=CHANGES)
def changed(request, tmp_path_factory):
    """The name of a change, a copy of the package with it, and what golden files answer there."""
    folder = tmp_path_factory.mktemp("changed")
    write_copy(folder, request.param)
    return request.param, folder, json.loads(run_in(folder, changed_layouts.__file__, "golden"))


@pytest.mark.thorough
def test_golden_files_continue_in_a_version_with_another_layout(changed):
    change, _, answers = changed
    assert answers.keys() == EXPECTED.keys()
    for name, answer in answers.items():
        expected = EXPECTED[name]
        if name.startswith("run "):
            assert answer["rows"] == expected["rows"]
            for score, values in expected["scores"].items():
                assert answer["scores"][score] == pytest.approx(values, rel=1e-5), (name, score)
            continue
        (saved, outputs), (learned, _) = answer
        if not outputs[0] or "expert" not in change:
            np.testing.assert_allclose(saved, expected["saved"], rtol=1e-5, atol=1e-5, err_msg=name)
            if "learned" in expected:
                np.testing.assert_allclose(learned, expected["learned"], rtol=1e-5, atol=1e-5, err_msg=name)
        if not outputs[0]:
            continue
        model = read_parts(unpack_container(gzip.decompress((GOLDEN / f"models/{name}.safetensors.gz").read_bytes())))["model"]
        for x, row in zip(ROWS[::3], outputs, strict=True):
            before = list_outputs(model, x)
            assert len(before.keys() & row.keys()) == min(len(before), len(row))
            assert (len(row) > len(before)) == (change == "expert added")
            assert (len(row) < len(before)) == (change == "expert removed")
            for expert in before.keys() & row.keys():
                assert row[expert] == pytest.approx(before[expert], rel=1e-4, abs=1e-5), (name, expert)


@pytest.mark.thorough
def test_the_accuracy_stays_that_of_an_uninterrupted_run(changed, tmp_path):
    change, folder, _ = changed
    path = tmp_path / "model.safetensors"
    model = SVMClassifier("low", seed=0)
    for x, y in islice(datasets.Bananas(), 2000):
        model.learn_one(x, y)
    streamsvm.save(model, path)
    uninterrupted = continue_on_bananas(path, 2000, 4000)
    accuracy = float(run_in(folder, changed_layouts.__file__, "continue", path, 2000, 4000, compiled=True))
    assert accuracy == pytest.approx(uninterrupted, abs=0.002), change


def test_files_of_newer_layouts_are_refused():
    state = SVMClassifier("low", max_features=3).__getstate__()
    assert "layout" not in state
    for number in (saved_layout.LAYOUT_VERSION + 1, 0, "1", None):
        model = SVMClassifier.__new__(SVMClassifier)
        refused(f"layout {number!r}, and this version knows .*upgrade", model.__setstate__, {**state, "layout": number})
