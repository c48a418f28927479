"""Parameters, weights, targets and seeds that users give, checked."""

from __future__ import annotations

import math
import secrets
from typing import Any

import numpy as np

__all__ = ["LARGEST_WEIGHT", "check_number", "check_one_of", "checked_target", "checked_weight", "random_state"]

#: Of a row, so that no coefficient overflows.
LARGEST_WEIGHT = 1e9
_LARGEST_TARGET = 1e30


def check_one_of(name: str, value: object, choices: Any) -> None:
    """Raise a ValueError that names a parameter whose value is not among the choices."""
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def check_number(
    name: str, value: object, low: float, *, inclusive: bool = False, high: float = math.inf, integer: bool = False
) -> None:
    """Raise a ValueError that names a parameter which is not a finite number in the range."""
    number = value.item() if isinstance(value, np.generic) else value
    if (
        isinstance(number, bool)
        or not isinstance(number, int if integer else int | float)
        or not (number >= low if inclusive else number > low)
        or not (number < math.inf and number <= high)
    ):
        bound = f"{'at least' if inclusive else 'above'} {low:g}"
        bound += f" and at most {high:g}" if high < math.inf else ""
        raise ValueError(f"{name} must be {'an integer' if integer else 'a finite number'} {bound}, not {value!r}")


def checked_weight(w: float) -> float:
    """A row's weight as the float that compiled code takes; refused with a ValueError where it is not a number of at least 0."""
    check_number("w", w, 0.0, inclusive=True, high=LARGEST_WEIGHT)
    return float(w)


def checked_target(y: float) -> float:
    """A row's target as the float that compiled code takes; refused with a ValueError where it is not a finite number."""
    number = y.item() if isinstance(y, np.generic) else y
    if not isinstance(number, int | float) or not -_LARGEST_TARGET <= number <= _LARGEST_TARGET:
        raise ValueError(f"target {y!r} is not a finite number: leave rows without one out of learning")
    return float(number)


def random_state(seed: int | None) -> int:
    """The 64 bits that a learner's random numbers start from."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise ValueError(f"seed must be an integer or None, not {seed!r}")
    return secrets.randbits(64) if seed is None else int(seed) % 2**64
