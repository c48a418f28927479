"""Slow reference implementations of an ensemble's instance memory (k nearest neighbours) and its table of label transitions."""

import math

import numpy as np

NEAREST, TOLD, KEPT = 13, 2000, 10


class NaiveMemory:
    """An instance memory of scaled rows and their labels or targets. Units are standard deviations of the scaled values."""

    def __init__(self, rows, cells, numbers=False, most=512):
        self.rows, self.cells, self.numbers, self.most = rows, cells, numbers, most
        self.least = 0.05 if numbers else 0.2  # minimum weight of a feature
        self.vectors, self.targets, self.weights = [], [], []
        self.next = self.passed = self.told = 0
        self.relevance = np.zeros(0)
        self.damping = np.zeros(most)  # reduction of the weights of features, for classification

    @classmethod
    def of(cls, store, target_of):
        """Return the memory of a store; ``target_of`` maps class indices to labels."""
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
        """Move the rows to a memory of another size, the oldest first."""
        for values in (self.vectors, self.targets, self.weights):
            values[:] = values[self.next :] + values[: self.next]
        self.next = 0

    def grow(self, features):
        """Add features, which are 0 in all rows, and evict the oldest rows if fewer rows fit now."""
        features = min(features, self.most)
        if features <= len(self.relevance):
            return
        self.age()
        more = np.zeros(features - len(self.relevance))
        self.relevance = np.concatenate([self.relevance, more])
        self.vectors = [np.concatenate([vector, more]) for vector in self.vectors[-self.room :]]
        self.targets, self.weights = self.targets[-self.room :], self.weights[-self.room :]

    def move(self, before, after):
        """Convert the rows from one scale (location and spread) to another, by way of the original values."""
        n = len(self.relevance)
        (place, size), (to, by) = ((location[:n], spread[:n]) for location, spread in (before, after))
        varies = by > 0.0
        for i, vector in enumerate(self.vectors):
            moved = np.where(varies, (vector * size + place - to) / np.where(varies, by, 1.0), 0.0)
            self.vectors[i] = np.clip(moved, -8.0, 8.0)

    def counts(self):
        """Return the weight of each feature."""
        largest = self.relevance.max(initial=0.0)
        if self.told <= 50 or largest <= 0.0:
            return np.ones(len(self.relevance))
        counts = self.least + (1.0 - self.least) * np.maximum(self.relevance, 0.0) / largest
        return counts if self.numbers else counts * (1.0 - self.damping[: len(counts)])

    def differences(self, x, units):
        """Return the clipped differences of each row in each feature, in standard deviations; 0 for constant features."""
        n = len(self.relevance)
        off = np.abs(np.array(self.vectors).reshape(-1, n) - x[:n])
        return np.where(units[:n] > 0.0, np.minimum(off / np.where(units[:n] > 0.0, units[:n], 1.0), 1.0), 0.0)

    def ask(self, x, units):
        """Return the nearest rows and the share of the votes of each."""
        distances = sum(self.differences(x, units).T * self.counts()[:, None])  # sums features in the same order for all rows
        nearest = sorted(range(len(self.vectors)), key=lambda i: (round(1024.0 * distances[i]), i))[:NEAREST]
        votes = [self.weights[i] / (max(distances[i], 2.0**-15) + 1e-3) ** 3 for i in nearest]
        return nearest, [vote / sum(votes) for vote in votes]

    def say(self, x, units, labels=()):
        """Return the share of the votes of each label, from -1 to 1, or the mean of targets; 0 without rows."""
        nearest, shares = self.ask(x, units)
        if self.numbers:
            return np.array([sum(share * self.targets[i] for i, share in zip(nearest, shares, strict=True))])
        said = dict.fromkeys(labels, -1.0 if nearest else 0.0)
        for i, share in zip(nearest, shares, strict=True):
            said[self.targets[i]] += 2.0 * share
        return np.array(list(said.values()))

    def learn(self, x, units, target, weight, missed):
        """Update the weights of features, and store the row if it was missed, is every tenth other one, or much space is left."""
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
    """Counts of transitions between consecutive labels; only the first 64 labels are counted."""

    def __init__(self, most=64):
        self.most, self.last, self.follows, self.counts = most, None, {}, {}

    def say(self, labels):
        """Return the inputs predicted from the last label: two numbers for two labels, two for each label otherwise."""
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
