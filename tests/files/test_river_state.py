"""The states of river's Rust objects are saved and restored; invalid states are refused."""

import copy
import random
import sys

import numpy as np
import pytest
import river._river_rust
from river import optim
from river._river_rust import drift, stats
from river.utils import VectorDict

from refused import raises
from streamsvm.files.river_state import COMPILED_CLASSES, get_state, get_vector_dict_parts, make_vector_dict, restore_object

WINDOWS = (1, 2, 7, 40)
#: Constructor arguments of the test objects of each class.
ARGUMENTS = {
    drift.AdaptiveWindowing: ((0.002, 32, 5, 5, 10), (0.5, 1, 2, 1, 0), (-1.0, 2, 2, 5, 4)),
    stats.RsEWMean: ((0.0,), (0.3,), (1.0,)),
    stats.RsEWVar: ((0.0,), (0.3,), (1.0,)),
    stats.RsIQR: ((0.25, 0.75), (0.0, 1.0)),
    stats.RsKurtosis: ((False,), (True,)),
    stats.RsPeakToPeak: ((),),
    stats.RsQuantile: ((0.0,), (0.25,), (1.0,)),
    stats.RsRollingIQR: tuple((0.25, 0.75, size) for size in WINDOWS),
    stats.RsRollingPRAUC: tuple((1, size) for size in WINDOWS),
    stats.RsRollingQuantile: tuple((0.5, size) for size in WINDOWS),
    stats.RsRollingROCAUC: tuple((2**31 - 1, size) for size in WINDOWS),
    stats.RsSkew: ((False,), (True,)),
}
CASES = [(cls, arguments) for cls in ARGUMENTS for arguments in ARGUMENTS[cls]]
AUCS = stats.RsRollingPRAUC, stats.RsRollingROCAUC


def feed(instance, n, seed):
    rng = random.Random(seed)
    for _ in range(n):
        value = rng.choice((rng.gauss(0, 1), rng.randrange(4), 1e300, 0.0))
        if type(instance) in AUCS:
            instance.update(rng.choice((0, 1, 2**31 - 1)), value)
        else:
            instance.update(value)


def name(value):
    return value.__name__ if isinstance(value, type) else str(value)


def test_all_rust_classes_of_river_are_supported():
    parts = [part for part in vars(river._river_rust).values() if type(part) is type(sys)]
    classes = {cls for part in parts for cls in vars(part).values() if isinstance(cls, type)}
    assert set(COMPILED_CLASSES) == classes - {VectorDict} == set(ARGUMENTS)


@pytest.mark.parametrize(("cls", "arguments"), CASES, ids=name)
def test_restored_object_continues_like_the_original(cls, arguments):
    original = cls(*arguments)
    for stage in (0, 1, 1, 2, 1, 4, 30, 500):
        feed(original, stage, stage)
        saved_arguments, state = get_state(original)
        assert repr(saved_arguments) == repr(arguments)
        restored = restore_object(cls, saved_arguments, state)
        assert type(restored) is cls
        assert get_state(restored) == (saved_arguments, state) == get_state(copy.deepcopy(restored))
        copied = copy.deepcopy(original)
        feed(copied, 100, 1)
        feed(restored, 100, 1)
        assert get_state(restored) == get_state(copied)


@pytest.mark.parametrize(("cls", "arguments"), CASES, ids=name)
def test_truncated_or_extended_states_are_refused(cls, arguments):
    original = cls(*arguments)
    feed(original, 50, 2)
    saved_arguments, state = get_state(original)
    for wrong in (state[:-1], state[:5], state + b"\0" * 8, b"", bytearray(state)):
        raises("is corrupt, or of another version of river|is not one of", restore_object, cls, saved_arguments, wrong)
    raises("slice is not one of river's classes", restore_object, slice, (1,), b"")


def test_long_window_does_not_reserve_its_memory():
    window = stats.RsRollingQuantile(0.5, 2**22)
    feed(window, 9, 3)
    assert restore_object(stats.RsRollingQuantile, *get_state(window)).get() == window.get()


@pytest.mark.parametrize(
    "made",
    [
        VectorDict(),
        VectorDict({"a": 1.5, "b": np.float64(2)}),
        VectorDict({"a": 1.5, 3: 2}, optim.initializers.Normal(seed=1)),
        VectorDict({"b": 1.0, "a": 2.0}, float, {"a": 1}),
        VectorDict({"b": 1.0, "a": 2.0}, None, VectorDict({"a": 3.0}), True),
    ],
    ids=repr,
)
def test_vector_dict_is_restored(made):
    parts = get_vector_dict_parts(made)
    restored = make_vector_dict(*parts)
    assert get_vector_dict_parts(restored) == parts
    assert list(restored.items()) == list(made.items())
    assert parts[2] in (None, {"a"})
