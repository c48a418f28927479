"""The model of the Arduino and the Zephyr example: whether a room is occupied, by how light and how loud it is.

``python examples/device_model.py examples/arduino/Occupied`` learns 2,000 readings, and writes model.h and model.c into the
folder of the sketch; for Zephyr the folder is examples/zephyr/src. Readings are those of a converter of 10 bits, 0 to 1023. A
model of your own, which ``streamsvm learn`` has put into the folder state, is written by

    streamsvm export state --to c --out examples/arduino/Occupied --name model --bits 8
"""

from __future__ import annotations

import sys

import numpy as np

from streamsvm import BSGDClassifier
from streamsvm.export.formats import export


def readings(n: int, seed: int = 0) -> list[tuple[dict[str, float], str]]:
    """Return n rows of light and sound, made up, each with its label."""
    rng = np.random.default_rng(seed)
    light, sound = rng.integers(0, 1024, n), rng.integers(0, 1024, n)
    # Loud in the dark, and bright without being as loud as what shakes the window.
    occupied = ((light > 500) & (sound < 800)) | ((light <= 500) & (sound > 600))
    labels = np.where(occupied ^ (rng.random(n) < 0.02), "occupied", "empty")
    return [({"light": float(a), "sound": float(b)}, str(label)) for a, b, label in zip(light, sound, labels, strict=True)]


def learner() -> BSGDClassifier:
    """Return a learner of 50 support vectors that has learned 2,000 readings."""
    model = BSGDClassifier(budget=50, gamma=4.0, seed=0)
    for x, label in readings(2000):
        model.learn_one(x, label)
    return model


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name the folder of the model: python examples/device_model.py examples/arduino/Occupied")
    for path in export(learner(), "c", sys.argv[1], "model", bits=8):
        print(path)
