"""A slow reference implementation of the rolling forest for regression: half of its trees predict targets, half residuals."""

import numpy as np

from naive_forest import NaiveForest, Node

TARGET, MISSING = range(2)


class MeanNode(Node):
    """A leaf with the mean of its targets and a count of rows, or an inner node after `cut`."""

    def __init__(self, mean=0.0, rows=0):
        super().__init__()
        self.mean, self.rows = np.float32(mean), np.float32(rows)

    @classmethod
    def of(cls, leaf):
        return cls(*leaf.view(np.float32))


def predicted_before(views, first):
    """Return the prediction of the experts before the forest: the average of their mean vote and of the best expert."""
    some = slice(2, first)
    said, mistakes = np.clip(views.inputs[0, some], -10.0, 10.0), views.mistakes[some]
    votes = np.exp(0.1 * (mistakes.min() - mistakes))
    return 0.5 * (votes @ said / votes.sum() + said[np.argmin(views.errors[some])])


class NaiveForestOfNumbers(NaiveForest):
    """The forest for regression. Rows begin with the last target, the experts' prediction, and its last error."""

    work, node, kinds = 1500, MeanNode, 2

    def __init__(self, places, seed, columns):
        super().__init__(places, seed, 3 + columns)
        self.numbers, self.missed = np.zeros((2, places), np.float32), 0.0
        self.fractions[:3] = True

    @property
    def width(self):
        return 3 + self.features

    def row_with(self, given, last, base):
        return np.array(
            [np.float32(x) for x in (last, base, self.missed)]
            + [np.float32(x - a) for x, a in zip(given, self.anchors[3:], strict=False)]
        )

    def say(self, given, last, base):
        """Return the target predicted by the trees of targets, and by the trees of residuals."""
        row, means = self.row_with(given, last, base), []
        for kind in (TARGET, MISSING):
            votes = np.array(self.votes[kind::2], float)
            means.append(votes @ [float(tree.leaf(row)[0].mean) for tree in self.trees[kind::2]] / votes.sum())
        return means[0], base + means[1]

    def learn(self, given, last, base, target):
        row, place = self.row_with(given, last, base), self.learned % self.places
        numbers = target, target - float(np.float32(base))
        self.features = len(given)
        self.fractions[3 : len(row)] |= np.array(given) != np.floor(given)
        self.rows[place, : len(row)], self.numbers[:, place] = row, numbers
        self.learned += 1
        for t, tree in enumerate(self.trees):
            leaf, number = tree.leaf(row)[0], numbers[t % 2]
            self.ages[t] = min(self.ages[t] + 1, 48)
            error = float(self.errors[t])
            self.errors[t] = np.float32(error + (abs(number - float(leaf.mean)) - error) / (self.ages[t] + 2.0))
            leaf.rows = np.float32(min(float(leaf.rows) + 1.0, 20.0))
            leaf.mean = np.float32(float(leaf.mean) + (number - float(leaf.mean)) / float(leaf.rows))
        self.go_on()
        self.missed = numbers[1]

    def vote_of(self, error):
        return np.float32(1.0 / (0.01 + float(error)) ** 2)

    def known(self, place):
        return float(self.numbers[self.grown % 2, place])

    def is_mixed(self, members):
        return len(members) >= 8

    def columns(self):
        return range(self.width) if self.grown % 2 == MISSING else [0, *range(3, self.width)]

    def passed_over(self, j, bits):
        return False

    def choose(self, members, tests):
        """Return the index of the test that explains most of the variance, or None."""
        step = max(len(members) // 64, 1)
        some, best, most = members[::step], None, -1.0
        total = sum(number for _, number in some)
        for number, test in enumerate(tests):
            fails = [y for place, y in some if not self.passes(place, test)]
            if 0 < len(fails) < len(some):
                explained = (total - sum(fails)) ** 2 / (len(some) - len(fails)) + sum(fails) ** 2 / len(fails)
                if explained > most:
                    best, most = number, explained
        return best

    def make_leaf(self, node, members, mixed):
        some = [number for _, number in members[:: max(len(members) // 64, 1)]]
        node.mean, node.rows = np.float32(sum(some) / len(some)), np.float32(min(len(members), 20))
