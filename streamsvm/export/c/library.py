"""C functions for sums over vectors, and the choice of the functions of ``runtime.c`` that a model needs.

Vectors are stored in groups of 16, feature by feature. So the innermost loop has a fixed length, and compilers turn it into SIMD
code without reordering a sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from streamsvm.edge.program import Program
from streamsvm.edge.step import dequantise_vectors
from streamsvm.export.c.text import RUNTIME, TEMPLATES, CSource, fill_template, format_float

#: Vectors in a group.
LANES = 16


def make_sum_function(kind: str, c_type: str) -> tuple[str, str]:
    """Return the name and the C text of a function that compares a row with 16 vectors of the type ``c_type``: for each, a sum
    over the features. ``kind`` is ``"squares"`` (squared differences), ``"products"`` (of row and vector), or ``"ways"``
    (weighted absolute differences, clipped).

    For integer vectors, ``squares`` takes x in their units, and the squares of the units as an argument, and ``ways`` takes the
    units as an argument.
    """
    name = f"{kind}_{c_type.removesuffix('_t')}"
    section = kind if kind == "products" else f"{kind}_{'float' if c_type == 'float' else 'whole'}"
    return name, TEMPLATES[section].replace("@NAME", name).replace("@T ", f"{c_type} ")


def group_vectors(vectors: np.ndarray) -> np.ndarray:
    """Arrange vectors [m, features] in the memory layout of the C functions: groups of 16 vectors, feature by feature within a
    group. Returns a flat array, float32, or integers of the same type.
    """
    groups = [vectors[start : start + LANES].T.ravel() for start in range(0, len(vectors), LANES)]
    grouped = np.concatenate(groups) if groups else np.zeros(0, vectors.dtype)
    return grouped.astype(np.float32) if grouped.dtype.kind == "f" else grouped


def collect_functions(used: Iterable[str]) -> list[str]:
    """Return the C texts of the functions named in ``used`` in the package's ``runtime.c``, and of those that they call."""
    needed = set(used)
    for name, called in _DEPENDENCIES.items():
        if name in needed:
            needed.update(called)
    return [text for name, text in RUNTIME.items() if name in needed]


_DEPENDENCIES = {"tanh": ("tanh_of", "fade"), "exp": ("fade",)}


# A Gaussian kernel with 8-bit vectors. |x - s|^2 = |x|^2 + |s|^2 - 2 x s, and x s is a sum of integer products after x is
# quantised: one or two instructions per feature, also on processors without a floating-point unit. |s|^2 is a 16-bit integer; the
# coefficients make up for its rounding. Vectors are stored in groups of four.
_GROUP = 4  # vectors in a group: their sums fit into the registers of a small processor
_MAX_UNROLLED_OUTPUTS = 12  # up to here, each output is a local variable
_LOG2_E = math.log2(math.e)
#: Largest gamma |s|^2 log2(e) for which float has the differences of such exponents to 1e-4.
_MAX_NORM_EXPONENT = 400.0
_ZERO_EXPONENT = 128.0  # kernel values below 2^-128 are 0


def can_use_eight_bits(program: Program, i: int) -> bool:
    """Return whether `write_eight_bit_kernel` supports step ``i`` of an exported model: it must be a Gaussian kernel with 8-bit
    vectors that are not too far from their center.
    """
    step = program.steps[i]
    if step.options["kind"] != "rbf" or step.arrays["vectors"].dtype != np.int8 or "center" not in step.arrays:
        return False
    return bool(_compute_norm_exponents(program, i).max(initial=0.0) <= _MAX_NORM_EXPONENT)


def _compute_norm_exponents(program: Program, i: int) -> np.ndarray:
    """Return gamma |s|^2 log2(e) for each vector s of a Gaussian kernel, step ``i`` of an exported model, float64 [m]. The
    vectors are relative to their center. The C code computes kernel values as powers of 2, and subtracts this number in the
    exponent.
    """
    step = program.steps[i]
    return np.square(dequantise_vectors(step) - step.arrays["center"]).sum(axis=1) * (step.options["gamma"] * _LOG2_E)


def write_eight_bit_kernel(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append a C function to ``source``, and its call, that computes a Gaussian kernel with 8-bit vectors (step ``i`` of an
    exported model) together with the weighted sum of its values (the next step). ``x`` and ``out`` are the C names of its input
    and output arrays.
    """
    step, reader = program.steps[i], program.steps[i + 1]
    vectors, gamma, exponents = step.arrays["vectors"], step.options["gamma"], _compute_norm_exponents(program, i)
    (m, features), outputs = vectors.shape, len(reader.arrays["biases"])
    groups = -(-m // _GROUP)
    exponent_unit = max(exponents.max(initial=0.0) / (2**15 - 1), 1e-30)
    norms = np.rint(exponents / exponent_unit).astype(np.int16)
    padded = np.zeros((groups * _GROUP, features), np.int8)
    padded[:m] = vectors
    grouped = padded.reshape(groups, _GROUP, features).transpose(0, 2, 1).ravel()
    weights = np.zeros((groups * _GROUP, outputs))
    weights[:m] = reader.arrays["weights"].T * np.exp2(norms * exponent_unit - exponents)[:, None]
    is_unrolled = outputs <= _MAX_UNROLLED_OUTPUTS
    if not is_unrolled:
        weights = weights.reshape(groups, _GROUP, outputs).transpose(0, 2, 1)
    max_length = math.sqrt(exponents.max(initial=0.0)) + math.sqrt(_ZERO_EXPONENT)  # all kernel values of longer rows are 0
    biases = source.add_table(f"biases{i + 1}", reader.arrays["biases"])
    values: dict[str, Any] = {
        "i": i,
        "vectors": source.add_table(f"vectors{i}", grouped, f"in groups of {_GROUP}, feature by feature"),
        "norms": source.add_table(f"norms{i}", np.pad(norms, (0, groups * _GROUP - m))),
        "weights": source.add_table(f"weights{i + 1}", weights.ravel()),
        "middle": source.add_table(f"middle{i}", step.arrays["center"]),
        "unit": source.add_table(f"unit{i}", np.where(vectors.any(axis=0), step.arrays["scale"], 0.0)),
        "features": features,
        "groups": groups,
        "limit": format_float(max_length * max_length / (gamma * _LOG2_E) if gamma else 3e38),
        "once": format_float(gamma * _LOG2_E),
        "twice": format_float(-2.0 * gamma * _LOG2_E),
        "norm": format_float(exponent_unit),
    }
    if is_unrolled:
        indices = range(outputs)
        values |= {"declared": "".join(f", o{k} = {biases}[{k}]" for k in indices), "k": "", "begin": "", "sum": ""}
        values |= {"use": " ".join(f"o{k} += *weights++ * value;" for k in indices)}
        values |= {"end": " ".join(f"out[{k}] = o{k};" for k in indices)}
    else:
        values |= {"declared": ", values[4]", "k": ", k", "use": "values[i] = value;", "end": ""}
        values["begin"] = f"for (k = 0; k < {outputs}; k++) out[k] = {biases}[k];"
        sums = "(weights[0] * values[0] + weights[1] * values[1]) + (weights[2] * values[2] + weights[3] * values[3])"
        values["sum"] = f"for (k = 0; k < {outputs}; k++, weights += 4) out[k] += {sums};"
    source.used |= {"away", "whole", "dots", "halved"}
    source.functions[f"kernel{i}"] = fill_template(TEMPLATES["eight_bit_kernel"], values)
    source.count_stack(features + 2 * _GROUP + min(outputs, _MAX_UNROLLED_OUTPUTS))
    source.body.append(f"@_kernel{i}({x}, {out});")
