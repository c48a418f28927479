"""The ensemble for targets: its parts against slow twins, and robustness against outliers."""

import numpy as np
import pytest
from numba import config

import naive
from problems import answers, ensemble_of, functions_of, learned_by, sine_curve
from streamsvm import BSCARegressor, KernelRLSRegressor, SVMRegressor
from streamsvm.core.kernels import RBF
from streamsvm.core.steps import stack, target_predictions
from streamsvm.learners import OnlineLinearSVR
from streamsvm.learners.experts import (
    AdditiveExpert,
    KernelMachineExpert,
    LandmarkExpert,
    LastTargetExpert,
    LinearExpert,
    SecondOrderExpert,
)

N = 60 if config.DISABLE_JIT else 600
TABLE = np.column_stack(sine_curve(1000, 3, 0.1))


def rows(n=N, factor=1.0, origin=0.0):
    for *values, target in TABLE[:n]:
        x = {f"f{j}": float(v) for j, v in enumerate(values)}
        yield x, factor * target + origin


def made(**parameters):
    return SVMRegressor(**{"effort": "low", "max_features": 5, "seed": 3, **parameters})


def learned(data, **parameters):
    model = made(**parameters)
    learned_by(model, data)
    return model


def errors(data, **parameters):
    """Prequential."""
    data = list(data)
    return np.abs(np.subtract(answers(made(**parameters), data), [y for _, y in data]))


def error(data, **parameters):
    values = errors(data, **parameters)
    return float(values[len(values) // 2 :].mean())


@pytest.fixture(scope="module")
def plain():
    return errors(rows())


# The stack -------------------------------------------------------------------------------------------------------------------


class NaiveSquares(naive.NaiveNewton):
    """A stack."""

    def __init__(self, n, number):
        memory, ridge = ((1.0 - 1.0 / 1000.0, 3.0), (1.0 - 1.0 / 3000.0, 30.0))[number]
        super().__init__(n, memory, ridge, np.array([0.0, 0.0] + [1.0 / (n - 2)] * (n - 2)))
        self.loss, self.turn = 0.0, 8 + 16 * number

    def predict(self, inputs):
        return np.clip(self.weights @ inputs, -10.0, 10.0)

    def learn_row(self, inputs, target, weight, mean_error, t):
        missing = target - self.predict(inputs)
        self.loss = 0.999 * self.loss + abs(missing)
        h = weight * min(1.0, 1.5 * mean_error / abs(missing))
        self.learn(inputs, h * missing, h, (t + self.turn) % 64 == 0)


class NaiveStacks:
    def __init__(self, n):
        self.stacks = [NaiveSquares(n, number) for number in (0, 1)]
        self.errors, self.sums, self.choices, self.t = np.zeros(n), np.zeros(n), np.zeros(3), 0

    @staticmethod
    def average(values, losses):
        return np.average(values, weights=np.exp(-0.1 * (np.array(losses) - np.min(losses))))

    def answers(self, inputs):
        inputs[2:] = np.clip(inputs[2:], -10.0, 10.0)
        inputs[1] = self.average(inputs[2:], self.sums[2:])
        stacked = self.average([member.predict(inputs) for member in self.stacks], [member.loss for member in self.stacks])
        return np.array([stacked, inputs[1], inputs[2 + int(np.argmin(self.errors[2:]))]])

    def learn(self, inputs, target, weight):
        answers = self.answers(inputs)
        self.t += 1
        rate = 1.0 / min(self.t + 1.0, 1000.0)
        share = min(weight * rate, max(rate, 0.1))
        self.errors[2:] += share * (abs(target - inputs[2:]) - self.errors[2:])
        self.sums[2:] = 0.999 * self.sums[2:] + min(weight, 10.0) * abs(target - inputs[2:])
        self.choices += share * (abs(target - answers) - self.choices)
        for member in self.stacks:
            member.learn_row(inputs, target, weight, self.choices[0], self.t)


def test_the_stacks_equal_their_twin():
    rng, n = np.random.default_rng(0), 6
    noise = np.array([0.0, 0.0, 0.1, 0.3, 1.0, 3.0])
    twin = NaiveStacks(n)
    block, v, c = ensemble_of(target_predictions, 1)
    for t in range(1, 150 if config.DISABLE_JIT else 300):
        if t == 100:
            noise[2:] = noise[:1:-1]
        target, weight = (
            float(8.0 * np.tanh(rng.standard_t(2))),
            float(rng.choice([0.5, 1.0, 4.0, 200.0], p=[0.33, 0.33, 0.33, 0.01])),
        )
        inputs = target + noise * rng.normal(size=n) + (rng.random(n) < 0.02) * 40.0
        inputs[0] = 1.0
        expected = twin.answers(inputs.copy())
        c["t"], v.inputs[0] = t, inputs
        target_predictions.combine_predictions(block)
        np.testing.assert_allclose(v.numbers, expected, rtol=1e-6, atol=1e-8)
        stack.update_errors(block, target, weight)
        stack.choose_combination(block, target, weight)
        for i in range(2):
            target_predictions.learn_stack(block, target, weight, i)
        twin.learn(v.inputs[0].copy(), target, weight)
    np.testing.assert_allclose(v.errors, twin.errors)
    np.testing.assert_allclose(v.mistakes, twin.sums)
    np.testing.assert_allclose(v.choice_errors, twin.choices)
    for i, member in enumerate(twin.stacks):
        np.testing.assert_allclose(v.losses[i], member.loss)
        np.testing.assert_allclose(v.weights[i], member.weights, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(v.curvatures[i], member.exact, rtol=1e-9)


def test_predictions_follow_the_stacks_unless_another_is_significantly_better():
    block, v, c = ensemble_of(target_predictions, 1)
    v.numbers[:] = 1.0, 0.2, 0.5
    for t in range(1, 40):
        c["t"] = t
        chosen = stack.choose_combination(block, 0.0, 1.0)
    assert chosen == stack.VOTES
    np.testing.assert_allclose(v.choice_errors, np.array([1.0, 0.2, 0.5]) * 39 / 40, rtol=1e-9)
    c["t"], v.numbers[:], v.choice_errors[:] = 40, (0.20, 0.20, 0.19), (0.20, 0.20, 0.19)
    assert stack.choose_combination(block, 0.0, 1.0) == stack.STACK


def test_rows_with_large_errors_have_smaller_weights():
    assert stack.compute_robust_weight(0.0, 0.0) == 1.0
    assert stack.compute_robust_weight(1.5, 1.0) == 1.0
    assert stack.compute_robust_weight(6.0, 1.0) == pytest.approx(0.25)


# The experts -----------------------------------------------------------------------------------------------------------------


class NaiveLeastSquares(naive.NaiveNewton):
    """An expert of second order."""

    def __init__(self, n):
        super().__init__(n, 0.999, 1.0, np.zeros(n))
        self.error, self.t = 0.0, 0

    def predict(self, z):
        return float(np.clip(self.weights @ z, -10.0, 10.0))

    def learn_row(self, z, target, number):
        self.t += 1
        missing = target - self.predict(z)
        self.error += (abs(missing) - self.error) / min(self.t + 1.0, 1000.0)
        h = min(1.0, 1.5 * self.error / abs(missing)) if missing else 1.0
        turn = (self.t + 16 * number) % 64
        self.learn(z, h * missing, h, turn == 0, turn == 32)


@pytest.mark.once
def test_experts_equal_separate_learners():
    # Targets are scaled; boosting experts learn the residuals of another expert.
    model = SVMRegressor("low" if config.DISABLE_JIT else "normal", scaling=None, max_features=3, seed=3)
    model._features.find_columns(list(next(iter(rows(1)))[0]), True)
    model._grow_columns()
    team, stores, v = model._expert_specs, model._store.stores, model._store.views
    peers, twins = [], []
    for number, expert in enumerate(team):
        if isinstance(expert, KernelMachineExpert):
            peers.append((number, BSCARegressor(expert.budget, C=expert.state["C"], gamma=1.0, scaling=None, seed=3 + number)))
            peers[-1][1]._rule_record["one_pass"] = 0  # the stack sees to noise: the experts differ in C
        elif isinstance(expert, LinearExpert):
            peers.append((number, OnlineLinearSVR(C=expert.state["C"])))
        elif isinstance(expert, LandmarkExpert):
            kernel = {"kernel": "rbf"} if expert.kernel == RBF else {"kernel": "poly", "coef0": 1.0}
            peers.append((number, KernelRLSRegressor(expert.budget, gamma=1.0, **kernel)))
        elif isinstance(expert, SecondOrderExpert):
            functions = 4 if isinstance(expert, AdditiveExpert) else 1
            twins.append((number, functions, NaiveLeastSquares(1 + 3 * functions)))
    assert len(peers) == (4 if config.DISABLE_JIT else 6)
    for _, peer in peers:
        peer.expect_scaled_targets()
    base = next(v.experts["first_input"][number] for number, expert in enumerate(team) if isinstance(expert, AdditiveExpert))
    last = next(v.experts["first_input"][number] for number, expert in enumerate(team) if isinstance(expert, LastTargetExpert))
    history = []
    for x, y in rows(120 if config.DISABLE_JIT else 400):
        before = model._rule_record[0]["last_target"]
        model.learn_one(x, y)
        inputs = v.inputs[0]  # as they were when the row was learned
        assert inputs[last] == before
        history.append(y)
        deviation = np.std(history)
        target = (y - np.mean(history)) / deviation if deviation > 0.0 else 0.0  # none is so far that it is bounded
        assert model._rule_record[0]["last_target"] == pytest.approx(target, rel=1e-6, abs=1e-9)
        for number, functions, twin in twins:
            z = functions_of(x, functions)
            assert inputs[v.experts["first_input"][number]] == pytest.approx(twin.predict(z), rel=1e-6, abs=1e-8)
            twin.learn_row(z, target, v.experts["number"][number])
        for number, peer in peers:
            first, expert = v.experts["first_input"][number], team[number]
            part = target - (inputs[base] if v.experts["base_input"][number] else 0.0)
            if not isinstance(expert, LinearExpert):
                peer._store.views.header["gamma"] = stores[number][0].views.header["gamma"]
                peer._store.views.cache["valid"] = 0
            weight = 1.0
            if isinstance(expert, LandmarkExpert):
                weight = stack.compute_robust_weight(abs(target - inputs[first + 1]), v.errors[first + 1])
            peer.learn_one(x, part, w=weight)
    probe = next(iter(rows(1)))[0]
    model.predict_one(probe)
    for number, peer in peers:
        first, corrected = v.experts["first_input"][number], v.inputs[0, base] if v.experts["base_input"][number] else 0.0
        for output in (0, 1):
            f = peer._compute_output(probe, output)
            assert v.inputs[0, first + output] == pytest.approx(corrected + f, rel=1e-5, abs=1e-6), team[number].name


@pytest.mark.skipif(config.DISABLE_JIT, reason="a detector needs hundreds of rows")
def test_one_expert_resets_on_concept_drift():
    data = list(rows(500)) + [(x, -y) for x, y in rows(500)]
    model = learned(data)
    assert model._rule_record[0]["resets"] == 1
    losses = errors(data)
    assert losses[900:].mean() < 2.0 * losses[400:500].mean() < losses[500:600].mean()


# What users see --------------------------------------------------------------------------------------------------------------


def test_predictions_before_and_after_the_first_row():
    model = made()
    assert model.predict_one({"a": 1.0}) == 0.0
    model.learn_one({"a": 1.0}, 7.5)
    assert model.predict_one({"a": -3.0}) == 7.5
    assert model.predict_many(np.zeros((0, 1))).shape == (0,)


@pytest.mark.once
def test_units_and_origins_of_targets_do_not_matter(plain):
    plain = plain[N // 2 :].mean()
    assert error(rows(factor=1e5, origin=-3e6)) == pytest.approx(1e5 * plain, rel=1e-4)
    assert error(rows(), scaling=None) < 1.5 * plain


# Bad input -------------------------------------------------------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize(("place", "absurd"), [(0, 1e6), (5, -1e30), (N // 2, 1e30)])
def test_an_outlier_among_the_targets_does_little_harm(absurd, place, plain):
    data = list(rows())
    data[place] = data[place][0], absurd
    losses = errors(data)
    assert np.isfinite(losses).all()
    assert losses[-N // 4 :].mean() < 2.0 * plain[-N // 4 :].mean()


@pytest.mark.once
def test_constant_targets_for_a_long_time():
    model = made()
    for x, _ in rows(50):
        assert model.predict_one(x) in (0.0, 5.0)
        model.learn_one(x, 5.0)
    assert model.predict_one({"f0": 2.0}) == 5.0
    losses = np.abs(answers(model, rows()) - TABLE[:N, 3])
    assert np.isfinite(losses).all()
    assert np.mean(losses[N // 2 :]) < (5.0 if config.DISABLE_JIT else 1.0) * np.std(TABLE[:N, 3])


@pytest.mark.skipif(config.DISABLE_JIT, reason="takes minutes without compiled code, and says nothing new")
def test_targets_with_a_permanent_level_change(plain):
    changed = ((x, y + (500.0 * TABLE[:N, 3].std() if i >= N // 3 else 0.0)) for i, (x, y) in enumerate(rows()))
    assert errors(changed)[-N // 4 :].mean() < 2.0 * plain[-N // 4 :].mean()


@pytest.mark.once
def test_constant_targets_do_not_limit_later_ones():
    model = SVMRegressor("low", max_features=4, seed=0)
    for _ in range(40):  # 0.1: the mean of floats that are equal is not that number, to the last bit
        model.learn_one({"a": 1.0}, 0.1)
    for i in range(60):
        model.learn_one({"a": float(i % 2)}, 10.0 * (i % 2))
    assert abs(model.predict_one({"a": 1.0}) - 10.0) < 3.0
