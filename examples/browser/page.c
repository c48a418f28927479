/* What the page calls: the learner as streamsvm wrote it, with two features and a function for each thing that is shown. */
#include "model_learn.c"

#define EXPORT(name) __attribute__((export_name(name)))
#define SIDE 96 /* of the map: squares along each axis */

static float map[SIDE * SIDE];
static unsigned char given[MODEL_LEARN_BYTES];

EXPORT("learn") int page_learn(float x, float y, int label)
{
    const float point[2] = {x, y};
    return model_learn(point, label);
}

EXPORT("decision") float page_decision(float x, float y)
{
    const float point[2] = {x, y};
    return model_learn_decision(point);
}

EXPORT("map") const float *page_map(void) /* decision values in the middle of each square of the unit square */
{
    int i, j;
    for (i = 0; i < SIDE; i++)
        for (j = 0; j < SIDE; j++) map[i * SIDE + j] = page_decision(((float)j + 0.5f) / SIDE, ((float)i + 0.5f) / SIDE);
    return map;
}

EXPORT("side") int page_side(void) { return SIDE; }
EXPORT("budget") int page_budget(void) { return BUDGET; }
EXPORT("vectors") const float *page_vectors(void) { return s.vectors[0]; }
EXPORT("coefficients") const double *page_coefficients(void) { return s.coefficients; }
EXPORT("n_support") unsigned page_n_support(void) { return s.n; }
EXPORT("rows") double page_rows(void) { return (double)s.t; }
EXPORT("state_bytes") unsigned page_state_bytes(void) { return MODEL_LEARN_BYTES; }
EXPORT("state") const unsigned char *page_state(void) { return model_learn_state(); }
EXPORT("given") unsigned char *page_given(void) { return given; } /* where restore finds the bytes of a state */
EXPORT("restore") int page_restore(void) { return model_learn_restore(given, MODEL_LEARN_BYTES); }
