"""Exported C under the sanitizers, which end the program at an index or number out of bounds."""

import subprocess
import tempfile
from pathlib import Path

from c_compilers import FLAGS
from streamsvm.edge.program import Program
from streamsvm.export.c import write_c

#: Without optimization, which takes five times as long to compile, and may remove an access that is out of bounds.
CHECKS = ["-O0", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-g"]

_MAIN = """
#include <stdint.h>
#include "model.h"
int main(void)
{
    uint32_t state = 1;
    int n = 1000;
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


def build_program(folder: Path, compiler: str, main: str) -> Path:
    """Compile the C files of a folder with a main program and all checks, and return its path."""
    (folder / "main.c").write_text(main)
    files = sorted(folder.glob("*.c"))
    subprocess.run([compiler, *FLAGS, *CHECKS, "-o", folder / "main", *files], check=True)
    return folder / "main"


def run_random_rows(program: Program, compiler: str, bits: int = 32) -> None:
    """Run the exported C of a program on random rows: half of them have random bits, the others have usual numbers."""
    with tempfile.TemporaryDirectory() as folder:
        write_c(program, folder, bits=bits)
        subprocess.run([build_program(Path(folder), compiler, _MAIN)], check=True)
