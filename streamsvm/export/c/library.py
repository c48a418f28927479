"""The C functions that steps are made of. Only those that a program uses are written. ``@`` stands for the name of the model.

None of them needs a library: exponentials and the like are polynomials in float, with errors of about 2e-7, of cosines and sines
5e-7. Vectors lie in groups of 16, feature by feature, so that the innermost loop has a fixed length and no sum is reordered:
compilers make SIMD code of it where there is any.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

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
