"""The tree of objects in a file: records in JSON, and the arrays and bytes that they name by number.

Everything that can be changed or shared (a list, a dict, an instance, an array) is a record of its own, and values refer to it
by its number, so that shared objects are shared again and objects can refer to each other in circles. A record of an instance is
the name of its class, as `codecs` lists them, and its attributes. To read it, an empty instance is made and the attributes are
set on that. No constructor runs, but for those of the few types in `codecs`, and for the classes of streamsvm, which check their
state (``__setstate__``). docs/saved-files.md lists all values and records.
"""

from __future__ import annotations

import json
import math
import pickle
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from inspect import getattr_static
from typing import Any

import numpy as np
from river import compose

from streamsvm.files.codecs import (
    CODECS_BY_KIND,
    CODECS_BY_TYPE,
    LISTED_METHODS,
    TRUST_ADVICE,
    find_class,
    find_function,
    get_stored_name,
)
from streamsvm.files.container import DTYPES, ModelFileError, check_hash_collisions, check_sharing
from streamsvm.files.messages import short_repr

_DEEPEST = 100  # tuples in tuples
_SCALARS = frozenset({type(None), bool, int, float, str})  # of an array of objects: nothing in it refers to anything
_UNBOUNDED = frozenset({type(None), bool, str})  # all of which JSON holds
_NESTED = frozenset({dict, list})  # of values in JSON: those that are not themselves
_LARGEST_CODE = 0x10FFFF  # of a character
_LONG = 2**63  # readers of JSON in other languages hold shorter integers, and Python refuses very long decimal ones
_NUMBERS = {dtype.type: name for name, dtype in DTYPES.items()}
_DICTS: dict[type, str] = {dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter", defaultdict: "defaultdict"}
#: What river's pipelines derive from their steps; it is not saved, but built again.
_PLAN = frozenset({"_plan", "_inference_transformers", "_last_step_cached", "_last_step_params"})
_EMPTY: dict[str, Any] = {"list": list, "set": set, **{kind: made for made, kind in _DICTS.items()}}


# Writing -----------------------------------------------------------------------------------------------------------------------


def write_tree(obj: Any, trusted: bool = False) -> tuple[bytes, list[np.ndarray]]:
    """Return an object as JSON, and the arrays that it names by number. Equal objects give equal bytes.

    Where it is ``trusted``, classes and functions that are not listed in `names` may be named, and what has a form of its own may
    be pickled. Raises ModelFileError for these otherwise, and for a part of a type that no file holds.
    """
    writer = _TreeWriter(trusted)
    return writer.finish(obj), writer.arrays


class _TreeWriter:
    def __init__(self, trusted: bool) -> None:
        self.arrays: list[np.ndarray] = []
        self._trusted = trusted
        self._numbers: dict[int, int] = {}  # of records, by the identity of their object
        self._objects: list[Any] = []  # held, so that no other object gets the identity of one

    def finish(self, obj: Any) -> bytes:
        root = self._written_value(obj)
        records = [self._record_of(found) for found in self._objects]  # which grows
        return json.dumps({"records": records, "root": root}, separators=(",", ":")).encode()

    def _written_value(self, obj: Any, depth: int = 0) -> Any:
        kind = type(obj)
        if obj is None or kind is bool or kind is str:
            return obj
        if kind is int:
            return obj if abs(obj) < _LONG else {"int": hex(obj)}
        if kind is float:
            return obj if math.isfinite(obj) else {"float": str(obj)}
        if kind is np.str_:  # river keeps such names of features
            return obj.item()
        if depth > _DEEPEST:
            raise ModelFileError(f"tuples are nested more than {_DEEPEST} deep")
        if kind is tuple:
            return {"tuple": self._written_values(obj, depth)}
        if kind is bytes:
            return {"bytes": self._number_of_array(np.frombuffer(obj, np.uint8))}
        if kind is frozenset:
            return {"frozenset": self._sorted_values(obj, depth)}
        if kind in _NUMBERS:
            return {"scalar": [_NUMBERS[kind], self._written_value(obj.item())]}
        if isinstance(obj, type):
            return {"class": self._checked_name(obj)}
        if isinstance(obj, tuple):
            if obj != tuple(obj) or not hasattr(kind, "_fields"):
                raise ModelFileError(f"{get_stored_name(kind)} is a tuple with more than its members")
            return {"namedtuple": [self._checked_name(kind), self._written_values(obj, depth)]}
        if isinstance(obj, types.MethodType) or (isinstance(obj, types.BuiltinMethodType) and _is_bound(obj)):
            if obj.__name__ not in LISTED_METHODS and not self._trusted:
                raise ModelFileError(
                    f"it holds the method {obj.__name__} of a {type(obj.__self__).__name__}, none of a model. {TRUST_ADVICE}"
                )
            return {"method": [self._written_value(obj.__self__, depth + 1), obj.__name__]}
        if isinstance(obj, types.FunctionType | types.BuiltinFunctionType | types.MethodDescriptorType):
            return {"function": self._checked_name(obj, find_function)}
        codec = CODECS_BY_TYPE.get(kind)
        if codec is not None and not codec.shared:
            return {"codec": [codec.kind, self._written_value(codec.to_parts(obj), depth + 1)]}
        return {"ref": self._number_of(obj)}

    def _written_values(self, objects: Iterable[Any], depth: int = 0) -> list[Any]:
        values = list(objects)
        return values if _are_written_as_they_are(values) else [self._written_value(obj, depth + 1) for obj in values]

    def _sorted_values(self, members: Iterable[Any], depth: int = 0) -> list[Any]:
        # The order in a set depends on its history and on the seed of hashes.
        return self._written_values(sorted(members, key=lambda member: write_tree(member, self._trusted)[0]), depth)

    def _number_of(self, obj: Any) -> int:
        number = self._numbers.setdefault(id(obj), len(self._objects))
        if number == len(self._objects):
            self._objects.append(obj)
        return number

    def _number_of_array(self, array: np.ndarray) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _checked_name(self, obj: Any, find: Callable[[str, bool], Any] = find_class) -> str:
        name = get_stored_name(obj)
        if "<" in name or find(name, self._trusted) is not obj:
            raise ModelFileError(
                f"{name} is not found again by its name: define your own classes and functions at the top of a module, not as a "
                "lambda or inside a function"
            )
        return name

    def _record_of(self, obj: Any) -> list[Any]:
        kind = type(obj)
        if kind is list:
            return ["list", self._written_values(obj)]
        if kind in _DICTS:
            pairs = [self._written_values(pair) for pair in obj.items()]
            return [_DICTS[kind], pairs, *([self._written_value(obj.default_factory)] if kind is defaultdict else [])]
        if kind is set:
            return ["set", self._sorted_values(obj)]
        if kind is deque:
            return ["deque", self._written_values(obj), obj.maxlen]
        if kind is bytearray:
            return ["bytearray", self._number_of_array(np.frombuffer(bytes(obj), np.uint8))]
        if kind is np.ndarray:
            return self._record_of_array(obj)
        codec = CODECS_BY_TYPE.get(kind)
        if codec is not None:
            return ["codec", codec.kind, self._written_value(codec.to_parts(obj))]
        return self._record_of_instance(obj)

    def _record_of_array(self, array: np.ndarray) -> list[Any]:
        if array.dtype.kind == "U" and array.dtype.itemsize:
            codes = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).reshape(-1).view("<u4")
            return ["string_array", self._number_of_array(codes.reshape(*array.shape, array.dtype.itemsize // 4))]
        if array.dtype == object and array.ndim == 1 and all(type(value) in _SCALARS for value in array):
            return ["object_array", self._written_values(array)]
        if array.dtype.newbyteorder("<") not in DTYPES.values():
            raise ModelFileError(f"an array of {array.dtype} cannot be saved: numbers and bools of up to 8 bytes can, and texts")
        # The order in memory is part of a model: sums along it round otherwise.
        columns_first = array.flags.f_contiguous and not array.flags.c_contiguous
        return ["array", self._number_of_array(np.ascontiguousarray(array.T if columns_first else array)), columns_first]

    def _record_of_instance(self, obj: Any) -> list[Any]:
        cls = type(obj)
        if _pickles_by_itself(cls):
            if not self._trusted:
                raise ModelFileError(f"it holds a {get_stored_name(cls)}, which has a way of its own to be saved. {TRUST_ADVICE}")
            try:
                return ["pickle", self._number_of_array(np.frombuffer(pickle.dumps(obj, protocol=5), np.uint8))]
            except Exception as error:  # a class of the user's own can raise anything
                raise ModelFileError(f"{get_stored_name(cls)} cannot be pickled ({type(error).__name__}: {error})") from error
        name = self._checked_name(cls)
        state = obj.__getstate__()
        if _checks_its_state(cls):
            return ["state", name, self._written_value(state)]
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        saved = {**(attributes or {}), **(slots or {})}
        if isinstance(obj, compose.Pipeline):
            saved = {key: value for key, value in saved.items() if key not in _PLAN}
        return ["instance", name, [[key, self._written_value(value)] for key, value in saved.items()]]


def _are_written_as_they_are(values: list[Any]) -> bool:
    """Whether JSON holds these values themselves, as far as that is told in an instant: lists of labels are long."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return max(values) < _LONG and min(values) > -_LONG
    return kinds <= _UNBOUNDED or (kinds == {float} and all(map(math.isfinite, values)))


def _is_bound(function: Any) -> bool:
    return function.__self__ is not None and not isinstance(function.__self__, types.ModuleType)


def _checks_its_state(cls: type) -> bool:
    return cls.__module__.startswith("streamsvm.") and hasattr(cls, "__setstate__")


def _pickles_by_itself(cls: Any) -> bool:
    own = [cls.__reduce__ is not object.__reduce__, cls.__reduce_ex__ is not object.__reduce_ex__]
    own += [issubclass(cls, list | dict | set), hasattr(cls, "__getnewargs__"), hasattr(cls, "__getnewargs_ex__")]
    if cls.__module__.partition(".")[0] not in ("streamsvm", "river"):
        own += [cls.__getstate__ is not object.__getstate__, hasattr(cls, "__setstate__")]
    return any(own)


# Reading -----------------------------------------------------------------------------------------------------------------------


def read_tree(text: bytes, arrays: Sequence[np.ndarray], trusted: bool = False) -> Any:
    """Return the object that `write_tree` took apart.

    Where it is ``trusted``, classes and functions that are not listed may be looked up, and pickled parts read, which can run
    anything. Raises ModelFileError if text and arrays are not what `write_tree` returns, or name a class or function that is not
    listed. ``__setstate__`` of a class of streamsvm that finds its state corrupt may raise any other error.
    """
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"its records are not JSON ({error})") from error
    try:
        check_sharing(tree["records"], tree["root"], arrays)
        return _TreeReader(tree["records"], arrays, trusted).read(tree["root"])
    except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError) as error:
        raise ModelFileError(f"its records do not fit together ({type(error).__name__}: {error})") from error


class _TreeReader:
    def __init__(self, records: list[Any], arrays: Sequence[np.ndarray], trusted: bool) -> None:
        self._records, self._arrays, self._trusted = records, arrays, trusted
        self._made: dict[int, Any] = {}
        self._taken: set[int] = set()  # numbers of arrays

    def read(self, root: Any) -> Any:
        # All of them empty, so that each can refer to each; then what they hold, the last first, for what is in a record comes
        # after it: a key of a dict is whole when it is hashed, and a model is given a whole state to check.
        for number in range(len(self._records)):
            self._make_object(number)
        for number in range(len(self._records) - 1, -1, -1):
            self._fill_object(self._made[number], *self._records[number])
        for made in self._made.values():
            if isinstance(made, compose.Pipeline):
                made._build_plan()
        return self._read_value(root)

    def _make_object(self, number: int) -> Any:
        if number in self._made:
            return self._made[number]
        kind, *rest = self._records[number]
        if kind in _EMPTY:
            made = _EMPTY[kind]()
        elif kind == "deque":
            made = deque(maxlen=None if rest[1] is None else _checked_index(rest[1], 2**62))
        elif kind == "bytearray":
            made = bytearray(self._read_bytes(rest[0]))
        elif kind == "array":
            made = self._read_array(rest[0]).copy()
            made = made.T if rest[1] is True else made
        elif kind == "string_array":
            made = _texts_of(self._read_array(rest[0]))
        elif kind == "object_array":
            made = _object_array(self._read_values(rest[0]))
        elif kind in ("instance", "state"):
            made = object.__new__(find_class(rest[0], self._trusted))
        elif kind == "codec":
            self._made[number] = None  # what it is made of cannot hold itself
            made = CODECS_BY_KIND[rest[0]].from_parts(self._read_value(rest[1]))
        elif kind == "pickle" and self._trusted:
            made = pickle.loads(self._read_bytes(rest[0]))  # noqa: S301 - trusted
        elif kind == "pickle":
            raise ModelFileError(f"it holds a class with a way of its own to be saved. {TRUST_ADVICE}")
        else:
            raise ModelFileError(f"it holds a record of kind {short_repr(kind)}")
        self._made[number] = made
        return made

    def _fill_object(self, made: Any, kind: str, *rest: Any) -> None:
        if kind in ("list", "deque"):
            made.extend(self._read_values(rest[0]))
        elif kind == "set":
            made.update(self._read_members(rest[0]))
        elif kind in _EMPTY:  # a dict
            pairs = [(self._read_value(key), self._read_value(value)) for key, value in rest[0]]
            check_hash_collisions(key for key, _ in pairs)
            for key, value in pairs:
                made[key] = value
            if kind == "defaultdict":
                factory = self._read_value(rest[1])
                if factory is not None and not callable(factory):
                    raise ModelFileError(f"{short_repr(factory)} cannot be called")
                made.default_factory = factory
        elif kind == "state":
            if not _checks_its_state(type(made)):
                raise ModelFileError(f"{rest[0]} checks no state")
            made.__setstate__(self._read_value(rest[1]))
        elif kind == "instance":
            cls = type(made)
            if _checks_its_state(cls) or (_pickles_by_itself(cls)):
                raise ModelFileError(f"{rest[0]} is not saved by its attributes")
            for name, value in rest[1]:
                _set_attribute(made, name, self._read_value(value))

    def _read_value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            if isinstance(value, list):
                raise ModelFileError("it holds a list that is no record")
            return value
        ((tag, content),) = value.items()
        if tag == "ref":
            return (
                self._made[number]
                if (number := _checked_index(content, len(self._records))) in self._made
                else self._make_object(number)
            )
        if tag == "float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content]
        if tag == "int":
            return int(content, 16)
        if tag == "tuple":
            return tuple(self._read_values(content))
        if tag == "bytes":
            return self._read_bytes(content)
        if tag == "frozenset":
            return frozenset(self._read_members(content))
        if tag == "scalar":
            return self._read_number(*content)
        if tag == "class":
            return find_class(content, self._trusted)
        if tag == "namedtuple":
            cls = find_class(content[0], self._trusted)
            if not issubclass(cls, tuple) or len(content[1]) != len(cls._fields):  # type: ignore[attr-defined]
                raise ModelFileError(f"{content[0]} is no tuple of {len(content[1])}")
            return tuple.__new__(cls, self._read_values(content[1]))
        if tag == "function":
            return find_function(content, self._trusted)
        if tag == "method":
            return self._read_method(*content)
        if tag == "codec":
            return CODECS_BY_KIND[content[0]].from_parts(self._read_value(content[1]))
        raise ModelFileError(f"it holds a value of kind {short_repr(tag)}")

    def _read_values(self, values: list[Any]) -> list[Any]:
        if _NESTED.isdisjoint(map(type, values)):  # each is itself
            return list(values)
        return [self._read_value(value) for value in values]

    def _read_members(self, values: list[Any]) -> list[Any]:
        members = self._read_values(values)
        check_hash_collisions(members)
        return members

    def _read_number(self, dtype: str, number: Any) -> Any:
        value = self._read_value(number)
        if type(value) not in (bool, int, float, complex):  # numpy takes more, and makes arrays of it
            raise ModelFileError(f"{short_repr(value)} stands where a number belongs")
        return DTYPES[dtype].type(value)

    def _read_method(self, instance: Any, name: str) -> Any:
        if name not in LISTED_METHODS and not self._trusted:
            raise ModelFileError(
                f"it asks for {short_repr(name)} of an instance, which is not a method of a model. {TRUST_ADVICE}"
            )
        owner = self._read_value(instance)
        found = getattr_static(type(owner), name)  # never what was set on the instance
        if not isinstance(found, types.FunctionType | types.MethodDescriptorType | staticmethod | classmethod):
            raise ModelFileError(f"{name} of a {type(owner).__name__} is no method")
        return found.__get__(owner, type(owner))

    def _read_array(self, number: Any) -> np.ndarray:
        number = _checked_index(number, len(self._arrays))
        if number in self._taken:  # each time would be a copy
            raise ModelFileError(f"it names array {number} twice")
        self._taken.add(number)
        return self._arrays[number]

    def _read_bytes(self, number: Any) -> bytes:
        return self._read_array(number).tobytes()


def _texts_of(codes: np.ndarray) -> np.ndarray:
    if codes.dtype != np.uint32 or codes.ndim < 1 or not codes.shape[-1] or (codes > _LARGEST_CODE).any():
        raise ModelFileError("an array of texts is none")
    return np.ascontiguousarray(codes).view(f"<U{codes.shape[-1]}").reshape(codes.shape[:-1]).copy()


def _object_array(values: list[Any]) -> np.ndarray:
    if not all(type(value) in _SCALARS for value in values):
        raise ModelFileError("an array of objects holds what is no label")
    check_hash_collisions(values)
    made = np.empty(len(values), object)
    made[:] = values
    return made


def _checked_index(value: Any, end: int) -> int:
    if type(value) is not int or not 0 <= value < end:
        raise ModelFileError(f"it counts {short_repr(value)} where there are {end:,}")
    return value


def _set_attribute(instance: Any, name: Any, value: Any) -> None:
    # On this instance only, and only what is no part of its class: a slot, or an entry of its dict.
    if not isinstance(name, str) or (name.startswith("__") and name.endswith("__")):
        raise ModelFileError(f"{short_repr(name)} is no attribute that is saved")
    of_class = getattr_static(type(instance), name, None)
    if isinstance(of_class, types.MemberDescriptorType):
        of_class.__set__(instance, value)
    elif isinstance(of_class, types.FunctionType | property | staticmethod | classmethod | types.GetSetDescriptorType):
        raise ModelFileError(f"{short_repr(name)} is a method of {type(instance).__name__}, and no attribute that is saved")
    else:
        vars(instance)[name] = value
