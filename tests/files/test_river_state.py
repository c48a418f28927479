"""river's compiled objects to bytes and back; what nobody's object can be is refused before compiled code sees it."""

import copy
import importlib
import json
import math
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import river._river_rust
from river import drift, metrics, optim, stats
from river.utils import VectorDict

import mutate_river_states
from mutate_river_states import ARGUMENTS, AUCS, rows, update
from patience import PATIENCE
from refused import raises
from streamsvm.files.river_state import COMPILED, check_wrapper, make_vector_dict, restore, state_of, vector_dict_parts

#: How many states of each class are spoilt: 8,000 of each take 4 s, 100,000 half a minute.
SPOILT = int(os.environ.get("STREAMSVM_SPOILT_STATES", "8000"))
RS = river._river_rust.stats
ADWIN = river._river_rust.drift.AdaptiveWindowing
DEFAULT = (0.002, 32, 5, 5, 10)
CASES = [(cls, arguments) for cls in ARGUMENTS for arguments in ARGUMENTS[cls]]


def name(value):
    return value.__name__ if isinstance(value, type) else str(value)


def feed(instance, stream):
    for row in stream:
        update(instance, row)


def test_all_compiled_classes_of_river_are_known():
    parts = [part for part in vars(river._river_rust).values() if type(part) is type(sys)]
    classes = {cls for part in parts for cls in vars(part).values() if isinstance(cls, type)}
    for cls in classes - {VectorDict}:
        assert cls in COMPILED, f"{cls.__name__} of this river is not in COMPILED: write its layout, and ARGUMENTS for the tests"
    assert set(COMPILED) == {cls for cls in classes if hasattr(cls, "__setstate__")} == set(ARGUMENTS)


@pytest.mark.parametrize(("cls", "arguments"), CASES, ids=name)
def test_an_object_comes_back_and_goes_on_as_it_was(cls, arguments):
    rng = random.Random(repr(arguments))
    kept = cls(*arguments)
    for stage in (0, 1, 1, 2, 1, 1, 1, 4, 30, 500):
        feed(kept, rows(rng, stage))
        found, state = state_of(kept)
        assert repr(found) == repr(arguments)
        back = restore(cls, found, state)
        assert type(back) is cls
        assert state_of(back) == (found, state) == state_of(copy.deepcopy(back))
        stream = rows(rng, 100)
        other = copy.deepcopy(kept)
        feed(other, stream)
        feed(back, stream)
        assert state_of(back) == state_of(other)


def test_objects_that_saw_the_same_are_the_same_bytes():
    for cls, arguments in CASES:
        first, second = cls(*arguments), cls(*arguments)
        feed(first, rows(random.Random(1), 80))
        feed(second, rows(random.Random(1), 80))
        assert state_of(first) == state_of(second)


@pytest.mark.thorough
def test_spoilt_states_are_refused_or_serve():
    script = Path(mutate_river_states.__file__)
    run = subprocess.run([sys.executable, script, str(SPOILT)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, (run.stdout + run.stderr)[-2000:]
    found = json.loads(run.stdout)
    assert set(found) == {cls.__name__ for cls in COMPILED}
    for refused, restored in found.values():
        assert refused + restored == SPOILT
        assert refused > SPOILT / 2
        assert restored > SPOILT / 100


def changed(cls, arguments, count, form, offset, *values):
    """Arguments and state of an object that saw rows, with numbers written over the state."""
    instance = cls(*arguments)
    feed(instance, [(i % 2, float(i % 7)) for i in range(count)])
    found, state = state_of(instance)
    state = bytearray(state)
    struct.pack_into("<" + form, state, offset % len(state), *values)
    return cls, found, bytes(state)


def as_bytes(cls, arguments, count):
    return changed(cls, arguments, count, "0s", 0, b"")[2]


def inverted(cls, state):
    """The state of an interquartile range with its two quantiles the other way round."""
    return cls, (0.75, 0.25), state[170:340] + state[:170] + struct.pack("<2d", 0.75, 0.25)


def tall(levels):
    """An ADWIN with one bucket a level."""
    level = struct.pack("<3Q6dQ6d", 5, 1, 6, *[0.0] * 6, 6, *[0.0] * 6)
    rows = 2.0**levels - 1
    start = struct.pack("<diQdd4d4iQ", 0.002, 32, 5, 5.0, 10.0, 0.0, 0.0, rows, rows, 0, 0, 0, 0, levels)
    return ADWIN, DEFAULT, start + level * levels + struct.pack("<diQii", *DEFAULT)


#: What is said, and the state that an object of the class had before numbers were written over it.
CORRUPT = [
    ("a flag is 2", changed(RS.RsEWMean, (0.5,), 3, "B", 24, 2)),
    ("weights of a mean", changed(RS.RsEWMean, (0.5,), 3, "d", 8, 0.25)),
    ("a mean of no values", changed(RS.RsEWMean, (0.5,), 0, "d", 0, 1.0)),
    ("the fading factor", changed(RS.RsEWVar, (0.5,), 3, "d", -8, 0.25)),
    ("the number of values is 8.5", changed(RS.RsKurtosis, (True,), 9, "d", 49, 8.5)),
    ("the second moment is -1.0", changed(RS.RsKurtosis, (True,), 9, "d", 25, -1.0)),
    ("moments of no values", changed(RS.RsKurtosis, (True,), 0, "d", 1, 1.0)),
    ("bias", changed(RS.RsKurtosis, (True,), 9, "B", 0, 0)),
    ("bias", changed(RS.RsKurtosis, (True,), 9, "B", -1, 0)),
    ("the fourth moment", changed(RS.RsSkew, (True,), 9, "d", 40, 8.5)),
    ("bias", changed(RS.RsSkew, (True,), 9, "B", -1, 0)),
    ("minimum and maximum", changed(RS.RsPeakToPeak, (), 9, "dd", 0, 2.0, 1.0)),
    ("steps of its markers", changed(RS.RsQuantile, (0.5,), 3, "d", 16, 0.3)),
    ("6 first values", changed(RS.RsQuantile, (0.5,), 3, "B", 168, 6)),
    ("first five values is NaN", changed(RS.RsQuantile, (0.5,), 3, "d", 128, math.nan)),
    ("values that did not come yet", changed(RS.RsQuantile, (0.5,), 3, "d", 160, 1.0)),
    ("markers of the first five values", changed(RS.RsQuantile, (0.5,), 3, "d", 120, 6.0)),
    ("3 first values of", changed(RS.RsQuantile, (0.5,), 3, "B", 169, 1)),
    ("not at whole numbers", changed(RS.RsQuantile, (0.5,), 30, "d", 112, 9.5)),
    ("of inf rows", changed(RS.RsQuantile, (0.5,), 30, "d", 120, math.inf)),
    ("a marker is wanted at 9.5", changed(RS.RsQuantile, (0.5,), 30, "d", 64, 9.5)),
    ("rows of the two quantiles", changed(RS.RsIQR, (0.25, 0.75), 31, "170s", 0, as_bytes(RS.RsIQR, (0.25, 0.75), 30)[:170])),
    ("not below the upper", inverted(RS.RsIQR, as_bytes(RS.RsIQR, (0.25, 0.75), 30))),
    ("the sorted values", changed(RS.RsRollingQuantile, (0.5, 3), 9, "d", 8, -1.0)),
    ("the sorted values", changed(RS.RsRollingQuantile, (0.5, 3), 9, "d", 40, math.nan)),
    ("the length of the window", changed(RS.RsRollingQuantile, (0.5, 3), 9, "Q", 64, 4)),
    ("places of the quantile", changed(RS.RsRollingQuantile, (0.5, 3), 9, "Q", -40, 3)),
    ("a vector has 2305843009213693952 values", changed(RS.RsRollingIQR, (0.25, 0.75, 3), 9, "Q", 0, 2**61)),
    ("a vector has 4 values, not 0 to 3", changed(RS.RsRollingIQR, (0.25, 0.75, 3), 9, "Q", 0, 4)),
    ("rows of the positive label", changed(RS.RsRollingROCAUC, (1, 5), 9, "Q", 12, 5)),
    ("numbers of its scores do not grow", changed(RS.RsRollingPRAUC, (1, 5), 9, "Q", 20, 3)),
    ("the sorted scores", changed(RS.RsRollingPRAUC, (1, 5), 9, "d", -28, 99.0)),
    ("level 0 has 6 buckets of 5", changed(ADWIN, DEFAULT, 9, "Q", 100, 6)),
    ("level 0 has 5 buckets of 4", changed(ADWIN, DEFAULT, 5, "Q", 92, 4)),
    ("level 0 has 0 buckets of 5", changed(ADWIN, DEFAULT, 9, "Q", 100, 0)),
    ("level 0 has values behind", changed(ADWIN, DEFAULT, 3, "d", 156, 1.0)),
    ("more than 1099511627776 rows", tall(41)),
    ("a window of 0.0 rows in 0 levels", changed(ADWIN, DEFAULT, 0, "Q", 84, 0)),
    ("a window of 1000000.0 rows", changed(ADWIN, DEFAULT, 40, "d", 52, 1e6)),
    ("sums of no rows", changed(ADWIN, DEFAULT, 0, "d", 36, 1.0)),
]


@pytest.mark.parametrize(("message", "case"), CORRUPT, ids=name)
def test_a_state_that_no_object_has_is_refused(message, case):
    raises(f"the state of a {case[0].__name__} is corrupt: .*{message}", restore, *case)


def test_an_object_of_as_many_rows_as_is_read():
    assert restore(*tall(40)).get_width() == 2**40 - 1


def test_the_lower_quantile_of_a_rolling_window_is_below_the_upper():
    def check(*quantiles):
        state = struct.pack("<3Q2d3Qd2Qd2dQ", 0, 0, 1, *quantiles, 1, 0, 0, 0.0, 0, 0, 0.0, *quantiles, 1)
        COMPILED[RS.RsRollingIQR].check((*quantiles, 1), state)

    check(0.25, 0.75)
    raises("0.75, is not below the upper, 0.25", check, 0.75, 0.25)


@pytest.mark.parametrize(
    ("cls", "arguments", "message"),
    [
        (RS.RsEWMean, (1,), "fading_factor is 1, not of type float"),
        (RS.RsEWMean, [0.5], "not 1 values"),
        (RS.RsEWMean, (), "not 1 values"),
        (RS.RsQuantile, (math.nan,), r"q is nan, not in \[0, 1\]"),
        (RS.RsRollingQuantile, (0.5, 0), "window_size_value is 0"),
        (RS.RsRollingQuantile, (0.5, 2**60), "window_size_value is 1152921504606846976"),
        (RS.RsRollingROCAUC, (2**31, 4), "pos_val is 2147483648"),
        (RS.RsKurtosis, (1,), "bias is 1, not of type bool"),
        (ADWIN, (0.002, 0, 5, 5, 10), "clock is 0"),
        (ADWIN, (0.002, 32, 1, 5, 10), "max_buckets is 1"),
        (ADWIN, (0.002, 32, 2**40, 5, 10), "max_buckets is 1099511627776"),
    ],
    ids=name,
)
def test_arguments_that_a_constructor_must_not_see_are_refused(cls, arguments, message):
    _, state = state_of(cls(*ARGUMENTS[cls][0]))
    raises(message, restore, cls, arguments, state)


def test_only_bytes_and_known_classes_are_taken():
    for cls, arguments, state, reason in (
        (RS.RsPeakToPeak, (), bytearray(16), "is corrupt: it is bytearray, not bytes"),
        (RS.RsPeakToPeak, (), bytes(17), "it has 17 bytes, not 16"),
        (RS.RsPeakToPeak, (), bytes(15), "it ends after 15 bytes, within a value"),
        (slice, (1,), b"", "slice is not one of river's classes"),
    ):
        raises(reason, restore, cls, arguments, state)


def test_an_object_that_could_not_be_read_again_is_not_written():
    raises("a AdaptiveWindowing cannot be kept: max_buckets is 1, not in", state_of, ADWIN(0.002, 32, 1, 5, 10))
    quantile = RS.RsQuantile(0.5)
    quantile.update(math.nan)
    raises("a RsQuantile cannot be kept: one of the first five values is NaN", state_of, quantile)


def test_a_long_window_is_read_without_memory_for_all_of_it():
    arguments = (0.5, 2**22)
    window = RS.RsRollingQuantile(*arguments)
    feed(window, [(0, float(i)) for i in range(9)])
    assert restore(RS.RsRollingQuantile, *state_of(window)).get() == 4.0


# --- river's own objects around the compiled ones ---

WRAPPERS = [
    drift.ADWIN(delta=1, clock=np.int64(3)),
    stats.EWMean(1),
    stats.EWVar(0.3),
    stats.IQR(0.2, 0.8),
    stats.Kurtosis(bias=True),
    stats.PeakToPeak(),
    stats.Quantile(np.float64(0.3)),
    stats.RollingIQR(7),
    stats.RollingQuantile(0, 7),
    stats.Skew(),
    metrics.RollingPRAUC(7, pos_val="1"),
    metrics.RollingROCAUC(7),
]


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda wrapper: type(wrapper).__name__)
def test_what_river_makes_around_a_compiled_object_is_right_at_all_times(wrapper):
    wrapper = copy.deepcopy(wrapper)
    form = COMPILED[type(vars(wrapper)[COMPILED_ATTRIBUTE[type(wrapper).__name__]])]
    for value in [0.0, 1.0, 2.0] * 9:
        check_wrapper(wrapper)
        if type(vars(wrapper)[form.attribute]) in AUCS:
            wrapper.update(value > 1, value)
            wrapper.get()
        else:
            wrapper.update(value)
    vars(wrapper)[form.attribute] = "something else"
    raises(f"{form.attribute} of a {type(wrapper).__name__} is str, not ", check_wrapper, wrapper)


COMPILED_ATTRIBUTE = {form.wrapper.rpartition(".")[2]: form.attribute for form in COMPILED.values()}


def test_the_wrapper_of_each_class_is_known():
    assert COMPILED_ATTRIBUTE.keys() == {type(wrapper).__name__ for wrapper in WRAPPERS}
    for form in COMPILED.values():
        module, _, wrapper = form.wrapper.rpartition(".")
        assert isinstance(getattr(importlib.import_module(f"river.{module}"), wrapper), type)


@pytest.mark.parametrize(
    ("wrapper", "attribute", "value", "message"),
    [
        (drift.ADWIN(), "clock", 0, "clock is 0"),
        (drift.ADWIN(), "clock", np.array(0), "clock of a ADWIN is array"),
        (drift.ADWIN(), "clock", math.inf, "cannot convert float infinity"),
        (drift.ADWIN(), "max_buckets", 10**18, "max_buckets is 1000000000000000000"),
        (drift.ADWIN(), "delta", "0.1", "delta of a ADWIN is '0.1', not a number"),
        (stats.RollingQuantile(0.5, 7), "_is_updated", True, "its window is empty"),
        (stats.RollingIQR(7), "_is_updated", [1], "its window is empty"),
        (stats.RollingIQR(7), "window_size_value", 2**62, "window_size_value is"),
    ],
    ids=name,
)
def test_a_wrapper_that_would_make_compiled_code_panic_is_refused(wrapper, attribute, value, message):
    wrapper = copy.deepcopy(wrapper)
    check_wrapper(wrapper)
    setattr(wrapper, attribute, value)
    raises(message, check_wrapper, wrapper)


def test_other_objects_pass():
    check_wrapper(object())
    check_wrapper(stats.Mean())


# --- VectorDict ---


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
def test_a_vector_dict_comes_back(made):
    parts = vector_dict_parts(made)
    back = make_vector_dict(*parts)
    assert vector_dict_parts(back) == parts
    assert list(back.items()) == list(made.items())
    assert parts[2] in (None, {"a"})


@pytest.mark.parametrize(
    ("values", "default_factory", "mask", "message"),
    [
        ({"a": "1"}, None, None, "not a dict of numbers"),
        ([("a", 1)], None, None, "not a dict of numbers"),
        ({"a": 1.0}, print, None, "not an initializer of river"),
        ({"a": 1.0}, dict, None, "not an initializer of river"),
        ({"a": 1.0}, optim.initializers.Zeros, None, "not an initializer of river"),
        ({"a": 1.0}, None, "a", "the mask of a VectorDict is str, not a set"),
    ],
)
def test_parts_that_no_vector_dict_of_river_has_are_refused(values, default_factory, mask, message):
    raises(message, make_vector_dict, values, default_factory, mask)
