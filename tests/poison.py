"""Good rows of a stream, and fifty that cannot be used, each with the kind of its reason: as JSON and as CSV."""

import json
import random

GOOD = 600
#: More features than a model with `max_features` of this has room for.
MAX_FEATURES = 8


def good_rows():
    """Rows of three features with labels 0 and 1, as dicts; the label is ``y``."""
    draw = random.Random(5)
    rows = []
    for _ in range(GOOD):
        a, b, c = (draw.gauss(0.0, 1.0) for _ in "abc")
        rows.append({"a": round(a, 6), "b": round(b, 6), "c": round(c, 6), "y": int(a * b > 0)})
    return rows


def _row(**changes):
    return json.dumps({"a": 0.5, "b": -0.25, "c": 1.0, "y": 1} | changes)


def _with_kinds(texts):
    return [(text.encode() if isinstance(text, str) else text, kind) for kind, lines in texts.items() for text in lines]


LONG = "x" * 1100
#: Bytes of a line or message of JSON, and the kind of reason.
JSON = _with_kinds(
    {
        "malformed": (
            *["{", "}", "[1, 2]", "1", '"text"', "null", "true", "not json", "{'a': 1}", '{"a": 1,}', '{"a": }'],
            *['{"a" 1, "y": 1}', '{"a": 0x10, "y": 1}', '{"a": +1, "y": 1}', '{"a": 1e, "y": 1}', '{"a": 1, "y": 1'],
            *['{"a": 1} {"a": 2}', b'{"a": "\xff"}', b"\x80\x81\x82", b'{"a": 1, "b": \xc3}', "[" * 5000, '{"a": "\x01"}'],
            b"\x00\x00\x00",
        ),
        "not finite": (_row(a=1e39), _row(a=-1e39), _row(b=1e300), _row(c=3.5e38), _row(a=10**40), _row(a=-(10**50), b=1e39)),
        "not a number": (
            *[_row(a="text"), _row(b="1.5.2"), _row(c="x y"), _row(a="1e"), _row(a=0.1, b="2-"), _row(b="Ж"), _row(c="NULL")],
        ),
        "label": (
            *[_row(y="1"), _row(y="0"), _row(y=0.5), _row(y=""), _row(y=" "), _row(y=LONG), _row(y="maybe"), _row(y=-0.1)],
            *[_row(y=1.25), _row(y=2), _row(y=10**9), _row(y="true")],
        ),
        "feature name": (_row(**{LONG: 1.0}), _row(**{f"n{i}": 1.0 for i in range(MAX_FEATURES)})),
    }
)

_CSV = "0.5,-0.25,1.0,1"
#: Bytes of a line of CSV of the columns a, b, c, y.
CSV = _with_kinds(
    {
        "malformed": (
            *["1", "1,2", "1,2,3", "1,2,3,1,5", ",", ",,,,", f"{_CSV},", f"{_CSV},,,", '"1,2,3,1', '1,"2,3,1', '1,2,3,"1'],
            *['"1"2,"3"4,5,1', '"1"x,2,3,1', '1,"2"3,4,1', '""",1,2,1', "a b c d", "1;2;3;1", "1\t2\t3\t1", b"\xff,1,1,1"],
            *[b"1,\x80,1,1", b"1,1,1,\xe9\xe9", '"' + "x" * 140_000 + '",1,1,1', "x" * 140_000 + ",1,1,1"],
        ),
        "not finite": (
            *["inf,1,1,1", "1,-inf,1,1", "1,1,-inf,0", "1,1,infinity,0", "1e39,1,1,1", "1,-1e300,1,1", "1e999,1,1,0"],
            *["1,1e400,1,0", "1,1,-1e999,0"],
        ),
        "not a number": (
            *["text,1,1,1", "1,?,1,1", "1,1,N/A,0", "-,1,1,0", "1 000,1,1,1", "1.2.3,1,1,1", "0x10,1,1,0", "12%,1,1,1"],
            "Ж,1,1,0",
        ),
        "label": (
            *["1,1,1,maybe", "1,1,1,0.5", "1,1,1,2", "1,1,1,-1", "1,1,1,1e3", "1,1,1,nan", f"1,1,1,{LONG}", "1,1,1,01"],
            '1,1,1,"a,b"',
        ),
    }
)


def mixed(poison):
    """Good rows as numbers and poison as ``(bytes, kind)``, in a random order that begins with good rows of both labels."""
    draw = random.Random(8)
    places = sorted(draw.sample(range(20, GOOD), len(poison)))
    order, bad = [], iter(poison)
    for number in range(GOOD):
        if number in places:
            order.append(next(bad))
        order.append(number)
    return order
