"""States of river's compiled objects, spoilt in many ways: each is refused, or gives an object that serves.

``python tests/mutate_river_states.py 20000`` spoils so many of each class, under a limit of memory, and prints as JSON how many
were refused and how many gave an object. It stops at the first that panics; the process ends where one crashes.
"""

import copy
import json
import math
import random
import resource
import struct
import sys
from pathlib import Path

from river._river_rust import drift, stats

from streamsvm.files.river_state import COMPILED, restore, state_of

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.9, 1.0)
PAIRS = ((0.25, 0.75), (0.0, 1.0), (0.1, 0.2))
WINDOWS = (1, 2, 3, 7, 40)
ADWINS = ((0.002, 32, 5, 5, 10), (0.5, 1, 2, 1, 0), (1.0, 3, 3, -2, -5), (1e9, 1, 5, 0, 1), (-1.0, 2, 2, 5, 4))
#: Arguments of each class, by which its objects are made.
ARGUMENTS = {
    drift.AdaptiveWindowing: ADWINS,
    stats.RsEWMean: ((0.0,), (0.3,), (1.0,)),
    stats.RsEWVar: ((0.0,), (0.3,), (1.0,)),
    stats.RsIQR: PAIRS,
    stats.RsKurtosis: ((False,), (True,)),
    stats.RsPeakToPeak: ((),),
    stats.RsQuantile: tuple((q,) for q in QUANTILES),
    stats.RsRollingIQR: tuple((*pair, size) for pair in PAIRS for size in WINDOWS),
    stats.RsRollingPRAUC: tuple((label, size) for label in (1, -5) for size in WINDOWS),
    stats.RsRollingQuantile: tuple((q, size) for q in QUANTILES for size in WINDOWS),
    stats.RsRollingROCAUC: tuple((label, size) for label in (0, 2**31 - 1) for size in WINDOWS),
    stats.RsSkew: ((False,), (True,)),
}
AUCS = stats.RsRollingPRAUC, stats.RsRollingROCAUC
EXTREMES = (0.0, -0.0, 1e-320, 1e300, -1e300, sys.float_info.max, -sys.float_info.max, math.inf, -math.inf)
WORDS = [struct.pack("<Q", word) for word in (0, 1, 2, 5, 41, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)]
WORDS += [struct.pack("<d", number) for number in (*EXTREMES, math.nan, 0.5, 1.0, 2.0, 6.0, 2.0**53)]
FOREIGN = (
    *(0, 1, -1, 2, 201, 2**22, 2**22 + 1, 2**60, 2**64, 10**30),
    *(0.0, 0.5, 2.0, -0.5, math.nan, math.inf, True, None, "1", [1]),
)


def rows(rng, count):
    """Labels and values: a stream whose mean jumps, with ties, and in every third one with extremes."""
    extreme, level, made = rng.random() < 0.33, 0.0, []
    for _ in range(count):
        if rng.random() < 0.03:
            level = rng.choice((0.0, 1.0, -100.0, 1e6))
        value = (
            rng.choice(EXTREMES) if extreme and rng.random() < 0.2 else level + rng.choice((rng.gauss(0, 1), rng.randrange(4)))
        )
        made.append((rng.choice((0, 1, 1, -5, 2**31 - 1)), value))
    return made


def update(instance, row):
    if type(instance) in AUCS:
        instance.update(*row)
    else:
        instance.update(row[1])


def use(instance, stream):
    """Learn the rows; ask for all that the object can say after each."""
    if type(instance) in AUCS:
        for label, score in stream:
            instance.update(label, score)
            instance.get()
        instance.revert(*stream[-1])
        instance.update_many(*zip(*stream[:9], strict=True))
        instance.get()
    elif type(instance) is drift.AdaptiveWindowing:
        for _, value in stream:
            instance.update(value)
        _ = instance.variance_in_window, instance.get_width(), instance.get_total(), instance.get_variance()
    else:
        for _, value in stream:
            instance.update(value)
            instance.get()


def spoilt(rng, arguments, state, other):
    """Arguments and a state after one to three changes."""
    arguments, state = list(arguments), bytearray(state)
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.randrange(9)
        place = rng.randrange(len(state) + 1)
        word = 8 * rng.randrange(len(state) // 8 + 1)
        if kind == 0:
            for _ in range(rng.choice((1, 1, 2, 8))):
                if state:
                    state[rng.randrange(len(state))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del state[place:]
        elif kind == 2:
            state += rng.randbytes(rng.choice((1, 8, 16, 400)))
        elif kind == 3:
            state[place : place + 8] = rng.randbytes(8) if rng.random() < 0.8 else rng.randbytes(len(state))
        elif kind == 4:  # a length, a count or a number, wherever words lie
            place = rng.choice((word, word + 4, place))
            state[place : place + 8] = rng.choice(WORDS)
        elif kind == 5:  # a length that is nearly right
            if word + 8 <= len(state):
                value = int.from_bytes(state[word : word + 8], "little") + rng.choice((-1, 1))
                state[word : word + 8] = (value % 2**64).to_bytes(8, "little")
        elif kind == 6:  # parts of another object
            state[place:] = other[place:] if rng.random() < 0.5 else other[rng.randrange(len(other)) :]
        elif kind == 7:  # words dropped or doubled
            state[word : word + rng.choice((0, 8, 16))] = state[word : word + rng.choice((0, 8, 16))]
        elif arguments:  # another argument, also where the state repeats it
            i = rng.randrange(len(arguments))
            new = rng.choice(FOREIGN) if rng.random() < 0.7 else rng.choice(ADWINS)[rng.randrange(5)]
            if rng.random() < 0.7:
                state = bytearray(repeated(bytes(state), arguments[i], new))
            arguments[i] = new
    return tuple(arguments), bytes(state)


def repeated(state, old, new):
    """The state with each place that says an argument saying another."""
    for form in "dQiB":
        try:
            state = state.replace(struct.pack("<" + form, old), struct.pack("<" + form, new))
        except (struct.error, OverflowError, TypeError):  # not a number of this kind
            continue
    return state


def spoil(cls, count, seed):
    """How many spoilt states of a class were refused, and how many gave an object that served 200 rows."""
    rng = random.Random(f"{cls.__name__} {seed}")
    bases = []
    for arguments in ARGUMENTS[cls]:
        for stage in (0, 1, 4, 6, 60, 700):
            instance = cls(*arguments)
            for row in rows(rng, stage):
                update(instance, row)
            bases.append(state_of(instance))
    streams = [rows(rng, 200) for _ in range(20)]
    refused = 0
    for _ in range(count):
        arguments, state = spoilt(rng, *rng.choice(bases), rng.choice(bases)[1])
        try:
            try:
                instance = restore(cls, arguments, state)
            except ValueError:
                refused += 1
                continue
            assert state_of(instance) == (arguments, state)
            use(copy.deepcopy(instance), rng.choice(streams))
            use(instance, rng.choice(streams))
            state_of(instance)
        except BaseException as error:  # a panic is no Exception
            print(json.dumps([cls.__name__, repr(arguments), state.hex(), f"{type(error).__name__}: {error}"]))
            raise SystemExit(1) from None
    return refused, count - refused


def main(count, seed=0):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))
    print(json.dumps({cls.__name__: spoil(cls, count, seed) for cls in COMPILED}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
