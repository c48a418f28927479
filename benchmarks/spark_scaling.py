"""Measures fits and predictions on Spark compared with pyspark.ml, and accuracy, bytes and time by the number of partitions.

    python benchmarks/spark_scaling.py --data DIR --only accuracy weights
    python benchmarks/spark_scaling.py --only fit score --rows 10000000

``accuracy`` and ``weights`` need the data sets, but no Spark session: partitions are parts of the shuffled rows. ``weights``
repeats the choice of the weight of a row in a merge, on half of the sets, and tests it on the other half. ``fit`` and ``score``
read synthetic rows from Parquet with ``local[2]``. ``accuracy`` and ``fit`` together estimate the time of up to 10,000 workers.
"""

from __future__ import annotations

import copy
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from common import Split, load_split, make_parser, print_table, report_progress, write_json
from pyarrow import parquet
from spark_common import FEATURES, draw_rows, start_session, write_parquet

from streamsvm import BSCAClassifier
from streamsvm.files.model_file import serialize_parts
from streamsvm.learners import merging
from streamsvm.learners.refit import LineSearch, NormalEquations, take_step
from streamsvm_spark.parts import Reservoir, Sample, combine_samples

SETS = ("phishing", "ijcnn1", "a9a", "skin", "magic04", "w7a", "eeg_eye", "elec2")
ROW_WEIGHTS = (0.3, 1.0, 3.0, 10.0, 30.0)
PART_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FILES, BATCH_ROWS = 8, 10_000


def measure_accuracy(model: Any, split: Split) -> float:
    """Return the test accuracy in percent."""
    return 100.0 * float((np.asarray(model.predict_many(split.X_test)) == split.y_test).mean())


class PartModels(NamedTuple):
    """Models of parts of the rows, and samples of the rows, as the partitions of a frame return them."""

    models: list[Any]
    samples: list[Sample]
    slices: list[np.ndarray]

    @classmethod
    def train(cls, X: np.ndarray, y: np.ndarray, n: int, budget: int) -> Self:
        """Split the rows into n parts, and train and sample each."""
        models, samples, slices = [], [], np.array_split(np.arange(len(y)), n)
        for part, rows in enumerate(slices):
            models.append(BSCAClassifier(budget, max_features=X.shape[1], seed=0))
            models[-1].learn_many(X[rows], y[rows])
            reservoir = Reservoir([0, part])
            reservoir.add(X[rows], y[rows].astype(np.float64), np.ones(len(rows)))
            samples.append(reservoir.get_sample())
        return cls(models, samples, slices)

    def merge(self) -> Any:
        """Return the merged model of all parts."""
        model = copy.deepcopy(self.models[0])
        if len(self.models) > 1:
            X, y, w = combine_samples(self.samples, [len(rows) for rows in self.slices])
            model.merge_with(*self.models[1:], rows=(X, y > 0.0, w))
        return model


def measure_parts(split: Split, budget: int, counts: tuple[int, ...], seed: int) -> dict[str, dict[str, float]]:
    """Return for each number of parts the test accuracies after one and two rounds, merge time, and bytes sent to the driver."""
    X, y = split.shuffle_rows(np.random.default_rng(seed))
    results = {}
    for n in counts:
        parts = PartModels.train(X, y, n, budget)
        start = time.perf_counter()
        model = parts.merge()
        seconds, first = time.perf_counter() - start, measure_accuracy(model, split)
        sent = sum(len(serialize_parts({"model": one}, {})) for one in parts.models) + sum(
            len(one.to_bytes()) for one in parts.samples
        )
        equations, search = NormalEquations.zeros(model), LineSearch.zeros()
        for rows in parts.slices:
            equations.add(NormalEquations.from_rows(model, X[rows], y[rows]))
        step = equations.compute_step(model)
        for rows in parts.slices:
            search.add(LineSearch.from_rows(model, step, X[rows], y[rows]))
        take_step(model, step, search)
        sums = n * (equations.A.nbytes + equations.g.nbytes)
        results[str(n)] = {"one": first, "two": measure_accuracy(model, split), "seconds": seconds, "models": sent, "sums": sums}
    return results


def run_accuracy(args: Any) -> dict[str, Any]:
    """Print and return accuracies by the number of parts."""
    results: dict[str, Any] = {}
    PartModels.train(np.eye(4, dtype=np.float32), np.arange(4) % 2 > 0, 2, 2).merge()  # compiles before any time is taken
    for name in args.sets:
        split = load_split(name, args.data)
        runs = [measure_parts(split, args.budget, tuple(args.parts), seed) for seed in range(args.shuffles)]
        results[name] = {
            n: {key: float(np.mean([run[n][key] for run in runs])) for key in runs[0][n]} | {"runs": [run[n] for run in runs]}
            for n in runs[0]
        }
        report_progress(f"{name}: {results[name]}")
    one_part = {name: results[name].get("1", {}).get("one", np.nan) for name in results}
    for rounds in ("one", "two"):
        rows = [(n, *(f"{results[name][n][rounds] - one_part[name]:+.2f}" for name in results)) for n in map(str, args.parts)]
        first = ("one pass", *(f"{one_part[name]:.2f}" for name in results))
        print_table(
            f"Test accuracy after {rounds} round(s), less that of one pass over all rows", ("parts", *results), [first, *rows]
        )
    rows = [
        (
            n,
            f"{max(of[n]['seconds'] for of in results.values()):.2f}",
            f"{max(of[n]['models'] for of in results.values()) / 2**20:.1f}",
            f"{max(of[n]['sums'] for of in results.values()) / 2**20:.0f}",
        )
        for n in map(str, args.parts)
    ]
    print_table("Of the set that needs most", ("parts", "merge, s", "models, MiB", "sums of a second round, MiB"), rows)
    return results


def run_weights(args: Any) -> dict[str, Any]:
    """Print and return accuracies by the weight of a row in the merge; test the best weight of half of the sets on the others."""
    results: dict[str, dict[str, float]] = {}
    default_weight = merging._ROW_WEIGHT
    for name in args.sets:
        split = load_split(name, args.data)
        runs: dict[str, list[float]] = {}
        for seed in range(args.shuffles):
            X, y = split.shuffle_rows(np.random.default_rng(seed))
            for n in (2, 8, 64):
                part_models = PartModels.train(X, y, n, args.budget)
                for weight in ROW_WEIGHTS:
                    merging._ROW_WEIGHT = weight
                    runs.setdefault(f"{weight:g}", []).append(measure_accuracy(part_models.merge(), split))
        results[name] = {weight: float(np.mean(values)) for weight, values in runs.items()}
        report_progress(f"{name}: {results[name]}")
    merging._ROW_WEIGHT = default_weight
    print_table(
        "Test accuracy by the weight of a row in the merge, mean of 2, 8 and 64 parts",
        ("weight", *results),
        [(weight, *(f"{results[name][weight]:.2f}" for name in results)) for weight in next(iter(results.values()))],
    )
    halves, rows = (args.sets[::2], args.sets[1::2]), []
    for chosen_on, used_on in (halves, halves[::-1]):
        means = {weight: np.mean([results[name][weight] for name in chosen_on]) for weight in results[chosen_on[0]]}
        chosen = max(means, key=lambda weight: float(means[weight]))
        differences = [results[name][chosen] - max(results[name].values()) for name in used_on]
        rows.append((", ".join(chosen_on), chosen, f"{np.mean(differences):+.2f}", f"{min(differences):+.2f}"))
    print_table("Chosen on half of the sets", ("on", "weight", "the others, from their best: mean", "worst"), rows)
    return results


def write_rows(folder: Path, rows: int) -> None:
    """Write random rows to Parquet files."""
    rng, rows_per_file = np.random.default_rng(0), rows // FILES
    for i in range(FILES):
        groups = (draw_rows(rng, min(250_000, rows_per_file - start)) for start in range(0, rows_per_file, 250_000))
        write_parquet(folder / f"{i:04d}.parquet", groups)


def iter_batches(folder: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches of rows and labels of Parquet files, without Spark."""
    for path in sorted(folder.glob("*.parquet")):
        for batch in parquet.ParquetFile(path).iter_batches(BATCH_ROWS):
            features = batch.column("features").flatten().to_numpy(zero_copy_only=False)
            yield features.reshape(-1, FEATURES), batch.column("label").to_numpy()


class MemoryMonitor(threading.Thread):
    """A context that records the peak resident memory of this process, of Java and of all workers, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.maxima = {"driver": 0.0, "java": 0.0, "workers": 0.0}
        self.stopped = threading.Event()

    def run(self) -> None:
        """Update the peaks ten times a second."""
        page = os.sysconf("SC_PAGE_SIZE") / 2**20
        while not self.stopped.wait(0.1):
            now = dict.fromkeys(self.maxima, 0.0)
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    name, size = (path / "comm").read_text().strip(), int((path / "statm").read_text().split()[1]) * page
                    command = (path / "cmdline").read_bytes()
                except OSError:
                    continue  # the process has ended
                if path.name == str(os.getpid()):
                    now["driver"] += size
                elif name == "java":
                    now["java"] += size
                elif b"pyspark" in command and b"daemon" in command:
                    now["workers"] += size
            self.maxima = {key: max(value, now[key]) for key, value in self.maxima.items()}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.join()


def run_fit(args: Any, folder: Path, spark: Any) -> dict[str, Any]:
    """Print and return rows a second of fits, and their accuracy on fresh rows."""
    from pyspark.ml.classification import LinearSVC, LogisticRegression, RandomForestClassifier  # noqa: PLC0415
    from pyspark.ml.functions import array_to_vector  # noqa: PLC0415

    from streamsvm_spark import BudgetedSVMClassifier  # noqa: PLC0415

    X_test, y_test = draw_rows(np.random.default_rng(1), 100_000)
    y_test = y_test.astype(np.float64)
    results: dict[str, Any] = {}

    def add_result(name: str, seconds: float, accuracy: float, memory: dict[str, float]) -> None:
        results[name] = {"seconds": seconds, "rows_per_second": args.rows / seconds, "accuracy": 100.0 * accuracy, **memory}
        report_progress(f"{name}: {results[name]}")

    BSCAClassifier(10, max_features=FEATURES).learn_many(X_test[:10], y_test[:10])  # compiles before any time is taken
    single = BSCAClassifier(args.budget, max_features=FEATURES, seed=0)
    start = time.perf_counter()
    with MemoryMonitor() as memory:
        for X, y in iter_batches(folder):
            single.learn_many(X, y)
    add_result(
        "one core, no Spark", time.perf_counter() - start, float((single.predict_many(X_test) == y_test).mean()), memory.maxima
    )
    frame = spark.read.parquet(str(folder))
    vectors = frame.select(array_to_vector("features").alias("features"), "label")
    test = spark.createDataFrame(pa.table({"features": list(X_test[:10_000]), "label": y_test[:10_000]}))
    test = test.select(array_to_vector("features").alias("features"), "label")
    BudgetedSVMClassifier(budget=20).fit(frame.limit(1000))  # starts workers
    fits = {
        "BudgetedSVMClassifier": (BudgetedSVMClassifier(budget=args.budget), frame),
        "the same, vectors": (BudgetedSVMClassifier(budget=args.budget), vectors),
        "the same, rounds=2": (BudgetedSVMClassifier(budget=args.budget, rounds=2), frame),
        "LinearSVC": (LinearSVC(), vectors),
        "LogisticRegression": (LogisticRegression(), vectors),
        "RandomForestClassifier": (RandomForestClassifier(seed=0), vectors),
    }
    for name, (estimator, rows) in fits.items():
        start = time.perf_counter()
        with MemoryMonitor() as memory:
            model = estimator.fit(rows)
        seconds = time.perf_counter() - start
        right = model.transform(test).filter("prediction = label").count() / test.count()
        add_result(name, seconds, right, memory.maxima)
    rate = results["one core, no Spark"]["rows_per_second"]
    rows = []
    for name, result in results.items():
        ratio, memory = result["rows_per_second"] / rate, (f"{result[key]:,.0f}" for key in ("driver", "java", "workers"))
        rows.append(
            (
                name,
                f"{result['seconds']:.1f}",
                f"{result['rows_per_second']:,.0f}",
                f"{ratio:.2f}",
                f"{result['accuracy']:.2f}",
                *memory,
            )
        )
    columns = ("fit", "s", "rows/s", "of one core", "accuracy %", "driver, MiB", "Java, MiB", "workers, MiB")
    print_table(f"{args.rows:,} rows of {FEATURES} features in Parquet, B = {args.budget}, local[{args.cores}]", columns, rows)
    return results


def run_score(args: Any, folder: Path, spark: Any) -> dict[str, Any]:
    """Print and return rows a second of predictions in batches of 10,000 rows."""
    from streamsvm_spark import BudgetedSVMClassificationModel  # noqa: PLC0415

    learner = BSCAClassifier(args.budget, max_features=FEATURES, seed=0)
    batches = []
    for X, y in iter_batches(folder):
        batches.append(X)
        if learner.n_learned < 200_000:
            learner.learn_many(X, y)
        elif len(batches) == 100:
            break
    start = time.perf_counter()
    for X in batches:
        learner.predict_many(X)
    rate = sum(map(len, batches)) / (time.perf_counter() - start)
    model, frame = BudgetedSVMClassificationModel(learner), spark.read.parquet(str(folder))
    rates = {"predict_many, one core": rate, f"predict_many, times {args.cores}": rate * args.cores}
    all_columns = model.copy()
    prediction_only = model.copy({model.rawPredictionCol: "", model.probabilityCol: ""})

    def first_of_each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.slice(0, 1) for batch in batches)

    frames = {
        "rows read alone": frame.select("features").mapInArrow(first_of_each, "features array<float>"),
        "the prediction": prediction_only.transform(frame).select("prediction"),
        "all three columns": all_columns.transform(frame).select("prediction", "rawPrediction", "probability"),
    }
    for name, scored in frames.items():
        for _ in range(2):  # the first pass starts workers
            start = time.perf_counter()
            scored.write.format("noop").mode("overwrite").save()
            rates[name] = args.rows / (time.perf_counter() - start)
        report_progress(f"{name}: {rates[name]:,.0f} rows/s")
    base = rate * args.cores
    rows = [(name, f"{value:,.0f}", f"{100.0 * value / base:.0f} %") for name, value in rates.items()]
    print_table(f"Scores of {args.rows:,} rows, B = {args.budget}, local[{args.cores}]", ("", "rows/s", "of predict_many"), rows)
    return rates


def run_estimate(args: Any, results: dict[str, Any]) -> dict[str, Any]:
    """Print and return estimated seconds of a round on clusters: the time of workers, network and driver."""
    fit, twice = (results["fit"][name] for name in ("BudgetedSVMClassifier", "the same, rounds=2"))
    rate, again = fit["rows_per_second"] / args.cores, (twice["seconds"] - fit["seconds"]) * args.cores / args.rows
    most = str(max(args.parts))
    per_model = max(of[most]["seconds"] for of in results["accuracy"].values()) / int(most)
    network = 125e6  # bytes a second to the driver: 1 Gbit/s
    model_bytes, sums_bytes = (
        args.budget * (4 * FEATURES + 260) + 2000 * (4 * FEATURES + 16),
        8.0 * args.budget * (args.budget + 1),
    )
    rows, results_by_cores = [], {}
    for cores in (1, 10, 100, 1000, 10_000):
        n = 1e7 * cores
        learn, send, merge = n / cores / rate, cores * model_bytes / network, cores * per_model
        second = n / cores * again + np.ceil(cores / 32) * sums_bytes / network
        results_by_cores[str(cores)] = {"learn": learn, "send": send, "merge": merge, "second": second}
        total = learn + send + merge
        seconds = (f"{x:,.1f}" for x in (learn, send, merge, total))
        rows.append((f"{cores:,}", f"{n:.0e}", *seconds, f"{n / total:.1e}", f"{second:,.1f}"))
    columns = ("cores", "rows", "learn, s", "to the driver, s", "merge, s", "together, s", "rows/s", "a second round, s")
    print_table(
        f"Estimate: 10^7 rows a core at {rate:,.0f} rows/s, {per_model * 1e3:.1f} ms to merge a model, 1 Gbit/s", columns, rows
    )
    return results_by_cores


def main() -> None:
    """Run the selected parts, print tables and write JSON."""
    parser = make_parser(__doc__, "spark_scaling")
    parts = ("accuracy", "weights", "fit", "score")
    parser.add_argument("--only", nargs="*", choices=parts, default=list(parts))
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--parts", nargs="*", type=int, default=list(PART_COUNTS))
    parser.add_argument("--shuffles", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--budget", type=int, default=500)
    parser.add_argument("--cores", type=int, default=2)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    if "accuracy" in args.only:
        results["accuracy"] = run_accuracy(args)
    if "weights" in args.only:
        results["weights"] = run_weights(args)
    if {"fit", "score"} & set(args.only):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "rows")
            folder.mkdir()
            write_rows(folder, args.rows)
            spark = start_session(Path(name), args.cores, driver_memory="4g", sql_shuffle_partitions="4")
            if "fit" in args.only:
                results["fit"] = run_fit(args, folder, spark)
            if "score" in args.only:
                results["score"] = run_score(args, folder, spark)
            spark.stop()
    if {"accuracy", "fit"} <= set(args.only):  # the estimate needs both
        results["paper"] = run_estimate(args, results)
    write_json(args.out, {"results": results})


if __name__ == "__main__":
    main()
