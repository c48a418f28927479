/* Parts of learner.c that depend on the learner: $NAME stands for a number or another part. */

/* section: descent */
static void step(double f, double target) /* stochastic gradient descent */
{
    double eta = 1.0 / ($L2 * (double)s.t), shrink, size;
    eta = $SCHEDULE;
    shrink = 1.0 - $L2 * eta;
    if (shrink > 0.0) s.scale *= shrink;
$SHRINK
    if (!(1.0 - target * f > 0.0)) return;
    size = target > 0.0 ? eta : -eta;
    become(size);
$BIAS
}

/* section: ascent */
static double largest_step(void)
{
$LIMIT
}

static void reprocess(void) /* a random support vector */
{
    const uint32_t slot = (uint32_t)(random_bits() % s.n);
    double sum = 0.0, coefficient, sign, size;
    uint32_t i;
    compare(s.vectors[slot]);
    for (i = 0; i < s.n; i++) sum += (double)kernels[i] * s.coefficients[i];
    coefficient = s.scale * s.coefficients[slot];
    sign = coefficient > 0.0 ? 1.0 : -1.0;
    size = smaller(1.0 - sign * s.scale * sum, largest_step() * (double)s.weights[slot] - absolute(coefficient));
    if (size > 0.0) add_to(slot, sign * size);
}

$FORGET
static void step(double f, double target) /* coordinate ascent in the dual */
{
    double missing, limit;
    int k;
$WATCH
    missing = target * larger(1.0 - target * f, 0.0);
    limit = largest_step();
    if (absolute(missing) <= $TOL) return;
    become(smaller(larger($RELAXATION * missing, -limit), limit));
    for (k = 0; k < $REPROCESS; k++) reprocess();
}

/* section: one_pass_limit */
    const double t = (double)s.t, last = s.error[0], mean = s.error[1];
    double longest = 2.0;
    if (mean < last) {
        const double advantage = (last - mean) / larger(root(last), last);
        longest = larger(longest * exp_double(-50.0 * smaller(t / 4000.0, 1.0) * advantage), 0.1);
    }
    longest *= larger(last, 1.0);
    return smaller(longest, larger($C, 3000.0 / t));

/* section: watch */
    if (drifted(1.0 - target * f > 1.0 ? 1.0 : 0.0)) {
        forget();
        f *= 0.5;
    }

/* section: forget */
static int drifted(double wrong)
{
    const double first = 1.0 / (s.drifts[0] += 1.0);
    double slow;
    s.drifts[1] += larger(first, 0.02) * (wrong - s.drifts[1]);
    slow = s.drifts[2] += larger(first, 0.002) * (wrong - s.drifts[2]);
    if (s.drifts[0] <= 200.0 || s.drifts[1] <= slow + 4.0 * root(larger(slow * (1.0 - slow), 0.03) * 0.01)) return 0;
    s.drifts[0] = s.drifts[1] = s.drifts[2] = 0.0;
    return 1;
}

static void forget(void) /* half of it; all else begins anew */
{
    uint32_t i;
    int k;
    for (i = 0; i < s.n; i++) {
        s.coefficients[i] *= 0.5 * s.scale;
        s.weights[i] = 0.0f;
    }
    s.bias[0] *= 0.5;
    for (k = 0; k < 2; k++) {
        s.error[k] = s.size[k] = s.curvature[k] = 0.0;
        s.slope[k] = 2.5;
    }
    s.scale = s.average_v = 1.0;
    s.average_u = 0.0;
    s.forgotten += s.t - 1;
    s.t = 1;
}

/* section: check_chart */
    for (k = 0; k < 3; k++) if (given->drifts[k] < 0.0 || given->drifts[k] > (k > 0 ? 1.0 : 4e18)) return 0;
    if (given->forgotten >> 62) return 0;
