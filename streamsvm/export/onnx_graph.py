"""Builder of ONNX graphs: adds nodes, constants and outputs, and serialises the graph as a model."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.edge.program import ExportError
from streamsvm.files.messages import missing_package_error

_OPSET, _IR_VERSION = 18, 9  # of 2023, which all current runtimes support


def _import_onnx() -> Any:
    """Import and return the optional package onnx. Raises MissingPackageError, a ModuleNotFoundError with the pip command that
    installs it, if that fails.
    """
    try:
        import onnx  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_package_error("an ONNX file", "onnx", "onnx", error) from error
    return onnx


class Graph:
    """An ONNX graph, to which nodes, constants and outputs are added in order. Values are referred to by their names.

    If the input is float64 (``double``), constants are float64, too, until `switch_to_float32`.
    """

    def __init__(self, double: bool = False) -> None:
        self._onnx = _import_onnx()
        self.nodes: list[Any] = []
        self.constants: dict[tuple[Any, ...], Any] = {}
        self.outputs: list[Any] = []
        self.real: type[np.floating[Any]] = np.float64 if double else np.float32
        self.input_type: int = self._onnx.TensorProto.DOUBLE if double else self._onnx.TensorProto.FLOAT

    def op(self, op_type: str, *inputs: Any, **attributes: Any) -> str:
        """Append a node with the ONNX operator ``op_type``, such as ``"MatMul"``, and these attributes to the graph. Each input
        is the name of an earlier output, or a number or array, which becomes a constant. Returns the name of the node's output.
        """
        output = f"v{len(self.nodes)}"
        names = [value if isinstance(value, str) else self.add_constant(value) for value in inputs]
        self._add_node(op_type, names, [output], **attributes)
        return output

    def _add_node(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        """Append a node with the ONNX operator ``op_type`` to the graph, under a unique name. ``inputs`` and ``outputs`` are
        names of values, and ``attributes`` those of the operator.
        """
        # Nodes have names, because tools that transform graphs, such as converters to float16, refer to nodes by name.
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(op_type, inputs, outputs, name, **attributes))

    def clip(self, x: str, bound: float) -> str:
        """Append an ONNX node that clips the value named ``x`` to the range from -bound to bound. Returns the result's name."""
        return self.op("Clip", x, -bound, bound)

    def add_one_hot(self, indices: str, outputs: int) -> str:
        """Append ONNX nodes that one-hot encode class indices along axis 1. ``indices`` is the name of a value [rows, 1,
        ...], and ``outputs`` the number of classes. Returns the name of the result [rows, outputs, ...].
        """
        shape = self.op("Shape", indices)
        ranks = self.op("Reshape", np.arange(outputs), np.array([1, outputs]))
        # Broadcasting compares [rows, 1] with [1, outputs], and [rows, 1, experts] with [1, outputs, 1].
        extra_dimensions = self.op("Sub", self.op("Size", shape), np.array(2))
        ones = self.op("Expand", np.array([1]), self.op("Reshape", extra_dimensions, np.array([1])))
        ranks = self.op("Reshape", ranks, self.op("Concat", np.array([1, outputs]), ones, axis=0))
        return self.op("Where", self.op("Equal", indices, ranks), 1.0, 0.0)

    def find_smallest(self, value: str, count: int) -> str:
        """Append an ONNX TopK node to the graph that finds the ``count`` smallest numbers of each row of ``value``. Returns the
        name of the output with their column indices, in ascending order of the numbers.
        """
        outputs = f"v{len(self.nodes)}", f"v{len(self.nodes)}_places"
        inputs = [value, self.add_constant(np.array([count]))]
        self._add_node("TopK", inputs, outputs, axis=1, largest=0, sorted=1)
        return outputs[1]

    def add_constant(self, value: Any) -> str:
        """Store a number or array as a constant of the graph, and return its name. Integers become int64; other numbers become
        float32, or float64 before the call of `switch_to_float32`.
        """
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind in "iu" else self.real)
        return self._add_initializer(array, (array.dtype.str, array.shape, array.tobytes()))

    def switch_to_float32(self, values: Sequence[str], used: Container[int]) -> list[str]:
        """Make this graph compute in float32 from here on, after a start in float64. Values that are still needed, those of the
        list ``values`` (names of outputs) whose indices are in ``used``, are cast. Returns the list with the new names of cast
        values.
        """
        if self.real is np.float32:
            return list(values)
        self.real, to = np.float32, self._onnx.TensorProto.FLOAT
        return [self.op("Cast", value, to=to) if number in used else value for number, value in enumerate(values)]

    def add_label_output(self, labels: Sequence[Any], index: str) -> None:
        """Append the model's output ``label`` to the graph. ``index`` is the name of the value with the predicted index of each
        row, and ``labels`` are all labels; they are converted to one ONNX type (`convert_labels`).
        """
        types = self._onnx.TensorProto
        label_type, converted = convert_labels(labels)
        array: np.ndarray = np.array(converted, object if label_type is str else label_type)
        try:
            name = self._add_initializer(array, ("labels",))
        except UnicodeEncodeError as error:
            raise ExportError(f"the label {error.object!r:.80} is not a text that ONNX can hold: rename it") from None
        onnx_type = {bool: types.BOOL, int: types.INT64, float: types.DOUBLE, str: types.STRING}[label_type]
        self.add_output("label", self.op("Gather", name, index), onnx_type=onnx_type)

    def _add_initializer(self, array: np.ndarray, key: tuple[Any, ...]) -> str:
        """Store an array as a constant of the graph, unless one with the same ``key``, which identifies its content, is stored
        already. Returns the name of the constant.
        """
        if key not in self.constants:
            name = f"c{len(self.constants)}"
            self.constants[key] = self._onnx.numpy_helper.from_array(array, name)
        return str(self.constants[key].name)

    def add_output(self, name: str, value: str, columns: int | None = None, onnx_type: int | None = None) -> None:
        """Make ``value``, the name of a node's output, an output of the whole model called ``name``, with the shape [rows], or
        [rows, columns] if ``columns`` is passed. Its type is float32, or ``onnx_type``, a number from onnx.TensorProto.
        """
        helper, shape = self._onnx.helper, ["rows"] if columns is None else ["rows", columns]
        self._add_node("Identity", [value], [name])
        self.outputs.append(helper.make_tensor_value_info(name, onnx_type or self._onnx.TensorProto.FLOAT, shape))


def to_float32(array: np.ndarray) -> np.ndarray:
    """Convert an array to float32. Numbers beyond its range are clipped to the largest finite float32."""
    return np.clip(array, -LARGEST_FLOAT32, LARGEST_FLOAT32).astype(np.float32)


def convert_labels(labels: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Convert labels to one type that ONNX supports. Returns this type (bool, int or float if all labels have it and fit, else
    str) and the list of converted labels.

    Raises ExportError if two labels become the same text.
    """
    types = {type(label) for label in labels}
    label_type = types.pop() if len(types) == 1 else str
    if label_type not in (bool, int, float) or (label_type is int and any(not -(2**63) <= label < 2**63 for label in labels)):
        label_type = str
    converted = [label_type(label) for label in labels]
    if len(set(converted)) < len(converted):
        raise ExportError("two labels are one text in ONNX, such as 1 and '1': rename one")
    return label_type, converted


def serialise_graph(graph: Graph, columns: int, metadata: Mapping[str, str]) -> bytes:
    """Serialise a graph to the bytes of an ONNX model with the input ``X`` [rows, columns] and text ``metadata``. The package
    onnx validates it before.
    """
    onnx = _import_onnx()
    helper = onnx.helper
    model_input = helper.make_tensor_value_info("X", graph.input_type, ["rows", columns])
    body = helper.make_graph(graph.nodes, "streamsvm", [model_input], graph.outputs, list(graph.constants.values()))
    opsets = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(body, opset_imports=opsets, producer_name="streamsvm", ir_version=_IR_VERSION)
    helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def measure_depth(left: np.ndarray) -> int:
    """Return the depth of the deepest of several decision trees. ``left``, int [nodes], has the index of each node's first child,
    which is behind the node and before its second child, or -1 for a leaf.
    """
    depths = np.zeros(len(left) + 1, np.int64)
    for node in np.flatnonzero(left >= 0).tolist():
        depths[left[node] : left[node] + 2] = depths[node] + 1
    return int(depths.max(initial=0))
