"""Compiles and loads the exported C of a program, so that tests can compare it with the program."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.edge.predictor import Predictor
from streamsvm.edge.program import ExportError, Name, Program
from streamsvm.export.c.writer import write_c

_NAME = "model"
_COMPILERS = "cc", "gcc", "clang"
_FLAGS = "-std=c99", "-O2", "-shared", "-fPIC"

# Functions for many rows, because a call from Python takes longer than a prediction.
_BATCH_FUNCTIONS = """
#include "model.h"
void rows_predict(const float *x, long n, {kind} *out)
{{
    long i;
    for (i = 0; i < n; i++) out[i] = model_predict(x + i * MODEL_FEATURES);
}}
void rows_decision(const float *x, long n, float *out)
{{
    long i;
    for (i = 0; i < n; i++) model_decision(x + i * MODEL_FEATURES, out + i * MODEL_OUTPUTS);
}}
"""
_BATCH_PROBABILITIES = """
void rows_probabilities(const float *x, long n, float *out)
{
    long i;
    for (i = 0; i < n; i++) model_probabilities(x + i * MODEL_FEATURES, out + i * MODEL_LABELS);
}
"""


class CModel:
    """The exported C of a program, compiled and loaded on this computer.

    ``flags`` are added to those for C99, -O2 and a shared library. ``library`` is the loaded library.
    """

    def __init__(
        self,
        program: Program,
        *,
        compiler: str | None = None,
        flags: Sequence[str] = (),
        bits: int = 32,
    ) -> None:
        compiler = compiler or next((name for name in _COMPILERS if shutil.which(name)), None)
        if compiler is None or shutil.which(compiler) is None:
            raise ExportError(
                f"there is no C compiler {compiler or 'cc, gcc or clang'}: install one (Debian: apt-get install gcc)"
            )
        answer = program.answer
        self.kind: str = answer.kind
        self.labels: list[Name] = list(answer.labels)
        self._outputs, self._features = program.widths[answer.decision], program.widths[0]
        self._label_array = Predictor(program)._label_array
        dtype = np.dtype(np.intc) if answer.kind == "class" else np.dtype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            files = write_c(program, folder, _NAME, bits=bits)
            self.table_bytes: int = files.table_bytes
            self.stack_bytes: int = files.stack_bytes
            rows = _BATCH_FUNCTIONS.format(kind="int" if dtype.kind == "i" else "float")
            Path(folder, "rows.c").write_text(rows + _BATCH_PROBABILITIES * (answer.calibration is not None))
            _compile_source([compiler, *_FLAGS, *flags, "-o", "model.so", "model.c", "rows.c"], folder)
            self.library: ctypes.CDLL = ctypes.CDLL(str(Path(folder, "model.so")))
        self._dtype = dtype

    def predict_many(self, X: Any) -> np.ndarray:
        """Predict many rows, [n, features] that convert to float32: labels, or numbers or anomaly scores, float32."""
        rows = self._check_rows(X)
        out = np.empty(len(rows), self._dtype)
        self.library.rows_predict(*_to_pointers(rows, out))
        return self._label_array[out] if self.kind == "class" else out

    def decision_function_many(self, X: Any) -> np.ndarray:
        """Return the decision values of many rows, float32 [n] or [n, outputs]."""
        rows = self._check_rows(X)
        out = np.empty((len(rows), self._outputs), np.float32)
        self.library.rows_decision(*_to_pointers(rows, out))
        return out[:, 0] if self._outputs == 1 else out

    def predict_proba_many(self, X: Any) -> np.ndarray:
        """Return the probabilities of the labels of many rows, float32 [n, labels]; the model must have probabilities."""
        rows = self._check_rows(X)
        out = np.empty((len(rows), len(self.labels)), np.float32)
        self.library.rows_probabilities(*_to_pointers(rows, out))
        return out

    def _check_rows(self, X: Any) -> np.ndarray:
        with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and so missing
            rows = np.ascontiguousarray(X, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self._features:
            raise ValueError(f"X has the shape {rows.shape}, not (rows, {self._features})")
        return rows


def _to_pointers(rows: np.ndarray, out: np.ndarray) -> tuple[Any, ...]:
    return ctypes.c_void_p(rows.ctypes.data), ctypes.c_long(len(rows)), ctypes.c_void_p(out.ctypes.data)


def _compile_source(command: list[str], folder: str) -> None:
    try:
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ExportError(f"{command[0]} could not be started: {error.strerror}") from error
    if process.returncode:
        raise ExportError(f"{' '.join(command)} failed: {process.stderr.strip()[:2000]}")
