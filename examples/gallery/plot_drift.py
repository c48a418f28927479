"""Recovery from an abrupt change
==============================

After 3,000 rows, nothing that was learned about this stream is true any more: its clusters of rows have new places
and labels. How soon is a learner as good as before? The curves are means over three such streams.
"""

import matplotlib.pyplot as plt
import numpy as np
from river import drift, tree
from river.datasets import synth

from streamsvm import BSCAClassifier, SVMClassifier

CHANGE, WINDOW = 3000, 200


def generate_stream(seed):
    for part in (0, 1):
        rows = synth.RandomRBF(seed_model=10 * seed + part, seed_sample=seed, n_features=4, n_centroids=20)
        yield from rows.take(CHANGE)


def measure_hits(model, seed, detector=None):
    """Return whether each prediction was correct. If a detector finds a drift, the model is replaced by an untrained one."""
    hits = []
    for x, y in generate_stream(seed):
        hits.append(model.predict_one(x) == y)
        if detector is not None:
            before = detector.estimation
            detector.update(not hits[-1])
            if detector.drift_detected and detector.estimation > before:  # fewer errors are not a drift
                model = model.clone()
        model.learn_one(x, y)
    return hits


runs = {
    "SVMClassifier": lambda seed: measure_hits(SVMClassifier(seed=0), seed),
    "BSCAClassifier": lambda seed: measure_hits(BSCAClassifier(seed=0), seed),
    "BSCAClassifier, replaced by ADWIN": lambda seed: measure_hits(BSCAClassifier(seed=0), seed, drift.ADWIN()),
    "river's HoeffdingAdaptiveTree": lambda seed: measure_hits(tree.HoeffdingAdaptiveTreeClassifier(seed=0), seed),
}
plt.style.use("seaborn-v0_8-colorblind")
figure, axis = plt.subplots(figsize=(7, 5), layout="constrained")
for (name, run), marker in zip(runs.items(), "os^D", strict=True):
    hits = np.mean([run(seed) for seed in range(3)], axis=0)
    accuracy = 100.0 * np.convolve(hits, np.ones(WINDOW) / WINDOW, "valid")
    axis.plot(np.arange(WINDOW, 2 * CHANGE + 1), accuracy, marker=marker, markevery=400, label=name)
axis.axvline(CHANGE, color="black", linestyle=":", linewidth=1)
axis.annotate("Change", (CHANGE, 0.94), xytext=(4, 0), xycoords=("data", "axes fraction"), textcoords="offset points")
axis.set(xlabel="Rows", ylabel="Accuracy in %", title=f"Accuracy over the last {WINDOW} rows")
axis.grid(alpha=0.3)
axis.xaxis.set_major_formatter("{x:,.0f}")
figure.legend(loc="outside lower center", ncols=2)

# %%
# All curves fall at the change. `SVMClassifier` (circles) recovers within about 500 rows, because some of its experts start
# from scratch on their own.
#
# Up to the change, the two curves of `BSCAClassifier` coincide. After it, the model that was replaced when ADWIN found
# the drift (triangles) begins from nothing, and takes about a thousand rows to come up with the one that pushes out its old
# support vectors one by one (squares). The second half is harder for every learner, as river's tree (diamonds) shows.
