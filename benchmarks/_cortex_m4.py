"""Measures C code on a Cortex-M4 with a floating-point unit: size by arm-none-eabi-gcc, stack and instructions in an emulator."""

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

__all__ = ["DeviceNeeds", "measure_learner", "measure_program", "measure_source"]

M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-Os", "-ffunction-sections", "-fdata-sections")
_C, _CPP = ("-std=gnu11",), ("-x", "c++", "-std=gnu++11", "-fno-exceptions", "-fno-rtti")
_ROUNDS = 20  # passes over the rows: the timer counts one instruction in 40, so that a single pass is too short
_TIMEOUT_SECONDS = 600  # of a compiler: some sources have an entire model in one function, which takes long


class DeviceNeeds(NamedTuple):
    """The resources that a model needs on the device, with the library functions that it calls. None where a tool is missing."""

    flash: int | None
    """Bytes of code, constants and initial values of variables."""
    ram: int | None
    """Bytes of variables."""
    stack: int | None
    """Bytes of the stack that were written to."""
    instructions: int | None
    """Mean number of instructions of a prediction, or of predicting and learning a row."""


def measure_program(program: Program, X: np.ndarray) -> DeviceNeeds:
    """Return the needs of an exported program that predicts the rows X, float32 [n, features], one by one."""
    with tempfile.TemporaryDirectory() as folder:
        files = write_c(program, folder)
        return measure_source(
            Path(folder), [files.source], "int model_predict(const float *x);", "sink += model_predict(rows[i]);", X
        )


def measure_learner(model: BSGDClassifier | BSCAClassifier, X: np.ndarray, y: np.ndarray) -> DeviceNeeds:
    """Return the needs of a learner that predicts and then learns the rows X with labels y (0 or 1), one by one."""
    with tempfile.TemporaryDirectory() as folder:
        files = write_learning_c(model, folder)
        labels = f"static const int labels[ROWS] = {{{', '.join(str(int(label)) for label in y)}}};\n"
        declarations = f'#include "{files.header.name}"\n{labels}'
        row_code = "sink += model_learn_predict(rows[i]); model_learn(rows[i], labels[i]);"
        row_code += " if (sink < 0) model_learn_restore(model_learn_state(), 0);"  # never called, but linked
        return measure_source(Path(folder), [files.source], declarations, row_code, X)


def measure_source(
    folder: Path, sources: list[Path], declarations: str, row_code: str, X: np.ndarray, *flags: str
) -> DeviceNeeds:
    """Return the needs of C or C++ sources in a folder (by their file extensions) that run a piece of C code for each row of X.

    Sizes are those of the linked program, minus those of a program that does nothing. ``row_code`` has the row as ``rows[i]``.
    """
    if shutil.which("arm-none-eabi-gcc") is None:
        return DeviceNeeds(None, None, None, None)
    objects = []
    for source in sources:
        language = _CPP if source.suffix == ".cpp" else _C
        run_command(folder, "arm-none-eabi-gcc", *M4, *language, "-I.", *flags, "-c", source.name, "-o", f"{source.stem}.o")
        objects.append(f"{source.stem}.o")
    numbers = ", ".join(f"{{{', '.join(f'{value:.9g}' for value in row)}}}" for row in X.tolist())
    constants = f"#define ROWS {len(X)}\n#define TURNS {_ROUNDS}\nstatic const float rows[ROWS][{X.shape[1]}] = {{{numbers}}};\n"
    (folder / "board.ld").write_text(_LAYOUT)
    sizes = []
    for name, statements in (("empty", "sink += (int)rows[i][0];"), ("board", row_code)):
        (folder / f"{name}.c").write_text(f"{constants}{declarations}\n{_MAIN.replace('@WORK', statements)}")
        arguments = (
            *_C,
            f"{name}.c",
            *objects,
            "-o",
            f"{name}.elf",
            "-nostartfiles",
            "-Tboard.ld",
            "-Wl,--gc-sections",
            "-lm",
            "-lc",
        )
        run_command(folder, "arm-none-eabi-gcc", *M4, *arguments, "-lgcc")
        sizes.append(list(map(int, run_command(folder, "arm-none-eabi-size", f"{name}.elf").splitlines()[1].split()[:3])))
    text, data, bss = (board - empty for empty, board in zip(*sizes, strict=True))
    if shutil.which("qemu-system-arm") is None:
        return DeviceNeeds(text + data, data + bss, None, None)
    ticks, stack = (int(word, 16) for word in run_command(folder, *_BOARD, "-kernel", "board.elf").split())
    return DeviceNeeds(text + data, data + bss, stack, round(40 * ticks / (_ROUNDS * len(X))))


def run_command(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS).stdout


# The emulator takes a nanosecond for an instruction, and its timer counts at 25 MHz: once in 40 instructions.
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
#define PAINT 0xa5a5a5a5u /* of the stack that no call has touched */
#define STACK 262144
static volatile int sink;

static void call(int what, const void *with) /* the computer that runs the emulator: semihosting */
{
    register int number __asm__("r0") = what;
    register const void *argument __asm__("r1") = with;
    __asm__ volatile("bkpt 0xab" : "+r"(number) : "r"(argument) : "memory");
}

static void hexadecimal(char *text, uint32_t number)
{
    int i;
    for (i = 0; i < 8; i++) text[i] = "0123456789abcdef"[number >> (28 - 4 * i) & 15];
}

static void failed(void)
{
    call(0x04, "failed");
    call(0x18, (void *)0x20023);
}

void begin(void)
{
    uint32_t i, turn, before, ticks;
    volatile uint32_t *from, *const low = (volatile uint32_t *)(0x20400000 - STACK);
    char text[18];
    __asm__ volatile("mov %0, sp" : "=r"(from));
    for (i = 0; low + i < from; i++) low[i] = PAINT;
    AT(0xE000ED88) |= 0xf << 20; /* the floating-point unit */
    __asm__ volatile("dsb; isb");
    AT(0xE000E014) = 0xffffff; /* the timer: how far it counts, its value, go */
    AT(0xE000E018) = 0;
    AT(0xE000E010) = 5;
    ticks = 0;
    for (turn = 0; turn < TURNS; turn++) {
        before = AT(0xE000E018);
        for (i = 0; i < ROWS; i++) { @WORK }
        ticks += (before - AT(0xE000E018)) & 0xffffff;
    }
    for (i = 0; low[i] == PAINT; i++) {}
    hexadecimal(text, ticks);
    text[8] = ' ';
    hexadecimal(text + 9, (uint32_t)(from - (low + i)) * 4);
    text[17] = 0;
    call(0x04, text);
    call(0x18, (void *)0x20026); /* the end */
    for (;;) {}
}
"""
