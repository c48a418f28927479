"""Writes a web page with a kernel SVM that predicts and continues learning, compiled from C to WebAssembly.

``python examples/browser/build.py --out page`` trains a BSGDClassifier on 300 points, writes it as C99 that can learn, compiles
this with clang (Debian: ``clang lld``; anywhere: ``pip install ziglang``), and puts the result into page/index.html: one file,
which any browser opens. The trained learner is also saved as page/model.safetensors. To load a state from the page's button "Save
state" into it:

    streamsvm.export.c.learning.restore_state(streamsvm.load("page/model.safetensors"), open("state.bin", "rb").read())
"""

from __future__ import annotations

import argparse
import base64
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from streamsvm import BSGDClassifier
from streamsvm.export.c.learning import write_learning_c

HERE = Path(__file__).parent
FLAGS = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-mbulk-memory", "-nostdlib", "-Wl,--no-entry", "-Wl,--strip-all"]


def make_points(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return n random points in the unit square, float32 [n, 2], and whether each lies in a ring, bool [n]."""
    X = np.random.default_rng(seed).random((n, 2), dtype=np.float32)
    distance = np.hypot(X[:, 0] - 0.5, X[:, 1] - 0.5)
    return X, (distance > 0.2) & (distance < 0.4)


def train_learner() -> BSGDClassifier:
    """Return a learner with up to 60 support vectors, trained on 300 points."""
    model = BSGDClassifier(budget=60, gamma=40.0, scaling=None, learning_rate="floor", eta0=0.1, averaging=200, seed=0)
    model.learn_many(*make_points(300))
    return model


def find_compiler() -> list[str]:
    """Return the command of a C compiler for WebAssembly; exit with advice if none is installed."""
    if shutil.which("clang") and shutil.which("wasm-ld"):
        return ["clang", "--target=wasm32", "-ffreestanding"]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-freestanding"]
    sys.exit("a compiler for WebAssembly is missing: pip install ziglang, or install clang and lld")


def compile_model(model: BSGDClassifier) -> bytes:
    """Return the learner as a WebAssembly module with the functions of page.c."""
    with tempfile.TemporaryDirectory() as folder:
        write_learning_c(model, folder, "model")
        shutil.copy(HERE / "page.c", folder)
        subprocess.run([*find_compiler(), *FLAGS, "-o", "page.wasm", "page.c"], cwd=folder, check=True)  # noqa: S603 - no user input
        return Path(folder, "page.wasm").read_bytes()


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description="Write a page in which a kernel SVM predicts and learns.")
    parser.add_argument("--out", type=Path, default=Path("page"), help="folder to write (default: page)")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    model = train_learner()
    module = compile_model(model)
    page = (HERE / "page.html").read_text("utf-8").replace("@MODULE", base64.b64encode(module).decode())
    (out / "index.html").write_text(page, "utf-8")
    model.save(out / "model.safetensors")
    print(f"{out / 'index.html'}: {len(page):,} bytes, including {len(module):,} bytes of WebAssembly with the model")
    print(f"open {(out / 'index.html').resolve().as_uri()}")


if __name__ == "__main__":
    main()
