"""Golden digests of whole runs of streams: a change that should change nothing is seen to change nothing, to the byte.

    python tests/golden_runs.py write runs.json      # before the change
    python tests/golden_runs.py compare runs.json    # after it

A run is that of a loop, or some of the command line. What is compared: models, predictions, positions and facts in checkpoints,
dead letters without their time, counts, warnings and errors. ``write`` also leaves what runs had when they were killed, in a
folder beside the file, and ``compare`` takes these to their end. PYTHONPATH chooses another checkout. Topics are those of the
embedded broker; where there is none they are left out, which is an error with ``--kafka``.
"""
# ruff: noqa: SIM905, T201

from __future__ import annotations

import argparse
import contextlib
import csv
import difflib
import gzip
import hashlib
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from river import linear_model, preprocessing

import streamsvm
from fake_registry import fake_registry
from streamsvm import BSGDClassifier, BSGDRegressor, SVMClassifier, load, stream
from streamsvm.cli.main import main as command_line
from streamsvm.stream import LearningLoop, Row, open_sink, open_source
from streamsvm.stream.tables import TableEncoder

Parts = dict[str, Any]

# The data: rows of numbers, and rows of people with names, dates, marks for missing values and texts that need quotes.

CITIES = ["Oslo", "Köln", "Rio, Sul", 'the "Loop"', "two\nlines", "", "NA", " Bari "]
BAD_CELLS = """0.5,2,1|0.5,2,1,,1,0.5,1,9|spam,2,1,,1,0.5,1|inf,2,1,,1,0.5,0|nan,2,1,,1,0.5,1|1e39,2,1,,1,0.5,0||\r|\
1_0,2,1,,1,0,1|0.5,2,1,,-1,0.5,1|0.5,2,1,,heavy,0.5,0|0.5,2,1,,1,0.5,maybe|0.5,2,1,,1,0.5,2|,,,,,,1|0.5,2,1,,1,0.5,|+.5,-0,1.,1e3,1,0.5,1|\
"0.5",2,"1",,1,0.5,0|"a,2,1,,1,0.5,0|٣,2,1,,1,0.5,1|\x000,2,1,,1,0.5,1""".split("|")
BAD_OBJECTS = r"""{"a": "spam", "y": 1}|[1]|{|{"a": [1], "y": 0}|{"a": NaN, "y": 1}|{"a": 1e999, "y": 1}||null|{"a": 2}|{"y": 1}|
{"a": 12345678901234567890123, "y": 1}|{"y": null, "a": 1}|{"a": 1, "y": "1"}|{"a": 1, "y": 2}|{"a": {"b": 1}, "a.b": 2, "y": 1}|
{"a": true, "y": 1}|{"a": "\ud800", "y": 0}|{"a": 1, "y": [1]}|{"a": 1, "a": 2, "y": 1}|{"b": {"c": {"d": 4}}, "y": 0}|
{"a": 1, "w": -1, "y": 0}|{"a": "2.5", "y": 0}""".replace("|\n", "|").split("|")
BAD_PAIRS = "1 1:x|1:2 3:4|1 1:2 1:3|maybe 1:2|# a comment||1 1:nan|0 2:inf|2 1:3|1|1 1:1_0|+1 7:1".split("|")
BAD_PEOPLE = 'p,"x,1|p,x,1,old,2,never,,1,no|p,Oslo,1,3,2,2024-01-01,,1,|p|p,Oslo,1,3,2,2024-01-01,n,1,maybe'.split("|")


def numbers(n: int = 600, seed: int = 1) -> list[Parts]:
    draw, rows = random.Random(seed), []
    for i in range(n):
        a, b = round(draw.gauss(0.0, 1.0), 3), round(draw.gauss(1.0, 10.0), 2)
        row = {"a": a, "b": b, "c": i % 50, "d": draw.choice([None, 0.0, 1.0]), "w": draw.choice([None, 0, 1, 1, 2.5])}
        rows.append(row | {"z": round(0.1 * a * b + draw.gauss(0.0, 0.1), 4), "y": int(a * b > draw.gauss(0.0, 1.0))})
    return rows


def people(n: int = 450) -> list[Parts]:
    draw, rows = random.Random(2), []
    for i in range(n):
        city = draw.choice(CITIES) if draw.random() < 0.8 else f"v{draw.randrange(60)}"
        row = {"id": f"p{i}", "city": city, "code": f"{draw.randrange(12):03d}", "age": draw.choice(["NA", "", *range(20, 80)])}
        row |= {
            "amount": round(draw.lognormvariate(5.0, 2.0), 2),
            "since": datetime(2020, 1, 1) + timedelta(hours=i * 991 % 9973),
        }
        row |= {"note": f'No. {i}, "fine"' + "\n\n" * (i % 9 == 0), "w": draw.choice(["", 0, 1, 2.5])}
        rows.append(row | {"y": "yes" if len(city) + 0.01 * row["amount"] + draw.gauss(0.0, 1.0) > 6.0 else "no"})
    return rows


def cells(rows: list[Parts], **how: Any) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), **{"lineterminator": "\n", **how})
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def objects(rows: Iterable[Any], **how: Any) -> str:
    return "".join(json.dumps(row, default=str, **how) + "\n" for row in rows)


def spoilt(rows: Any, bad: Iterable[Any], every: int = 29) -> Any:
    """Rows, or lines of a text, with bad ones between them."""
    lines = rows.split("\n") if isinstance(rows, str) else rows
    for number, line in enumerate(bad, 1):
        lines.insert(every * number, line)
    return "\n".join(lines) if isinstance(rows, str) else lines


def ragged(rows: list[Parts]) -> Iterator[Parts]:
    """Rows of which no two need to have the same names, some within others."""
    for i, row in enumerate(rows):
        pairs = sorted(row.items(), key=lambda pair: (i * 5 + ord(pair[0])) % 7)
        late = {f"late{i // 100}": 0.5} if i % 100 > 90 else {"in": {"e": i % 3, "f": {"g": i % 2 == 0}}} if i % 3 else {}
        yield {name: value for name, value in pairs if value is not None or i % 2} | late


def nested(rows: list[Parts]) -> Iterator[Parts]:
    """Rows with objects in them, and numbers in texts."""
    for i, row in enumerate(rows):
        inner = {"amount": str(row.pop("amount")) if i % 3 else None, "at": {"since": row.pop("since").isoformat()}}
        yield row | {"age": row["age"] if i % 4 else str(row["age"]), "more": inner, "y": row["y"] == "yes"}


def as_table(rows: list[Parts]) -> Any:
    """Rows as columns of Arrow of all types."""
    found = {name: pa.array([None if row[name] in ("", "NA") else row[name] for row in rows]) for name in rows[0]}
    some = [None if i % 7 == 0 else Decimal(i) / 8 for i in range(len(rows))]
    found["in"] = pa.array([{"e": float("nan") if i % 90 == 89 else 0.5, "f": {"g": price}} for i, price in enumerate(some)])
    if "city" in found:
        return pa.table(found | {"city": found["city"].dictionary_encode()})
    return pa.table(found | {"b": found["b"].cast(pa.float32()), "d": found["d"].cast(pa.bool_()), "price": pa.array(some)})


def timed(n: int) -> tuple[list[Parts], list[Parts]]:
    """Rows, and labels that come later: some before their row, some too late, some twice and some not at all."""
    rows = [{"id": i, "t": 1.7e9 + 5 * i, "kind": "uvw"[i % 3], **row} for i, row in enumerate(numbers(n, seed=5))]
    pairs = [(row["id"], row["t"], row.pop("y")) for row in rows]
    labels = [{"id": i, "t": t + 3 * (i % 60) - 20, "y": y} for i, t, y in pairs if i % 9]
    return rows, sorted([*labels, *labels[::50]], key=lambda label: label["t"])


def write_data(folder: Path) -> None:
    folder.mkdir()
    some, many, (rows, labels) = numbers(), numbers(9000), timed(400)
    odd = [{"n": 100 + i, "one": 7, "at": f"{1 + i % 12:02d}/{1 + i % 12:02d}/2024", **row} for i, row in enumerate(some)]
    german, comma = people(), str.maketrans(",.", ".,")
    for row in german:
        row |= {"amount": f"{row['amount']:,.2f}".translate(comma), "since": f"{row['since']:%d.%m.%Y}", "y": f"{row['y']}, ja?"}
    pairs = "\n".join(f"{'+1' if row['y'] else -1} 1:{row['a']}" + f" 2:{row['b']}" * (row["d"] == 1) for row in some)
    texts = {
        "plain.csv": cells(some),
        "gaps.csv.gz": cells([row | {"y": row["y"] == 1} for row in some]),
        "bad.csv": spoilt(cells(some), BAD_CELLS),
        "long.csv": spoilt(cells(many), BAD_CELLS, every=450),
        "quoted.csv": "\ufeff" + cells(some, delimiter=";", lineterminator="\r\n\r\n", quoting=csv.QUOTE_ALL),
        "odd.csv": cells(odd),
        "ragged.jsonl": objects(ragged(some)),
        "bad.jsonl": spoilt(objects(({**row, "ä": 1.5} for row in some), ensure_ascii=False), BAD_OBJECTS, every=26),
        "long.jsonl": spoilt(objects({name: row[name] for name in "aby"} for row in many), BAD_OBJECTS, every=400),
        "pairs.libsvm": pairs,
        "bad.libsvm.gz": spoilt(pairs, BAD_PAIRS),
        "people.csv": spoilt(cells(people()), BAD_PEOPLE),
        "many people.csv": cells(people(3000)),
        "kunden.csv": cells(german, delimiter=";"),
        "people.jsonl": spoilt(objects(nested(people())), BAD_OBJECTS, every=20),
        "rows.csv": cells(rows),
        "labels.jsonl": spoilt(objects(labels), ['{"id": 1}', '{"id": 7, "t": "soon", "y": 1}', "{"]),
    }
    for name, text in texts.items():
        data = text.encode("latin-1" if name == "kunden.csv" else "utf-8")
        (folder / name).write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
    for name, rows in (("numbers", some), ("people", people())):
        parquet.write_table(as_table(rows), folder / f"{name}.parquet", row_group_size=300)
        with pa.ipc.new_file(str(folder / f"{name}.arrow"), as_table(rows).schema) as file:
            file.write_table(as_table(rows), max_chunksize=256)


def dicts(kind: str) -> list[Any]:
    """Rows as an iterable of Python has them, with some that are none."""
    if kind == "numbers":
        pairs: list[Any] = [
            ({7: np.float32(x["a"]), "b": x["b"], "d": x["d"] or 0.5, "w": x["w"] or 1}, x["y"]) for x in numbers()
        ]
        bad: list[Any] = [({"b": x}, 1) for x in (float("nan"), "spam", None, 1, True, np.int64(2))]
        bad += [*(({"b": 1}, y) for y in (None, [1], 0.5, "1")), ({}, 0), 7, ("b",)]
    else:
        pairs = [(x | {"amount": Decimal(str(x["amount"])), "age": x["age"] or None}, y) for x in people() for y in [x.pop("y")]]
        odd: list[Parts] = [{"city": 3, "age": float("nan")}, {"since": "soon"}, {"amount": [1]}, {"age": True}, {"city": ["a"]}]
        bad = [(x, "no") for x in odd]
    spoilt(pairs, bad)
    return pairs


# What there is to learn, and how.


class Table(NamedTuple):
    """A file or iterable, what its source is told and what an encoder of its rows, columns to keep, and the label."""

    file: str
    options: Parts = {}  # noqa: RUF012 - nobody changes it
    reading: Parts = {}  # noqa: RUF012
    keep: Sequence[str] = ("c", "d")
    label: str = "y"

    def source(self, weight: str | None = None) -> Any:
        if self.file in ("numbers", "people"):
            rows = stream.IterableSource(dicts(self.file), self.file)
            return rows if weight is None else stream.WeightedSource(rows, weight)
        return open_source(f"data/{self.file}", label=self.label, weight=weight, **self.options)


PERSON: Parts = {"drop": ["id", "note"], "categorical": ["city", "code"], "dates": ["since"], "missing": ["NA", "-"]}
NESTED, GERMAN = PERSON | {"dates": ["more.at.since"]}, PERSON | {"dates": {"since": "%d.%m.%Y"}, "decimal": ","}
SOME: Parts = {"features": ["city", "age", "since"], "categorical": "city", "dates": "since", "missing": "NA"}
EXCEL: Parts = {"delimiter": ";", "encoding": "latin-1"}
FILES = "plain.csv gaps.csv.gz bad.csv ragged.jsonl bad.jsonl pairs.libsvm bad.libsvm.gz numbers.parquet numbers.arrow numbers"
NUMBERS = {file: Table(file) for file in FILES.split()} | {"quoted.csv": Table("quoted.csv", {"delimiter": ";"})}
NUMBERS["kunden.csv"] = Table("kunden.csv", EXCEL | {"features": ["age", "code"], "missing": "NA"}, keep=["id"])
NUMBERS["pairs.libsvm"] = Table("pairs.libsvm", keep=())
LONG = {file: Table(file) for file in ("long.csv", "long.jsonl")}
TARGETS = {file: Table(file, label="z") for file in ("bad.csv", "ragged.jsonl", "numbers.parquet")}
FILES = "people.csv people.parquet people.arrow people"
PEOPLE = {file: Table(file, PERSON, PERSON, ("id", "city")) for file in FILES.split()}
PEOPLE["people.jsonl"] = Table("people.jsonl", NESTED, NESTED, ("more.amount", "city"))
PEOPLE["kunden.csv of people"] = Table("kunden.csv", EXCEL | GERMAN, GERMAN, ("amount", "note"))
PEOPLE["some of people.csv"] = Table("people.csv", SOME, SOME, ("id", "age"))
PEOPLE |= {f"raw {name}": PEOPLE[name]._replace(options={}) for name in ("people.csv", "people.jsonl")}
MANY = {"many people": PEOPLE["people.csv"]._replace(file="many people.csv")}

bsgd = partial(BSGDClassifier, budget=30, seed=3)
Maker = Callable[[Parts], Any]
PLAIN: dict[str, Maker] = {
    "bsgd": lambda _: bsgd(),
    "svm": lambda _: SVMClassifier(seed=3),
    "scaler": lambda _: preprocessing.StandardScaler() | bsgd(),
    "river": lambda _: preprocessing.StandardScaler() | linear_model.LogisticRegression(),
}
HASHED: Parts = {"when_missing": "indicator", "cycles": ("day", "week", "year"), "max_values": 4, "buckets": 3}
BOUNDED: Parts = {"when_missing": "drop", "scaler": "standard", "cycles": "week", "max_values": 0, "buckets": 5}
SCALED: Parts = {"when_missing": "indicator", "scaler": preprocessing.MinMaxScaler(), "max_columns": 12}
ENCODED: dict[str, Maker] = {
    "mean": lambda reading: TableEncoder(**reading) | bsgd(),
    "hashed": lambda reading: TableEncoder(**reading, **HASHED) | SVMClassifier(seed=3),
    "bounded": lambda reading: TableEncoder(**reading, **BOUNDED) | linear_model.SoftmaxRegression(),
    "scaled": lambda reading: TableEncoder(**reading, **SCALED) | bsgd(scaling=None),
}
REGRESSORS: dict[str, Maker] = {
    "regressor": lambda _: BSGDRegressor(budget=30, seed=3),
    "encoded": lambda _: TableEncoder(scaler="standard") | linear_model.LinearRegression(),
}
WHOLE: Parts = {"to": "out.jsonl", "on_error": "letters.jsonl", "checkpoint_every": 137}
KEPT: Parts = {"to": "out.csv", "keep": True, "on_error": "skip", "checkpoint_every": 120}
OTHERS: dict[str, Parts] = {
    "kept": KEPT | {"pieces": (1, 60, 333, None)},
    "kept, killed": KEPT,
    "weighted": {"to": "out.jsonl", "weight": "w", "on_error": "letters.csv", "checkpoint_every": 300},
    "bare": {"to": None, "on_error": "skip", "checkpoint_every": None},
    "strict": {"to": "out.jsonl", "checkpoint_every": 97},
    "limited": {"to": "out.csv", "on_error": "letters.jsonl", "error_limit": 3, "checkpoint_every": 90},
}
USUAL = {"whole": WHOLE, "whole, killed": WHOLE}
WAYS = USUAL | OTHERS

# Runs, and what they leave.


class KilledError(Exception):
    """A run ends here, as if it were killed."""


class Recorded(stream.CheckpointFolder):
    """A folder that notes each checkpoint, and is killed in the place of one of them."""

    def __init__(self, path: Path, told: list[str], kill_at: int | None) -> None:
        super().__init__(path)
        self.told, self.kill_at = told, kill_at

    def save(self, model: Any, metric: Any, **facts: Any) -> Any:
        if len(self.told) == self.kill_at:
            raise KilledError
        self.told.append(f"{facts['rows']}: {digests([timeless(facts)])}")
        return super().save(model, metric, **facts)


def digests(lines: Sequence[Any]) -> list[str]:
    """A digest of every 100 texts."""
    parts = [repr(lines[i : i + 100]).encode() for i in range(0, len(lines), 100)]
    return [f"from {100 * i}: {hashlib.sha256(part).hexdigest()[:16]}" for i, part in enumerate(parts)]


def masked(text: str) -> str:
    """A text without times, the port of a broker, and what is only shown now and then."""
    text = re.sub(r'(?<="message": \[null, )\d+', "0", text)
    text = re.sub(r'127\.0\.0\.1:\d+|  [\d,]+ rows/s| after [\d.]+ s\b|"(rows_per_second|seconds)": [\d.e-]+, ', "", text)
    shown = r'(compiling .*|waiting for rows|\{"event": "progress".*|[\d,]+ rows?  (?!.*  (done|interrupted)).*)\n'
    return re.sub(f"^{shown}", "", text, flags=re.MULTILINE)


def timeless(facts: Any) -> str:
    """Facts of a checkpoint without the digest of dead letters, which have times."""
    found = json.loads(masked(json.dumps(facts)))
    (found.get("refused", {}).get("letters") or {}).pop("tail", None)
    return json.dumps(found, sort_keys=True)


def left_in(folder: Path) -> Parts:
    """What a run has left in its folder."""
    parts: Parts = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() and any(path.glob("*.ckpt")):
            header = dict(stream.CheckpointFolder.newest_in(path).header)  # type: ignore[union-attr]
            parts |= {f"{name}: model": header.pop("digest"), f"{name}: position": timeless(header.pop("position"))}
            parts[f"{name}: facts"] = timeless({fact: value for fact, value in header.items() if fact != "versions"})
        elif path.name.startswith("letters"):
            with path.open(newline="") as file:
                letters = csv.DictReader(file) if path.suffix == ".csv" else map(json.loads, file)
                parts[name] = [masked(json.dumps({**letter, "time": ""})) for letter in letters]
        elif path.suffix in (".csv", ".jsonl") and path.is_file():
            parts[name] = digests(path.read_bytes().splitlines(keepends=True))
    return parts


@contextlib.contextmanager
def heard(said: list[str]) -> Iterator[None]:
    """Note warnings, and the error that ends what is done."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a run says
            said.append(masked(f"{type(error).__name__}: {error}"))
    said += [masked(f"warning: {each.message}") for each in found if " has taken " not in str(each.message)]


TOLD = "rows learned predicted metric_name metric windowed refused unlabelled empty delayed drifts majority".split()


class Run(NamedTuple):
    """What makes a source and a loop, and how it is run: options of the loop, and ``to``, ``weight`` and ``pieces``."""

    source: Callable[..., Any]
    loop: Callable[..., Any]
    way: Parts

    def __call__(self, folder: Path, kill_at: int | None = None) -> Parts:
        """Run to the end of the source, from the checkpoint in the folder on, or until it is killed there."""
        folder.mkdir(parents=True, exist_ok=True)
        how, said, told = dict(self.way), list[str](), list[str]()
        to, weight, pieces = how.pop("to"), how.pop("weight", None), how.pop("pieces", (None,))
        if "letters" in (on_error := how.get("on_error", "")):
            how["on_error"] = folder / on_error
        with heard(said), contextlib.ExitStack() as stack:
            source = stack.enter_context(contextlib.closing(self.source(weight)))
            sink = stream.FileSink(folder / to) if isinstance(to, str) else to and to()
            stack.callback(sink.close if sink else str)
            checkpoints = stack.enter_context(Recorded(folder / "state", told, kill_at))
            loop = self.loop(source, sink=sink, checkpoints=checkpoints, **how)
            for most in pieces:
                facts = vars(loop.run(most))
                said.append(", ".join(f"{name}={facts[name]!r}" for name in TOLD if name in facts))
        return {"text": said, "checkpoints": told, **left_in(folder)}


Case = tuple[str, Any]  # the name, and what runs it in a folder


def runs(name: str, ways: Iterable[str], table: Any, loop: Any, **more: Any) -> Iterator[Case]:
    """Cases of a table, or of what has its ``source`` and ``keep``."""
    for way in ways:
        yield f"{name} {way}", Run(table.source, loop, WAYS[way] | more | ({"keep": table.keep} if "keep" in WAYS[way] else {}))


def learning(table: Any, maker: Maker) -> Callable[..., Any]:
    return lambda source, **how: LearningLoop(source, maker(table.reading), **how)


def file_cases() -> Iterator[Case]:
    """Files and iterables, learned and predicted: each table by each model, in two more ways each time."""
    others = [*OTHERS] * 3
    for tables, makers in ((NUMBERS, PLAIN), (PEOPLE, ENCODED)):
        for i, (name, table) in enumerate(tables.items()):
            for j, (model, maker) in enumerate(makers.items()):
                first = i % 6 + 2 * j
                yield from runs(f"{name}, {model},", [*USUAL, *others[first : first + 2]], table, learning(table, maker))
    for tables, makers in ((TARGETS, REGRESSORS), (MANY, {"mean": ENCODED["mean"]}), (LONG, {"bsgd": PLAIN["bsgd"]})):
        for name, table in tables.items():
            for model, maker in makers.items():
                every = {"checkpoint_every": 2000} if tables is LONG else {}
                yield from runs(f"{name} to {model},", [*USUAL, "weighted", "bare"], table, learning(table, maker), **every)
    yield from runs("people refused by", ["whole"], PEOPLE["people.csv"], learning(PEOPLE["people.csv"], PLAIN["bsgd"]))
    for model, tables, maker in (("bsgd", NUMBERS | LONG, PLAIN["bsgd"]), ("mean", PEOPLE | MANY, ENCODED["mean"])):
        folder, table = Path("models", model), next(iter(tables.values()))
        Run(table.source, learning(table, maker), OTHERS["bare"])(folder)

        def predicting(source: Any, sink: Any, state: Path = folder / "state", **how: Any) -> Any:
            return stream.PredictionLoop(source, load(state), sink, **how)

        for i, (name, table) in enumerate(tables.items()):
            yield from runs(f"{name} by {model},", [*USUAL, others[i % 6]], table, predicting)


def joined_cases(name: str, rows: Callable[[], Any], labels: Callable[[], Any]) -> Iterator[Case]:
    """Rows whose labels come from another stream."""

    def loop(source: Any, delayed: Parts, **how: Any) -> Any:
        model = TableEncoder(categorical="kind") | bsgd()
        return stream.DelayedLearningLoop(source, model, delayed=stream.DelayedLabels(max_age=120.0, **delayed), **how)

    def source(_: Any) -> Any:
        return stream.JoinedSource(rows(), labels(), key="id", time="t", max_age=120.0)

    both = SimpleNamespace(source=source, keep=("id", "kind"))
    for delayed in ({"expired": "drop"}, {"expired": "dead-letter", "max_rows": 9}, {"expired": "negative", "negative": 0}):
        more = {"delayed": delayed, "on_error": "letters.jsonl"}
        yield from runs(f"{name}, {delayed['expired']},", [*USUAL, "kept, killed"], both, loop, **more)


#: Words that stand for others, and under each name commands; some begin with a file for standard input (<) or a pipe (|).
WORDS = {
    "SMALL": "--label y --learner bsgd,budget=30,seed=3 --checkpoint @/state --checkpoint-every 100",
    "PERSON": "--columns id:drop,note:drop,city:category,code:category,since:date --missing NA,-",
    "GERMAN": "learn data/kunden.csv --encoding latin-1 --delimiter ; --decimal , --missing NA",
    "TWICE": "--to @/out.csv --keep id,note --on-error @/letters.jsonl --cycles day,week --when-missing indicator",
    "JOINED": "learn data/rows.csv --columns kind:category --to @/o.csv --labels data/labels.jsonl?time=t",
    "PREDICT": "predict --model @/state --on-error @/letters-p.jsonl",
}
COMMANDS = """\
people.csv
learn data/people.csv --label y
learn data/people.csv PERSON --label y --on-error skip --quiet --metric ROCAUC --positive yes

kunden.csv
learn data/kunden.csv --label y
learn data/kunden.csv --label y --encoding latin-1 --delimiter ;
GERMAN SMALL --columns id:drop,note:drop,w:drop,city:category,code:category,since:date=%d.%m.%Y --to @/out.csv
inspect @/state

odd.csv
learn data/odd.csv --label y
learn data/odd.csv SMALL --columns n:drop,at:date=%m/%d/%Y --cycles year

other tables
learn data/people.parquet --label y
learn data/people.jsonl --label y
learn data/bad.csv --label y
learn data/ragged.jsonl SMALL --to @/out.jsonl
inspect @/state

a table, twice, and predicted
learn data/people.csv PERSON SMALL TWICE --max-rows 250
learn data/people.csv SMALL TWICE
learn data/people.csv PERSON SMALL TWICE
PREDICT data/people.csv --to @/p.csv --keep id,city --checkpoint @/place --max-rows 130
PREDICT data/people.csv --to @/p.csv --keep id,city --checkpoint @/place
PREDICT data/people.jsonl --to @/j.jsonl
PREDICT data/people.parquet --to - --label note
PREDICT data/pairs.libsvm --to @/none.csv
learn data/people.csv PERSON --label y --learner bsgd,budget=30 TWICE --checkpoint @/other --max-rows 300
learn data/people.arrow PERSON --label y --learner bsgd,budget=30 --when-missing indicator --cycles day,week --checkpoint @/third
merge @/other @/third --to @/merged

standard input and pipes
<people.csv learn - --format csv PERSON SMALL --to - --on-error skip --max-rows 200
<people.csv learn - --format csv PERSON SMALL --to - --on-error skip
<people.csv learn - --format csv --label y
|plain.csv learn @/pipe --format csv --label y --learner bsgd --keep c --to @/out.csv
|bad.jsonl learn @/pipe --format jsonl --label y --learner bsgd --to @/out.jsonl --on-error @/letters.csv --checkpoint @/piped

labels
JOINED&key=id&max_age=90s&max_rows=9&expired=dead-letter SMALL --on-error @/letters.jsonl --max-rows 300
JOINED&key=id&max_age=90s&max_rows=9&expired=dead-letter SMALL --on-error @/letters.jsonl
JOINED&key=id&max_age=2m&expired=negative=0 --label y --learner bsgd --keep id,kind --drift ADWIN --checkpoint @/negative
JOINED&key=t --label y --learner bsgd
predict data/rows.csv --model @/negative --to @/p.csv --keep id

a weight, a target, a drift
learn data/bad.csv SMALL --weight w --on-error @/letters.csv --to @/out.jsonl
PREDICT data/plain.csv --to @/p.csv
learn data/bad.csv --label z --regression --on-error skip --learner bsgd --metric R2 --quiet --checkpoint @/target
predict data/ragged.jsonl --model @/target --to @/t.csv
learn data/plain.csv --label z --regression --learner linear --scale none --to @/linear.jsonl
learn data/long.csv --label y --drift ADWIN --on-drift anew --on-error skip --metric F1 --learner bsgd --to @/drift.csv
learn data/plain.csv --label y --learner bsgd --to @/served.csv --metrics-port 0 --quiet
learn data/plain.csv --label y --to @/auto.csv --checkpoint @/auto --quiet
predict data/long.csv --model @/auto --to @/long.csv --on-error skip

limits and mistakes
learn data/bad.csv --label y --learner bsgd --on-error skip --error-limit 2
learn data/bad.csv --label y --learner bsgd --on-error @/letters.jsonl --labels-are 1,2 --error-share 0.2 --to @/out.jsonl
learn data/bad.csv --label y --learner bsgd --on-error skip --labels-are 0,1
learn data/plain.csv --label nope
learn data/plain.csv --label y --keep nope --to @/out.csv
learn data/plain.csv SMALL
learn data/plain.csv SMALL --label z
learn data/gaps.csv.gz SMALL
learn data/plain.csv SMALL --to @/out.csv
learn data/plain.csv SMALL --columns a:drop
learn data/plain.csv SMALL --learner bsgd,budget=31,seed=3
"""


def commanded(lines: Sequence[str], folder: Path) -> Parts:
    """Call the command line, and note what it says."""
    folder.mkdir(parents=True, exist_ok=True)
    said, pipe = list[str](), folder / "pipe"
    for line in lines:
        words = re.sub("|".join(WORDS), lambda found: WORDS[found[0]], line).split()
        given, out, err = "", *(io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        if line[0] in "<|":
            given = f"data/{words.pop(0)[1:]}"
        with contextlib.ExitStack() as stack:
            if line[0] == "<":
                stack.enter_context(mock.patch.object(sys, "stdin", stack.enter_context(Path(given).open())))
            elif given:
                os.mkfifo(pipe)
                writer = threading.Thread(target=pour, args=(Path(given), pipe))
                writer.start()
                stack.callback(pipe.unlink)
                stack.callback(writer.join)
                stack.callback(lambda: os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)))  # if nobody has read it
            stack.enter_context(heard(said))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            try:
                status: Any = command_line([word.replace("@", str(folder)) for word in words])
            except SystemExit as error:
                status = error.code
        said.append(f"$ {line}: status {status}")
        for file in (out, err):
            file.seek(0)
            said += masked(file.read()).splitlines()
    return {"text": said, **left_in(folder)}


def pour(file: Path, pipe: Path) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.write_bytes(file.read_bytes())


def topic_cases() -> Iterator[Case]:
    """Topics of the embedded broker, in each codec and with each client library."""
    from confluent_kafka import Producer

    import streamsvm_kafka as sk

    def fill(topic: str, values: Sequence[bytes], partitions: int = 3) -> None:
        for i, value in enumerate(values):
            producer.produce(topic, value, partition=i % partitions)
        producer.flush()

    def opened(topic: str, client: str, **how: Any) -> Callable[..., Any]:
        options, url = {"client": client, "schema_registry_url": registry.url}, broker.url(topic, **how)
        return lambda weight=None: open_source(url, label="y", stop_at_end=True, weight=weight, options=options)

    def to_topic(run: Run, topic: str, folder: Path) -> Parts:
        return run(folder) | {"messages": messages(broker, topic)}

    with sk.EmbeddedBroker() as broker, fake_registry() as registry:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        kinds = {"a": "float", "b": "double", "c": "int", "d": "boolean", "y": "int"}
        fields = [{"name": name, "type": ["null", kind]} for name, kind in kinds.items()]
        registry.schemas[1] = {"type": "record", "name": "row", "fields": fields}
        codecs = {"json": sk.JSONCodec("y"), "avro": sk.AvroCodec("y", sk.SchemaRegistry(registry.url), schema=1)}
        codecs |= {"arrow": sk.ArrowCodec("y"), "npy": sk.NpyCodec(4), "float32": sk.Float32Codec(4)}
        for name, codec in codecs.items():
            names = range(4) if name in ("npy", "float32") else "abcd"
            many = {"rows_per_message": 70} if name in ("npy", "arrow") else {}
            rows = [[row["a"], row["b"], row["c"], None if row["d"] is None else row["d"] > 0, row["y"]] for row in numbers(900)]
            given = [Row({n: x for n, x in zip(names, xs, strict=True) if x is not None}, y) for *xs, y in rows]
            for partition in (0, 1, 2, 0, 1, 2):
                part = [given.pop(0) for _ in range(150)]
                sk.publish(part, broker.bootstrap, name, codec, partition=partition, client=broker.client, **many)
                fill(name, [b"junk", b"\0\0\0\0\7junk", b"{}"])
        bad = [line for line in BAD_OBJECTS if line]
        fill("ragged", spoilt(objects(ragged(numbers())), bad).encode().splitlines())
        fill("people", spoilt(objects(nested(people())), bad).encode().splitlines())
        for name, texts in zip(("rows", "labels"), timed(300), strict=True):
            fill(name, objects(texts).encode().splitlines(), partitions=1)
        for client in ("kafka-python", "confluent-kafka"):
            for name in (*codecs, "ragged", "people"):
                how: Parts = {"codec": name if name in codecs else "json"} | (
                    {"features": 4} if name in ("npy", "float32") else {}
                )
                keep = () if "features" in how else ("city", "more") if name == "people" else ("c", "y")
                table = SimpleNamespace(source=opened(name, client, **how), keep=keep, reading=NESTED)
                loop = learning(table, ENCODED["mean"] if name == "people" else PLAIN["bsgd"])
                yield from runs(f"{name} of {client},", [*USUAL, "kept", "kept, killed"], table, loop)
                sink = partial(open_sink, broker.url(f"{name}-{client}"), options={"client": client})
                run = Run(table.source, loop, WHOLE | {"to": sink})
                yield f"{name} of {client} to a topic", partial(to_topic, run, f"{name}-{client}")
            yield from joined_cases(f"topics of {client}", opened("rows", client), opened("labels", client))


def messages(broker: Any, topic: str) -> list[str]:
    """The messages of a topic: key, value and headers, in the order of their rows."""
    from kafka import KafkaConsumer, TopicPartition

    with contextlib.closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, **broker.client)) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        left, found = sum(consumer.end_offsets(partitions).values()), list[Any]()
        while len(found) < left:
            found += [each for part in consumer.poll(200).values() for each in part]
    found.sort(key=lambda each: json.loads(each.value)["row"])
    return digests([repr((each.key, each.value, each.headers)) for each in found])


def cases(needs_topics: bool) -> Iterator[Case]:
    yield from file_cases()
    rows = partial(open_source, "data/rows.csv", label="y", label_needed=False)
    yield from joined_cases("files", rows, partial(open_source, "data/labels.jsonl", label="y"))
    for name, *lines in map(str.splitlines, COMMANDS.split("\n\n")):
        yield f"command line, {name}", partial(commanded, lines)
    try:
        yield from topic_cases()
    except ImportError as error:
        if needs_topics:
            raise
        print(f"topics are left out: {error}")


def killed_and_gone_on(name: str, run: Run, store: Path, writes: bool, found: dict[str, Parts]) -> None:
    """Kill a run and go on with it, and with the one that was killed before the change."""
    here = Path("runs", name)
    run(here, kill_at=2)
    if writes:
        shutil.copytree(here, store / name)
    found[name] = killed = run(here)
    for part, value in found.get(name.removesuffix(", killed"), {}).items():
        if part not in ("text", "checkpoints") and value != killed.get(part):
            killed["text"].append(f"{part} is unlike that of the run that was not killed")
    if not writes and (store / name).exists():
        shutil.rmtree(here)
        shutil.copytree(store / name, here)
        found[f"{name} before"] = run(here)


def main() -> int:
    """Write or compare digests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=["write", "compare"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--kafka", action="store_true", help="fail where there is no embedded broker")
    parser.add_argument("--only", default="", metavar="WORD", help="take the runs with this in their name")
    asked = parser.parse_args()
    path, writes, found = asked.path.resolve(), asked.how == "write", dict[str, Parts]()
    store = path.with_name(f"{path.stem}-killed")
    if writes:
        shutil.rmtree(store, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_data(Path("data"))
        for name, run in cases(asked.kafka):
            if asked.only in name and isinstance(run, Run) and name.endswith(", killed"):
                killed_and_gone_on(name, run, store, writes, found)
            elif asked.only in name:
                found[name] = run(Path("runs", name))
    if writes:
        path.write_text(json.dumps(found, indent=1))
        print(f"{len(found)} runs of {streamsvm.__path__[0]}")
        return 0
    before = {name: parts for name, parts in json.loads(path.read_text()).items() if asked.only in name}
    before |= {name: before[name.removesuffix(" before")] for name in found if name.endswith(" before")}
    unlike = 0
    for name in {**before, **found}:
        then, now = before.get(name, {}), found.get(name, {})
        parts = [part for part in {**then, **now} if then.get(part) != now.get(part)]
        unlike += bool(parts)
        for part in parts:
            one, other = (each if isinstance(each, list) else [str(each)] for each in (then.get(part), now.get(part)))
            lines = list(difflib.unified_diff(one, other, n=0, lineterm=""))[2:14]
            print(f"{name}: {part} differs", *lines, sep="\n  ")
    print(f"{len(found)} runs of {streamsvm.__path__[0]}, {unlike} differ")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
