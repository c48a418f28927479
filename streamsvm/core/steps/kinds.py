"""The kinds of experts of a committee, and its state beside that of all learners, for compiled code."""

from __future__ import annotations

import numpy as np

#: Kinds of experts: coordinate ascent in the dual, the same reset where the stream drifts, gradient descent, a linear learner of
#: first order, one of second order with a shorter and a longer memory, a sum of functions of one feature each, of second order
#: too, the last label, recursive least squares on kernel values with landmarks, and the last target.
ASCENT, RESETTING, DESCENT, LINEAR, NEWTON, SLOW_NEWTON, ADDITIVE, LAST_LABEL, LANDMARKS, LAST_TARGET = range(10)

#: The state of a committee, beside what all learners have.
STATE = np.dtype(
    [
        ("scaling", "i8"),
        ("choice", "i8"),  # what predictions follow: a number of `stack`
        ("last", "i8"),  # the last row's class; of one output 0 or 1; -1 before there was one
        ("last_target", "f8"),  # in standard deviations from the mean
        ("functions", "i8"),  # of each feature, that the additive expert takes; 0 before there are features
        ("resets", "i8"),  # of experts, as the stream drifted
        ("rows", "f8"),  # of all classes, by weight
    ]
)
