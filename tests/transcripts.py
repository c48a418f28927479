"""Runs the commands that pages of docs show after ``$``, and compares their output with the page: by hand, to write the output
into pages, ``python tests/transcripts.py docs/change-a-run.md``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from changes import make_rows
from forked import Command

BLOCK = re.compile(r"(?<=^```text\n)\$ .*?(?=^```)", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", re.MULTILINE)
#: Parts of the output that depend on the time and the processor.
VARYING = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00| +[\d,]+ bytes|[\d,]+ rows/s  |[\d,]+ merges|done after [\d.]+ s"
    r"|\d+ of them in common|changed by \d+%"
)
TIME = "2026-03-02T18:00:00Z"
FIGURE = re.compile(r"0\.\d{4}\b")
FIGURE_PATTERN = re.compile(r"0\\\.\d{4}\b")  # in an escaped text
#: Output that pages leave out: the first look at a table, and the learning curve.
SHORTENED = re.compile(r"^first look at (?:.*\n)*?starting\n|^Accuracy of 1,000 rows.*\n.*\n", re.MULTILINE)


class Step(NamedTuple):
    """A command and its output on the page."""

    command: str
    output: str


def read_steps(page, with_kafka):
    """Return the steps of a page in their order; those in blocks with Kafka only if ``with_kafka``."""
    blocks = [block for block in BLOCK.findall(page.read_text()) if with_kafka or "kafka" not in block]
    return [Step(*groups) for block in blocks for groups in COMMAND.findall(block)]


def write_tables(folder):
    """Write the tables of the pages: day1.csv to day3.csv, and the same rows as JSON lines."""
    folder.mkdir(exist_ok=True)
    for day in (1, 2, 3):
        rows = [row for seed in range(4) for row in make_rows(4 * day + seed)][:1000]
        lines = [f"{row['a']},{row['b']},{row['y']}\n" for row in rows]
        (folder / f"day{day}.csv").write_text("a,b,y\n" + "".join(lines))
        objects = [f'{{"a": {row["a"]}, "b": {row["b"]}, "y": "{row["y"]}"}}\n' for row in rows]
        (folder / f"day{day}.jsonl").write_text("".join(objects))


def run_command(command, folder):
    """Run a command in a folder, and return its output, with errors."""
    if not command.startswith("streamsvm "):
        shell = ["bash", "-c", command]
        return subprocess.run(shell, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
    output = folder.with_name(f"{folder.name}.out")
    with output.open("w") as file:
        Command(shlex.split(command)[1:], cwd=folder, stdout=file, stderr=file).wait()
    return output.read_text()


def check_step(step, output):
    """Compare the output of a step with the page, where a line with ``...`` stands for any number of lines."""
    pattern = re.escape(VARYING.sub("", step.output)).replace(re.escape("...\n"), "(?:.*\n)*")
    match = re.fullmatch(FIGURE_PATTERN.sub(r"(0\\.\\d{4})", pattern), VARYING.sub("", output))
    assert match is not None, f"$ {step.command}{output}"
    figures = [float(figure) for figure in FIGURE.findall(step.output)]
    assert [*map(float, match.groups())] == pytest.approx(figures, abs=0.02), f"$ {step.command}{output}"


def make_runner(folder, bootstrap=None):
    """Return a function that runs a command of a page. ``bootstrap`` is the address of the broker, localhost:9092 on the page.
    Kafka's own tools, which need seconds to start, are replaced by a client. `TIME` is when the last messages were sent.
    """
    time = ""

    def run(command):
        nonlocal time
        if match := re.fullmatch(r"kafka-topics\.sh .* --create --topic (\S+)\n", command):
            with contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=300_000)) as admin:
                admin.create_topics({match[1]: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
            return f"Created topic {match[1]}.\n"
        if match := re.fullmatch(r"kafka-console-producer\.sh .* --topic (\S+) <(\S+)\n", command):
            time = datetime.now(UTC).isoformat()
            with contextlib.closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
                for line in (folder / match[2]).read_bytes().splitlines():
                    producer.send(match[1], line)
            return ""
        if bootstrap is None:
            return run_command(command, folder)
        output = run_command(command.replace("localhost:9092", bootstrap).replace(TIME, time or TIME), folder)
        return output.replace(bootstrap, "localhost:9092").replace(time or TIME, TIME)

    return run


def delete_topics(page, bootstrap):
    """Delete the topics of a page."""
    named = set(re.findall(r"localhost:9092/([\w.-]+)|--create --topic ([\w.-]+)", page.read_text()))
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=300_000)) as admin:
        admin.delete_topics(sorted({name for names in named for name in names if name} & set(admin.list_topics())))


def rewrite_page(page, folder, bootstrap):
    """Write the output of its commands into a page; without ``bootstrap``, of those without Kafka."""

    def run_step(match):
        return f"$ {match[1]}" + SHORTENED.sub("...\n", run(match[1]))

    def run_block(match):
        if "kafka" in match[0] and bootstrap is None:
            return match[0]
        return COMMAND.sub(run_step, match[0])

    write_tables(folder)
    run = make_runner(folder, bootstrap)
    page.write_text(BLOCK.sub(run_block, page.read_text()))
    if bootstrap is not None:
        delete_topics(page, bootstrap)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as made:
            rewrite_page(Path(name), Path(made, "work"), os.environ.get("STREAMSVM_TEST_KAFKA"))
