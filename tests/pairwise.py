"""Generates a small number of combinations of options that cover each pair of values."""

from itertools import combinations


def pairwise(factors, excluded=()):
    """Return cases, dicts with a value for each factor, that together cover each pair of values that is not excluded.

    ``excluded`` has pairs ``(factor, value, other factor, value)``. Each factor has a value that no pair excludes.
    """
    no = {frozenset(((a, x), (b, y))) for a, x, b, y in excluded}
    pairs = [
        pair
        for a, b in combinations(factors, 2)
        for pair in (frozenset(((a, x), (b, y))) for x in factors[a] for y in factors[b])
        if pair not in no
    ]
    left, cases = dict.fromkeys(pairs), []
    while left:
        case = dict(sorted(next(iter(left)), key=str))
        for name in factors:
            if name not in case:
                new = {value: [frozenset(((name, value), item)) for item in case.items()] for value in factors[name]}
                fits = [value for value, cases in new.items() if no.isdisjoint(cases)]
                case[name] = max(fits, key=lambda value: len(left.keys() & new[value]))
        for pair in combinations(case.items(), 2):
            left.pop(frozenset(pair), None)
        cases.append({name: case[name] for name in factors})
    return cases
