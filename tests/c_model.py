"""Source in C, compiled and loaded here, so that it can be compared with the model that it was written from."""

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

# Rows by one call: a call from Python takes longer than a prediction.
_ROWS = """
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
_PROBABILITIES = """
void rows_probabilities(const float *x, long n, float *out)
{
    long i;
    for (i = 0; i < n; i++) model_probabilities(x + i * MODEL_FEATURES, out + i * MODEL_LABELS);
}
"""


class CModel:
    """A program as C, compiled and loaded on this computer, so that it predicts as a device will.

    ``flags`` are further ones, on top of those for C99, -O2 and a shared library; ``library`` is the compiled one.
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
        number = np.dtype(np.intc) if answer.kind == "class" else np.dtype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            files = write_c(program, folder, _NAME, bits=bits)
            self.table_bytes: int = files.table_bytes
            self.stack_bytes: int = files.stack_bytes
            rows = _ROWS.format(kind="int" if number.kind == "i" else "float")
            Path(folder, "rows.c").write_text(rows + _PROBABILITIES * (answer.calibration is not None))
            _compile_source([compiler, *_FLAGS, *flags, "-o", "model.so", "model.c", "rows.c"], folder)
            self.library: ctypes.CDLL = ctypes.CDLL(str(Path(folder, "model.so")))
        self._number = number

    def predict_many(self, X: Any) -> np.ndarray:
        """Predict many rows, [n, features] that convert to float32: labels, or numbers or anomaly scores, float32."""
        rows = self._checked_rows(X)
        out = np.empty(len(rows), self._number)
        self.library.rows_predict(*_given_arrays(rows, out))
        return self._label_array[out] if self.kind == "class" else out

    def decision_function_many(self, X: Any) -> np.ndarray:
        """Return the decision values of many rows, float32 [n] or [n, outputs]."""
        rows = self._checked_rows(X)
        out = np.empty((len(rows), self._outputs), np.float32)
        self.library.rows_decision(*_given_arrays(rows, out))
        return out[:, 0] if self._outputs == 1 else out

    def predict_proba_many(self, X: Any) -> np.ndarray:
        """Return the probabilities of the labels of many rows, float32 [n, labels], of a model that has some."""
        rows = self._checked_rows(X)
        out = np.empty((len(rows), len(self.labels)), np.float32)
        self.library.rows_probabilities(*_given_arrays(rows, out))
        return out

    def _checked_rows(self, X: Any) -> np.ndarray:
        with np.errstate(over="ignore"):  # what float has not is infinite: missing
            rows = np.ascontiguousarray(X, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self._features:
            raise ValueError(f"X has the shape {rows.shape}, not (rows, {self._features})")
        return rows


def _given_arrays(rows: np.ndarray, out: np.ndarray) -> tuple[Any, ...]:
    return ctypes.c_void_p(rows.ctypes.data), ctypes.c_long(len(rows)), ctypes.c_void_p(out.ctypes.data)


def _compile_source(command: list[str], folder: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ExportError(f"{command[0]} could not be started: {error.strerror}") from error
    if done.returncode:
        raise ExportError(f"{' '.join(command)} failed: {done.stderr.strip()[:2000]}")
