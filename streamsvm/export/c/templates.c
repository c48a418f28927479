/* Statements and functions whose sizes are those of a model: $name$ and @NAME stand for what the writer fills in, @_ and @UP for
   the name of the model. */

/* section: squares_float */
/* Squared distances between x and n vectors of a group: sums over features, of which four are taken at once. */
static inline void @_@NAME(const float *@UP_RESTRICT x, const @UP_TABLE @T *@UP_RESTRICT vectors, int features, int n,
    float *@UP_RESTRICT sums)
{
    int i, j;
    for (i = 0; i < 16; i++) sums[i] = 0.0f;
    if (n < 16) {
        for (j = 0; j < features; j++, vectors += n)
            for (i = 0; i < n; i++) {
                const float d = x[j] - (float)vectors[i];
                sums[i] += d * d;
            }
        return;
    }
    for (j = 0; j + 4 <= features; j += 4, vectors += 4 * 16)
        for (i = 0; i < 16; i++) { /* a loop of fixed length: SIMD */
            const float d0 = x[j] - (float)vectors[i];
            const float d1 = x[j + 1] - (float)vectors[1 * 16 + i];
            const float d2 = x[j + 2] - (float)vectors[2 * 16 + i];
            const float d3 = x[j + 3] - (float)vectors[3 * 16 + i];
            sums[i] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
        }
    for (; j < features; j++, vectors += 16)
        for (i = 0; i < 16; i++) {
                const float d = x[j] - (float)vectors[i];
                sums[i] += d * d;
        }
}

/* section: squares_whole */
/* Squared distances between x and n vectors of a group: sums over features, of which four are taken at once. */
static inline void @_@NAME(const float *@UP_RESTRICT x, const @UP_TABLE @T *@UP_RESTRICT vectors, const @UP_TABLE float *@UP_RESTRICT squares, int features, int n,
    float *@UP_RESTRICT sums)
{
    int i, j;
    for (i = 0; i < 16; i++) sums[i] = 0.0f;
    if (n < 16) {
        for (j = 0; j < features; j++, vectors += n)
            for (i = 0; i < n; i++) {
                const float d = x[j] - (float)vectors[i];
                sums[i] += squares[j] * d * d;
            }
        return;
    }
    for (j = 0; j + 4 <= features; j += 4, vectors += 4 * 16)
        for (i = 0; i < 16; i++) { /* a loop of fixed length: SIMD */
            const float d0 = x[j] - (float)vectors[i];
            const float d1 = x[j + 1] - (float)vectors[1 * 16 + i];
            const float d2 = x[j + 2] - (float)vectors[2 * 16 + i];
            const float d3 = x[j + 3] - (float)vectors[3 * 16 + i];
            sums[i] += (squares[j + 0] * d0 * d0 + squares[j + 1] * d1 * d1) + (squares[j + 2] * d2 * d2 + squares[j + 3] * d3 * d3);
        }
    for (; j < features; j++, vectors += 16)
        for (i = 0; i < 16; i++) {
                const float d = x[j] - (float)vectors[i];
                sums[i] += squares[j] * d * d;
        }
}

/* section: products */
/* Products of x and n vectors of a group: sums over features, of which four are taken at once. */
static inline void @_@NAME(const float *@UP_RESTRICT x, const @UP_TABLE @T *@UP_RESTRICT vectors, int features, int n,
    float *@UP_RESTRICT sums)
{
    int i, j;
    for (i = 0; i < 16; i++) sums[i] = 0.0f;
    if (n < 16) {
        for (j = 0; j < features; j++, vectors += n)
            for (i = 0; i < n; i++) {
                sums[i] += x[j] * (float)vectors[i];
            }
        return;
    }
    for (j = 0; j + 4 <= features; j += 4, vectors += 4 * 16)
        for (i = 0; i < 16; i++) { /* a loop of fixed length: SIMD */
            sums[i] += (x[j] * (float)vectors[i] + x[j + 1] * (float)vectors[1 * 16 + i]) + (x[j + 2] * (float)vectors[2 * 16 + i] + x[j + 3] * (float)vectors[3 * 16 + i]);
        }
    for (; j < features; j++, vectors += 16)
        for (i = 0; i < 16; i++) {
                sums[i] += x[j] * (float)vectors[i];
        }
}

/* section: ways_float */
/* Distances between x and n vectors of a group: sums over features, of which four are taken at once. */
static inline void @_@NAME(const float *@UP_RESTRICT x, const @UP_TABLE @T *@UP_RESTRICT vectors, const @UP_TABLE float *@UP_RESTRICT relevance, float reach, int features, int n,
    float *@UP_RESTRICT sums)
{
    int i, j;
    for (i = 0; i < 16; i++) sums[i] = 0.0f;
    if (n < 16) {
        for (j = 0; j < features; j++, vectors += n)
            for (i = 0; i < n; i++) {
                const float d0 = x[j] - (float)vectors[i];
                const float w0 = d0 < 0.0f ? -d0 : d0;
                sums[i] += relevance[j] * (w0 < reach ? w0 : reach);
            }
        return;
    }
    for (j = 0; j + 4 <= features; j += 4, vectors += 4 * 16)
        for (i = 0; i < 16; i++) { /* a loop of fixed length: SIMD */
            const float d0 = x[j] - (float)vectors[i];
            const float w0 = d0 < 0.0f ? -d0 : d0;
            sums[i] += relevance[j] * (w0 < reach ? w0 : reach);
            const float d1 = x[j + 1] - (float)vectors[1 * 16 + i];
            const float w1 = d1 < 0.0f ? -d1 : d1;
            sums[i] += relevance[j + 1] * (w1 < reach ? w1 : reach);
            const float d2 = x[j + 2] - (float)vectors[2 * 16 + i];
            const float w2 = d2 < 0.0f ? -d2 : d2;
            sums[i] += relevance[j + 2] * (w2 < reach ? w2 : reach);
            const float d3 = x[j + 3] - (float)vectors[3 * 16 + i];
            const float w3 = d3 < 0.0f ? -d3 : d3;
            sums[i] += relevance[j + 3] * (w3 < reach ? w3 : reach);
        }
    for (; j < features; j++, vectors += 16)
        for (i = 0; i < 16; i++) {
                const float d0 = x[j] - (float)vectors[i];
                const float w0 = d0 < 0.0f ? -d0 : d0;
                sums[i] += relevance[j] * (w0 < reach ? w0 : reach);
        }
}

/* section: ways_whole */
/* Distances between x and n vectors of a group: sums over features, of which four are taken at once. */
static inline void @_@NAME(const float *@UP_RESTRICT x, const @UP_TABLE @T *@UP_RESTRICT vectors, const @UP_TABLE float *@UP_RESTRICT unit, const @UP_TABLE float *@UP_RESTRICT relevance, float reach, int features, int n,
    float *@UP_RESTRICT sums)
{
    int i, j;
    for (i = 0; i < 16; i++) sums[i] = 0.0f;
    if (n < 16) {
        for (j = 0; j < features; j++, vectors += n)
            for (i = 0; i < n; i++) {
                const float d0 = x[j] - unit[j] * (float)vectors[i];
                const float w0 = d0 < 0.0f ? -d0 : d0;
                sums[i] += relevance[j] * (w0 < reach ? w0 : reach);
            }
        return;
    }
    for (j = 0; j + 4 <= features; j += 4, vectors += 4 * 16)
        for (i = 0; i < 16; i++) { /* a loop of fixed length: SIMD */
            const float d0 = x[j] - unit[j] * (float)vectors[i];
            const float w0 = d0 < 0.0f ? -d0 : d0;
            sums[i] += relevance[j] * (w0 < reach ? w0 : reach);
            const float d1 = x[j + 1] - unit[j + 1] * (float)vectors[1 * 16 + i];
            const float w1 = d1 < 0.0f ? -d1 : d1;
            sums[i] += relevance[j + 1] * (w1 < reach ? w1 : reach);
            const float d2 = x[j + 2] - unit[j + 2] * (float)vectors[2 * 16 + i];
            const float w2 = d2 < 0.0f ? -d2 : d2;
            sums[i] += relevance[j + 2] * (w2 < reach ? w2 : reach);
            const float d3 = x[j + 3] - unit[j + 3] * (float)vectors[3 * 16 + i];
            const float w3 = d3 < 0.0f ? -d3 : d3;
            sums[i] += relevance[j + 3] * (w3 < reach ? w3 : reach);
        }
    for (; j < features; j++, vectors += 16)
        for (i = 0; i < 16; i++) {
                const float d0 = x[j] - unit[j] * (float)vectors[i];
                const float w0 = d0 < 0.0f ? -d0 : d0;
                sums[i] += relevance[j] * (w0 < reach ? w0 : reach);
        }
}

/* section: eight_bit_kernel */
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

/* section: stacked_numbers */
{
    float said[$n$], voted = 0.0f, stacked = 0.0f;
    int m;
    for (j = 0; j < $n$; j++) {
        float value = $x$[j];
        if ($corrects$[j] >= 0) value += said[$corrects$[j]];
        said[j] = value > $said$ ? $said$ : value < -$said$ ? -$said$ : value;
        voted += $votes$[j] * said[j];
    }
    for (m = 0; m < $stacks$; m++) {
        float value = $weights$[m * $width$] + $weights$[m * $width$ + 1] * voted;
        for (j = 0; j < $n$; j++) value += $weights$[m * $width$ + 2 + j] * said[j];
        stacked += $shares$[m] * (value > $said$ ? $said$ : value < -$said$ ? -$said$ : value);
    }
    $out$[0] = $follows$ == 0 ? stacked : $follows$ == 1 ? voted : said[$best$];
}

/* section: stacked_decision */
{
    float stacked = $weights$[0], voted = 0.0f, followed, p, q;
    for (j = 0; j < $n$; j++) {
        const float value = $x$[j];
        voted += value > $alike$ ? $votes$[j] : -$votes$[j];
        stacked += $weights$[2 + j] * (value > $said$ ? $said$ : value < -$said$ ? -$said$ : value);
    }
    stacked += $weights$[1] * voted;
    followed = $follows$ == 0 ? stacked : $follows$ == 1 ? voted : $x$[$best$];
    p = stacked > 30.0f ? 30.0f : stacked < -30.0f ? -30.0f : stacked;
    q = 1.0f / (1.0f + @_exp(p)); /* each side by itself: 1 - p would lose a small one */
    p = 1.0f / (1.0f + @_exp(-p));
    if ((followed > $at$) != (stacked > 0.0f)) p = q = 0.5f;
    p = @_log((p * $kept$ + $for$) / (q * $kept$ + $against$));
    if (followed > $at$) $out$[0] = p > 4.7683716e-07f ? p : 4.7683716e-07f;
    else $out$[0] = p < 0.0f ? p : 0.0f;
}

/* section: stacked_decisions */
{
    float voted[$k$], followed[$k$], largest;
    int k, chosen = 0;
    for (k = 0; k < $k$; k++) voted[k] = 0.0f;
    for (j = 0; j < $n$; j++) {
        int most = 0;
        largest = $x$[j * $k$];
        for (k = 1; k < $k$; k++) if ($x$[j * $k$ + k] > largest) largest = $x$[j * $k$ + k];
        while ($x$[j * $k$ + most] < largest - $alike$) most++;
        voted[most] += $votes$[j];
    }
    for (k = 0; k < $k$; k++) {
        float stacked = $weights$[1] * voted[k];
        for (j = 0; j < $n$; j++) {
            const float value = $x$[j * $k$ + k];
            stacked += $weights$[2 + j] * (value > $said$ ? $said$ : value < -$said$ ? -$said$ : value);
        }
        $out$[k] = stacked;
        followed[k] = $follows$ == 0 ? stacked : $follows$ == 1 ? voted[k] : $x$[$best$ * $k$ + k];
    }
    largest = followed[0];
    for (k = 1; k < $k$; k++) if (followed[k] > largest) largest = followed[k];
    while (followed[chosen] < largest - $at$) chosen++;
    largest = $out$[0];
    for (k = 1; k < $k$; k++) if ($out$[k] > largest) largest = $out$[k];
    $out$[chosen] = largest + 1e-5f;
}

/* section: forest */
static void @_forest$i$(const float *@UP_RESTRICT x, float *@UP_RESTRICT out)
{
    int t, j;
    for (j = 0; j < $width$; j++) out[j] = 0.0f;
    for (t = 0; t < $trees$; t++) {
        int32_t at = $roots$[t];
        while ($left$[at] >= 0) {
            const float value = x[$feature$[at]], threshold = $thresholds$[at];
            at = $left$[at] + !($equal$[at] ? value == threshold : value <= threshold);
        }
$leaf$
    }
}

/* section: mean_leaf */
        out[0] += $votes$[t] * $means$[$feature$[at]];

/* section: counted_leaf */
        {
            const int32_t leaf = 2 * (int32_t)$feature$[at], sum = $counts$[leaf] + $counts$[leaf + 1];
            for (j = 0; j < 2 && sum > 0; j++) out[$targets$[leaf + j]] += $votes$[t] * (float)$counts$[leaf + j] / (float)sum;
        }

/* section: neighbours */
static void @_neighbours$i$(const float *@UP_RESTRICT x, float *@UP_RESTRICT out)
{
    float sums[$lanes$], near[$k$], least, total = 0.0f;
    int which[$k$], first, i, j;
    for (i = 0; i < $k$; i++) {
        near[i] = $far$;
        which[i] = 0;
    }
    for (first = 0; first < $n$; first += $lanes$) {
        const int size = $n$ - first < $lanes$ ? $n$ - first : $lanes$;
        $call$;
        for (i = 0; i < size; i++) {
            const float rounded = @_rounded(sums[i]);
            if (!(rounded < @_rounded(near[$k$ - 1]))) continue;
            for (j = $k$ - 1; j > 0 && rounded < @_rounded(near[j - 1]); j--) {
                near[j] = near[j - 1];
                which[j] = which[j - 1];
            }
            near[j] = sums[i];
            which[j] = first + i;
        }
    }
    least = $far$;
    for (i = 0; i < $k$; i++) {
        near[i] = near[i] > $nearest$ ? near[i] : $nearest$;
        least = near[i] < least ? near[i] : least;
    }
    for (i = 0; i < $k$; i++) {
        const float ratio = (least + $offset$) / (near[i] + $offset$);
        near[i] = $weights$[which[i]];
        for (j = 0; j < $power$; j++) near[i] *= ratio;
        total += near[i];
    }
    for (j = 0; j < $width$; j++) out[j] = 0.0f;
    for (i = 0; i < $k$; i++) $share$
}

/* section: rounded */
static inline float @_rounded(float distance)
{
    const volatile float sum = distance + $rounding$; /* a float, also where a processor computes with more digits */
    return sum;
}

/* section: name */
float @_name(int place, const char *text)
{
    const @UP_TABLE uint32_t *keys;
    const @UP_TABLE float *values;
    uint32_t key, count, begin = 0, end, middle;
    int bit;
    switch (place) {
$cases$
    default: return 0.0f;
    }
    if (!*text) return 0.0f;
    for (key = ~key; *text; text++) { /* the CRC-32 of the field and the text */
        key ^= (uint32_t)(unsigned char)*text;
        for (bit = 0; bit < 8; bit++) key = key & 1u ? (key >> 1) ^ 0xedb88320u : key >> 1;
    }
    key = ~key ? ~key : 1u;
    for (end = count; begin < end;) {
        middle = begin + (end - begin) / 2;
        if (keys[middle] < key) begin = middle + 1;
        else end = middle;
    }
    if (begin < count && keys[begin] == key) return values[begin];
    return count && keys[0] == 0u ? values[0] : 0.0f; /* 0: the numbers of unknown keys */
}

/* section: checked */
#if defined __FAST_MATH__ || defined _M_FP_FAST || (defined __FINITE_MATH_ONLY__ && __FINITE_MATH_ONLY__)
#error with -ffast-math, -ffinite-math-only or /fp:fast a compiler does not see which numbers are missing
#endif

/* section: macros */
#if defined __cplusplus || !defined __STDC_VERSION__
#define @UP_RESTRICT __restrict
#else
#define @UP_RESTRICT restrict
#endif

#if defined __FLASH && !defined __STRICT_ANSI__ /* avr-gcc with -std=gnu99 or later: tables stay in flash, and take no RAM */
#define @UP_TABLE __flash
#else
#define @UP_TABLE
#endif
