"""C for a Cortex-M4 with a floating-point unit: its size by arm-none-eabi-gcc, and its instructions under qemu-system-arm."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.edge.program import Program
from streamsvm.export.c import write_c
from streamsvm.export.c.learning import write_learning_c

__all__ = ["OnDevice", "of_learner", "of_program"]

M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-Os", "-std=c99", "-ffreestanding")
_TURNS = 20  # through the rows, at least: one instruction in 40 is seen
_SECONDS = 120


class OnDevice(NamedTuple):
    """What a model needs there. None where a tool is missing."""

    flash: int | None
    """Bytes of code and constants, and of what variables begin with."""
    ram: int | None
    """Bytes of variables."""
    stack: int | None
    """Bytes of the frames of all functions: more than one call needs."""
    instructions: int | None
    """Of a prediction, or of a row that is predicted and learned, on average."""


def of_program(program: Program, X: np.ndarray) -> OnDevice:
    """What the program needs, predicting the rows X, float32 [n, features], in turn."""
    with tempfile.TemporaryDirectory() as folder:
        write_c(program, folder)
        work = "for (i = 0; i < ROWS; i++) sink += (int)model_predict(rows[i]);"
        return _measured(Path(folder), "model", X, np.zeros(len(X), int), work)


def of_learner(model: BSGDClassifier | BSCAClassifier, X: np.ndarray, y: np.ndarray) -> OnDevice:
    """What the learner needs, predicting and then learning the rows X with labels 0 and 1, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        write_learning_c(model, folder)
        work = "for (i = 0; i < ROWS; i++) { sink += model_learn_predict(rows[i]); model_learn(rows[i], labels[i]); }"
        return _measured(Path(folder), "model_learn", X, y, work)


def _measured(folder: Path, name: str, X: np.ndarray, y: np.ndarray, work: str) -> OnDevice:
    if shutil.which("arm-none-eabi-gcc") is None:
        return OnDevice(None, None, None, None)
    _run(folder, "arm-none-eabi-gcc", *M4, "-fstack-usage", "-c", f"{name}.c", "-o", "model.o")
    text, data, bss = map(int, _run(folder, "arm-none-eabi-size", "model.o").splitlines()[1].split()[:3])
    stack = sum(int(line.split("\t")[1]) for line in (folder / "model.su").read_text().splitlines())
    if shutil.which("qemu-system-arm") is None:
        return OnDevice(text + data, data + bss, stack, None)
    numbers = ", ".join(f"{{{', '.join(f'{value:.9g}' for value in row)}}}" for row in X.tolist())
    constants = f"#define ROWS {len(X)}\n#define TURNS {_TURNS}\nstatic const float rows[ROWS][{X.shape[1]}] = {{{numbers}}};\n"
    constants += f"const int labels[ROWS] = {{{', '.join(str(int(label)) for label in y)}}};\n"
    (folder / "main.c").write_text(f'#include "{name}.h"\n{constants}{_MAIN.replace("@WORK", work)}')
    (folder / "board.ld").write_text(_LAYOUT)
    _run(folder, "arm-none-eabi-gcc", *M4, "-nostartfiles", "-Tboard.ld", "main.c", "model.o", "-o", "board.elf", "-lgcc", "-lc")
    said = _run(folder, *_BOARD, "-kernel", "board.elf")
    return OnDevice(text + data, data + bss, stack, round(40 * int(said, 16) / (_TURNS * len(X))))


def _run(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_SECONDS).stdout


# An instruction takes a nanosecond there, and the timer counts at 25 MHz: one in 40 instructions.
_BOARD = ["qemu-system-arm", "-M", "mps2-an386", "-icount", "shift=0", "-nographic", "-monitor", "none", "-serial", "none"]
_BOARD += ["-chardev", "stdio,id=said", "-semihosting-config", "enable=on,target=native,chardev=said"]
_LAYOUT = """
ENTRY(begin)
SECTIONS
{
    .text 0x0 : { KEEP(*(.vectors)) *(.text*) *(.rodata*) *(.ARM.exidx*) }
    .data 0x20000000 : { *(.data*) *(.bss*) *(COMMON) }
}
"""
_MAIN = """
#include <stdint.h>

extern void begin(void);
static void failed(void);
__attribute__((section(".vectors"), used)) void (*const vectors[16])(void) = {
    (void (*)(void))0x20400000, begin, failed, failed, failed, failed, failed
};
#define AT(place) (*(volatile uint32_t *)(place))
static volatile int sink;

static void call(int what, const void *with) /* the computer that runs the emulator: semihosting */
{
    register int number __asm__("r0") = what;
    register const void *argument __asm__("r1") = with;
    __asm__ volatile("bkpt 0xab" : "+r"(number) : "r"(argument) : "memory");
}

static void failed(void)
{
    call(0x04, "failed");
    call(0x18, (void *)0x20023);
}

void begin(void)
{
    uint32_t i, turn, before, ticks;
    char text[9];
    AT(0xE000ED88) |= 0xf << 20; /* the floating-point unit */
    __asm__ volatile("dsb; isb");
    AT(0xE000E014) = 0xffffff; /* the timer: how far it counts, its value, go */
    AT(0xE000E018) = 0;
    AT(0xE000E010) = 5;
    ticks = 0;
    for (turn = 0; turn < TURNS; turn++) {
        before = AT(0xE000E018);
        @WORK
        ticks += (before - AT(0xE000E018)) & 0xffffff;
    }
    for (i = 0; i < 8; i++) text[i] = "0123456789abcdef"[ticks >> (28 - 4 * i) & 15];
    text[8] = 0;
    call(0x04, text);
    call(0x18, (void *)0x20026); /* the end */
    for (;;) {}
}
"""
