"""Types as a user's checker sees them: options are literals, and what learners return has a type."""

from __future__ import annotations

from typing import get_args

import pytest
from mypy import api

from streamsvm import _options
from streamsvm.budget.merge_search import SEARCHES
from streamsvm.hss.tree import SPLITS
from streamsvm.kernels import KERNELS
from streamsvm.learners.bsgd import SCHEDULES
from streamsvm.memory.features import OVERFLOW

GOOD = """
from river import compose
from streamsvm import BSCAClassifier, BSGDClassifier, BSGDRegressor, Merge, OneClassBSGD, Removal, load
from streamsvm.batch import CSMOClassifier
from streamsvm.learners import OnlineLinearSVC
from streamsvm.linear import OutOfCoreLinearSVC

model = BSGDClassifier(100, kernel="poly", gamma=0.5, learning_rate="floor", overflow="hash", maintenance=Merge("gss"))
model.learn_one({"a": 1.0, 2: 3}, "spam")
label = model.predict_one({"a": 1.0})
assert label is None or isinstance(label, bool | int | str)
probability: float = model.predict_proba_one({"a": 1.0})["spam"]
target: float = BSGDRegressor(l2=1e-3).predict_one({"a": 1.0})
score: float = OneClassBSGD(nu=0.2, maintenance=Removal("random")).score_one({"a": 1.0})
value = BSCAClassifier(gamma="scale").decision_function_one({"a": 1.0}, output="last")
OnlineLinearSVC(overflow="ignore")
CSMOClassifier(kernel="linear", gamma="auto", class_weight="balanced")
OutOfCoreLinearSVC(loss="squared_hinge")
loaded: float = load("model", kind=BSGDRegressor).predict_one({})
load("folder", kind=compose.Pipeline).learn_one({}, True)
load("file").whatever()
"""

BAD = {
    'BSGDClassifier(kernel="gauss")': "kernel",
    'BSGDClassifier(learning_rate="optimal")': "learning_rate",
    'BSGDClassifier(overflow="drop")': "overflow",
    'BSGDClassifier(gamma="auto")': "gamma",
    'BSGDClassifier().decision_function_one({}, output="best")': "output",
    'Merge("fast")': "Merge",
    'Removal("oldest")': "Removal",
    'CSMOClassifier(kernel="gauss")': "kernel",
    'OutOfCoreLinearSVC(loss="log")': "loss",
    'to_budget(None, 5, learner="sgd")': "learner",
    'HSSMatrix.compress([], split="random")': "split",
    "probability: str = BSGDClassifier().predict_proba_one({})[True]": "float",
    "target: str = BSGDRegressor().predict_one({})": "float",
    'loaded: str = load("m", kind=BSGDRegressor).predict_one({})': "float",
    "learned: int = BSGDClassifier().learn_one({}, True)": "None",
}

IMPORTS = """
from streamsvm import BSGDClassifier, BSGDRegressor, Merge, Removal, load
from streamsvm.batch import CSMOClassifier, to_budget
from streamsvm.hss import HSSMatrix
from streamsvm.linear import OutOfCoreLinearSVC
"""


def check(path, text):
    path.write_text(text)
    out, errors, _ = api.run(["--strict", "--no-error-summary", f"--cache-dir={path.parent / 'cache'}", str(path)])
    assert not errors
    return out.splitlines()


def test_a_script_with_right_options_has_no_errors_and_each_wrong_one_is_found(tmp_path):
    assert check(tmp_path / "good.py", GOOD) == []
    found = check(tmp_path / "bad.py", IMPORTS + "\n".join(BAD))
    first = len(IMPORTS.splitlines()) + 1
    by_line = {int(line.split(":")[1]) - first: line for line in found if ": error:" in line}
    assert sorted(by_line) == list(range(len(BAD)))
    for number, word in enumerate(BAD.values()):
        assert word in by_line[number]


@pytest.mark.parametrize(
    ("option", "values"),
    [
        (_options.KernelName, KERNELS),
        (_options.Overflow, OVERFLOW),
        (_options.LearningRate, SCHEDULES),
        (_options.Search, SEARCHES),
        (_options.Split, SPLITS),
    ],
)
def test_the_types_of_options_name_the_values_that_there_are(option, values):
    assert sorted(get_args(option)) == sorted(values)
