"""Installs the wheel with each extra in an environment of its own, and runs an example with it.

``python release/check_extras.py dist/streamsvm-X.Y.Z-py3-none-any.whl [EXTRA ...]``: all extras for users, or those that are
named. It downloads some 800 MB, 450 of them for Spark, and compiles again in each environment, which takes about 10 minutes.
"""

import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

#: The example of each extra.
EXAMPLES = {
    "kafka": """
import numpy as np
from streamsvm.stream.endpoints import Row
from streamsvm_kafka import Float32Codec, JSONCodec, KafkaSource, client_options
codec = JSONCodec("y")
assert codec.decode(codec.encode(Row({"a": 1.5}, "yes"))) == Row({"a": 1.5}, "yes")
packed = Float32Codec(2)
x, y = packed.decode(packed.encode(Row({0: 1.0, 1: 2.0}, 1.0)))
assert (list(x.values()), y) == ([1.0, 2.0], 1.0)
import crc32c
from kafka.codec import has_lz4, has_snappy, has_zstd
assert has_lz4() and has_snappy() and has_zstd()
""",
    "confluent": """
from streamsvm_kafka.connection import Connection
assert Connection("localhost", {"client": "confluent-kafka"}).library == "confluent-kafka"
import streamsvm_kafka.clients.confluent
""",
    "avro": """
from streamsvm.stream.endpoints import Row
from streamsvm_kafka import RegistryCodec, SchemaRegistry
class Registry(SchemaRegistry):
    def _request(self, path):
        return {"schema": '{"type": "record", "name": "row", "fields": [{"name": "a", "type": "double"}]}'}
assert RegistryCodec("y", Registry("http://localhost")).decode(bytes([0, 0, 0, 0, 1, *6 * [0], 248, 63])) == Row({"a": 1.5}, None)
""",
    "protobuf": """
import base64
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from streamsvm.stream.endpoints import Row
from streamsvm_kafka import RegistryCodec, SchemaRegistry
file = FileDescriptorProto(name="row.proto", syntax="proto3")
file.message_type.add(name="Row").field.add(name="a", number=1, type=FieldDescriptorProto.TYPE_INT32, label=1)
class Registry(SchemaRegistry):
    def _request(self, path):
        return {"schema": base64.b64encode(file.SerializeToString()).decode(), "schemaType": "PROTOBUF"}
assert RegistryCodec("y", Registry("http://localhost")).decode(bytes([0, 0, 0, 0, 1, 0, 8, 7])) == Row({"a": 7}, None)
""",
    "batch": """
import numpy as np
from streamsvm.batch import CSMOClassifier
from streamsvm.batch.hss import HSSMatrix
from streamsvm.linear import OutOfCoreLinearSVC
X = np.random.default_rng(0).normal(size=(300, 2))
y = X[:, 0] * X[:, 1] > 0.0
exact = CSMOClassifier(C=10.0).fit(X, y)
assert exact.score(X, y) > 0.95
assert exact.to_budget(20, X).n_support <= 20
assert OutOfCoreLinearSVC().fit(X, X[:, 0] > 0.0).score(X, X[:, 0] > 0.0) > 0.95
""",
    "files": """
import subprocess, sys
import pyarrow as pa
from pyarrow import parquet
from streamsvm.stream import ArrowSource
parquet.write_table(pa.table({"a": [i % 7 / 7 for i in range(50)], "y": [i % 7 > 3 for i in range(50)]}), "rows.parquet")
with ArrowSource("rows.parquet", label="y") as source:
    assert sum(1 for _ in source) == 50
command = [sys.executable, "-m", "streamsvm", "learn", "rows.parquet", "--label", "y", "--learner", "bsgd", "--quiet"]
subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
""",
    "plot": """
from pathlib import Path
from river import datasets
from streamsvm import BSGDClassifier
from streamsvm.export.plots import save_plot
from streamsvm.stream import IterableSource, LearningLoop
loop = LearningLoop(IterableSource(datasets.Bananas().take(300)), BSGDClassifier(budget=20))
loop.run()
assert draw("learned.png", loop.model, loop.curve) == []
assert Path("learned.png").read_bytes().startswith(b"\\x89PNG")
""",
    "metrics": """
from urllib.request import urlopen
from river import datasets
from streamsvm import BSGDClassifier
from streamsvm.stream import IterableSource, LearningLoop
from streamsvm.stream.monitor import Monitor
loop = LearningLoop(IterableSource(datasets.Bananas().take(100)), BSGDClassifier(budget=20))
with Monitor(loop) as monitor:
    loop.run()
    assert b"streamsvm_rows_total 100.0" in urlopen(f"http://127.0.0.1:{monitor.port}/metrics").read()
""",
    "onnx": """
import onnx
from river import datasets
from streamsvm import BSGDClassifier
from streamsvm.export.convert import make_program
from streamsvm.export.onnx import write_onnx
model = BSGDClassifier(budget=20)
for x, y in datasets.Bananas().take(200):
    model.learn_one(x, y)
write_onnx(make_program(model), "model.onnx")
onnx.checker.check_model(onnx.load("model.onnx"), full_check=True)
""",
    "demo": """
import subprocess, sys
subprocess.run([sys.executable, "-m", "streamsvm", "demo", "--out", "demo"], check=True, stdout=subprocess.DEVNULL)
""",
    "spark": """
import shutil
import streamsvm_spark
estimator = streamsvm_spark.BudgetedSVMClassifier if shutil.which("java") else None
if estimator is not None:
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    from pyspark.ml.linalg import Vectors
    rows = [(float(i % 7 > 3), Vectors.dense([i % 7 / 7.0, i % 5 / 5.0])) for i in range(200)]
    frame = spark.createDataFrame(rows, ["label", "features"])
    fitted = estimator(budget=20).fit(frame).transform(frame)
    assert fitted.where("prediction = label").count() > 180
    spark.stop()
else:
    print("no Java: only imported")
""",
}


def check_extra(wheel: Path, extra: str) -> None:
    """Install the wheel with an extra into a new environment, and run its example; CalledProcessError if that fails."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder, "env"), with_pip=True)
        scripts = Path(folder, "env", "Scripts" if os.name == "nt" else "bin")
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(Path(folder, "cache")), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        environment.pop("PYTHONPATH", None)
        subprocess.run([scripts / "pip", "install", "-q", f"{wheel}[{extra}]"], check=True, env=environment)
        installed = time.monotonic()
        subprocess.run([scripts / "python", "-c", EXAMPLES[extra]], check=True, cwd=folder, env=environment)
    print(f"{extra}: installed in {installed - start:.0f} s, used in {time.monotonic() - installed:.0f} s", flush=True)


def main() -> None:
    """Check all extras, and list those that have failed."""
    wheel, extras = Path(sys.argv[1]).resolve(), sys.argv[2:] or list(EXAMPLES)
    failed = []
    for extra in extras:
        try:
            check_extra(wheel, extra)
        except subprocess.CalledProcessError as error:
            print(f"{extra}: failed with status {error.returncode}", flush=True)
            failed.append(extra)
    sys.exit(f"failed: {', '.join(failed)}" if failed else None)


if __name__ == "__main__":
    main()
