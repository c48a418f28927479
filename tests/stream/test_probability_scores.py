"""Metrics of probabilities: equal to scikit-learn on the same predictions, over all rows and over the last ones."""

import copy
import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import datasets
from sklearn import metrics as sk

from saved import dumps
from streamsvm import BSGDClassifier, SVMClassifier
from streamsvm.stream.scores import ranks
from streamsvm.stream.scores.probability_scores import (
    PROBABILITY_SCORES,
    ROCAUC,
    BrierScore,
    LogLoss,
    Thresholds,
)
from streamsvm.stream.scores.ranks import BINS, RankCounts, average_precision, count_exactly, roc_auc

REFERENCES = {
    "ROCAUC": sk.roc_auc_score,
    "AveragePrecision": sk.average_precision_score,
    "LogLoss": sk.log_loss,
    "BrierScore": sk.brier_score_loss,
}
RANKS = ["ROCAUC", "AveragePrecision"]
LOSSES = ["LogLoss", "BrierScore"]


def to_columns(p):
    return {False: 1.0 - p, True: p}


def update_score(score, y, p, batch_size=700):
    for i in range(0, len(y), batch_size):
        score.update_many(y[i : i + batch_size].tolist(), to_columns(p[i : i + batch_size]))
    return score


def sigmoid(f):
    return 1.0 / (1.0 + np.exp(-f))


def make_synthetic(name, n=60_000):
    rng = np.random.default_rng(1)
    y = rng.random(n) < (0.3 if name == "common" else 0.02)
    noise = rng.normal(size=n)
    p = {
        "common": lambda: sigmoid(1.5 * y - 1.0 + noise),
        "rare": lambda: sigmoid(2.0 * y - 5.0 + noise),
        "near 0": lambda: np.minimum(np.exp(y - 12.0 + 2.0 * noise), 1.0),
        "too sure": lambda: np.clip(np.exp(60.0 * y - 200.0 + 80.0 * noise), 0.0, 1.0),
        "few scores": lambda: rng.choice([0.0, 0.01, 0.5, 1.0], n) * 0.5**y,
    }[name]()
    return y, p


def predict_then_learn(rows, model):
    """Return the labels, and the probabilities of True before each row is learned."""
    y, p = [], []
    for x, label in rows:
        y.append(label)
        p.append(model.predict_proba_one(x).get(True, 0.0))
        model.learn_one(x, label)
    return np.array(y, bool), np.array(p)


def rare_rows():
    """Return rows with a rare positive label: only one positive row in 50 is kept."""
    return [(x, y) for i, (x, y) in enumerate(datasets.Bananas()) if not y or i % 50 == 0]


REAL = {
    "bananas": lambda: predict_then_learn(datasets.Bananas(), BSGDClassifier(50, seed=0)),
    "rare bananas": lambda: predict_then_learn(rare_rows(), BSGDClassifier(50, seed=0)),
    "phishing": lambda: predict_then_learn(datasets.Phishing(), SVMClassifier("low", seed=0)),
}


@functools.cache
def get_real(name):
    return REAL[name]()


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("data", ["common", "rare", "near 0", "too sure", "few scores", *REAL])
def test_scores_equal_those_of_scikit_learn(data, name):
    y, p = get_real(data) if data in REAL else make_synthetic(data)
    score = update_score(PROBABILITY_SCORES[name](1000), y, p)
    assert score.value == pytest.approx(REFERENCES[name](y, p), rel=1e-11, abs=1e-12 if name in LOSSES else 1e-3)
    assert score.windowed_value == pytest.approx(REFERENCES[name](y[-1000:], p[-1000:]), abs=1e-12)
    assert (score.metric.get(), score.windowed.get()) == (score.value, score.windowed_value)


SCORES = st.one_of(
    st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 0.25, 0.5, 0.75, 1.0 - 2.0**-53, 1.0]), st.floats(0.0, 1.0), st.floats(0.0, 1e-6)
)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.booleans(), SCORES), min_size=1, max_size=60), st.integers(1, 20), st.data())
def test_scores_do_not_depend_on_batch_sizes(rows, window, data):
    y, p = (np.array(values) for values in zip(*rows, strict=True))
    for name, positive in [(name, positive) for name in PROBABILITY_SCORES for positive in (None, True, False)]:
        one = update_score(PROBABILITY_SCORES[name](window, positive), y, p, 1)
        many = update_score(PROBABILITY_SCORES[name](window, positive), y, p, data.draw(st.integers(2, 20)))
        assert dumps(many.state) == dumps(one.state)
        values, expected = ((s.value, s.windowed_value, *map(s.compute_baselines, (False, True))) for s in (many, one))
        assert repr(values) == repr(expected)
        if name in REFERENCES and (name in LOSSES or 0 < y.sum() < len(y)):
            q = 1.0 - p if positive is False else p
            expected = REFERENCES[name]((y == (positive is not False)), q, **({"labels": [0, 1]} if name in LOSSES else {}))
            assert many.value == pytest.approx(expected, abs=1e-9 if name in LOSSES or len(y) <= window else 1.0)


@given(st.lists(st.tuples(st.booleans(), SCORES), min_size=2, max_size=60))
def test_binned_scores_are_within_their_error_bounds(rows):
    y, p = (np.array(values) for values in zip(*rows, strict=True))
    if not 0 < y.sum() < len(y):
        return
    binned = RankCounts()
    binned.add_many(y, p)
    negatives, positives = binned.counts.astype(float)
    bound = (negatives * positives).sum() / (2.0 * negatives.sum() * positives.sum())
    exact = count_exactly(y, p)
    assert roc_auc(exact) == pytest.approx(sk.roc_auc_score(y, p), abs=1e-12)
    assert abs(roc_auc(binned.counts) - roc_auc(exact)) <= bound + 1e-12
    sizes = negatives + positives
    above = np.cumsum(sizes[::-1])[::-1] - sizes
    bound = (positives * np.minimum(1.0, sizes / (above + 1.0)))[sizes > 1.0].sum() / positives.sum()
    assert average_precision(exact) == pytest.approx(sk.average_precision_score(y, p), abs=1e-12)
    assert abs(average_precision(binned.counts) - average_precision(exact)) <= bound + 1e-12


@given(st.lists(SCORES, min_size=2, max_size=30))
def test_bins_are_ordered_by_probability(scores):
    scores = sorted(scores)
    bins = []
    for p in scores:
        binned = RankCounts()
        binned.add_many(np.array([True]), np.array([p]))
        bins.append(int(np.argmax(binned.counts[1])))
    assert bins == sorted(bins)
    assert all((i == 0) == (p == 0.0) and (i == BINS - 1) == (p == 1.0) for i, p in zip(bins, scores, strict=True))


def test_common_probabilities_are_not_at_bin_edges():
    """At an edge, the last bit of a logarithm would determine the bin."""
    for p in (0.5, 0.25, 0.75, 1 / 3, 2 / 3, 0.1, 0.2, 0.9):
        position = (ranks._to_scale(p) - ranks._LOWEST) * ranks._BINS_PER_UNIT
        assert abs(position - round(position)) > 1e-6


def test_the_lowest_probability_of_a_bin_is_its_edge():
    for i in range(2, BINS - 1, 7):
        p = ranks._lowest_probability(i)
        if 1e-300 < p < 1.0 - 1e-9:  # others have too few digits
            assert (ranks._to_scale(p) - ranks._LOWEST) * ranks._BINS_PER_UNIT == pytest.approx(i - 1, abs=1e-3)
    assert (ranks._lowest_probability(0), ranks._lowest_probability(BINS - 1)) == (0.0, 1.0)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("n_labels", [2, 3, 7])
def test_multiclass_losses_equal_those_of_scikit_learn(name, n_labels):
    rng = np.random.default_rng(n_labels)
    labels = [*"abcdefg"][:n_labels]
    P = rng.dirichlet(np.ones(n_labels), 3000)
    y = [labels[rng.choice(n_labels, p=row)] for row in P]
    one, many = PROBABILITY_SCORES[name](500), PROBABILITY_SCORES[name](500)
    for i in range(0, len(y), 77):
        many.update_many(y[i : i + 77], dict(zip(labels, P[i : i + 77].T, strict=True)))
    for label, row in zip(y, P, strict=True):
        one.update_many([label], {name: np.array([p]) for name, p in zip(labels, row, strict=True)})
    assert dumps(many.state) == dumps(one.state)
    reference = {"LogLoss": sk.log_loss, "BrierScore": sk.brier_score_loss}[name]
    extra = {"pos_label": labels[1]} if name == "BrierScore" and n_labels == 2 else {}
    arguments = (lambda part: P[part, 1] if extra else P[part]), slice(None), slice(-500, None)
    for part, value in zip(arguments[1:], (many.value, many.windowed_value), strict=True):
        expected = reference(y[part], arguments[0](part), **({} if extra else {"labels": labels}), **extra)
        assert value == pytest.approx(expected, abs=1e-12)


def test_unknown_labels_and_invalid_probabilities():
    loss, brier = LogLoss(10), BrierScore(10)
    for score in (loss, brier):
        score.update_many(["c"], {"a": np.array([0.75]), "b": np.array([0.25])})
        score.update_many(["a"], {})
    assert loss.value == -math.log(2.0**-52)
    assert brier.value == pytest.approx((0.75**2 + 0.25**2 + 1.0) / 2.0)
    for value, expected in ((math.nan, 0.0), (-1.0, 0.0), (7.0, 1.0), (math.inf, 1.0), (-math.inf, 0.0)):
        brier = BrierScore(10, positive="x")
        brier.update_many(["x"], {"x": np.array([value])})
        assert brier.value == (1.0 - expected) ** 2
        rank = ROCAUC(10)
        rank.update_many([True, False], {True: np.array([value, 0.5])})
        assert rank.value == (expected > 0.5)


@pytest.mark.parametrize("name", RANKS)
def test_ranking_metrics_are_nan_without_both_classes(name):
    score = PROBABILITY_SCORES[name](10)
    assert math.isnan(score.value)
    assert not score.has_rows
    assert score.compute_baselines(is_windowed=False) == ((("rows in any order", 0.5),) if name == "ROCAUC" else ())
    score.update_many([False], {True: np.array([0.5])})
    assert math.isnan(score.value)
    assert math.isnan(score.windowed_value)
    assert score.has_rows


def compute_naive_baseline(ys, loss):
    total, earlier = 0.0, []
    for y in ys:
        k = max(len(set(earlier) | {y}), 2)
        labels = [*dict.fromkeys([*earlier, y]), "other"][:k]
        shares = {label: (earlier.count(label) + 1) / (len(earlier) + k) for label in labels}
        total += loss(np.array([shares[y]]), np.array([sum(p * p for p in shares.values())]))[0]
        earlier.append(y)
    return total / len(ys)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=40), st.integers(1, 9))
def test_the_label_frequency_baseline_equals_a_naive_implementation(ys, batch_size):
    for kind in (LogLoss, BrierScore):
        score = kind(10)
        for i in range(0, len(ys), batch_size):
            batch = ys[i : i + batch_size]
            score.update_many(batch, {label: np.full(len(batch), 0.25) for label in "abcd"})
        ((_, value),) = score.compute_baselines(is_windowed=False)
        assert value == pytest.approx(compute_naive_baseline(ys, kind._compute_losses))


FORGED_VALUES = [None, -1, 1.5, math.nan, True, "x", [], [1], {"a": 1}, np.zeros((3, 3)), np.full(50, 2), 2**70]


def forge_states(state, optional):
    """Yield states with one part missing, unless it is optional, or of another type."""
    yield from FORGED_VALUES
    for key, inner in state.items():
        if f"_{key}" not in optional:
            yield {name: value for name, value in state.items() if name != key}
        for value in forge_states(inner, ()) if isinstance(inner, dict) else FORGED_VALUES:
            if type(value) is not type(inner):
                yield {**state, key: value}


@pytest.mark.parametrize("name", PROBABILITY_SCORES)
def test_forged_states_are_refused(name):
    kind, (y, p) = PROBABILITY_SCORES[name], make_synthetic("common", 80)
    state = update_score(kind(50), y, p).state
    kind(50).resume(copy.deepcopy(state))
    for forged in forge_states(state, kind._newer_attributes):
        score = kind(50)
        before = dumps(score.state)
        with pytest.raises((ValueError, TypeError, LookupError)):
            score.resume(copy.deepcopy(forged))
        assert dumps(score.state) == before


@settings(max_examples=40)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 30))
def test_a_saved_score_resumes(n_before, n_after, window):
    y, p = make_synthetic("common", 80)
    for name, kind in PROBABILITY_SCORES.items():
        n = n_before + n_after
        expected = update_score(kind(window), y[:n], p[:n])
        first = update_score(kind(window), y[:n_before], p[:n_before])
        resumed = kind(window)
        resumed.resume(first.state)
        update_score(resumed, y[n_before:n], p[n_before:n], 7)
        assert dumps(resumed.state) == dumps(expected.state), name


def test_reprs_name_parameters():
    assert repr(ROCAUC(100)) == "ROCAUC(bins=16384, window=100)"
    assert repr(BrierScore(100, positive="a")) == "BrierScore(window=100, positive='a')"
    score = LogLoss(100)
    score.update_many([True], {True: np.array([0.5])})
    assert repr(score.metric) == "LogLoss: 0.693147"


@pytest.mark.parametrize("p", [1.0, 0.99987, 0.3396, 0.25, 1e-9, 0.0, math.nan])
def test_the_best_threshold_is_rounded_down(p):
    score = Thresholds(window=10)
    score.update_many([True, True, False], {True: np.array([p, p, 0.0])})
    names = [row[0] for row in score.table[1:]]
    [text] = [name for name in names if "best" in name]
    assert [name for name in names if name != text] == ["0.05", *(f"0.{i}" for i in range(1, 10)), "0.95"]
    assert 0.98 * p <= float(text.split()[0]) <= p or not p > 0.0 == float(text.split()[0])
