"""The classes, functions and methods that a file may name.

A name is only ever looked up in these lists, never called while a file is read. An instance of a listed class is made empty and
given its attributes; a function or a class can be an attribute, for a model to call later. So none may be listed here that
does anything but compute with what it is given.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

from streamsvm.files.messages import MissingPackageError, shown

#: Parts whose classes are listed: of streamsvm, and of river but for datasets, streams and environments, which open files and
#: connections.
_PARTS = frozenset(
    f"{package}.{part}"
    for package, parts in {
        "streamsvm": "core.budget learners stream.tables",
        "river": "active anomaly bandit base cluster compose conf covariance drift dummy ensemble facto feature_extraction "
        "feature_selection forest imblearn linear_model metrics misc model_selection multiclass multioutput naive_bayes "
        "neighbors optim preprocessing proba reco rules sketch stats time_series tree utils",
    }.items()
    for part in parts.split()
)
_EXCLUDED = frozenset({"datasets", "envs"})  # parts of river.drift and river.bandit


def _listed_names(modules: dict[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((module, name) for module, names in modules.items() for name in names.split())


_CLASSES = _listed_names(
    {
        "builtins": "bool complex dict float frozenset int list set str tuple",
        "collections": "Counter OrderedDict defaultdict deque",
        "numbers": "Number",
        "streamsvm.batch.adapter.estimators": "BatchClassifier BatchRegressor",
        "streamsvm.batch.csmo.estimators": "CSMOClassifier CSMORegressor",
        "streamsvm.batch.csmo.one_class": "CSMOOneClass",
        "streamsvm.batch.hierarchical": "HierarchicalSVC HierarchicalSVR",
        "streamsvm.batch.hss_admm.estimators": "HSSADMMClassifier",
        "streamsvm.linear.estimators": "OutOfCoreLinearSVC OutOfCoreLinearSVR",
        "streamsvm.linear.solution": "Pass",
        "streamsvm.linear.names": "StreamNames",
    }
)
_FUNCTIONS = _listed_names(
    {
        "builtins": "max min str.lower sum",
        "copy": "deepcopy",
        "math": "exp expm1 log log10 log1p log2 sqrt",
        "operator": "itemgetter",
        "river._river_rust.vectordict": "euclidean_distance_dict euclidean_distance_tuple",
        "river.feature_extraction.vectorize": "strip_accents_unicode tokenize_using_regex_pattern",
        "river.forest.online_extra_trees": "ExtraTrees._detection_mode_all",
        "river.metrics.mutual_info": "_average_arithmetic _average_geometric",
        "river.naive_bayes.gaussian": "GaussianNB._make_gaussian",
        "river.tree.splitter.ebst_splitter": "EBSTNode._update_estimator_univariate",
        "river.tree.splitter.nominal_splitter_reg": "NominalSplitterReg._update_estimator_univariate",
        "river.utils.math": "minkowski_distance",
    }
)
#: Where files say that classes are which have moved since, and where they are.
_FORMER = {
    "streamsvm.batch.hierarchical.estimators": "streamsvm.batch.hierarchical",
    "streamsvm.budget.refusal": "streamsvm.core.budget.strategy",
    "streamsvm.budget": "streamsvm.core.budget",
    "streamsvm.linear.solvers.solution": "streamsvm.linear.solution",
    "streamsvm.linear.sources.names": "streamsvm.linear.names",
    "streamsvm.preprocessing": "streamsvm.learners.preprocessing",
    "streamsvm.tables": "streamsvm.stream.tables",
    "streamsvm.thresholds": "streamsvm.learners.thresholds",
}
#: Methods that river's models hold bound to an object: to make the default of a dict, or as the rule that was chosen.
METHODS = frozenset(
    {
        *("_calc_tau_0", "_calc_tau_1", "_calc_tau_2", "_clone_reward_obj_with_seed", "_fixed_trigger", "_leveraging_bag"),
        *("_next_code", "_rand_gauss", "_rand_weights_for_feature", "_random_weights", "_test_both", "_test_decrease"),
        *("_test_increase", "clone", "gauss", "_scale", "_unscale"),
    }
)


class UntrustedError(Exception):
    """Something is named that may be loaded only where the writer of a file is trusted."""


def name_of(named: Any) -> str:
    """Return the name of a class or function: its module and its place there, ``module:Class``."""
    if isinstance(named, types.MethodDescriptorType):
        return f"{named.__objclass__.__module__}:{named.__qualname__}"
    return f"{named.__module__}:{named.__qualname__}"


def find_class(name: str, trusted: bool = False) -> type:
    """Return the listed class of a name; an UntrustedError where it is not listed, and the writer is not trusted."""
    module, qualified = _split_name(name)
    parts = module.split(".")
    is_of_part = any(".".join(parts[:n]) in _PARTS for n in (2, 3)) and _EXCLUDED.isdisjoint(parts)
    listed = is_of_part or (module, qualified) in _CLASSES
    found = _found_object(module, qualified) if listed or trusted else None
    if not isinstance(found, type) or name_of(found) != f"{module}:{qualified}":  # a name may lead through what a module imports
        raise UntrustedError(f"it names {module}.{qualified}, which is not a class of a model of streamsvm or river")
    return found


def find_function(name: str, trusted: bool = False) -> Any:
    """Return the listed function of a name; as `find_class`."""
    module, qualified = _split_name(name)
    found = _found_object(module, qualified) if trusted or (module, qualified) in _FUNCTIONS else None
    if not callable(found):
        raise UntrustedError(f"it names {module}.{qualified}, which is not a function of a model of streamsvm or river")
    return found


def _split_name(name: str) -> tuple[str, str]:
    module, _, qualified = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *qualified.split("."))):
        raise UntrustedError(f"it names {shown(name)}, which is no class or function")
    for former, now in _FORMER.items():
        if module == former or module.startswith(f"{former}."):
            return now + module.removeprefix(former), qualified
    return module, qualified


def _found_object(module: str, qualified: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
    except MissingPackageError:
        raise  # the class is known, and the error says what to install
    except ImportError:
        return None
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found
