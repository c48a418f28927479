"""The losses of linear machines: the cost of a row, and the bounds of its dual coefficient."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.linear.files.block_file import Block

__all__ = ["Loss", "bounds", "cost", "is_free", "loss_of", "target_of", "weight_of"]


class Loss(NamedTuple):
    """The loss of rows, and the constant feature that all of them have."""

    regression: bool
    squared: bool
    epsilon: float
    constant: float  # value of the constant feature; 0: there is no intercept
    positive: float  # of classification: the label that stands for the target +1
    C_positive: float  # C of the rows of the positive class, of weight 1; in regression both are the same
    C_negative: float


def loss_of(values: list[Any]) -> Loss:
    """Return a saved loss from a list, which may hold anything; ValueError or TypeError where it is corrupt."""
    regression, squared, *numbers = values
    epsilon, constant, positive, C_positive, C_negative = map(float, numbers)
    return Loss(bool(regression), bool(squared), epsilon, constant, positive, C_positive, C_negative)


@compiled(inline=True)
def target_of(label: float, loss: Loss) -> float:
    """Return the target that a label stands for."""
    return label if loss.regression else 1.0 if label == loss.positive else -1.0


@compiled(inline=True)
def weight_of(block: Block, i: int) -> float:
    """Return the weight of a row."""
    return block.weights[i] if len(block.weights) else 1.0


@compiled(inline=True)
def bounds(target: float, weight: float, loss: Loss) -> tuple[float, float, float]:
    """Return the lower and the upper bound of a row's coefficient, and its curvature d in the dual objective."""
    C = weight * (loss.C_positive if target > 0.0 else loss.C_negative)
    end, d = (np.inf, 0.5 / C) if loss.squared else (C, 0.0)
    if loss.regression:
        return -end, end, d
    return (0.0, end, d) if target > 0.0 else (-end, 0.0, d)


@compiled(inline=True)
def cost(target: float, weight: float, f: float, loss: Loss) -> float:
    """Return the cost of a row whose decision value is f."""
    C = weight * (loss.C_positive if target > 0.0 else loss.C_negative)
    error = max(abs(target - f) - loss.epsilon, 0.0) if loss.regression else max(1.0 - target * f, 0.0)
    return C * error * error if loss.squared else C * error


@compiled(inline=True)
def is_free(b: float, lower: float, upper: float, loss: Loss) -> bool:
    """Tell whether a coefficient is at no bound. In regression 0 is one: of the two variables whose difference b is."""
    return lower < b < upper and (b != 0.0 or not loss.regression)
