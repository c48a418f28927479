"""The scaler that an encoder of tables has for its numbers, checked where it comes from a file."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from river import base

from streamsvm.files.messages import shown

if TYPE_CHECKING:
    from river import preprocessing


def is_scaler(scaler: object) -> bool:
    """Whether an encoder can have a scaler, or the name of one."""
    return scaler is None or scaler == "standard" or isinstance(scaler, base.Transformer)


def check_scaler(scaler: preprocessing.StandardScaler) -> None:
    """Raise a ValueError where a StandardScaler of river has numbers that no finite rows give."""
    if scaler.with_std is not True or scaler.window_size is not None:
        raise ValueError("the scaler of the encoder has other parameters than it was made with")
    counts, means, variances = scaler.counts, scaler.means, scaler.vars
    if type(counts) is not Counter or not _is_of_floats(means) or not _is_of_floats(variances):
        raise ValueError("the scaler of the encoder has no counts, means or variances")
    if not counts.keys() == means.keys() == variances.keys():
        raise ValueError("the scaler of the encoder has means or variances of other columns than counts")
    for name, count in counts.items():
        mean, variance = means[name], variances[name]
        finite = all(type(value) is float and math.isfinite(value) for value in (mean, variance))
        if type(count) is not int or count < 1 or not finite or variance < 0.0:
            raise ValueError(
                f"the scaler of column {shown(name)} has the mean {shown(mean)} and the variance {shown(variance)} "
                f"of {shown(count)} rows"
            )


def _is_of_floats(values: object) -> bool:
    return type(values) is defaultdict and values.default_factory is float
