"""Learners in C take the same steps as in Python, and their states are exchanged."""

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
NAMES = (f"learner{number}" for number in itertools.count())  # because a library of the same name is loaded only once
NEAR = 1e-4  # decision values this near to a threshold of the update may take the other branch


class Device:
    """A learner that was exported as C, compiled and loaded."""

    def __init__(self, model, folder, compiler=COMPILERS[0]):
        name = next(NAMES)
        self.files = write_learning_c(model, folder, name)
        library = folder / f"{name}.so"
        subprocess.run([compiler, *FLAGS, "-shared", "-fPIC", "-o", library, self.files.source], check=True)
        self._library, self._name = ctypes.CDLL(str(library)), name
        self._call("_state").restype, self._call("_decision").restype = ctypes.c_void_p, ctypes.c_float

    def _call(self, suffix):
        return getattr(self._library, f"{self._name}_learn{suffix}")

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
def test_each_step_equals_that_of_python(kind, compiler, tmp_path):
    model = learner(*kind)
    device, n_near = Device(model, tmp_path, compiler), 0
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
            n_near += 1
    assert n_near < 5


def test_drift_is_detected_as_in_python(tmp_path):
    model = learner(BSCAClassifier, {"scaling": None, "gamma": 0.2, "reprocess": 0}, budget=600)
    device = Device(model, tmp_path)
    X, y = rows(500, seed=1)
    y[250:] = 1 - y[250:]
    for x, label in zip(X, y, strict=True):
        device.learn(x, label)
    restored = restore_state(model, device.state)
    model.learn_many(X, y)
    assert model._rule_record["forgotten"][0] > 250
    assert restored._rule_record == model._rule_record
    assert_equal(model, restored, 1e-3)
    corrupt = bytearray(serialise_state(model))
    np.frombuffer(corrupt, _make_state_dtype(model))["drifts"][0, 1] = 1.5  # a mean of errors, none of them above 1
    corrupt[-4:] = zlib.crc32(corrupt[:-4]).to_bytes(4, "little")
    assert not device.restore(bytes(corrupt))
    raises("its drifts is", restore_state, model, bytes(corrupt), error=edge.ExportError)
    assert device.restore(serialise_state(model))


def test_ten_thousand_rows_are_learned_as_in_python(tmp_path):
    model = learner(BSGDClassifier, {"scaling": None, "gamma": 0.2}, budget=30)
    device = Device(model, tmp_path)
    X, y = rows(10_000, seed=1)
    for x, label in zip(X, y, strict=True):
        device.learn(x, label)
    restored = restore_state(model, device.state)
    model.learn_many(X, y)
    assert restored.n_merges == model.n_merges > 1000
    assert_equal(model, restored, 1e-5)
    learners = [learner.learn_many(*rows(100, seed=2)) or learner for learner in (model, restored)]  # learning continues
    assert_equal(*learners, 1e-4)


def test_rows_are_scaled_by_the_current_scale(tmp_path):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(400, 3)) * (1.0, 100.0, 0.0) + (5.0, 1e6, 3.0)).astype(np.float32)
    y = np.where(X[:, 0] > 5.0, "high", "low")
    model = BSGDClassifier(budget=20, seed=0)
    model.learn_many(X[:200], y[:200])
    device = Device(model, tmp_path)
    extreme_rows = np.array([[np.nan, np.inf, 1e30], [-1e15, 1e6, 3.0]], np.float32)
    for x in (*X[200:], extreme_rows[1]):
        assert device.decision(x) == pytest.approx(model.decision_function_one(dict(enumerate(x.tolist()))), abs=1e-3)
    zeros = np.array([0.0, 0.0, 1e30], np.float32)
    assert device.decision(extreme_rows[0]) == pytest.approx(device.decision(zeros), abs=1e-6)
    for x, label in zip(X[200:], y[200:], strict=True):
        device.learn(x, label == model.positive_label)
    restored = restore_state(model, device.state)
    assert np.mean(restored.predict_many(X) == y) > 0.9
    assert restored.n_learned == 400


def test_sizes_of_variables_are_as_reported(tmp_path):
    model = BSGDClassifier(budget=100, seed=0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 22))
    model.learn_many(X, X[:, 0] > 0.0)
    files = write_learning_c(model, tmp_path)
    assert files.ram_bytes < 24 * 1024
    subprocess.run([COMPILERS[0], *FLAGS, "-O0", "-c", "-o", tmp_path / "m.o", files.source], check=True)
    symbols = subprocess.run(["nm", "-S", tmp_path / "m.o"], check=True, capture_output=True, text=True).stdout
    variables = [line.split() for line in symbols.splitlines() if len(line.split()) == 4 and line.split()[2] in "bBdD"]
    assert sum(int(size, 16) for _, size, kind, name in variables if not name.endswith("_labels")) == files.ram_bytes


def test_corrupt_states_are_refused(tmp_path):
    model = learner(*KINDS[4])
    device = Device(model, tmp_path)
    good, rng = device.state, np.random.default_rng(0)
    assert device.restore(good)
    assert not device.restore(good[:-1])
    assert not device.restore(good + b"\0")
    n_refused = 0
    x = rows(1)[0][0]
    for _ in range(200):
        data = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            index = int(rng.integers(len(data) - 4))
            data[index : index + 8] = rng.bytes(8) if rng.random() < 0.5 else bytes([rng.choice([0, 255])]) * 8
        data = data[: len(good)]
        if rng.random() < 0.9:
            data[-4:] = zlib.crc32(data[:-4]).to_bytes(4, "little")
        is_accepted = device.restore(bytes(data))
        try:
            restore_state(model, bytes(data)).predict_one({0: 1.0})
        except edge.ExportError:
            n_refused += 1
        if is_accepted:
            device.learn(x, 1)
    assert n_refused > 60
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
def test_unsupported_learners_are_refused_with_a_reason(make, reason, tmp_path):
    model = make()
    refused(reason, write_learning_c, model, tmp_path, error=edge.ExportError)


def test_states_of_other_models_are_refused():
    model, unscaled = learner(*KINDS[0]), learner(BSGDClassifier, {"scaling": None, "gamma": 0.3})
    refused("other features, scale or parameters", restore_state, model, serialise_state(unscaled), error=edge.ExportError)
    refused("a state of 3 bytes", restore_state, model, b"abc", error=edge.ExportError)
    assert_equal(restore_state(model, serialise_state(model)), model, 1e-12)


def test_names_with_placeholders_are_escaped(tmp_path):
    model = BSGDClassifier(budget=5, gamma=0.2)
    for number in range(20):
        model.learn_one({"a@_b": number % 2, "@UP": 1.0, "@NAME": 1.0}, ("@LABELS@_", "@MADE_FOR")[number % 2])
    device = Device(model, tmp_path)
    labels = (ctypes.c_char_p * 2).in_dll(device._library, f"{device._name}_learn_labels")
    assert [label.decode() for label in labels] == ["@LABELS@_", "@MADE_FOR"]
    assert "x[0]  @NAME" in device.files.header.read_text()
    assert "a@ _b" in device.files.header.read_text()


def test_cpp_programs_can_call_it_and_unsafe_flags_are_refused(tmp_path):
    files = write_learning_c(learner(*KINDS[0]), tmp_path)
    (tmp_path / "main.cpp").write_text(f'#include "{files.header.name}"\nint main() {{ return model_learn_restore(0, 0); }}\n')
    command = [COMPILERS[0], "-c", "-o", tmp_path / "m.o", files.source]
    subprocess.run(command, check=True)
    process = subprocess.run(["g++", "-o", "main", "main.cpp", "m.o"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    process = subprocess.run([*command, "-ffast-math"], capture_output=True, text=True, check=False)
    assert "which numbers are missing" in process.stderr
