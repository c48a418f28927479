"""Baselines on the rows of a window, in scores, saved states, and everything that shows a windowed score."""

import json
import random
from urllib.request import urlopen

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from river import metrics

from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.stream import IterableSource, LearningLoop
from streamsvm.stream.monitor import Monitor
from streamsvm.stream.scores.river_score import CountedWindow
from streamsvm.stream.scores.score_set import ScoreSet

LABEL_METRICS = ["Accuracy", "MacroF1", "MCC", "F1", "AveragePrecision", "ROCAUC"]
TARGET_METRICS = ["MAE", "MSE", "RMSE", "R2"]
BATCHES = st.integers(2, 12), st.lists(st.integers(1, 15), max_size=5)


def fill(metric, rows, window, sizes, regression=False):
    """Return a score set that was updated with the rows in batches of the given sizes."""
    scores = ScoreSet(metric, window, None if regression or metric in ("Accuracy", "MacroF1") else "a", regression=regression)
    start = 0
    for size in [*sizes, len(rows)]:
        ys = rows[start : start + size]
        probabilities = None if regression else {label: np.full(len(ys), 0.5) for label in "ab"}
        scores.update_many(ys, ys, probabilities)
        start += size
    return scores


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=40), *BATCHES)
def test_windowed_baselines_are_those_of_the_last_rows_alone(ys, window, sizes):
    reports = fill(LABEL_METRICS, ys, window, sizes).make_reports()
    expected = fill(LABEL_METRICS, ys[-window:], 100, []).make_reports()
    for report, alone in zip(reports, expected, strict=True):
        values, expected_values = (
            {name.partition(" ")[0]: value for name, value in baselines}  # equally frequent labels may be named in another order
            for baselines in (report.windowed_baselines, alone.baselines)
        )
        assert values == pytest.approx(expected_values), report.name


@given(st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=40), *BATCHES)
def test_windowed_baselines_of_targets_are_those_of_the_last_rows_alone(ys, window, sizes):
    reports = fill(TARGET_METRICS, ys, window, sizes, regression=True).make_reports()
    expected = fill(TARGET_METRICS, ys[-window:], 100, [], regression=True).make_reports()
    for report, alone in zip(reports, expected, strict=True):
        assert dict(report.windowed_baselines) == pytest.approx(dict(alone.baselines), abs=1e-9), report.name


@pytest.mark.parametrize("metric", ["LogLoss", "BrierScore"])
def test_windowed_baselines_of_losses_are_the_losses_of_the_last_rows(metric):
    """A row is predicted by the shares of all labels before it, also of those before the window."""
    ys = random.Random(1).choices("ab", [1, 3], k=50)
    whole, before = (fill(metric, rows, 10, []).make_reports()[0].baselines[0][1] for rows in (ys, ys[:40]))
    ((_, value),) = fill(metric, ys, 10, [7, 20]).make_reports()[0].windowed_baselines
    assert value == pytest.approx((50 * whole - 40 * before) / 10)


@pytest.mark.parametrize("metric", ["Accuracy", "LogLoss"])
def test_a_state_of_an_earlier_version_has_fewer_baselines(metric):
    """Neither the label before nor the last losses were saved."""
    ys = random.Random(1).choices("ab", k=30)
    state = fill(metric, ys[:20], 10, []).state
    removed = [state["scores"][0].pop(name, None) for name in ("n_repeats", "n_followers", "last_shares")]
    assert any(value is not None for value in removed)
    resumed, (complete,) = ScoreSet(metric, 10, "a" if metric != "Accuracy" else None), fill(metric, ys, 10, []).make_reports()
    resumed.resume(state)
    resumed.update_many(ys[20:], ys[20:], {label: np.full(10, 0.5) for label in "ab"})
    (report,) = resumed.make_reports()
    assert report.value == complete.value
    assert dict(report.baselines).items() <= dict(complete.baselines).items()
    assert dict(report.windowed_baselines) == dict(complete.windowed_baselines)


@pytest.mark.parametrize("n_before", [3, 30])
def test_a_resumed_score_of_targets_has_the_baselines_of_its_window(n_before):
    ys = [float(i * i % 7) for i in range(n_before + 4)]
    resumed = ScoreSet("MAE", 10, regression=True)
    resumed.resume(fill("MAE", ys[:n_before], 10, [], regression=True).state)
    resumed.update_many(ys[n_before:], ys[n_before:])
    assert resumed.make_reports() == fill("MAE", ys, 10, [], regression=True).make_reports()


def changing_rows(regression=False):
    """Rows whose labels are mostly "no", but balanced at the end; or whose targets vary less at the end."""
    generator = random.Random(3)
    for i in range(600):
        x = {"a": generator.random()}
        yield x, (generator.gauss(0.0, 1.0 if i < 500 else 0.1) if regression else "no" if i < 500 or i % 2 else "yes")


@pytest.mark.parametrize("regression", [False, True])
def test_the_page_and_the_metrics_of_a_run_have_both_baselines(regression):
    model = BSGDRegressor(20, seed=1) if regression else BSGDClassifier(20, seed=1)
    loop = LearningLoop(IterableSource(changing_rows(regression)), model, window=100)
    with Monitor(loop) as server:
        report = loop.run().scores[0]
        text, state = (urlopen(f"http://127.0.0.1:{server.port}/{name}").read().decode() for name in ("metrics", "state.json"))
    (name, value), (windowed_name, windowed_value) = report.baselines[0], report.windowed_baselines[0]
    assert abs(value - windowed_value) > 0.3
    values = {}
    for line in text.splitlines():
        if line.startswith("streamsvm_baseline{"):
            labels, number = line.rsplit(maxsplit=1)
            values[labels] = float(number)
    for window, baseline, expected in (("all", name, value), ("100", windowed_name, windowed_value)):
        (number,) = (v for labels, v in values.items() if f'window="{window}"' in labels and f'baseline="{baseline}"' in labels)
        assert number == pytest.approx(expected)
    facts = json.loads(state)
    shown = f"{windowed_value:,.4g}" if regression else f"{100 * windowed_value:.1f} %"
    assert dict(facts["tiles"])[f"these rows, {windowed_name}"] == shown
    assert facts["curve"]["points"][-1][6] == pytest.approx(loop.curve.points[-1].windowed_baseline)


@pytest.mark.parametrize("regression", [False, True])
def test_commands_show_the_baseline_of_the_window(tmp_path, call, regression):
    rows, state = tmp_path / "rows.csv", tmp_path / "state"
    rows.write_text("a,y\n" + "".join(f"{x['a']!r},{y}\n" for x, y in changing_rows(regression)))
    flags = ["--regression", "--metric", "MAE,R2"] if regression else ["--metric", "Accuracy,F1", "--positive", "yes"]
    done = call("learn", rows, "--label", "y", "--window", 100, "--checkpoint", state, *flags)
    before, _, after = done.last.partition("last 100 rows ")
    assert ("the mean so far: " if regression else "always 'no': ") in after
    assert ("the last target: " if regression else "the previous label: ") in before
    assert sum("the best baseline on these rows: " in line for line in done.stderr.splitlines()) == 1
    assert "(guessing: " in call("inspect", state).stdout
    scores = json.loads(call("score", rows, "--model", state, "--json").stdout)["scores"][0]
    assert scores["windowed_baselines"].keys() == scores["baselines"].keys() != set()


def test_a_window_of_one_row_has_no_previous_label():
    window = CountedWindow(metrics.Accuracy, 3)
    window.update_many(["a"], ["a"], {("a", "a"): 1})
    assert window.n_repeats == 0
    window.update_many(["a", "b"], ["a", "a"], {("a", "a"): 1, ("b", "a"): 1})
    assert window.n_repeats == 1
