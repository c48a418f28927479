"""Scores of probabilities: those of scikit-learn on the same predictions, of all rows and the last ones, however rows come."""

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

TWINS = {
    "ROCAUC": sk.roc_auc_score,
    "AveragePrecision": sk.average_precision_score,
    "LogLoss": sk.log_loss,
    "BrierScore": sk.brier_score_loss,
}
RANKS = ["ROCAUC", "AveragePrecision"]
LOSSES = ["LogLoss", "BrierScore"]


def columns(p):
    return {False: 1.0 - p, True: p}


def counted(score, y, p, part=700):
    for i in range(0, len(y), part):
        score.update_many(y[i : i + part].tolist(), columns(p[i : i + part]))
    return score


def sigmoid(f):
    return 1.0 / (1.0 + np.exp(-f))


def synthetic(name, n=60_000):
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


def predicted(rows, model):
    """The probabilities of True before each row was learned."""
    y, p = [], []
    for x, label in rows:
        y.append(label)
        p.append(model.predict_proba_one(x).get(True, 0.0))
        model.learn_one(x, label)
    return np.array(y, bool), np.array(p)


def rare_rows():
    """Of two bananas one is rare, one row of 50."""
    return [(x, y) for i, (x, y) in enumerate(datasets.Bananas()) if not y or i % 50 == 0]


REAL = {
    "bananas": lambda: predicted(datasets.Bananas(), BSGDClassifier(50, seed=0)),
    "rare bananas": lambda: predicted(rare_rows(), BSGDClassifier(50, seed=0)),
    "phishing": lambda: predicted(datasets.Phishing(), SVMClassifier("low", seed=0)),
}


@functools.cache
def real(name):
    return REAL[name]()


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("data", ["common", "rare", "near 0", "too sure", "few scores", *REAL])
def test_scores_are_those_of_scikit_learn(data, name):
    y, p = real(data) if data in REAL else synthetic(data)
    score = counted(PROBABILITY_SCORES[name](1000), y, p)
    assert score.value == pytest.approx(TWINS[name](y, p), rel=1e-11, abs=1e-12 if name in LOSSES else 1e-3)
    assert score.windowed_value == pytest.approx(TWINS[name](y[-1000:], p[-1000:]), abs=1e-12)
    assert (score.metric.get(), score.windowed.get()) == (score.value, score.windowed_value)


SCORES = st.one_of(
    st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 0.25, 0.5, 0.75, 1.0 - 2.0**-53, 1.0]), st.floats(0.0, 1.0), st.floats(0.0, 1e-6)
)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.booleans(), SCORES), min_size=1, max_size=60), st.integers(1, 20), st.data())
def test_rows_count_the_same_however_they_come(rows, window, data):
    y, p = np.array([each for each, _ in rows]), np.array([each for _, each in rows])
    for name, positive in [(name, positive) for name in PROBABILITY_SCORES for positive in (None, True, False)]:
        one = counted(PROBABILITY_SCORES[name](window, positive), y, p, 1)
        many = counted(PROBABILITY_SCORES[name](window, positive), y, p, data.draw(st.integers(2, 20)))
        assert dumps(many.state) == dumps(one.state)
        assert repr((many.value, many.windowed_value, many.baselines)) == repr((one.value, one.windowed_value, one.baselines))
        if name in TWINS and (name in LOSSES or 0 < y.sum() < len(y)):
            q = 1.0 - p if positive is False else p
            expected = TWINS[name]((y == (positive is not False)), q, **({"labels": [0, 1]} if name in LOSSES else {}))
            assert many.value == pytest.approx(expected, abs=1e-9 if name in LOSSES or len(y) <= window else 1.0)


@given(st.lists(st.tuples(st.booleans(), SCORES), min_size=2, max_size=60))
def test_the_area_is_within_its_bound(rows):
    y, p = np.array([each for each, _ in rows]), np.array([each for _, each in rows])
    if not 0 < y.sum() < len(y):
        return
    ranks = RankCounts()
    ranks.add_many(y, p)
    others, positives = ranks.counts.astype(float)
    bound = (others * positives).sum() / (2.0 * others.sum() * positives.sum())
    exact = count_exactly(y, p)
    assert roc_auc(exact) == pytest.approx(sk.roc_auc_score(y, p), abs=1e-12)
    assert abs(roc_auc(ranks.counts) - roc_auc(exact)) <= bound + 1e-12
    found, sizes = average_precision(ranks.counts), others + positives
    above = np.cumsum(sizes[::-1])[::-1] - sizes
    bound = (positives * np.minimum(1.0, sizes / (above + 1.0)))[sizes > 1.0].sum() / positives.sum()
    assert average_precision(exact) == pytest.approx(sk.average_precision_score(y, p), abs=1e-12)
    assert abs(found - average_precision(exact)) <= bound + 1e-12


@given(st.lists(SCORES, min_size=2, max_size=30))
def test_bins_are_in_the_order_of_scores(scores):
    scores = sorted(scores)
    places = []
    for p in scores:
        ranks = RankCounts()
        ranks.add_many(np.array([True]), np.array([p]))
        places.append(int(np.argmax(ranks.counts[1])))
    assert places == sorted(places)
    assert all((place == 0) == (p == 0.0) and (place == BINS - 1) == (p == 1.0) for place, p in zip(places, scores, strict=True))


def test_scores_that_models_give_often_lie_within_a_bin():
    """Where they lay between two, the last bit of a logarithm would count."""
    for p in (0.5, 0.25, 0.75, 1 / 3, 2 / 3, 0.1, 0.2, 0.9):
        place = (ranks._to_scale(p) - ranks._LOWEST) * ranks._BINS_PER_UNIT
        assert abs(place - round(place)) > 1e-6


def test_the_lowest_score_of_a_bin_is_where_it_begins():
    for place in range(2, BINS - 1, 7):
        p = ranks._lowest_probability(place)
        if 1e-300 < p < 1.0 - 1e-9:  # where rounding leaves enough digits
            assert (ranks._to_scale(p) - ranks._LOWEST) * ranks._BINS_PER_UNIT == pytest.approx(place - 1, abs=1e-3)
    assert (ranks._lowest_probability(0), ranks._lowest_probability(BINS - 1)) == (0.0, 1.0)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("n_labels", [2, 3, 7])
def test_losses_of_several_labels(name, n_labels):
    rng = np.random.default_rng(n_labels)
    labels = [*"abcdefg"][:n_labels]
    P = rng.dirichlet(np.ones(n_labels), 3000)
    y = [labels[rng.choice(n_labels, p=row)] for row in P]
    one, many = PROBABILITY_SCORES[name](500), PROBABILITY_SCORES[name](500)
    for i in range(0, len(y), 77):
        many.update_many(y[i : i + 77], dict(zip(labels, P[i : i + 77].T, strict=True)))
    for label, row in zip(y, P, strict=True):
        one.update_many([label], {other: np.array([p]) for other, p in zip(labels, row, strict=True)})
    assert dumps(many.state) == dumps(one.state)
    twin = {"LogLoss": sk.log_loss, "BrierScore": sk.brier_score_loss}[name]
    extra = {"pos_label": labels[1]} if name == "BrierScore" and n_labels == 2 else {}
    arguments = (lambda part: P[part, 1] if extra else P[part]), slice(None), slice(-500, None)
    for part, found in zip(arguments[1:], (many.value, many.windowed_value), strict=True):
        expected = twin(y[part], arguments[0](part), **({} if extra else {"labels": labels}), **extra)
        assert found == pytest.approx(expected, abs=1e-12)


def test_labels_that_the_model_does_not_know_and_probabilities_that_are_none():
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
def test_without_rows_of_both_kinds_there_is_no_value(name):
    score = PROBABILITY_SCORES[name](10)
    assert math.isnan(score.value)
    assert not score.has_rows
    assert score.baselines == ((("rows in any order", 0.5),) if name == "ROCAUC" else ())
    score.update_many([False], {True: np.array([0.5])})
    assert math.isnan(score.value)
    assert math.isnan(score.windowed_value)
    assert score.has_rows


def naive_shares(ys, loss):
    total, seen = 0.0, []
    for y in ys:
        k = max(len(set(seen) | {y}), 2)
        shares = {label: (seen.count(label) + 1) / (len(seen) + k) for label in [*dict.fromkeys([*seen, y]), "other"][:k]}
        total += loss(np.array([shares[y]]), np.array([sum(p * p for p in shares.values())]))[0]
        seen.append(y)
    return total / len(ys)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=40), st.integers(1, 9))
def test_what_the_shares_of_labels_give(ys, part):
    for kind in (LogLoss, BrierScore):
        score = kind(10)
        for i in range(0, len(ys), part):
            some = ys[i : i + part]
            score.update_many(some, {label: np.full(len(some), 0.25) for label in "abcd"})
        ((_, found),) = score.baselines
        assert found == pytest.approx(naive_shares(ys, kind._compute_losses))


WILD = [None, -1, 1.5, math.nan, True, "x", [], [1], {"a": 1}, np.zeros((3, 3)), np.full(50, 2), 2**70]


def wild_states(state):
    """States in which one part is another thing."""
    yield from WILD
    for key, inner in state.items():
        yield {name: value for name, value in state.items() if name != key}
        for value in wild_states(inner) if isinstance(inner, dict) else WILD:
            if type(value) is not type(inner):
                yield {**state, key: value}


@pytest.mark.parametrize("name", PROBABILITY_SCORES)
def test_states_that_somebody_has_written(name):
    kind, (y, p) = PROBABILITY_SCORES[name], synthetic("common", 80)
    state = counted(kind(50), y, p).state
    kind(50).resume(copy.deepcopy(state))
    for wild in wild_states(state):
        score = kind(50)
        before = dumps(score.state)
        with pytest.raises((ValueError, TypeError, LookupError)):
            score.resume(copy.deepcopy(wild))
        assert dumps(score.state) == before


@settings(max_examples=40)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 30))
def test_a_saved_score_goes_on(before, after, window):
    y, p = synthetic("common", 80)
    for name, kind in PROBABILITY_SCORES.items():
        whole, first = (
            counted(kind(window), y[: before + after], p[: before + after]),
            counted(kind(window), y[:before], p[:before]),
        )
        resumed = kind(window)
        resumed.resume(first.state)
        counted(resumed, y[before : before + after], p[before : before + after], 7)
        assert dumps(resumed.state) == dumps(whole.state), name


def test_what_their_reprs_say():
    assert repr(ROCAUC(100)) == "ROCAUC(bins=16384, window=100)"
    assert repr(BrierScore(100, positive="a")) == "BrierScore(window=100, positive='a')"
    score = LogLoss(100)
    score.update_many([True], {True: np.array([0.5])})
    assert repr(score.metric) == "LogLoss: 0.693147"


@pytest.mark.parametrize("p", [1.0, 0.99987, 0.3396, 0.25, 1e-9, 0.0, math.nan])
def test_the_best_threshold_is_just_below_its_rows(p):
    score = Thresholds(window=10)
    score.update_many([True, True, False], {True: np.array([p, p, 0.0])})
    names = [row[0] for row in score.table[1:]]
    [text] = [name for name in names if "best" in name]
    assert [name for name in names if name != text] == ["0.05", *(f"0.{i}" for i in range(1, 10)), "0.95"]
    assert 0.98 * p <= float(text.split()[0]) <= p or not p > 0.0 == float(text.split()[0])
