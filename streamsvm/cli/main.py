"""The command line's parser, and what becomes of a command: its exit status, its warnings and errors as single lines."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import math
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamsvm import __version__
from streamsvm._extras import MissingPackageError
from streamsvm.cli import CommandError, UsageError, printable
from streamsvm.cli.flags import EXAMPLES, add_table_flags, expanded
from streamsvm.cli.logs import logged, says_json

__all__ = ["main"]

INTERRUPTED = 130

_MAKE_ROOM = "Give --set max_features=N, --set overflow=hash or --set overflow=ignore"

#: Of commands that have no --config.
_FROM_ENVIRONMENT = ". Options of the connection are taken from the environment: STREAMSVM_KAFKA_SECURITY_PROTOCOL"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    int
        0; 1 if the command failed (one line on standard error says why); 2 if the command line is wrong; 130 after Ctrl-C.
    """
    parser, commands = _parser()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        config = expanded({name: commands[name] for name in ("learn", "predict")}, words)
    except UsageError as error:
        commands[words[0]].error(printable(str(error)))
    arguments = parser.parse_args(config.words)
    command = commands[arguments.command]
    if "to" in arguments:
        arguments.source, arguments.options = arguments.source or config.source, config.options
        if arguments.source is None:
            command.error("the following arguments are required: SOURCE")
    try:
        return _run(command, arguments)
    except KeyboardInterrupt:  # before a command has its own way to end, or the second one
        print("streamsvm: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(command: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    # Imported here and not above: --help must be quick.
    from streamsvm.memory.features import MAKE_ROOM
    from streamsvm.runtime import CheckpointError, StreamError

    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.showwarning = lambda message, *_, **__: _warn(arguments, str(message))
        try:
            stack.enter_context(logged(arguments))
            if "to" in arguments:
                _check_sink(arguments)
            interrupted = importlib.import_module(f"streamsvm.cli.{arguments.command}").run(arguments)
            status = INTERRUPTED if interrupted else 0
            print(end="", flush=True)
        except UsageError as error:
            command.error(printable(str(error)))
        except (CommandError, StreamError, CheckpointError, MissingPackageError) as error:
            status = _fail(arguments, str(error).replace(MAKE_ROOM, _MAKE_ROOM))
        except BrokenPipeError:  # the reader of the output has gone, and there is nobody to tell
            status = 1
        except OSError as error:
            status = _fail(arguments, f"{error.filename or 'standard output'}: {error.strerror}")
    try:
        print(end="", flush=True)
    except OSError:  # the rest of the output cannot be written, and Python must not try again at exit
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return status


def _warn(arguments: argparse.Namespace, text: str) -> None:
    if says_json(arguments):
        logging.getLogger("streamsvm").warning("%s", text)
    else:
        print(f"streamsvm: warning: {printable(text)}", file=sys.stderr)


def _fail(arguments: argparse.Namespace, text: str) -> int:
    if says_json(arguments):
        logging.getLogger("streamsvm").error("%s", text, extra={"fields": {"event": "error"}})
    else:
        print(f"streamsvm: {printable(text)}", file=sys.stderr)
    return 1


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Make the parser of the command line, and those of its commands."""
    parser = argparse.ArgumentParser(prog="streamsvm", description="Kernel SVMs that learn streams in a fixed number of bytes.")
    parser.add_argument("--version", action="version", version=f"streamsvm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    learn = commands.add_parser(
        "learn",
        help="learn a stream, scoring each prediction before its row is learned",
        usage="%(prog)s SOURCE --label NAME [flags]",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_streams(learn, label="the column or key that holds the label (LIBSVM text needs none)", sink_required=False)
    _add_labels(learn.add_argument_group("labels from another stream"))
    _add_errors(learn, labels=True)
    add_table_flags(learn.add_argument_group("the table"))
    model = learn.add_argument_group("the model")
    model_help = "the learner (default: auto, the most accurate one, with nothing to choose; the others take a third of the time)"
    model.add_argument("--model", default="auto", choices=["auto", "bsgd", "bsca", "linear"], help=model_help)
    regression_help = "predict a number, and not a label: the model is a regressor, and targets are scaled (unless --scale none)"
    model.add_argument("--regression", action="store_true", help=regression_help)
    model.add_argument("--budget", type=int, metavar="B", help="support vectors of bsgd and bsca (default: 500)")
    model.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="such as effort=high, or gamma=0.5 of bsgd; repeatable"
    )
    scale_help = "standardise features as they come (default: standard; none for LIBSVM text, which it would make dense)"
    model.add_argument("--scale", choices=["standard", "none"], help=scale_help)
    bound_help = "bound scaled values to so many standard deviations; 0: none (default: 8, and always 8 for targets of auto)"
    model.add_argument("--bound", type=_bound, metavar="D", help=bound_help)
    score = learn.add_argument_group("the score")
    metric_help = "a metric of river.metrics, such as F1, 'FBeta(beta=2)' or R2 (default: Accuracy; of a regression MAE)"
    score.add_argument("--metric", metavar="NAME", help=metric_help)
    score.add_argument(
        "--positive",
        metavar="LABEL",
        help="the label that F1, ROCAUC and the like count as positive (needed unless labels are bools, 0 and 1, or -1 and 1)",
    )
    window_help = "the metric is also computed over the last N rows (default: %(default)s)"
    score.add_argument("--window", type=_count, default=1000, metavar="N", help=window_help)
    text = (
        "count drifts of the stream by a detector of river, fed with the error of each prediction: ADWIN, PageHinkley, KSWIN, "
        "DDM..., also with parameters, as 'PageHinkley(threshold=20)'"
    )
    score.add_argument("--drift", metavar="DETECTOR", help=text)
    text = (
        "count them (the default: models follow a drift by themselves), or begin a new model: anew; that pays for bsgd and bsca "
        "where drifts are abrupt"
    )
    score.add_argument("--on-drift", choices=["count", "anew"], help=text)
    run = learn.add_argument_group("the run")
    checkpoint_help = (
        "a folder for checkpoints; if it has some, the run goes on from the newest, with its flags about the table. Or a "
        "compacted topic, kafka://host:port/topic?name=NAME (default: the name of the source): predictions to a topic of that "
        "cluster are then committed in one transaction with each checkpoint"
    )
    _add_run(run, checkpoint_help, "DIR|TOPIC")
    text = "a consumer group: offsets are committed for it after each checkpoint, for tools that show how far it is behind"
    run.add_argument("--group", metavar="NAME", help=text)
    text = (
        "global (the default): one model of all partitions; partition: workers of the --group share the topic, and each "
        "partition has its own model, in DIR/partition-N of the --checkpoint folder, which all workers share"
    )
    run.add_argument("--scope", choices=["global", "partition"], default="global", help=text)
    _add_trusted(run, "the checkpoint")

    predict = commands.add_parser(
        "predict",
        help="predict the rows of a stream without learning them, read as the model's rows were",
        usage="%(prog)s SOURCE --model PLACE --to SINK [flags]",
    )
    label_help = "the column or key of the label, which is no feature (default: as in the checkpoint, where rows have it)"
    _add_streams(predict, label=label_help, sink_required=True)
    model = predict.add_argument_group("the model")
    text = "a checkpoint, a folder of them, or a topic of them, kafka://host:port/topic?name=NAME (default: the only one there)"
    model.add_argument("--model", type=_place, required=True, metavar="PLACE", help=text)
    text = "take the newest model as soon as a learner has written it to the folder or topic; predictions say which one made them"
    model.add_argument("--follow", action="store_true", help=text)
    _add_trusted(model, "the model")
    _add_errors(predict, labels=False)
    add_table_flags(predict.add_argument_group("the table"))
    checkpoint_help = "a folder for the position of the run, from which the same command goes on; not the folder of the model"
    _add_run(predict.add_argument_group("the run"), checkpoint_help)

    merge = commands.add_parser(
        "merge",
        help="make one model of those of several learners, such as workers of a group, once or again and again",
        usage="%(prog)s SOURCE... --to PLACE [--every SECONDS]",
    )
    text = "a folder of checkpoints; one that holds folders partition-N stands for all of these, also those that come later"
    merge.add_argument("sources", type=Path, nargs="+", metavar="SOURCE", help=text)
    text = (
        "where the model goes as a checkpoint, which predict --follow follows: a folder, or a topic kafka://host:port/topic"
        + _FROM_ENVIRONMENT
    )
    merge.add_argument("--to", dest="into", type=_place, required=True, metavar="PLACE", help=text)
    text = "look again each so many seconds, and merge where a model has learned more, until Ctrl-C (default: once)"
    merge.add_argument("--every", type=_period, metavar="SECONDS", help=text)
    merge.add_argument("--quiet", action="store_true", help="a JSON line on standard output for each merged model, nothing else")
    _add_logs(merge)
    _add_trusted(merge, "a model")

    inspect = commands.add_parser("inspect", help="show what a checkpoint holds")
    text = "a file, a folder or a topic, as for predict --model" + _FROM_ENVIRONMENT
    inspect.add_argument("path", type=_place, metavar="PLACE", help=text)
    inspect.add_argument("--json", action="store_true", help="as one JSON object")
    _add_trusted(inspect, "the file")
    plot_help = "also draw the learning curve, and the decision boundary of a model of two features (.png, .svg, .pdf)"
    inspect.add_argument("--plot", type=Path, metavar="FILE", help=plot_help)

    export = commands.add_parser(
        "export",
        help="write a model as C, as ONNX, as JSON, or as a file for numpy: it then predicts without streamsvm",
        usage="%(prog)s PLACE --to FORM [--out DIR] [--name NAME] [flags]",
    )
    text = "a model that was saved, a checkpoint, a folder or a topic of them, as for predict --model" + _FROM_ENVIRONMENT
    export.add_argument("path", type=_place, metavar="PLACE", help=text)
    text = "c: NAME.h and NAME.c, C99 without any library; onnx: NAME.onnx; npz: NAME.npz, for streamsvm.edge; json: NAME.json"
    export.add_argument("--to", dest="form", choices=["c", "onnx", "npz", "json"], required=True, help=text)
    export.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="the folder (default: the current one)")
    text = "of the files, and of the functions in C (default: %(default)s)"
    export.add_argument("--name", default="model", metavar="NAME", help=text)
    text = "of a number of the support vectors in C (default: 32, float)"
    export.add_argument("--bits", type=int, choices=[8, 16, 32], help=text)
    text = "make the model smaller, by fewer vectors, until its tables in C have at most so many bytes, and say what is left"
    export.add_argument("--max-bytes", type=_count, metavar="N", help=text)
    text = "the largest change of a decision value by fewer bits: in C, the fewest bits that keep to it are taken"
    export.add_argument("--error", type=float, metavar="E", help=text)
    text = "of ONNX: primitive ones (the default), which every runtime has, or ml, the SVM operators of ai.onnx.ml"
    export.add_argument("--operators", choices=["primitive", "ml"], help=text)
    _add_trusted(export, "the model")

    demo = commands.add_parser(
        "demo", help="learn real data through an embedded broker, kill the learner, resume it, draw what it learned"
    )
    demo.add_argument("--out", type=Path, default=Path("streamsvm-demo"), metavar="DIR", help="default: %(default)s")
    names = {"learn": learn, "predict": predict, "merge": merge, "inspect": inspect, "export": export, "demo": demo}
    return parser, names


def _add_run(group: Any, checkpoint_help: str, metavar: str = "DIR") -> None:
    group.add_argument("--checkpoint", type=_place, metavar=metavar, help=checkpoint_help)
    text = "rows between checkpoints, such as 10000, or seconds between them, such as 5s (default: %(default)s)"
    group.add_argument("--checkpoint-every", type=_every, default="1s", metavar="N|Ns", help=text)
    text = "serve metrics for Prometheus, checks of health and a page at this port, as long as the run goes on"
    group.add_argument("--metrics-port", type=_port, metavar="N", help=text)
    text = "the address to serve them at (default: %(default)s; 0.0.0.0 in a container)"
    group.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST", help=text)
    group.add_argument("--max-rows", type=_count, metavar="N", help="stop after so many rows of this run")


def _add_trusted(group: Any, what: str) -> None:
    text = (
        f"{what} may hold classes and functions of your own. Only for a file that is from you: loading it can then run anything "
        "that its writer wants; without this flag it can run nothing"
    )
    group.add_argument("--trusted", action="store_true", help=text)


def _add_streams(command: argparse.ArgumentParser, label: str, sink_required: bool) -> None:
    """Add the arguments of a command that reads a source and writes predictions."""
    streams = command.add_argument_group("source and predictions")
    streams.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?",
        help="a path (CSV, JSON lines or LIBSVM text, each also as .gz; Parquet, Arrow), - for standard input, or "
        "kafka://host:port/topic",
    )
    streams.add_argument("--label", metavar="NAME", help=label)
    streams.add_argument(
        "--to",
        metavar="SINK",
        required=sink_required,
        help="where predictions go: a path (CSV where it ends in .csv, else JSON lines), - for JSON lines on standard output, or "
        "kafka://host:port/topic",
    )
    formats = ["csv", "jsonl", "libsvm", "parquet", "arrow"]
    streams.add_argument("--format", choices=formats, help="of SOURCE, if its name does not say it")
    text = (
        "where to begin in a topic: earliest (the default), latest, a time such as 2026-03-01T12:00:00Z, or PARTITION:OFFSET; "
        "with a checkpoint only where the topic no longer holds what follows it: the model is kept"
    )
    streams.add_argument("--from", dest="start", metavar="WHERE", help=text)
    streams.add_argument("--stop-at-end", action="store_true", help="end where the topic ended at the start")
    streams.add_argument("--quiet", action="store_true", help="progress as JSON lines on standard output, nothing else")
    _add_logs(streams)
    text = (
        "flags from a file, such as: label = 'y'; those given here win. Its table [kafka] has options of the connection, such as "
        "security_protocol, which are also taken from the environment: STREAMSVM_KAFKA_SECURITY_PROTOCOL"
    )
    streams.add_argument("--config", metavar="F.toml", help=text)


def _add_logs(group: Any) -> None:
    text = (
        "of standard error: text (the default), or json: one object a line with time, level, logger, message and fields, for "
        "warnings, errors, checkpoints, progress and what connections tell"
    )
    group.add_argument("--log-format", choices=["text", "json"], default="text", help=text)
    text = "the least that is told in lines of JSON (default: info)"
    group.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help=text)


def _add_labels(group: Any) -> None:
    """Add the flags about labels that come later than their rows."""
    text = (
        "where labels come from, if they are not in the rows: a path or kafka://host:port/topic. Each row is predicted when it "
        "comes; when its label does, that prediction is scored and the row is learned"
    )
    group.add_argument("--labels", metavar="STREAM", help=text)
    group.add_argument("--key", metavar="NAME", help="the column or field by which labels find their row")
    text = (
        "the column or field of the event time, seconds since 1970 or ISO 8601, in whose order both streams are read and which "
        "each must have (default: the time of the messages of Kafka)"
    )
    group.add_argument("--time", metavar="NAME", help=text)
    text = "seconds of event time that a row waits for its label (default: 86400; inf: no limit)"
    group.add_argument("--max-age", type=_seconds, metavar="S", help=text)
    group.add_argument("--max-pending", type=_count, metavar="N", help="the most rows that wait (default: 100000)")
    group.add_argument("--max-pending-bytes", type=_count, metavar="N", help="the most bytes that they take (default: 134217728)")
    text = "what becomes of a row whose label does not come in time (default: drop); with a label, it is learned with that one"
    group.add_argument("--expired", metavar="drop|dead-letter|negative=LABEL", help=text)


def _add_errors(command: argparse.ArgumentParser, labels: bool) -> None:
    """Add the flags about rows that cannot be used, with that which declares the ``labels``."""
    errors = command.add_argument_group("rows that cannot be used")
    if labels:
        text = "the labels that rows may have; any other is an error of its row (default: any of the type of the first)"
        errors.add_argument("--labels-are", metavar="A,B,C", help=text)
    errors.add_argument(
        "--on-error",
        default="stop",
        metavar="stop|skip|SINK",
        help="for a row that cannot be read, predicted or learned: stop (the default), skip it, or write it with the reason to a "
        "path or kafka://host:port/topic and go on",
    )
    errors.add_argument("--error-limit", type=_whole, metavar="N", help="the most rows that may be refused (default: no limit)")
    errors.add_argument(
        "--error-share",
        type=_share,
        default=0.5,
        metavar="S",
        help="the most of about the last 1,000 rows that may be refused, once 100 were (default: %(default)s)",
    )


def _place(text: str) -> Path | str:
    return text if "://" in text else Path(text)


def _every(text: str) -> dict[str, Any]:
    """Parse what comes between two checkpoints: the parameters of a loop."""
    if not text.endswith("s"):
        return {"checkpoint_every": _count(text)}
    try:
        seconds = float(text[:-1])
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of rows, such as 10000, nor of seconds, such as 5s")
    return {"checkpoint_every": None, "checkpoint_seconds": seconds}


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0.0:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, or inf, not {text}")
    return number


def _period(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 < number <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text}")
    return number


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"must be a port from 0 (any that is free) to 65535, not {text}")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text}")
    return int(text)


def _share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, not {text}")
    return number


def _bound(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number != 0.0 and not 2.0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 2, or 0, not {text}")
    return number


def _check_sink(arguments: argparse.Namespace) -> None:
    sinks = {"--to": arguments.to, "--on-error": None if arguments.on_error in ("stop", "skip") else arguments.on_error}
    streams = [option if sink == "-" else "" for option, sink in sinks.items()] + ["--quiet" if arguments.quiet else ""]
    if len(wanted := list(filter(None, streams))) > 1:
        raise UsageError(
            f"{' and '.join(option + ' -' * (option in sinks) for option in wanted)} both want standard output: leave one out"
        )
    files = {"SOURCE": arguments.source, "--labels": getattr(arguments, "labels", None), "--config": arguments.config} | sinks
    # --model of `learn` is the name of a learner.
    folders = {"--checkpoint": arguments.checkpoint} | ({"--model": arguments.model} if arguments.command == "predict" else {})
    for option, sink in sinks.items():
        if sink is None or sink == "-" or "://" in sink:
            continue
        for other, name in files.items():
            if other != option and name is not None and _is_same_file(sink, name):
                raise UsageError(f"{option} {sink} would overwrite {other}: name another file")
        for other, name in folders.items():
            if isinstance(name, Path) and (_is_same_file(sink, str(name)) or name.absolute() in Path(sink).absolute().parents):
                raise UsageError(f"{option} {sink} would spoil {other} {name}: name another file")


def _is_same_file(one: str, other: str) -> bool:
    first, second = Path(one), Path(other)
    return first.absolute() == second.absolute() or (first.exists() and second.exists() and first.samefile(second))
