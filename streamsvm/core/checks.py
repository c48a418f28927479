"""Types of the string options of public classes, and checks of parameters, weights, targets, seeds and saved values."""

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
#: The kernel of an exact machine: a name, or a function from rows [n] and rows [m] to their kernel values [n, m].
MachineKernel = KernelName | Literal["sigmoid", "precomputed"] | Callable[[Any, Any], Any]
#: Decision values for three or more classes: one for each class, or one for each pair.
DecisionShape = Literal["ovr", "ovo"]
#: The kernel parameter gamma of an online learner, and of a batch machine.
Gamma = float | Literal["scale"]
MachineGamma = float | Literal["scale", "auto"]
Overflow = Literal["raise", "hash", "ignore"]
#: Whether a learner scales its rows by itself.
Scaling = Literal["auto"] | None
SCALINGS = ("auto", None)
LearningRate = Literal["pegasos", "constant", "floor", "capped"]
OutputName = Literal["auto", "last", "average"]
#: Method of `Merge` to find the best partner and the merged vector.
Search = Literal["gss", "gss-precise", "lookup-h", "lookup-wd"]
#: The support vector that `Removal` removes.
Victim = Literal["smallest", "random"]
#: The online learner into which a machine is distilled.
LearnerName = Literal["bsca", "bsgd"]
ClassificationLoss = Literal["hinge", "squared_hinge"]
RegressionLoss = Literal["epsilon_insensitive", "squared_epsilon_insensitive"]
#: Treatment of rows whose labels do not arrive in time.
ExpiryPolicy = Literal["drop", "dead-letter", "negative"]
#: Action of a learning loop after concept drift.
OnDrift = Literal["count", "reset"]
#: Type of the input of an ONNX model.
OnnxInputs = Literal["auto", "float", "double"]


#: Upper limit of a row's weight, so that coefficients do not overflow.
LARGEST_WEIGHT = 1e9
LARGEST_TARGET = 1e30
#: The largest finite float32.
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def check_one_of(name: str, value: object, choices: Any) -> None:
    """Raise ValueError if ``value`` is not one of ``choices``. The message names the parameter ``name`` and lists the choices."""
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {short_repr(value)}")


def check_number(
    name: str, value: object, low: float, *, inclusive: bool = False, high: float = math.inf, integer: bool = False
) -> None:
    """Raise ValueError if ``value`` is not a finite number (an int if ``integer``) above ``low`` and at most ``high``; with
    ``inclusive``, ``low`` itself is valid, too. The message names the parameter ``name``. Booleans are invalid.
    """
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
    """Raise ValueError if ``value`` is neither True nor False. The message names the parameter ``name``."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, not {short_repr(value)}")


def check_decay(eta0: float, l2: float) -> None:
    """Raise ValueError unless the learning rate ``eta0`` times the L2 regularisation ``l2`` is below 1. Each gradient step
    multiplies the model's weights by ``1 - eta0 * l2``, which must stay positive.
    """
    if eta0 * l2 >= 1.0:
        raise ValueError(f"eta0 * l2 must be below 1, or a step shrinks the model to 0: {eta0!r} * {l2!r}")


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
    """Return a dataclass field that declares a hyperparameter: its ``default``, and the valid values, which `check_parameters`
    verifies. Valid are the ``choices``, or booleans (``boolean``), or else numbers from ``least`` (or above ``above``) to
    ``high``, only integers if ``integer``. ``kw_only`` is that of `dataclasses.field`.

    ``default`` is a keyword, because type checkers require it.
    """
    check: Any = functools.partial(check_one_of, choices=choices)
    if boolean:
        check = _check_boolean
    elif choices is None:
        low: Any = above if least is None else least
        check = functools.partial(check_number, low=low, inclusive=above is None, high=high, integer=integer)
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"check": check})


def check_parameters(estimator: Any) -> None:
    """Check all fields of a dataclass instance ``estimator`` that were declared by `parameter`. Raises ValueError with the name
    of the first field whose value is invalid.
    """
    for field in dataclasses.fields(estimator):
        if "check" in field.metadata:
            field.metadata["check"](field.name, getattr(estimator, field.name))


def validate_weight(w: float) -> float:
    """Return the sample weight ``w`` of a row as a float. Raises ValueError unless it is a number from 0 to 1e9."""
    check_number("w", w, 0.0, inclusive=True, high=LARGEST_WEIGHT)
    return float(w)


def to_python_scalar(value: Any) -> Any:
    """Convert a numpy scalar to the equal Python object (int, float, str, ...); return any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def validate_target(y: float) -> float:
    """Return the regression target ``y`` of a row as a float. Raises ValueError unless it is a number from -1e30 to 1e30."""
    number = to_python_scalar(y)
    if not isinstance(number, int | float) or not -LARGEST_TARGET <= number <= LARGEST_TARGET:
        raise ValueError(f"target {short_repr(y)} is not a finite number; rows without a target can only be predicted")
    return float(number)


def make_random_state(seed: int | None) -> int:
    """Return the 64-bit initial state of a learner's random number generator, made from the integer ``seed``, or drawn from the
    operating system for None. Raises ValueError for any other seed.
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise ValueError(f"seed must be an integer or None, not {short_repr(seed)}")
    return secrets.randbits(64) if seed is None else int(seed) % 2**64


def validate_count(name: str, value: object) -> int:
    """Return the count ``value``, which was read from a saved file, if it is an int from 0 to 2**63 - 1. Otherwise, raise a
    ValueError whose message calls it ``name``.

    >>> validate_count("rows", 3)
    3
    >>> validate_count("rows", 0.5)
    Traceback (most recent call last):
        ...
    ValueError: rows must be an integer from 0 to 2^63 - 1, not 0.5
    """
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{name} must be an integer from 0 to 2^63 - 1, not {short_repr(value)}")
    return value


def validate_mapping(name: str, value: object) -> dict[str, Any]:
    """Return ``value``, which was read from a saved file, if it is a dict. Otherwise, raise a ValueError whose message calls it
    ``name``.

    >>> validate_mapping("position", [1])
    Traceback (most recent call last):
        ...
    ValueError: position must be a mapping, not [1]
    """
    if type(value) is not dict:
        raise ValueError(f"{name} must be a mapping, not {short_repr(value)}")
    return value


#: Types of labels and names that can be saved in a file.
PLAIN_TYPES = frozenset({bool, int, float, complex, str, bytes, type(None), date, datetime, time, timedelta})


def to_plain(value: Any) -> Any:
    """Convert a class label or feature name to an equal value of a plain Python type (str, int, float, date, tuple, ...), which
    can be saved in a file. Raises ValueError for other types.

    Supported are numpy scalars, pandas dates, decimal numbers, enumerations of texts or numbers, subclasses of plain types, and
    tuples and frozen sets of these.

    >>> [to_plain(value) for value in (np.str_("a"), Decimal("2.50"), (np.int64(1), True))]
    ['a', 2.5, (1, True)]
    >>> to_plain(Exception)
    Traceback (most recent call last):
        ...
    ValueError: <class 'Exception'> is a type, which cannot be saved: give a text, such as str(...), a number or a date
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
        f"{short_repr(value)} is a {type(value).__name__}, which cannot be saved: give a text, such as str(...), a "
        "number or a date"
    )


def finite_or_none(value: float | None) -> float | None:
    """Return ``value`` if it is a finite number; None for None, NaN and infinity, which JSON cannot represent."""
    return value if value is not None and math.isfinite(value) else None
