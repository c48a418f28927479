"""Models to bytes and back: equal models give equal bytes, and reading runs no code but that of streamsvm and river.

Bytes are equal as far as the pickles of the model's parts are: those of numpy's random generators differ after they were read
back, and so do those of river's factorisation machines.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import IO, Any

__all__ = ["UntrustedError", "dumps", "loads"]

# The names that models of streamsvm and river pickle to, beside their classes. A pickle can name any function and call it: only
# the functions in this list are allowed, which have no side effects.
_ALLOWED = {
    (module, name)
    for module, names in {
        "builtins": "bool bytearray complex dict float frozenset int list object set str tuple",
        "collections": "Counter OrderedDict defaultdict deque",
        "copy": "deepcopy",
        "copyreg": "_reconstructor",
        "datetime": "date datetime timedelta timezone",
        "functools": "partial",
        "numbers": "Number",
        "numpy": "dtype ndarray",
        "numpy._core.multiarray": "_reconstruct scalar",
        "numpy._core.numeric": "_frombuffer",
        "numpy.random._mt19937": "MT19937",
        "numpy.random._pickle": "__bit_generator_ctor __randomstate_ctor",
        "numpy.random.bit_generator": "SeedSequence __pyx_unpickle_SeedSequence",
        "operator": "itemgetter",
        "random": "Random",
        "river._river_rust.vectordict": "euclidean_distance_dict euclidean_distance_tuple",
        "river.feature_extraction.vectorize": "strip_accents_unicode tokenize_using_regex_pattern",
        "river.metrics.mutual_info": "_average_arithmetic _average_geometric",
        "river.naive_bayes.gaussian": "GaussianNB._make_gaussian",
        "river.tree.splitter.ebst_splitter": "EBSTNode._update_estimator_univariate",
        "river.utils.math": "minkowski_distance",
        "statistics": "NormalDist",
        # Of the batch solvers only these classes: others trust their arguments.
        "streamsvm.batch.adapter.estimators": "BatchClassifier BatchRegressor",
        "streamsvm.batch.csmo.estimators": "CSMOClassifier CSMORegressor",
    }.items()
    for name in names.split()
}
# Packages whose classes are allowed; not river.datasets and river.stream, which open files and connections.
_ALLOWED_PACKAGES = {
    package: set(parts.split())
    for package, parts in {
        "streamsvm": "budget learners",
        "river": "_river_rust active anomaly bandit base cluster compose conf covariance drift dummy ensemble facto "
        "feature_extraction feature_selection forest imblearn linear_model metrics misc model_selection multiclass multioutput "
        "naive_bayes neighbors optim preprocessing proba reco rules sketch stats time_series tree utils",
    }.items()
}
_EXCLUDED = {"datasets", "envs"}  # parts of river.drift and river.bandit
# Methods that river's models hold bound to an object (to make the default of a dict, or as the rule that was chosen).
_ALLOWED_METHODS = {
    *("_calc_tau_0", "_calc_tau_1", "_calc_tau_2", "_leveraging_bag", "_rand_gauss", "_rand_weights_for_feature"),
    *("_random_weights", "_test_both", "_test_decrease", "_test_increase", "clone", "gauss", "lower"),
}


class UntrustedError(Exception):
    """The bytes name something that may be loaded only if their writer is trusted."""


class _Pickler(pickle.Pickler):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, protocol=5)
        self._sets: dict[int, tuple[bool, list[Any]]] = {}

    def persistent_id(self, obj: Any) -> Any:
        # Equal strings are written as one, whether or not they are one object: a resumed run has other objects.
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
        if id(pid) not in self._sets:  # held together with its set, so that no other tuple gets its id
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
        # A name with dots would be looked up through attributes of an allowed object, wherever they lead.
        if not allowed or "." in name:
            raise UntrustedError(f"it names {module}.{name}, which is not a model of streamsvm or river")
        found = super().find_class(module, name)
        if not isinstance(found, type) or (found.__module__, found.__qualname__) != (module, name):
            raise UntrustedError(f"it names {module}.{name}, which is not a class")
        return found


def _bound_method(instance: Any, name: str) -> Any:
    if name not in _ALLOWED_METHODS:
        raise UntrustedError(f"it asks for {name!r} of a {type(instance).__name__}, which is not a method of a model")
    return getattr(instance, name)


def dumps(obj: Any) -> bytes:
    """Pickle an object; raises whatever its classes raise."""
    file = io.BytesIO()
    _Pickler(file).dump(obj)
    return file.getvalue()


def loads(data: bytes, trusted: bool = False) -> Any:
    """Read the object of a pickle.

    Raises
    ------
    UntrustedError
        The bytes are not ``trusted`` and name something that is no class of a model of streamsvm or river.
    Exception
        Of any kind, if the bytes were tampered with.
    """
    return _Unpickler(io.BytesIO(data), trusted).load()
