"""Learners in C under the sanitizers: hostile rows and states cause no access out of bounds, and the steps equal Python's."""

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
MAX_VALUE = np.float32(0.999e18 / np.sqrt(5.0))


def learn_in_c(model, compiler, folder, *rows):
    """Yield the model after C has learned each array of rows of the type `ROW`."""
    write_learning_c(model, folder, "model")
    program = build_program(folder, compiler, _LEARN)
    for array in rows:
        array.tofile(folder / "rows.bin")
        subprocess.run([program, folder / "rows.bin", folder / "state.bin"], check=True)
        yield restore_state(model, (folder / "state.bin").read_bytes())


def make_records(X, y):
    records = np.zeros(len(X), ROW)
    records["x"], records["label"] = X, y
    return records


def make_hostile_rows(seed=0):
    """Return usual rows with some extreme or invalid numbers and labels."""
    rng = np.random.default_rng(seed)
    records = make_records(*rows(600, seed))
    for value in (np.nan, np.inf, -np.inf, 1e38, -3e38, 1e18, 1e-45, -1e-40, 0.0, -0.0):
        records["x"][rng.random((600, 5)) < 0.03] = value
        records["x"][rng.integers(600, size=8)] = value
    records["label"][rng.integers(600, size=60)] = rng.choice([2, -1, 2**31 - 1, -(2**31), 256], 60)
    return records


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(("kind", "parameters"), KINDS)
def test_usual_and_hostile_rows_are_learned_as_in_python(kind, parameters, compiler, tmp_path):
    model, (X, y), hostile_rows = learner(kind, parameters), rows(2000, seed=1), make_hostile_rows()
    usual, hostile_model = learn_in_c(model, compiler, tmp_path, make_records(X, y), hostile_rows)
    expected = copy.deepcopy(model)
    expected.learn_many(X, y)
    assert_equal(expected, usual, 1e-4)
    valid = hostile_rows[(hostile_rows["label"] == 0) | (hostile_rows["label"] == 1)]
    X = np.clip(np.where(np.isfinite(valid["x"]), valid["x"], np.float32(0.0)), -MAX_VALUE, MAX_VALUE)
    model.learn_many(X, valid["label"])
    assert hostile_model.n_learned == model.n_learned < 640
    assert_equal(model, hostile_model, 1e-4)


@pytest.mark.parametrize("kind", [BSGDClassifier, BSCAClassifier])
def test_hostile_rows_of_a_scaled_learner(kind, tmp_path):
    """One feature is constant and near the largest float; hostile values differ from it by more than a float can hold."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(600, 3)), np.full(600, 2e38), 1e30 * rng.normal(size=600)])
    model = kind(budget=15, seed=0)
    model.learn_many(X, (X[:, 0] > 0.0).astype(int))
    hostile_rows = make_hostile_rows()
    hostile_rows["x"][::7, 3] = -3e38
    [restored] = learn_in_c(model, COMPILERS[0], tmp_path, hostile_rows)
    assert restored.n_learned == 600 + int(np.isin(hostile_rows["label"], (0, 1)).sum())


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
def test_mutated_states_are_refused_or_learn_on(compiler, tmp_path):
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
