"""scikit-learn's own tests of SVC, SVR and OneClassSVM, from the installed version, run with our estimators instead.

Tests that use none of the three are left out, and so are parametrised cases of other estimators.
"""

import ast
import importlib.util
import inspect
import re
import types
from pathlib import Path

import pytest
from sklearn import svm
from sklearn.svm.tests import test_svm as original

from streamsvm.batch import CSMOClassifier, CSMOOneClass, CSMORegressor

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]  # scikit-learn's tests take warnings as they come

OURS = {"SVC": CSMOClassifier, "SVR": CSMORegressor, "OneClassSVM": CSMOOneClass}
THEIRS = (svm.NuSVC, svm.NuSVR, svm.LinearSVC, svm.LinearSVR)

#: Tests that fail, and why that is meant. One that passes fails here: it has to leave the table, also that of docs/exact-fits.md.
_NO_WARNING = "a call that works does not warn: only scikit-learn is about to lose the parameter or attribute"
_PRIVATE = "it writes to an attribute that is private to scikit-learn"
_SPARSE = "sparse rows are predicted whatever the machine was fitted to"
DIFFERENT = {
    "test_probability_raises_futurewarning[True-CSMOClassifier-SVC]": _NO_WARNING,
    "test_probability_raises_futurewarning[False-CSMOClassifier-SVC]": _NO_WARNING,
    "test_svc_nusvc_probA_probB_deprecated[CSMOClassifier]": _NO_WARNING,
    "test_tweak_params": _PRIVATE,
    "test_svc_raises_error_internal_representation": _PRIVATE,
    "test_libsvm_convergence_warnings": "it wants a warning after two steps, and one step solves the problem",
    "test_unfitted": "it wants the name SVC in the message, which has the name of the class",
    "test_bad_input[lil_matrix]": _SPARSE,
    "test_bad_input[lil_array]": _SPARSE,
    "test_svr_errors": "fit refuses a kernel function that returns an array of the wrong shape; theirs does when it predicts",
    "test_custom_kernel_not_array_input[CSMOClassifier]": "a kernel function that is right for two equal lists only: predictions "
    "ask for the values with the support vectors, not with all rows of the fit",
}


def substituted():
    """Import the module of tests again, with our estimators in place of scikit-learn's."""
    spec = importlib.util.spec_from_file_location("test_svm_with_csmo", original.__file__)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name, ours in OURS.items():
            patch.setattr(svm, name, ours)
        spec.loader.exec_module(module)  # decorators and imports see ours
        module.svm = types.SimpleNamespace(**vars(svm))  # so do the tests when they run
    return module


def without_others(test):
    """Return a test without the cases of other estimators."""
    marks = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            cases, ids = list(mark.args[1]), mark.kwargs.get("ids")
            kept = [k for k, case in enumerate(cases) if not of_others(case)]
            kwargs = {**mark.kwargs, "ids": [ids[k] for k in kept]} if ids else mark.kwargs
            mark = pytest.mark.parametrize(mark.args[0], [cases[k] for k in kept], **kwargs).mark
        marks.append(mark)
    test.pytestmark = marks
    return test


def of_others(case):
    return any(part in THEIRS or isinstance(part, THEIRS) for part in (case if isinstance(case, tuple) else (case,)))


def names_ours(test):
    code = ast.unparse(ast.parse(inspect.getsource(test)))  # without comments
    return re.search(r"(?<!\w)(SVC|SVR|OneClassSVM)\b", code) is not None


TESTS = {
    name: without_others(test) for name, test in vars(substituted()).items() if name.startswith("test_") and names_ours(test)
}
globals().update(TESTS)


@pytest.fixture
def global_random_seed():
    return 42


@pytest.fixture(autouse=True)
def _listed(request):
    if request.node.name in DIFFERENT:
        request.node.add_marker(pytest.mark.xfail(reason=DIFFERENT[request.node.name], strict=True))


def test_the_table_names_tests():
    assert {name.partition("[")[0] for name in DIFFERENT} <= set(TESTS)
    assert len(TESTS) > 30
    page = (Path(__file__).parents[3] / "docs" / "exact-fits.md").read_text()
    assert all(f"`{name.partition('[')[0]}`" in page for name in DIFFERENT)
