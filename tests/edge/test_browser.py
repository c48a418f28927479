"""The example page: the learner in WebAssembly learns as the C library does, and the page calls only existing functions."""

import ctypes
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from c_compilers import COMPILERS, FLAGS, needs_compiler, needs_zig
from refused import refused
from streamsvm.export.c.learning import restore_state, serialise_state, write_learning_c

pytestmark = [pytest.mark.thorough, needs_zig]

EXAMPLE = Path(__file__).parents[2] / "examples" / "browser"
spec = importlib.util.spec_from_file_location("build_page", EXAMPLE / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


class Page:
    """The functions and the memory of a WebAssembly module, as a page uses them."""

    def __init__(self, module):
        import wasmtime  # from the same extra

        self._store = wasmtime.Store()
        instance = wasmtime.Instance(self._store, wasmtime.Module(self._store.engine, module), [])
        self._exports = instance.exports(self._store)
        self.names = set(self._exports)

    def __call__(self, name, *arguments):
        return self._exports[name](self._store, *arguments)

    def state(self):
        address = self("state")
        return bytes(self._exports["memory"].read(self._store, address, address + self("state_bytes")))

    def restore(self, data):
        self._exports["memory"].write(self._store, data, self("given"))
        return self("restore")

    def array(self, name, dtype, n):
        address = self(name)
        return np.frombuffer(self._exports["memory"].read(self._store, address, address + n * np.dtype(dtype).itemsize), dtype)


@pytest.fixture(scope="module")
def model():
    return build.train_learner()


@pytest.fixture(scope="module")
def module(model):
    return build.compile_model(model)


@needs_compiler
def test_the_page_learns_the_same_bytes_as_a_device(model, module, tmp_path):
    page, files = Page(module), write_learning_c(model, tmp_path, "model")
    subprocess.run([COMPILERS[0], *FLAGS, "-shared", "-fPIC", "-o", tmp_path / "model.so", files.source], check=True)
    device = ctypes.CDLL(str(tmp_path / "model.so"))
    device.model_learn_state.restype = ctypes.c_void_p
    assert page.state() == serialise_state(model)
    for x, label in zip(*build.make_points(2000, seed=1), strict=True):
        assert page("learn", float(x[0]), float(x[1]), int(label)) == 1
        device.model_learn(x.ctypes.data_as(ctypes.c_void_p), int(label))
    assert page.state() == ctypes.string_at(device.model_learn_state(), files.state_bytes)
    restored = restore_state(model, page.state())
    assert restored.n_learned == page("rows") == 2300
    X, y = build.make_points(500, seed=2)
    assert (np.array(restored.predict_many(X)) == y).mean() > 0.9


def test_the_page_shows_the_decisions_and_vectors_of_the_model(model, module):
    page = Page(module)
    side, n = page("side"), page("n_support")
    assert (n, page("budget")) == (model.n_support, model.budget)
    centers = ((np.arange(side) + 0.5) / side).astype(np.float32)
    horizontal, vertical = np.meshgrid(centers, centers)
    expected = model.decision_function_many(np.column_stack([horizontal.ravel(), vertical.ravel()]))
    rounding = 2e-6 * np.abs(model.coefficients).sum()
    np.testing.assert_allclose(page.array("map", np.float32, side * side), expected, rtol=0.0, atol=rounding)
    np.testing.assert_array_equal(page.array("vectors", np.float32, 2 * n).reshape(n, 2), model.support_vectors)
    assert np.isfinite(page.array("coefficients", np.float64, n)).all()
    assert page("decision", 0.5, 0.5) < 0.0 < page("decision", 0.5, 0.8)


def test_states_are_restored_and_corrupt_ones_are_refused(model, module):
    page = Page(module)
    initial = page.state()
    page("learn", 0.1, 0.2, 1)
    assert page.state() != initial
    for corrupt in (
        bytes(len(initial)),
        initial[:-1] + bytes([initial[-1] ^ 1]),
        initial[:100] + b"\xff" * 8 + initial[108:],
    ):
        before = page.state()
        assert page.restore(corrupt) == 0
        assert page.state() == before
    assert page.restore(initial) == 1
    assert page.state() == initial


def test_the_page_is_one_file_and_calls_existing_functions(model, module, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "compile_model", lambda _: module)
    monkeypatch.setattr(sys, "argv", ["build.py", "--out", str(tmp_path / "new" / "page")])
    build.main()
    page = (tmp_path / "new" / "page" / "index.html").read_text("utf-8")
    assert "WebAssembly" in capsys.readouterr().out
    assert "@MODULE" not in page
    assert not re.findall(r"(?:src|href)=", page)  # nothing is fetched
    assert set(re.findall(r"svm\.(\w+)", page)) <= Page(module).names
    ids = set(re.findall(r'element\("(\w+)"\)', page))
    assert ids <= set(re.findall(r'id="(\w+)"', page))
    assert len(ids) > 8


def test_a_missing_compiler_is_reported_with_advice(monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    refused("pip install ziglang", build.find_compiler, error=SystemExit)
