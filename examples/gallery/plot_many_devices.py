"""Many devices in one stream
==========================

Forty machines send their temperature in turn. Each has a normal temperature of its own, which may be that of a faulty
machine elsewhere. A fault lasts for some time. The same learner reads the stream in four ways.
"""

import random

import matplotlib.pyplot as plt
import numpy as np

from streamsvm import SVMClassifier
from streamsvm.learners.keyed import KeyedClassifier
from streamsvm.stream.tables import TableEncoder

N_ROWS, N_DEVICES, WINDOW = 6000, 40, 500


def generate_stream(seed):
    rng = random.Random(seed)
    normal = {f"m{i}": rng.gauss(60, 10) for i in range(N_DEVICES)}
    has_fault = dict.fromkeys(normal, False)
    for _ in range(N_ROWS):
        device = rng.choice(list(normal))
        if rng.random() < 0.1:
            has_fault[device] = not has_fault[device]
        temperature = rng.gauss(normal[device] + 6 * has_fault[device], 3)
        yield {"device": device, "temperature": temperature}, "fault" if has_fault[device] else "ok"


def measure_accuracy(model):
    """Return the accuracy over the last rows in percent. Each row is predicted before it is learned."""
    hits = []
    for x, y in generate_stream(seed=1):
        hits.append(model.predict_one(x) == y)
        model.learn_one(x, y)
    return 100.0 * np.convolve(hits, np.ones(WINDOW) / WINDOW, "valid")


models = {
    "without the device": TableEncoder("device:drop") | SVMClassifier(seed=0),
    "the device is a category": TableEncoder("device:category") | SVMClassifier(seed=0),
    "a key": TableEncoder(keys="device") | SVMClassifier(seed=0),
    "a key, with small models": TableEncoder(keys="device") | KeyedClassifier(SVMClassifier(seed=0), key="device"),
}
plt.style.use("seaborn-v0_8-colorblind")
figure, axis = plt.subplots(figsize=(7, 5), layout="constrained")
for (name, model), marker in zip(models.items(), "os^D", strict=True):
    axis.plot(np.arange(WINDOW, N_ROWS + 1), measure_accuracy(model), marker=marker, markevery=500, label=name)
axis.set(xlabel="Rows", ylabel="Accuracy in %", title=f"Accuracy over the last {WINDOW} rows")
axis.grid(alpha=0.3)
axis.xaxis.set_major_formatter("{x:,.0f}")
figure.legend(loc="outside lower center", ncols=2)

# %%
# The temperature alone says little (circles). As a category (squares), a machine adds the share of its faults. A key
# (triangles) also remembers the last label of each machine, and the mean of its recent ones: the previous fault may not be
# over. Small models (diamonds) learn the normal temperature of each machine, from its 150 rows. The model of all machines learns
# how far to follow them.
#
# On the command line, ``--columns device:key --key-models device`` does the same: see :doc:`/names`.
