"""benchmarks/parity.py, which compares models with their exports, covers all models and all export formats."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from river.preprocessing import MinMaxScaler

from c_compilers import needs_compiler
from c_model import CModel
from streamsvm import BSCAClassifier, learners
from streamsvm.edge.predictor import Predictor
from streamsvm.export.convert import make_program
from streamsvm.export.formats import export

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
#: Largest difference, in standard deviations, that rounding explains: float32 has decision values to 1e-6 of their terms.
ROUNDING = 1e-4
FEW = ["BSGDClassifier of 2", "SVMRegressor of 0", "OneClassBSGD of 1", "CSMOClassifier of 3"]


@pytest.fixture(scope="module")
def parity():
    spec = importlib.util.spec_from_file_location("parity", BENCHMARKS / "parity.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cases(parity):
    return {f"{case.name} of {case.labels}": case for case in parity.list_cases()}


def test_the_benchmark_covers_all_models(cases):
    assert {case.name for case in cases.values()} > {*learners.__all__, "CSMORegressor", "HierarchicalSVC", "OutOfCoreLinearSVR"}
    assert set(FEW) < set(cases)


def test_differences_are_measured(parity):
    ours = parity.Answers(np.array([-1.0, 1.0, 3.0, -3.0]), np.array(["a", "b", "b", "a"]), np.full((4, 2), 0.5))
    theirs = parity.Answers(np.array([-1.0, 1.5, 3.0, -3.0]), np.array(["a", "b", "a", "b"]), np.full((4, 2), [0.4, 0.6]))
    differences = parity.compute_differences(ours, theirs)
    assert differences == {"value": pytest.approx(0.5 / np.sqrt(5.0)), "labels": 2, "probability": pytest.approx(0.1)}
    assert parity.compute_differences(ours, ours) == {"value": 0.0, "labels": 0, "probability": 0.0}


@needs_compiler
@pytest.mark.thorough
@pytest.mark.parametrize("name", FEW)
def test_every_export_format_predicts_as_the_model(parity, cases, name):
    measured = parity.measure_case(cases[name], 300)
    assert measured["refused"] == {}
    assert list(measured["forms"]) == ["numpy", "ONNX", "C, 32 bits", "C, 16 bits", "C, 8 bits", "WebAssembly"]
    for export_format, differences in measured["forms"].items():
        if "16" not in export_format and "8" not in export_format:
            assert differences["value"] < ROUNDING
            assert differences.get("labels", 0) == 0
            assert differences.get("probability", 0.0) < ROUNDING
        assert differences.get("labels", 0) < 30
        assert ("labels" in differences) == ("Classifier" in name)


@needs_compiler
@pytest.mark.thorough
def test_the_benchmark_prints_tables_and_writes_a_file(parity, monkeypatch, tmp_path, capsys):
    out, rng = tmp_path / "parity.json", np.random.default_rng(0)
    rows = [f"{a},{'' if a == 7 else b},{'yes' if a * b > 40 else 'no'}" for a, b in rng.integers(0, 20, (120, 2)).tolist()]
    (tmp_path / "whole.csv").write_text("\n".join(["a,b,y", *rows]))
    (tmp_path / "whole.json").write_text('{"label": "y", "task": "class"}')
    arguments = ["--rows", "60", "--models", "RBP", "HierarchicalSVR", "--out", str(out), "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["parity.py", *arguments])
    parity.main()
    printed = capsys.readouterr().out
    assert "RBP, 2 labels" in printed
    assert "HierarchicalSVR: a step 'trees' is not supported in C" in printed
    results = json.loads(out.read_text())
    assert [model["model"] for model in results["models"]] == ["RBP", "HierarchicalSVR"]
    assert [table["model"] for table in results["tables"]] == ["whole, svm", "whole, bsgd"]
    for table in results["tables"]:
        assert all(table["forms"][form]["labels"] == 0 for form in ("numpy", "ONNX", "C, 32 bits", "WebAssembly"))


@needs_compiler
def test_rows_far_from_all_vectors_get_the_same_label_in_every_format(tmp_path):
    """All kernel values are 0 in every format, although the formats compute in different precision."""
    rng = np.random.default_rng(0)
    centres, k = rng.normal(size=(6, 8)) * 2.0, rng.integers(6, size=600)
    X = centres[k] + 0.4 * rng.normal(size=(600, 8))
    model = MinMaxScaler() | BSCAClassifier(budget=30, gamma=8.0, scaling=None)
    for x, label in zip(X.tolist(), k % 3, strict=True):
        model.learn_one({f"f{i}": value for i, value in enumerate(x)}, f"k{label}")
    program = make_program(model)
    [path] = export(program, "onnx", tmp_path)
    session = onnxruntime.InferenceSession(path)
    for times in (3.0, 6.0, 20.0):
        far_rows = X.mean(axis=0) + (X[:100] - X.mean(axis=0)) * times
        rows = [{f"f{i}": value for i, value in enumerate(x)} for x in far_rows.tolist()]
        expected = [model.predict_one(x) for x in rows]
        assert [Predictor(program).predict_one(x) for x in rows] == expected
        assert Predictor(program).predict_many(far_rows).tolist() == expected
        assert CModel(program).predict_many(far_rows).tolist() == expected
        assert session.run(["label"], {"X": far_rows.astype(np.float32)})[0].tolist() == expected
