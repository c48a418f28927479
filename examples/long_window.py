"""A kernel machine that is refitted to the last 20,000 rows in the background, while the stream continues."""

import time
from collections.abc import Iterator

import numpy as np

from streamsvm.batch import HierarchicalSVC, batch_adapter


def generate_rows(n: int, seed: int = 0) -> Iterator[tuple[dict[str, float], bool]]:
    """Generate rows whose decision boundary turns slowly."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        a, b = rng.normal(size=2).tolist()
        yield {"a": a, "b": b}, bool(np.sin(2.0 * a + i / n) + b + 0.3 * rng.normal() > 0.0)


def main(n: int = 60_000, window: int = 20_000) -> None:
    """Predict and learn ``n`` rows, and print accuracy and times."""
    model = batch_adapter(
        HierarchicalSVC(),
        window=window,
        refit_every=window // 2,
        calibration_folds=0,  # only one fit for each refit
        background=True,
    )
    n_correct, slowest, stream_start = 0, 0.0, time.perf_counter()
    for x, y in generate_rows(n):
        start = time.perf_counter()
        n_correct += model.predict_one(x) == y
        model.learn_one(x, y)
        slowest = max(slowest, time.perf_counter() - start)
    micros = 1e6 * (time.perf_counter() - stream_start) / n
    print(f"{100 * n_correct / n:.1f} % correct, {micros:.0f} us a row, {1e3 * slowest:.0f} ms for the slowest row")
    model.wait()
    print(f"{model.n_fits} fits, the last of {model.n_window:,} rows")
    learner = model.to_budget(100)  # continues learning row by row
    for x, y in generate_rows(1000, seed=1):
        learner.learn_one(x, y)


if __name__ == "__main__":
    main()
