"""The types of options are the values that there are. What checkers of types see is in user_code.py and public_types.py."""

from __future__ import annotations

from typing import get_args

import pytest

from streamsvm.core import checks
from streamsvm.core.budget.merge_search import SEARCHES
from streamsvm.core.kernels import KERNELS
from streamsvm.core.memory.features import OVERFLOW_POLICIES
from streamsvm.learners.bsgd import SCHEDULES


@pytest.mark.parametrize(
    ("option", "values"),
    [
        (checks.KernelName, KERNELS),
        (checks.Overflow, OVERFLOW_POLICIES),
        (checks.LearningRate, SCHEDULES),
        (checks.Search, SEARCHES),
    ],
)
def test_the_types_of_options_name_the_values_that_there_are(option, values):
    assert sorted(get_args(option)) == sorted(values)
