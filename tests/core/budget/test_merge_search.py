"""The merge table, the four searches, and who merges with whom."""

import numpy as np
import pytest
from numba import config

import naive
from streamsvm.core.budget import merge_search as merging
from streamsvm.core.budget.merge_search import SEARCHES
from streamsvm.core.budget.merge_table import (
    GRID,
    compiled_degradation,
    computed_tables,
    golden_sections,
    merge_tables,
    packed,
    unpacked,
    weight_degradation,
)
from streamsvm.core.budget.removal import oldest_argmin


def test_the_tables_of_the_package_are_those_of_the_algorithm():
    tables = computed_tables()
    np.testing.assert_allclose(merge_tables(), tables, rtol=1e-6)  # another processor's exponentials may differ in the last bit
    assert unpacked(packed(tables)).tobytes() == tables.tobytes()
    assert not merge_tables().flags.writeable


def problems(n):
    rng = np.random.default_rng(0)
    m = np.concatenate([0.5 + 0.5 * rng.random(n), 1.0 - 0.5 * 10.0 ** (-5.0 * rng.random(n)), np.full(n, 0.5)])
    return m, 10.0 ** rng.uniform(-4.0, 2.0, len(m))


def degradation(m, q, h):
    """Of coefficients m and 1 - m of one output."""
    return weight_degradation((1.0 - m) ** 2, m**2, m * (1.0 - m), q, h)


def test_table_stays_between_its_bounds():
    tables = merge_tables()
    assert tables.shape == (2, GRID, GRID)
    assert tables.dtype == np.float32
    assert tables[1].min() == pytest.approx(0.5, abs=1e-3)  # 2 m^2 at q = 0, for m = 1/2
    assert tables[1].max() < 2.41  # at the edge m = 1
    u = np.linspace(0.0, 1.0, GRID)
    np.testing.assert_array_equal(tables[1].min(axis=0), tables[1][0])  # what the search skips candidates by
    assert (np.diff(u**2 * tables[1][0]) > -1e-6).all()
    assert tables[0].min() >= 0.5
    assert tables[0].max() <= 1.0


def test_golden_sections_find_what_a_dense_grid_finds():
    m, q = problems(60)
    h = golden_sections(m, q)
    for i in range(len(m)):
        a, b, kappa = 1.0 - m[i], m[i], np.exp(-q[i])
        s = naive.merged_coefficient(a, b, kappa, h[i])
        assert s >= naive.merged_coefficient(a, b, kappa, naive.best_merge(a, b, kappa)[0]) - 1e-12


def test_weight_degradation_is_that_of_the_gram_matrix():
    m, q = problems(100)
    h = np.random.default_rng(1).random(len(m))
    expected = [naive.weight_degradation(1.0 - m[i], m[i], np.exp(-q[i]), h[i]) for i in range(len(m))]
    np.testing.assert_allclose(degradation(m, q, h), expected, rtol=1e-6, atol=1e-14)
    compiled = [compiled_degradation(*problem) for problem in zip((1.0 - m) ** 2, m**2, m * (1.0 - m), q, h, strict=True)]
    np.testing.assert_allclose(compiled, degradation(m, q, h), rtol=1e-9)


@pytest.mark.parametrize(("search", "factor"), [("gss-precise", 1.0001), ("lookup-h", 1.002), ("lookup-wd", 1.002)])
def test_places_cost_hardly_more_than_the_optimum(search, factor):
    m, q = problems(100 if config.DISABLE_JIT else 1000)
    tables = merge_tables()
    best = degradation(m, q, golden_sections(m, q))
    for i in range(len(m)):
        h = merging.best_position(SEARCHES[search], tables, m[i], q[i])
        assert degradation(m[i], q[i], h) <= factor * best[i] + 1e-15


def stores(n_stores, size=60):
    rng = np.random.default_rng(5)
    for _ in range(n_stores):
        points = rng.normal(size=(size, 3)) * rng.choice([0.1, 0.5, 2.0])
        coefficients = rng.exponential(size=size) * rng.choice([-1.0, 1.0], size=size)
        coefficients[rng.integers(size, size=size // 3)] = 0.3
        first = int(np.abs(coefficients).argmin())
        distances = ((points - points[first]) ** 2).sum(axis=1).astype(np.float32)
        yield coefficients, rng.permutation(size).astype(np.int64), distances, first


def partner(search, coefficients, stamps, distances, first):
    n = len(coefficients)
    out = np.zeros(n, np.float32)
    found = merging.find_partner(SEARCHES[search], merge_tables(), coefficients, stamps, distances, 0.7, first, n, out)
    return found, out


@pytest.mark.once
def test_partners_are_those_of_the_twin():
    n_stores = 20
    equal = dict.fromkeys(SEARCHES, 0)
    for coefficients, stamps, distances, first in stores(n_stores):
        costs = {
            i: naive.best_merge(coefficients[first], coefficients[i], float(np.exp(-0.7 * float(distances[i]))))[1]
            for i in range(len(coefficients))
            if i != first and coefficients[i] * coefficients[first] > 0.0
        }
        best = min(costs, key=costs.get)
        for search in SEARCHES:
            equal[search] += partner(search, coefficients, stamps, distances, first)[0] == best
    assert equal["gss-precise"] == n_stores
    assert equal["lookup-h"] >= 0.99 * n_stores
    assert equal["lookup-wd"] >= 0.99 * n_stores
    assert equal["gss"] >= 0.85 * n_stores


@pytest.mark.parametrize("search", SEARCHES)
def test_partners_do_not_depend_on_the_order_of_slots(search):
    rng = np.random.default_rng(2)
    for coefficients, stamps, distances, first in stores(20):
        found, _ = partner(search, coefficients, stamps, distances, first)
        order = rng.permutation(len(coefficients))
        again, _ = partner(search, coefficients[order], stamps[order], distances[order], int(np.flatnonzero(order == first)[0]))
        assert order[again] == found


@pytest.mark.parametrize("search", SEARCHES)
def test_of_equals_the_older_one_is_taken(search):
    coefficients = np.array([0.5, 1.0, 1.0, 1.0])
    distances = np.array([0.0, 0.2, 0.2, 0.2], np.float32)
    assert partner(search, coefficients, np.array([0, 7, 3, 5]), distances, 0)[0] == 2


@pytest.mark.parametrize("search", SEARCHES)
def test_no_partner_of_the_same_sign(search):
    assert partner(search, np.array([0.5, -1.0, -2.0]), np.arange(3), np.zeros(3, np.float32), 0)[0] == -1


@pytest.mark.parametrize("search", SEARCHES)
def test_a_coefficient_that_is_lost_in_the_other_finds_a_partner(search):
    coefficients = np.array([1e-12, 1e9, 1e8])
    assert partner(search, coefficients, np.arange(3), np.array([0.0, 0.5, 0.1], np.float32), 0)[0] in (1, 2)


def test_argmin_takes_the_oldest_of_equals():
    values = np.array([3.0, 1.0, np.inf, 1.0], np.float32)
    assert oldest_argmin(values, np.array([0, 9, 1, 4]), 4) == 3
