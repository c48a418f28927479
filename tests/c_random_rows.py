"""Ask C source of models of all kinds for answers to random rows, under the sanitizers. By hand; the suite does it with fewer.

    python tests/c_random_rows.py [ROWS [BEGINNING OF A NAME ...]]

Half of the rows have random bits, others have numbers as models know them. A number that is out of the bounds of an array or of
its type ends the program.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from c_compilers import FLAGS
from edge_models import MAKERS, program
from streamsvm.edge.program import Program
from streamsvm.export.c import write_c

CHECKS = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-g"]

_MAIN = """
#include <stdint.h>
#include <stdlib.h>
#include "model.h"
int main(int argc, char **argv)
{
    uint32_t state = 1;
    long n = argc > 1 ? atol(argv[1]) : 1000;
    float x[MODEL_FEATURES], out[MODEL_OUTPUTS];
    while (n-- > 0) {
        int j;
        for (j = 0; j < MODEL_FEATURES; j++) {
            union { uint32_t i; float f; } bits;
            state = state * 1664525u + 1013904223u;
            bits.i = state ^ (state >> 13);
            x[j] = n % 2 ? bits.f : (float)(int32_t)state * 1e-9f; /* any bits, and numbers as models know them */
        }
        model_decision(x, out);
        if (model_predict(x) != model_predict(x)) return 1; /* NaN is no answer */
        for (j = 0; j < MODEL_OUTPUTS; j++) if (out[j] != out[j]) return 2;
    }
    return 0;
}
"""


def run(program: Program, compiler: str, rows: int, bits: int = 32) -> None:
    """Compile a program's C with all checks, and ask for answers; raises CalledProcessError where something is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        write_c(program, folder, bits=bits)
        Path(folder, "main.c").write_text(_MAIN)
        subprocess.run([compiler, *FLAGS, *CHECKS, "-o", "main", "main.c", "model.c"], cwd=folder, check=True)
        subprocess.run([Path(folder, "main"), str(rows)], check=True)


def main() -> None:
    """Go through models of all kinds, or those whose names begin so."""
    rows, failed = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, 0
    wanted = tuple(sys.argv[2:]) or ("",)
    compilers = [name for name in ("gcc", "clang") if shutil.which(name)]
    names = [name for name in MAKERS if name.startswith(wanted)]
    for number, name in enumerate(names):
        given = program(name)
        if any(step.do == "trees" for step in given.steps):
            continue
        for bits in (32, 16, 8):
            compiler = compilers[(number + bits // 8) % len(compilers)]
            try:
                run(given, compiler, rows, bits)
            except subprocess.CalledProcessError as error:
                failed += 1
                print(f"{name}, {bits} bits, {compiler}: exit status {error.returncode}", flush=True)
    print(f"{len(names)} models, {rows:,} rows each with vectors of 32, 16 and 8 bits: {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
