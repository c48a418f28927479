"""Types that a file holds in a form of their own: what they are made of, and the constructor that checks it."""

from __future__ import annotations

import datetime
import functools
import operator
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from river.utils import VectorDict

from streamsvm.files import river_state
from streamsvm.files.bounds import check_hashes
from streamsvm.files.container import CorruptError
from streamsvm.files.messages import shown

_WORDS = 624  # of the state of a Mersenne twister


@dataclass(frozen=True)
class Codec:
    """The form of a type; instances of subclasses are not meant.

    Parameters
    ----------
    kind
        Its name in a file.
    taken_apart
        Returns what an instance is made of, as a tuple of what a file can hold.
    put_together
        Makes an instance of that again, or raises an error: what it is given may come from anybody.
    shared
        Whether an instance can be changed, so that it matters who else holds it.
    """

    kind: str
    type: type
    taken_apart: Callable[[Any], tuple[Any, ...]]
    put_together: Callable[[Any], Any]
    shared: bool = False


def _make_partial(parts: Any) -> functools.partial[Any]:
    function, arguments, named = parts
    if not callable(function):
        raise CorruptError(f"{shown(function)} cannot be called")
    return functools.partial(function, *_tuple_of(arguments), **dict(_tuple_of(named)))


def _tuple_of(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise CorruptError(f"{shown(value)} stands where a tuple belongs")
    return value


def _make_twister(words: Any, position: Any) -> np.ndarray:
    if type(words) is not bytes or len(words) != 4 * _WORDS or type(position) is not int or not 0 <= position <= _WORDS:
        raise CorruptError("the state of a random generator is none")
    return np.frombuffer(words, "<u4")


def _number_of(value: Any) -> float:
    if type(value) is not float:
        raise CorruptError(f"{shown(value)} stands where a float belongs")
    return value


def _random_parts(generator: random.Random) -> tuple[Any, ...]:
    _, words, gauss = generator.getstate()
    return np.array(words[:-1], "<u4").tobytes(), words[-1], gauss


def _make_random(parts: Any) -> random.Random:
    words, position, gauss = parts
    generator = random.Random(0)  # noqa: S311
    twister = _make_twister(words, position).tolist()
    generator.setstate((3, (*twister, position), None if gauss is None else _number_of(gauss)))
    return generator


def _random_state_parts(generator: np.random.RandomState) -> tuple[Any, ...]:
    state: Any = generator.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise CorruptError(f"a RandomState of {state['bit_generator']} cannot be saved: one of MT19937 can")
    words, position = state["state"]["key"], state["state"]["pos"]
    return words.astype("<u4").tobytes(), int(position), int(state["has_gauss"]), float(state["gauss"])


def _random_state(parts: Any) -> np.random.RandomState:
    words, position, has_gauss, gauss = parts
    if type(has_gauss) is not int or has_gauss not in (0, 1):
        raise CorruptError("the state of a random generator is none")
    state = {"key": _make_twister(words, position), "pos": position}
    generator = np.random.RandomState(0)
    generator.set_state({"bit_generator": "MT19937", "state": state, "has_gauss": has_gauss, "gauss": _number_of(gauss)})
    return generator


def _vector_dict_parts(vector: Any) -> tuple[Any, ...]:
    values, default, mask = river_state.vector_dict_parts(vector)
    return tuple(values.items()), default, None if mask is None else frozenset(mask)


def _vector_dict(parts: Any) -> Any:
    values, default, mask = parts
    pairs = [_tuple_of(pair) for pair in _tuple_of(values)]
    check_hashes(pair[0] for pair in pairs)
    return river_state.make_vector_dict(dict(pairs), default, None if mask is None else set(mask))


def _compiled_codec(cls: Any) -> Codec:
    return Codec(cls.__name__, cls, river_state.state_of, lambda parts: river_state.restore(cls, *parts), shared=True)


def _iso_codec(kind: Any) -> Codec:
    return Codec(kind.__name__, kind, lambda value: (value.isoformat(),), lambda parts: kind.fromisoformat(*parts))


CODECS = {
    codec.kind: codec
    for codec in (
        _iso_codec(datetime.date),
        _iso_codec(datetime.datetime),
        _iso_codec(datetime.time),
        Codec(
            "timedelta",
            datetime.timedelta,
            lambda value: (value.days, value.seconds, value.microseconds),
            lambda parts: datetime.timedelta(*parts),
        ),
        Codec("complex", complex, lambda value: (value.real, value.imag), lambda parts: complex(*map(_number_of, parts))),
        Codec(
            "itemgetter",
            operator.itemgetter,
            lambda value: tuple(value.__reduce__()[1]),
            lambda parts: operator.itemgetter(*_tuple_of(parts)),
        ),
        Codec(
            "NormalDist",
            statistics.NormalDist,
            lambda value: (value.mean, value.stdev),
            lambda parts: statistics.NormalDist(*map(_number_of, parts)),
        ),
        Codec(
            "partial",
            functools.partial,
            lambda value: (value.func, value.args, tuple(value.keywords.items())),
            _make_partial,
        ),
        Codec("Random", random.Random, _random_parts, _make_random, shared=True),
        Codec("RandomState", np.random.RandomState, _random_state_parts, _random_state, shared=True),
        Codec("VectorDict", VectorDict, _vector_dict_parts, _vector_dict, shared=True),
        *map(_compiled_codec, river_state.COMPILED),
    )
}
_BY_TYPE = {codec.type: codec for codec in CODECS.values()}


def codec_of(kind: type) -> Codec | None:
    """Return the form of a type, or None where it has none of its own."""
    return _BY_TYPE.get(kind)
