"""Models to bytes and back: equal models give equal bytes, and reading runs nothing that is not of streamsvm or river.

Equal bytes are as good as the pickles of the model's own parts: those of numpy's random generators are not equal after they were
read back, and with them those of river's factorisation machines.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from typing import IO, Any

__all__ = ["UntrustedError", "dumps", "loads"]

# Beyond classes of streamsvm and river, what their models pickle to. A pickle can name any function and call it: of functions,
# only those listed here are allowed, which compute and do nothing else.
_ALLOWED = {
    ("builtins", name)
    for name in ("bool", "bytearray", "complex", "dict", "float", "frozenset", "int", "list", "object", "set", "str", "tuple")
} | {
    ("collections", "Counter"),
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("collections", "deque"),
    ("copy", "deepcopy"),
    ("copyreg", "_reconstructor"),
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("functools", "partial"),
    ("numbers", "Number"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.random._mt19937", "MT19937"),
    ("numpy.random._pickle", "__bit_generator_ctor"),
    ("numpy.random._pickle", "__randomstate_ctor"),
    ("numpy.random.bit_generator", "SeedSequence"),
    ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"),
    ("operator", "itemgetter"),
    ("random", "Random"),
    ("river._river_rust.vectordict", "euclidean_distance_dict"),
    ("river._river_rust.vectordict", "euclidean_distance_tuple"),
    ("river.feature_extraction.vectorize", "strip_accents_unicode"),
    ("river.feature_extraction.vectorize", "tokenize_using_regex_pattern"),
    ("river.metrics.mutual_info", "_average_arithmetic"),
    ("river.metrics.mutual_info", "_average_geometric"),
    ("river.naive_bayes.gaussian", "GaussianNB._make_gaussian"),
    ("river.tree.splitter.ebst_splitter", "EBSTNode._update_estimator_univariate"),
    ("river.utils.math", "minkowski_distance"),
    ("statistics", "NormalDist"),
    # Of the batch solvers only these: what is beside them trusts its arguments.
    ("streamsvm.batch.adapter.estimators", "BatchClassifier"),
    ("streamsvm.batch.adapter.estimators", "BatchRegressor"),
    ("streamsvm.batch.csmo.estimators", "CSMOClassifier"),
    ("streamsvm.batch.csmo.estimators", "CSMORegressor"),
}
# The classes of these are allowed. Not of river.datasets and river.stream, which open files and connections.
_ALLOWED_PACKAGES = {
    "streamsvm": {"budget", "learners"},
    "river": {
        "_river_rust",
        "active",
        "anomaly",
        "bandit",
        "base",
        "cluster",
        "compose",
        "conf",
        "covariance",
        "drift",
        "dummy",
        "ensemble",
        "facto",
        "feature_extraction",
        "feature_selection",
        "forest",
        "imblearn",
        "linear_model",
        "metrics",
        "misc",
        "model_selection",
        "multiclass",
        "multioutput",
        "naive_bayes",
        "neighbors",
        "optim",
        "preprocessing",
        "proba",
        "reco",
        "rules",
        "sketch",
        "stats",
        "time_series",
        "tree",
        "utils",
    },
}
_EXCLUDED = {"datasets", "envs"}  # of river.drift and river.bandit
# Methods that river's models keep bound to an object (to make the default of a dict, or as the rule that was chosen).
_ALLOWED_METHODS = {
    "_calc_tau_0",
    "_calc_tau_1",
    "_calc_tau_2",
    "_leveraging_bag",
    "_rand_gauss",
    "_rand_weights_for_feature",
    "_random_weights",
    "_test_both",
    "_test_decrease",
    "_test_increase",
    "clone",
    "gauss",
    "lower",
}


class UntrustedError(Exception):
    """The bytes name something that is not to be loaded without trust in who wrote them."""


class _Pickler(pickle.Pickler):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, protocol=5)
        self._sets: dict[int, tuple[bool, list[Any]]] = {}

    def persistent_id(self, obj: Any) -> Any:
        # Equal strings are written as one, whether or not they are one object: a run that was resumed has other objects.
        if type(obj) is str:
            return sys.intern(obj)
        # The order inside a set depends on its history and on the seed of the hashes, so its members are sorted by their bytes.
        if type(obj) is set or type(obj) is frozenset:
            if id(obj) not in self._sets:
                self._sets[id(obj)] = type(obj) is frozenset, sorted(obj, key=dumps)
            return self._sets[id(obj)]
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], trusted: bool) -> None:
        super().__init__(file)
        self._trusted = trusted
        self._sets: dict[int, tuple[Any, set[Any] | frozenset[Any]]] = {}

    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is not tuple:
            return pid
        if id(pid) not in self._sets:  # kept with what it stands for, so that no other gets its id
            frozen, members = pid
            self._sets[id(pid)] = pid, frozenset(members) if frozen else set(members)
        return self._sets[id(pid)][1]

    def find_class(self, module: str, name: str) -> Any:
        if self._trusted:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _bound_method
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        package, *parts = module.split(".")
        allowed = parts and parts[0] in _ALLOWED_PACKAGES.get(package, ()) and _EXCLUDED.isdisjoint(parts)
        # A name with dots would be looked up through the attributes of what is allowed, to wherever they lead.
        if not allowed or "." in name:
            raise UntrustedError(f"it names {module}.{name}, which is not a model of streamsvm or river")
        found = super().find_class(module, name)
        if not isinstance(found, type) or (found.__module__, found.__qualname__) != (module, name):
            raise UntrustedError(f"it names {module}.{name}, which is not a class")
        return found


def _bound_method(owner: Any, name: str) -> Callable[..., Any]:
    if name not in _ALLOWED_METHODS:
        raise UntrustedError(f"it asks for {name!r} of a {type(owner).__name__}, which is not a method of a model")
    method: Callable[..., Any] = getattr(owner, name)
    return method


def dumps(obj: Any) -> bytes:
    """The bytes of an object; anything that its classes raise."""
    file = io.BytesIO()
    _Pickler(file).dump(obj)
    return file.getvalue()


def loads(data: bytes, trusted: bool = False) -> Any:
    """The object of the bytes.

    Raises
    ------
    UntrustedError
        They name what is not a class of a model of streamsvm or river, and are not ``trusted``.
    Exception
        Anything, where they were tampered with.
    """
    return _Unpickler(io.BytesIO(data), trusted).load()
