"""Slow reference implementations of the compiled algorithms, written from the papers' formulas in Python and numpy."""

import math

import numpy as np
from scipy import optimize

POWER, WINDOW = 15.0, 1000.0


def rbf(x, s, gamma):
    return math.exp(-gamma * float(np.sum((np.asarray(x, float) - np.asarray(s, float)) ** 2)))


def merged_coefficient(a, b, kappa, h):
    """Coefficient of z = h x_b + (1 - h) x_a, where k(x_a, x_b) = kappa."""
    return a * kappa ** (h**2) + b * kappa ** ((1.0 - h) ** 2)


def weight_degradation(a, b, kappa, h):
    """Squared distance of the model before and after the merge, by the Gram matrix of x_a, x_b and z."""
    c = np.array([a, b, -merged_coefficient(a, b, kappa, h)])
    k_az, k_bz = kappa ** (h**2), kappa ** ((1.0 - h) ** 2)
    gram = np.array([[1.0, kappa, k_az], [kappa, 1.0, k_bz], [k_az, k_bz, 1.0]])
    return float(c @ gram @ c)


def best_merge(a, b, kappa):
    """Return h and the weight degradation of the best position, by a dense grid and a local search around its best point."""
    if kappa == 0.0:
        return (1.0, a * a) if abs(b) >= abs(a) else (0.0, b * b)
    grid = np.linspace(0.0, 1.0, 2001)
    values = np.array([abs(merged_coefficient(a, b, kappa, h)) for h in grid])
    at = int(values.argmax())
    low, high = grid[max(at - 1, 0)], grid[min(at + 1, 2000)]
    result = optimize.minimize_scalar(
        lambda h: -abs(merged_coefficient(a, b, kappa, h)), bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    )
    h = max((float(result.x), low, high), key=lambda h: abs(merged_coefficient(a, b, kappa, h)))
    return h, max(weight_degradation(a, b, kappa, h), 0.0)


class NaiveBSGD:
    """Budgeted SGD with lists, every coefficient written out: no scale factors, no look-ups, no shared memory."""

    def __init__(self, budget, gamma, l2, learning_rate="capped", eta0=1.0, averaging=2000, fit_intercept=False, keep="merge"):
        self.budget, self.gamma, self.l2 = budget, gamma, l2
        self.learning_rate, self.eta0, self.averaging = learning_rate, eta0, averaging
        self.fit_intercept, self.keep = fit_intercept, keep
        self.t = 0
        self.vectors, self.last, self.average, self.stamps = [], [], [], []
        self.stamp = 0
        self.bias = self.average_bias = 0.0
        self.errors = [0.0, 0.0]

    def decisions(self, x):
        kernels = [rbf(x, s, self.gamma) for s in self.vectors]
        last = np.dot(kernels, self.last) + self.bias
        return last, np.dot(kernels, self.average) + self.average_bias if self.averaging else last

    def learn(self, x, y, w=1.0):
        last, average = self.decisions(x)
        self.t += 1
        self._note((last, average), y)
        pegasos = 1.0 / (self.l2 * self.t)
        eta = {"pegasos": pegasos, "constant": self.eta0, "floor": max(pegasos, self.eta0), "capped": min(pegasos, self.eta0)}[
            self.learning_rate
        ]
        direction = self._direction(last, y)
        self.last = [a * (1.0 - self.l2 * eta) for a in self.last]
        self.bias = self._shrunk_bias(eta)
        if direction != 0.0:
            self._append(x, eta * w * direction, 0.0)
            if self.fit_intercept:
                self.bias += eta * w * direction
            if len(self.vectors) > self.budget:
                self._maintain()
        self._follow()

    def _note(self, decisions, y):
        for k, f in enumerate(decisions):
            self.errors[k] += max(1.0 / self.t, 1.0 / WINDOW) * (self._error(f, y) - self.errors[k])

    def _follow(self):
        if self.averaging:
            rho = min(max((POWER + 1.0) / (self.t + POWER), 1.0 / self.averaging), 1.0)
            self.average = [b + rho * (a - b) for a, b in zip(self.last, self.average, strict=True)]
            self.average_bias += rho * (self.bias - self.average_bias)

    def _direction(self, f, y):
        return y if y * f < 1.0 else 0.0

    def _error(self, f, y):
        return (f > 0.0) != (y > 0.0)

    def _shrunk_bias(self, eta):
        return self.bias * (1.0 - self.l2 * eta) if self.fit_intercept else self.bias

    def _append(self, x, a, b):
        self.vectors.append(np.asarray(x, float))
        self.last.append(a)
        self.average.append(b)
        self.stamps.append(self.stamp)
        self.stamp += 1

    def _pop(self, i):
        self.stamps.pop(i)
        return self.vectors.pop(i), self.last.pop(i), self.average.pop(i)

    def _maintain(self):
        first = min(range(len(self.last)), key=lambda i: (np.float32(abs(self.last[i])), self.stamps[i]))
        x, a, b = self._pop(first)
        if self.keep == "removal":
            return
        if self.keep == "projection":
            gram = np.array([[rbf(s, t, self.gamma) for s in self.vectors] for t in self.vectors])
            share = np.linalg.solve(gram + 1e-6 * np.diag(np.diag(gram)), [rbf(x, s, self.gamma) for s in self.vectors])
            self.last = list(np.array(self.last) + share * a)
            self.average = list(np.array(self.average) + share * b)
            return
        kappas = [rbf(x, s, self.gamma) for s in self.vectors]
        same = [i for i in range(len(self.vectors)) if self.last[i] * a > 0.0]
        if not same:
            nearest = max(range(len(kappas)), key=lambda i: kappas[i])
            self.last[nearest] += kappas[nearest] * a
            self.average[nearest] += kappas[nearest] * b
            return
        merges = {i: best_merge(a, self.last[i], kappas[i]) for i in same}
        partner = min(same, key=lambda i: (merges[i][1], self.stamps[i]))
        h, kappa = merges[partner][0], kappas[partner]
        s, c, d = self._pop(partner)
        self._append(h * s + (1.0 - h) * x, merged_coefficient(a, c, kappa, h), merged_coefficient(b, d, kappa, h))


def best_shared_merge(a, b, kappa):
    """(h, summed squared weight degradation) of coefficient vectors a and b, by the Gram matrix on a dense grid."""
    grid = np.linspace(0.0, 1.0, 4001)
    k_a, k_b = kappa ** (grid**2), kappa ** ((1.0 - grid) ** 2)
    merged = np.outer(a, k_a) + np.outer(b, k_b)
    before = a @ a + b @ b + 2.0 * kappa * (a @ b)
    losses = before - (merged**2).sum(axis=0)
    at = int(np.flatnonzero(losses <= losses.min() + 1e-9 * before)[-1])  # of two equal modes, b's
    return grid[at], max(losses[at], 0.0)


def shared_degradation(a, b, q, h):
    """Squared distance of a model before and after a merge of coefficient vectors a and b, by the Gram matrix, over outputs."""
    k_a, k_b, kappa = math.exp(-(h**2) * q), math.exp(-((1.0 - h) ** 2) * q), math.exp(-q)
    gram = np.array([[1.0, kappa, k_a], [kappa, 1.0, k_b], [k_a, k_b, 1.0]])
    return sum(np.array([x, y, -(k_a * x + k_b * y)]) @ gram @ [x, y, -(k_a * x + k_b * y)] for x, y in zip(a, b, strict=True))


def shared_position(search, a, b, q):
    """Return the position where a search merges coefficient vectors a and b, |a| <= |b|."""
    if search == "lookup-h":  # that of one output with coefficients |a| and |b|
        return best_merge(float(np.linalg.norm(a)), float(np.linalg.norm(b)), math.exp(-q))[0]
    if search == "lookup-wd":
        return best_shared_merge(a, b, math.exp(-q))[0]
    low, high, golden = 0.0, 1.0, (math.sqrt(5.0) - 1.0) / 2.0
    while high - low > {"gss": 1e-2, "gss-precise": 1e-10}[search]:
        left, right = high - golden * (high - low), low + golden * (high - low)
        if shared_degradation(a, b, q, left) < shared_degradation(a, b, q, right):
            high = right
        else:
            low = left
    positions = ((low + high) / 2.0, float((b @ b + a @ b) / ((a + b) @ (a + b))))
    return min(positions, key=lambda h: shared_degradation(a, b, q, h))


class NaiveMulticlassBSGD:
    """Budgeted SGD on Crammer and Singer's loss, with a dense matrix of coefficients. Pegasos' schedule, no average."""

    def __init__(self, budget, gamma, l2, classes, fit_intercept=False):
        self.budget, self.gamma, self.l2, self.fit_intercept = budget, gamma, l2, fit_intercept
        self.t = 0
        self.vectors, self.coefficients = [], np.zeros((0, classes))
        self.bias = np.zeros(classes)

    def decisions(self, x):
        return np.array([rbf(x, s, self.gamma) for s in self.vectors]) @ self.coefficients + self.bias

    def learn(self, x, y, w=1.0):
        f = self.decisions(x)
        self.t += 1
        rival = max((k for k in range(len(f)) if k != y), key=lambda k: f[k])
        self.coefficients = self.coefficients * (1.0 - 1.0 / self.t)
        if self.fit_intercept:
            self.bias = self.bias * (1.0 - 1.0 / self.t)
        if f[y] - f[rival] < 1.0:
            new = np.zeros(len(f))
            new[y] = 0.5 * w / (self.l2 * self.t)
            new[rival] = -new[y]
            self.vectors.append(np.asarray(x, float))
            self.coefficients = np.vstack([self.coefficients, new])
            if self.fit_intercept:
                self.bias = self.bias + new
            if len(self.vectors) > self.budget:
                self._merge()

    def _merge(self):
        c = self.coefficients
        first = int(np.float32((c**2).sum(axis=1)).argmin())
        found = {}
        for i in range(len(c)):
            if i != first and c[i] @ c[first] > 0.0:
                kappa = rbf(self.vectors[first], self.vectors[i], self.gamma)
                found[i] = (*best_shared_merge(c[first], c[i], kappa), kappa)
        i = min(found, key=lambda i: found[i][1])
        h, _, kappa = found[i]
        z = h * self.vectors[i] + (1.0 - h) * self.vectors[first]
        merged = kappa ** (h**2) * c[first] + kappa ** ((1.0 - h) ** 2) * c[i]
        keep = [k for k in range(len(c)) if k not in (i, first)]
        self.vectors = [self.vectors[k] for k in keep] + [z]
        self.coefficients = np.vstack([c[keep], merged])


class Insensitive:
    """The epsilon-insensitive loss."""

    def __init__(self, *args, epsilon, **kwargs):
        super().__init__(*args, **kwargs)
        self.epsilon = epsilon

    def _error(self, f, y):
        return abs(f - y)

    def _direction(self, f, y):
        return float(np.sign(y - f)) if abs(y - f) > self.epsilon else 0.0

    def _missing(self, f, y):
        return float(np.sign(y - f)) * max(abs(y - f) - self.epsilon, 0.0)


class NaiveBSGDRegression(Insensitive, NaiveBSGD):
    pass


class NaiveOneClass(NaiveBSGD):
    """Budgeted SGD for one class, of the rows below the median; the bias is minus a running ``nu`` quantile."""

    def __init__(self, budget, gamma, nu, averaging):
        super().__init__(budget, gamma, 0.5, learning_rate="capped", eta0=1.0, averaging=averaging)
        self.nu = nu
        self.centers, self.sizes, self.medians = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        self.quiet = [2.5, 2.5]

    def learn(self, x, y, w=1.0):
        self.biases = [self.bias, self.average_bias]
        super().learn(x, y, w)
        self.bias, self.average_bias = self.biases

    def _direction(self, f, _):
        return float(f <= self.centers[0] - self.medians[0] * self.sizes[0])

    def _note(self, decisions, y):
        super()._note(decisions, y)
        for k, f in enumerate(decisions):
            rate, deviation = max(1.0 / self.t, 0.01), f - self.centers[k]
            self.centers[k] += rate * deviation
            self.sizes[k] += rate * (abs(deviation) - self.sizes[k]) * (self.t > 1)
        self.decided = decisions

    def _follow(self):
        super()._follow()
        rate = max(0.5 / math.sqrt(self.t), 0.03)
        for k, f in enumerate(self.decided):
            self.medians[k] += rate * ((f <= self.centers[k] - self.medians[k] * self.sizes[k]) - 0.5)
            mean, threshold = self.centers[k] - self.biases[k], -self.biases[k]
            if self.t < max(100.0, 1.0 / self.nu) or threshold <= 1e-20:
                threshold = max(2.0 * self.nu * mean, 1e-20)
            self.quiet[k] = 0.0 if f < 0.0 else min(self.quiet[k] + self.nu, 50.0)
            step = self.nu - 1.0 if f < 0.0 else self.nu * max(self.quiet[k] - 4.0, 1.0)
            threshold *= math.exp(
                min(step * max(0.5 / math.sqrt(self.t), 0.2 * (1.0 - self.nu) ** 2), 0.5) * min(1.0, self.sizes[k] / threshold)
            )
            self.biases[k], self.centers[k] = -threshold, mean - threshold


class NaiveBSCA(NaiveBSGD):
    """Budgeted dual coordinate ascent in a single pass, without reprocessing; its lists are those of `NaiveBSGD`."""

    def __init__(self, budget, gamma, C, relaxation=1.0, tol=0.0, averaging=0):
        super().__init__(budget, gamma, l2=0.0, averaging=averaging)
        self.C, self.relaxation, self.tol = C, relaxation, tol
        self.missed = []  # relative violation of each row since the last drift, from 0 to 1

    def learn(self, x, y, w=1.0):
        last, average = self.decisions(x)
        self.t += 1
        self._note((last, average), y)
        missing = self._missing(last, y)
        if w == 1.0 and self._drifted(missing):
            self.last, self.bias = [0.5 * a for a in self.last], 0.5 * self.bias
            self.t, self.errors, self.missed = 1, [0.0, 0.0], []
            missing = self._missing(0.5 * last, y)
        if abs(missing) > self.tol:
            largest = self.largest_step() * w
            self._append(x, np.clip(self.relaxation * missing, -largest, largest), 0.0)
            if len(self.vectors) > self.budget:
                self._maintain()
        self._follow()

    def _drifted(self, missing):
        if not self.averaging:
            return False
        self.missed.append(self._missed(missing))
        fast = slow = 0.0
        for i, missed in enumerate(self.missed, 1):
            fast += max(1.0 / i, 0.02) * (missed - fast)
            slow += max(1.0 / i, 0.002) * (missed - slow)
        return len(self.missed) > 200 and fast > slow + 4.0 * math.sqrt(max(slow * (1.0 - slow), 0.03) * 0.01)

    def _missed(self, missing):
        return float(abs(missing) > 1.0)

    def largest_step(self):
        if not self.averaging:
            return self.C
        last, average = self.errors
        advantage = max(last - average, 0.0) / max(last**0.5, last) if last else 0.0
        bound = max(2.0 * np.exp(-50.0 * advantage * min(self.t / 4000.0, 1.0)), 0.1)
        return min(bound * max(last, 1.0), max(self.C, 3000.0 / self.t))

    def _missing(self, f, y):
        return y * max(1.0 - y * f, 0.0)


class NaiveBSCARegression(Insensitive, NaiveBSCA):
    def _missed(self, missing):
        return min(abs(missing), 1.0)


class NaiveEpochs(NaiveBSCA):
    """Passes with a coefficient a row: signed, alpha y of labels and alpha - alpha* of numbers."""

    def __init__(self, budget, gamma, C, relaxation=1.0, tol=0.0, averaging=0, epsilon=None):
        super().__init__(budget, gamma, C, relaxation, tol, averaging)
        self.epsilon, self.become = epsilon, {}

    def _error(self, f, y):
        return abs(f - y) if self.epsilon is not None else super()._error(f, y)

    def best(self, f, y, a, w):
        """Where the dual objective along a row's coordinate is largest, without and with the bounds, on a dense grid."""
        low, high = (-self.C * w, self.C * w) if self.epsilon is not None else sorted((0.0, y * self.C * w))
        free = np.linspace(a - 20.0, a + 20.0, 400_001)
        step = free - a
        gain = y * free - (np.abs(free) * self.epsilon if self.epsilon is not None else 0.0)
        return float(free[(gain - f * step - 0.5 * step**2).argmax()]), low, high

    def visit(self, i, x, y, w, coefficients):
        f = self.decisions(x)
        self.t += 1
        self._note(f, y)
        a = coefficients[i]
        best, low, high = self.best(f[0], y, a, w)
        new = float(np.clip(a + self.relaxation * (best - a), low, high))
        if abs(best - a) > self.tol + 1e-4 and abs(new - a) > 1e-9:
            coefficients[i] = new
            if self.become.get(i) in self.stamps:
                self.last[self.stamps.index(self.become[i])] += new - a
            else:
                self.become[i] = self.stamp
                self._append(x, new - a, 0.0)
                if len(self.vectors) > self.budget:
                    self._maintain()
        self._follow()


def multiclass_epoch(K, y, order, a, C, relaxation, tol):
    """A pass of coordinate ascent on Crammer and Singer's dual, without a budget, over coefficients a [n, classes]: pairwise.

    C [n] bounds the coefficient of a row's own class.
    """
    for i in order:
        f = K[i] @ a
        gains = np.eye(a.shape[1])[y[i]] - f
        can_rise = [k for k in range(a.shape[1]) if (a[i, k] < C[i] if k == y[i] else a[i, k] < 0.0)]
        if not can_rise:
            continue
        rising, falling = max(can_rise, key=lambda k: gains[k]), int(gains.argmin())
        missing = gains[rising] - gains[falling]
        if rising != falling and missing > tol:
            room = C[i] - a[i, rising] if rising == y[i] else -a[i, rising]
            step = min(relaxation * missing / (2.0 * K[i, i]), room)
            a[i, rising] += step
            a[i, falling] -= step


def split_mix(state):
    """The next of the library's random numbers, from the state before it."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


class NaiveLinear:
    """Passive-aggressive steps (Crammer et al. 2006, PA-I) on dicts of weights; None is the name of the intercept."""

    def __init__(self, C, fit_intercept=True, averaging=3000, epsilon=None):
        self.C, self.fit_intercept, self.averaging, self.epsilon = C, fit_intercept, averaging, epsilon
        self.t = 0
        self.last, self.average = {None: 0.0}, {None: 0.0}
        self.errors = [0.0, 0.0]

    def decisions(self, x):
        last, average = (sum(w.get(name, 0.0) * value for name, value in x.items()) + w[None] for w in (self.last, self.average))
        return last, average if self.averaging else last

    def follows_average(self):
        last, average = self.errors
        rows = min(self.t + 1.0, WINDOW)
        chance = math.sqrt(average / rows) if self.epsilon is None else average / math.sqrt(rows)
        return bool(self.averaging and average <= last + 0.5 * chance)

    def predict(self, x):
        f = self.decisions(x)[self.follows_average()]
        return f > 0.0 if self.epsilon is None else f

    def learn(self, x, target, weight):
        if weight == 0.0:
            return
        self.t += 1
        decisions = self.decisions(x)
        for layer, f in enumerate(decisions):
            error = float((f > 0.0) != (target > 0.0)) if self.epsilon is None else abs(target - f)
            self.errors[layer] += max(1.0 / self.t, 1.0 / WINDOW) * (error - self.errors[layer])
        f = decisions[0]
        if self.epsilon is None:
            loss, sign = max(0.0, 1.0 - target * f), target
        else:
            loss, sign = max(0.0, abs(target - f) - self.epsilon), math.copysign(1.0, target - f)
        norm = sum(value * value for value in x.values()) + self.fit_intercept
        step = sign * min(self.C * weight, loss / norm) if loss > 0.0 and norm > 0.0 else 0.0
        for name, value in x.items():
            self.last[name] = self.last.get(name, 0.0) + step * value
        self.last[None] += step * self.fit_intercept
        rho = min(max((POWER + 1.0) / (self.t + POWER), 1.0 / self.averaging), 1.0) if self.averaging else 0.0
        for name, value in self.last.items():
            self.average[name] = self.average.get(name, 0.0) + rho * (value - self.average.get(name, 0.0))
        if not self.averaging:
            self.average = self.last


class NaiveNewton:
    """The curvature as a sum, and its inverse by numpy; between two computations of it the ridge does not come back."""

    def __init__(self, n, memory, ridge, weights):
        self.memory, self.ridge, self.centre, self.weights = memory, ridge, weights.copy(), weights.copy()
        self.exact = ridge * np.eye(n)
        self.seen = self.exact.copy()

    def learn(self, z, missing, h, due, pulled=None):
        self.exact = self.memory * self.exact + h * np.outer(z, z) + (1.0 - self.memory) * self.ridge * np.eye(len(z))
        self.seen = self.memory * self.seen + h * np.outer(z, z)
        self.weights += missing * np.linalg.solve(self.seen, z)
        if due:
            self.seen = self.exact.copy()
        if due if pulled is None else pulled:
            force = 64 * (1.0 - self.memory) * self.ridge
            self.weights -= np.linalg.solve(self.seen, force * (self.weights - self.centre))
