"""The C functions that steps are made of. Only those that a program uses are written. ``@`` stands for the name of the model.

None of them needs a library: exponentials and the like are polynomials in float, with errors of about 2e-7, of cosines and sines
5e-7. Vectors lie in groups of 16, feature by feature, so that the innermost loop has a fixed length and no sum is reordered:
compilers make SIMD code of it where there is any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from streamsvm.edge.program import Program
from streamsvm.edge.step import vectors_of
from streamsvm.export.c.text import Source, fill_marks, number

#: Vectors of a group.
LANES = 16

# No branches, so that compilers make SIMD code of a loop round it.
_FADE = """
/* e^-x for x >= 0; 0 where that is below 2^-126. */
static inline float @_fade(float x)
{
    union { int32_t i; float f; } t, power;
    int32_t n;
    float r;
    t.f = x * 1.44269504f;
    t.i = t.i < 0x42fc0000 ? t.i : 0x42fe0000; /* from 126 on 127: floats from 0 on are ordered as their bits are */
    n = (int32_t)(t.f + 0.5f);
    r = ((float)n - t.f) * 0.693147181f;
    r = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f)))));
    power.i = (127 - n) * 8388608;
    return r * power.f;
}
"""

_EXP = """
static float @_exp(float x)
{
    x = x > 86.0f ? 86.0f : x < -86.0f ? -86.0f : x;
    return x < 0.0f ? @_fade(-x) : 1.0f / @_fade(x);
}
"""

_LOG = """
/* The natural logarithm of x > 0. */
static float @_log(float x)
{
    union { float f; int32_t i; } bits;
    int32_t n;
    float m, s, z;
    bits.f = x;
    n = bits.i / 8388608 - 127;
    bits.i = bits.i % 8388608 + 127 * 8388608;
    m = bits.f;
    if (m > 1.41421356f) { m *= 0.5f; n++; }
    s = (m - 1.0f) / (m + 1.0f);
    z = s * s;
    return (float)n * 0.693147181f + 2.0f * s * (1.0f + z * (0.333333333f + z * (0.2f + z * (0.142857143f + z * 0.111111111f))));
}
"""

_SQRT = """
/* The square root of x >= 1. */
static float @_sqrt(float x)
{
    union { float f; int32_t i; } bits;
    int k;
    float y;
    bits.f = x;
    bits.i = bits.i / 2 + 532676608;
    y = bits.f;
    for (k = 0; k < 4; k++) y = 0.5f * (y + x / y);
    return y;
}
"""

_TANH = """
static float @_tanh(float x)
{
    return x < 0.0f ? -@_tanh_of(-x) : @_tanh_of(x);
}
"""

_TANH_OF = """
static float @_tanh_of(float x) /* x >= 0 */
{
    float e;
    if (x < 0.01f) return x * (1.0f - x * x * 0.333333333f);
    e = @_fade(2.0f * x);
    return (1.0f - e) / (1.0f + e);
}
"""

_CIRCLE = """
/* The cosine and the sine of x. */
static void @_circle(float x, float *cosine, float *sine)
{
    float t = x * 0.159154943f, u;
    if (t > 8388608.0f || t < -8388608.0f) t = 0.0f; /* float has whole numbers only from there on */
    t -= (float)(int32_t)(t + (t < 0.0f ? -0.5f : 0.5f));
    t *= 6.28318531f;
    u = t * t;
    *cosine = 1.0f + u * (-0.5f + u * (0.0416666667f + u * (-0.00138888889f + u * (2.48015873e-05f + u * (-2.75573192e-07f
        + u * (2.08767570e-09f + u * (-1.14707456e-11f + u * 4.77947733e-14f)))))));
    *sine = t * (1.0f + u * (-0.166666667f + u * (0.00833333333f + u * (-0.000198412698f + u * (2.75573192e-06f
        + u * (-2.50521084e-08f + u * (1.60590438e-10f + u * (-7.64716373e-13f + u * 2.81145725e-15f))))))));
}
"""

_MISSING = """
/* What a number that is missing is from the first value on: NaN. */
static float @_missing(void)
{
    union { uint32_t i; float f; } bits;
    bits.i = 0x7fc00000u;
    return bits.f;
}
"""

# Beyond 1e18 products of two numbers and their sums would be infinite, and differences of those no number.
_FILL = """
/* What is missing is 0. */
static void @_fill(const float *x, int n, float *out)
{
    int j;
    for (j = 0; j < n; j++) out[j] = x[j] > 1e18f ? 1e18f : x[j] < -1e18f ? -1e18f : x[j] == x[j] ? x[j] : 0.0f;
}
"""

_SCALE = """
static void @_scale(const float *x, const @UP_TABLE float *first, const @UP_TABLE float *rest, const @UP_TABLE float *factor,
    float bound, int n, float *out)
{
    int j;
    for (j = 0; j < n; j++) {
        float y = ((x[j] - first[j]) - rest[j]) * factor[j];
        if (y > bound) y = bound;
        if (y < -bound) y = -bound;
        out[j] = y;
    }
}
"""

_LINEAR = """
static void @_linear(const float *x, const @UP_TABLE float *weights, const @UP_TABLE float *biases, int n, int outputs,
    float *out)
{
    int j, k;
    for (k = 0; k < outputs; k++) {
        float sum = biases[k];
        for (j = 0; j < n; j++) sum += weights[k * n + j] * x[j];
        out[k] = sum;
    }
}
"""

_SUMS = """
/* @WHAT x and n vectors of a group: sums over features, of which four are taken at once. */
static inline void @_@NAME(const float *@UP_RESTRICT x, const @UP_TABLE @T *@UP_RESTRICT vectors, @GIVENint features, int n,
    float *@UP_RESTRICT sums)
{
    int i, j;
    for (i = 0; i < @LANES; i++) sums[i] = 0.0f;
    if (n < @LANES) {
        for (j = 0; j < features; j++, vectors += n)
            for (i = 0; i < n; i++) {
@REST
            }
        return;
    }
    for (j = 0; j + 4 <= features; j += 4, vectors += 4 * @LANES)
        for (i = 0; i < @LANES; i++) { /* a loop of fixed length: SIMD */
@FOUR
        }
    for (; j < features; j++, vectors += @LANES)
        for (i = 0; i < @LANES; i++) {
@REST
        }
}
"""

_NUMBERS = "const @UP_TABLE float *@UP_RESTRICT {}, "


def sums_function(kind: str, number: str) -> tuple[str, str]:
    """Return the name and the text of the function that sums over features: ``"squares"``, ``"products"`` or ``"ways"``.

    ``number`` is the type of the vectors. For squares of whole numbers x is given in their units, whose squares it takes. Ways
    are sizes of differences up to ``reach``, times relevance; for those from whole numbers it takes the units.
    """
    name, plain = f"{kind}_{number.removesuffix('_t')}", number == "float"
    values = [f"(float)vectors[{f'{k} * {LANES} + ' if k else ''}i]" for k in range(4)]
    if kind == "products":
        four = ["sums[i] += ({} + {}) + ({} + {});".format(*(_product_text(k, values) for k in range(4)))]
        rest, what, given = [f"sums[i] += {_product_text(0, values)};"], "Products of", ""
    elif kind == "ways":
        # One after the other, so that the sum of a vector is the same in every group, and equal distances are equal.
        four, rest = (
            [line for k in range(4) for line in _way_statements(k, values[k], plain)],
            _way_statements(0, values[0], plain),
        )
        what = "Distances between"
        given = f"{'' if plain else _NUMBERS.format('unit')}{_NUMBERS.format('relevance')}float reach, "
    else:
        four = [f"const float d{k} = x[j{f' + {k}' if k else ''}] - {value};" for k, value in enumerate(values)]
        squares = [f"{'' if plain else f'squares[j + {k}] * '}d{k} * d{k}" for k in range(4)]
        four.append(f"sums[i] += ({squares[0]} + {squares[1]}) + ({squares[2]} + {squares[3]});")
        rest = [f"const float d = x[j] - {values[0]};", f"sums[i] += {'' if plain else 'squares[j] * '}d * d;"]
        what, given = "Squared distances between", "" if plain else _NUMBERS.format("squares")
    text = _SUMS.replace("@WHAT", what).replace("@NAME", name).replace("@GIVEN", given).replace("@LANES", str(LANES))
    text = text.replace("@T ", f"{number} ").replace("@FOUR", _joined_lines(four, 12)).replace("@REST", _joined_lines(rest, 16))
    return name, text


def _way_statements(k: int, value: str, plain: bool) -> list[str]:
    place = f"j{f' + {k}' if k else ''}"
    lines = [f"const float d{k} = x[{place}] - {'' if plain else f'unit[{place}] * '}{value};"]
    lines.append(f"const float w{k} = d{k} < 0.0f ? -d{k} : d{k};")
    return [*lines, f"sums[i] += relevance[{place}] * (w{k} < reach ? w{k} : reach);"]


def in_groups(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [m, features] as the functions of `sums_function` read them: floats, or whole numbers as they are."""
    groups = [vectors[begin : begin + LANES].T.ravel() for begin in range(0, len(vectors), LANES)]
    laid = np.concatenate(groups) if groups else np.zeros(0, vectors.dtype)
    return laid.astype(np.float32) if laid.dtype.kind == "f" else laid


def _product_text(k: int, values: list[str]) -> str:
    return f"x[j{f' + {k}' if k else ''}] * {values[k]}"


def _joined_lines(statements: list[str], indent: int) -> str:
    return "\n".join(" " * indent + statement for statement in statements)


def functions_for(used: Iterable[str]) -> list[str]:
    """Return the functions of these names, and those that they need, in an order in which a compiler reads them."""
    needed = set(used)
    for name, others in _NEEDS.items():
        if name in needed:
            needed.update(others)
    return [text.strip("\n") for name, text in _TEXTS.items() if name in needed]


_NEEDS = {"tanh": ("tanh_of", "fade"), "exp": ("fade",)}
_TEXTS = {
    "missing": _MISSING,
    "fade": _FADE,
    "exp": _EXP,
    "log": _LOG,
    "sqrt": _SQRT,
    "tanh_of": _TANH_OF,
    "tanh": _TANH,
    "circle": _CIRCLE,
    "fill": _FILL,
    "scale": _SCALE,
    "linear": _LINEAR,
}


# A Gaussian kernel with vectors of 8 bits: |x - s|^2 is |x|^2 + |s|^2 - 2 x s, and x s a sum of products of whole numbers, once x
# is turned into such: a multiplication is an instruction or two for a feature, also where a processor has no floating-point unit.
# |s|^2 is a whole number of 16 bits, and the coefficients make up for its rounding. Vectors lie in groups of four.
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
    if step.options["kind"] != "rbf" or step.arrays["vectors"].dtype != np.int8 or "center" not in step.arrays:
        return False
    return bool(_norm_exponents(program, i).max(initial=0.0) <= _LONGEST)


def _norm_exponents(program: Program, i: int) -> np.ndarray:
    """Return the exponents of vectors by themselves, from the middle, to the base 2: gamma |s|^2 log2(e), float64 [m]."""
    step = program.steps[i]
    return np.square(vectors_of(step) - step.arrays["center"]).sum(axis=1) * (step.options["gamma"] * _BITS)


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
    for name, function in {"away": _AWAY, "whole": _WHOLE, "dots": _DOTS, "halved": _HALVED}.items():
        source.functions.setdefault(name, function.strip("\n"))
    source.functions[f"kernel{i}"] = fill_marks(_KERNEL, names)
    source.takes(features + 2 * _GROUP + min(outputs, _UNROLLED))
    source.body.append(f"@_kernel{i}({x}, {out});")
