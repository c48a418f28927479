"""Learns a topic into a checkpoint folder, as a process of its own that can be killed: ``learn.py URL FOLDER``."""

import sys

from river import preprocessing

from streamsvm import BSGDClassifier
from streamsvm.runtime.checkpoint import CheckpointFolder
from streamsvm.runtime.loop import LearningLoop
from streamsvm_kafka import open_source


def learn(url, folder):
    source = open_source(url, label=None, stop_at_end=True)
    model = preprocessing.StandardScaler() | BSGDClassifier(budget=10, gamma=0.5, seed=1)
    # Compiled code is loaded at its first use; after this the process is killed while it learns, not while it loads.
    warm = model.clone()
    for i in range(40):
        x = dict(enumerate((i % 3 - 1.0, i % 5 - 2.0, i % 7 - 3.0, 1.0)))
        warm.predict_one(x)
        warm.learn_one(x, i % 2)
    with CheckpointFolder(folder) as checkpoints:
        loop = LearningLoop(source, model, checkpoints=checkpoints, checkpoint_every=73)
        sys.stdout.write("learning\n")
        sys.stdout.flush()
        loop.run()
    source.close()


if __name__ == "__main__":
    learn(*sys.argv[1:])
