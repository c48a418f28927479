"""Parameters: the types of string options, as checkers of types know them; checks of values, weights, targets and seeds."""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import numpy as np

from streamsvm.files.messages import short_repr

KernelName = Literal["rbf", "linear", "poly"]
#: The kernel of an exact machine: a name, or a function of rows [n] and rows [m] that returns their kernel values [n, m].
MachineKernel = KernelName | Literal["sigmoid", "precomputed"] | Callable[[Any, Any], Any]
#: Decision values of three or more classes: one for each class, or one for each pair.
DecisionShape = Literal["ovr", "ovo"]
#: The kernel parameter of a learner, and of a batch machine.
Gamma = float | Literal["scale"]
MachineGamma = float | Literal["scale", "auto"]
Overflow = Literal["raise", "hash", "ignore"]
#: Whether a kernel learner scales its rows itself.
Scaling = Literal["auto"] | None
SCALINGS = ("auto", None)
LearningRate = Literal["pegasos", "constant", "floor", "capped"]
OutputName = Literal["auto", "last", "average"]
#: How `Merge` finds the best partner and the merged vector.
Search = Literal["gss", "gss-precise", "lookup-h", "lookup-wd"]
#: Which support vector `Removal` removes.
Victim = Literal["smallest", "random"]
#: The learner that a machine is distilled into.
LearnerName = Literal["bsca", "bsgd"]
ClassificationLoss = Literal["hinge", "squared_hinge"]
RegressionLoss = Literal["epsilon_insensitive", "squared_epsilon_insensitive"]
#: What becomes of a row whose label does not come.
ExpiryPolicy = Literal["drop", "dead-letter", "negative"]
#: What a loop does about a drift.
OnDrift = Literal["count", "reset"]
#: The type of an ONNX file's input.
OnnxInputs = Literal["auto", "float", "double"]


#: The largest weight of a row, so that no coefficient overflows.
LARGEST_WEIGHT = 1e9
_LARGEST_TARGET = 1e30
#: The largest finite float32.
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def check_one_of(name: str, value: object, choices: Any) -> None:
    """Raise a ValueError that names a parameter whose value is not among the choices."""
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {short_repr(value)}")


def check_number(
    name: str, value: object, low: float, *, inclusive: bool = False, high: float = math.inf, integer: bool = False
) -> None:
    """Raise a ValueError that names a parameter which is not a finite number in the range."""
    number = to_python_scalar(value)
    if (
        isinstance(number, bool)
        or not isinstance(number, int if integer else int | float)
        or not (number >= low if inclusive else number > low)
        or not (number < math.inf and number <= high)
    ):
        bound = f"{'at least' if inclusive else 'above'} {low:g}"
        bound += f" and at most {high:g}" if high < math.inf else ""
        raise ValueError(f"{name} must be {'an integer' if integer else 'a finite number'} {bound}, not {short_repr(value)}")


def _check_boolean(name: str, value: object) -> None:
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, not {short_repr(value)}")


def check_decay(eta0: float, l2: float) -> None:
    """Raise a ValueError where the factor 1 - eta0 l2, by which a step shrinks the model, is not above 0."""
    if eta0 * l2 >= 1.0:
        raise ValueError(f"eta0 * l2 must be below 1, or a step forgets everything: {eta0!r} * {l2!r}")


def parameter(
    *,
    default: Any,
    least: float | None = None,
    above: float | None = None,
    high: float = math.inf,
    integer: bool = False,
    choices: Iterable[Any] | None = None,
    boolean: bool = False,
    kw_only: Any = dataclasses.MISSING,
) -> Any:
    """A field of a dataclass whose value `check_parameters` checks: a number in a range, one of the choices, or a boolean.

    The default is given by name: only so do checkers of types see it.
    """
    check: Any = functools.partial(check_one_of, choices=choices)
    if boolean:
        check = _check_boolean
    elif choices is None:
        low: Any = above if least is None else least
        check = functools.partial(check_number, low=low, inclusive=above is None, high=high, integer=integer)
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"check": check})


def check_parameters(estimator: Any) -> None:
    """Raise a ValueError that names the first `parameter` of a dataclass whose value is not allowed."""
    for field in dataclasses.fields(estimator):
        if "check" in field.metadata:
            field.metadata["check"](field.name, getattr(estimator, field.name))


def validate_weight(w: float) -> float:
    """Return a row's weight as a float; raise a ValueError where it is not a number from 0 to `LARGEST_WEIGHT`."""
    check_number("w", w, 0.0, inclusive=True, high=LARGEST_WEIGHT)
    return float(w)


def to_python_scalar(value: Any) -> Any:
    """Return a numpy scalar as the Python object that it holds, and other values unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def validate_target(y: float) -> float:
    """Return a row's target as a float; raise a ValueError where it is not a finite number of at most 1e30 in size."""
    number = to_python_scalar(y)
    if not isinstance(number, int | float) or not -_LARGEST_TARGET <= number <= _LARGEST_TARGET:
        raise ValueError(f"target {short_repr(y)} is not a finite number: do not learn rows without one")
    return float(number)


def make_random_state(seed: int | None) -> int:
    """Return the 64 bits that a learner's random numbers start from; None draws them."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise ValueError(f"seed must be an integer or None, not {short_repr(seed)}")
    return secrets.randbits(64) if seed is None else int(seed) % 2**64


def validate_count(name: str, value: object) -> int:
    """Return a count that was saved; raise a ValueError that names it where it is no int from 0 to 2**63.

    >>> validate_count("rows", 3)
    3
    >>> validate_count("rows", 0.5)
    Traceback (most recent call last):
        ...
    ValueError: rows is 0.5, and no count
    """
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {short_repr(value)}, and no count")
    return value


def validate_mapping(name: str, value: object) -> dict[str, Any]:
    """Return a mapping that was saved; raise a ValueError that names it where it is none.

    >>> validate_mapping("position", [1])
    Traceback (most recent call last):
        ...
    ValueError: position is [1], and no mapping
    """
    if type(value) is not dict:
        raise ValueError(f"{name} is {short_repr(value)}, and no mapping")
    return value


#: Types of labels and names that a file can hold.
PLAIN_TYPES = frozenset({bool, int, float, complex, str, bytes, type(None), date, datetime, time, timedelta})


def to_plain(value: Any) -> Any:
    """Return a label or a name as the plain value that it equals, which a file can hold.

    That is the value of a scalar of numpy or a date of pandas, of a number of the decimal module, of an enumeration of texts or
    numbers, of any other subclass of these, and of all that is in a tuple or a frozen set. A ValueError says that it equals no
    plain value.

    >>> [to_plain(value) for value in (np.str_("a"), Decimal("2.50"), (np.int64(1), True))]
    ['a', 2.5, (1, True)]
    >>> to_plain(Exception)
    Traceback (most recent call last):
        ...
    ValueError: <class 'Exception'> is a type, which no file can hold: give a text, such as str(...), a number or a date
    """
    if type(value) in PLAIN_TYPES:
        return value
    if isinstance(value, np.datetime64 | np.timedelta64):
        value = value.astype(f"{np.dtype(value.dtype).kind}8[us]")
    if isinstance(value, np.generic) and type(value.item()) in PLAIN_TYPES:
        return value.item()
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if int(value.as_tuple().exponent) >= 0 else float(value)
    if isinstance(value, Enum) and isinstance(value, str | int | float | bytes):
        return to_plain(value.value)
    if isinstance(value, datetime):
        return datetime.fromisoformat(value.isoformat())
    kinds: Any = (str, bytes, int, float, complex)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value) if kind is not str else str.__str__(value)
    if isinstance(value, tuple | frozenset):
        return (tuple if isinstance(value, tuple) else frozenset)(map(to_plain, value))
    raise ValueError(
        f"{short_repr(value)} is a {type(value).__name__}, which no file can hold: give a text, such as str(...), a "
        "number or a date"
    )


def finite_or_none(value: float | None) -> float | None:
    """Return a number as JSON can hold it, which has no NaN and no infinity."""
    return value if value is not None and math.isfinite(value) else None
