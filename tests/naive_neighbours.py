"""Slow twins of what an ensemble remembers: rows and how near they are, and which label follows which."""

import math

import numpy as np

NEAREST, TOLD, KEPT = 13, 2000, 10


class NaiveMemory:
    """Rows in places, with their targets: labels themselves, or numbers. Values are scaled; units are deviations of them."""

    def __init__(self, rows, cells, numbers=False, most=512):
        self.rows, self.cells, self.numbers, self.most = rows, cells, numbers, most
        self.least = 0.05 if numbers else 0.2  # what a feature counts at least
        self.vectors, self.targets, self.weights = [], [], []
        self.next = self.passed = self.told = 0
        self.relevance = np.zeros(0)
        self.damping = np.zeros(most)  # by how much less features count where there are labels

    @classmethod
    def of(cls, store, target_of):
        """That of a store; ``target_of`` has the label of a class."""
        h, v = store.views.header[0], store.views
        memory = cls(int(h["rows"]), int(h["cells"]), numbers=target_of is None)
        memory.vectors = list(store.vectors.astype(float))
        memory.targets = [t if target_of is None else target_of[int(t)] for t in v.targets[: store.n_rows].tolist()]
        memory.weights, memory.relevance = v.weights[: store.n_rows].tolist(), v.relevance[: h["row_width"]].copy()
        memory.next, memory.passed, memory.told = (int(h[name]) for name in ("next_slot", "n_correct", "n_informative"))
        return memory

    @property
    def room(self):
        features = len(self.relevance)
        return min(self.rows, self.cells // features // 16 * 16) if features else self.rows

    def age(self):
        """Another memory takes the rows, the oldest first."""
        for values in (self.vectors, self.targets, self.weights):
            values[:] = values[self.next :] + values[: self.next]
        self.next = 0

    def grow(self, features):
        """Features have come: rows have 0 of them, and where there is room for fewer rows the oldest go."""
        features = min(features, self.most)
        if features <= len(self.relevance):
            return
        self.age()
        more = np.zeros(features - len(self.relevance))
        self.relevance = np.concatenate([self.relevance, more])
        self.vectors = [np.concatenate([vector, more]) for vector in self.vectors[-self.room :]]
        self.targets, self.weights = self.targets[-self.room :], self.weights[-self.room :]

    def move(self, before, after):
        """Bring the rows from a scale (location and spread) to another: back to what was given, and from there."""
        n = len(self.relevance)
        (place, size), (to, by) = ((location[:n], spread[:n]) for location, spread in (before, after))
        varies = by > 0.0
        for i, vector in enumerate(self.vectors):
            moved = np.where(varies, (vector * size + place - to) / np.where(varies, by, 1.0), 0.0)
            self.vectors[i] = np.clip(moved, -8.0, 8.0)

    def counts(self):
        """What each feature counts."""
        largest = self.relevance.max(initial=0.0)
        if self.told <= 50 or largest <= 0.0:
            return np.ones(len(self.relevance))
        counts = self.least + (1.0 - self.least) * np.maximum(self.relevance, 0.0) / largest
        return counts if self.numbers else counts * (1.0 - self.damping[: len(counts)])

    def differences(self, x, units):
        """Of each row in each feature, in deviations and bounded; 0 in what is constant."""
        n = len(self.relevance)
        off = np.abs(np.array(self.vectors).reshape(-1, n) - x[:n])
        return np.where(units[:n] > 0.0, np.minimum(off / np.where(units[:n] > 0.0, units[:n], 1.0), 1.0), 0.0)

    def ask(self, x, units):
        """The nearest rows and the share of the votes that each has."""
        distances = sum(self.differences(x, units).T * self.counts()[:, None])  # one feature after the other, in all rows alike
        nearest = sorted(range(len(self.vectors)), key=lambda i: (round(1024.0 * distances[i]), i))[:NEAREST]
        votes = [self.weights[i] / (max(distances[i], 2.0**-15) + 1e-3) ** 3 for i in nearest]
        return nearest, [vote / sum(votes) for vote in votes]

    def say(self, x, units, labels=()):
        """Of each label its share of the votes from -1 to 1, the mean of numbers, or 0 where there is no row."""
        nearest, shares = self.ask(x, units)
        if self.numbers:
            return np.array([sum(share * self.targets[i] for i, share in zip(nearest, shares, strict=True))])
        said = dict.fromkeys(labels, -1.0 if nearest else 0.0)
        for i, share in zip(nearest, shares, strict=True):
            said[self.targets[i]] += 2.0 * share
        return np.array(list(said.values()))

    def learn(self, x, units, target, weight, missed):
        """Learn what features tell, and the row if it is missed, or the tenth that is not, or there is much room."""
        self.tell(x, units, target, weight)
        self.passed += not missed
        if not (missed or self.passed >= KEPT or len(self.vectors) < self.room / 2):
            return
        self.passed %= KEPT
        row = np.array(x[: len(self.relevance)], float)
        if len(self.vectors) < self.room:
            for of, value in ((self.vectors, row), (self.targets, target), (self.weights, weight)):
                of.append(value)
            return
        self.vectors[self.next], self.targets[self.next], self.weights[self.next] = row, target, weight
        self.next = (self.next + 1) % self.room

    def tell(self, x, units, target, weight):
        nearest, _ = self.ask(x, units)
        errors = np.array([abs(self.targets[i] - target) if self.numbers else float(self.targets[i] != target) for i in nearest])
        if not nearest or errors.std() < 1e-6:
            return
        self.told += 1
        rate = 1.0 / min(self.told, TOLD)
        differences = self.differences(x, units)[nearest]
        covariance = ((errors - errors.mean())[:, None] * differences).mean(axis=0)
        share = min(weight * rate, max(rate, 0.1))
        self.relevance += share * (covariance / errors.std() - self.relevance)


class NaiveTable:
    """How often a label followed each other one, by their names; the first 64 labels have a place."""

    def __init__(self, most=64):
        self.most, self.last, self.follows, self.counts = most, None, {}, {}

    def say(self, labels):
        """What the last label says of the next one: of two labels two numbers, of more two for each."""
        two = len(labels) == 2
        if self.last is None:
            return np.zeros((1 if two else len(labels), 2))
        same = np.array([1.0 if label == self.last else -1.0 for label in labels])
        odds = np.zeros(len(labels))
        if self.last in labels[: self.most]:
            rows, after = sum(self.counts.values()), self.follows.get(self.last, {})
            for k, label in enumerate(labels):
                expected = (self.counts.get(label, 0.0) + 0.5) / (rows + 0.5 * len(labels))
                share = (after.get(label, 0.0) + 2.0 * expected) / (sum(after.values()) + 2.0)
                odds[k] = math.log(share * len(labels))
        if two:
            return np.array([[same[1], odds[1] - odds[0]]])
        return np.column_stack([0.5 * same, odds])

    def learn(self, label, weight, labels):
        if self.last in labels[: self.most]:
            after = self.follows.setdefault(self.last, {})
            for other in after:
                after[other] *= 0.998
            if label in labels[: self.most]:
                after[label] = after.get(label, 0.0) + min(weight, 10.0)
        self.counts[label] = self.counts.get(label, 0.0) + weight
        self.last = label
