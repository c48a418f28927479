"""The Arduino and Zephyr examples compile for their processors, and print the predictions of the model on this machine."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from c_compilers import FOUND, ZIG, needs_zig
from c_model import CModel
from streamsvm.edge.program import Answer, Column, Program
from streamsvm.export.c import write_c
from streamsvm.export.c.writer import measure_needs
from streamsvm.export.convert import make_program

pytestmark = [pytest.mark.thorough, needs_zig]
EXAMPLES = Path(__file__).parents[3] / "examples"
SKETCH, APPLICATION = EXAMPLES / "arduino" / "Occupied", EXAMPLES / "zephyr"
spec = importlib.util.spec_from_file_location("device_model", EXAMPLES / "device_model.py")
device_model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(device_model)

#: Flags for code that needs the C library only, and a linker for it: Zig would first build its libraries for half a minute.
NO_RUNTIME_FLAGS = ("-fno-exceptions", "-fno-rtti", "-fno-sanitize=undefined")
LINKER = FOUND[:1] or ZIG
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror", "-Os")
PROCESSORS = {
    "Cortex-M4": (*ZIG, "-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m4", "-ffreestanding"),
    "AVR": (*ZIG, "-target", "avr-freestanding", "-mmcu=atmega328p", "-ffreestanding"),
}
ARDUINO = """
#pragma once
enum { A0, A1 };
extern "C" { int analogRead(int pin); void delay(unsigned long milliseconds); }
struct Port { void begin(long) {} void println(const char *text); };
extern Port Serial;
"""
HOST_MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "Arduino.h"
static const int readings[][2] = {READINGS};
static int row;
Port Serial;
int analogRead(int pin) { return readings[row][pin]; }
void Port::println(const char *text) { puts(text); }
void delay(unsigned long) { if (++row == (int)(sizeof readings / sizeof readings[0])) exit(0); }
void setup();
void loop();
int main() { setup(); for (;;) loop(); }
"""
KERNEL = "static inline int k_msleep(int milliseconds) { return milliseconds - milliseconds; }\n"
PRINTK = "int printf(const char *, ...);\n#define printk printf\n"


def run(folder, *command):
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[:3000]
    return process.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the model, the sketch as C++, the application, and headers that replace those of the boards."""
    folder = tmp_path_factory.mktemp("device")
    run(EXAMPLES, sys.executable, "device_model.py", folder)
    (folder / "Arduino.h").write_text(ARDUINO)
    (folder / "sketch.cpp").write_text('#include "Arduino.h"\n' + (SKETCH / "Occupied.ino").read_text())  # as Arduino does
    shutil.copy(APPLICATION / "src" / "main.c", folder)
    for name, text in (("kernel.h", KERNEL), ("sys/printk.h", PRINTK)):
        path = folder / "zephyr" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize("processor", PROCESSORS)
def test_examples_compile_for_their_processors(processor, folder):
    command = PROCESSORS[processor]
    run(folder, *command, *WARNINGS, "-std=gnu11", "-c", "model.c", "-o", f"{processor}.o")
    run(folder, *command, *WARNINGS, "-std=gnu++11", "-c", "sketch.cpp", "-o", f"{processor}.o")
    if processor != "AVR":
        run(folder, *command, *WARNINGS, "-std=c11", "-I.", "-c", "main.c", "-o", f"{processor}.o")


def test_the_sketch_prints_the_predictions_of_the_model(folder):
    model, rows = device_model.train_learner(), [x for x, _ in device_model.make_readings(200, seed=1)]
    readings = ", ".join(f"{{{int(x['light'])}, {int(x['sound'])}}}" for x in rows)
    (folder / "here.cpp").write_text(HOST_MAIN.replace("READINGS", readings))
    run(folder, *ZIG, *NO_RUNTIME_FLAGS, "-c", "model.c", "-o", "model.o")
    run(folder, *ZIG, "-x", "c++", *NO_RUNTIME_FLAGS, "-c", "sketch.cpp", "-o", "sketch.o")
    run(folder, *ZIG, "-x", "c++", *NO_RUNTIME_FLAGS, "-c", "here.cpp", "-o", "here.o")
    run(folder, *LINKER, "model.o", "sketch.o", "here.o", "-o", "sketch")
    printed = run(folder, "./sketch").split()
    expected = [model.predict_one(x) for x in rows]
    n_equal = sum(a == b for a, b in zip(printed, expected, strict=True))
    assert n_equal >= 198  # 8 bits a number
    assert sum(label == y for label, (_, y) in zip(printed, device_model.make_readings(200, seed=1), strict=True)) > 180


def test_the_application_prints_the_predictions_of_the_model(folder):
    run(folder, *LINKER, "-I.", "main.c", "model.c", "-o", "application")
    printed = re.findall(r"light (\d+), sound (\d+): (\w+)\n", run(folder, "./application"))
    model = device_model.train_learner()
    assert len(printed) == 4
    assert [label for *_, label in printed] == [model.predict_one({"light": float(a), "sound": float(b)}) for a, b, _ in printed]


def test_the_application_has_its_files_and_enough_stack(folder):
    sources = re.search(r"target_sources\(app PRIVATE (.*)\)", (APPLICATION / "CMakeLists.txt").read_text())[1].split()
    assert {Path(source).name for source in sources} <= {path.name for path in folder.iterdir()}
    stack = int(re.search(r"CONFIG_MAIN_STACK_SIZE=(\d+)", (APPLICATION / "prj.conf").read_text())[1])
    stack_text = re.search(r"([\d,]+) bytes of stack compiled with -Os", (folder / "model.h").read_text())[1]
    assert int(stack_text.replace(",", "")) + 512 < stack  # printk's


def test_a_model_that_is_too_large_for_16_bits_does_not_compile_there(tmp_path):
    columns = [Column(i, i) for i in range(60)]
    for vectors in (100, 150):  # 24,000 and 36,000 bytes in a table
        program = Program(columns)
        kernel = {"kind": "rbf", "gamma": 1.0, "coef0": 0.0, "degree": 1}
        value = program.add(
            "kernel", program.add("impute", 0, float32=True), vectors=np.ones((vectors, 60), np.float32), **kernel
        )
        value = program.add("linear", value, weights=np.ones((1, vectors)), biases=np.zeros(1))
        program.answer = Answer("number", value, value)
        write_c(program, tmp_path)
        assert measure_needs(program).fits_16_bits == (vectors == 100)
        for processor, compiler in PROCESSORS.items():
            command = *compiler, "-Os", "-c", "model.c", "-o", "m.o"
            process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert (process.returncode == 0) == (vectors == 100 or processor != "AVR")
            if process.returncode:
                message = (
                    "error: this model has tables of 36,644 bytes: where int has 16 bits, one may have 32,767 and all 65,535."
                )
                assert message in process.stderr.splitlines()[0]
                assert "--max-bytes 16000" in process.stderr.splitlines()[0]


AVR = """
#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/sleep.h>
#include <stdint.h>
#include "model.h"
static void put(char letter) { while (!(UCSR0A & (1 << UDRE0))) {} UDR0 = letter; }
int main(void)
{
    static const float rows[][MODEL_FEATURES] = {ROWS};
    uint8_t i, k;
    UCSR0B = 1 << TXEN0;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        union { float f; uint32_t bits; } value;
        model_decision(rows[i], &value.f);
        for (k = 0; k < 8; k++) put("0123456789abcdef"[(value.bits >> (28 - 4 * k)) & 15]);
        put('\\n');
    }
    cli();
    sleep_mode(); /* without interrupts: the end of the simulation */
}
"""


@pytest.mark.skipif(not (shutil.which("avr-gcc") and shutil.which("simavr")), reason="needs avr-gcc and simavr")
def test_predictions_on_an_avr_are_bit_identical(tmp_path):
    """On an AVR, int has 16 bits, and tables are in flash memory."""
    program = make_program(device_model.train_learner())
    X = np.array([list(x.values()) for x, _ in device_model.make_readings(30, seed=2)], np.float32)
    write_c(program, tmp_path, bits=8)
    (tmp_path / "main.c").write_text(AVR.replace("ROWS", ", ".join(f"{{{a}f, {b}f}}" for a, b in X.tolist())))
    run(tmp_path, "avr-gcc", "-mmcu=atmega328p", "-Os", "-std=gnu11", "main.c", "model.c", "-o", "m.elf")
    printed = run(tmp_path, "sh", "-c", "simavr -m atmega328p -f 16000000 m.elf 2>&1")
    decisions = np.array([int(bits, 16) for bits in re.findall(r"([0-9a-f]{8})\.", printed)], np.uint32).view(np.float32)
    np.testing.assert_array_equal(decisions, CModel(program, bits=8).decision_function_many(X))


@pytest.mark.skipif(not shutil.which("avr-gcc"), reason="needs avr-gcc")
def test_tables_stay_in_the_flash_of_an_avr(folder, tmp_path):
    """The linker puts data that is copied to RAM into .data: only a few labels, and no table."""
    files = write_c(make_program(device_model.train_learner()), tmp_path, bits=8)
    main = "volatile float x[2];\nint main(void) { return model_predict((const float *)x); }\n"
    (tmp_path / "main.c").write_text(f'#include "model.h"\n{main}')
    data = {}
    for standard in ("gnu11", "c11"):
        command = ["avr-gcc", "-mmcu=atmega328p", "-Os", f"-std={standard}", "-ffunction-sections", "-fdata-sections"]
        run(tmp_path, *command, "-Wl,--gc-sections", "main.c", "model.c", "-o", "m.elf")
        sections = run(tmp_path, "avr-size", "-A", "m.elf")
        data[standard] = int(re.search(r"\.data\s+(\d+)", sections)[1])
    assert data["gnu11"] < 32 < 0.8 * files.table_bytes < data["c11"]  # some numbers become code
