"""Serialises a graph of objects as JSON records, and arrays that the records reference by number.

Each mutable object (a list, a dict, an instance, an array) is a record of its own, which values reference by its number, so that
shared and circular references are preserved. The record of an instance contains the name of its class, from the allowlist in
`codecs`, and its attributes. The reader creates an empty instance and sets the attributes. It runs no constructors except those
of the few types in `codecs`, and ``__setstate__`` of streamsvm's classes, which checks their state. docs/saved-files.md lists all
kinds of values and records.
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
from streamsvm.files.river_state import check_nesting

_MAX_TUPLE_DEPTH = 100
_ELEMENT_TYPES = frozenset({type(None), bool, int, float, str})  # of object arrays: they contain no references
_JSON_TYPES = frozenset({type(None), bool, str})  # every value of these types is itself in JSON
_TAGGED_TYPES = frozenset({dict, list})  # JSON types of values that have to be decoded
_MAX_CODE_POINT = 0x10FFFF
_INT_LIMIT = 2**63  # larger ones are written in hexadecimal, because many JSON parsers do not read them
_SCALAR_NAMES = {dtype.type: name for name, dtype in DTYPES.items()}
_DICTS: dict[type, str] = {dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter", defaultdict: "defaultdict"}
#: Attributes that river's pipelines compute from their steps. They are not saved, but computed again.
_PIPELINE_CACHE = frozenset({"_plan", "_inference_transformers", "_last_step_cached", "_last_step_params"})
_EMPTY_CONTAINERS: dict[str, Any] = {"list": list, "set": set, **{kind: cls for cls, kind in _DICTS.items()}}


# Writing -----------------------------------------------------------------------------------------------------------------------


def write_tree(obj: Any, trusted: bool = False) -> tuple[bytes, list[np.ndarray]]:
    """Serialise any supported Python object, such as a model, to JSON bytes and a list of numpy arrays, which the JSON references
    by their index. Equal objects give equal bytes. Only classes and functions on the allowlist of `codecs` may occur in it,
    unless the file is to be read as ``trusted``.

    If ``trusted``, objects with their own pickling methods are pickled. Raises ModelFileError for unsupported types.
    """
    writer = _TreeWriter(trusted)
    return writer.write(obj), writer.arrays


class _TreeWriter:
    """Collects the records and arrays of an object."""

    def __init__(self, trusted: bool) -> None:
        self.arrays: list[np.ndarray] = []
        self._trusted = trusted
        self._record_numbers: dict[int, int] = {}  # by the id of the object
        self._objects: list[Any] = []  # by record number; kept alive, so that no id is used twice

    def write(self, obj: Any) -> bytes:
        """Serialise an object to JSON bytes: a list ``records`` that describes each mutable object in it, and the value ``root``
        of the object itself. Numpy arrays are not part of the JSON, but are appended to this writer's list ``arrays``.
        """
        root = self._encode_value(obj)
        records = [self._make_record(referenced) for referenced in self._objects]  # _make_record appends to the list
        return json.dumps({"records": records, "root": root}, separators=(",", ":")).encode()

    def _encode_value(self, obj: Any, depth: int = 0) -> Any:
        """Convert a Python object to a JSON value. None, bools, texts and most numbers stay unchanged. Other immutable objects
        become a dict of type tag and content; mutable ones become ``{"ref": n}``, where n is the number of their record.
        ``depth`` counts the tuples around the object, and is limited.
        """
        kind = type(obj)
        if obj is None or kind is bool or kind is str:
            return obj
        if kind is int:
            return obj if abs(obj) < _INT_LIMIT else {"int": hex(obj)}
        if kind is float:
            return obj if math.isfinite(obj) else {"float": str(obj)}
        if kind is np.str_:  # river has such feature names
            return obj.item()
        if depth > _MAX_TUPLE_DEPTH:
            raise ModelFileError(f"tuples are nested more than {_MAX_TUPLE_DEPTH} deep")
        if kind is tuple:
            return {"tuple": self._encode_values(obj, depth)}
        if kind is bytes:
            return {"bytes": self._add_array(np.frombuffer(obj, np.uint8))}
        if kind is frozenset:
            return {"frozenset": self._encode_sorted(obj, depth)}
        if kind in _SCALAR_NAMES:
            return {"scalar": [_SCALAR_NAMES[kind], self._encode_value(obj.item())]}
        if isinstance(obj, type):
            return {"class": self._check_name(obj)}
        if isinstance(obj, tuple):
            if obj != tuple(obj) or not hasattr(kind, "_fields"):
                raise ModelFileError(f"{get_stored_name(kind)} is a subclass of tuple, but not a NamedTuple")
            return {"namedtuple": [self._check_name(kind), self._encode_values(obj, depth)]}
        if isinstance(obj, types.MethodType) or (isinstance(obj, types.BuiltinMethodType) and _is_bound(obj)):
            if obj.__name__ not in LISTED_METHODS and not self._trusted:
                raise ModelFileError(
                    f"it contains the method {obj.__name__} of a {type(obj.__self__).__name__}, which no model of river or "
                    f"streamsvm needs. {TRUST_ADVICE}"
                )
            return {"method": [self._encode_value(obj.__self__, depth + 1), obj.__name__]}
        if isinstance(obj, types.FunctionType | types.BuiltinFunctionType | types.MethodDescriptorType):
            return {"function": self._check_name(obj, find_function)}
        codec = CODECS_BY_TYPE.get(kind)
        if codec is not None and not codec.shared:
            return {"codec": [codec.kind, self._encode_value(codec.to_parts(obj), depth + 1)]}
        return {"ref": self._get_record_number(obj)}

    def _encode_values(self, objects: Iterable[Any], depth: int = 0) -> list[Any]:
        """Convert Python objects to JSON values, as `_encode_value` does for one. ``depth`` counts tuples around them."""
        values = list(objects)
        return values if _are_plain_json(values) else [self._encode_value(obj, depth + 1) for obj in values]

    def _encode_sorted(self, members: Iterable[Any], depth: int = 0) -> list[Any]:
        """Convert the members of a set to a list of JSON values, sorted by their JSON, so that equal sets give equal bytes.
        ``depth`` is the number of tuples around the set.
        """
        return self._encode_values(sorted(members, key=lambda member: write_tree(member, self._trusted)[0]), depth)

    def _get_record_number(self, obj: Any) -> int:
        """Return the index of a mutable object in the file's list of records. At the first call for an object, the next free
        index is assigned to it.
        """
        number = self._record_numbers.setdefault(id(obj), len(self._objects))
        if number == len(self._objects):
            self._objects.append(obj)
        return number

    def _add_array(self, array: np.ndarray) -> int:
        """Append a numpy array to the arrays of the file, and return its index, which stands for the array in the JSON."""
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _check_name(self, obj: Any, find: Callable[[str, bool], Any] = find_class) -> str:
        """Return the name that represents a class or function in a file, such as ``river.metrics:F1``. Raises ModelFileError if
        reading would fail: if the function ``find`` does not return the same object for this name, for example for a lambda.
        """
        name = get_stored_name(obj)
        if "<" in name or find(name, self._trusted) is not obj:
            raise ModelFileError(
                f"{name} is not found again by its name: define your own classes and functions at the top of a module, not as a "
                "lambda or inside a function"
            )
        return name

    def _make_record(self, obj: Any) -> list[Any]:
        """Return the JSON record that describes a mutable object: a list of its kind, such as ``"dict"``, and its contents."""
        kind = type(obj)
        if kind is list:
            return ["list", self._encode_values(obj)]
        if kind in _DICTS:
            pairs = [self._encode_values(pair) for pair in obj.items()]
            return [_DICTS[kind], pairs, *([self._encode_value(obj.default_factory)] if kind is defaultdict else [])]
        if kind is set:
            return ["set", self._encode_sorted(obj)]
        if kind is deque:
            return ["deque", self._encode_values(obj), obj.maxlen]
        if kind is bytearray:
            return ["bytearray", self._add_array(np.frombuffer(bytes(obj), np.uint8))]
        if kind is np.ndarray:
            return self._make_array_record(obj)
        codec = CODECS_BY_TYPE.get(kind)
        if codec is not None:
            return ["codec", codec.kind, self._encode_value(codec.to_parts(obj))]
        return self._make_instance_record(obj)

    def _make_array_record(self, array: np.ndarray) -> list[Any]:
        """Return the JSON record for a numpy array of numbers, strings or plain Python objects. Numbers and strings are stored in
        the file's list of arrays, and the record has their index. Raises ModelFileError for other dtypes.
        """
        if array.dtype.kind == "U" and array.dtype.itemsize:
            codes = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).reshape(-1).view("<u4")
            return ["string_array", self._add_array(codes.reshape(*array.shape, array.dtype.itemsize // 4))]
        if array.dtype == object and array.ndim == 1 and all(type(value) in _ELEMENT_TYPES for value in array):
            return ["object_array", self._encode_values(array)]
        if array.dtype.newbyteorder("<") not in DTYPES.values():
            raise ModelFileError(f"an array of {array.dtype} cannot be saved: numbers and bools of up to 8 bytes can, and texts")
        # Keep the memory order, because the rounding of sums depends on it.
        columns_first = array.flags.f_contiguous and not array.flags.c_contiguous
        return ["array", self._add_array(np.ascontiguousarray(array.T if columns_first else array)), columns_first]

    def _make_instance_record(self, obj: Any) -> list[Any]:
        """Return the JSON record for an instance of a class: the class's name and the attributes, or a pickle if the class has
        its own pickling methods. Raises ModelFileError if a pickle is needed but the file is not trusted, or if the class cannot
        be saved.
        """
        cls = type(obj)
        if _has_pickling_methods(cls):
            if not self._trusted:
                raise ModelFileError(f"it contains a {get_stored_name(cls)}, which has its own pickling methods. {TRUST_ADVICE}")
            try:
                return ["pickle", self._add_array(np.frombuffer(pickle.dumps(obj, protocol=5), np.uint8))]
            except Exception as error:  # the user's own classes can raise anything
                raise ModelFileError(f"{get_stored_name(cls)} cannot be pickled ({type(error).__name__}: {error})") from error
        name = self._check_name(cls)
        state = obj.__getstate__()
        if _checks_state(cls):
            return ["state", name, self._encode_value(state)]
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        saved = {**(attributes or {}), **(slots or {})}
        if isinstance(obj, compose.Pipeline):
            saved = {key: value for key, value in saved.items() if key not in _PIPELINE_CACHE}
        return ["instance", name, [[key, self._encode_value(value)] for key, value in saved.items()]]


def _are_plain_json(values: list[Any]) -> bool:
    """Return whether JSON can hold all ``values`` without conversion: only None, bools and strings, or only small ints, or only
    finite floats. It is a quick test for long lists; for a mixture of these types, it may return False.
    """
    kinds = set(map(type, values))
    if kinds == {int}:
        return max(values) < _INT_LIMIT and min(values) > -_INT_LIMIT
    return kinds <= _JSON_TYPES or (kinds == {float} and all(map(math.isfinite, values)))


def _is_bound(function: Any) -> bool:
    """Return whether a built-in function is a method bound to an object (``[].append``), not one of a module (``math.exp``)."""
    return function.__self__ is not None and not isinstance(function.__self__, types.ModuleType)


def _checks_state(cls: type) -> bool:
    """Return whether ``cls`` is a class of streamsvm that restores its instances by a method ``__setstate__``, which validates
    the state from a file.
    """
    return cls.__module__.startswith("streamsvm.") and hasattr(cls, "__setstate__")


def _has_pickling_methods(cls: Any) -> bool:
    """Return whether an instance of ``cls`` cannot be restored from its attributes alone: the class defines pickling methods such
    as ``__reduce__``, or is a subclass of dict, list or set.
    """
    signs = [cls.__reduce__ is not object.__reduce__, cls.__reduce_ex__ is not object.__reduce_ex__]
    signs += [issubclass(cls, list | dict | set), hasattr(cls, "__getnewargs__"), hasattr(cls, "__getnewargs_ex__")]
    if cls.__module__.partition(".")[0] not in ("streamsvm", "river"):
        signs += [cls.__getstate__ is not object.__getstate__, hasattr(cls, "__setstate__")]
    return any(signs)


# Reading -----------------------------------------------------------------------------------------------------------------------


def read_tree(text: bytes, arrays: Sequence[np.ndarray], trusted: bool = False) -> Any:
    """Deserialise the object that `write_tree` has turned into JSON bytes (``text``) and a list of numpy arrays. Only classes and
    functions on the allowlist of `codecs` are loaded, unless the caller declares the file ``trusted``.

    If ``trusted``, pickles are loaded, too, which can run any code. Raises ModelFileError if the JSON and arrays do not fit,
    or reference another class or function. Further errors may come from ``__setstate__`` of streamsvm's classes.
    """
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"its records are not JSON ({error})") from error
    try:
        check_sharing(tree["records"], tree["root"], arrays)
        return _TreeReader(tree["records"], arrays, trusted).read(tree["root"])
    except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError) as error:
        raise ModelFileError(f"its records are inconsistent ({type(error).__name__}: {error})") from error


class _TreeReader:
    """Creates the objects of all records."""

    def __init__(self, records: list[Any], arrays: Sequence[np.ndarray], trusted: bool) -> None:
        self._records, self._arrays, self._trusted = records, arrays, trusted
        self._objects: dict[int, Any] = {}  # by record number
        self._used_arrays: set[int] = set()  # their numbers

    def read(self, root: Any) -> Any:
        """Create the objects that the file's JSON records describe, and return the one for the JSON value ``root``. All objects
        are first created empty and then filled, so that they can reference each other.
        """
        # Create all objects empty, so that they can reference each other, and then fill them from last to first. The contents of
        # a record come after it, so that keys are complete when they are hashed, and states when they are checked.
        for number in range(len(self._records)):
            self._create_object(number)
        for number in range(len(self._records) - 1, -1, -1):
            self._fill_object(self._objects[number], *self._records[number])
        for obj in self._objects.values():
            if isinstance(obj, compose.Pipeline):
                obj._build_plan()
            check_nesting(obj)
        return self._decode_value(root)

    def _create_object(self, number: int) -> Any:
        """Return the Python object that the JSON record with this number describes. The first call creates it, without contents
        that may reference other objects; `_fill_object` adds these later. Raises ModelFileError if the kind of the record is
        unknown or not allowed.
        """
        if number in self._objects:
            return self._objects[number]
        kind, *content = self._records[number]
        if kind in _EMPTY_CONTAINERS:
            obj = _EMPTY_CONTAINERS[kind]()
        elif kind == "deque":
            obj = deque(maxlen=None if content[1] is None else _check_index(content[1], 2**62))
        elif kind == "bytearray":
            obj = bytearray(self._read_bytes(content[0]))
        elif kind == "array":
            obj = self._take_array(content[0]).copy()
            obj = obj.T if content[1] is True else obj
        elif kind == "string_array":
            obj = _make_string_array(self._take_array(content[0]))
        elif kind == "object_array":
            obj = _make_object_array(self._decode_values(content[0]))
        elif kind in ("instance", "state"):
            obj = object.__new__(find_class(content[0], self._trusted))
        elif kind == "codec":
            self._objects[number] = None  # its parts cannot contain the object itself
            obj = CODECS_BY_KIND[content[0]].from_parts(self._decode_value(content[1]))
        elif kind == "pickle" and self._trusted:
            obj = pickle.loads(self._read_bytes(content[0]))  # noqa: S301 - trusted
        elif kind == "pickle":
            raise ModelFileError(f"it contains an object that has its own pickling methods. {TRUST_ADVICE}")
        else:
            raise ModelFileError(f"it contains a record of unknown kind {short_repr(kind)}")
        self._objects[number] = obj
        return obj

    def _fill_object(self, obj: Any, kind: str, *content: Any) -> None:
        """Add the contents of a JSON record to ``obj``, an empty object that was created for this record: list or dict items, set
        members, or instance attributes. ``kind`` is the first item of the record (the type of object), and ``content`` the
        others.
        """
        if kind in ("list", "deque"):
            obj.extend(self._decode_values(content[0]))
        elif kind == "set":
            obj.update(self._decode_members(content[0]))
        elif kind in _EMPTY_CONTAINERS:  # a dict
            pairs = [(self._decode_value(key), self._decode_value(value)) for key, value in content[0]]
            check_hash_collisions(key for key, _ in pairs)
            for key, value in pairs:
                obj[key] = value
            if kind == "defaultdict":
                factory = self._decode_value(content[1])
                if factory is not None and not callable(factory):
                    raise ModelFileError(f"it contains {short_repr(factory)} in place of a function")
                obj.default_factory = factory
        elif kind == "state":
            if not _checks_state(type(obj)):
                raise ModelFileError(f"it contains a state of {content[0]}, which does not check it")
            obj.__setstate__(self._decode_value(content[1]))
        elif kind == "instance":
            cls = type(obj)
            if _checks_state(cls) or _has_pickling_methods(cls):
                raise ModelFileError(f"it contains attributes of {content[0]}, which is saved in another way")
            for name, value in content[1]:
                _set_attribute(obj, name, self._decode_value(value))

    def _decode_value(self, value: Any) -> Any:
        """Convert a JSON value to the Python object that it stands for: itself, or for a dict of a type tag and a content, an
        object of this type. Raises ModelFileError if the tag is unknown.
        """
        if not isinstance(value, dict):
            if isinstance(value, list):
                raise ModelFileError("it contains a list outside a record")
            return value
        ((tag, content),) = value.items()
        if tag == "ref":
            number = _check_index(content, len(self._records))
            return self._objects[number] if number in self._objects else self._create_object(number)
        if tag == "float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content]
        if tag == "int":
            return int(content, 16)
        if tag == "tuple":
            return tuple(self._decode_values(content))
        if tag == "bytes":
            return self._read_bytes(content)
        if tag == "frozenset":
            return frozenset(self._decode_members(content))
        if tag == "scalar":
            return self._decode_scalar(*content)
        if tag == "class":
            return find_class(content, self._trusted)
        if tag == "namedtuple":
            cls = find_class(content[0], self._trusted)
            if not issubclass(cls, tuple) or len(content[1]) != len(cls._fields):  # type: ignore[attr-defined]
                raise ModelFileError(f"{content[0]} is not a NamedTuple with {len(content[1])} fields")
            return tuple.__new__(cls, self._decode_values(content[1]))
        if tag == "function":
            return find_function(content, self._trusted)
        if tag == "method":
            return self._decode_method(*content)
        if tag == "codec":
            return CODECS_BY_KIND[content[0]].from_parts(self._decode_value(content[1]))
        raise ModelFileError(f"it contains a value of unknown kind {short_repr(tag)}")

    def _decode_values(self, values: list[Any]) -> list[Any]:
        """Convert a list of JSON values to the Python objects that they stand for, as `_decode_value` does for one."""
        if _TAGGED_TYPES.isdisjoint(map(type, values)):
            return list(values)
        return [self._decode_value(value) for value in values]

    def _decode_members(self, values: list[Any]) -> list[Any]:
        """Convert the JSON values of a set's members to Python objects. Raises ModelFileError if more than 100 of them have the
        same hash, because building the set would take too long.
        """
        members = self._decode_values(values)
        check_hash_collisions(members)
        return members

    def _decode_scalar(self, dtype: str, number: Any) -> Any:
        """Return a numpy scalar with the dtype named ``dtype``, such as ``"F32"``, from the JSON value of its number. Raises
        ModelFileError if that is not a number.
        """
        value = self._decode_value(number)
        if type(value) not in (bool, int, float, complex):  # numpy accepts more, and returns arrays for it
            raise ModelFileError(f"it contains {short_repr(value)} in place of a number")
        return DTYPES[dtype].type(value)

    def _decode_method(self, instance: Any, name: str) -> Any:
        """Return the method ``name`` bound to an object, which is decoded from the JSON value ``instance``. Raises ModelFileError
        unless the method's name is on the allowlist of `codecs` or the file is trusted.
        """
        if name not in LISTED_METHODS and not self._trusted:
            raise ModelFileError(
                f"it names the method {short_repr(name)}, which is not a method of a model of streamsvm or river. {TRUST_ADVICE}"
            )
        owner = self._decode_value(instance)
        method = getattr_static(type(owner), name)  # the class's own, even if the instance has an attribute of this name
        if not isinstance(method, types.FunctionType | types.MethodDescriptorType | staticmethod | classmethod):
            raise ModelFileError(f"{name} of a {type(owner).__name__} is not a method")
        return method.__get__(owner, type(owner))

    def _take_array(self, number: Any) -> np.ndarray:
        """Return the numpy array of the file with the index ``number``. Raises ModelFileError if the index is invalid, or was
        requested before, since each array may be referenced only once.
        """
        number = _check_index(number, len(self._arrays))
        if number in self._used_arrays:
            raise ModelFileError(f"it references array {number} twice")
        self._used_arrays.add(number)
        return self._arrays[number]

    def _read_bytes(self, number: Any) -> bytes:
        """Return the bytes that the file holds as a numpy array with the index ``number``. Raises ModelFileError if the array
        does not exist, or was used before.
        """
        return self._take_array(number).tobytes()


def _make_string_array(codes: np.ndarray) -> np.ndarray:
    """Return a numpy array of strings from their code points, uint32 [..., characters], or raise ModelFileError."""
    if codes.dtype != np.uint32 or codes.ndim < 1 or not codes.shape[-1] or (codes > _MAX_CODE_POINT).any():
        raise ModelFileError("it contains an invalid array of texts")
    return np.ascontiguousarray(codes).view(f"<U{codes.shape[-1]}").reshape(codes.shape[:-1]).copy()


def _make_object_array(values: list[Any]) -> np.ndarray:
    """Return a numpy array of dtype object with these values, which are labels from a file. Raises ModelFileError if one is not
    None, a bool, a number or a text.
    """
    if not all(type(value) in _ELEMENT_TYPES for value in values):
        raise ModelFileError("it contains an array of objects that cannot be labels")
    check_hash_collisions(values)
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _check_index(value: Any, size: int) -> int:
    """Return an index that was read from a file unchanged, or raise ModelFileError if it is not an int from 0 to ``size`` - 1."""
    if type(value) is not int or not 0 <= value < size:
        raise ModelFileError(f"it contains the index {short_repr(value)}, which must be below {size:,}")
    return value


def _set_attribute(instance: Any, name: Any, value: Any) -> None:
    """Set the attribute ``name`` of an instance to a value from a file, without calling the class's own code. Raises
    ModelFileError if the name is special (``__name__``), or belongs to a method or property of the class.
    """
    if not isinstance(name, str) or (name.startswith("__") and name.endswith("__")):
        raise ModelFileError(f"{short_repr(name)} is not the name of an attribute that can be saved")
    member = getattr_static(type(instance), name, None)
    if isinstance(member, types.MemberDescriptorType):
        member.__set__(instance, value)
    elif isinstance(member, types.FunctionType | property | staticmethod | classmethod | types.GetSetDescriptorType):
        raise ModelFileError(f"{short_repr(name)} is a method of {type(instance).__name__}, not an attribute that can be saved")
    else:
        vars(instance)[name] = value
