"""Values of flags: each is parsed, or the error says what it must be."""

from __future__ import annotations

import argparse
import math
import threading
from pathlib import Path
from typing import Any

__all__ = ["bound", "count", "every", "period", "place", "port", "seconds", "share", "whole"]


def place(text: str) -> Path | str:
    """Parse a place of checkpoints: a path, or the URL of a topic."""
    return text if "://" in text else Path(text)


def every(text: str) -> dict[str, Any]:
    """Parse what comes between two checkpoints: the parameters of a loop."""
    if not text.endswith("s"):
        return {"checkpoint_every": count(text)}
    try:
        between = float(text[:-1])
    except ValueError:
        between = math.nan
    if not 0.0 < between < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of rows, such as 10000, nor of seconds, such as 5s")
    return {"checkpoint_every": None, "checkpoint_seconds": between}


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return number


def seconds(text: str) -> float:
    """Parse a number of at least 0, or inf."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0.0:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, or inf, not {text}")
    return number


def period(text: str) -> float:
    """Parse a number of seconds that can be waited for."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 < number <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text}")
    return number


def port(text: str) -> int:
    """Parse the number of a port."""
    if not (text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"must be a port from 0 (any that is free) to 65535, not {text}")
    return int(text)


def whole(text: str) -> int:
    """Parse a whole number."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text}")
    return int(text)


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, not {text}")
    return number


def bound(text: str) -> float:
    """Parse a bound of scaled values: at least 2, or 0 for none."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number != 0.0 and not 2.0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 2, or 0, not {text}")
    return number
