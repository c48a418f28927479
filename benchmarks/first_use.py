"""Measures the first use of an installation: CPU and wall-clock seconds until a row is learned, with an empty compile cache.

    python benchmarks/first_use.py                       # every public estimator, the command line, and river
    python benchmarks/first_use.py --only SVMClassifier learn --python other/bin/python

Each use runs in its own process with an empty compile cache; ``again`` repeats it with the cache that the first run has filled.
Both are equal where machine code is installed, as in wheels for a platform.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from common import make_parser, print_table, report_progress, run_command, write_json

#: Learners of streams predict and learn a row; batch solvers fit 300 rows.
USE_CODE = """
import sys
import numpy as np
name = sys.argv[1]
rng = np.random.default_rng(0)
X = rng.normal(size=(300, 5)).astype(np.float32)
number = X[:, 0] * X[:, 1] + X[:, 2]
y = number if "Regressor" in name or "SVR" in name else number > 0
import streamsvm.learners
if hasattr(streamsvm.learners, name):
    model = getattr(streamsvm.learners, name)()
    x = dict(zip("abcde", map(float, X[0])))
    if name == "OneClassBSGD":
        model.score_one(x), model.learn_one(x)
    else:
        model.predict_one(x), model.learn_one(x, y[0].item())
else:
    import streamsvm.batch, streamsvm.linear
    model = (getattr(streamsvm.batch, name, None) or getattr(streamsvm.linear, name))()
    model.fit(X) if name == "CSMOOneClass" else model.fit(X, y.astype(float if y.dtype.kind == "f" else int))
"""
RIVER_CODE = """
from river import linear_model
linear_model.LogisticRegression().learn_one(dict(a=1.0, b=2.0), True)
"""
NAMES_CODE = """
from streamsvm.core.compiling import ahead_of_time
print(*(name for name in ahead_of_time.list_components() if name[0].isupper()))
"""
STATUS_CODE = "from streamsvm.core.compiling.machine_code import describe_status; print(describe_status())"


def main() -> None:
    """Measure each use, print a table and write JSON."""
    parser = make_parser(__doc__, "first_use")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of estimators, river or learn")
    parser.add_argument("--python", default=sys.executable, help="the Python of the environment to measure")
    arguments = parser.parse_args()
    python = arguments.python

    def run_code(code: str) -> str:
        return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()

    names = ["river", *run_code(NAMES_CODE).split(), "learn"]
    rows, figures = [], {}
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "rows.csv")
        table.write_text(
            "a,b,y\n"
            + "".join(f"{i * 37 % 100},{i * 61 % 90},{'yes' if i * 37 % 100 > i * 61 % 90 else 'no'}\n" for i in range(3000))
        )
        commands = {
            "river": [python, "-c", RIVER_CODE],
            "learn": [python, "-m", "streamsvm", "learn", str(table), "--label", "y"],
        }
        for name in arguments.only or names:
            report_progress(name)
            command = commands.get(name, [python, "-c", USE_CODE, name])
            with tempfile.TemporaryDirectory() as cache:
                first, again = (run_command(command, Path(folder), NUMBA_CACHE_DIR=cache) for _ in range(2))
            figures[name] = {"cpu": first[0], "seconds": first[1], "cpu_again": again[0], "seconds_again": again[1]}
            rows.append((name, *(f"{figure:.2f}" for figure in (*first, *again))))
    status = run_code(STATUS_CODE)
    print_table(f"first use ({status})", ["use", "CPU s", "s", "CPU s again", "s again"], rows)
    write_json(arguments.out, {"status": status, "uses": figures})


if __name__ == "__main__":
    main()
