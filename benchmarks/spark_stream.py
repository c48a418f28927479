"""Measures rows a second and memory of `streamsvm_spark.StreamLearner` on Parquet files, compared with `learn_many`.

    python benchmarks/spark_stream.py --rows 1000000 --batches 10

The table shows, after each micro-batch, the seconds since the query began, and the resident memory of the driver's Python process
and of its Java process, which also runs the workers.
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
    """Write random rows to files, with increasing modification times, because a stream reads files in that order."""
    rng = np.random.default_rng(0)
    for i in range(files):
        path = folder / f"{i:04d}.parquet"
        write_parquet(path, [draw_rows(rng, rows // files)])
        os.utime(path, (i + 1, i + 1))


def time_without_spark(budget: int, folder: Path) -> float:
    """Return the seconds to learn all rows without Spark, without the time to read them."""
    model, seconds = BSCAClassifier(budget, seed=0), 0.0
    for path in sorted(folder.glob("*.parquet")):
        table = parquet.read_table(path)
        X = table["features"].combine_chunks().flatten().to_numpy().reshape(-1, FEATURES).astype(np.float32)
        y = table["label"].to_pylist()
        start = time.perf_counter()
        model.learn_many(X, y)
        seconds += time.perf_counter() - start
    return seconds


def find_java(parent: int) -> str:
    """Return the id of the Java process that a process has started; exit with a message if there is none."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        number, name, _, started_by, *_ = path.read_text().split()
        if name == "(java)" and int(started_by) == parent:
            return number
    raise SystemExit("no Java process found: Spark did not start")


def run_query(args: Any, folder: Path) -> dict[str, Any]:
    """Return seconds, rows a second and memory of the query, and of a second query without new files."""
    rows = folder / "rows"
    rows.mkdir()
    write_rows(rows, args.rows, args.files)
    BSCAClassifier(args.budget, seed=0).learn_many(np.zeros((2, 1), np.float32), [0, 1])  # compiles before any time is taken
    seconds = time_without_spark(args.budget, rows)
    results: dict[str, Any] = {"alone": {"seconds": seconds, "rows_per_second": args.rows / seconds}}
    spark = start_session(folder, 2, sql_shuffle_partitions="2")
    java = Path(f"/proc/{find_java(os.getpid())}/statm")
    page, mega, batches = os.sysconf("SC_PAGE_SIZE"), 2**20, []
    stream = spark.readStream.schema("features array<float>, label double")
    frame = stream.option("maxFilesPerTrigger", args.files // args.batches).parquet(str(rows))

    def process_new_files(learner: StreamLearner) -> None:
        writer = frame.writeStream.foreachBatch(learner).option("checkpointLocation", str(folder / "spark"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def record_progress(loop: Any) -> None:
        memory = {"python": read_resident_bytes() / mega, "java": int(java.read_text().split()[1]) * page / mega}
        batches.append({"rows": loop.rows, "seconds": time.perf_counter() - start, **memory})
        report_progress(str(batches[-1]))

    results["python_before"] = read_resident_bytes() / mega
    start = time.perf_counter()
    with StreamLearner(BSCAClassifier(args.budget, seed=0), folder / "model", on_progress=record_progress) as learner:
        process_new_files(learner)
        seconds = time.perf_counter() - start
        results["query"] = {"seconds": seconds, "rows_per_second": args.rows / seconds, "accuracy": learner.loop.metric.get()}
    start = time.perf_counter()
    with StreamLearner(BSCAClassifier(args.budget, seed=0), folder / "model") as learner:
        results["again"] = {"rows": learner.loop.rows, "seconds": time.perf_counter() - start}
        process_new_files(learner)
        results["again"]["query_seconds"] = time.perf_counter() - start
    spark.stop()
    return results | {"batches": batches}


def main() -> None:
    """Run the query, print its table and write JSON."""
    parser = make_parser(__doc__, "spark_stream")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--files", type=int, default=10, help="number of files, divided equally among the micro-batches")
    parser.add_argument("--budget", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results = run_query(args, Path(name))
    columns = ("rows", "seconds", f"Python, MiB (first {results['python_before']:.0f})", "Java, MiB")
    rows = [
        (f"{batch['rows']:,}", f"{batch['seconds']:.1f}", f"{batch['python']:.0f}", f"{batch['java']:.0f}")
        for batch in results["batches"]
    ]
    print_table(f"A query of {args.batches} micro-batches, B = {args.budget}", columns, rows)
    rows = [(name, f"{results[name]['seconds']:.1f}", f"{results[name]['rows_per_second']:,.0f}") for name in ("alone", "query")]
    print_table("All rows, by learn_many alone and by the query", ("", "seconds", "rows/s"), rows)
    again = results["again"]
    print(f"Accuracy {100 * results['query']['accuracy']:.2f} %. After a restart, the learner has {again['rows']:,} rows after")
    print(f"{again['seconds']:.3f} s, and the query finds no new files in {again['query_seconds']:.1f} s.")
    write_json(args.out, {"results": results})


if __name__ == "__main__":
    main()
