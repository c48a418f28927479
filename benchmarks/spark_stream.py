"""Rows a second and memory of `streamsvm_spark.StreamLearner` over Parquet files, beside `learn_many` of the same rows.

    python benchmarks/spark_stream.py --rows 1000000 --batches 10

The table has, after each micro-batch, seconds since the query began, and the resident memory of the driver: its Python's and its
Java's, which has the workers, too.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import make_parser, print_table, read_resident_bytes, report_progress, write_json
from pyarrow import parquet
from spark_common import FEATURES, draw_rows, start_session, write_parquet

from streamsvm import BSCAClassifier
from streamsvm_spark import StreamLearner


def write_rows(folder: Path, rows: int, files: int) -> None:
    """Write made-up rows to files, which a stream reads in the order of their times."""
    rng = np.random.default_rng(0)
    for i in range(files):
        path = folder / f"{i:04d}.parquet"
        write_parquet(path, [draw_rows(rng, rows // files)])
        os.utime(path, (i + 1, i + 1))


def alone(budget: int, folder: Path) -> float:
    """Seconds to learn all rows without Spark; of these none to read them."""
    model, seconds = BSCAClassifier(budget, seed=0), 0.0
    for path in sorted(folder.glob("*.parquet")):
        table = parquet.read_table(path)
        X = table["features"].combine_chunks().flatten().to_numpy().reshape(-1, FEATURES).astype(np.float32)
        y = table["label"].to_pylist()
        began = time.perf_counter()
        model.learn_many(X, y)
        seconds += time.perf_counter() - began
    return seconds


def java_of(parent: int) -> str:
    """The process of Java that a process has started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        number, name, _, started_by, *_ = path.read_text().split()
        if name == "(java)" and int(started_by) == parent:
            return number
    raise SystemExit("there is no Java")


def run(args: Any, folder: Path) -> dict[str, Any]:
    """Return seconds, rows a second and memory of the query, and of a second one that finds nothing new."""
    rows = folder / "rows"
    rows.mkdir()
    write_rows(rows, args.rows, args.files)
    BSCAClassifier(args.budget, seed=0).learn_many(np.zeros((2, 1), np.float32), [0, 1])  # compiled
    seconds = alone(args.budget, rows)
    found: dict[str, Any] = {"alone": {"seconds": seconds, "rows_per_second": args.rows / seconds}}
    spark = start_session(folder, 2, sql_shuffle_partitions="2")
    java = Path(f"/proc/{java_of(os.getpid())}/statm")
    page, mega, batches = os.sysconf("SC_PAGE_SIZE"), 2**20, []
    stream = spark.readStream.schema("features array<float>, label double")
    frame = stream.option("maxFilesPerTrigger", args.files // args.batches).parquet(str(rows))

    def query(learner: StreamLearner) -> None:
        writer = frame.writeStream.foreachBatch(learner).option("checkpointLocation", str(folder / "spark"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def note(at: Any) -> None:
        memory = {"python": read_resident_bytes() / mega, "java": int(java.read_text().split()[1]) * page / mega}
        batches.append({"rows": at.rows, "seconds": time.perf_counter() - began, **memory})
        report_progress(str(batches[-1]))

    found["python_before"] = read_resident_bytes() / mega
    began = time.perf_counter()
    with StreamLearner(BSCAClassifier(args.budget, seed=0), folder / "model", on_progress=note) as learner:
        query(learner)
        seconds = time.perf_counter() - began
        found["query"] = {"seconds": seconds, "rows_per_second": args.rows / seconds, "accuracy": learner.loop.metric.get()}
    began = time.perf_counter()
    with StreamLearner(BSCAClassifier(args.budget, seed=0), folder / "model") as learner:
        found["again"] = {"rows": learner.loop.rows, "seconds": time.perf_counter() - began}
        query(learner)
        found["again"]["query_seconds"] = time.perf_counter() - began
    spark.stop()
    return found | {"batches": batches}


def main() -> None:
    """Run the query, print its table and write JSON."""
    parser = make_parser(__doc__, "spark_stream")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--files", type=int, default=10, help="in all; a micro-batch has an equal number of them")
    parser.add_argument("--budget", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = run(args, Path(name))
    columns = ("rows", "seconds", f"Python, MiB (first {found['python_before']:.0f})", "Java, MiB")
    rows = [(f"{of['rows']:,}", f"{of['seconds']:.1f}", f"{of['python']:.0f}", f"{of['java']:.0f}") for of in found["batches"]]
    print_table(f"A query of {args.batches} micro-batches, B = {args.budget}", columns, rows)
    rows = [(name, f"{found[name]['seconds']:.1f}", f"{found[name]['rows_per_second']:,.0f}") for name in ("alone", "query")]
    print_table("All rows, by learn_many alone and by the query", ("", "seconds", "rows/s"), rows)
    again = found["again"]
    print(f"Accuracy {100 * found['query']['accuracy']:.2f} %. Started anew, the learner has {again['rows']:,} rows after")
    print(f"{again['seconds']:.3f} s, and the query finds nothing new in {again['query_seconds']:.1f} s.")
    write_json(args.out, {"results": found})


if __name__ == "__main__":
    main()
