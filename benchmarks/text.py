"""Runs the default model and its peers prequentially on texts: accuracy, log loss, and microseconds of CPU a row.

    python benchmarks/text.py --data FOLDER                    # each CSV file of texts with a label
    python benchmarks/text.py --data FOLDER --command          # also the whole commands, on the same files
    python benchmarks/text.py --mixed FOLDER                   # tables with texts beside other columns: with and without them

Each row is predicted, then learned, once and in the order of the file. The prediction is the label with the largest probability.
Every row counts: as long as a learner has no probabilities, all labels get the same one, and a label that it does not know has
the least, 1e-6. Times include splitting the texts into words.

The default model gets each column of texts by its name, the others get all texts of a row as one. All have their defaults, and
Vowpal Wabbit and scikit-learn know all labels beforehand. For Vowpal Wabbit, texts are in lower case without its special
characters; as "words", they are also without punctuation, as river's BagOfWords reads them. Its command reads a file that was
converted beforehand. Run it on one core: ``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/text.py``.
"""

from __future__ import annotations

import csv
import gzip
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import _peers
import numpy as np
from common import make_parser, print_table, report_progress, run_command, summarise, write_json
from river import feature_extraction, linear_model, multiclass, naive_bayes
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier

from streamsvm import SVMClassifier, table_model
from streamsvm.learners import OnlineLinearSVC
from streamsvm.stream.tables import TableEncoder
from streamsvm.stream.tables.column_kinds import DROP, ColumnKind, format_columns

LABEL_NAMES = ("type", "label")  # otherwise, the last column holds the labels
MIN_PROBABILITY = 1e-6  # probabilities are clipped in the log loss
WARM_UP = 300  # rows learned before time is measured, so that compiled code is loaded

Row = dict[str, str]
#: Predicts a row, learns it, and returns the probabilities by label: a dict, empty before the first labels.
Step = Callable[[Any, Any], dict[Any, float]]


class TextSet(NamedTuple):
    """Texts with labels."""

    rows: list[Row]
    joined_texts: list[str]  # the texts of all columns of each row, as one
    label: str  # name of the column of labels
    y: list[str]

    @property
    def columns(self) -> list[str]:
        """Names of the columns of texts."""
        return list(self.rows[0])

    @property
    def labels(self) -> list[Any]:
        """All labels, sorted."""
        return sorted(set(self.y))


def list_files(folder: Path | None, only: Sequence[str] | None) -> list[Path]:
    """Return the CSV files of a folder, those named in ``only`` (None: all)."""
    paths = [] if folder is None else sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")])
    return [path for path in paths if only is None or get_set_name(path) in only]


def get_set_name(path: Path) -> str:
    """Return the name of a file without its suffixes."""
    return path.name.removesuffix(".gz").removesuffix(".csv")


def open_file(path: Path) -> Any:
    """Open a text file, compressed or not, to read it."""
    open_text = gzip.open if path.suffix == ".gz" else open
    return open_text(path, "rt", encoding="utf-8", newline="")


def read_texts(path: Path, count: int | None) -> TextSet:
    """Read the first ``count`` rows of a CSV file (None: all)."""
    csv.field_size_limit(2**31 - 1)
    with open_file(path) as file:
        rows = list(islice(csv.DictReader(file, restval=""), count))
    label = next((name for name in LABEL_NAMES if name in rows[0]), list(rows[0])[-1])
    y = [row.pop(label) for row in rows]
    return TextSet(rows, [" ".join(row.values()) for row in rows], label, y)


# Learners ---------------------------------------------------------------------------------------------------------------


def make_default_model(columns: Sequence[str]) -> Any:
    """Return the default model for columns of texts."""
    return TableEncoder(dict.fromkeys(columns, "text")) | SVMClassifier(seed=0)


def make_default_step(texts: TextSet) -> Step:
    """Return the step of the default model, on rows as dicts."""
    return make_model_step(make_default_model(texts.columns))


def make_model_step(model: Any) -> Step:
    """Return the step of a model with river's interface."""

    def predict_then_learn(x: Any, y: Any) -> dict[Any, float]:
        probabilities = model.predict_proba_one(x)
        model.learn_one(x, y)
        return probabilities

    return predict_then_learn


def make_river_step(make_vectorizer: Callable[[], Any], make_learner: Callable[[], Any], texts: TextSet) -> Step:
    """Return the step of a pipeline of river. Learners of two labels get True for the larger one, or are one of several."""
    learner, labels = make_learner(), texts.labels
    if learner._multiclass:
        return make_model_step(make_vectorizer() | learner)
    if len(labels) > 2:
        return make_model_step(make_vectorizer() | multiclass.OneVsRestClassifier(learner))
    step = make_model_step(make_vectorizer() | learner)

    def predict_then_learn(text: str, y: Any) -> dict[Any, float]:
        return {labels[is_positive]: p for is_positive, p in step(text, y == labels[-1]).items()}

    return predict_then_learn


def clean_text(text: str) -> str:
    """Return a text in lower case without the characters that separate the parts of an example of Vowpal Wabbit."""
    return re.sub(r"[:|\s]+", " ", text.lower())


def keep_words(text: str) -> str:
    """Return the words of a text in lower case, without punctuation."""
    return re.sub(r"\W+", " ", text.lower())


def make_vw_options(labels: Sequence[Any], **options: Any) -> dict[str, Any]:
    """Return options of Vowpal Wabbit for probabilities of labels: logistic regression, one against all if there are several."""
    kind = {"link": "logistic"} if len(labels) == 2 else {"oaa": len(labels), "probabilities": True}
    return {"loss_function": "logistic", **kind, **options}


def make_vw_labels(labels: Sequence[Any]) -> dict[Any, str]:
    """Return Vowpal Wabbit's text for each label: -1 and 1, or numbers from 1."""
    return dict(zip(labels, ("-1", "1") if len(labels) == 2 else map(str, range(1, len(labels) + 1)), strict=True))


def make_vw_step(prepare: Callable[[str], str], texts: TextSet, **options: Any) -> Step:
    """Return the step of Vowpal Wabbit on prepared texts. ``options`` are further ones of its command line."""
    labels = texts.labels
    codes = make_vw_labels(labels)
    model = import_module("vowpalwabbit").Workspace(quiet=True, **make_vw_options(labels, **options))

    def predict_then_learn(text: str, y: Any) -> dict[Any, float]:
        line = f"| {prepare(text)}"
        prediction = model.predict(line)
        model.learn(f"{codes[y]} {line}")
        chances = prediction if isinstance(prediction, list) else (1.0 - prediction, prediction)
        return dict(zip(labels, chances, strict=True))

    return predict_then_learn


def make_sklearn_step(texts: TextSet) -> Step:
    """Return the step of scikit-learn's hashed words and logistic regression by stochastic gradients."""
    labels, vectorizer, learner = texts.labels, HashingVectorizer(), SGDClassifier(loss="log_loss", random_state=0)

    def predict_then_learn(text: str, y: Any) -> dict[Any, float]:
        x = vectorizer.transform([text])
        chances = learner.predict_proba(x)[0].tolist() if hasattr(learner, "coef_") else ()
        learner.partial_fit(x, [y], classes=labels)
        return dict(zip(labels, chances, strict=False))

    return predict_then_learn


_COUNTS, _TFIDF = feature_extraction.BagOfWords, feature_extraction.TFIDF
_LINEAR = partial(OnlineLinearSVC, overflow="hash")  # beyond 65,536 words, they share columns
#: For each learner: its title, its package, and the function that makes its step for a set.
LEARNERS: dict[str, tuple[str, str, Callable[[TextSet], Step]]] = {
    "svm": ("TableEncoder, SVMClassifier", "streamsvm", make_default_step),
    "linear": ("BagOfWords, OnlineLinearSVC", "streamsvm", partial(make_river_step, _COUNTS, _LINEAR)),
    "linear-tfidf": ("TFIDF, OnlineLinearSVC", "streamsvm", partial(make_river_step, _TFIDF, _LINEAR)),
    "bayes": ("BagOfWords, river MultinomialNB", "river", partial(make_river_step, _COUNTS, naive_bayes.MultinomialNB)),
    "logistic": (
        "BagOfWords, river LogisticRegression",
        "river",
        partial(make_river_step, _COUNTS, linear_model.LogisticRegression),
    ),
    "logistic-tfidf": (
        "TFIDF, river LogisticRegression",
        "river",
        partial(make_river_step, _TFIDF, linear_model.LogisticRegression),
    ),
    "vw": ("Vowpal Wabbit", "vowpalwabbit", partial(make_vw_step, clean_text)),
    "vw-pairs": ("Vowpal Wabbit, --ngram 2", "vowpalwabbit", partial(make_vw_step, clean_text, ngram=2)),
    "vw-words": ("words, Vowpal Wabbit", "vowpalwabbit", partial(make_vw_step, keep_words)),
    "vw-words-pairs": ("words, Vowpal Wabbit, --ngram 2", "vowpalwabbit", partial(make_vw_step, keep_words, ngram=2)),
    "sgd": ("scikit-learn HashingVectorizer, SGDClassifier", "sklearn", make_sklearn_step),
}


def list_available(names: Sequence[str]) -> list[str]:
    """Return the learners whose packages are installed, and report the others."""
    available = []
    for name in names:
        try:
            _peers._require_package(LEARNERS[name][1])
        except ValueError as error:
            report_progress(f"{name} is left out: {error}")
        else:
            available.append(name)
    return available


# Measurements -----------------------------------------------------------------------------------------------------------


def compute_losses(labels: Sequence[Any], y: Sequence[Any], chances: Sequence[dict[Any, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Return whether each row was predicted right, bool [n], and its log loss, float64 [n], from probabilities by label."""
    right = [bool(p) and max(p, key=p.__getitem__) == label for label, p in zip(y, chances, strict=True)]
    of_label = [p.get(label, 0.0) if p else 1.0 / len(labels) for label, p in zip(y, chances, strict=True)]
    return np.array(right), -np.log(np.clip(of_label, MIN_PROBABILITY, 1.0))


def run_step(step: Step, rows: Sequence[Any], y: Sequence[Any]) -> tuple[list[dict[Any, float]], float]:
    """Predict and learn all rows. Returns the probabilities of each, and microseconds of CPU a row."""
    start = time.process_time()
    chances = [step(x, label) for x, label in zip(rows, y, strict=True)]
    return chances, 1e6 * (time.process_time() - start) / len(y)


def measure_learner(name: str, texts: TextSet, repeats: int) -> dict[str, Any]:
    """Run a learner on a set, and return its accuracy in percent, log loss and times."""
    make_step, rows = LEARNERS[name][2], texts.rows if name == "svm" else texts.joined_texts
    with warnings.catch_warnings(action="ignore"):  # of overflows, for instance: the scores show their effect
        run_step(make_step(texts), rows[:WARM_UP], texts.y[:WARM_UP])
        runs = [run_step(make_step(texts), rows, texts.y) for _ in range(repeats)]
    right, losses = compute_losses(texts.labels, texts.y, runs[0][0])
    times = summarise([microseconds for _, microseconds in runs])
    return {"accuracy": 100.0 * float(right.mean()), "log_loss": float(losses.mean()), "microseconds": times}


def write_part(texts: TextSet, count: int, folder: Path) -> tuple[Path, Path]:
    """Write the first ``count`` rows as CSV and as a file of Vowpal Wabbit, and return both paths."""
    table, examples = folder / f"{count}.csv", folder / f"{count}.vw"
    codes = make_vw_labels(texts.labels)
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([texts.label, *texts.columns])
        writer.writerows([y, *row.values()] for y, row in zip(texts.y[:count], texts.rows, strict=False))
    lines = [f"{codes[y]} | {clean_text(text)}\n" for y, text in zip(texts.y[:count], texts.joined_texts, strict=False)]
    examples.write_text("".join(lines), encoding="utf-8")
    return table, examples


def measure_commands(texts: TextSet, repeats: int) -> dict[str, dict[str, float]]:
    """Return the microseconds of CPU a row of whole commands, without their start: the time of all rows minus that of a third.

    Both times are the minimum of the repeats. ``start`` has the seconds that remain for no row.
    """
    counts, options = (len(texts.y), len(texts.y) // 3), []
    for option, value in make_vw_options(texts.labels).items():
        options += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        files = [write_part(texts, count, Path(folder)) for count in counts]
        learn = [sys.executable, "-m", "streamsvm", "learn", "--label", texts.label]
        commands = {"streamsvm learn": [[*learn, str(table)] for table, _ in files]}
        if shutil.which("vw"):
            commands["vw"] = [["vw", "-d", str(path), "-p", "predictions", *options] for _, path in files]
        else:
            report_progress("the command vw is left out: it is not installed")
        for title, (all_rows, part) in commands.items():
            try:
                run_command(part, Path(folder))  # compiles
                pairs = [[run_command(command, Path(folder))[0] for command in (all_rows, part)] for _ in range(repeats)]
            except subprocess.CalledProcessError as error:
                report_progress(f"{title} is left out: {error}")
                continue
            seconds, seconds_of_part = (min(column) for column in zip(*pairs, strict=True))
            per_row = (seconds - seconds_of_part) / (counts[0] - counts[1])
            results[title] = {"microseconds": 1e6 * per_row, "start": seconds - per_row * counts[0], "seconds": seconds}
    return results


def make_pair(path: Path, label: str) -> tuple[dict[str, Any], list[str]]:
    """Return the default models of a table without and with its columns of texts, and the names of these columns.

    Raises ValueError if no column is left to learn from, or if a table needs options.
    """
    model = table_model(str(path), label)
    names = [name for name, kind in model["TableEncoder"].columns.items() if ColumnKind.parse(kind).kind == "text"]
    drop = format_columns(dict.fromkeys(names, DROP))
    return {"without": table_model(str(path), label, columns=drop, regression=model.schema.regression), "with": model}, names


def measure_mixed(path: Path, count: int | None) -> dict[str, Any]:
    """Run the default model of a table without and with its columns of texts, on the same rows.

    Returns accuracy in percent and log loss, or the mean absolute error, of both; the mean difference of a row (with minus
    without), and its standard error. Rows without a label, and rows that either model refuses, are left out. The result is empty
    if the table has no column of texts, or no other one.
    """
    table = read_texts(path, count)
    try:
        models, names = make_pair(path, table.label)
    except ValueError as error:
        report_progress(f"{get_set_name(path)} is left out: {error}")
        return {}
    if not names:
        report_progress(f"{get_set_name(path)} is left out: it has no column of texts")
        return {}
    regression, labeled = models["with"].schema.regression, [i for i, label in enumerate(table.y) if label]
    rows, y = [table.rows[i] for i in labeled], models["with"].parse_labels([table.y[i] for i in labeled])
    scores = {title: score_rows(model, rows, y, regression) for title, model in models.items()}
    result: dict[str, Any] = {"texts": names, "metrics": {}}
    for metric in scores["with"]:
        values = np.array([scores[title][metric] for title in models])
        values = values[:, np.isfinite(values).all(axis=0)]
        differences, result["rows"] = values[1] - values[0], values.shape[1]
        error = float(differences.std(ddof=1) / np.sqrt(len(differences)))
        means = dict(zip(models, values.mean(axis=1).tolist(), strict=True))
        result["metrics"][metric] = {**means, "difference": float(differences.mean()), "standard_error": error}
    cells = [f"{metric} {figures['without']:.4g}, {figures['with']:.4g}" for metric, figures in result["metrics"].items()]
    report_progress(f"{get_set_name(path)}, without and with texts: {'; '.join(cells)}")
    return result


def score_rows(model: Any, rows: Sequence[Row], y: Sequence[Any], regression: bool) -> dict[str, np.ndarray]:
    """Predict and learn all rows, and return the metrics of each row, float64 [n]; NaN for rows that the model refuses."""
    predict, predictions, is_refused = model.predict_one if regression else model.predict_proba_one, [], np.zeros(len(y), bool)
    for i, (x, target) in enumerate(zip(rows, y, strict=True)):
        try:
            predictions.append(predict(x))
            model.learn_one(x, target)
        except ValueError:
            is_refused[i] = True
            predictions[i:] = [0.0 if regression else {}]
    if regression:
        metrics = {"mae": np.abs(np.array(predictions, float) - y)}
    else:
        right, losses = compute_losses(sorted(set(y)), y, predictions)
        metrics = {"accuracy": 100.0 * right, "log_loss": losses}
    return {metric: np.where(is_refused, np.nan, values) for metric, values in metrics.items()}


# Output -----------------------------------------------------------------------------------------------------------------


def format_learner(result: dict[str, Any]) -> list[str]:
    """Return the results of a learner as cells of a table."""
    times = [f"{result['microseconds'][quantile]:.1f}" for quantile in ("min", "median", "max")]
    return [f"{result['accuracy']:.2f}", f"{result['log_loss']:.4f}", *times]


def format_mixed(name: str, result: dict[str, Any]) -> list[list[str]]:
    """Return the results of a table without and with texts as lines of a table, one for each metric."""
    lines = []
    for metric, figures in result["metrics"].items():
        cells = [f"{figures[key]:.4g}" for key in ("without", "with", "difference", "standard_error")]
        lines.append([name, f"{result['rows']:,}", ", ".join(result["texts"]), metric.replace("_", " "), *cells])
    return lines


def measure_sets(paths: Sequence[Path], args: Any, results: dict[str, Any]) -> None:
    """Measure the learners, and commands if asked for, on each set; print tables, and add the results to ``results``."""
    available = list_available(args.learners)
    results |= {"peers": _peers.list_versions(), "sets": {}}
    for path in paths:
        name, texts = get_set_name(path), read_texts(path, args.rows)
        outcomes: dict[str, Any] = {}
        results["sets"][name] = result = {"rows": len(texts.y), "labels": len(texts.labels), "learners": outcomes}
        for learner in available:
            outcomes[learner] = measure_learner(learner, texts, args.repeats)
            report_progress(f"{name}, {learner}: {', '.join(format_learner(outcomes[learner]))}")
            write_json(args.out, results)
        n_bytes = sum(len(text.encode()) for text in texts.joined_texts) / len(texts.y)
        title = f"{name}: {len(texts.y):,} rows, {len(texts.labels)} labels, {n_bytes:.0f} bytes a row"
        lines = [[LEARNERS[learner][0], *format_learner(outcome)] for learner, outcome in outcomes.items()]
        print_table(title, ["learner", "accuracy", "log loss", "us, min", "median", "max"], lines)
        if args.command:
            result["commands"] = measure_commands(texts, args.repeats)
            write_json(args.out, results)
            lines = [[command, *(f"{figures[key]:.2f}" for key in figures)] for command, figures in result["commands"].items()]
            print_table(f"{name}: whole commands", ["command", "us a row", "start, s", "all, s"], lines)


def main() -> None:
    """Measure all sets, print tables and write JSON."""
    parser = make_parser(__doc__, "text")
    parser.add_argument("--mixed", type=Path, help="folder of tables with texts beside other columns, to learn with and without")
    parser.add_argument("--only", nargs="+", metavar="SET", help="names of files without .csv; default: all")
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--rows", type=int, help="number of first rows of each set; default: all")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each learner and command, to measure the time")
    parser.add_argument("--command", action="store_true", help="measure whole commands, too")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    text_files, mixed_files = list_files(args.data, args.only), list_files(args.mixed, args.only)
    if not text_files and not mixed_files:
        sys.exit("no data: name a folder of CSV files with --data DIR or --mixed DIR (see benchmarks/README.md)")
    results: dict[str, Any] = {"repeats": args.repeats}
    if text_files:
        measure_sets(text_files, args, results)
    if mixed_files:
        outcomes = {get_set_name(path): measure_mixed(path, args.rows) for path in mixed_files}
        results["mixed"] = {name: outcome for name, outcome in outcomes.items() if outcome}
        lines = [line for name, outcome in results["mixed"].items() for line in format_mixed(name, outcome)]
        columns = ["table", "rows", "texts", "metric", "without texts", "with texts", "difference", "its standard error"]
        print_table("The default model without and with its columns of texts, on the same rows", columns, lines)
        write_json(args.out, results)


if __name__ == "__main__":
    main()
