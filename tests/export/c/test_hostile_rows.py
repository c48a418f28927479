"""Learners in C under the sanitizers: whatever rows and states come, no number is out of bounds, and the steps are Python's."""

import copy
import subprocess

import numpy as np
import pytest

from c_compilers import COMPILERS, needs_compiler
from c_sanitized import build_program
from learners_in_c import KINDS, assert_equal, learner, rows
from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.export.c.learning import restore_state, serialise_state, write_learning_c

pytestmark = [needs_compiler, pytest.mark.thorough]
ROW = np.dtype([("x", np.float32, 5), ("label", np.intc)])
LONGEST = np.float32(0.999e18 / np.sqrt(5.0))


def learned(model, compiler, folder, *rows):
    """The model as C has taught it rows of the type `ROW`, for each array of rows."""
    write_learning_c(model, folder, "model")
    program = build_program(folder, compiler, _LEARN)
    for given in rows:
        given.tofile(folder / "rows.bin")
        subprocess.run([program, folder / "rows.bin", folder / "state.bin"], check=True)
        yield restore_state(model, (folder / "state.bin").read_bytes())


def of(X, y):
    given = np.zeros(len(X), ROW)
    given["x"], given["label"] = X, y
    return given


def hostile(seed=0):
    """Rows of numbers that none has, among those that models know."""
    rng = np.random.default_rng(seed)
    given = of(*rows(600, seed))
    for value in (np.nan, np.inf, -np.inf, 1e38, -3e38, 1e18, 1e-45, -1e-40, 0.0, -0.0):
        given["x"][rng.random((600, 5)) < 0.03] = value
        given["x"][rng.integers(600, size=8)] = value
    given["label"][rng.integers(600, size=60)] = rng.choice([2, -1, 2**31 - 1, -(2**31), 256], 60)
    return given


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(("kind", "parameters"), KINDS)
def test_rows_that_a_sensor_gives_and_rows_that_none_should(kind, parameters, compiler, tmp_path):
    model, (X, y), given = learner(kind, parameters), rows(2000, seed=1), hostile()
    taken, spoilt = learned(model, compiler, tmp_path, of(X, y), given)
    other = copy.deepcopy(model)
    other.learn_many(X, y)
    assert_equal(other, taken, 1e-4)
    known = given[(given["label"] == 0) | (given["label"] == 1)]
    X = np.clip(np.where(np.isfinite(known["x"]), known["x"], np.float32(0.0)), -LONGEST, LONGEST)
    model.learn_many(X, known["label"])
    assert spoilt.n_learned == model.n_learned < 640
    assert_equal(model, spoilt, 1e-4)


@pytest.mark.parametrize("kind", [BSGDClassifier, BSCAClassifier])
def test_rows_that_are_scaled(kind, tmp_path):
    """One feature never changes, and is as large as floats are: what comes may be twice as far from it."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(600, 3)), np.full(600, 2e38), 1e30 * rng.normal(size=600)])
    model = kind(budget=15, seed=0)
    model.learn_many(X, (X[:, 0] > 0.0).astype(int))
    given = hostile()
    given["x"][::7, 3] = -3e38
    [taken] = learned(model, COMPILERS[0], tmp_path, given)
    assert taken.n_learned == 600 + int(np.isin(given["label"], (0, 1)).sum())


_LEARN = """
#include <stdio.h>
#include "model_learn.h"
int main(int argc, char **argv)
{
    FILE *from = argc > 2 ? fopen(argv[1], "rb") : 0, *to = argc > 2 ? fopen(argv[2], "wb") : 0;
    float x[MODEL_LEARN_FEATURES], f;
    int label;
    if (!from || !to) return 2;
    while (fread(x, sizeof x, 1, from) == 1 && fread(&label, sizeof label, 1, from) == 1) {
        if (model_learn(x, label) != (label == 0 || label == 1)) return 3;
        f = model_learn_decision(x);
        if (!(f - f == 0.0f) || model_learn_predict(x) != (f > 0.0f)) return 4;
    }
    fwrite(model_learn_state(), 1, MODEL_LEARN_BYTES, to);
    if (!model_learn_restore(model_learn_state(), MODEL_LEARN_BYTES)) return 5; /* what any rows have led to comes back */
    return fclose(from) || fclose(to);
}
"""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_any_state_that_is_taken_can_go_on(compiler, tmp_path):
    model = learner(*KINDS[4])
    write_learning_c(model, tmp_path, "model")
    (tmp_path / "state.bin").write_bytes(serialise_state(model))
    subprocess.run([build_program(tmp_path, compiler, _RESTORE), tmp_path / "state.bin"], check=True)


_RESTORE = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "model_learn.h"
static unsigned char data[MODEL_LEARN_BYTES], wild[MODEL_LEARN_BYTES];
static uint32_t state = 1;
static uint32_t next(void) { state = state * 1664525u + 1013904223u; return state ^ (state >> 13); }
static uint32_t sum(void)
{
    uint32_t found = 0xffffffffu;
    unsigned k;
    int bit;
    for (k = 0; k < sizeof wild - 4; k++)
        for (found ^= wild[k], bit = 0; bit < 8; bit++) found = (found >> 1) ^ (found & 1u ? 0xedb88320u : 0u);
    return ~found;
}
int main(int argc, char **argv)
{
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : 0;
    float x[MODEL_LEARN_FEATURES];
    int n, j;
    if (!file || fread(data, 1, sizeof data, file) != sizeof data) return 2;
    fclose(file);
    for (n = 0; n < 1000; n++) {
        uint32_t found;
        memcpy(wild, data, sizeof data);
        for (j = 0; j < 3; j++) wild[next() % (sizeof wild - 4)] = (unsigned char)next();
        found = sum();
        memcpy(wild + sizeof wild - 4, &found, 4);
        model_learn_restore(wild, sizeof wild);
        for (j = 0; j < MODEL_LEARN_FEATURES; j++) {
            union { uint32_t i; float f; } bits;
            bits.i = next();
            x[j] = n % 2 ? bits.f : (float)(int32_t)bits.i * 1e-9f;
        }
        for (j = 0; j < 20; j++) {
            x[j % MODEL_LEARN_FEATURES] += 0.1f;
            model_learn(x, j % 2);
        }
        if (model_learn(x, 2)) return 3;
        model_learn_predict(x);
    }
    return model_learn_restore(data, sizeof data) ? 0 : 4;
}
"""
