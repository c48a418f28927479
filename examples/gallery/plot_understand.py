"""What a model confuses, and why
==============================

A table of trips, of which some are late. The model predicts each row before it learns it. One picture shows which labels it
confuses, one whether its probabilities can be believed, one which columns matter to it, and one why it decides as it does of
a single row. ``streamsvm report state rows.csv --to report.html`` shows all of that on one page.
"""

import random

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import ConfusionMatrixDisplay

import streamsvm
from streamsvm.stream import IterableSource, LearningLoop

rng = random.Random(0)


def trip():
    """Return a trip, and how it went."""
    city, hour, rain = rng.choice(["Oslo", "Paris", "Rome"]), rng.randrange(24), rng.expovariate(1.0)
    slow = (hour in (8, 9, 17, 18)) + (rain > 1.5) + (city == "Rome") + (rng.random() < 0.15)
    return {"city": city, "hour": hour, "rain": round(rain, 1), "seat": rng.randrange(60)}, ("on time", "late", "missed")[
        min(slow, 2)
    ]


rows = [trip() for _ in range(4000)]
model = streamsvm.table_model([x | {"went": y} for x, y in rows[:500]], label="went")
metric = ["Accuracy", "ConfusionMatrix", "Calibration"]
accuracy, matrix, calibration = LearningLoop(IterableSource(rows), model, metric).run().scores
others = [trip() for _ in range(500)]  # for it knows the rows that it has learned
found = streamsvm.importance(model, [x for x, _ in others], [y for _, y in others])
why = model.explain_one({"city": "Rome", "hour": 8, "rain": 2.0, "seat": 7})

figure, axes = plt.subplots(2, 2, figsize=(10, 8), layout="constrained")
labels = [row[0] for row in matrix.table[1:]]
counts = np.array([row[1:] for row in matrix.table[1:]])
ConfusionMatrixDisplay(counts, display_labels=labels).plot(ax=axes[0, 0], colorbar=False)
_, expected, observed, _ = zip(*calibration.table[1:-1], strict=True)
axes[0, 1].plot([0, 1], [0, 1], "k--", label="expected")
axes[0, 1].plot(expected, observed, "o-", label="observed")
axes[0, 1].set(xlabel="predicted probability", ylabel="share of correct predictions")
axes[0, 1].legend()
found.plot(axes[1, 0])
why.plot(axes[1, 1])
for axis, title in zip(axes.flat[:3], (f"Accuracy {accuracy.value:.1%}", "Its probabilities", "What matters"), strict=True):
    axis.set_title(title)
print(why)

# %%
# **Left above:** a line for each true label. **Right above:** near the dashed line, an answer is right as often as the model
# says. **Left below:** how much larger the error is where the values of a column are shuffled. The seat says nothing.
# **Right below:** what each column moves the decision by, against that of a typical row.
