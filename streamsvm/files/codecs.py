"""The types that a model file may contain: an allowlist of classes, functions and methods, and codecs for some other types.

Names in a file are looked up in these lists and never called while the file is read. An instance of a listed class is created
empty, and its attributes are set. Functions and classes may be attributes, which the model can call later: so list only those
that do nothing but compute with their arguments.
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

#: Maps the stored name of each class of streamsvm, written ``streamsvm:CLASS`` in files, to the module that defines it. If a
#: class moves, change its module here; its stored name stays. Never remove a name, or use it for another class.
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
        "learners.keyed": "KeyedClassifier KeyedRegressor",
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
        "stream.tables.text_encoding": "TextEncoding",
    }.items()
    for name in names.split()
}

#: The classes of `OWN_CLASSES` that have another name in the code than in files, by their name in files.
RENAMED_CLASSES = {"NameStatistics": "TargetEncoding", "SeenColumn": "ColumnSchema", "TableReading": "TableSchema"}
_NAMES_IN_FILES = {name: stored for stored, name in RENAMED_CLASSES.items()}


def _expand_allowlist(modules: dict[str, str]) -> frozenset[tuple[str, str]]:
    """Convert an allowlist, a dict of module to space-separated class or function names, to a set of (module, name) pairs."""
    return frozenset((module, name) for module, names in modules.items() for name in names.split())


#: Subpackages of river whose classes are allowed: all except those that open files and connections.
_RIVER_SUBPACKAGES = _expand_allowlist(
    {
        "river": "active anomaly bandit base cluster compose conf covariance drift dummy ensemble facto feature_extraction "
        "feature_selection forest imblearn linear_model metrics misc model_selection multiclass multioutput naive_bayes "
        "neighbors optim preprocessing proba reco rules sketch stats time_series tree utils",
    }
)
_EXCLUDED_SUBPACKAGES = frozenset({"datasets", "envs"})  # of river.drift and river.bandit
_CLASSES = _expand_allowlist(
    {
        "builtins": "bool complex dict float frozenset int list set str tuple",
        "collections": "Counter OrderedDict defaultdict deque",
        "numbers": "Number",
    }
)
_FUNCTIONS = _expand_allowlist(
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
#: Names of methods that river's models have as attributes, bound to an object: default factories of dicts, and chosen rules.
LISTED_METHODS = frozenset(
    {
        *("_calc_tau_0", "_calc_tau_1", "_calc_tau_2", "_clone_reward_obj_with_seed", "_fixed_trigger", "_leveraging_bag"),
        *("_next_code", "_rand_gauss", "_rand_weights_for_feature", "_random_weights", "_test_both", "_test_decrease"),
        *("_test_increase", "clone", "gauss", "_scale", "_unscale"),
    }
)


#: Advice in errors about a class or function that may be loaded only from a trusted file.
TRUST_ADVICE = "If it is your own, and you know who wrote the file, it takes trusted=True"


def get_stored_name(obj: Any) -> str:
    """Return the name under which model files reference ``obj``, a class or function, as the text ``module:Class``.

    The module is ``streamsvm`` for `OWN_CLASSES`, and the topmost package that exports it for other classes, so that the name
    does not change if the definition moves to another module.

    >>> from river.metrics import F1
    >>> from streamsvm import BSGDClassifier
    >>> get_stored_name(BSGDClassifier), get_stored_name(F1)
    ('streamsvm:BSGDClassifier', 'river.metrics:F1')
    """
    if isinstance(obj, types.MethodDescriptorType):
        return f"{obj.__objclass__.__module__}:{obj.__qualname__}"
    module, qualified = obj.__module__, obj.__qualname__
    stored = _NAMES_IN_FILES.get(qualified, qualified)
    if OWN_CLASSES.get(stored) == module:
        return f"streamsvm:{stored}"
    return f"{_find_exporting_package(obj) if isinstance(obj, type) else module}:{qualified}"


@functools.lru_cache
def _find_exporting_package(cls: type) -> str:
    """Return the shortest module path that a class can be imported from, such as ``river.metrics`` for a class that is defined in
    one of its submodules. Only packages that are imported already are considered.
    """
    parts = cls.__module__.split(".")
    packages = (".".join(parts[:n]) for n in range(1, len(parts)))
    exporting = (package for package in packages if getattr(sys.modules.get(package), cls.__qualname__, None) is cls)
    return next(exporting, cls.__module__)


def find_class(name: str, trusted: bool = False) -> type:
    """Return the class that a model file references by ``name``, such as ``"river.metrics:F1"``. Raises ModelFileError if the
    class is missing, or is not on this module's allowlist and the caller has not declared the file ``trusted``.
    """
    module, qualified = _split_name(name)
    package, *parts = module.split(".")
    is_own = module == "streamsvm" and qualified in OWN_CLASSES
    is_of_river = (package, *parts[:1]) in _RIVER_SUBPACKAGES and _EXCLUDED_SUBPACKAGES.isdisjoint(parts)
    is_listed = is_own or is_of_river or (module, qualified) in _CLASSES
    if is_own:
        module, qualified = OWN_CLASSES[qualified], RENAMED_CLASSES.get(qualified, qualified)
    cls = _find_object(module, qualified) if is_listed or trusted else None
    if not isinstance(cls, type) or get_stored_name(cls) != name:  # a name could lead through the imports of a module
        raise ModelFileError(
            f"it names {module}.{qualified}, which is not a class of a model of streamsvm or river. {TRUST_ADVICE}"
        )
    return cls


def find_function(name: str, trusted: bool = False) -> Any:
    """Return the function that a model file references by ``name``, such as ``"math:exp"``. Raises ModelFileError if the function
    is missing, or is not on this module's allowlist and the caller has not declared the file ``trusted``.
    """
    module, qualified = _split_name(name)
    function = _find_object(module, qualified) if trusted or (module, qualified) in _FUNCTIONS else None
    if not callable(function):
        raise ModelFileError(
            f"it names {module}.{qualified}, which is not a function of a model of streamsvm or river. {TRUST_ADVICE}"
        )
    return function


def _split_name(name: str) -> tuple[str, str]:
    """Split ``name``, a class or function as model files write it (``module:Class.method``), into (module, name within the
    module). Raises ModelFileError unless both consist of Python identifiers joined by dots.
    """
    module, _, qualified = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *qualified.split("."))):
        raise ModelFileError(f"it names {short_repr(name)}, which is not a class or function")
    return module, qualified


def _find_object(module: str, qualified: str) -> Any:
    """Import ``module``, and return its attribute with the dotted name ``qualified``, such as ``Class.method``. Returns None if
    the module or the attribute does not exist.
    """
    try:
        value: Any = importlib.import_module(module)
    except MissingPackageError:
        raise  # the class exists, and the error tells the package to install
    except ImportError:
        return None
    for part in qualified.split("."):
        value = getattr(value, part, None)
    return value


_TWISTER_WORDS = 624  # 32-bit integers in the state of a Mersenne twister


@dataclass(frozen=True)
class TypeCodec:
    """Converts instances of one type, but not of its subclasses, to values that a file can contain, and back.

    Parameters
    ----------
    kind
        Name of the type in files.
    type
        The type.
    to_parts
        Returns the parts of an instance, as a tuple of values that a file can contain.
    from_parts
        Creates an instance from its parts. It checks them and raises an error, because a file can come from anybody.
    shared
        Whether instances are mutable, so that references to the same instance must be preserved.
    """

    kind: str
    type: type
    to_parts: Callable[[Any], tuple[Any, ...]]
    from_parts: Callable[[Any], Any]
    shared: bool = False


def _make_partial(parts: Any) -> functools.partial[Any]:
    """Create a functools.partial from the three ``parts`` that a model file holds: its function, its arguments, and pairs of
    keyword arguments. Raises ModelFileError if the types are wrong.
    """
    function, arguments, keywords = parts
    if not callable(function):
        raise ModelFileError(f"it contains {short_repr(function)} in place of a function")
    return functools.partial(function, *_check_tuple(arguments), **dict(_check_tuple(keywords)))


def _check_tuple(value: Any) -> tuple[Any, ...]:
    """Return a value that was read from a model file unchanged, or raise ModelFileError if it is not a tuple."""
    if type(value) is not tuple:
        raise ModelFileError(f"it contains {short_repr(value)} in place of a tuple")
    return value


def _read_twister_words(words: Any, position: Any) -> np.ndarray:
    """Convert the saved state of a Mersenne Twister random generator from ``words``, bytes of a model file, to uint32 [624].
    Raises ModelFileError if the length is wrong, or if ``position``, the saved index of the next word to use, is not an int from
    0 to 624.
    """
    is_valid = type(words) is bytes and len(words) == 4 * _TWISTER_WORDS
    if not is_valid or type(position) is not int or not 0 <= position <= _TWISTER_WORDS:
        raise ModelFileError("it contains an invalid state of a random generator")
    return np.frombuffer(words, "<u4")


def _check_float(value: Any) -> float:
    """Return a value that was read from a model file unchanged, or raise ModelFileError if it is not a float."""
    if type(value) is not float:
        raise ModelFileError(f"it contains {short_repr(value)} in place of a float")
    return value


def _split_random(generator: random.Random) -> tuple[Any, ...]:
    """Return the state of a `random.Random` generator as a tuple for a model file: its 624 words of 32 bits as bytes, the index
    of the next word, and the pending second number of a Gaussian pair or None.
    """
    _, words, gauss = generator.getstate()
    return np.array(words[:-1], "<u4").tobytes(), words[-1], gauss


def _make_random(parts: Any) -> random.Random:
    """Create a `random.Random` generator from the state that `_split_random` returned as ``parts``, or raise ModelFileError."""
    words, position, gauss = parts
    generator = random.Random(0)  # noqa: S311
    twister = _read_twister_words(words, position).tolist()
    generator.setstate((3, (*twister, position), None if gauss is None else _check_float(gauss)))
    return generator


def _split_random_state(generator: np.random.RandomState) -> tuple[Any, ...]:
    """Return the state of a numpy RandomState as a tuple for a model file: its 624 words of 32 bits as bytes, the index of the
    next word, whether a Gaussian number is pending (0 or 1), and that number. Raises ModelFileError if the generator is not a
    Mersenne twister (MT19937).
    """
    state: Any = generator.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise ModelFileError(f"a RandomState of {state['bit_generator']} cannot be saved: use MT19937")
    words, position = state["state"]["key"], state["state"]["pos"]
    return words.astype("<u4").tobytes(), int(position), int(state["has_gauss"]), float(state["gauss"])


def _make_random_state(parts: Any) -> np.random.RandomState:
    """Create a numpy RandomState from the state that `_split_random_state` returned as ``parts``, or raise ModelFileError."""
    words, position, has_gauss, gauss = parts
    if type(has_gauss) is not int or has_gauss not in (0, 1):
        raise ModelFileError("it contains an invalid state of a random generator")
    state = {"key": _read_twister_words(words, position), "pos": position}
    generator = np.random.RandomState(0)
    generator.set_state({"bit_generator": "MT19937", "state": state, "has_gauss": has_gauss, "gauss": _check_float(gauss)})
    return generator


def _split_vector_dict(vector: Any) -> tuple[Any, ...]:
    """Return the parts of a river VectorDict (a dict of numbers) as a tuple for a model file: its items, its default factory, and
    its mask, a frozenset of visible keys or None.
    """
    values, default, mask = river_state.get_vector_dict_parts(vector)
    return tuple(values.items()), default, None if mask is None else frozenset(mask)


def _make_vector_dict(parts: Any) -> Any:
    """Create a river VectorDict (a dict of numbers) from the tuple that `_split_vector_dict` returned as ``parts``. Raises
    ModelFileError or ValueError if they are invalid.
    """
    values, default, mask = parts
    pairs = [_check_tuple(pair) for pair in _check_tuple(values)]
    check_hash_collisions(pair[0] for pair in pairs)
    return river_state.make_vector_dict(dict(pairs), default, None if mask is None else set(mask))


def _make_rust_codec(cls: Any) -> TypeCodec:
    """Create the codec for ``cls``, a river class written in Rust: a pair of functions that convert an object to constructor
    arguments and state bytes for a model file, and back.
    """
    return TypeCodec(cls.__name__, cls, river_state.get_state, lambda parts: river_state.restore_object(cls, *parts), shared=True)


def _make_iso_codec(cls: Any) -> TypeCodec:
    """Create the codec for ``cls`` (date, datetime or time): a pair of functions that convert an object to ISO 8601 text for a
    model file, and back.
    """
    return TypeCodec(cls.__name__, cls, lambda value: (value.isoformat(),), lambda parts: cls.fromisoformat(*parts))


CODECS_BY_KIND = {
    codec.kind: codec
    for codec in (
        _make_iso_codec(datetime.date),
        _make_iso_codec(datetime.datetime),
        _make_iso_codec(datetime.time),
        TypeCodec(
            "timedelta",
            datetime.timedelta,
            lambda value: (value.days, value.seconds, value.microseconds),
            lambda parts: datetime.timedelta(*parts),
        ),
        TypeCodec("complex", complex, lambda value: (value.real, value.imag), lambda parts: complex(*map(_check_float, parts))),
        TypeCodec(
            "itemgetter",
            operator.itemgetter,
            lambda value: tuple(value.__reduce__()[1]),
            lambda parts: operator.itemgetter(*_check_tuple(parts)),
        ),
        TypeCodec(
            "NormalDist",
            statistics.NormalDist,
            lambda value: (value.mean, value.stdev),
            lambda parts: statistics.NormalDist(*map(_check_float, parts)),
        ),
        TypeCodec(
            "partial",
            functools.partial,
            lambda value: (value.func, value.args, tuple(value.keywords.items())),
            _make_partial,
        ),
        TypeCodec("Random", random.Random, _split_random, _make_random, shared=True),
        TypeCodec("RandomState", np.random.RandomState, _split_random_state, _make_random_state, shared=True),
        TypeCodec("VectorDict", VectorDict, _split_vector_dict, _make_vector_dict, shared=True),
        *map(_make_rust_codec, river_state.COMPILED_CLASSES),
    )
}
#: The same codecs by type.
CODECS_BY_TYPE = {codec.type: codec for codec in CODECS_BY_KIND.values()}
