"""Random JSON rows: mostly numbers with fixed names, and sometimes values that parsers treat differently."""

import json

NAMES = ["a", "b.c", "\u00e9"]
PIECES = [
    *(b"0 1 -1 -0.0 1.5 1e3 1E-400 1e400 1e39 01 +1 .5 1. 0x1 NaN Infinity true false null".split()),
    *(b'"" "1" "x" "\\u00e9" "a\nb" "a\\nb" "\xff" "\\ud800" [] [1] {} {"a":1}'.replace(b" ", b"\t").split(b"\t")),
    *(str(2**power + more).encode() for power in (53, 63, 64, 70) for more in (-1, 0, 1)),
    *(str(-(2**power) + more).encode() for power in (53, 63, 64) for more in (-1, 0, 1)),
    b"0.1000000000000000055511151231257827",
    b"9007199254740993",
    b"2.2250738585072011e-308",
    b"12345678901234567890123",
]


def message(rng, label):
    """Return a random message with these names, mostly of numbers."""
    escaped = rng.random() < 0.1
    fields = [(json.dumps(name, ensure_ascii=escaped).encode(), repr(rng.gauss(0.0, 3.0)).encode()) for name in NAMES]
    name = json.dumps(label or "y", ensure_ascii=escaped and rng.random() < 0.9).encode()
    fields.append((name, rng.choice([b"0", b"1", b'"yes"', b"true", b"null", b"1.0"])))
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        place = rng.randrange(len(fields))
        fields[place] = (fields[place][0], rng.choice(PIECES))
    if rng.random() < 0.1:
        fields.append(rng.choice(fields))
    if rng.random() < 0.1:
        fields.pop(rng.randrange(len(fields)))
    if rng.random() < 0.1:
        fields.append((rng.choice([b'"new"', b'"a "', b'"\\u0061"', b"a"]), rng.choice(PIECES)))
    rng.shuffle(fields)
    space = rng.choice([b"", b" ", b"\n", b"\t "])
    text = b"{" + (b"," + space).join(name + space + b":" + value for name, value in fields) + b"}"
    if rng.random() < 0.1:
        place = rng.randrange(len(text))
        text = text[:place] + bytes([rng.choice(b'{}[]",:\\ 0e.-\x00\xff')]) + text[place + rng.choice([0, 1]) :]
    return text + rng.choice([b"", b"", b"", b" ", b"\n", b"x", b"{}"])
