"""Types that a file holds: which classes, functions and methods it may name, and which have a form and a check of their own.

A name is only ever looked up in these lists, never called while a file is read. An instance of a listed class is made empty and
given its attributes; a function or a class can be an attribute, for a model to call later. So none may be listed here that
does anything but compute with its arguments.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import operator
import random
import statistics
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from river.utils import VectorDict

from streamsvm.files import river_state
from streamsvm.files.container import ModelFileError, check_hash_collisions
from streamsvm.files.messages import MissingPackageError, short_repr

#: Every class of streamsvm that a file may name, ``streamsvm:CLASS``, and the module that defines it. A class that moves gets
#: another module here, and its name in files stays. A name is never removed, nor used for another class.
OWN_CLASSES: dict[str, str] = {
    name: f"streamsvm.{module}"
    for module, names in {
        "batch.adapter.estimators": "BatchClassifier BatchRegressor",
        "batch.csmo.estimators": "CSMOClassifier CSMORegressor",
        "batch.csmo.one_class": "CSMOOneClass",
        "batch.hierarchical": "HierarchicalSVC HierarchicalSVR",
        "batch.hss_admm.estimators": "HSSADMMClassifier",
        "core.budget.merge": "Merge",
        "core.budget.removal": "Projection Removal",
        "learners.bsca": "BSCAClassifier BSCARegressor",
        "learners.bsgd": "BSGDClassifier BSGDRegressor",
        "learners.conformal": "ConformalClassifier ConformalRegressor",
        "learners.costs": "CostSensitiveClassifier",
        "learners.gradient_rules": "BOGD BPAS KernelOGD KernelPegasos",
        "learners.kernel_features": "FOGD NOGD",
        "learners.kernel_rls": "KernelRLSClassifier KernelRLSRegressor",
        "learners.linear": "OnlineLinearSVC OnlineLinearSVR",
        "learners.one_class": "OneClassBSGD",
        "learners.perceptrons": "Forgetron KernelPerceptron RBP Stoptron",
        "learners.preprocessing": "BoundedScaler BoundedTargetScaler",
        "learners.projectron": "Projectron ProjectronPP",
        "learners.svm": "SVMClassifier SVMRegressor",
        "learners.thresholds": "TunedThresholdClassifier",
        "linear.estimators": "OutOfCoreLinearSVC OutOfCoreLinearSVR",
        "linear.solution": "Pass",
        "stream.tables.encoder": "TableEncoder",
        "stream.tables.model": "TableModel",
        "stream.tables.table_schema": "SeenColumn TableReading",
        "stream.tables.target_encoding": "NameStatistics",
    }.items()
    for name in names.split()
}

#: The classes of `OWN_CLASSES` that have another name in the code than in files, by their name in files.
RENAMED_CLASSES = {"NameStatistics": "TargetEncoding", "SeenColumn": "ColumnSchema", "TableReading": "TableSchema"}
_NAMES_IN_FILES = {name: stored for stored, name in RENAMED_CLASSES.items()}


def _listed_names(modules: dict[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((module, name) for module, names in modules.items() for name in names.split())


#: Parts of river whose classes are listed: all but datasets, streams and environments, which open files and connections.
_RIVER_PARTS = _listed_names(
    {
        "river": "active anomaly bandit base cluster compose conf covariance drift dummy ensemble facto feature_extraction "
        "feature_selection forest imblearn linear_model metrics misc model_selection multiclass multioutput naive_bayes "
        "neighbors optim preprocessing proba reco rules sketch stats time_series tree utils",
    }
)
_EXCLUDED = frozenset({"datasets", "envs"})  # parts of river.drift and river.bandit
_CLASSES = _listed_names(
    {
        "builtins": "bool complex dict float frozenset int list set str tuple",
        "collections": "Counter OrderedDict defaultdict deque",
        "numbers": "Number",
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
#: Methods that river's models hold bound to an object: to make the default of a dict, or as the rule that was chosen.
LISTED_METHODS = frozenset(
    {
        *("_calc_tau_0", "_calc_tau_1", "_calc_tau_2", "_clone_reward_obj_with_seed", "_fixed_trigger", "_leveraging_bag"),
        *("_next_code", "_rand_gauss", "_rand_weights_for_feature", "_random_weights", "_test_both", "_test_decrease"),
        *("_test_increase", "clone", "gauss", "_scale", "_unscale"),
    }
)


#: What to do about a class or function that may be loaded only from a trusted file.
TRUST_ADVICE = "If it is your own, and you know who wrote the file, it takes trusted=True"


def get_stored_name(named: Any) -> str:
    """Return the name of a class or function in files, ``module:Class``.

    The module is ``streamsvm`` for a class of `OWN_CLASSES`, and for another one the topmost package that exports it: both stay
    when the definition moves to another file.

    >>> from river.metrics import F1
    >>> from streamsvm import BSGDClassifier
    >>> get_stored_name(BSGDClassifier), get_stored_name(F1)
    ('streamsvm:BSGDClassifier', 'river.metrics:F1')
    """
    if isinstance(named, types.MethodDescriptorType):
        return f"{named.__objclass__.__module__}:{named.__qualname__}"
    module, qualified = named.__module__, named.__qualname__
    stored = _NAMES_IN_FILES.get(qualified, qualified)
    if OWN_CLASSES.get(stored) == module:
        return f"streamsvm:{stored}"
    return f"{_exporting_package(named) if isinstance(named, type) else module}:{qualified}"


@functools.lru_cache
def _exporting_package(cls: type) -> str:
    parts = cls.__module__.split(".")
    packages = (".".join(parts[:n]) for n in range(1, len(parts)))
    exporting = (package for package in packages if getattr(sys.modules.get(package), cls.__qualname__, None) is cls)
    return next(exporting, cls.__module__)


def find_class(name: str, trusted: bool = False) -> type:
    """Return the class of a name; raise a ModelFileError if it is neither listed nor ``trusted``."""
    module, qualified = _split_name(name)
    package, *parts = module.split(".")
    is_own = module == "streamsvm" and qualified in OWN_CLASSES
    is_of_river = (package, *parts[:1]) in _RIVER_PARTS and _EXCLUDED.isdisjoint(parts)
    is_listed = is_own or is_of_river or (module, qualified) in _CLASSES
    if is_own:
        module, qualified = OWN_CLASSES[qualified], RENAMED_CLASSES.get(qualified, qualified)
    cls = _find_object(module, qualified) if is_listed or trusted else None
    if not isinstance(cls, type) or get_stored_name(cls) != name:  # a name may lead through what a module imports
        raise ModelFileError(
            f"it names {module}.{qualified}, which is not a class of a model of streamsvm or river. {TRUST_ADVICE}"
        )
    return cls


def find_function(name: str, trusted: bool = False) -> Any:
    """Return the function of a name; raise a ModelFileError as `find_class` does."""
    module, qualified = _split_name(name)
    function = _find_object(module, qualified) if trusted or (module, qualified) in _FUNCTIONS else None
    if not callable(function):
        raise ModelFileError(
            f"it names {module}.{qualified}, which is not a function of a model of streamsvm or river. {TRUST_ADVICE}"
        )
    return function


def _split_name(name: str) -> tuple[str, str]:
    module, _, qualified = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *qualified.split("."))):
        raise ModelFileError(f"it names {short_repr(name)}, which is no class or function")
    return module, qualified


def _find_object(module: str, qualified: str) -> Any:
    try:
        value: Any = importlib.import_module(module)
    except MissingPackageError:
        raise  # the class is known, and the error says what to install
    except ImportError:
        return None
    for part in qualified.split("."):
        value = getattr(value, part, None)
    return value


_WORDS = 624  # of the state of a Mersenne twister


@dataclass(frozen=True)
class TypeCodec:
    """The form of a type; instances of subclasses are not meant.

    Parameters
    ----------
    kind
        Its name in a file.
    to_parts
        Returns the parts of an instance, as a tuple of values that a file can hold.
    from_parts
        Makes an instance from its parts. It checks them and raises an error, for they may come from anybody.
    shared
        Whether an instance can be changed, so that it matters who else holds it.
    """

    kind: str
    type: type
    to_parts: Callable[[Any], tuple[Any, ...]]
    from_parts: Callable[[Any], Any]
    shared: bool = False


def _make_partial(parts: Any) -> functools.partial[Any]:
    function, arguments, named = parts
    if not callable(function):
        raise ModelFileError(f"{short_repr(function)} cannot be called")
    return functools.partial(function, *_tuple_of(arguments), **dict(_tuple_of(named)))


def _tuple_of(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise ModelFileError(f"{short_repr(value)} stands where a tuple belongs")
    return value


def _make_twister(words: Any, position: Any) -> np.ndarray:
    if type(words) is not bytes or len(words) != 4 * _WORDS or type(position) is not int or not 0 <= position <= _WORDS:
        raise ModelFileError("the state of a random generator is none")
    return np.frombuffer(words, "<u4")


def _number_of(value: Any) -> float:
    if type(value) is not float:
        raise ModelFileError(f"{short_repr(value)} stands where a float belongs")
    return value


def _random_parts(generator: random.Random) -> tuple[Any, ...]:
    _, words, gauss = generator.getstate()
    return np.array(words[:-1], "<u4").tobytes(), words[-1], gauss


def _make_random(parts: Any) -> random.Random:
    words, position, gauss = parts
    generator = random.Random(0)  # noqa: S311
    twister = _make_twister(words, position).tolist()
    generator.setstate((3, (*twister, position), None if gauss is None else _number_of(gauss)))
    return generator


def _random_state_parts(generator: np.random.RandomState) -> tuple[Any, ...]:
    state: Any = generator.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise ModelFileError(f"a RandomState of {state['bit_generator']} cannot be saved: one of MT19937 can")
    words, position = state["state"]["key"], state["state"]["pos"]
    return words.astype("<u4").tobytes(), int(position), int(state["has_gauss"]), float(state["gauss"])


def _random_state(parts: Any) -> np.random.RandomState:
    words, position, has_gauss, gauss = parts
    if type(has_gauss) is not int or has_gauss not in (0, 1):
        raise ModelFileError("the state of a random generator is none")
    state = {"key": _make_twister(words, position), "pos": position}
    generator = np.random.RandomState(0)
    generator.set_state({"bit_generator": "MT19937", "state": state, "has_gauss": has_gauss, "gauss": _number_of(gauss)})
    return generator


def _vector_dict_parts(vector: Any) -> tuple[Any, ...]:
    values, default, mask = river_state.vector_dict_parts(vector)
    return tuple(values.items()), default, None if mask is None else frozenset(mask)


def _vector_dict(parts: Any) -> Any:
    values, default, mask = parts
    pairs = [_tuple_of(pair) for pair in _tuple_of(values)]
    check_hash_collisions(pair[0] for pair in pairs)
    return river_state.make_vector_dict(dict(pairs), default, None if mask is None else set(mask))


def _compiled_codec(cls: Any) -> TypeCodec:
    return TypeCodec(cls.__name__, cls, river_state.get_state, lambda parts: river_state.restore_object(cls, *parts), shared=True)


def _iso_codec(kind: Any) -> TypeCodec:
    return TypeCodec(kind.__name__, kind, lambda value: (value.isoformat(),), lambda parts: kind.fromisoformat(*parts))


CODECS_BY_KIND = {
    codec.kind: codec
    for codec in (
        _iso_codec(datetime.date),
        _iso_codec(datetime.datetime),
        _iso_codec(datetime.time),
        TypeCodec(
            "timedelta",
            datetime.timedelta,
            lambda value: (value.days, value.seconds, value.microseconds),
            lambda parts: datetime.timedelta(*parts),
        ),
        TypeCodec("complex", complex, lambda value: (value.real, value.imag), lambda parts: complex(*map(_number_of, parts))),
        TypeCodec(
            "itemgetter",
            operator.itemgetter,
            lambda value: tuple(value.__reduce__()[1]),
            lambda parts: operator.itemgetter(*_tuple_of(parts)),
        ),
        TypeCodec(
            "NormalDist",
            statistics.NormalDist,
            lambda value: (value.mean, value.stdev),
            lambda parts: statistics.NormalDist(*map(_number_of, parts)),
        ),
        TypeCodec(
            "partial",
            functools.partial,
            lambda value: (value.func, value.args, tuple(value.keywords.items())),
            _make_partial,
        ),
        TypeCodec("Random", random.Random, _random_parts, _make_random, shared=True),
        TypeCodec("RandomState", np.random.RandomState, _random_state_parts, _random_state, shared=True),
        TypeCodec("VectorDict", VectorDict, _vector_dict_parts, _vector_dict, shared=True),
        *map(_compiled_codec, river_state.COMPILED_CLASSES),
    )
}
#: The same by the type.
CODECS_BY_TYPE = {codec.type: codec for codec in CODECS_BY_KIND.values()}
