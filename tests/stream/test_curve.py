"""The learning curve: bounded, equal for equal rows, and validated when it is read from a file."""

import copy
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from river import datasets, drift, preprocessing

from refused import raises
from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.stream import (
    CheckpointFolder,
    CurvePoint,
    DriftWatch,
    IterableSource,
    LearningCurve,
    LearningLoop,
)


def curve_of(rows, first=1):
    """A curve of ``rows`` rows that are scored from number ``first`` on."""
    curve, due = LearningCurve("Accuracy", 1000), 1
    for row in range(1, rows + 1):
        if row == due:
            if row >= first:
                curve.add(CurvePoint(row, 1.0 / row, float(row)))
            due = curve.find_next_row(row)
    return curve


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_points_are_evenly_spaced_and_limited(rows, first):
    curve = curve_of(rows, first)
    assert curve.every.bit_count() == 1
    assert len(curve.points) < 200
    assert [point.rows for point in curve.points] == [row for row in range(curve.every, rows + 1, curve.every) if row >= first]
    assert len(curve.points) >= 100 or curve.every == 1
    assert all(point.metric == pytest.approx(1.0 / point.rows, rel=1e-5) for point in curve.points)


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_a_saved_curve_continues_as_one_that_was_not_saved(before, after):
    curve = curve_of(before)
    resumed = LearningCurve.from_state(json.loads(json.dumps(curve.state)), before)
    assert resumed.state == curve.state
    for row in range(before + 1, before + after + 1):
        if row == resumed.find_next_row(row - 1):
            resumed.add(CurvePoint(row, 1.0 / row, float(row)))
    assert resumed.state == curve_of(before + after).state


def test_nan_is_none_in_the_file():
    curve = LearningCurve("F1", 10)
    for rows, value in enumerate([math.nan, math.inf, -math.inf, 1e300, 0.123456789], 1):
        curve.add(CurvePoint(rows, value, 0.5))
    state = curve.state
    saved = [[1, None, 0.5], [2, None, 0.5], [3, None, 0.5], [4, 1e300, 0.5], [5, 0.123457, 0.5]]
    assert state["points"] == [[*point, None, None, None, None] for point in saved]
    assert json.dumps(LearningCurve.from_state(state, 5).state, allow_nan=False) == json.dumps(state)
    earlier = {**state, "points": [point[:-1] for point in state["points"]]}  # of a version without windowed baselines
    assert json.dumps(LearningCurve.from_state(earlier, 5).state, allow_nan=False) == json.dumps(state)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("metric",), 3),
        (("window",), -1),
        *((("every",), wrong) for wrong in (2.0, None)),
        *((("points",), wrong) for wrong in ([[i, 0.5, 0.5, None, 0, 0] for i in range(1, 201)], 5)),
        *((("points", 0), wrong) for wrong in ([1, 0.5], "abc")),
        *((("points", 1, 0), wrong) for wrong in (1, 41)),
        (("points", 1, 1), "0.5"),
    ],
)
def test_a_corrupt_curve_is_refused(place, value):
    state = curve_of(40).state
    LearningCurve.from_state(state, 40)
    changed = copy.deepcopy(state)
    part = changed
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    raises("the learning curve is corrupt", LearningCurve.from_state, changed, 40)


@pytest.mark.parametrize(("state", "rows"), [(None, 40), ({}, 40), (curve_of(40).state, 39), (curve_of(40).state, "40")])
def test_a_curve_of_other_rows_is_refused(state, rows):
    raises("the learning curve is corrupt", LearningCurve.from_state, state, rows)


def make_loop(folder=None):
    data = [(x, y if i >= 10 else None) for i, (x, y) in enumerate(datasets.Bananas().take(300))]
    model = preprocessing.StandardScaler() | BSGDClassifier(budget=30, seed=1)
    return LearningLoop(IterableSource(data), model, checkpoints=folder, window=100)


def about(value):
    return pytest.approx(value, rel=1e-5)


def test_the_loop_adds_the_scores_at_the_points(tmp_path):
    """From the second row on, because the model predicts None before its first row."""
    expected, loop = {}, make_loop()
    while loop.rows < 300:
        progress = loop.run(1)
        (report,) = progress.scores
        best = [baselines[0][1] for baselines in (report.baselines, report.windowed_baselines) if baselines]
        expected[loop.rows] = progress.metric, progress.windowed, best
    with CheckpointFolder(tmp_path) as folder:
        make_loop(folder).run()
        assert folder.newest().header["curve"] == loop.curve.state
    assert (loop.curve.metric, loop.curve.window, loop.curve.every) == ("Accuracy", 100, 2)
    assert loop.curve.points == [
        CurvePoint(rows, *map(about, (metric, windowed, best[0])), 0, None, about(best[1]))
        for rows in range(12, 301, 2)
        for metric, windowed, best in [expected[rows]]
    ]


def test_points_have_the_numbers_of_refused_rows_and_drifts():
    rows = [({"a": i % 7 / 7}, i % 7 > 3 if i < 1500 else i % 7 < 3) for i in range(3000)]
    for i in (10, 700, 701, 2500):
        rows[i] = {"a": "x"}, True

    def run(most):
        watch = DriftWatch(drift.ADWIN(), "count")
        loop = LearningLoop(IterableSource(rows), BSGDClassifier(budget=20), on_error="skip", drift=watch)
        while loop.rows < len(rows):
            loop.run(most)
        return loop

    loop = run(None)
    assert loop.curve.state == run(1).curve.state
    last = loop.curve.points[-1]
    assert (last.refused, last.drifts) == (4, loop.drift.drifts)
    assert [next(point.rows for point in loop.curve.points if point.refused == n) for n in (1, 3, 4)] == [16, 704, 2512]
    assert 1500 < next(point.rows for point in loop.curve.points if point.drifts) < 1700
    numbers = LearningLoop(IterableSource((x, float(i % 5)) for i, (x, _) in enumerate(rows[100:300])), BSGDRegressor(budget=20))
    guesses = dict(numbers.run().scores[0].baselines)
    assert numbers.curve.points[-1].baseline == pytest.approx(min(guesses.values()), rel=1e-5)


def test_the_name_and_the_values_of_a_curve_are_limited():
    curve = LearningCurve("x" * 10**6, 5)
    curve.add(CurvePoint(1, 1e308, -1e301))
    curve.add(CurvePoint(2, 1e60, -1e60))
    assert curve.metric == "x" * 100
    assert math.isnan(curve.points[0].metric)
    assert math.isnan(curve.points[0].windowed)
    assert LearningCurve.from_state(curve.state, 2).points[1:] == curve.points[1:] == [CurvePoint(2, 1e60, -1e60)]
