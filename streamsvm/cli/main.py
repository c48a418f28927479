"""Parses the command line, runs a command, and prints its warnings and errors as single lines."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from streamsvm import __version__
from streamsvm.cli import INTERRUPTED_STATUS, CommandError, UsageError, escape_unprintable
from streamsvm.cli.arguments import (
    StoreOneOrMany,
    add_decision_flags,
    add_error_flags,
    add_label_flags,
    add_log_flags,
    add_model_argument,
    add_overwrite_flag,
    add_retention_flags,
    add_run_flags,
    add_stream_arguments,
    add_table_flags,
    add_trusted_flag,
    configure_logs,
    logs_json,
    parse_bound,
    parse_count,
    parse_moment,
    parse_path_or_url,
    parse_period,
    parse_share,
)
from streamsvm.files.messages import MissingPackageError

_EXAMPLES = """\
examples:
  a table of numbers, with the label in column y
    streamsvm learn rows.csv --label y
  a table with an id, two columns of names, a date, and NA for missing values
    streamsvm learn people.csv --label income --missing NA \\
        --columns id:drop,job:category,city:category,since:date
  a CSV from a German Excel, with checkpoints to continue from; then predictions for a file like it
    streamsvm learn kunden.csv --label y --delimiter ';' --encoding cp1252 --checkpoint state
    streamsvm predict neue.csv --model state --to -
  another model and metric
    streamsvm learn rows.parquet --label y --learner linear --metric ROCAUC
  an endless topic, and a pipe
    streamsvm learn kafka://localhost:9092/rows --label y --checkpoint state
    tail -f rows.jsonl | streamsvm learn - --format jsonl --label y --to -
"""
#: The modules of commands that share a module. Other commands have a module of their own name.
_MODULES = {"merge": "learn", "compile": "learn", "inspect": "understand", "explain": "understand", "report": "understand"}
_MODULES |= dict.fromkeys(("checkpoints", "rollback", "diff"), "understand")
_ROOM_ADVICE = "In --learner {}, give max_features=N, overflow=hash or overflow=ignore"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``streamsvm`` command with the arguments ``argv`` (those of the process if None), and return its exit status.

    The status is 0 after success, 1 after a failure (one line on standard error gives the reason), 2 if the command line is
    invalid, and 130 after Ctrl-C.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # like standard error: its encoding may lack characters of names
    parser, commands = _make_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        parser.print_help()
        return 0
    arguments, unknown = parser.parse_known_args(words)
    command = commands[arguments.command]
    if unknown:
        command.error(escape_unprintable(f"unrecognized arguments: {' '.join(unknown)}"))
    try:
        return _run_command(command, arguments)
    except KeyboardInterrupt:  # a second Ctrl-C, or one during a block that must clean up
        print("streamsvm: interrupted", file=sys.stderr)
        return INTERRUPTED_STATUS


#: Flags of earlier versions and of other tools, with the flags that have the same purpose.
_OTHER_NAMES = {"--keep": "--passthrough", "--output": "--to", "--out": "--to", "--sep": "--delimiter", "--target": "--label"}
_OTHER_NAMES |= {"--checkpoint": "--model", "--model": "--checkpoint"}


class _CommandParser(argparse.ArgumentParser):
    """A parser whose flags are not abbreviated, whose values may begin with a dash, and whose errors suggest a similar word."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words ``args``, and remember them for messages."""
        self._words: list[str] = list(args)
        return super().parse_known_args(args, namespace)

    def _parse_optional(self, arg_string: str) -> Any:
        """Return None, which means a value, for a word with a single dash, such as ``-,NA`` after ``--missing``."""
        is_flag = arg_string[:2] == "--" or arg_string in self._option_string_actions
        return super()._parse_optional(arg_string) if is_flag else None

    def error(self, message: str) -> NoReturn:
        """Print an error, with the flag or value that is similar to an unknown one, and exit with the status 2."""
        import difflib

        candidates = [flag for flag in self._option_string_actions if flag not in ("-h", "--help")]
        names = [word.partition("=")[0] for word in self._words if word[:2] == "--" and word != "--"]
        name = next((name for name in names if name not in candidates), "")
        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            name, candidates = choice[1], re.findall(r"[\w-]+", choice[2])
        others = [word for word in candidates if (name and word.startswith(name)) or word == _OTHER_NAMES.get(name)]
        for word in difflib.get_close_matches(name, candidates, 1, 0.75) or others[:1]:
            message += f" (is it {word}?)" if name in message else f" ({name}: is it {word}?)"
        super().error(message)


def _run_command(command: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run a command with its parsed arguments. Print its error, if it fails, and return the exit status."""
    # Not imported at the top of the module, because --help must be fast.
    from streamsvm.core.memory.features import ROOM_ADVICE
    from streamsvm.stream import CheckpointError, StreamError

    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        show_once = functools.cache(lambda text: _print_problem(arguments, text, is_error=False))
        warnings.showwarning = lambda message, *_, **__: show_once(str(message))
        status = 1
        try:
            stack.enter_context(configure_logs(arguments))
            name = arguments.command
            run = getattr(importlib.import_module(f"streamsvm.cli.{_MODULES.get(name, name)}"), f"run_{name}")
            interrupted = run(arguments)
            print(end="", flush=True)
            status = INTERRUPTED_STATUS if interrupted else 0
        except UsageError as error:
            command.error(escape_unprintable(str(error)))
        except (CommandError, StreamError, CheckpointError, MissingPackageError) as error:
            learner = (getattr(arguments, "learner", "NAME") or "auto").partition(",")[0]
            _print_problem(arguments, str(error).replace(ROOM_ADVICE, _ROOM_ADVICE.format(learner)))
        except BrokenPipeError:  # the reader of standard output has closed it
            pass
        except OSError as error:
            _print_problem(arguments, f"{error.filename or 'standard output'}: {error.strerror}")
    try:
        print(end="", flush=True)
    except OSError:  # the rest of the output cannot be written, and Python must not try it again at exit
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())
        os.close(null_device)
    return status


def _print_problem(arguments: argparse.Namespace, text: str, is_error: bool = True) -> None:
    """Print an error (or a warning, if not ``is_error``) on standard error, as one line; JSON with ``--log-format json``."""
    if not logs_json(arguments):
        print(f"streamsvm: {'' if is_error else 'warning: '}{escape_unprintable(text)}", file=sys.stderr)
    elif is_error:
        logging.getLogger("streamsvm").error("%s", text, extra={"fields": {"event": "error"}})
    else:
        logging.getLogger("streamsvm").warning("%s", text)


class VersionAction(argparse.Action):
    """Prints the version, and whether compiled code is used."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from streamsvm.core.compiling.machine_code import describe_status

        print(f"streamsvm {__version__}\n{describe_status()}")
        parser.exit()


def _make_parser() -> tuple[_CommandParser, dict[str, _CommandParser]]:
    """Create the argparse parser of ``streamsvm``, and return it with a dict of the parsers of its commands by name."""
    text = "Kernel SVMs that learn from streams in a fixed amount of memory."
    parser = _CommandParser(prog="streamsvm", description=text)
    parser.add_argument("--version", action=VersionAction, nargs=0, help="show the version, and whether machine code is in use")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    text, usage = "learn a stream; predict and score each row before learning it", "%(prog)s SOURCE --label NAME [flags]"
    learn = commands.add_parser("learn", help=text, usage=usage, epilog=_EXAMPLES)
    learn.formatter_class = argparse.RawDescriptionHelpFormatter
    add_stream_arguments(learn, label="the column or key that holds the label (LIBSVM text needs none)", sink_required=False)
    text = (
        "labels that are not in the rows: a path or kafka://host:port/topic, with the column or field that joins each label to "
        "its row: STREAM?key=id. Each row is predicted when it arrives; when its label arrives, that prediction is scored and "
        "the row is learned. After &: time=NAME, the event time, in seconds since 1970 or ISO 8601 (default: that of each Kafka "
        "message); max_age=1h, how long a row waits (default: 1d; inf: no limit); max_rows=N and max_bytes=N, how many may wait "
        "(default: 100000 and 134217728); expired=drop, dead-letter or negative=LABEL, what becomes of a row whose label does "
        "not come in time (negative learns it with that label)"
    )
    weight_help = (
        "the column with the weight of each row, a number from 0 on, which is no feature. A row without one counts as 1; one of "
        "weight 0 is predicted and scored, but not learned. The score counts each row once"
    )
    learn.add_argument_group("labels from another stream").add_argument("--labels", metavar="STREAM?key=NAME", help=text)
    learn.add_argument_group("weights").add_argument("--weight", metavar="NAME", help=weight_help)
    add_error_flags(learn, labels=True)
    table = learn.add_argument_group("the table")
    add_table_flags(table)
    table.add_argument("--ask", action="store_true", help="stop where flags could say how the table is read, and name them")
    model = learn.add_argument_group("the model")
    text = (
        "auto (the default), which is the most accurate, with nothing to tune; bsgd, bsca or linear, which need a quarter of the "
        "time; or anomaly, which scores how unusual rows are, without labels; with parameters after commas, such as "
        "bsgd,budget=500,gamma=0.5 or auto,effort=high"
    )
    model.add_argument("--learner", metavar="NAME[,KEY=VALUE...]", help=text)
    regression_help = "predict a number instead of a label, with a regressor and scaled targets (unless --scale none)"
    model.add_argument("--regression", action="store_true", help=regression_help)
    scale_help = "standardise features as they arrive (default: standard; none for LIBSVM text, which it would make dense)"
    model.add_argument("--scale", choices=["standard", "none"], help=scale_help)
    bound_help = "clip scaled values at D standard deviations; 0 does not clip (default: 8; auto always clips targets at 8)"
    model.add_argument("--bound", type=parse_bound, metavar="D", help=bound_help)
    text = (
        "also learn small models of each device, customer or shop, whose predictions are features of the model: NAME is the "
        "column that tells them apart, a key in --columns; max_keys=N keeps at most N of them in memory (default: 10000), and "
        "with idle=N, those of a key are deleted if none of the last N rows is of this key (default: never)"
    )
    model.add_argument("--key-models", metavar="NAME,max_keys=N,idle=N", help=text)
    score = learn.add_argument_group("the score")
    metric_help = (
        "ROCAUC, AveragePrecision, LogLoss, BrierScore, or a metric from river.metrics, such as F1, 'FBeta(beta=2)' or R2 "
        "(default: Accuracy; for a regression MAE); more after commas are shown at the end, also ConfusionMatrix, "
        "ClassificationReport, Calibration and Thresholds"
    )
    score.add_argument("--metric", metavar="NAME[,NAME...]", help=metric_help)
    text = "the label that metrics such as F1 and ROCAUC count as positive (not needed for bools, 0 and 1, or -1 and 1)"
    score.add_argument("--positive", metavar="LABEL", help=text)
    window_help = "also compute the metric over the last N rows (default: 1000)"
    score.add_argument("--window", type=parse_count, metavar="N", help=window_help)
    text = (
        "detect drift with a detector of river, which is fed the error of each prediction: ADWIN, PageHinkley, KSWIN, DDM..., "
        "also with parameters, such as 'PageHinkley(threshold=20)'; none stops what a checkpoint has begun"
    )
    score.add_argument("--drift", metavar="DETECTOR", help=text)
    text = (
        "what to do at a drift: count it (the default, because models adapt without help), or start a new model (reset), which "
        "helps bsgd and bsca with abrupt drifts"
    )
    score.add_argument("--on-drift", choices=["count", "reset"], help=text)
    add_decision_flags(learn.add_argument_group("which label"), learns=True)
    run = learn.add_argument_group("the run")
    checkpoint_help = (
        "a folder for checkpoints; if it has some, the run continues from the newest, and keeps its label, model, metrics and "
        "table where no flag differs. Or a topic, kafka://host:port/topic?name=NAME (default: the source): a checkpoint and the "
        "predictions to a topic of the same cluster are then committed in one transaction"
    )
    add_run_flags(run, checkpoint_help, "DIR|TOPIC")
    text = "begin with the model, table and scores of a saved model, checkpoint, folder or topic, until --checkpoint has one"
    run.add_argument("--start-from", type=parse_path_or_url, metavar="PLACE", help=text)
    add_retention_flags(run)
    text = "a consumer group: its offsets are committed after each checkpoint, for tools that show the lag"
    run.add_argument("--group", metavar="NAME", help=text)
    text = (
        "global (the default): one model for all partitions; partition: the workers of the --group share the topic, and each "
        "partition has its own model, in the folder partition-N of the --checkpoint folder, which all workers must share"
    )
    run.add_argument("--scope", choices=["global", "partition"], default="global", help=text)
    add_trusted_flag(run, "the checkpoint")

    text = "predict the rows of a stream without learning them"
    predict = commands.add_parser("predict", help=text, usage="%(prog)s SOURCE --model PLACE --to SINK [flags]")
    label_help = "the column or key of the label, which is ignored if it is there (default: the one in the checkpoint)"
    add_stream_arguments(predict, label=label_help, sink_required=True)
    model = predict.add_argument_group("the model")
    text = "a checkpoint, or a folder or topic of checkpoints, kafka://host:port/topic?name=NAME"
    model.add_argument("--model", type=parse_path_or_url, required=True, metavar="PLACE", help=text)
    text = "switch to a newer model as soon as a learner writes one there; each prediction says which model made it"
    model.add_argument("--follow", action="store_true", help=text)
    add_trusted_flag(model, "the model")
    outputs = predict.add_argument_group("what predictions contain")
    add_decision_flags(outputs, learns=False)
    text = "a label that is less probable than this is not predicted: null, or an empty cell"
    outputs.add_argument("--abstain", type=parse_share, default=0.0, metavar="P", help=text)
    text = "also write the probabilities of all labels, as a field probabilities"
    outputs.add_argument("--probabilities", action="store_true", help=text)
    text = "also write the N columns that moved each decision most, and by how much, as a field why"
    outputs.add_argument("--explain", type=parse_count, metavar="N", help=text)
    add_error_flags(predict, labels=False)
    add_table_flags(predict.add_argument_group("the table"))
    run = predict.add_argument_group("the run")
    text = "a folder for the position of this run, from which the same command continues; with --group also a topic for positions"
    add_run_flags(run, text, "DIR|TOPIC")
    text = "a consumer group whose members share the topic, each with its partitions, from the offsets that were committed"
    run.add_argument("--group", metavar="NAME", help=text)

    text = "merge the models of several learners, such as the workers of a group, once or repeatedly"
    merge = commands.add_parser("merge", help=text, usage="%(prog)s SOURCE... --to PLACE [--every SECONDS]")
    text = "a folder or topic of checkpoints; a folder with subfolders partition-N stands for all of them, also those added later"
    merge.add_argument("sources", type=parse_path_or_url, nargs="+", metavar="SOURCE", help=text)
    text = (
        "where to write the merged model, as a checkpoint for predict --follow: a folder, or a topic kafka://host:port/topic. "
        "The environment may hold options of the connection, such as STREAMSVM_KAFKA_SECURITY_PROTOCOL"
    )
    merge.add_argument("--to", dest="into", type=parse_path_or_url, required=True, metavar="PLACE", help=text)
    text = "check again every SECONDS seconds, and merge if a model has learned more, until Ctrl-C (default: merge once)"
    merge.add_argument("--every", type=parse_period, metavar="SECONDS", help=text)
    add_retention_flags(merge)
    merge.add_argument("--quiet", action="store_true", help="print a JSON line for each merged model, and nothing else")
    add_log_flags(merge)
    add_trusted_flag(merge, "a model")

    text = "say what a checkpoint holds: labels, columns, score, rows, sizes"
    inspect = commands.add_parser("inspect", help=text, usage="%(prog)s PLACE [flags]")
    add_model_argument(inspect)
    text = "print all that the checkpoint says: also positions, digests, parameters, and each expert"
    inspect.add_argument("--all", action="store_true", help=text)
    inspect.add_argument("--json", action="store_true", help="print all of it as one JSON object")
    text = "print what the model has learned of one key, such as one device: its rows, last and recent labels, and own models"
    inspect.add_argument("--key", metavar="[COLUMN=]KEY", help=text)
    add_trusted_flag(inspect, "the file")
    plot_help = "also draw the learning curve, and for a model of two features its decision boundary (.png, .svg, .pdf)"
    inspect.add_argument("--plot", type=Path, metavar="FILE", help=plot_help)
    add_overwrite_flag(inspect)

    history = commands.add_parser("checkpoints", help="list the checkpoints of a folder or topic, or copy one to a file")
    add_model_argument(history)
    text = "copy a checkpoint to this file, which other commands read, or to an empty folder or a topic, where its run continues"
    history.add_argument("--copy", type=parse_path_or_url, metavar="PLACE", help=text)
    text = "the newest checkpoint of at most ROWS rows, or written at TIME or before, such as 2026-03-01T12:00 (UTC)"
    history.add_argument("--at", type=parse_moment, metavar="ROWS|TIME", help=f"copy {text}")
    history.add_argument("--json", action="store_true", help="print one JSON object for each checkpoint")
    add_overwrite_flag(history)
    rollback = commands.add_parser("rollback", help="make an earlier checkpoint the newest one, from which the run continues")
    add_model_argument(rollback)
    rollback.add_argument("--to", type=parse_moment, required=True, metavar="ROWS|TIME", help=text)
    diff = commands.add_parser("diff", help="compare two models: rows, scores, columns, parameters, memory and support vectors")
    add_model_argument(diff)
    other_help = "the model to compare with (default: the newest checkpoint of PLACE)"
    diff.add_argument("other", nargs="?", type=parse_path_or_url, metavar="OTHER", help=other_help)
    diff.add_argument("--at", type=parse_moment, metavar="ROWS|TIME", help=f"compare {text} of PLACE")
    diff.add_argument("--json", action="store_true", help="print one JSON object")
    add_trusted_flag(diff, "a model")

    text = "say how well rows with labels are predicted, without learning them"
    scoring = commands.add_parser("score", help=text, usage="%(prog)s SOURCE --model PLACE [flags]")
    text = "files or a topic, as of predict, up to its end"
    scoring.add_argument("source", nargs="+", action=StoreOneOrMany, metavar="SOURCE", help=text)
    add_model_argument(scoring, "--model", dest="path", required=True)
    add_label_flags(scoring)
    text = (
        "metrics, as of learn (default: Accuracy,LogLoss,ClassificationReport,ConfusionMatrix,Calibration, with a positive "
        "label also ROCAUC,AveragePrecision,F1; for numbers MAE,RMSE,R2)"
    )
    scoring.add_argument("--metric", metavar="NAME,...", help=text)
    add_decision_flags(scoring, False, ", and of metrics (default: that of the model's threshold or costs)")
    text = "a label that is less probable than this is not predicted, and only the rest is scored"
    scoring.add_argument("--abstain", type=parse_share, default=0.0, metavar="P", help=text)
    scoring.add_argument("--json", action="store_true", help="print one JSON object")
    add_trusted_flag(scoring, "the model")

    text = "show which columns matter to a model, and why it decides as it does"
    explain = commands.add_parser("explain", help=text, usage="%(prog)s ROWS --model PLACE [flags]")
    text = "rows, read as predict reads them; the first 1,000 are used, with their labels if they have any"
    explain.add_argument("source", nargs="+", action=StoreOneOrMany, metavar="ROWS", help=text)
    add_model_argument(explain, "--model", dest="path")
    add_label_flags(explain)
    text = "explain the decisions of the first N of them (default: %(default)s)"
    explain.add_argument("--rows", type=parse_count, default=3, metavar="N", help=text)
    text = "show N rows of each label that the model knows and that are nearest to each of them, or support vectors"
    explain.add_argument("--examples", type=parse_count, metavar="N", help=text)
    explain.add_argument("--json", action="store_true", help="print one JSON object")
    add_trusted_flag(explain, "the model")

    text = "write one page: what was learned, how well it predicts, what matters, and why it decides so"
    report = commands.add_parser("report", help=text, usage="%(prog)s PLACE [ROWS...] --to FILE.html [flags]")
    add_model_argument(report)
    text = (
        "rows with labels, as of score: scores are of these then, and which columns matter and why rows are decided so is "
        "measured with the first 1,000 of them; without any, the page has what the run has recorded"
    )
    report.add_argument("source", nargs="*", metavar="ROWS", help=text)
    text = "the .html file of the page, which needs no network"
    report.add_argument("--to", dest="into", type=Path, required=True, metavar="FILE", help=text)
    add_label_flags(report)
    text = "the label that ROCAUC, AveragePrecision and F1 are about (default: that of the model's threshold or costs)"
    report.add_argument("--positive", metavar="LABEL", help=text)
    add_overwrite_flag(report)
    add_trusted_flag(report, "the model")

    text = "write a model as C, ONNX, JSON or a file for numpy, which predicts without streamsvm"
    export = commands.add_parser("export", help=text, usage="%(prog)s PLACE --to FORM [--out PATH] [--name NAME] [flags]")
    add_model_argument(export)
    text = (
        "c: NAME.h and NAME.c, C99 without any library; onnx: NAME.onnx; numpy: NAME.safetensors, for streamsvm.edge; json: "
        "NAME.json"
    )
    export.add_argument("--to", dest="form", choices=["c", "onnx", "numpy", "json"], required=True, help=text)
    text = "the folder to write to (default: this one), or the file, such as model.json"
    export.add_argument("--out", type=Path, default=Path(), metavar="PATH", help=text)
    text = "the name of the files in a folder, and of the C functions (default: model)"
    export.add_argument("--name", metavar="NAME", help=text)
    add_overwrite_flag(export)
    add_decision_flags(export, learns=False)
    text = "in C: the bits of each number of the support vectors (default: 32, float); the coefficients are fitted anew"
    export.add_argument("--bits", type=int, choices=[8, 16, 32], help=text)
    text = "use fewer support vectors, until the C tables have at most N bytes, and report the accuracy that is left"
    export.add_argument("--max-bytes", type=parse_count, metavar="N", help=text)
    text = (
        "a table of rows, read as predict reads it: with fewer bits or bytes, compare the answers of what is written with those "
        "of the model on these rows (10,000 at most)"
    )
    export.add_argument("--sample", metavar="FILE", help=text)
    text = "in ONNX: the type of rows; auto (the default) is double if float cannot hold a feature's deviations from its mean"
    export.add_argument("--inputs", choices=["auto", "float", "double"], help=text)
    add_trusted_flag(export, "the model")

    text = "learn real data from an embedded broker, kill the learner, resume it, and draw what it learned"
    demo = commands.add_parser("demo", help=text, usage="%(prog)s [--out DIR]")
    text = "the folder to write to (default: %(default)s)"
    demo.add_argument("--out", type=Path, default=Path("streamsvm-demo"), metavar="DIR", help=text)
    text = "compile what learners need before they are used, on all cores"
    compiling = commands.add_parser("compile", help=text, usage="%(prog)s [NAME...]")
    text = "an estimator, such as BSGDClassifier (default: all learners of the command line)"
    compiling.add_argument("names", nargs="*", metavar="NAME", help=text)
    return parser, commands.choices
