"""The model of the Arduino and the Zephyr example: whether a room is occupied, by light and sound.

``python examples/device_model.py examples/arduino/Occupied`` trains the model on 2,000 readings, and writes model.h and model.c
into the folder of the sketch; for Zephyr, the folder is examples/zephyr/src. Readings are those of a 10-bit converter, 0 to 1023.
To export your own model, which ``streamsvm learn`` has saved in the folder state, run

    streamsvm export state --to c --out examples/arduino/Occupied --name model --bits 8
"""

from __future__ import annotations

import sys

import numpy as np

from streamsvm import BSGDClassifier
from streamsvm.export.formats import export


def make_readings(n: int, seed: int = 0) -> list[tuple[dict[str, float], str]]:
    """Return n random rows of light and sound, each with its label."""
    rng = np.random.default_rng(seed)
    light, sound = rng.integers(0, 1024, n), rng.integers(0, 1024, n)
    # Occupied: bright and not very loud (traffic shakes the window), or dark and loud.
    occupied = ((light > 500) & (sound < 800)) | ((light <= 500) & (sound > 600))
    labels = np.where(occupied ^ (rng.random(n) < 0.02), "occupied", "empty")
    return [({"light": float(a), "sound": float(b)}, str(label)) for a, b, label in zip(light, sound, labels, strict=True)]


def train_learner() -> BSGDClassifier:
    """Return a learner with up to 50 support vectors, trained on 2,000 readings."""
    model = BSGDClassifier(budget=50, gamma=4.0, seed=0)
    for x, label in make_readings(2000):
        model.learn_one(x, label)
    return model


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("missing folder for the model: python examples/device_model.py examples/arduino/Occupied")
    for path in export(train_learner(), "c", sys.argv[1], "model", bits=8):
        print(path)
