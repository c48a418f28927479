"""Functions of compiled code beside those that numba can compile, in LLVM's terms: calls by address, and blocks.

Numba compiles what is written in Python, too, but each helper that it compiles and inlines costs a new user a tenth of a second,
and a named tuple of twenty arrays, handed from function to function, a third of the time until the first row is learned.

This module is imported once numba is needed; `streamsvm.core.compiling.functions.Intrinsic` names what is here before.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.core.datamodel.models import StructModel
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_builtin, overload, register_model, type_callable
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import from_dtype

from streamsvm.core.compiling.signatures import NO_RESULT, to_numba_types


def make_caller(arguments: str, result: str) -> Any:
    """Return an intrinsic of an address and arguments: it calls what is at the address."""
    kinds = to_numba_types(arguments)
    returned = to_numba_types(result)[0] if result != NO_RESULT else types.none

    @intrinsic
    def call(typingctx: Any, address: Any, *values: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = ir.FunctionType(context.get_value_type(returned), [context.get_value_type(of) for of in kinds])
            given = [builder.extract_value(args[1], i) for i in range(len(kinds))]
            return builder.call(builder.inttoptr(args[0], function.as_pointer()), given)

        return returned(types.uint64, types.StarArgTuple(kinds)), codegen

    return call


@intrinsic
def to_pointer(typingctx: Any, address: Any) -> Any:
    """Return a pointer to an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.uintp), codegen


def implement_array_at(function: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Give compiled code a function of an address: it returns the array of a shape and dtype that is there."""

    @overload(function)
    def array(address):  # type: ignore[no-untyped-def] # numba compares signatures
        return lambda address: carray(to_pointer(np.uintp(address)), shape, dtype)

    return function


def _data_address(context: Any, builder: Any, block_type: Any, block: Any) -> Any:
    # The pointer to the bytes of a block.
    return context.make_array(block_type)(context, builder, block).data


def implement_record(function: Any) -> Any:
    """Make `streamsvm.core.memory.block.record` a function that compiled code can call, too."""

    @type_callable(function)
    def type_of_record(context: Any) -> Any:
        return lambda block, start, dtype: dtype.dtype

    @lower_builtin(function, types.Array, types.Integer, types.DType)
    def compiled_record(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = builder.gep(_data_address(context, builder, signature.args[0], args[0]), [args[1]])
        return builder.bitcast(address, context.get_value_type(signature.return_type))

    return function


def implement_views(function: Any, layout: Any, name: str) -> Any:
    """Make the function that opens the blocks of a layout one that compiled code can call, too: what it returns there has the
    table's arrays as its attributes. ``name`` is that of the table.
    """
    opened = BlockType(layout, name)

    @type_callable(function)
    def type_of_views(context: Any) -> Any:
        return lambda block: opened

    @lower_builtin(function, types.Array)
    def compiled_views(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = cgutils.create_struct_proxy(opened)(context, builder)
        value.data = _data_address(context, builder, signature.args[0], args[0])
        number = context.get_value_type(types.intp).as_pointer()
        for size in layout.sizes:
            address = builder.gep(value.data, [context.get_constant(types.intp, layout.header.fields[size][1])])
            setattr(value, size, builder.load(builder.bitcast(address, number)))
        return value._getvalue()

    return function


class BlockType(types.Type):  # type: ignore[misc]
    """The type of an open block in compiled code: where the block begins, and its sizes.

    An array is made where it is asked for. One that no line asks for costs nothing, not even time to compile it.
    """

    def __init__(self, layout: Any, name: str) -> None:
        self.layout = layout
        self.array_types: dict[str, Any] = {"header": types.Array(from_dtype(layout.header), 1, "C")} | {
            name: types.Array(from_dtype(np.dtype(array.dtype)), len(array.shape), "C") for name, array in layout.arrays.items()
        }
        # Types of one name are one type: another layout has another name.
        arrays = [(name, str(of), layout.arrays[name].shape) for name, of in self.array_types.items() if name != "header"]
        made_from = layout.start, layout.line, str(layout.header), arrays, sorted(layout.in_lines)
        super().__init__(f"BlockType({name}, {hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]})")


@register_model(BlockType)
class _OpenBlockModel(StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, opened: BlockType) -> None:
        super().__init__(manager, opened, [("data", types.voidptr), *((size, types.intp) for size in opened.layout.sizes)])


@infer_getattr
class _ArraysOfOpenBlock(AttributeTemplate):  # type: ignore[misc]
    key = BlockType

    def generic_resolve(self, opened: BlockType, name: str) -> Any:
        return opened.array_types.get(name)


def _as_it_is(builder: Any, address: Any) -> Any:
    # An address that LLVM does not take apart: it is a sum of a dozen products, and to try each way to add them up in each loop
    # took a fifth of all time to compile.
    return builder.call(builder.module.declare_intrinsic("llvm.strip.invariant.group", [address.type]), [address])


@lower_getattr_generic(BlockType)
def _compiled_array(context: Any, builder: Any, opened: BlockType, value: Any, asked: str) -> Any:
    def number(n: int) -> Any:
        return context.get_constant(types.intp, n)

    def product(numbers: list[Any]) -> Any:
        result = numbers[0]
        for factor in numbers[1:]:
            result = builder.mul(result, factor, flags=["nsw"])
        return result

    value = cgutils.create_struct_proxy(opened)(context, builder, value)
    at, shape = number(0), [number(1)]
    if asked != "header":
        at = number(opened.layout.start)
        for name, array in opened.layout.arrays.items():
            shape = [getattr(value, n) if isinstance(n, str) else number(n) for n in array.shape]
            if name == asked:
                break
            size = product([number(np.dtype(array.dtype).itemsize), *shape])
            if not opened.layout.in_lines & set(array.shape):
                size = builder.and_(builder.add(size, number(opened.layout.line - 1), flags=["nsw"]), number(-opened.layout.line))
            at = builder.add(at, size, flags=["nsw"])
    # Without a reference count, which would cost more than the work on a small model: the block outlives every call.
    array_type = opened.array_types[asked]
    array = context.make_array(array_type)(context, builder)
    itemsize = number(context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    strides = [product([itemsize, *shape[axis + 1 :]]) for axis in range(len(shape))]
    address = builder.bitcast(_as_it_is(builder, builder.gep(value.data, [at])), array.data.type)
    populate_array(array, address, shape, strides, itemsize, None)
    return array._getvalue()
