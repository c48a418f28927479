"""The stack and its parts against slow twins, and in constant streams."""

import math

import numpy as np
import pytest
from numba import config

from naive import NaiveNewton
from problems import ensemble_of
from streamsvm.core.steps import label_predictions, newton, stack
from streamsvm.core.steps.coordinate_ascent import detect_drift

ROWS = 150 if config.DISABLE_JIT else 700


class NaiveStacks:
    def __init__(self, n):
        first = np.array([0.0, 0.0] + [2.0 / (n - 2)] * (n - 2))
        self.models = [NaiveNewton(n, 1.0 - 1.0 / rows, ridge, first) for rows, ridge in ((1000.0, 1.0), (3000.0, 10.0))]
        self.errors, self.mistakes, self.choices, self.losses, self.t = np.zeros(n), np.zeros(n), np.zeros(3), np.zeros(2), 0

    def scores(self, inputs):
        shares = np.exp(self.losses.min() - self.losses)
        odds = [np.clip(inputs, -3.0, 3.0) @ model.weights for model in self.models]
        return (shares[0] * odds[0] + shares[1] * odds[1]) / shares.sum()

    @staticmethod
    def answer(values, alike=2.0**-16):
        return int(values[0] > alike) if len(values) == 1 else int(np.argmax(values >= max(values) - alike))

    def answers(self, inputs):
        by_input = [self.answer(inputs[:, m]) for m in range(inputs.shape[1])]
        weights = np.exp(-0.1 * (self.mistakes - self.mistakes[2:].min()))
        tally = np.bincount(by_input[2:], weights[2:], max(len(inputs), 2)) / weights[2:].sum()
        inputs[:, 1] = tally if len(inputs) > 1 else tally[1] - tally[0]
        best = by_input[2 + int(np.argmin(self.errors[2:]))]
        return [self.answer(self.scores(inputs), 0.0), self.answer(inputs[:, 1]), best]

    def learn(self, inputs, label, weight):
        answers = self.answers(inputs)
        self.t += 1
        rate = 1.0 / min(self.t + 1.0, 1000.0)
        for m in range(2, inputs.shape[1]):
            wrong = self.answer(inputs[:, m]) != label
            self.errors[m] += min(weight * rate, max(rate, 0.1)) * (wrong - self.errors[m])
            self.mistakes[m] = 0.999 * self.mistakes[m] + min(weight, 10.0) * wrong
        for i in range(3):
            self.choices[i] += min(weight * rate, max(rate, 0.1)) * ((answers[i] != label) - self.choices[i])
        for i, model in enumerate(self.models):
            self.learn_with_model(i, model, np.clip(inputs, -3.0, 3.0), label, weight)

    def learn_with_model(self, i, model, z, label, weight):
        scores = z @ model.weights
        if len(z) == 1:
            p = np.array([1.0, 1.0 + math.expm1(scores[0])]) / (1.0 + math.exp(scores[0]))
            direction, missing = z[0], label - p[1]
        else:
            p = np.exp(scores - scores.max())
            p /= p.sum()
            direction = z[label] - sum(p[k] * z[k] for k in range(len(p)) if k != label) / (1.0 - p[label])
            missing = 1.0 - p[label]
        self.losses[i] = 0.999 * self.losses[i] - min(weight, 10.0) * math.log(max(p[label], 1e-6))
        weight = min(weight, 10.0 + 0.1 * min(self.t, 1000.0))
        due = (self.t + 8 + 16 * i) % 64 == 0
        model.learn(direction, weight * missing, weight * max(p[label] * (1.0 - p[label]), 0.02), due)


def inputs_of(rng, label, outputs, n, skill):
    """Inputs of experts of different skill."""
    if outputs == 1:
        inputs = (2 * label - 1) * skill + rng.normal(size=(1, n))
        inputs[0, 0] = 1.0
    else:
        inputs = rng.normal(size=(outputs, n))
        inputs[label] += skill
        inputs[:, 0] = 0.0
    return inputs


@pytest.mark.parametrize("outputs", [1, 3, 5])
def test_stack_equals_its_naive_twin(outputs):
    rng, n = np.random.default_rng(outputs), 6
    skill = np.linspace(-0.2, 2.0, n)
    twin = NaiveStacks(n)
    block, v, c = ensemble_of(label_predictions, outputs)
    for t in range(1, ROWS):
        if t == ROWS // 2:
            skill = skill[::-1].copy()
        label, weight = int(rng.integers(max(outputs, 2))), float(rng.choice([0.5, 1.0, 4.0, 200.0], p=[0.33, 0.33, 0.33, 0.01]))
        inputs = inputs_of(rng, label, outputs, n, skill)
        expected = twin.answers(inputs.copy())
        c["t"], v.inputs[:] = t, inputs
        label_predictions.combine_predictions(block)
        np.testing.assert_allclose(v.scores, twin.scores(v.inputs), rtol=1e-6, atol=1e-8)
        assert v.answers.tolist() == expected
        stack.update_errors(block, float(label), weight)
        stack.choose_combination(block, float(label), weight)
        for i in range(2):
            label_predictions.learn_stack(block, label, weight, i)
        twin.learn(v.inputs.copy(), label, weight)
    np.testing.assert_allclose(v.errors, twin.errors)
    np.testing.assert_allclose(v.mistakes, twin.mistakes)
    np.testing.assert_allclose(v.choice_errors, twin.choices)
    np.testing.assert_allclose(v.losses, twin.losses)
    for curvature, model in zip(v.curvatures, twin.models, strict=True):
        np.testing.assert_allclose(curvature, model.exact, rtol=1e-9)


def test_stack_is_chosen_unless_another_is_significantly_better():
    block, v, c = ensemble_of(label_predictions, 1)

    def choose(answers, t):
        v.answers[:], c["t"] = answers, t
        return stack.choose_combination(block, 1.0, 1.0)

    assert choose([1, 1, 1], 1) == stack.STACK
    for t in range(2, 40):
        chosen = choose([0, 1, 1], t)
    assert chosen == stack.VOTES
    v.choice_errors[:] = 0.20, 0.20, 0.19
    assert choose([1, 1, 1], 40) == stack.STACK


@pytest.mark.parametrize("forgetting_factor", [1.0 - 1e-3, 1.0 - 1e-4])
def test_curvature_and_inverse_stay_accurate_in_a_constant_stream(forgetting_factor):
    # All rows have one direction: the curvature of the other directions must fade to the ridge, not to 0.
    rng, n = np.random.default_rng(0), 5
    curvature, inverse, direction, scratch = np.empty((n, n)), np.empty((n, n)), np.empty(n), np.empty((2, n))
    newton.reset_curvature(curvature, inverse, 1.0)
    rows = 2_000 if config.DISABLE_JIT else int(12.0 / (1.0 - forgetting_factor))
    for t in range(1, rows):
        z = rng.normal(size=n) if t < 1000 else np.eye(n)[0]
        newton.add_to_curvature(curvature, inverse, z, n, 0.25, forgetting_factor, 1.0, direction)
        if t % newton.ROWS_PER_INVERSE == 0:
            newton.invert_curvature(curvature, inverse, n, scratch)
    assert np.linalg.eigvalsh(curvature).min() > 0.99
    newton.invert_curvature(curvature, inverse, n, scratch)
    np.testing.assert_allclose(inverse @ curvature, np.eye(n), atol=1e-9)
    if not config.DISABLE_JIT:
        assert curvature[1, 1] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("n", [1, 2, 29, 30])
def test_inverse_equals_numpys(n):
    A = np.random.default_rng(1).normal(size=(40, n))
    A, inverse = A.T @ A + np.eye(n), np.zeros((31, 31))
    newton.invert_curvature(A, inverse, n, np.empty((2, 31)))
    np.testing.assert_allclose(inverse[:n, :n], np.linalg.inv(A), rtol=1e-9, atol=1e-12)
    assert not inverse[n].any()


def naive_drifts(errors, deviations, min_variance):
    """The rows where the detector should signal a drift."""
    drifts, start = [], 0
    for t in range(1, len(errors) + 1):
        fast = slow = 0.0
        for i, error in enumerate(errors[start:t], 1):
            fast += max(1.0 / i, 0.02) * (error - fast)
            slow += max(1.0 / i, 0.002) * (error - slow)
        if t - start > 200 and fast > slow + deviations * math.sqrt(max(slow * (1.0 - slow), min_variance) * 0.01):
            drifts.append(t)
            start = t
    return drifts


@pytest.mark.parametrize(("deviations", "min_variance"), [(3.0, 0.01), (4.0, 0.03)])
def test_drift_detector_equals_its_naive_twin(deviations, min_variance):
    rng = np.random.default_rng(2)
    errors = (rng.random(900) < np.where(np.arange(900) < 500, 0.1, 0.5)).astype(float)
    state = np.zeros(3)
    drifts = [t for t, error in enumerate(errors, 1) if detect_drift(state, error, deviations, min_variance)]
    assert drifts == naive_drifts(errors, deviations, min_variance)
    assert drifts
    assert 500 < drifts[0] < 560
