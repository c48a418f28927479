"""Checks the messages about missing optional packages, in Python and on the command line, of an installation without extras.

Run ``python tests/without_extras.py`` in an environment without extras, or ``python tests/without_extras.py --block`` in any
environment: it blocks the import of optional packages.
"""

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

#: A model that needs scikit-learn.
MACHINE = Path(__file__).parent.resolve() / "edge" / "golden" / "version-1" / "machine-of-one-class.safetensors"
MODULES = frozenset(
    ["confluent_kafka", "fastavro", "kafka", "matplotlib", "onnx", "orjson", "prometheus_client", "pyarrow", "pyspark", "sklearn"]
)

KAFKA = "streamsvm_kafka needs kafka-python and orjson", "kafka"
BATCH = "streamsvm.batch needs scikit-learn", "batch"
FILES = "rows.parquet: a Parquet or Arrow file needs pyarrow", "files"
ONNX = "an ONNX file needs onnx", "onnx"
PLOT = "drawing needs matplotlib", "plot"
METRICS = "serving metrics needs prometheus-client", "metrics"
DEMO = "the demonstration needs confluent-kafka, kafka-python and matplotlib", "demo"

PYTHON = {
    "import streamsvm.batch": BATCH,
    "from streamsvm import batch": BATCH,
    "from streamsvm.batch.csmo.estimators import CSMOClassifier": BATCH,
    "import streamsvm.linear": ("streamsvm.linear needs scikit-learn", "batch"),
    "import streamsvm_kafka": KAFKA,
    "from streamsvm_kafka.codecs import ArrowCodec": KAFKA,
    "import streamsvm_spark": ("streamsvm_spark needs pyspark", "spark"),
    "from streamsvm.stream import ArrowSource; ArrowSource('rows.parquet')": FILES,
    "from streamsvm.stream.open import open_source; open_source('kafka://localhost:9092/rows')": KAFKA,
    "from streamsvm.stream.open import open_sink; open_sink('kafka://localhost:9092/rows')": KAFKA,
    "from streamsvm.stream.open import open_models; open_models('kafka://localhost:9092/rows')": KAFKA,
    "from streamsvm.export.plots import check_plot_path; check_plot_path('learned.png')": PLOT,
    "from streamsvm.stream.monitor import Monitor; Monitor(None)": METRICS,
    "from streamsvm.export.onnx import Graph; Graph()": ONNX,
    f"import streamsvm; streamsvm.load({str(MACHINE)!r})": (f"{MACHINE} cannot be loaded: {BATCH[0]}", "batch"),
}
COMMANDS = {
    "learn rows.parquet --label y": FILES,
    "learn rows.csv --label y --learner bsgd --quiet --metrics-port 0": METRICS,
    "learn kafka://localhost:9092/rows --label y": KAFKA,
    "learn rows.csv --label y --learner bsgd --quiet --to kafka://localhost:9092/out": KAFKA,
    "learn rows.csv --label y --learner bsgd --quiet --on-error kafka://localhost:9092/out": KAFKA,
    "learn rows.csv --label y --learner bsgd --quiet --checkpoint kafka://localhost:9092/models": KAFKA,
    "learn kafka://localhost:9092/rows --label y --group g --scope partition --checkpoint state": KAFKA,
    "predict kafka://localhost:9092/rows --model model --to -": KAFKA,
    "predict rows.csv --model kafka://localhost:9092/models --to -": KAFKA,
    "merge . --to kafka://localhost:9092/models": KAFKA,
    "inspect kafka://localhost:9092/models": KAFKA,
    "inspect model --plot learned.png": PLOT,
    f"inspect {MACHINE}": (f"{MACHINE} cannot be loaded: {BATCH[0]}", "batch"),
    "export model --to onnx": ONNX,
    "export model --to c --max-bytes 100": BATCH,
    "demo": DEMO,
}


class Blocked:
    """An import finder that blocks optional packages."""

    @staticmethod
    def find_spec(name, _path=None, _target=None):
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def ends(text, said):
    """Return whether a text is a single line that ends with the remedy."""
    needs, extra = said
    text = text.rstrip("\n")
    return text in (f'{needs}: pip install "streamsvm[{extra}]"', f"{needs}: pip install 'streamsvm[{extra}]'")


def check():
    """Check all cases. AssertionError if a message differs."""
    from streamsvm import BSGDClassifier, save
    from streamsvm.cli.main import main

    os.chdir(tempfile.mkdtemp())
    model = BSGDClassifier(budget=3)
    for i in range(20):
        model.learn_one({"a": float(i % 7), "b": float(i % 3)}, i % 2 == 0)
    save(model, "model")
    Path("rows.csv").write_text("a,b,y\n" + "1.0,2.0,no\n2.0,1.0,yes\n" * 10)
    before = set(Path().iterdir())
    for code, said in PYTHON.items():
        try:
            exec(code, {})
        except Exception as error:
            assert ends(str(error), said), (code, error)
            assert isinstance(error if "load(" not in code else error.__cause__.__cause__, ImportError), code
        else:
            raise AssertionError(f"{code} could be done")
    for words, said in COMMANDS.items():
        with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()) as output:
            status = main(words.split())
        assert (status, output.getvalue()) == (1, ""), (words, status, output.getvalue())
        assert ends(errors.getvalue().removeprefix("streamsvm: "), said), (words, errors.getvalue())
    left = set(Path().iterdir()) - before
    assert left <= {Path("state")}, left
    return len(PYTHON) + len(COMMANDS)


if __name__ == "__main__":
    if "--block" in sys.argv:
        sys.meta_path.insert(0, Blocked)
    print(f"{check()} times what is missing is said")
