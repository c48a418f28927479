"""Functions in C for sums over vectors, and which of the fixed functions in ``runtime.c`` a model needs.

Vectors lie in groups of 16, feature by feature, so that the innermost loop has a fixed length and no sum is reordered:
compilers make SIMD code of it where there is any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from streamsvm.edge.program import Program
from streamsvm.edge.step import dequantise_vectors
from streamsvm.export.c.text import RUNTIME, TEMPLATES, CSource, fill_marks, number

#: Vectors of a group.
LANES = 16


def sums_function(kind: str, number: str) -> tuple[str, str]:
    """Return the name and the text of the function that sums over features: ``"squares"``, ``"products"`` or ``"ways"``.

    ``number`` is the type of the vectors. For squares of whole numbers x is given in their units, whose squares it takes. Ways
    are sizes of differences up to ``reach``, times relevance; for those from whole numbers it takes the units.
    """
    name = f"{kind}_{number.removesuffix('_t')}"
    section = kind if kind == "products" else f"{kind}_{'float' if number == 'float' else 'whole'}"
    return name, TEMPLATES[section].replace("@NAME", name).replace("@T ", f"{number} ")


def in_groups(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [m, features] as the functions of `sums_function` read them: floats, or whole numbers as they are."""
    groups = [vectors[begin : begin + LANES].T.ravel() for begin in range(0, len(vectors), LANES)]
    laid = np.concatenate(groups) if groups else np.zeros(0, vectors.dtype)
    return laid.astype(np.float32) if laid.dtype.kind == "f" else laid


def functions_for(used: Iterable[str]) -> list[str]:
    """Return the fixed functions of these names, and those that they need, in an order in which a compiler reads them."""
    needed = set(used)
    for name, others in _NEEDS.items():
        if name in needed:
            needed.update(others)
    return [text for name, text in RUNTIME.items() if name in needed]


_NEEDS = {"tanh": ("tanh_of", "fade"), "exp": ("fade",)}


# A Gaussian kernel with vectors of 8 bits: |x - s|^2 is |x|^2 + |s|^2 - 2 x s, and x s a sum of products of whole numbers, once x
# is turned into such: a multiplication is an instruction or two for a feature, also where a processor has no floating-point unit.
# |s|^2 is a whole number of 16 bits, and the coefficients make up for its rounding. Vectors lie in groups of four.
_GROUP = 4  # of vectors: as many sums fit into the registers of a small processor
_UNROLLED = 12  # outputs that have a variable each
_BITS = math.log2(math.e)
#: Of gamma |s|^2 log2(e), up to which float has the differences of such numbers to 1e-4.
_LONGEST = 400.0
_ZERO = 128.0  # kernel values of 2 to the minus so much are 0


def takes_eight_bits(program: Program, i: int) -> bool:
    """Return whether a kernel whose values one ``linear`` step sums is written by `eight_bits`."""
    step = program.steps[i]
    if step.options["kind"] != "rbf" or step.arrays["vectors"].dtype != np.int8 or "center" not in step.arrays:
        return False
    return bool(_norm_exponents(program, i).max(initial=0.0) <= _LONGEST)


def _norm_exponents(program: Program, i: int) -> np.ndarray:
    """Return the exponents of vectors by themselves, from the middle, to the base 2: gamma |s|^2 log2(e), float64 [m]."""
    step = program.steps[i]
    return np.square(dequantise_vectors(step) - step.arrays["center"]).sum(axis=1) * (step.options["gamma"] * _BITS)


def eight_bits(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Write a Gaussian kernel of vectors of 8 bits, and the ``linear`` step behind it: a function of their own."""
    step, reader = program.steps[i], program.steps[i + 1]
    vectors, gamma, norms = step.arrays["vectors"], step.options["gamma"], _norm_exponents(program, i)
    (m, features), outputs = vectors.shape, len(reader.arrays["biases"])
    groups = -(-m // _GROUP)
    unit = max(norms.max(initial=0.0) / (2**15 - 1), 1e-30)
    whole = np.rint(norms / unit).astype(np.int16)
    filled = np.zeros((groups * _GROUP, features), np.int8)
    filled[:m] = vectors
    laid = filled.reshape(groups, _GROUP, features).transpose(0, 2, 1).ravel()
    weights = np.zeros((groups * _GROUP, outputs))
    weights[:m] = reader.arrays["weights"].T * np.exp2(whole * unit - norms)[:, None]
    unrolled = outputs <= _UNROLLED
    if not unrolled:
        weights = weights.reshape(groups, _GROUP, outputs).transpose(0, 2, 1)
    longest = math.sqrt(norms.max(initial=0.0)) + math.sqrt(_ZERO)
    biases = source.keep(f"biases{i + 1}", reader.arrays["biases"])
    names: dict[str, Any] = {
        "i": i,
        "vectors": source.keep(f"vectors{i}", laid, f"in groups of {_GROUP}, feature by feature"),
        "norms": source.keep(f"norms{i}", np.pad(whole, (0, groups * _GROUP - m))),
        "weights": source.keep(f"weights{i + 1}", weights.ravel()),
        "middle": source.keep(f"middle{i}", step.arrays["center"]),
        "unit": source.keep(f"unit{i}", np.where(vectors.any(axis=0), step.arrays["scale"], 0.0)),
        "features": features,
        "groups": groups,
        "limit": number(longest * longest / (gamma * _BITS) if gamma else 3e38),
        "once": number(gamma * _BITS),
        "twice": number(-2.0 * gamma * _BITS),
        "norm": number(unit),
    }
    if unrolled:
        each = range(outputs)
        names |= {"declared": "".join(f", o{k} = {biases}[{k}]" for k in each), "k": "", "begin": "", "sum": ""}
        names |= {"use": " ".join(f"o{k} += *weights++ * value;" for k in each)}
        names |= {"end": " ".join(f"out[{k}] = o{k};" for k in each)}
    else:
        names |= {"declared": ", values[4]", "k": ", k", "use": "values[i] = value;", "end": ""}
        names["begin"] = f"for (k = 0; k < {outputs}; k++) out[k] = {biases}[k];"
        sums = "(weights[0] * values[0] + weights[1] * values[1]) + (weights[2] * values[2] + weights[3] * values[3])"
        names["sum"] = f"for (k = 0; k < {outputs}; k++, weights += 4) out[k] += {sums};"
    source.used |= {"away", "whole", "dots", "halved"}
    source.functions[f"kernel{i}"] = fill_marks(TEMPLATES["eight_bit_kernel"], names)
    source.takes(features + 2 * _GROUP + min(outputs, _UNROLLED))
    source.body.append(f"@_kernel{i}({x}, {out});")
