"""Learn a topic, publish the predictions, and resume after a kill.

    python examples/kafka_learner.py localhost:9092 rows label

Messages are JSON objects with the label in one field. When you start it again, it resumes from its checkpoint.
"""

import signal
import sys

from river import metrics, preprocessing

from streamsvm import BSGDClassifier
from streamsvm.stream import CheckpointFolder, LearningLoop
from streamsvm_kafka import JSONCodec, KafkaSink, KafkaSource


def main(bootstrap: str, topic: str, label: str) -> None:
    """Learn a topic until the process gets SIGTERM or SIGINT."""
    model = preprocessing.StandardScaler() | BSGDClassifier(budget=500, learning_rate="floor", seed=1)
    with CheckpointFolder(f"{topic}-state") as checkpoints:
        loop = LearningLoop(
            KafkaSource(bootstrap, topic, JSONCodec(label)),
            model,
            metrics.Accuracy(),
            sink=KafkaSink(bootstrap, f"{topic}-predictions"),
            checkpoints=checkpoints,
            on_progress=lambda progress: print(f"{progress.rows:,} rows, accuracy {progress.metric:.4f}"),
        )
        signal.signal(signal.SIGTERM, lambda *_: loop.stop())
        signal.signal(signal.SIGINT, lambda *_: loop.stop())
        loop.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
