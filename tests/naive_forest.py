"""A slow reference implementation of an ensemble's rolling forest, with trees of Python objects and original labels."""

import math

import numpy as np

TREES, NODES, DEPTH, WORK = 16, 1200, 28, 600
MOST_COUNTED = 120


class Random:
    """The random generator SplitMix64; both halves of its numbers are used separately."""

    def __init__(self, state):
        self.state = state

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)


def low(bits, n):
    return bits % 2**32 * n >> 32


def high(bits, n):
    return (bits >> 32) * n >> 32


def midway(a, b):
    middle = np.float32(np.float32(0.5) * (a + b))
    return min(a, b) if middle == max(a, b) else middle


class Node:
    """A leaf with the counts of two labels and the position of a row, or an inner node after `cut`."""

    def __init__(self, label=None, place=0, first=0, other=None, second=0):
        self.label, self.place, self.first, self.other, self.second = label, place, first, other, second
        self.feature = None

    @classmethod
    def of(cls, leaf):
        """Return the node of a leaf in a store; labels are class indices."""
        label, other, place, counts = map(int, leaf)
        return cls(label, place, counts % 256, other, counts // 256)

    def cut(self, feature, equal, threshold, left, right):
        self.feature, self.equal, self.threshold, self.left, self.right = feature, equal, threshold, left, right

    def passes(self, row):
        return row[self.feature] == self.threshold if self.equal else row[self.feature] <= self.threshold

    def leaf(self, row):
        """Return the leaf of a row, and its depth."""
        node, depth = self, 0
        while node.feature is not None:
            node, depth = node.left if node.passes(row) else node.right, depth + 1
        return node, depth

    def nodes(self):
        return [self] if self.feature is None else [self, *self.left.nodes(), *self.right.nodes()]


def tree_of(links, thresholds, nodes):
    """Return the tree that a store has in arrays; ``nodes`` has each of its nodes as a leaf."""
    for node, link, threshold in zip(nodes, links.tolist(), thresholds, strict=True):
        if threshold != math.inf:
            left = link % 2**16
            node.cut(link // 2**16 % 2**14, link // 2**30, threshold, nodes[left], nodes[left + 1])
    return nodes[0]


class NaiveForest:
    """The forest for classification. Rows are float32, relative to the anchors of their columns."""

    work, node, kinds = WORK, Node, 1

    def __init__(self, places, seed, columns):
        self.places, self.random, self.features = places, Random(seed), 0
        self.rows, self.labels = np.zeros((places, columns), np.float32), [None] * places
        self.fractions, self.anchors, self.damping = np.zeros(columns, bool), np.zeros(columns), np.zeros(columns)
        self.trees = [self.node() for _ in range(TREES)]
        self.errors, self.votes, self.ages = [np.float32(0.5)] * TREES, [np.float32(1.0)] * TREES, [0] * TREES
        self.learned = self.grown = self.due = 0

    @classmethod
    def of(cls, store):
        """Return the forest of a store, as it votes; labels are class indices."""
        v = store.views
        forest = cls(len(v.labels), 0, len(v.anchors))
        forest.anchors, forest.votes, forest.learned = v.anchors.copy(), v.votes.copy(), store.n_learned
        forest.missed = float(v.header["last_residual"][0])
        trees = (store.get_tree(number) for number in range(TREES))
        forest.trees = [tree_of(links, cuts, [cls.node.of(leaf) for leaf in leaves]) for links, cuts, leaves in trees]
        return forest

    def row(self, given):
        return np.array([np.float32(value - anchor) for value, anchor in zip(given, self.anchors, strict=False)], np.float32)

    def move_anchor(self, j, anchor):
        shift = self.anchors[j] - anchor
        self.anchors[j] = anchor
        held = min(self.learned, self.places)
        self.rows[:held, j] = (self.rows[:held, j].astype(float) + shift).astype(np.float32)
        cuts = [node for tree in self.trees for node in tree.nodes() if node.feature is not None]
        for node in cuts:
            if node.feature == j:
                node.threshold = np.float32(float(node.threshold) + shift)

    def shares(self, given, labels):
        """Return the share of the votes of each label."""
        shares = dict.fromkeys(labels, 0.0)
        for tree, vote in zip(self.trees, self.votes, strict=True):
            leaf, _ = tree.leaf(self.row(given))
            for label, n in ((leaf.label, leaf.first), (leaf.other, leaf.second)):
                if n:
                    shares[label] += float(vote) * n / (leaf.first + leaf.second)
        return np.array(list(shares.values())) / sum(map(float, self.votes))

    def say(self, given, labels):
        """Return the inputs to the stacks, [outputs, 2]."""
        if self.learned == 0:
            return np.zeros((1 if len(labels) == 2 else len(labels), 2))
        p = self.shares(given, labels)
        inputs = np.column_stack([2.0 * p - 1.0, 0.5 * np.log(np.maximum(p, 0.02)) + 1.0])
        return 0.5 * (inputs[1:] - inputs[:1]) if len(labels) == 2 else inputs

    def learn(self, given, label, labels):
        row, place = self.row(given), self.learned % self.places
        self.features, self.n_labels = len(row), max(len(labels), 2)
        self.fractions[: len(row)] |= np.array(given) != np.floor(given)
        self.rows[place, : len(row)], self.labels[place] = row, label
        self.learned += 1
        for t, tree in enumerate(self.trees):
            self.teach(t, tree, row, place, label)
        self.go_on()

    def vote_of(self, error):
        return np.float32(math.exp(-4.0 * float(error)))

    def go_on(self):
        """Update the weight of a tree by its error, and grow a new tree if it is due."""
        t = (self.learned - 1) % TREES
        self.votes[t] = self.vote_of(self.errors[t])
        if self.learned >= max(10, self.due):
            self.due = self.learned + max(min(self.learned // 32, 100), self.grow() // self.work, 1)

    def teach(self, t, tree, row, place, label):
        leaf, depth = tree.leaf(row)
        wrong = leaf.label != label or leaf.first == 0
        self.ages[t] = min(self.ages[t] + 1, 48)
        self.errors[t] = np.float32(float(self.errors[t]) + (wrong - float(self.errors[t])) / (self.ages[t] + 2.0))
        if leaf.first == 0:  # no row has reached it yet
            leaf.label, leaf.place, leaf.first = label, place, 1
        elif leaf.label == label:
            leaf.first, leaf.place = leaf.first + 1, place
        elif leaf.second == 0 and depth < DEPTH and self.cut(tree, leaf, row, place, label):
            return
        elif leaf.second and leaf.other == label:
            leaf.second += 1
        elif leaf.second <= 1:
            leaf.other, leaf.second = label, 1
        else:
            leaf.second -= 1
        if leaf.second > leaf.first:
            leaf.first, leaf.second, leaf.label, leaf.other, leaf.place = leaf.second, leaf.first, label, leaf.label, place
        if leaf.first >= MOST_COUNTED:
            leaf.first, leaf.second = (leaf.first + 1) // 2, leaf.second // 2

    def cut(self, tree, leaf, row, place, label):
        """Split a leaf with one label between its latest row and a row with another label."""
        if len(tree.nodes()) + 2 > NODES or self.labels[leaf.place] != leaf.label or not self.features:
            return False
        for left in range(7, -1, -1):
            bits = self.random.bits()
            j = low(bits, self.features)
            here, there = row[j], self.rows[leaf.place, j]
            if here != there and (left == 0 or not self.passed_over(j, bits)):
                break
        else:
            return False
        equal = not self.fractions[j] and bits >= 2**63
        threshold = here if equal else midway(here, there)
        mine, other = Node(label, place, 1), Node(leaf.label, leaf.place, leaf.first)
        passes = equal or here <= threshold
        leaf.cut(j, equal, threshold, *((mine, other) if passes else (other, mine)))
        return True

    @property
    def width(self):
        """Return the number of used columns of a row."""
        return self.features

    def passed_over(self, j, bits):
        return 0.9 * self.damping[j] > (bits >> 32) % 2**31 / 2**31

    def grow(self):
        """Grow a tree breadth first, and return the amount of work."""
        work = window = min(self.learned, 5 * self.places // 6)
        drawn = []
        for back in range(window):
            if self.random.bits() >> 32 < int(0.85 * 2**32):
                place = (self.learned - 1 - back) % self.places
                drawn.append((place, self.known(place)))
        if len(drawn) < 4:
            return work
        root, nodes, oldest = self.node(), 1, self.grown % TREES
        waiting = [(root, drawn, True, 0)]
        while waiting:
            node, members, mixed, depth = waiting.pop(0)
            n, best = len(members), None
            work += 8
            if mixed and n >= 2 and nodes + 2 <= NODES and depth < DEPTH:
                tests, tries = self.draw_tests(members)
                best = self.choose(members, tests)
                work += 3 * tries + len(tests) * min(n, 64)
            if best is not None:
                work += 2 * n
                left, first, last = list(members), 0, n - 1
                while first <= last:  # rows that fail the test are swapped with rows at the end
                    if self.passes(left[first][0], tests[best]):
                        first += 1
                    else:
                        left[first], left[last] = left[last], left[first]
                        last -= 1
                members = left
            if best is None or first in (0, n):
                self.make_leaf(node, members, mixed)
                continue
            node.cut(*tests[best], self.node(), self.node())
            nodes += 2
            for child, some in ((node.left, members[:first]), (node.right, members[first:])):
                waiting.append((child, some, self.is_mixed(some), depth + 1))
        self.trees[oldest] = root
        others = [float(e) for t, e in enumerate(self.errors) if t != oldest and (t - oldest) % self.kinds == 0]
        self.errors[oldest] = np.float32(sum(others) / len(others))
        self.votes[oldest] = self.vote_of(self.errors[oldest])
        self.ages[oldest] = 20 if self.learned >= 1000 else 0
        self.grown += 1
        return work

    def known(self, place):
        return self.labels[place]

    def is_mixed(self, members):
        return len({label for _, label in members}) > 1

    def choose(self, members, tests):
        """Return the index of the test with the purest labels, or None."""
        counts = [({}, {}) for _ in tests]
        for place, label in members[:: max(len(members) // 64, 1)]:
            for test, sides in zip(tests, counts, strict=True):
                side = sides[0 if self.passes(place, test) else 1]
                side[label] = side.get(label, 0) + 1
        return self.best(counts)

    def passes(self, place, test):
        j, equal, threshold = test
        return self.rows[place, j] == threshold if equal else self.rows[place, j] <= threshold

    def columns(self):
        """Return the columns from which tests are drawn."""
        return range(self.features)

    def draw_tests(self, members):
        columns, n, tries, tests = self.columns(), len(members), 0, []
        wanted = 4 * min(self.width, math.ceil(math.sqrt(self.width)) + 1)
        wanted = 2 * wanted if n >= 256 else max(wanted // 3, 2) if n < 6 else wanted
        while len(tests) < wanted and tries < 4 * wanted and columns:
            tries += 1
            bits, more = self.random.bits(), self.random.bits()
            j = columns[low(bits, len(columns))]
            if self.passed_over(j, more):
                continue
            a, b = (self.rows[members[i][0], j] for i in (high(bits, n), low(more, n)))
            if not self.fractions[j] and (a == b or more >= 2**63):
                tests.append((j, True, a))
            elif a != b:
                tests.append((j, False, midway(a, b)))
        return tests, tries

    def best(self, counts):
        """Return the test with the purest labels; None if no test has rows on both sides."""
        found, purest = None, -1.0
        for number, sides in enumerate(counts):
            if all(sides):
                pure = sum(sum(n * n for n in side.values()) / sum(side.values()) for side in sides)
                if pure > purest:
                    found, purest = number, pure
        return found

    def make_leaf(self, node, members, mixed):
        some = [members[0]] if not mixed else members[:: max(len(members) // 64, 1)]
        counts = {}
        for _, label in some:
            counts[label] = counts.get(label, 0) + 1
        node.label = label = max(counts, key=counts.get)
        # Among equally frequent labels, the second label is the one whose first row comes first.
        others = sorted((-n, [k for _, k in some].index(k)) for k, n in counts.items() if k != label)
        node.first = counts[label] if mixed else len(members)
        node.place = [place for place, k in some if k == label][-1]
        if others:
            node.second, node.other = -others[0][0], some[others[0][1]][1]
        if node.first >= MOST_COUNTED:
            node.first, node.second = MOST_COUNTED - 1, node.second * (MOST_COUNTED - 1) // node.first
