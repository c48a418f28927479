"""The scaler that clips outliers equals river's StandardScaler without them."""

import math
import pickle
import random

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import checks, linear_model, preprocessing

from refused import refused
from saved import dumps
from streamsvm import BSGDRegressor
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler


def normal_rows(n, seed=1):
    draw = random.Random(seed)
    return [{f"f{j}": draw.gauss(j, 1.0 + j) for j in range(5)} for _ in range(n)]


def learned(rows, scaler=None):
    scaler = BoundedScaler() if scaler is None else scaler
    for x in rows:
        scaler.learn_one(x)
    return scaler


@pytest.mark.once
@pytest.mark.usefixtures("few_objects")
def test_rivers_checks():
    for check in checks.yield_checks(BoundedScaler()):
        check(BoundedScaler())


@settings(max_examples=40)
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.floats(-1e6, 1e6)), max_size=80))
def test_without_clipping_it_equals_rivers_scaler(rows):
    ours, rivers = BoundedScaler(deviations=None), preprocessing.StandardScaler()
    for x in rows:
        ours.learn_one(x)
        rivers.learn_one(x)
        scaled = ours.transform_one(x)
        assert list(scaled) == list(x) or set(scaled) == set(x)
        for name, value in rivers.transform_one(x).items():
            # Ignore features whose variance is only due to rounding.
            assert scaled[name] == pytest.approx(value, rel=1e-5, abs=1e-5) or rivers.vars[name] < 1e-9 * (
                1.0 + rivers.means[name] ** 2
            )


@settings(max_examples=40)
@given(st.lists(st.dictionaries(st.sampled_from("abcdefghijklmn"), st.floats(-1e3, 1e3)), max_size=60))
def test_counts_means_and_vars_are_as_in_rivers_scaler(rows):
    ours, rivers = (learned(rows, scaler) for scaler in (BoundedScaler(deviations=None), preprocessing.StandardScaler()))
    assert (ours.counts, type(ours.counts)) == (rivers.counts, type(rivers.counts))
    for name in [*rivers.counts, "never learned"]:
        assert ours.means[name] == pytest.approx(rivers.means[name], abs=1e-6)
        assert ours.vars[name] == pytest.approx(rivers.vars[name], rel=1e-6, abs=1e-6)
    assert (ours.means.keys(), ours.vars.keys()) == (ours.counts.keys(), ours.counts.keys())


def test_moments_are_those_of_clipped_values():
    rows = normal_rows(1000)
    clean = learned(rows)
    scaler = learned([*rows, {"f2": 1e10}])
    assert scaler.counts["f2"] == clean.counts["f2"] + 1 == 1001
    assert scaler.means["f2"] == pytest.approx(clean.means["f2"] + 8.0 * math.sqrt(clean.vars["f2"]) / 1001)
    scaler.means["f2"] = 7.0  # a copy
    assert scaler.means["f2"] != 7.0


def test_normal_rows_are_not_clipped():
    rows = normal_rows(3000)
    assert learned(rows).n_bounded == 0
    assert learned(rows).transform_one(rows[0]) == pytest.approx(
        learned(rows, preprocessing.StandardScaler()).transform_one(rows[0])
    )


@pytest.mark.once
@pytest.mark.parametrize("at", [0, 5, 31, 32, 500])
@pytest.mark.parametrize("value", [-1e10, 3e38, 100.0])
def test_an_outlier_changes_other_scaled_values_little(at, value):
    rows = normal_rows(1000)
    expected = learned(rows)
    rows[at] = {**rows[at], "f2": value}
    scaler = learned(rows)
    for x in rows[100:110]:
        scaled = scaler.transform_one(x)
        for name, number in expected.transform_one(x).items():
            assert scaled[name] == pytest.approx(number, abs=0.2)
    assert abs(scaler.transform_one({"f2": value})["f2"]) <= 8.0
    assert scaler.n_bounded == (at >= 32)


def test_the_scale_follows_a_permanent_change():
    scaler = learned(normal_rows(1000))
    far = [{name: 1000.0 * value for name, value in x.items()} for x in normal_rows(1000, seed=2)]
    learned(far, scaler)
    assert all(abs(value) <= 8.0 for x in far for value in scaler.transform_one(x).values())
    assert 0 < scaler.n_bounded < 2500


@pytest.mark.parametrize("deviations", [8.0, None])
def test_rows_with_non_finite_numbers_are_refused_completely(deviations):
    scaler = learned(normal_rows(50), BoundedScaler(deviations))
    before = pickle.dumps(scaler)
    for bad in ("text", math.nan, math.inf, 1e39, 10**400, None, [1.0]):
        for x in ({**normal_rows(1)[0], "f3": bad}, {"new": 1.0, "f3": bad}, {"new": bad}):
            refused(r"feature '(f3|new)' is", scaler.learn_one, x)
            if "f3" in x:
                refused("feature 'f3' is", scaler.transform_one, x)
            else:  # as a feature that was never learned has no influence
                assert scaler.transform_one(x) == {"new": 0.0}
    refused("must be a mapping", scaler.learn_one, None)
    assert pickle.dumps(scaler) == before


def test_a_saved_scaler_continues_identically():
    rows = [*normal_rows(40), {f"g{i}": float(i) for i in range(40)}, {"f1": 1e9}, *normal_rows(40, seed=3)]
    reference = learned(rows)
    half = pickle.loads(pickle.dumps(learned(rows[:45])))
    assert pickle.dumps(learned(rows[45:], half)) == pickle.dumps(reference)
    assert pickle.loads(pickle.dumps(reference)).transform_one(rows[0]) == reference.transform_one(rows[0])


def test_a_corrupt_state_is_refused():
    state = learned(normal_rows(40)).__getstate__()
    for change in (
        {"names": ["a"]},
        {"names": ["f0"] * 5},
        {"first_values": state["first_values"][:, :3]},
    ):
        refused("corrupt", BoundedScaler.__new__(BoundedScaler).__setstate__, {**state, **change})


@pytest.mark.parametrize("deviations", [0.0, 1.9, -1.0, math.inf, math.nan])
def test_deviations_out_of_range(deviations):
    refused("at least 2", BoundedScaler, deviations)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, lambda columns: np.array(list(columns.values())).T])
def test_frames_are_learned_as_their_rows(frame):
    rows = normal_rows(200)
    rows[100]["f2"] = 1e20
    columns = {name: [x[name] for x in rows] for name in rows[0]}
    data = frame(columns)
    names = list(columns) if hasattr(data, "columns") else list(range(5))
    single, many = BoundedScaler(), BoundedScaler()
    for x in rows:
        single.learn_one(dict(zip(names, x.values(), strict=True)))
    many.learn_many(data[:90])
    many.learn_many(data[90:])
    assert dumps(many) == dumps(single)
    assert many.n_bounded == 1
    scaled = many.transform_many(data)
    assert type(scaled) is type(data)
    expected = [list(single.transform_one(dict(zip(names, x.values(), strict=True))).values()) for x in rows]
    assert np.asarray(scaled).tolist() == expected
    if isinstance(data, pd.DataFrame):
        assert scaled.index.equals(data.index)
        more = many.transform_many(data.assign(unknown=1.0))
        assert (more["unknown"] == 0.0).all()
        with pytest.raises(ValueError, match="row 3: feature 'f1' is inf: features must be finite float32"):
            many.learn_many(data.assign(new=2.0, f1=[*[1.0] * 3, math.inf, *[1.0] * 196]))
        assert dumps(many) == dumps(single)


def test_scaled_targets_cause_no_warning():
    model = BoundedTargetScaler(BSGDRegressor(budget=10, seed=0))
    for i in range(200):  # each target is above all earlier ones
        model.learn_one({"a": i % 7 / 7}, 1000.0 + i)
    assert model.predict_one({"a": 0.5}) > 1000.0


@pytest.mark.parametrize("weighted", [True, pytest.param(False, marks=pytest.mark.once)])
def test_targets_are_scaled_in_batches_as_row_by_row(weighted):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    y = (50.0 * X[:, 0] + 1000.0 + rng.normal(size=400)).tolist()
    y[60], y[200], y[::17] = 1e12, -1e9, [None] * 24
    weights = rng.integers(0, 3, 400).astype(float) if weighted else np.ones(400)
    ones, many = (BoundedTargetScaler(BSGDRegressor(budget=20, seed=0)) for _ in range(2))
    names, predictions = ["a", "b", "c"], []
    for i, row in enumerate(X.tolist()):
        x = dict(zip(names, row, strict=True))
        due = ones.predict_one(x)
        if y[i] is not None:
            ones.learn_one(x, y[i], w=weights[i])
        if i == 0 and y[i] is None:
            assert many.predict_then_learn(X[:1], names, [1.0], False) is None  # its features are new
            many.learn_one(x, 1.0)
            ones.learn_one(x, 1.0)
            predictions.append(due)
        elif i % 25 == 1:
            part = slice(i, min(i + 25, 400))
            answers, _ = many.predict_then_learn(X[part], names, y[part], False, weights[part] if weighted else None)
            predictions += answers
        assert i >= len(predictions) or predictions[i] == due
    assert (ones._scaler._moments == many._scaler._moments).all()
    assert (ones.n_bounded, ones.regressor.n_learned) == (many.n_bounded, many.regressor.n_learned)
    assert many.predict_then_learn(X[:2], names, [1e300, 1.0], False) is None
    assert many.predict_then_learn(X[:2], ["a", "b", "new"], [1.0, 1.0], False) is None
    assert (ones._scaler._moments == many._scaler._moments).all()
    assert not hasattr(BoundedTargetScaler(linear_model.LinearRegression()), "predict_then_learn")
