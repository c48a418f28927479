"""Whole numbers that are codes, and those that are quantities."""

import random

import pytest

from streamsvm.stream.look.column_kinds import are_codes, column_of

N = 200
rng = random.Random(5)
#: Numbers of roles as a system gives them: in a few runs, one after another.
GIVEN = [start + rng.randrange(400) for start in (117_900, 119_000, 123_000, 290_800) for _ in range(30)]
GROUPS = [rng.randrange(20_000, 2_000_000) for _ in range(25)]  # what each of some towns has
ZIPS = [rng.randrange(10_000, 99_999) for _ in range(12)]


def drawn(values, power=1.0):
    return [values[int(len(values) * rng.random() ** power)] for _ in range(N)]


CODES = {
    "role": drawn(GIVEN, 2.0),
    "manager_id": drawn([rng.randrange(100, 300_000) for _ in range(400)]),
    "LocationID": drawn(range(1, 264)),
    "zip": drawn(ZIPS),
    "zip_code": drawn(range(60_601, 60_661)),
    "area code": drawn([408, 415, 510]),
    "PostCode": rng.sample(range(10_000, 99_999), N),
}
QUANTITIES = {
    "count": [int(rng.expovariate(1e-4)) for _ in range(N)],
    "age": drawn(range(18, 90)),
    "year": drawn(range(1990, 2024)),
    "stars": drawn(range(1, 6)),
    "month": drawn(range(1, 13)),
    "hour": drawn(range(24)),
    "seconds": [int(rng.gauss(20_000, 900)) for _ in range(N)],
    "asked": drawn([round(price, -3) for price in GROUPS]),
    "cents": [100 * rng.randrange(100, 300) + 99 for _ in range(N)],
    "tax": drawn([21_000, 15_000, 18_550]),
    "population": drawn(GROUPS),
    "inhabitants": sorted(drawn(GROUPS)),
    "rank": rng.sample(range(100_000), N),
    "sensor": [20_000 + int(rng.gauss(0, 300)) for _ in range(N)],
    "squared": [rng.randrange(100, 160) ** 2 for _ in range(N)],
    "at": [1_700_000_000 + 7 * (i // 3) for i in drawn(range(N))],
    "gain": drawn([0] * 30 + [7_688, 15_024, 99_999, 5_178]),
    "change": [rng.randrange(-20_000, 20_000) for _ in range(N)],
    "odometer": [rng.randrange(10_000, 90_000) for _ in range(N)],
}


@pytest.mark.parametrize("name", CODES)
def test_codes_are_told(name):
    column = column_of(name, list(map(float, CODES[name])))
    assert (column.kind, column.note, column.answers) == ("number", "looks like a code", ())
    assert column.suggested == (("categorical", name),)
    assert ".0" not in column.values


@pytest.mark.parametrize("name", QUANTITIES)
def test_quantities_stay_numbers(name):
    assert not are_codes(name, QUANTITIES[name])
    assert column_of(name, QUANTITIES[name]).suggested == ()


def test_few_rows_tell_no_codes():
    assert column_of("role", CODES["role"][:15]).suggested == ()


def test_an_id_that_never_comes_twice_is_left_out():
    ids = rng.sample(range(1000), 60)
    assert column_of("customer_id", ids).suggested == (("drop", "customer_id"),)
    assert column_of("customer", ids).suggested == ()
