"""The command line: streamsvm learn, predict, inspect, demo."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from streamsvm import __version__

# What takes long to import is imported where it is needed: --help must be quick.

__all__ = ["main"]

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    0; 1 where the work failed (one line on standard error says why); 2 where the command line is wrong; 130 after Ctrl-C.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    from streamsvm.cli.parsing import UsageError
    from streamsvm.runtime import CheckpointError, StreamError

    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            status = int(arguments.run(arguments))
            print(end="", flush=True)  # noqa: T201
        except UsageError as error:
            parser.error(str(error))
        except (StreamError, CheckpointError) as error:
            status = _fail(str(error))
        except BrokenPipeError:  # who reads the output has gone: nothing more to say
            status = 1
        except OSError as error:
            status = _fail(f"{error.filename or 'standard output'}: {error.strerror}")
        except KeyboardInterrupt:
            status = _INTERRUPTED
    try:
        print(end="", flush=True)  # noqa: T201
    except OSError:  # what is left cannot be written, and is not to be tried again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _fail(text: str) -> int:
    print(f"streamsvm: {text}", file=sys.stderr)  # noqa: T201
    return 1


def _warn(text: str) -> None:
    print(f"streamsvm: warning: {text}", file=sys.stderr)  # noqa: T201


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _warn(str(message))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="streamsvm", description="Kernel SVMs that learn streams in a fixed number of bytes.")
    parser.add_argument("--version", action="version", version=f"streamsvm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    stream = "a path (CSV, JSON lines or LIBSVM text, each also as .gz), - for standard input, or kafka://host:port/topic"
    predictions = (
        "where predictions go: a path (CSV where it ends in .csv, else JSON lines), - for JSON lines on standard output, or "
        "kafka://host:port/topic"
    )

    learn = commands.add_parser("learn", help="learn a stream, scoring each prediction before its row is learned")
    learn.add_argument("source", metavar="SOURCE", help=stream)
    learn.add_argument("--label", metavar="NAME", help="the column or key that holds the label (LIBSVM text needs none)")
    learn.add_argument("--model", default="bsgd", choices=["bsgd", "bsca", "linear"], help="the learner (default: %(default)s)")
    learn.add_argument("--budget", type=int, metavar="B", help="support vectors (default: 500; linear has none)")
    learn.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter of the learner, such as gamma=0.5; repeatable",
    )
    learn.add_argument(
        "--scale",
        choices=["standard", "none"],
        help="standardise features as they come (default: standard; none for LIBSVM text, which it would make dense)",
    )
    learn.add_argument(
        "--metric",
        default="Accuracy",
        metavar="NAME",
        help="a metric of river.metrics, such as F1 or 'FBeta(beta=2)' (default: %(default)s)",
    )
    learn.add_argument(
        "--positive",
        metavar="LABEL",
        help="the label that F1, ROCAUC and the like count as positive (needed unless labels are bools, 0 and 1, or -1 and 1)",
    )
    learn.add_argument(
        "--window",
        type=int,
        default=1000,
        metavar="N",
        help="the metric is also given for the last N rows (default: %(default)s)",
    )
    learn.add_argument("--checkpoint", type=Path, metavar="DIR", help="keep the state there, and go on from what is there")
    learn.add_argument(
        "--checkpoint-every", type=int, default=10_000, metavar="N", help="rows between checkpoints (default: %(default)s)"
    )
    learn.add_argument("--max-rows", type=int, metavar="N", help="stop after so many rows of this run")
    learn.set_defaults(run=_learn)

    predict = commands.add_parser("predict", help="predict the rows of a stream without learning them")
    predict.add_argument("source", metavar="SOURCE", help=stream)
    predict.add_argument("--model", required=True, metavar="FILE_OR_DIR", help="a checkpoint, or a folder of them")
    predict.add_argument("--label", metavar="NAME", help="the column or key of the label, where there is one: not a feature then")
    predict.set_defaults(run=_predict)

    for command, sink_required in ((learn, False), (predict, True)):
        command.add_argument("--to", metavar="SINK", required=sink_required, help=predictions)
        command.add_argument("--format", choices=["csv", "jsonl", "libsvm"], help="of SOURCE, where its name does not say it")
        command.add_argument("--stop-at-end", action="store_true", help="end where the topic ended at the start")
        command.add_argument("--quiet", action="store_true", help="progress as JSON lines on standard output, nothing else")

    show = commands.add_parser("inspect", help="show what a checkpoint holds")
    show.add_argument("path", metavar="FILE_OR_DIR")
    show.add_argument("--json", action="store_true", help="as one JSON object")
    show.set_defaults(run=_inspect)

    demo = commands.add_parser(
        "demo", help="learn real data through an embedded broker, kill the learner, resume it, draw the result"
    )
    demo.add_argument("--out", type=Path, default=Path("streamsvm-demo"), metavar="DIR", help="default: %(default)s")
    demo.set_defaults(run=_demo)
    return parser


# learn ----------------------------------------------------------------------------------------------------------------------


def _learn(arguments: argparse.Namespace) -> int:
    from streamsvm.cli.parsing import UsageError, make_metric, make_model, parse_positive
    from streamsvm.cli.progress import Display
    from streamsvm.runtime import CheckpointFolder, LearningLoop, StreamError, open_sink, open_source
    from streamsvm.runtime.open import format_of

    _check_stream(arguments)
    format = format_of(arguments.source, arguments.format)  # noqa: A001
    if arguments.label is None and format != "libsvm":
        raise UsageError("--label NAME: which column or key holds the label?")
    scale = arguments.scale or ("none" if format == "libsvm" else "standard")
    model = make_model(arguments.model, arguments.budget, arguments.set, scale == "standard")
    positive = parse_positive(arguments.positive, format)
    metric = make_metric(arguments.metric, arguments.window, positive)
    with contextlib.ExitStack() as stack:
        checkpoints = None
        if arguments.checkpoint is not None:
            checkpoints = stack.enter_context(CheckpointFolder(arguments.checkpoint))
        with Display(arguments.quiet) as display:
            display.say("starting (the first run on a machine compiles for some seconds)")
            source = open_source(
                arguments.source, label=arguments.label, format=arguments.format, stop_at_end=arguments.stop_at_end
            )
            stack.callback(source.close)
            sink = None
            if arguments.to is not None:
                sink = open_sink(arguments.to)
                stack.callback(sink.close)
            loop = LearningLoop(
                source,
                model,
                metric,
                positive=positive,
                sink=sink,
                checkpoints=checkpoints,
                checkpoint_every=arguments.checkpoint_every,
                window=arguments.window,
                on_progress=display.show,
            )
            if loop.rows:
                display.say(f"going on after row {loop.rows:,}")
            with _stopping(loop.stop):
                end = loop.run(arguments.max_rows)
        if end.rows and not end.learned and not end.interrupted:
            raise StreamError(f"{source.name}: none of {end.rows:,} rows had a label, so nothing was learned. Is its name right?")
        return _INTERRUPTED if end.interrupted else 0


def _check_stream(arguments: argparse.Namespace) -> None:
    from streamsvm.cli.parsing import UsageError

    for option, value in (("--max-rows", getattr(arguments, "max_rows", None)), ("--window", getattr(arguments, "window", 1))):
        if value is not None and value < 1:
            raise UsageError(f"{option} must be at least 1")
    if getattr(arguments, "checkpoint_every", 1) < 1:
        raise UsageError("--checkpoint-every must be at least 1")
    if arguments.to == "-" and arguments.quiet:
        raise UsageError("--to - and --quiet both want standard output")
    if arguments.to is not None and arguments.to != "-" and "://" not in arguments.to:
        target, source = Path(arguments.to), Path(arguments.source)
        if target.exists() and source.exists() and target.samefile(source):
            raise UsageError(f"--to {arguments.to} would overwrite SOURCE")


@contextlib.contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls ``stop``, which ends the work in order; a second one ends it at once."""

    def handle(number: int, frame: object) -> None:  # noqa: ARG001
        stop()
        signal.signal(number, signal.default_int_handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# predict, inspect, demo -----------------------------------------------------------------------------------------------------


def _predict(arguments: argparse.Namespace) -> int:
    from streamsvm.runtime import Prediction, StreamError, load, open_sink, open_source
    from streamsvm.runtime.loop import explained

    _check_stream(arguments)
    model = load(arguments.model)
    stopped: list[bool] = []
    with contextlib.ExitStack() as stack:
        source = open_source(arguments.source, label=arguments.label, format=arguments.format, stop_at_end=arguments.stop_at_end)
        stack.callback(source.close)
        sink = open_sink(arguments.to)
        stack.callback(sink.close)

        def stop() -> None:
            stopped.append(True)
            source.stop()

        rows, unknown = 0, ""
        with _stopping(stop):
            for x, y in source:
                try:
                    if rows == 0 or unknown:
                        unknown = _unknown_features(model, x)
                    probability = max(model.predict_proba_one(x).values(), default=None)
                    label = model.predict_one(x)
                except Exception as error:  # of the learner, or of any step before it
                    raise StreamError(f"{source.place}: {explained(error, x)}") from error
                if rows == 0 and unknown:
                    _warn(f"{source.place}: {unknown}")
                sink.write(Prediction(rows, label, y, probability))
                rows += 1
                if stopped:
                    break
        sink.flush()
    if unknown and not stopped:
        raise StreamError(f"{source.place}: to the end, {unknown}: the predictions say nothing. Is it a model of these rows?")
    if arguments.quiet:
        print(json.dumps({"event": "end", "rows": rows, "interrupted": bool(stopped)}))  # noqa: T201
    else:
        print(f"{rows:,} rows predicted", file=sys.stderr)  # noqa: T201
    return _INTERRUPTED if stopped else 0


def _unknown_features(model: Any, x: Any) -> str:
    """What to say of a row that has features, but none that the model has learned; empty where it has one."""
    from river import compose

    from streamsvm.cli.progress import learner_of

    known = getattr(learner_of(model), "feature_names", [])
    names = list(model.transform_one(x) if isinstance(model, compose.Pipeline) else x)
    if not known or not names or not set(known).isdisjoint(names):
        return ""
    return f"the row has none of the features that the model knows (it has {_listed(names)}; known are {_listed(known)})"


def _listed(names: list[Any]) -> str:
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")


def _inspect(arguments: argparse.Namespace) -> int:
    from streamsvm.cli.progress import learner_of
    from streamsvm.runtime import CheckpointError
    from streamsvm.runtime.checkpoint import CheckpointFolder, read

    path = Path(arguments.path)
    found = CheckpointFolder.newest_in(path) if path.is_dir() else read(path)
    if found is None:
        raise CheckpointError(f"{path} holds no checkpoint")
    learner = learner_of(found.model)
    facts: dict[str, Any] = dict(found.header)
    for name in (
        "budget",
        "n_support",
        "n_merges",
        "n_learned",
        "nbytes",
        "effective_gamma",
        "averaged",
        "labels",
        "feature_names",
    ):
        if hasattr(learner, name):
            facts[name] = getattr(learner, name)
    if arguments.json:
        print(json.dumps(facts, default=str, sort_keys=True))  # noqa: T201
        return 0
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        print(f"{name:<{width}}" + text.replace("\n", "\n" + " " * width))  # noqa: T201
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from streamsvm.cli.demo import run

    return run(arguments.out)
