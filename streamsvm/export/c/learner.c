/*
@HEAD
 */
#include "@NAME_learn.h"

#include <float.h>
#include <stdint.h>

@CHECKED
#if DBL_MANT_DIG != 53
#error learning needs a double of 64 bits
#endif

#define FEATURES @FEATURES
#define BUDGET @BUDGET
#define SLOTS (BUDGET + 1)
#define GRID 400 /* points along each axis of the table of merges, which is computed where it is looked up */

/* All that learning changes. The largest types come first, so that there are no gaps. */
struct state {
    double coefficients[SLOTS], averages[SLOTS]; /* the last iterate is scale times the first; see average_u, average_v */
    double bias[2], scale, average_v, average_u, error[2], size[2], slope[2], curvature[2]@DRIFTS;
    uint64_t t, random, merges@FORGOTTEN;
    float vectors[SLOTS][FEATURES], weights[SLOTS];
    uint32_t stamps[SLOTS], next_stamp, n, made_for, @GAPsum;
};

static struct state s = @STATE;
static const float location[FEATURES] = {@LOCATION}, rest[FEATURES] = {@REST}, factor[FEATURES] = {@FACTOR};
static const float bound = @BOUND;
static const double gamma_ = @GAMMA;
static float row[FEATURES], kernels[SLOTS], distances[SLOTS];

/* Functions, without a library ---------------------------------------------------------------------------------------------- */

static float exp_single(float x) /* x <= 0 */
{
    union { float f; int32_t i; } y;
    float k, r, p;
    if (!(x >= -87.33654f)) return 0.0f;
    k = x * 1.44269504f + 0.5f;
    k = (float)(int32_t)k - ((float)(int32_t)k > k ? 1.0f : 0.0f);
    r = x - k * 0.693359375f - k * -2.12194440e-4f;
    p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r + 1.6666665459e-1f) * r
        + 5.0000001201e-1f;
    y.f = p * (r * r) + r + 1.0f;
    y.i += (int32_t)k * 8388608;
    return y.f;
}

static double exp_double(double x) /* from -700 to 700; beyond that as there */
{
    union { double f; int64_t i; } power;
    double r, sum = 1.0, term = 1.0;
    int64_t n;
    int k;
    if (!(x >= -700.0)) x = -700.0;
    if (x > 700.0) x = 700.0;
    n = (int64_t)(x * 1.4426950408889634 + (x < 0.0 ? -0.5 : 0.5));
    r = x - (double)n * 6.93147180369123816490e-01 - (double)n * 1.90821492927058770002e-10;
    for (k = 1; k < 14; k++) {
        term *= r / k;
        sum += term;
    }
    power.i = (n + 1023) * ((int64_t)1 << 52);
    return sum * power.f;
}

static double less_one(double x) /* e^x - 1, for x <= 0 */
{
    double term = x, sum = x;
    int k;
    if (x < -0.35) return exp_double(x) - 1.0;
    for (k = 2; k < 16; k++) {
        term *= x / k;
        sum += term;
    }
    return sum;
}

static double root(double x) /* x >= 0 */
{
    double y = x > 1.0 ? x : 1.0;
    int k;
    if (x == 0.0) return 0.0;
    for (k = 0; k < 60; k++) {
        const double next = 0.5 * (y + x / y);
        if (next >= y) break;
        y = next;
    }
    return y;
}

static double absolute(double x) { return x < 0.0 ? -x : x; }
static double larger(double a, double b) { return a > b ? a : b; }
static double smaller(double a, double b) { return a < b ? a : b; }

/* Rows and decisions -------------------------------------------------------------------------------------------------------- */

static void take(const float *x)
{
    int j;
    for (j = 0; j < FEATURES; j++) {
        const float value = x[j] - x[j] == 0.0f ? x[j] : 0.0f; /* what is not finite is missing, and counts as 0 */
        const float y = ((value - location[j]) - rest[j]) * factor[j];
        row[j] = y > bound ? bound : y < -bound ? -bound : y == y ? y : 0.0f; /* NaN: infinite, by a factor of 0 */
    }
}

static void compare(const float *z) /* with all support vectors */
{
    uint32_t i;
    int j;
    for (i = 0; i < s.n; i++) {
        float sum = 0.0f;
        for (j = 0; j < FEATURES; j++) {
            const float d = z[j] - s.vectors[i][j];
            sum += d * d;
        }
        distances[i] = sum;
        kernels[i] = exp_single((float)-gamma_ * sum);
    }
}

static void decide(double *f) /* by the last iterate, and by the average */
{
    double a = 0.0, b = 0.0;
    uint32_t i;
    for (i = 0; i < s.n; i++) {
        a += (double)kernels[i] * s.coefficients[i];
        b += (double)kernels[i] * s.averages[i];
    }
    f[0] = s.scale * a + s.bias[0];
    f[1] = s.average_v * b + s.average_u * a + s.bias[1];
}

static int chosen(void) /* the average, unless the last iterate has made fewer errors by more than chance */
{
    const double rows = smaller((double)s.t + 1.0, 1000.0);
    return @HORIZON > 0.0 && s.error[1] <= s.error[0] + 0.5 * root(s.error[1] / rows);
}

static void track(const double *f, double target)
{
    const double rate = 1.0 / smaller((double)s.t, 1000.0), steady = larger(rate, 0.01);
    int k;
    for (k = 0; k < 2; k++) {
        double z, p, step;
        if (absolute(f[k]) < 1e100) s.size[k] += (s.size[k] > 0.0 ? larger(rate, 0.03) : 1.0) * (absolute(f[k]) - s.size[k]);
        z = exp_double(s.slope[k]) / larger(s.size[k], 1.0) * f[k];
        z = smaller(larger(z, -10.0), 10.0);
        p = 1.0 / (1.0 + exp_double(-z));
        s.curvature[k] += steady * (p * (1.0 - p) * z * z - s.curvature[k]);
        step = steady * ((target > 0.0 ? 1.0 : 0.0) - p) * z / (s.curvature[k] + 0.01);
        s.slope[k] = smaller(larger(s.slope[k] + smaller(larger(step, -0.4), 0.4), -50.0), 50.0);
        s.error[k] += rate * (((f[k] > 0.0) != (target > 0.0) ? 1.0 : 0.0) - s.error[k]);
    }
}

/* Budget maintenance: two support vectors become one ------------------------------------------------------------------------ */

static double merged(double m, double q, double h)
{
    return m * exp_double(-(1.0 - h) * (1.0 - h) * q) + (1.0 - m) * exp_double(-h * h * q);
}

static double best_position(double m, double q) /* golden section search on [1/2, 1] */
{
    const double golden = 0.6180339887498949;
    double low = 0.5, high = 1.0, left = 1.0 - 0.5 * golden, right = 0.5 + 0.5 * golden;
    double at_left = merged(m, q, left), at_right = merged(m, q, right);
    int k;
    for (k = 0; k < 48; k++) {
        if (at_left > at_right) {
            high = right;
            right = left;
            at_right = at_left;
            left = high - golden * (high - low);
            at_left = merged(m, q, left);
        } else {
            low = left;
            left = right;
            at_left = at_right;
            right = low + golden * (high - low);
            at_right = merged(m, q, right);
        }
    }
    return (low + high) / 2.0;
}

static double of_table(int i, int j)
{
    const double m = 0.5 + 0.5 * i / (GRID - 1), u = (double)j / (GRID - 1);
    if (j == 0) return (double)(float)m;
    if (j == GRID - 1 || i == GRID - 1) return 1.0;
    return (double)(float)best_position(m, u / (1.0 - u));
}

static double position(double m, double q) /* between four points of the table */
{
    const double x = (2.0 * m - 1.0) * (GRID - 1), y = q / (1.0 + q) * (GRID - 1);
    const int i = x < GRID - 2 ? (x > 0.0 ? (int)x : 0) : GRID - 2, j = y < GRID - 2 ? (y > 0.0 ? (int)y : 0) : GRID - 2;
    const double a = x - i, b = y - j;
    return (of_table(i, j) * (1.0 - a) + of_table(i + 1, j) * a) * (1.0 - b)
        + (of_table(i, j + 1) * (1.0 - a) + of_table(i + 1, j + 1) * a) * b;
}

static double near_position(double m, double q) /* by a fixed-point iteration; exact enough to compare candidates */
{
    double h = 1.0; /* the larger mode is on this side */
    int k;
    for (k = 0; k < 100; k++) {
        const double a = m * exp_double(-(1.0 - h) * (1.0 - h) * q), b = (1.0 - m) * exp_double(-h * h * q);
        const double next = a / (a + b);
        if (absolute(next - h) < 1e-9) return next;
        h = next;
    }
    return h;
}

static float degradation(uint32_t k, double first)
{
    const double size = absolute(s.coefficients[k]), more = larger(size, first), less = smaller(size, first);
    const double m = more / (more + less), ratio = m / larger(less / (more + less), 1e-100), q = gamma_ * (double)distances[k];
    const double h = near_position(m, q);
    const double a = exp_double(-h * h * q), b = exp_double(-(1.0 - h) * (1.0 - h) * q);
    const double found = -less_one(-2.0 * h * h * q) - ratio * ratio * less_one(-2.0 * (1.0 - h) * (1.0 - h) * q)
        + 2.0 * ratio * a * b * less_one(-2.0 * h * (1.0 - h) * q);
    return (float)smaller(larger(found, 0.0), 1e38);
}

static void drop(uint32_t slot) /* the last one takes its place */
{
    const uint32_t last = --s.n;
    int j;
    for (j = 0; j < FEATURES; j++) {
        s.vectors[slot][j] = s.vectors[last][j];
        s.vectors[last][j] = 0.0f;
    }
    s.coefficients[slot] = s.coefficients[last];
    s.averages[slot] = s.averages[last];
    s.weights[slot] = s.weights[last];
    s.stamps[slot] = s.stamps[last];
    s.coefficients[last] = s.averages[last] = 0.0;
    s.weights[last] = 0.0f;
    s.stamps[last] = 0;
}

static uint32_t nearest_to(uint32_t first) /* where no coefficient has the same sign */
{
    uint32_t i, nearest = SLOTS;
    for (i = 0; i < s.n; i++)
        if (i != first && (nearest == SLOTS || kernels[i] > kernels[nearest]
                || (kernels[i] == kernels[nearest] && s.stamps[i] < s.stamps[nearest]))) nearest = i;
    return nearest;
}

static void merge(void)
{
    uint32_t i, first = 0, partner = SLOTS;
    float least = 0.0f;
    double size, h, q, a, b;
    int j;
    for (i = 1; i < s.n; i++) {
        const float mine = (float)absolute(s.coefficients[i]), best = (float)absolute(s.coefficients[first]);
        if (mine < best || (mine == best && s.stamps[i] < s.stamps[first])) first = i;
    }
    for (j = 0; j < FEATURES; j++) row[j] = s.vectors[first][j];
    compare(row);
    size = absolute(s.coefficients[first]);
    for (i = 0; i < s.n; i++) {
        float found, u;
        if (i == first || !(s.coefficients[i] * s.coefficients[first] > 0.0)) continue;
        u = (float)gamma_ * distances[i];
        u = u / (1.0f + u);
        if (partner != SLOTS && 0.49f * u * u > least) continue; /* it degrades by u u / 2 at least */
        found = degradation(i, size);
        if (partner == SLOTS || found < least || (found == least && s.stamps[i] < s.stamps[partner])) {
            partner = i;
            least = found;
        }
    }
    if (partner == SLOTS) {
        partner = nearest_to(first);
        if (partner != SLOTS) {
            s.weights[partner] += s.weights[first];
            s.coefficients[partner] += (double)kernels[partner] * s.coefficients[first];
            s.averages[partner] += (double)kernels[partner] * s.averages[first];
        }
        drop(first);
        return;
    }
    q = gamma_ * (double)distances[partner];
    h = larger(size, absolute(s.coefficients[partner]));
    h = position(h / (h + size), q);
    a = exp_double(-h * h * q);
    b = exp_double(-(1.0 - h) * (1.0 - h) * q);
    for (j = 0; j < FEATURES; j++)
        s.vectors[partner][j] = (float)(h * (double)s.vectors[partner][j] + (1.0 - h) * (double)s.vectors[first][j]);
    s.coefficients[partner] = b * s.coefficients[partner] + a * s.coefficients[first];
    s.averages[partner] = b * s.averages[partner] + a * s.averages[first];
    s.weights[partner] += s.weights[first];
    s.stamps[partner] = s.next_stamp++;
    drop(first);
    s.merges++;
}

/* The step ------------------------------------------------------------------------------------------------------------------ */

static uint64_t random_bits(void) /* SplitMix64 */
{
    uint64_t z = s.random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void add_to(uint32_t slot, double size)
{
    const double lazy = size / s.scale;
    s.coefficients[slot] += lazy;
    s.averages[slot] -= s.average_u / s.average_v * lazy;
}

static void become(double size) /* the row becomes a support vector */
{
    const uint32_t slot = s.n++;
    int j;
    for (j = 0; j < FEATURES; j++) s.vectors[slot][j] = row[j];
    s.coefficients[slot] = s.averages[slot] = 0.0;
    s.weights[slot] = 1.0f;
    s.stamps[slot] = s.next_stamp++;
    add_to(slot, size);
    if (s.n > BUDGET) {
        random_bits();
        merge();
    }
}

@STEP

static void average(void)
{
    const double rho = larger(16.0 / ((double)s.t + 15.0), 1.0 / @HORIZON_OR_ONE);
    uint32_t i;
    if (@HORIZON > 0.0 && rho < 1.0) {
        s.average_v *= 1.0 - rho;
        s.average_u = (1.0 - rho) * s.average_u + rho * s.scale;
        s.bias[1] += rho * (s.bias[0] - s.bias[1]);
    } else if (@HORIZON > 0.0) {
        for (i = 0; i < s.n; i++) s.averages[i] = 0.0;
        s.bias[1] = s.bias[0];
        s.average_v = 1.0;
        s.average_u = s.scale;
    }
    if (s.average_v < 1e-5 || s.scale < 1e-5) {
        for (i = 0; i < s.n; i++) {
            s.averages[i] = s.average_v * s.averages[i] + s.average_u * s.coefficients[i];
            s.coefficients[i] *= s.scale;
        }
        s.average_v = s.scale = 1.0;
        s.average_u = 0.0;
    }
}

/* What others call ---------------------------------------------------------------------------------------------------------- */

const char *const @_learn_labels[2] = {@LABELS};

int @_learn(const float *x, int label)
{
    const double target = label ? 1.0 : -1.0;
    double f[2];
    if (label != 0 && label != 1) return 0;
    take(x);
    s.t++;
    compare(row);
    decide(f);
    track(f, target);
    step(f[0], target);
    average();
    return 1;
}

float @_learn_decision(const float *x)
{
    double f[2];
    take(x);
    compare(row);
    decide(f);
    return (float)f[chosen()];
}

int @_learn_predict(const float *x)
{
    double f[2];
    take(x);
    compare(row);
    decide(f);
    return f[chosen()] > 0.0;
}

static uint32_t sum_of(const unsigned char *bytes) /* CRC-32, of all but the sum itself, which stands last */
{
    uint32_t sum = 0xffffffffu;
    unsigned k;
    int bit;
    for (k = 0; k < sizeof s - sizeof s.sum; k++) {
        sum ^= bytes[k];
        for (bit = 0; bit < 8; bit++) sum = (sum >> 1) ^ (sum & 1u ? 0xedb88320u : 0u);
    }
    return ~sum;
}

const unsigned char *@_learn_state(void)
{
    s.sum = sum_of((const unsigned char *)&s);
    return (const unsigned char *)&s;
}

static int is_sound(const struct state *given)
{
    const double *numbers = given->coefficients;
    const unsigned count = 2 * SLOTS + 2 + 3 + 8@CHART;
    uint32_t i;
    unsigned k;
    int j;
    if (given->made_for != @MADE_FORu || given->n > BUDGET) return 0;
    for (k = 0; k < count; k++) if (!(absolute(numbers[k]) < 1e100)) return 0;
    if (given->scale < 1e-10 || given->scale > 1.0 || given->average_v < 1e-10 || given->average_v > 1.0) return 0;
    if (given->average_u < 0.0 || given->average_u > 1.0 || given->t >> 62 || given->merges >> 62) return 0;
@CHECK_CHART    for (k = 0; k < 2; k++) {
        if (given->error[k] < 0.0 || given->size[k] < 0.0 || absolute(given->slope[k]) > 50.0) return 0;
        if (given->curvature[k] < -1e-9 || given->curvature[k] > 1e3) return 0;
    }
    for (i = 0; i < SLOTS; i++) {
        if (i < given->n ? given->stamps[i] >= given->next_stamp : given->stamps[i] != 0) return 0;
        if (!(given->weights[i] >= 0.0f && given->weights[i] < 1e30f)) return 0;
        for (j = 0; j < FEATURES; j++) if (!(absolute((double)given->vectors[i][j]) < 1e18)) return 0;
    }
    return 1;
}

int @_learn_restore(const unsigned char *bytes, unsigned n)
{
    static struct state given;
    unsigned k;
    if (n != sizeof given) return 0;
    for (k = 0; k < n; k++) ((unsigned char *)&given)[k] = bytes[k];
    if (given.sum != sum_of(bytes) || !is_sound(&given)) return 0;
    s = given;
    return 1;
}
