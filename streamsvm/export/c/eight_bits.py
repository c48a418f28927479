"""A Gaussian kernel and the sums of its values in C, with vectors of 8 bits: by products of whole numbers.

|x - s|^2 is |x|^2 + |s|^2 - 2 x s, and x s a sum of products of whole numbers, once x is turned into such: a multiplication is an
instruction or two for a feature, also where a processor has no floating-point unit. |s|^2 is a whole number of 16 bits, and the
coefficients make up for its rounding. Vectors lie in groups of four, feature by feature.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.edge.program import Program
from streamsvm.edge.step import vectors_of
from streamsvm.export.c.text import Source, number

_GROUP = 4  # of vectors: as many sums fit into the registers of a small processor
_UNROLLED = 12  # outputs that have a variable each
_BITS = math.log2(math.e)
#: Of gamma |s|^2 log2(e), up to which float has the differences of such numbers to 1e-4.
_LONGEST = 400.0
_ZERO = 128.0  # kernel values of 2 to the minus so much are 0

_AWAY = """
/* |x - middle|^2; the size of the sum of its products with the units goes to size. */
static float @_away(const float *x, const @UP_TABLE float *middle, const @UP_TABLE float *unit, int n, float *size)
{
    float sum = 0.0f, sizes = 0.0f;
    int j;
    for (j = 0; j < n; j++) {
        const float d = x[j] - middle[j], y = d * unit[j];
        sum += d * d;
        sizes += y < 0.0f ? -y : y;
    }
    *size = sizes;
    return sum;
}
"""

_WHOLE = """
/* Those products as whole numbers, times a factor, of which 128 times the sum is below 2^31; it returns the factor. */
static float @_whole(const float *x, const @UP_TABLE float *middle, const @UP_TABLE float *unit, int n, float size, int32_t *y)
{
    const float factor = size > 1e-30f ? 1.6e7f / size : 1.0f;
    int j;
    for (j = 0; j < n; j++) y[j] = (int32_t)((x[j] - middle[j]) * unit[j] * factor);
    return factor;
}
"""

_DOTS = """
/* Products of y and four vectors. */
static void @_dots(const int32_t *@UP_RESTRICT y, const @UP_TABLE int8_t *@UP_RESTRICT vectors, int n, int32_t *@UP_RESTRICT dots)
{
    int32_t a = 0, b = 0, c = 0, d = 0;
    int j;
#define @UP_STEP(k) { \\
        const int32_t by = y[k]; \\
        a += by * vectors[4 * k]; \\
        b += by * vectors[4 * k + 1]; \\
        c += by * vectors[4 * k + 2]; \\
        d += by * vectors[4 * k + 3]; \\
    }
    for (j = 0; j + 4 <= n; j += 4, y += 4, vectors += 16) { @UP_STEP(0) @UP_STEP(1) @UP_STEP(2) @UP_STEP(3) }
    for (; j < n; j++, y++, vectors += 4) @UP_STEP(0)
#undef @UP_STEP
    dots[0] = a;
    dots[1] = b;
    dots[2] = c;
    dots[3] = d;
}
"""

_HALVED = """
/* 2^-t for t >= 0; 0 where that is below 2^-126. */
static inline float @_halved(float t)
{
    union { int32_t i; float f; } power;
    int32_t n;
    if (!(t < 126.0f)) return 0.0f;
    n = (int32_t)t;
    t -= (float)n;
    power.f = 1.0f + t * (-0.69314351f + t * (0.24017712f + t * (-0.0552869f + t * (0.00919228f - t * 0.00093899f))));
    power.i -= n * 8388608;
    return power.f;
}
"""

_KERNEL = """
static void @_kernel$i$(const float *@UP_RESTRICT x, float *@UP_RESTRICT out)
{
    const @UP_TABLE int8_t *vectors = $vectors$;
    const @UP_TABLE int16_t *norms = $norms$;
    const @UP_TABLE float *weights = $weights$;
    int32_t y[$features$], dots[4];
    float size, factor, away = @_away(x, $middle$, $unit$, $features$, &size)$declared$;
    int group, i$k$;
    $begin$
    if (away < $limit$) { /* else all kernel values are 0 */
        factor = $twice$ / @_whole(x, $middle$, $unit$, $features$, size, y);
        away *= $once$;
        for (group = 0; group < $groups$; group++, vectors += 4 * $features$) {
            @_dots(y, vectors, $features$, dots);
            for (i = 0; i < 4; i++) {
                const float value = @_halved(away + $norm$ * (float)*norms++ + factor * (float)dots[i]);
                $use$
            }
            $sum$
        }
    }
    $end$
}
"""


def takes_eight_bits(program: Program, i: int) -> bool:
    """Return whether a kernel whose values one ``linear`` step sums is written by `eight_bits`."""
    step = program.steps[i]
    if step.options["kind"] != "rbf" or step.arrays["vectors"].dtype != np.int8 or "middle" not in step.arrays:
        return False
    return bool(_norm_exponents(program, i).max(initial=0.0) <= _LONGEST)


def _norm_exponents(program: Program, i: int) -> np.ndarray:
    """Return the exponents of vectors by themselves, from the middle, to the base 2: gamma |s|^2 log2(e), float64 [m]."""
    step = program.steps[i]
    return np.square(vectors_of(step) - step.arrays["middle"]).sum(axis=1) * (step.options["gamma"] * _BITS)


def eight_bits(source: Source, program: Program, i: int, x: str, out: str) -> None:
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
    names = {
        "i": str(i),
        "vectors": source.keep(f"vectors{i}", laid, f"in groups of {_GROUP}, feature by feature"),
        "norms": source.keep(f"norms{i}", np.pad(whole, (0, groups * _GROUP - m))),
        "weights": source.keep(f"weights{i + 1}", weights.ravel()),
        "middle": source.keep(f"middle{i}", step.arrays["middle"]),
        "unit": source.keep(f"unit{i}", np.where(vectors.any(axis=0), step.arrays["unit"], 0.0)),
        "features": str(features),
        "groups": str(groups),
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
    text = _KERNEL
    for name, value in names.items():
        text = text.replace(f"${name}$", value)
    for name, function in {"away": _AWAY, "whole": _WHOLE, "dots": _DOTS, "halved": _HALVED}.items():
        source.functions.setdefault(name, function.strip("\n"))
    lines = [line for line in text.strip("\n").split("\n") if line.strip()]
    source.functions[f"kernel{i}"] = "\n".join(lines)
    source.takes(features + 2 * _GROUP + min(outputs, _UNROLLED))
    source.body.append(f"@_kernel{i}({x}, {out});")
