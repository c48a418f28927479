"""A kernel machine fitted to the last 20,000 rows of a stream, in the background: the stream does not stand still."""

import time
from collections.abc import Iterator

import numpy as np

from streamsvm.batch import HierarchicalSVC, batch_adapter


def rows(n: int, seed: int = 0) -> Iterator[tuple[dict[str, float], bool]]:
    """A boundary that turns slowly."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        a, b = rng.normal(size=2).tolist()
        yield {"a": a, "b": b}, bool(np.sin(2.0 * a + i / n) + b + 0.3 * rng.normal() > 0.0)


def main(n: int = 60_000, window: int = 20_000) -> None:
    model = batch_adapter(
        HierarchicalSVC(),
        window=window,
        refit_every=window // 2,
        calibration_folds=0,  # no fits beside that of the model
        background=True,
    )
    right, slowest, began = 0, 0.0, time.perf_counter()
    for x, y in rows(n):
        start = time.perf_counter()
        right += model.predict_one(x) == y
        model.learn_one(x, y)
        slowest = max(slowest, time.perf_counter() - start)
    micros = 1e6 * (time.perf_counter() - began) / n
    print(f"{100 * right / n:.1f} % right, {micros:.0f} us a row, {1e3 * slowest:.0f} ms the slowest")
    model.wait()
    print(f"{model.n_fits} fits, the last of {model.n_window:,} rows")
    learner = model.to_budget(100)  # goes on row by row
    for x, y in rows(1000, seed=1):
        learner.learn_one(x, y)


if __name__ == "__main__":
    main()
