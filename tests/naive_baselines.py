"""The slow twin of the baselines."""

import math

import numpy as np

from naive import rbf, split_mix


class NaiveBaseline:
    """The baselines with lists, by name; kernel values and inverses anew for every row. Random choices as the library's."""

    def __init__(self, rule, budget, gamma, seed=0, **options):
        self.rule, self.budget, self.gamma, self.random = rule, budget, gamma, seed
        self.options = options
        self.vectors, self.a = [], []
        self.mistakes, self.damage = 0, 0.0

    def kernels(self, x):
        return np.array([rbf(x, s, self.gamma) for s in self.vectors])

    def decide(self, x):
        return float(self.kernels(x) @ self.a) if self.a else 0.0

    def draw(self, n):
        number = split_mix(self.random)
        self.random = (self.random + 0x9E3779B97F4A7C15) % 2**64
        return number % n

    def remove(self, i):
        for values in (self.vectors, self.a):
            values[i] = values[-1]
            values.pop()

    def add(self, x, coefficient):
        self.vectors.append(np.asarray(x, float))
        self.a.append(coefficient)

    def learn(self, x, y):
        k = self.kernels(x)
        f = float(k @ self.a) if self.a else 0.0
        getattr(self, self.rule)(x, y, f, k)

    def perceptron(self, x, y, f, _):
        if y * f <= 0.0:
            self.add(x, y)

    def stoptron(self, x, y, f, _):
        if y * f <= 0.0 and len(self.a) < self.budget:
            self.add(x, y)

    def rbp(self, x, y, f, _):
        if y * f <= 0.0:
            if len(self.a) == self.budget:
                self.remove(self.draw(self.budget))
            self.add(x, y)

    def forgetron(self, x, y, f, _):
        if y * f > 0.0:
            return
        self.mistakes += 1
        self.add(x, y)
        if len(self.a) > self.budget:  # appended and removed in order: the oldest is the first
            sigma, mu = abs(self.a[0]), np.sign(self.a[0]) * self.decide(self.vectors[0])

            def damage(phi):
                return (sigma * phi) ** 2 + 2.0 * sigma * phi - 2.0 * sigma * phi * phi * mu

            left = 15.0 / 32.0 * self.mistakes - self.damage
            phi = 1.0
            if damage(1.0) > left:
                grid = np.linspace(0.0, 1.0, 1_000_001)
                phi = grid[np.flatnonzero(damage(grid) <= left)[-1]]
            self.damage += damage(phi)
            self.a = [phi * value for value in self.a[1:]]
            self.vectors = self.vectors[1:]

    def bpas(self, x, y, f, k):
        loss = 1.0 - y * f
        if loss > 0.0:
            beta = y * min(self.options["C"], loss)
            if len(self.a) == self.budget:
                r = int(np.argmin(np.square(self.a) * (1.0 - k**2)))
                beta += self.a[r] * k[r]
                self.remove(r)
            self.add(x, beta)

    def bogd(self, x, y, f, _):
        eta, l2 = self.options["eta0"], self.options["l2"]
        self.a = [(1.0 - eta * l2) * value for value in self.a]
        if y * f < 1.0:
            if len(self.a) == self.budget:
                self.remove(self.draw(self.budget))
                self.a = [value / (1.0 - 1.0 / self.budget) for value in self.a]
            self.add(x, eta * y)

    def ogd(self, x, y, f, _):
        eta, l2 = self.options["eta0"], self.options["l2"]
        self.a = [(1.0 - eta * l2) * value for value in self.a]
        if y * f < 1.0:
            self.add(x, eta * y)

    def projectron(self, x, y, f, k, plus=False):
        eta = self.options["eta"]
        gram = np.array([[rbf(s, t, self.gamma) for s in self.vectors] for t in self.vectors])
        d = np.linalg.solve(gram, k) if self.a else np.zeros(0)
        distance = math.sqrt(max(1.0 - float(k @ d), 0.0))
        step = 0.0
        if y * f <= 0.0:
            if distance > eta and len(self.a) < self.budget:
                self.add(x, y)
                return
            step = y
        elif plus and 0.0 < y * f < 1.0 and 1.0 - y * f >= distance / eta:
            loss, norm = 1.0 - y * f, float(k @ d)
            step = y * min(loss / norm, 2.0 * (loss - distance / eta) / norm, 1.0)
        self.a = list(np.array(self.a) + step * d)

    def projectron_pp(self, x, y, f, k):
        self.projectron(x, y, f, k, plus=True)

    def nogd(self, x, y, f, k):
        eta = self.options["eta0"]
        step = eta * y if y * f < 1.0 else 0.0
        if len(self.a) < self.budget:
            self.add(x, step)
        elif step:
            gram = np.array([[rbf(s, t, self.gamma) for s in self.vectors] for t in self.vectors])
            values, vectors = np.linalg.eigh(gram)
            keep = np.argsort(values)[-self.options["rank"] :]
            keep = keep[values[keep] > 1e-6 * values.max()]
            z = (vectors[:, keep] / np.sqrt(values[keep])).T  # the Nystroem map: z @ k
            self.a = list(np.array(self.a) + step * z.T @ (z @ k))
