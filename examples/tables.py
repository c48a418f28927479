"""Writes a page of ten typical tables, each learned by the command line: ``python examples/tables.py > docs/tables.md``."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import random
import re
import shlex
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from river import datasets

from streamsvm.cli.main import main
from streamsvm.stream.rows import parse_label
from streamsvm.stream.tables import TableParser

TABLES: list[tuple[str, str, Callable[[], None], list[str]]] = []


def table(title: str, text: str, *commands: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Return a decorator that registers the function that writes a table, with its title, description and commands."""

    def register(make: Callable[[], None]) -> Callable[[], None]:
        TABLES.append((title, text, make, list(commands)))
        return make

    return register


def format_csv(names: list[str], rows: Iterator[list[Any]], **options: Any) -> str:
    """Return a table as CSV text; ``options`` are those of `csv.writer`."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n", **options)
    writer.writerow(names)
    writer.writerows(rows)
    return lines.getvalue()


@table(
    "Categories: a census",
    "Like the UCI adult data, this table has numbers, eight categorical columns, blanks after the commas, and `?` for unknown "
    "values (here a category like any other). `--ask` stops where a flag could be given.",
    "learn adult.csv --label income",
    "learn adult.csv --label income --ask",
)
def adult() -> None:
    draw = random.Random(1)
    names = (
        "age, workclass, fnlwgt, education, education-num, marital-status, occupation, relationship, race, sex, capital-gain, "
        "capital-loss, hours-per-week, native-country, income"
    )
    schools = ["HS-grad", "Some-college", "Bachelors", "Masters", "11th"]
    lines = [names]
    for _ in range(600):
        age, school, hours = draw.randint(17, 80), draw.randrange(5), draw.randint(10, 60)
        married, job = draw.random() < 0.5, draw.choice(["Sales", "Exec-managerial", "Craft-repair", "?"])
        rich = married + (school in (2, 3)) + (job == "Exec-managerial") + (age > 35) >= 3
        cells = [age, draw.choice(["Private", "State-gov", "?"]), draw.randint(20_000, 400_000), schools[school], 9 + school]
        cells += ["Married-civ-spouse" if married else "Never-married", job, "Husband" if married else "Own-child"]
        cells += [draw.choice(["White", "Black"]), draw.choice(["Male", "Female"]), 0 if draw.random() < 0.9 else 7688, 0, hours]
        cells += ["United-States" if draw.random() < 0.9 else "Mexico", ">50K" if rich else "<=50K"]
        lines.append(", ".join(map(str, cells)))
    Path("adult.csv").write_text("\n".join(lines) + "\n")


@table(
    "Dates: bicycle rentals by the hour",
    "A date is converted to seconds. If the times of day vary, the phase in the day and the week is added, as with `--cycles "
    "day,week`; the time of day determines the demand here. `--cycles none` leaves it out.",
    "learn bikes.csv --label busy",
    "learn bikes.csv --label busy --cycles none",
)
def bikes() -> None:
    draw, start = random.Random(2), datetime(2024, 3, 1)
    times = [start + timedelta(hours=hour) for hour in range(900)]
    rows = ([time.isoformat(sep=" "), round(draw.gauss(12, 5), 1), int(7 <= time.hour <= 19)] for time in times)
    Path("bikes.csv").write_text(format_csv(["at", "temperature", "busy"], rows))


@table(
    "Empty cells: measurements",
    "An empty cell is replaced by the mean of its column so far, without a flag. Only if a pipe or a topic has nothing "
    "but numbers, and no gap in its first rows, does a later gap count as 0, with one warning. `--when-missing` sets how it is "
    "handled. The second command adds an indicator feature, because a missing measurement is informative here.",
    "learn sensors.csv --label faulty",
    "learn sensors.csv --label faulty --when-missing indicator",
)
def sensors() -> None:
    draw, lines = random.Random(3), ["a,b,c,faulty"]
    for _ in range(600):
        faulty = draw.random() < 0.4
        a, b, c = (f"{draw.gauss(0.5 * faulty, 1):.3f}" for _ in range(3))
        lines.append(f"{'' if draw.random() < (0.8 if faulty else 0.1) else a},{b},{'' if draw.random() < 0.2 else c},{faulty}")
    Path("sensors.csv").write_text("\n".join(lines) + "\n")


@table(
    "Ids, codes and constants: a database export",
    "A number that increases from row to row is dropped if its name looks like that of an id, or if it starts at 0 or 1. "
    "Integers are categories if they are codes: if a column is called `zip` or `area code`, or if large numbers recur often, as "
    "quantities do not. Small whole numbers, such as the numbers 1 to 45 of shops, are categories if they look like ids of "
    "groups: in up to 4,000 rows, the mean label of a group predicts the labels of its other rows, and the mean of groups with "
    "near numbers does not, as it would for an age or a month. Less evidence is required if the column has a name like `device`, "
    "`shop` or `user`. Groups have to recur: if the rows are sorted by shop, the number stays a number, unless you say "
    "`--columns shop:category`, or `shop:key`. A category with such a name may be a [key](names.md#keys-the-memory-of-a-device), "
    "which a note says. Flags override the inferred kinds: the second command learns the id, too.",
    "learn orders.csv --label returned",
    "learn orders.csv --label returned --columns order_id:number,shop:drop",
)
def orders() -> None:
    draw = random.Random(4)
    prices = [(round(draw.uniform(5, 100), 2), draw.randint(1, 5)) for _ in range(600)]
    sellers = [first + draw.randrange(800) for first in (40_100, 71_300) for _ in range(15)]
    rows = (
        [10_000 + i, 7, draw.choice(sellers), price, n, "yes" if price * n > 120 else "no"] for i, (price, n) in enumerate(prices)
    )
    Path("orders.csv").write_text(format_csv(["order_id", "shop", "seller", "price", "items", "returned"], rows))


@table(
    "Semicolons and another encoding: German Excel",
    "Encoding and delimiter are detected.",
    "learn kunden.csv --label treu",
)
def kunden() -> None:
    draw = random.Random(5)
    people = [(draw.choice(["Köln", "München", "Lübeck"]), draw.randint(18, 80), draw.randint(0, 400)) for _ in range(600)]
    rows = ([ort, alter, umsatz, "ja" if (umsatz > 200) ^ (ort == "Köln") else "nein"] for ort, alter, umsatz in people)
    text = format_csv(["Ort", "Alter", "Umsatz in €", "treu"], rows, delimiter=";")
    Path("kunden.csv").write_bytes(text.replace("\n", "\r\n").encode("cp1252"))


@table(
    "NA, and a compressed file",
    "The second command sets the marker of missing values, which the first one detects.",
    "learn mails.csv.gz --label spam",
    "learn mails.csv.gz --label spam --missing NA",
)
def mails() -> None:
    draw, lines = random.Random(6), ["words,links,capitals,spam"]
    for _ in range(600):
        spam = draw.random() < 0.5
        words, links, capitals = draw.randint(5, 300), int(abs(draw.gauss(6 if spam else 1, 2))), draw.random() * (1 + spam)
        cells = [f"{words}", f"{links}", f"{capitals:.2f}"]
        lines.append(",".join([*("NA" if draw.random() < 0.1 else cell for cell in cells), str(int(spam))]))
    with gzip.GzipFile("mails.csv.gz", "wb", mtime=0) as file:
        file.write(("\n".join(lines) + "\n").encode())


@table(
    "Quoted text with line breaks, and a byte order mark",
    "Cells in quotes may contain commas and line breaks. A column of sentences is a text: its words are learned.",
    "learn reviews.csv --label stars",
)
def reviews() -> None:
    draw = random.Random(7)
    openings = ["A friend gave me this", "My second order", "Bought for the office", "I wanted to try it", "Not my first pack"]
    verdicts = ["it is fresh and tastes", "the smell and the taste are", "we all think that it is", "after a week it was still"]
    endings = ["and it came in two days", "the box was open", "at a price that is fair", "I paid twice for it", "in a nice tin"]
    words = {5: ["very good", "delicious", "just right", "rich"], 1: ["too bitter", "bland", "stale", "like dust"]}
    rows = []
    for _ in range(600):
        product, likes, stars = draw.choice(["tea, green", "coffee"]), draw.randint(0, 9), draw.choice([1, 5])
        phrases = f"{draw.choice(verdicts)} {draw.choice(words[stars])}", draw.choice(endings)
        rows.append([f"{draw.choice(openings)}:\n{', '.join(phrases)}.", product, likes, stars])
    Path("reviews.csv").write_text(format_csv(["text", "product", "likes", "stars"], rows), encoding="utf-8-sig")


@table(
    "Parquet",
    "The types come from the file; times are read as seconds.",
    "learn rides.parquet --label tip",
)
def rides() -> None:
    import pyarrow as pa  # noqa: PLC0415 - of the extra "files"
    from pyarrow import parquet  # noqa: PLC0415

    draw, start = random.Random(8), datetime(2024, 1, 1)
    zones = [draw.choice(["airport", "centre", "north"]) for _ in range(600)]
    miles = [round(draw.uniform(0.5, 15), 1) if draw.random() < 0.95 else None for _ in zones]
    columns = {
        "at": [start + timedelta(minutes=11 * i) for i in range(600)],
        "zone": pa.array(zones).dictionary_encode(),
        "miles": miles,
        "tip": [zone == "airport" or (mile or 0) > 10 for zone, mile in zip(zones, miles, strict=True)],
    }
    parquet.write_table(pa.table(columns), "rides.parquet", row_group_size=200)


@table(
    "Arrow, and a column with many cities",
    "The first cities are one-hot encoded, and all others target encoded. The schema is stored in the checkpoint, so the next "
    "command continues with it, and `predict` uses it. A flag that contradicts the checkpoint is an error.",
    "learn visits.arrow --label buys --checkpoint state --max-rows 400",
    "learn visits.arrow --label buys --checkpoint state",
    "learn visits.arrow --label buys --checkpoint state --columns pages:drop",
    "predict new.csv --model state --to predictions.csv",
)
def visits() -> None:
    import pyarrow as pa  # noqa: PLC0415

    draw = random.Random(9)
    cities = [f"city {min(int(draw.expovariate(0.02)), 499)}" for _ in range(1500)]
    pages = [draw.randint(1, 20) for _ in cities]
    buys = [page > 10 or city < "city 2" for page, city in zip(pages, cities, strict=True)]
    visits = pa.table({"city": cities, "pages": pages, "buys": buys})
    with pa.OSFile("visits.arrow", "wb") as file, pa.ipc.new_file(file, visits.schema) as writer:
        writer.write_table(visits)
    Path("new.csv").write_text("city,pages\ncity 7,3\ncity 499,15\nAtlantis,2\n")


@table(
    "JSON lines: solar flares",
    "This is river's SolarFlare data set, and the label says whether a region had a flare of class C. Three fields are "
    "categories. Use `*:drop` to drop all columns that are not listed.",
    "learn flares.jsonl --label flare",
    "learn flares.jsonl --label flare --columns 'zurich-class:category,activity:number,evolution:number,*:drop'",
)
def flares() -> None:
    rows = ((x, y["c-class-flares"] > 0) for x, y in datasets.SolarFlare())
    Path("flares.jsonl").write_text("".join(json.dumps({**x, "flare": flare}) + "\n" for x, flare in rows))


def run_command(command: str) -> str:
    """Run a command, and return its output without intermediate progress lines, tables of labels and times."""
    output = io.StringIO()
    with contextlib.redirect_stderr(output):
        main(shlex.split(command))
    text = re.sub(r"\s+[\d,]+ rows/s", "", output.getvalue())
    text = re.sub(r"\s+done after .* s$|\s+\d+ merges", "", text, flags=re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith("starting")]
    progress_lines = [number for number, line in enumerate(lines) if re.match(r"[\d,]+ rows ", line)]
    report_lines = [number for number, line in enumerate(lines) if line == "ClassificationReport:"]
    hidden = set(progress_lines[:-1]) | {number for first in report_lines for number in range(first, progress_lines[-1])}
    return "\n".join(line for number, line in enumerate(lines) if number not in hidden)


CELLS = (
    *("12", " 12.50 ", "1e3", ".5", "-0", "007", "2020_01", "0x1F", "1,200", "$1,209.28", "12%", "1.209,28", "0.512"),
    *("(1,209.28)", "12-", "EUR 12", "12 kg"),
    *("123456789012345678901", "inf", "nan", "", "NA", "-999", "true", "\u0663", "2024-01-31", "20240131", "08:30"),
    *("2024-01-31T10:00Z", "01/02/2024", "1706659200", "1706659200000"),
)


def make_cell_table() -> str:
    """Parse the texts of `CELLS`, and return a Markdown table of the values."""
    parsers = {
        "number": TableParser(missing=["NA", "-999"]),
        "number, `--decimal .`": TableParser(missing=["NA", "-999"], decimal="."),
        "number, `--decimal ,`": TableParser(missing=["NA", "-999"], decimal=","),
        "category": TableParser("a:category", missing=["NA", "-999"]),
        "date": TableParser("a:date", missing=["NA", "-999"]),
    }
    lines = [f"| cell (with `--missing NA,-999`) | {' | '.join(parsers)} | label |", "|---" * (len(parsers) + 2) + "|"]
    for text in CELLS:
        values = [_format_value(parser, text) for parser in parsers.values()]
        y = parsers["number"].parse_label(text)
        label = "no label" if y is None or parse_label(y) is None else f"`{parse_label(y)!r}`"
        lines.append(
            f"| `{text}` | {' | '.join(values)} | {label} |" if text else f"| (empty) | {' | '.join(values)} | {label} |"
        )
    return "\n".join(lines)


def _format_value(parser: TableParser, text: str) -> str:
    """Return the value that a parser reads from a cell, as the page shows it."""
    row = parser.parse_row([("a", text)])
    if not row:
        return "missing"
    value = row["a"]
    if isinstance(value, str):
        return f"`{value}`" if parser.get_kind("a") == "category" else "refused"
    return "refused" if abs(value) == float("inf") else f"{value:,.15g}" if parser.get_kind("a") == "date" else f"{value:.15g}"


def make_page() -> str:
    """Write all tables into a temporary folder, learn them, and return the page about them."""
    working_folder = Path.cwd()
    parts = [HEAD.replace("CELLS", make_cell_table())]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, (title, text, make, commands) in enumerate(TABLES, 1):
                make()
                transcript = "\n\n".join(f"$ streamsvm {command}\n{run_command(command)}" for command in commands)
                prose = textwrap.fill(text, 130, break_long_words=False, break_on_hyphens=False)
                parts.append(f"## {number}. {title}\n\n{prose}\n\n```text\n{transcript}\n```\n")
        finally:
            os.chdir(working_folder)
    return "\n".join(parts)


HEAD = """\
# Learn from tables

This page shows how to learn from tables with categories, dates and missing values. `streamsvm learn` infers the schema from the
first 200 rows of a file, and from a sample of its first million cells (in longer files, also from the middle and the end). It
prints the kind of each column, and starts to learn. One line shows the flags for the same schema; other flags
override it. It stops where two readings are equally plausible and the rows do not decide between them (`01/02/2024`), and with
`--ask` wherever a flag could be given. A label with fractions, or with more than 100 different numbers, is a regression target,
as with `--regression`. For a pipe or a topic, it waits for the first row, infers the schema from the rows that arrive within two
seconds, up to 200, and then learns these and all later rows. The schema is stored in the checkpoint.

| question | flag |
|---|---|
| Which columns are learned? | `--columns id:drop,ts:drop`, or `'a:number,b:number,*:drop'`, which drops all others |
| Which are categories? | `--columns city:category`; one-hot encoded, or [target encoded](names.md) if there are many |
| Which is the device or customer? | `--columns device:key`: its [last labels](names.md#keys-the-memory-of-a-device) count, too |
| Which are texts? | `--columns body:text`: messages, reviews or titles, [learned by their words](text.md) |
| Which are dates? | `--columns since:date` (ISO 8601, epochs, times of day), `since:date=%d.%m.%Y` |
| Which cycles do dates have? | `--cycles day,week` (the default, if times of day vary), `--cycles since:year`, `--cycles none` |
| Which values are missing? | `--missing NA,-` (an empty cell and a null always are); in one column, `--columns age:number=NA` |
| How to handle them? | `--when-missing mean` (default), `indicator` (adds `age is missing`), or `drop` (0, as in sparse rows) |
| Which numbers have units, limits or another notation? | `--columns 'a:quantity=kg,b:quantity=<0.5,c:duration'` (below) |
| Which text format? | `--delimiter ';'`, `--encoding latin-1`, `--decimal ,` for 1.209,28 and `--decimal .` for $1,209.28 |

Put a column name with a comma, a colon, a star or a quote into double quotes. In Python, sources take the same arguments. A
transformer before the learner holds the statistics and encodings of the columns, and is saved with it:

```python
>>> import pathlib, tempfile
>>> from streamsvm import BSGDClassifier
>>> from streamsvm.stream import CSVSource, LearningLoop
>>> from streamsvm.stream.tables import TableEncoder
>>> path = pathlib.Path(tempfile.mkdtemp(), "people.csv")
>>> _ = path.write_text("id,city,age,y\\n" + "1,Paris,30,yes\\n2,Oslo,NA,no\\n" * 50)
>>> schema = {"columns": "id:drop,city:category", "missing": "NA"}
>>> model = TableEncoder(**schema) | BSGDClassifier(budget=50)
>>> with CSVSource(path, "y", **schema) as source:
...     LearningLoop(source, model).run().learned
100
>>> model.predict_one({"id": 101, "city": "Oslo", "age": "NA"})
'no'

```

The encoder accepts rows from any source, such as a Kafka topic or a dict, and its memory is bounded. Learners of this library
scale its numeric features, but not its one-hot features, which are 0 or 1. Do not put a scaler after it, because that would scale
the one-hot features too; for other models, pass a scaler to the encoder (`scaler=`).

## How a cell is parsed

A number is written in ASCII digits, with a decimal point, and possibly an exponent. Everything else is text, and its column needs
another kind. The table shows how texts are parsed in CSV files, in strings of JSON and Parquet when any flag of the schema is
given, and in labels.

CELLS

An integer of more than 17 digits is rounded to a float: use `category` or `drop` for ids of that length. Values of JSON, Parquet
and Arrow are typed: numbers, booleans (0 and 1) and decimals are numbers, and a null is missing. `--missing` also matches dates
and times, in their printed form: `--missing 9999-12-31`. Fields of an object or a struct are columns of their
own, named by their path: `payload.after.amount`. A list cannot be learned.

A category is the same in every format. Surrounding blanks are ignored; `1.0` equals `1`, and `True` and `TRUE` equal `true`,
whether they are text, numbers or booleans; typed decimals and bytes are converted to text. `007`, `01` and `1.10` are not
changed, like any other text. Two cases differ: a CSV file without `--columns` loses leading zeros of numbers (`007` is 7), and
JSON labels may be texts or numbers (`"1"` is a text, `1` a number).

A column is inferred to be text if at least 35 % of its values contain five words that no comma or semicolon divides, and 60 % are
distinct (without their digits), in a sample of 20 or more. These are messages, reviews and titles, but few names, addresses and
lists. For shorter texts, set `title:text`. In Chinese and Japanese, four characters count as a word. A detector of anomalies
learns without labels, and gets only the number of words.

Numbers in other notations have a kind of their own, which is inferred from the first rows; `number` refuses them:

| kind | cells |
|---|---|
| `quantity` | hexadecimal `0x1F`, Fortran's `1.5D+03`, `1.2K`, `3M`, and limits: `<0.01`, `>20`, `20+`, `less than 5` |
| `quantity=<5` | as above; a limit is a number that lies 5 beyond it: `>20` is 25, and `<1` is -4 |
| `quantity=kg` | `71.5 kg`, `80kg` and `80`; not `500 g`. Several: `quantity=*\\|e\\|kg`; beside letters, `7B` is no billion |
| `quantity=,` or `quantity=.` | with this decimal mark, and currencies: `1.209,28 €` |
| `duration` | `26:00:00`, `2 days 03:00`, `PT1H30M`, `1h 30m`, in seconds; `2:30` are minutes and seconds, and `90` seconds |

They combine: `quantity=,|<5|kg`. A target of a regression may have these kinds, too (`--columns price:quantity=.`), may be a
date (`due:date`, in seconds since 1970), or have missing-value markers (`price:number=unknown`). Errors of a spreadsheet
(`#N/A`, `#DIV/0!`) are missing, and no-break spaces around a number are ignored. Exported programs take numbers.

The names of months in a date may be English, German, French, Spanish, Italian, Portuguese or Dutch, also abbreviated: `%b` and
`%B` read `März`, `févr.` and `ene`. A time of day without a date is a number of seconds, and a date without a year (`Nov 29
17:42:01`) is in 1900. If date and time are in two columns, the time is a column of its own, with the cycle of a day. `predict`,
`score`, `explain` and `report` say how far dates lie beyond those that the model has learned. Exported programs take dates in
seconds since 1970, and compute the phases; in C, whose rows are float32, to about a minute.

Below are ten tables, and the output of the command line for each. `python examples/tables.py` writes this page, and a test
compares it with a new run.
"""

if __name__ == "__main__":
    print(make_page(), end="")
