"""The example page: the learner in WebAssembly learns what it learns elsewhere, and all that the page calls is there."""

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
    """What a page has: the functions of the module, and its memory."""

    def __init__(self, module):
        import wasmtime  # of the same extra

        self._store = wasmtime.Store()
        instance = wasmtime.Instance(self._store, wasmtime.Module(self._store.engine, module), [])
        self._exports = instance.exports(self._store)
        self.names = set(self._exports)

    def __call__(self, name, *arguments):
        return self._exports[name](self._store, *arguments)

    def state(self):
        begin = self("state")
        return bytes(self._exports["memory"].read(self._store, begin, begin + self("state_bytes")))

    def restore(self, data):
        self._exports["memory"].write(self._store, data, self("given"))
        return self("restore")

    def array(self, name, dtype, n):
        begin = self(name)
        return np.frombuffer(self._exports["memory"].read(self._store, begin, begin + n * np.dtype(dtype).itemsize), dtype)


@pytest.fixture(scope="module")
def model():
    return build.learner()


@pytest.fixture(scope="module")
def module(model):
    return build.compiled(model)


@needs_compiler
def test_it_learns_what_a_device_learns_to_the_byte(model, module, tmp_path):
    page, written = Page(module), write_learning_c(model, tmp_path, "model")
    subprocess.run([COMPILERS[0], *FLAGS, "-shared", "-fPIC", "-o", tmp_path / "model.so", written.source], check=True)
    device = ctypes.CDLL(str(tmp_path / "model.so"))
    device.model_learn_state.restype = ctypes.c_void_p
    assert page.state() == serialise_state(model)
    for x, label in zip(*build.points(2000, seed=1), strict=True):
        assert page("learn", float(x[0]), float(x[1]), int(label)) == 1
        device.model_learn(x.ctypes.data_as(ctypes.c_void_p), int(label))
    assert page.state() == ctypes.string_at(device.model_learn_state(), written.state_bytes)
    taken = restore_state(model, page.state())
    assert taken.n_learned == page("rows") == 2300
    X, y = build.points(500, seed=2)
    assert (np.array(taken.predict_many(X)) == y).mean() > 0.9


def test_what_it_shows_is_of_the_model(model, module):
    page = Page(module)
    side, n = page("side"), page("n_support")
    assert (n, page("budget")) == (model.n_support, model.budget)
    middles = ((np.arange(side) + 0.5) / side).astype(np.float32)
    across, down = np.meshgrid(middles, middles)
    expected = model.decision_function_many(np.column_stack([across.ravel(), down.ravel()]))
    rounding = 2e-6 * np.abs(model.coefficients).sum()
    np.testing.assert_allclose(page.array("map", np.float32, side * side), expected, rtol=0.0, atol=rounding)
    np.testing.assert_array_equal(page.array("vectors", np.float32, 2 * n).reshape(n, 2), model.support_vectors)
    assert np.isfinite(page.array("coefficients", np.float64, n)).all()
    assert page("decision", 0.5, 0.5) < 0.0 < page("decision", 0.5, 0.8)


def test_a_state_goes_there_and_a_corrupt_one_changes_nothing(model, module):
    page = Page(module)
    begin = page.state()
    page("learn", 0.1, 0.2, 1)
    assert page.state() != begin
    for corrupt in (bytes(len(begin)), begin[:-1] + bytes([begin[-1] ^ 1]), begin[:100] + b"\xff" * 8 + begin[108:]):
        before = page.state()
        assert page.restore(corrupt) == 0
        assert page.state() == before
    assert page.restore(begin) == 1
    assert page.state() == begin


def test_the_page_is_one_file_that_calls_what_there_is(model, module, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "compiled", lambda _: module)
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


def test_without_a_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    refused("pip install ziglang", build.compiler, error=SystemExit)
