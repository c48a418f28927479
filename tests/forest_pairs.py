"""A committee and the twin of its rolling forest, which learn the same rows: what those of labels and of numbers share."""

import numpy as np

from problems import place_of
from streamsvm.learners.experts import Forest


def features_of(t, n, z, rng):
    """Row t of n: with a name, a time that is far from 0, and a feature that comes late."""
    x = {"a": 3.0 * z[0], "name": float(rng.integers(6)), "time": 1.7e9 + 60.0 * t, "constant": 7.0}
    if t > n // 3:
        x["late"] = z[1] if t > n // 2 else float(np.round(z[1]))
    return x


def store_of(model):
    return place_of(model, Forest)[0][0]


class Pair:
    """The committee, and the twin."""

    #: Of what float32 holds beside the twin.
    rtol = 1e-6

    def __init__(self, model, twin):
        self.model, self.twin, self.first = model, twin, place_of(model, Forest)[1]

    def given(self, x):
        return [x.get(name, 0.0) for name in self.model.feature_names]

    def said(self):
        """What the forest has said of the row at hand, of each output two numbers."""
        return self.model._store.views.inputs[: self.model._outputs, self.first : self.first + 2]

    def learn_by_model(self, x, y, weight):
        """Let the model learn a row, and the twin follow its anchors."""
        before = store_of(self.model).views.anchors.copy()
        self.model.learn_one(x, y, weight)
        after = store_of(self.model).views.anchors
        for j in np.flatnonzero(np.pad(before, (0, len(after) - len(before))) != after).tolist():
            self.twin.move_anchor(j, float(after[j]))

    def compare(self):
        store, twin = store_of(self.model), self.twin
        h, v = store.views.header[0], store.views
        found = store.learned, store.grown, h["due"], int(h["random"])
        assert found == (twin.learned, twin.grown, twin.due, twin.random.state)
        np.testing.assert_array_equal(v.rows[:, : twin.width], twin.rows[:, : twin.width])
        for name in ("errors", "votes", "ages"):
            np.testing.assert_allclose(getattr(v, name), getattr(twin, name), rtol=self.rtol)

    def compare_trees(self):
        for number, tree in enumerate(self.twin.trees):
            links, thresholds, leaves = store_of(self.model).tree(number)
            pairs = [(0, tree)]
            while pairs:
                place, node = pairs.pop()
                if node.feature is not None:
                    link = int(links[place])
                    assert (link >> 16 & 0x3FFF, link >> 30, thresholds[place]) == (node.feature, node.equal, node.threshold)
                    pairs += [(link & 0xFFFF, node.left), ((link & 0xFFFF) + 1, node.right)]
                    continue
                assert thresholds[place] == np.inf
                self.compare_leaf(leaves[place], node)
