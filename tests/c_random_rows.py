"""Asks C source for answers to random rows, under the sanitizers.

Half of the rows have random bits, others have numbers as models know them. A number that is out of the bounds of an array or of
its type ends the program.
"""

import subprocess
import tempfile
from pathlib import Path

from c_compilers import FLAGS
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
