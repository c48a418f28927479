"""Errors and explanations of a model
==================================

The rows are trips, and some are late. The model predicts each row before it learns it. The pictures show which labels it
confuses, whether its probabilities are reliable, which columns matter, and why it decides a single row as it does.
``streamsvm report state rows.csv --to report.html`` shows all of this on one page.
"""

import random

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import ConfusionMatrixDisplay

import streamsvm
from streamsvm.stream import IterableSource, LearningLoop

rng = random.Random(0)


def make_trip():
    """Return a random trip, and its label."""
    city, hour, rain = rng.choice(["Oslo", "Paris", "Rome"]), rng.randrange(24), rng.expovariate(1.0)
    slow = (hour in (8, 9, 17, 18)) + (rain > 1.5) + (city == "Rome") + (rng.random() < 0.15)
    return {"city": city, "hour": hour, "rain": round(rain, 1), "seat": rng.randrange(60)}, ("on time", "late", "missed")[
        min(slow, 2)
    ]


rows = [make_trip() for _ in range(4000)]
model = streamsvm.table_model([x | {"went": y} for x, y in rows[:500]], label="went")
metric = ["Accuracy", "ConfusionMatrix", "Calibration"]
accuracy, matrix, calibration = LearningLoop(IterableSource(rows), model, metric).run().scores
new_trips = [make_trip() for _ in range(500)]  # the model has not learned these
importance = streamsvm.importance(model, [x for x, _ in new_trips], [y for _, y in new_trips])
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
importance.plot(axes[1, 0])
why.plot(axes[1, 1])
for axis, title in zip(axes.flat[:3], (f"Accuracy {accuracy.value:.1%}", "Its probabilities", "What matters"), strict=True):
    axis.set_title(title)
print(why)

# %%
# **Top left:** a row for each true label. **Top right:** near the dashed line, the probabilities are calibrated. **Bottom
# left:** the increase of the error when the values of a column are shuffled. The seat has no influence. **Bottom right:** the
# contribution of each column to the decision, compared with a typical row.
