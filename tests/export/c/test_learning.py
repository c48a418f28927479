"""Learners in C take the same steps as in Python, and their state goes there and back."""

import ctypes
import itertools
import subprocess
import zlib

import numpy as np
import pytest
from river import preprocessing

from c_compilers import ALSO_CLANG, COMPILERS, FLAGS, needs_compiler
from learners_in_c import KINDS, assert_equal, learner, rows
from lists import in_turn
from refused import raises, refused
from streamsvm import BSCAClassifier, BSGDClassifier, Removal, SVMClassifier, edge
from streamsvm.export.c.learning import _make_state_dtype, restore_state, serialise_state, write_learning_c

pytestmark = [needs_compiler, pytest.mark.thorough]
NAMES = (f"learner{number}" for number in itertools.count())  # a library is loaded once
NEAR = 1e-4  # of a decision value from one at which a row changes the model


class Device:
    """A learner that is compiled and loaded."""

    def __init__(self, model, folder, compiler=COMPILERS[0]):
        name = next(NAMES)
        self.files = write_learning_c(model, folder, name)
        library = folder / f"{name}.so"
        subprocess.run([compiler, *FLAGS, "-shared", "-fPIC", "-o", library, self.files.source], check=True)
        self._library, self._name = ctypes.CDLL(str(library)), name
        self._call("_state").restype, self._call("_decision").restype = ctypes.c_void_p, ctypes.c_float

    def _call(self, what):
        return getattr(self._library, f"{self._name}_learn{what}")

    def learn(self, x, label):
        return self._call("")(x.ctypes.data_as(ctypes.c_void_p), int(label))

    def decision(self, x):
        return self._call("_decision")(x.ctypes.data_as(ctypes.c_void_p))

    def predict(self, x):
        return self._call("_predict")(x.ctypes.data_as(ctypes.c_void_p))

    @property
    def state(self):
        return ctypes.string_at(self._call("_state")(), self.files.state_bytes)

    def restore(self, data):
        return self._call("_restore")(data, len(data))


@pytest.mark.parametrize(("kind", "compiler"), in_turn(KINDS, *ALSO_CLANG[::-1]))
def test_each_step_is_that_of_python(kind, compiler, tmp_path):
    model = learner(*kind)
    device, near = Device(model, tmp_path, compiler), 0
    bounds = [1.0, 1.0 - getattr(model, "tol", 0.0)]
    X, y = rows(100)
    for x, label in zip(X, y, strict=True):
        assert device.restore(serialise_state(model))
        row = dict(enumerate(x.tolist()))
        f = model.decision_function_one(row, output="last")
        assert device.decision(x) == pytest.approx(model.decision_function_one(row), abs=1e-4)
        assert device.learn(x, label)
        model.learn_one(row, int(label))
        if min(abs(abs(f) - bound) for bound in (*bounds, 0.0)) > NEAR:
            assert_equal(model, restore_state(model, device.state), 1e-4)
        else:
            near += 1
    assert near < 5


def test_it_forgets_as_in_python(tmp_path):
    model = learner(BSCAClassifier, {"scaling": None, "gamma": 0.2, "reprocess": 0}, budget=600)
    device = Device(model, tmp_path)
    X, y = rows(500, seed=1)
    y[250:] = 1 - y[250:]
    for x, label in zip(X, y, strict=True):
        device.learn(x, label)
    taken = restore_state(model, device.state)
    model.learn_many(X, y)
    assert model._rule_record["forgotten"][0] > 250
    assert taken._rule_record == model._rule_record
    assert_equal(model, taken, 1e-3)
    wrong = bytearray(serialise_state(model))
    np.frombuffer(wrong, _make_state_dtype(model))["drifts"][0, 1] = 1.5  # a mean of errors, which are at most 1
    wrong[-4:] = zlib.crc32(wrong[:-4]).to_bytes(4, "little")
    assert not device.restore(bytes(wrong))
    raises("its drifts is", restore_state, model, bytes(wrong), error=edge.ExportError)
    assert device.restore(serialise_state(model))


def test_ten_thousand_rows(tmp_path):
    model = learner(BSGDClassifier, {"scaling": None, "gamma": 0.2}, budget=30)
    device = Device(model, tmp_path)
    X, y = rows(10_000, seed=1)
    for x, label in zip(X, y, strict=True):
        device.learn(x, label)
    taken = restore_state(model, device.state)
    model.learn_many(X, y)
    assert taken.n_merges == model.n_merges > 1000
    assert_equal(model, taken, 1e-5)
    both = [each.learn_many(*rows(100, seed=2)) or each for each in (model, taken)]  # it goes on
    assert_equal(*both, 1e-4)


def test_rows_are_scaled_by_the_scale_in_use(tmp_path):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(400, 3)) * (1.0, 100.0, 0.0) + (5.0, 1e6, 3.0)).astype(np.float32)
    y = np.where(X[:, 0] > 5.0, "high", "low")
    model = BSGDClassifier(budget=20, seed=0)
    model.learn_many(X[:200], y[:200])
    device = Device(model, tmp_path)
    far = np.array([[np.nan, np.inf, 1e30], [-1e15, 1e6, 3.0]], np.float32)
    for x in (*X[200:], far[1]):
        assert device.decision(x) == pytest.approx(model.decision_function_one(dict(enumerate(x.tolist()))), abs=1e-3)
    zeros = np.array([0.0, 0.0, 1e30], np.float32)
    assert device.decision(far[0]) == pytest.approx(device.decision(zeros), abs=1e-6)
    for x, label in zip(X[200:], y[200:], strict=True):
        device.learn(x, label == model.positive_label)
    taken = restore_state(model, device.state)
    assert np.mean(taken.predict_many(X) == y) > 0.9
    assert taken.n_learned == 400


def test_sizes(tmp_path):
    model = BSGDClassifier(budget=100, seed=0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 22))
    model.learn_many(X, X[:, 0] > 0.0)
    written = write_learning_c(model, tmp_path)
    assert written.ram_bytes < 24 * 1024
    subprocess.run([COMPILERS[0], *FLAGS, "-O0", "-c", "-o", tmp_path / "m.o", written.source], check=True)
    symbols = subprocess.run(["nm", "-S", tmp_path / "m.o"], check=True, capture_output=True, text=True).stdout
    variables = [line.split() for line in symbols.splitlines() if len(line.split()) == 4 and line.split()[2] in "bBdD"]
    assert sum(int(size, 16) for _, size, kind, name in variables if not name.endswith("_labels")) == written.ram_bytes


def test_states_that_are_none_are_refused(tmp_path):
    model = learner(*KINDS[4])
    device = Device(model, tmp_path)
    good, rng = device.state, np.random.default_rng(0)
    assert device.restore(good)
    assert not device.restore(good[:-1])
    assert not device.restore(good + b"\0")
    refused = 0
    x = rows(1)[0][0]
    for _ in range(200):
        data = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(data) - 4))
            data[at : at + 8] = rng.bytes(8) if rng.random() < 0.5 else bytes([rng.choice([0, 255])]) * 8
        data = data[: len(good)]
        if rng.random() < 0.9:
            data[-4:] = zlib.crc32(data[:-4]).to_bytes(4, "little")
        taken = device.restore(bytes(data))
        try:
            restore_state(model, bytes(data)).predict_one({0: 1.0})
        except edge.ExportError:
            refused += 1
        if taken:
            device.learn(x, 1)
    assert refused > 60
    assert device.restore(good)


def without_features():
    model = BSGDClassifier(budget=5, gamma=1.0)
    for number in range(4):
        model.learn_one({}, number % 2)
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (SVMClassifier, "a SVMClassifier cannot learn in C"),
        (BSGDClassifier, "has not learned two labels"),
        (lambda: learner(BSGDClassifier, {"kernel": "linear"}), "kernel='linear'"),
        (lambda: learner(BSGDClassifier, {"maintenance": Removal()}), "maintenance must be Merge"),
        (lambda: learner(BSGDClassifier, {"class_weight": "balanced"}), "class_weight"),
        (lambda: learner(BSGDClassifier, {"scaling": None}), "is not determined yet"),
        (lambda: learner(BSCAClassifier, {"replay": 10}), "replay=0"),
        (lambda: preprocessing.StandardScaler() | learner(BSGDClassifier, {}), "a Pipeline cannot learn in C"),
        (without_features, "has not learned a feature yet"),
    ],
)
def test_what_cannot_learn_there_is_named(make, reason, tmp_path):
    model = make()
    refused(reason, write_learning_c, model, tmp_path, error=edge.ExportError)


def test_states_of_other_models_are_refused():
    model, other = learner(*KINDS[0]), learner(BSGDClassifier, {"scaling": None, "gamma": 0.3})
    refused("other features, scale or parameters", restore_state, model, serialise_state(other), error=edge.ExportError)
    refused("a state of 3 bytes", restore_state, model, b"abc", error=edge.ExportError)
    assert_equal(restore_state(model, serialise_state(model)), model, 1e-12)


def test_names_with_marks_of_the_writer(tmp_path):
    model = BSGDClassifier(budget=5, gamma=0.2)
    for number in range(20):
        model.learn_one({"a@_b": number % 2, "@UP": 1.0, "@NAME": 1.0}, ("@LABELS@_", "@MADE_FOR")[number % 2])
    device = Device(model, tmp_path)
    found = (ctypes.c_char_p * 2).in_dll(device._library, f"{device._name}_learn_labels")
    assert [label.decode() for label in found] == ["@LABELS@_", "@MADE_FOR"]
    assert "x[0]  @NAME" in device.files.header.read_text()
    assert "a@ _b" in device.files.header.read_text()


def test_programs_in_cpp_call_it_and_flags_that_break_missing_numbers_are_refused(tmp_path):
    files = write_learning_c(learner(*KINDS[0]), tmp_path)
    (tmp_path / "main.cpp").write_text(f'#include "{files.header.name}"\nint main() {{ return model_learn_restore(0, 0); }}\n')
    compile_it = [COMPILERS[0], "-c", "-o", tmp_path / "m.o", files.source]
    subprocess.run(compile_it, check=True)
    done = subprocess.run(["g++", "-o", "main", "main.cpp", "m.o"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*compile_it, "-ffast-math"], capture_output=True, text=True, check=False)
    assert "which numbers are missing" in done.stderr
