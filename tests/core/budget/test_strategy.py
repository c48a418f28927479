"""Maintenance strategies: their events and options, and a custom strategy."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from numba import config, njit
from river import datasets

from refused import refused
from streamsvm import BSCAClassifier, BSGDClassifier, Merge, Projection, Removal
from streamsvm.core.budget import Refusal, Strategy, choose_strategy
from streamsvm.core.budget.strategy import maintain_budget, set_strategy
from streamsvm.core.memory.slots import append_vector, remove_vector
from streamsvm.core.memory.support_vectors import SupportVectorStore, views


@njit
def remove_oldest(block, random):
    v = views(block)
    remove_vector(block, v.stamps[: v.header[0]["n_support"]].argmin())
    return 0


@dataclass(frozen=True)
class Oldest(Strategy):
    """Remove the oldest support vector."""

    def event(self, shared):
        return remove_oldest


@njit
def write_options(block, random):
    v = views(block)
    v.biases[0] = v.cache[0]["options"][0] + v.cache[0]["options"][1] + random
    return 1


class Options(Strategy):
    def event(self, shared):
        return write_options if shared else None

    def options(self):
        return 20, 300


@njit
def wrong(block, random):
    return 0.5


class Wrong(Strategy):
    def event(self, shared):
        return wrong


@njit
def call(block, random):
    return maintain_budget(block, random)


def full_store(budget=6, gram=False):
    store = SupportVectorStore(budget, 3, gram=gram)
    store.used = 3
    rng = np.random.default_rng(0)
    for i in range(budget + 1):
        append_vector(store.block, rng.normal(size=3).astype(np.float32), 1.0, 1.0 + i)
        store.coefficients[0, i] = rng.exponential()
    return store


@pytest.mark.once
@pytest.mark.parametrize("maintenance", [Oldest(), Removal("random"), Projection(), Merge("gss")], ids=repr)
@pytest.mark.parametrize("kind", [BSGDClassifier, BSCAClassifier])
@pytest.mark.parametrize("classes", [2, 3])
def test_every_strategy_keeps_the_budget(kind, maintenance, classes):
    model = kind(budget=8, maintenance=maintenance, seed=0)
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(60, 2)), rng.integers(classes, size=60)
    model.learn_many(X, y)
    assert model.n_support == 8
    assert model.maintenance == maintenance
    loaded = pickle.loads(pickle.dumps(model.clone(include_attributes=True)))
    loaded.learn_many(X, y)
    model.learn_many(X, y)
    np.testing.assert_array_equal(loaded.coefficients, model.coefficients)


def test_custom_strategy_is_used():
    model, rows = BSGDClassifier(budget=5, scaling=None, maintenance=Oldest(), averaging=0), []
    for x, y in datasets.Bananas().take(60):
        before = model.n_learned, model._store.views.header[0]["next_stamp"]
        model.learn_one(x, y)
        if model._store.views.header[0]["next_stamp"] > before[1]:
            rows.append(list(x.values()))
    vectors = sorted(model.support_vectors.tolist())
    assert vectors == sorted(np.array(rows[-5:], np.float32).tolist())
    assert len(rows) > 10


@pytest.mark.parametrize("strategy", [Merge(), Removal(), Removal("random"), Projection(), Oldest()], ids=repr)
def test_event_removes_one_support_vector(strategy):
    store, again = (full_store(gram=strategy.needs_gram) for _ in range(2))
    for one in (store, again):
        set_strategy(one, strategy, False)
    total = store.views.weights.sum()
    merged = call(store.block, np.uint64(11))
    assert merged == maintain_budget(again.block, np.uint64(11)) == int(strategy.merges)
    assert store.n_support == 6
    assert store.snapshot() == again.snapshot()
    assert (store.views.weights.sum() == total) == strategy.merges


def test_store_is_unchanged_without_event():
    for strategy in (Refusal(), Options()):
        store = full_store()
        before = store.snapshot()
        set_strategy(store, strategy, False)
        assert call(store.block, np.uint64(3)) == maintain_budget(store.block, np.uint64(3)) == 0
        assert store.snapshot() == before


def test_event_receives_options_and_random_number():
    store = full_store()
    set_strategy(store, Options(), True)
    assert call(store.block, np.uint64(4000)) == 1
    assert store.views.biases[0] == 4320.0


def test_event_must_return_an_integer():
    if config.DISABLE_JIT:
        pytest.skip("only compiled code has types")
    refused("wrong must return int64, not float64", set_strategy, full_store(), Wrong(), False, error=TypeError)


def test_strategy_must_implement_event():
    refused("Strategy has no event", set_strategy, full_store(), Strategy(), False, error=NotImplementedError)


def test_default_and_supported_strategies_of_kernels():
    assert choose_strategy("rbf", None) == Merge()
    assert choose_strategy("poly", None) == choose_strategy("linear", None) == Projection()
    assert choose_strategy("linear", Oldest()) == Oldest()
    refused(r"Merge needs kernel='rbf'; with kernel='poly' use Projection\(\) or Removal\(\)", choose_strategy, "poly", Merge())
    for wrong_value in (Merge, "merge", 3, Refusal()):
        refused("maintenance must be a Merge, Removal, Projection or another", choose_strategy, "rbf", wrong_value)


def test_parameters_are_checked_and_shown_in_repr():
    assert repr(Merge("gss")) == "Merge(search='gss')"
    assert repr(Removal()) == "Removal(which='smallest')"
    assert (repr(Projection()), repr(Refusal())) == ("Projection()", "Refusal()")
    refused("search must be one of 'gss', 'gss-precise', 'lookup-h', 'lookup-wd', not 'table'", Merge, "table")
    refused("which must be one of 'smallest', 'random', not 'largest'", Removal, "largest")


def test_unpickled_strategy_cannot_hide_class_attributes():
    strategy = Merge()
    strategy.__dict__["options"] = lambda: (16, 3)
    refused("corrupt: its attribute 'options' hides", BSGDClassifier, maintenance=strategy)


def test_event_must_be_compiled():
    if config.DISABLE_JIT:
        pytest.skip("nothing is compiled")

    class Plain(Strategy):
        def event(self, shared):
            return lambda block, random: 0

    refused("must be compiled by numba", set_strategy, full_store(), Plain(), False, error=TypeError)
