"""ONNX graphs in the making: nodes, constants and outputs, and the model's bytes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.edge.program import ExportError
from streamsvm.files.messages import missing_package_error

_OPSET, _IR_VERSION = 18, 9  # of 2023, which runtimes of today all read


def _import_onnx() -> Any:
    try:
        import onnx  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_package_error("an ONNX file", "onnx", "onnx", error) from error
    return onnx


class Graph:
    """Nodes, constants and outputs, in the order in which they are added. Values are called by their names.

    Where the input is float64 (``double``), constants are, too, until `narrow` makes them and what follows float32.
    """

    def __init__(self, double: bool = False) -> None:
        self._onnx = _import_onnx()
        self.nodes: list[Any] = []
        self.constants: dict[tuple[Any, ...], Any] = {}
        self.outputs: list[Any] = []
        self.real: type[np.floating[Any]] = np.float64 if double else np.float32
        self.input_type: int = self._onnx.TensorProto.DOUBLE if double else self._onnx.TensorProto.FLOAT

    def op(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        """Add a node, and return the name of its value. An input that is no name of a value is a `constant`."""
        name, taken = f"v{len(self.nodes)}", [given if isinstance(given, str) else self.constant(given) for given in inputs]
        self._add_node(kind, taken, [name], **attributes)
        return name

    def _add_node(self, kind: str, taken: Sequence[str], values: Sequence[str], **attributes: Any) -> None:
        # Tools that change graphs, such as converters to float16, call nodes by their names.
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, taken, values, name, **attributes))

    def least(self, value: str, count: int) -> str:
        """Add a node, and return the name of the places of the smallest numbers of each row, in the order of both."""
        names = f"v{len(self.nodes)}", f"v{len(self.nodes)}_places"
        taken = [value, self.constant(np.array([count]))]
        self._add_node("TopK", taken, names, axis=1, largest=0, sorted=1)
        return names[1]

    def constant(self, value: Any) -> str:
        """Return the name of a constant: int64 of integers, else float32, or float64 before `narrow`."""
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind in "iu" else self.real)
        return self._keep_array(array, (array.dtype.str, array.shape, array.tobytes()))

    def narrow(self, values: Sequence[str], used: Container[int]) -> list[str]:
        """Make constants float32 from here on, and float64 values with the numbers in ``used``; return the names of all."""
        if self.real is np.float32:
            return list(values)
        self.real, to = np.float32, self._onnx.TensorProto.FLOAT
        return [self.op("Cast", value, to=to) if number in used else value for number, value in enumerate(values)]

    def label(self, labels: Sequence[Any], number: str) -> None:
        """Make the labels with these numbers the output `label`: int64, bool or float64 if all labels are such, else text."""
        types = self._onnx.TensorProto
        kind, given = convert_labels(labels)
        array: np.ndarray = np.array(given, object if kind is str else kind)
        try:
            name = self._keep_array(array, ("labels",))
        except UnicodeEncodeError as error:
            raise ExportError(f"the label {error.object!r:.80} is no text that ONNX can hold: rename it") from None
        of = {bool: types.BOOL, int: types.INT64, float: types.DOUBLE, str: types.STRING}[kind]
        self.output("label", self.op("Gather", name, number), of=of)

    def _keep_array(self, array: np.ndarray, key: tuple[Any, ...]) -> str:
        if key not in self.constants:
            name = f"c{len(self.constants)}"
            self.constants[key] = self._onnx.numpy_helper.from_array(array, name)
        return str(self.constants[key].name)

    def output(self, name: str, value: str, columns: int | None = None, of: int | None = None) -> None:
        """Make a value an output of the model: [rows], or [rows, columns], of float32 or another type."""
        helper, shape = self._onnx.helper, ["rows"] if columns is None else ["rows", columns]
        self._add_node("Identity", [value], [name])
        self.outputs.append(helper.make_tensor_value_info(name, of or self._onnx.TensorProto.FLOAT, shape))


def convert_labels(labels: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return the type of the labels that a model gives, and the labels: int, bool or float if all are such, else text."""
    kinds = {type(label) for label in labels}
    kind = kinds.pop() if len(kinds) == 1 else str
    if kind not in (bool, int, float) or (kind is int and any(not -(2**63) <= label < 2**63 for label in labels)):
        kind = str
    given = [kind(label) for label in labels]
    if len(set(given)) < len(given):
        raise ExportError("two labels are one text in ONNX, such as 1 and '1': rename one")
    return kind, given


def model_bytes(graph: Graph, columns: int, facts: Mapping[str, str]) -> bytes:
    """Return a graph as the bytes of a model, checked by onnx's own checker."""
    onnx = _import_onnx()
    helper = onnx.helper
    given = helper.make_tensor_value_info("X", graph.input_type, ["rows", columns])
    body = helper.make_graph(graph.nodes, "streamsvm", [given], graph.outputs, list(graph.constants.values()))
    opsets = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(body, opset_imports=opsets, producer_name="streamsvm", ir_version=_IR_VERSION)
    helper.set_model_props(model, dict(facts))
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def measure_depth(left: np.ndarray) -> int:
    """Return the most steps from a root to a leaf, where children come behind their parents."""
    depths = np.zeros(len(left) + 1, np.int64)
    for node in np.flatnonzero(left >= 0).tolist():
        depths[left[node] : left[node] + 2] = depths[node] + 1
    return int(depths.max(initial=0))
