"""The command line's parser, and what becomes of a command: its exit status, its warnings and errors as single lines."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from streamsvm import __version__
from streamsvm._extras import MissingPackageError
from streamsvm.cli import CommandError, UsageError, printable
from streamsvm.cli.arguments import add_errors, add_labels, add_logs, add_run, add_streams, add_trusted
from streamsvm.cli.flags import EXAMPLES, add_table_flags, expanded
from streamsvm.cli.logs import logged, says_json
from streamsvm.cli.overview import OVERVIEW
from streamsvm.cli.values import bound, count, period, place

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
    if not words:
        print(OVERVIEW, end="")
        return 0
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
    add_streams(learn, label="the column or key that holds the label (LIBSVM text needs none)", sink_required=False)
    add_labels(learn.add_argument_group("labels from another stream"))
    add_errors(learn, labels=True)
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
    model.add_argument("--bound", type=bound, metavar="D", help=bound_help)
    score = learn.add_argument_group("the score")
    metric_help = "a metric of river.metrics, such as F1, 'FBeta(beta=2)' or R2 (default: Accuracy; of a regression MAE)"
    score.add_argument("--metric", metavar="NAME", help=metric_help)
    score.add_argument(
        "--positive",
        metavar="LABEL",
        help="the label that F1, ROCAUC and the like count as positive (needed unless labels are bools, 0 and 1, or -1 and 1)",
    )
    window_help = "the metric is also computed over the last N rows (default: %(default)s)"
    score.add_argument("--window", type=count, default=1000, metavar="N", help=window_help)
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
    add_run(run, checkpoint_help, "DIR|TOPIC")
    text = "a consumer group: offsets are committed for it after each checkpoint, for tools that show how far it is behind"
    run.add_argument("--group", metavar="NAME", help=text)
    text = (
        "global (the default): one model of all partitions; partition: workers of the --group share the topic, and each "
        "partition has its own model, in DIR/partition-N of the --checkpoint folder, which all workers share"
    )
    run.add_argument("--scope", choices=["global", "partition"], default="global", help=text)
    add_trusted(run, "the checkpoint")

    predict = commands.add_parser(
        "predict",
        help="predict the rows of a stream without learning them, read as the model's rows were",
        usage="%(prog)s SOURCE --model PLACE --to SINK [flags]",
    )
    label_help = "the column or key of the label, which is no feature (default: as in the checkpoint, where rows have it)"
    add_streams(predict, label=label_help, sink_required=True)
    model = predict.add_argument_group("the model")
    text = "a checkpoint, a folder of them, or a topic of them, kafka://host:port/topic?name=NAME (default: the only one there)"
    model.add_argument("--model", type=place, required=True, metavar="PLACE", help=text)
    text = "take the newest model as soon as a learner has written it to the folder or topic; predictions say which one made them"
    model.add_argument("--follow", action="store_true", help=text)
    add_trusted(model, "the model")
    add_errors(predict, labels=False)
    add_table_flags(predict.add_argument_group("the table"))
    checkpoint_help = "a folder for the position of the run, from which the same command goes on; not the folder of the model"
    add_run(predict.add_argument_group("the run"), checkpoint_help)

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
    merge.add_argument("--to", dest="into", type=place, required=True, metavar="PLACE", help=text)
    text = "look again each so many seconds, and merge where a model has learned more, until Ctrl-C (default: once)"
    merge.add_argument("--every", type=period, metavar="SECONDS", help=text)
    merge.add_argument("--quiet", action="store_true", help="a JSON line on standard output for each merged model, nothing else")
    add_logs(merge)
    add_trusted(merge, "a model")

    inspect = commands.add_parser("inspect", help="show what a checkpoint holds")
    text = "a file, a folder or a topic, as for predict --model" + _FROM_ENVIRONMENT
    inspect.add_argument("path", type=place, metavar="PLACE", help=text)
    inspect.add_argument("--json", action="store_true", help="as one JSON object")
    add_trusted(inspect, "the file")
    plot_help = "also draw the learning curve, and the decision boundary of a model of two features (.png, .svg, .pdf)"
    inspect.add_argument("--plot", type=Path, metavar="FILE", help=plot_help)

    export = commands.add_parser(
        "export",
        help="write a model as C, as ONNX, as JSON, or as a file for numpy: it then predicts without streamsvm",
        usage="%(prog)s PLACE --to FORM [--out DIR] [--name NAME] [flags]",
    )
    text = "a model that was saved, a checkpoint, a folder or a topic of them, as for predict --model" + _FROM_ENVIRONMENT
    export.add_argument("path", type=place, metavar="PLACE", help=text)
    text = "c: NAME.h and NAME.c, C99 without any library; onnx: NAME.onnx; npz: NAME.npz, for streamsvm.edge; json: NAME.json"
    export.add_argument("--to", dest="form", choices=["c", "onnx", "npz", "json"], required=True, help=text)
    export.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="the folder (default: the current one)")
    text = "of the files, and of the functions in C (default: %(default)s)"
    export.add_argument("--name", default="model", metavar="NAME", help=text)
    text = "of a number of the support vectors in C (default: 32, float)"
    export.add_argument("--bits", type=int, choices=[8, 16, 32], help=text)
    text = "make the model smaller, by fewer vectors, until its tables in C have at most so many bytes, and say what is left"
    export.add_argument("--max-bytes", type=count, metavar="N", help=text)
    text = "the largest change of a decision value by fewer bits: in C, the fewest bits that keep to it are taken"
    export.add_argument("--error", type=float, metavar="E", help=text)
    text = "of ONNX: primitive ones (the default), which every runtime has, or ml, the SVM operators of ai.onnx.ml"
    export.add_argument("--operators", choices=["primitive", "ml"], help=text)
    add_trusted(export, "the model")

    demo = commands.add_parser(
        "demo", help="learn real data through an embedded broker, kill the learner, resume it, draw what it learned"
    )
    demo.add_argument("--out", type=Path, default=Path("streamsvm-demo"), metavar="DIR", help="default: %(default)s")
    names = {"learn": learn, "predict": predict, "merge": merge, "inspect": inspect, "export": export, "demo": demo}
    return parser, names


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
