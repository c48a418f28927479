"""A graph of ONNX that is written node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.edge.program import ProgramError
from streamsvm.files.messages import missing_package

__all__ = ["Graph", "made"]

_OPSET, _ML_OPSET, _IR_VERSION = 18, 3, 9  # of 2023, which runtimes of today all read


def _onnx() -> Any:
    try:
        import onnx  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_package("an ONNX file", "onnx", "onnx", error) from error
    return onnx


class Graph:
    """Nodes, constants and outputs, in the order in which they are added. Values are called by their names."""

    def __init__(self) -> None:
        self._onnx = _onnx()
        self.nodes: list[Any] = []
        self.constants: dict[tuple[Any, ...], Any] = {}
        self.outputs: list[tuple[str, str, int]] = []
        self.label_type: int = self._onnx.TensorProto.INT64

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node, and return the name of its value."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        """Return the name of a constant: float32, but for integers, which are int64."""
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)
        return self._keep(array, (array.dtype.str, array.shape, array.tobytes()))

    def labels(self, labels: Sequence[Any]) -> str:
        """Return the name of the constant with the labels: int64, bool or float64 if all are such, else text."""
        types = self._onnx.TensorProto
        kinds = {type(label) for label in labels}
        kind = kinds.pop() if len(kinds) == 1 else str
        if kind is int and any(not -(2**63) <= label < 2**63 for label in labels):
            kind = str
        self.label_type = {bool: types.BOOL, int: types.INT64, float: types.DOUBLE}.get(kind, types.STRING)
        texts = self.label_type == types.STRING
        array: np.ndarray = np.array([str(label) for label in labels] if texts else labels, object if texts else kind)
        try:
            return self._keep(array, ("labels",))
        except UnicodeEncodeError as error:
            raise ProgramError(f"the label {error.object!r:.80} is no text that ONNX can hold: rename it") from None

    def _keep(self, array: np.ndarray, key: tuple[Any, ...]) -> str:
        if key not in self.constants:
            name = f"c{len(self.constants)}"
            self.constants[key] = self._onnx.numpy_helper.from_array(array, name)
        return str(self.constants[key].name)

    def output(self, name: str, value: str, dimensions: int) -> None:
        """Make a value an output of the model."""
        self.nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self.outputs.append((name, value, dimensions))


def made(graph: Graph, columns: int, facts: Mapping[str, str]) -> bytes:
    """Return a graph as the bytes of a model, checked by onnx's own checker."""
    onnx = _onnx()
    helper, types = onnx.helper, onnx.TensorProto
    outputs = [
        helper.make_tensor_value_info(name, graph.label_type if name == "label" else types.FLOAT, ["rows", None][:dimensions])
        for name, _, dimensions in graph.outputs
    ]
    given = helper.make_tensor_value_info("X", types.FLOAT, ["rows", columns])
    body = helper.make_graph(graph.nodes, "streamsvm", [given], outputs, list(graph.constants.values()))
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
    model = helper.make_model(body, opset_imports=opsets, producer_name="streamsvm", ir_version=_IR_VERSION)
    helper.set_model_props(model, dict(facts))
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data
