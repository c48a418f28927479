"""Extensions of numba's code generation, written in terms of LLVM: calls by address, and views of blocks.

Numba can compile Python code for the same purpose, but each helper that it compiles and inlines costs a new user a tenth of a
second, and a NamedTuple of twenty arrays that is passed between functions a third of the time until the first row is learned.

This module is imported when numba is needed; until then, `streamsvm.core.compiling.functions.Intrinsic` takes its place.
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
    """Return a numba intrinsic ``call(address, *arguments)`` for compiled code, which calls the compiled function at a memory
    address. ``arguments`` and ``result`` are its types as text, such as ``"u1:1 f8"``.
    """
    argument_types = to_numba_types(arguments)
    return_type = to_numba_types(result)[0] if result != NO_RESULT else types.none

    @intrinsic
    def call(typingctx: Any, address: Any, *values: Any) -> Any:
        """Implement the intrinsic for numba: return its signature and the function that generates its LLVM code, for a call of
        the function at ``address`` with the tuple ``values``.
        """

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = ir.FunctionType(context.get_value_type(return_type), list(map(context.get_value_type, argument_types)))
            call_arguments = [builder.extract_value(args[1], i) for i in range(len(argument_types))]
            return builder.call(builder.inttoptr(args[0], function.as_pointer()), call_arguments)

        return return_type(types.uint64, types.StarArgTuple(argument_types)), codegen

    return call


@intrinsic
def to_pointer(typingctx: Any, address: Any) -> Any:
    """Numba intrinsic for compiled code: convert a memory address, an integer, to a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.uintp), codegen


def implement_array_at(function: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Register with numba how compiled code calls ``function(address)``: it returns the array of this ``shape`` and ``dtype`` at
    a memory address, without a copy. Returns ``function``.
    """

    @overload(function)
    def array(address):  # type: ignore[no-untyped-def] # numba compares signatures
        return lambda address: carray(to_pointer(np.uintp(address)), shape, dtype)

    return function


def _get_data_address(context: Any, builder: Any, block_type: Any, block: Any) -> Any:
    """Generate LLVM code for the address of the first byte of ``block``, the byte array that is a model's memory; return the LLVM
    value, a pointer.
    """
    return context.make_array(block_type)(context, builder, block).data


def implement_record(function: Any) -> Any:
    """Register with numba how compiled code calls ``function``, which is `view_record`: it returns the record of a dtype at an
    offset of a model's memory (a byte array), without a copy. Returns ``function``.
    """

    @type_callable(function)
    def type_of_record(context: Any) -> Any:
        return lambda block, start, dtype: dtype.dtype

    @lower_builtin(function, types.Array, types.Integer, types.DType)
    def compiled_record(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = builder.gep(_get_data_address(context, builder, signature.args[0], args[0]), [args[1]])
        return builder.bitcast(address, context.get_value_type(signature.return_type))

    return function


def implement_views(function: Any, layout: Any, name: str) -> Any:
    """Register with numba how compiled code calls ``function(block)``, which returns the arrays in a model's memory (a byte array
    with this ``layout``) as attributes of one object. ``name`` distinguishes the layout's types. Returns ``function``.

    It returns an open block, with the arrays of the layout's table ``name`` as attributes.
    """
    block_type = BlockType(layout, name)

    @type_callable(function)
    def type_of_views(context: Any) -> Any:
        return lambda block: block_type

    @lower_builtin(function, types.Array)
    def compiled_views(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = cgutils.create_struct_proxy(block_type)(context, builder)
        value.data = _get_data_address(context, builder, signature.args[0], args[0])
        number = context.get_value_type(types.intp).as_pointer()
        for size in layout.sizes:
            address = builder.gep(value.data, [context.get_constant(types.intp, layout.header.fields[size][1])])
            setattr(value, size, builder.load(builder.bitcast(address, number)))
        return value._getvalue()

    return function


class BlockType(types.Type):  # type: ignore[misc]
    """The numba type of an open block: its address and its sizes.

    An array is created where it is used; unused arrays cost nothing, not even compile time.
    """

    def __init__(self, layout: Any, name: str) -> None:
        self.layout = layout
        self.array_types: dict[str, Any] = {"header": types.Array(from_dtype(layout.header), 1, "C")} | {
            name: types.Array(from_dtype(np.dtype(array.dtype)), len(array.shape), "C") for name, array in layout.arrays.items()
        }
        # Numba identifies types by name, so that each layout needs its own.
        arrays = [(name, str(of), layout.arrays[name].shape) for name, of in self.array_types.items() if name != "header"]
        made_from = layout.start, layout.line, str(layout.header), arrays, sorted(layout.in_lines)
        super().__init__(f"BlockType({name}, {hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]})")


@register_model(BlockType)
class _BlockModel(StructModel):  # type: ignore[misc]
    """The representation of an open block in LLVM: a pointer and sizes."""

    def __init__(self, manager: Any, block_type: BlockType) -> None:
        super().__init__(
            manager, block_type, [("data", types.voidptr), *((size, types.intp) for size in block_type.layout.sizes)]
        )


@infer_getattr
class _BlockAttributes(AttributeTemplate):  # type: ignore[misc]
    """The types of the attributes of an open block."""

    key = BlockType

    def generic_resolve(self, block_type: BlockType, name: str) -> Any:
        return block_type.array_types.get(name)


def _hide_arithmetic(builder: Any, address: Any) -> Any:
    """Generate LLVM code that returns ``address`` unchanged, but hides from the optimiser how it was computed, which saves
    compile time.

    It is a sum of a dozen products; trying all ways to simplify these sums in each loop took a fifth of the compile time.
    """
    return builder.call(builder.module.declare_intrinsic("llvm.strip.invariant.group", [address.type]), [address])


@lower_getattr_generic(BlockType)
def _generate_array(context: Any, builder: Any, block_type: BlockType, value: Any, attribute: str) -> Any:
    """Generate LLVM code for ``views(block).attribute`` in compiled code: the array at its offset in a model's memory. ``value``
    is the LLVM value of the views: the memory's address, and the sizes of its arrays.
    """

    def number(n: int) -> Any:
        """Return the integer ``n`` as an LLVM constant of the size of a pointer."""
        return context.get_constant(types.intp, n)

    def product(numbers: list[Any]) -> Any:
        """Generate LLVM code for the product of integers, which are LLVM values and whose product never overflows; return its
        value.
        """
        result = numbers[0]
        for factor in numbers[1:]:
            result = builder.mul(result, factor, flags=["nsw"])
        return result

    value, layout = cgutils.create_struct_proxy(block_type)(context, builder, value), block_type.layout
    offset, shape = number(0), [number(1)]
    if attribute != "header":
        offset = number(layout.start)
        for name, array in layout.arrays.items():
            shape = [getattr(value, n) if isinstance(n, str) else number(n) for n in array.shape]
            if name == attribute:
                break
            size = product([number(np.dtype(array.dtype).itemsize), *shape])
            if not layout.in_lines & set(array.shape):
                size = builder.and_(builder.add(size, number(layout.line - 1), flags=["nsw"]), number(-layout.line))
            offset = builder.add(offset, size, flags=["nsw"])
    # No reference count, which would cost more than the work on a small model: the block outlives every call.
    array_type = block_type.array_types[attribute]
    array = context.make_array(array_type)(context, builder)
    itemsize = number(context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    strides = [product([itemsize, *shape[axis + 1 :]]) for axis in range(len(shape))]
    address = builder.bitcast(_hide_arithmetic(builder, builder.gep(value.data, [offset])), array.data.type)
    populate_array(array, address, shape, strides, itemsize, None)
    return array._getvalue()
