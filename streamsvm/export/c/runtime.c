/* The functions that a model in C is made of. Each section is written if the model uses it, under the name of the model.

   None needs a library: exponentials and the like are polynomials in float, with errors of about 2e-7, of cosines and sines 5e-7. */

#include <stdint.h>

#define MODEL_RESTRICT
#define MODEL_TABLE

/* section: missing */
/* What a number that is missing is from the first value on: NaN. */
static float model_missing(void)
{
    union { uint32_t i; float f; } bits;
    bits.i = 0x7fc00000u;
    return bits.f;
}

/* section: fade */
/* e^-x for x >= 0; 0 where that is below 2^-126. Without branches, so that compilers vectorise a loop that calls it. */
static inline float model_fade(float x)
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

/* section: exp */
static float model_exp(float x)
{
    x = x > 86.0f ? 86.0f : x < -86.0f ? -86.0f : x;
    return x < 0.0f ? model_fade(-x) : 1.0f / model_fade(x);
}

/* section: log */
/* The natural logarithm of x > 0. */
static float model_log(float x)
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

/* section: sqrt */
/* The square root of x >= 1. */
static float model_sqrt(float x)
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

/* section: tanh_of */
static float model_tanh_of(float x) /* x >= 0 */
{
    float e;
    if (x < 0.01f) return x * (1.0f - x * x * 0.333333333f);
    e = model_fade(2.0f * x);
    return (1.0f - e) / (1.0f + e);
}

/* section: tanh */
static float model_tanh(float x)
{
    return x < 0.0f ? -model_tanh_of(-x) : model_tanh_of(x);
}

/* section: circle */
/* The cosine and the sine of x. */
static void model_circle(float x, float *cosine, float *sine)
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

/* section: cycles */
/* The sine of the phase of a time in a period, plus an offset in turns; x where the period is 0. The remainder is exact until 2106. */
static void model_cycles(const float *x, const MODEL_TABLE float *periods, const MODEL_TABLE float *offsets, int n, float *out)
{
    int j;
    for (j = 0; j < n; j++) {
        float time = x[j] < 0.0f ? -x[j] : x[j], turns, cosine;
        uint32_t whole = time < 4294967040.0f ? (uint32_t)time : 0;
        out[j] = x[j];
        if (!(periods[j] > 0.0f) || x[j] != x[j]) continue;
        turns = ((float)(whole % (uint32_t)periods[j]) + (time - (float)whole)) / periods[j];
        model_circle(6.28318531f * ((x[j] < 0.0f ? -turns : turns) + offsets[j]), &cosine, out + j);
    }
}

/* section: fill */
/* Missing numbers become 0. Beyond 1e18, squares and products would be infinite, and their differences NaN. */
static void model_fill(const float *x, int n, float *out)
{
    int j;
    for (j = 0; j < n; j++) out[j] = x[j] > 1e18f ? 1e18f : x[j] < -1e18f ? -1e18f : x[j] == x[j] ? x[j] : 0.0f;
}

/* section: scale */
static void model_scale(const float *x, const MODEL_TABLE float *first, const MODEL_TABLE float *rest, const MODEL_TABLE float *factor,
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

/* section: linear */
static void model_linear(const float *x, const MODEL_TABLE float *weights, const MODEL_TABLE float *biases, int n, int outputs,
    float *out)
{
    int j, k;
    for (k = 0; k < outputs; k++) {
        float sum = biases[k];
        for (j = 0; j < n; j++) sum += weights[k * n + j] * x[j];
        out[k] = sum;
    }
}

/* section: fourier */
/* The cosines of the products of x with m vectors, then their sines. */
static void model_fourier(const float *x, const MODEL_TABLE float *vectors, int m, int width, float *out)
{
    int i, j;
    for (i = 0; i < m; i++) {
        float sum = 0.0f;
        for (j = 0; j < width; j++) sum += vectors[i * width + j] * x[j];
        model_circle(sum, out + i, out + m + i);
    }
}

/* section: two_shares */
/* The probabilities of two labels from log odds z. */
static void model_two_shares(float z, float prior, float *p)
{
    z = z > 30.0f ? 30.0f : z < -30.0f ? -30.0f : z;
    p[1] = 1.0f / (1.0f + model_exp(-z));
    p[0] = 1.0f / (1.0f + model_exp(z));
    p[0] += prior * (0.5f - p[0]);
    p[1] += prior * (0.5f - p[1]);
}

/* section: several_shares */
/* The probabilities of n labels from log odds f, times factor, mixed with shares that sum up to 1 - kept. */
static void model_several_shares(const float *f, int n, float factor, float kept, const MODEL_TABLE float *shares, float *p)
{
    int k, best = 0;
    float sum = 0.0f, z;
    for (k = 1; k < n; k++) if (f[k] > f[best]) best = k;
    for (k = 0; k < n; k++) {
        z = factor * (f[k] - f[best]);
        p[k] = model_exp(z > -30.0f ? z : -30.0f);
        sum += p[k];
    }
    for (k = 0; k < n; k++) p[k] = kept * p[k] / sum + shares[k];
}

/* section: hinges */
/* For each x: x, |x| - knot, and with 4 functions max(x - knot, 0) and max(-x - knot, 0). */
static void model_hinges(const float *x, int n, int functions, float knot, float *out)
{
    int j;
    for (j = 0; j < n; j++, out += functions) {
        const float size = x[j] < 0.0f ? -x[j] : x[j], beyond = size > knot ? size - knot : 0.0f;
        out[0] = x[j];
        out[1] = size - knot;
        if (functions != 4) continue;
        out[2] = x[j] > 0.0f ? beyond : 0.0f;
        out[3] = x[j] < 0.0f ? beyond : 0.0f;
    }
}

/* section: votes */
/* The votes of each class, from a decision value for each pair: 0 or more is for the second. */
static void model_votes(const float *x, int classes, float *out)
{
    int j, first, second;
    for (j = 0; j < classes; j++) out[j] = 0.0f;
    for (j = 0, first = 0; first < classes; first++)
        for (second = first + 1; second < classes; second++, j++) out[x[j] >= 0.0f ? second : first] += 1.0f;
}

/* section: pair_scores */
/* The same votes, above 0 for the second, and less than half a vote for the sum of the decision values of a class. */
static void model_pair_scores(const float *x, int classes, float *sums, float *out)
{
    int j, first, second;
    for (j = 0; j < classes; j++) sums[j] = out[j] = 0.0f;
    for (j = 0, first = 0; first < classes; first++)
        for (second = first + 1; second < classes; second++, j++) {
            out[x[j] > 0.0f ? second : first] += 1.0f;
            sums[second] += x[j];
            sums[first] -= x[j];
        }
    for (j = 0; j < classes; j++) out[j] += sums[j] / (3.0f * ((sums[j] < 0.0f ? -sums[j] : sums[j]) + 1.0f));
}

/* section: power */
/* x to the power n, bounded by 1e30 in size. */
static float model_power(float x, int n)
{
    float y = 1.0f;
    while (n-- > 0) y *= x;
    return y > 1e30f ? 1e30f : y < -1e30f ? -1e30f : y;
}

/* section: away */
/* |x - middle|^2; the size of the sum of its products with the units goes to size. */
static float model_away(const float *x, const MODEL_TABLE float *middle, const MODEL_TABLE float *unit, int n, float *size)
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

/* section: whole */
/* Those products as whole numbers, times a factor, of which 128 times the sum is below 2^31; it returns the factor. */
static float model_whole(const float *x, const MODEL_TABLE float *middle, const MODEL_TABLE float *unit, int n, float size, int32_t *y)
{
    const float factor = size > 1e-30f ? 1.6e7f / size : 1.0f;
    int j;
    for (j = 0; j < n; j++) y[j] = (int32_t)((x[j] - middle[j]) * unit[j] * factor);
    return factor;
}

/* section: dots */
/* Products of y and four vectors. */
static void model_dots(const int32_t *MODEL_RESTRICT y, const MODEL_TABLE int8_t *MODEL_RESTRICT vectors, int n, int32_t *MODEL_RESTRICT dots)
{
    int32_t a = 0, b = 0, c = 0, d = 0;
    int j;
#define MODEL_STEP(k) { \
        const int32_t by = y[k]; \
        a += by * vectors[4 * k]; \
        b += by * vectors[4 * k + 1]; \
        c += by * vectors[4 * k + 2]; \
        d += by * vectors[4 * k + 3]; \
    }
    for (j = 0; j + 4 <= n; j += 4, y += 4, vectors += 16) { MODEL_STEP(0) MODEL_STEP(1) MODEL_STEP(2) MODEL_STEP(3) }
    for (; j < n; j++, y++, vectors += 4) MODEL_STEP(0)
#undef MODEL_STEP
    dots[0] = a;
    dots[1] = b;
    dots[2] = c;
    dots[3] = d;
}

/* section: halved */
/* 2^-t for t >= 0; 0 where that is below 2^-126. */
static inline float model_halved(float t)
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
