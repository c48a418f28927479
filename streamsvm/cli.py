"""The command line: streamsvm learn, predict, inspect, demo."""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:  # what takes long to import is imported where it is needed: --help must be quick
    from rich.console import Console

    from streamsvm.runtime import Progress

__all__ = ["main"]

_INTERRUPTED = 130


class _UsageError(Exception):
    """The command line asks for what there is not."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    0; 1 where the work failed (one line on standard error says why); 2 where the command line is wrong; 130 after Ctrl-C.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    from streamsvm.runtime import CheckpointError, StreamError

    try:
        return int(arguments.run(arguments))
    except _UsageError as error:
        parser.error(str(error))
    except (StreamError, CheckpointError) as error:
        print(f"streamsvm: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except BrokenPipeError:  # who reads the output has gone: nothing more to say, also not at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="streamsvm", description="Kernel SVMs that learn streams in a fixed number of bytes.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    stream = "a path (CSV, JSON lines, LIBSVM text; .gz too), -, or kafka://host:port/topic"

    learn = commands.add_parser("learn", help="learn a stream, scoring each prediction before its row is learned")
    learn.add_argument("source", metavar="SOURCE", help=stream)
    learn.add_argument("--label", metavar="NAME", help="the column or key that holds the label (LIBSVM text needs none)")
    learn.add_argument("--model", default="bsgd", choices=["bsgd"], help="the learner (default: %(default)s)")
    learn.add_argument("--budget", type=int, default=500, metavar="B", help="support vectors (default: %(default)s)")
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
    learn.add_argument("--metric", default="Accuracy", metavar="NAME", help="a metric of river.metrics (default: %(default)s)")
    learn.add_argument("--window", type=int, default=1000, metavar="N", help="rows of the windowed metric (default: %(default)s)")
    learn.add_argument("--checkpoint", type=Path, metavar="DIR", help="keep the state there, and go on from what is there")
    learn.add_argument(
        "--checkpoint-every", type=int, default=10_000, metavar="N", help="rows between checkpoints (default: %(default)s)"
    )
    learn.add_argument("--max-rows", type=int, metavar="N", help="stop after so many rows")
    learn.set_defaults(run=_learn)

    predict = commands.add_parser("predict", help="predict the rows of a stream without learning them")
    predict.add_argument("source", metavar="SOURCE", help=stream)
    predict.add_argument("--model", required=True, metavar="FILE_OR_DIR", help="a checkpoint, or a folder of them")
    predict.add_argument("--label", metavar="NAME", help="the column or key of the label, where there is one: not a feature then")
    predict.set_defaults(run=_predict)

    for command, sink_required in ((learn, False), (predict, True)):
        command.add_argument("--to", metavar="SINK", required=sink_required, help=f"where predictions go: {stream}")
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
    from streamsvm.runtime import CheckpointFolder, LearningLoop, open_sink, open_source
    from streamsvm.runtime.open import format_of

    _check_stream(arguments)
    format = format_of(arguments.source, arguments.format)  # noqa: A001
    if arguments.label is None and format != "libsvm":
        raise _UsageError("--label NAME: which column or key holds the label?")
    model = _make_model(arguments, scale=arguments.scale or ("none" if format == "libsvm" else "standard"))
    metric = _make_metric(arguments.metric)
    with contextlib.ExitStack() as stack:
        checkpoints = None
        if arguments.checkpoint is not None:
            checkpoints = stack.enter_context(CheckpointFolder(arguments.checkpoint))
        with _Display(arguments.quiet) as display:
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
        return _INTERRUPTED if end.interrupted else 0


def _check_stream(arguments: argparse.Namespace) -> None:
    for option, value in (("--max-rows", getattr(arguments, "max_rows", None)), ("--window", getattr(arguments, "window", 1))):
        if value is not None and value < 1:
            raise _UsageError(f"{option} must be at least 1")
    if getattr(arguments, "checkpoint_every", 1) < 1:
        raise _UsageError("--checkpoint-every must be at least 1")
    if arguments.to == "-" and arguments.quiet:
        raise _UsageError("--to - and --quiet both want standard output")
    if arguments.to is not None and arguments.to != "-" and "://" not in arguments.to:
        target, source = Path(arguments.to), Path(arguments.source)
        if target.exists() and source.exists() and target.samefile(source):
            raise _UsageError(f"--to {arguments.to} would overwrite SOURCE")


def _make_model(arguments: argparse.Namespace, scale: str) -> Any:
    from river import preprocessing

    from streamsvm import BSGDClassifier

    learner = {"bsgd": BSGDClassifier}[arguments.model]
    valid = list(inspect.signature(learner).parameters)
    # A run must be repeatable to the byte, so the seed is not left to chance.
    parameters: dict[str, Any] = {"seed": 0, "budget": arguments.budget}
    for setting in arguments.set:
        name, equals, text = setting.partition("=")
        if not equals or name not in valid:
            raise _UsageError(f"--set {setting}: the form is KEY=VALUE, and {arguments.model} has {', '.join(valid)}")
        parameters[name] = _parse_value(text)
    try:
        model = learner(**parameters)
    except ValueError as error:
        raise _UsageError(str(error)) from None
    return preprocessing.StandardScaler() | model if scale == "standard" else model


def _parse_value(text: str) -> Any:
    from streamsvm import Merge, Projection, Removal

    strategies = {strategy.__name__: strategy for strategy in (Merge, Projection, Removal)}
    try:
        node = ast.parse(text, mode="eval").body
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in strategies):
            return ast.literal_eval(node)
        arguments = [ast.literal_eval(argument) for argument in node.args]
    except (ValueError, SyntaxError):
        return text
    try:
        return strategies[node.func.id](*arguments)
    except (TypeError, ValueError) as error:
        raise _UsageError(str(error)) from None


def _make_metric(name: str) -> Any:
    from river import metrics

    metric = getattr(metrics, name, None)
    if not (inspect.isclass(metric) and issubclass(metric, metrics.base.ClassificationMetric)):
        raise _UsageError(
            f"--metric {name}: river.metrics has no such metric for classifiers; try Accuracy, F1, ROCAUC or LogLoss"
        )
    try:
        return metric()
    except TypeError as error:
        raise _UsageError(f"--metric {name}: {error}") from None


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


class _Display:
    """Progress: a live line on a terminal, a line now and then elsewhere, JSON lines where quiet."""

    _PLAIN_EVERY = 5.0
    _QUIET_EVERY = 1.0

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._told = 0.0

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.logging import RichHandler

        self._console: Console = Console(stderr=True, highlight=False)
        if not self._quiet:  # what libraries log goes above the live line, not through it
            logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=self._console)])
        self._status: Any = None
        if not self._quiet and self._console.is_terminal:
            self._status = self._console.status("", spinner="dots")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
        elif not self._quiet:
            self._console.print(text)

    def show(self, progress: Progress) -> None:
        now = time.perf_counter()
        if self._quiet:
            if progress.ended or now - self._told >= self._QUIET_EVERY:
                self._told = now
                sys.stdout.write(json.dumps(_facts(progress)) + "\n")
                sys.stdout.flush()
            return
        facts = _facts(progress)
        line = (
            f"{progress.rows:,} rows  {progress.rows_per_second:,.0f} rows/s  {facts['metric_name']} {progress.metric:.4f}  "
            f"last {facts['window']:,} rows {progress.windowed:.4f}  "
            f"{facts.get('n_support', 0):,} support vectors  {facts.get('n_merges', 0):,} merges"
        )
        if progress.ended:
            if self._status is not None:
                self._status.stop()
                self._status = None
            self._console.print(f"{line}  {'interrupted' if progress.interrupted else 'done'} after {progress.seconds:.1f} s")
        elif self._status is not None:
            self._status.update(line)
        elif now - self._told >= self._PLAIN_EVERY:
            self._told = now
            self._console.print(line)


def _facts(progress: Progress) -> dict[str, Any]:
    learner = _learner_of(progress.model)
    facts = {
        "event": "end" if progress.ended else "progress",
        "rows": progress.rows,
        "learned": progress.learned,
        "rows_per_second": round(progress.rows_per_second, 1),
        "metric_name": progress.metric_name,
        "metric": progress.metric,
        "windowed": progress.windowed,
        "window": progress.window,
        "seconds": round(progress.seconds, 3),
    }
    for name in ("n_support", "n_merges", "nbytes"):
        if hasattr(learner, name):
            facts[name] = getattr(learner, name)
    if progress.ended:
        facts["interrupted"] = progress.interrupted
    return facts


def _learner_of(model: Any) -> Any:
    """The last step of a pipeline, or the model itself."""
    from river import compose

    return model[-1] if isinstance(model, compose.Pipeline) else model


# predict, inspect, demo -----------------------------------------------------------------------------------------------------


def _predict(arguments: argparse.Namespace) -> int:
    from streamsvm.runtime import Prediction, StreamError, load, open_sink, open_source

    _check_stream(arguments)
    model = load(arguments.model)
    stopped: list[bool] = []
    with contextlib.ExitStack() as stack:
        source = open_source(arguments.source, label=arguments.label, format=arguments.format, stop_at_end=arguments.stop_at_end)
        stack.callback(source.close)
        sink = open_sink(arguments.to)
        stack.callback(sink.close)
        rows = 0

        def stop() -> None:
            stopped.append(True)
            source.stop()

        with _stopping(stop):
            for x, y in source:
                try:
                    probability = max(model.predict_proba_one(x).values(), default=None)
                    sink.write(Prediction(rows, model.predict_one(x), y, probability))
                except (ValueError, TypeError) as error:
                    raise StreamError(f"{source.name}, row {rows + 1:,}: {error}") from error
                rows += 1
                if stopped:
                    break
        sink.flush()
    if arguments.quiet:
        sys.stdout.write(json.dumps({"event": "end", "rows": rows, "interrupted": bool(stopped)}) + "\n")
    else:
        print(f"{rows:,} rows predicted", file=sys.stderr)  # noqa: T201
    return _INTERRUPTED if stopped else 0


def _inspect(arguments: argparse.Namespace) -> int:
    from streamsvm.runtime import CheckpointError
    from streamsvm.runtime.checkpoint import CheckpointFolder, read

    path = Path(arguments.path)
    found = CheckpointFolder.newest_in(path) if path.is_dir() else read(path)
    if found is None:
        raise CheckpointError(f"{path} holds no checkpoint")
    learner = _learner_of(found.model)
    facts: dict[str, Any] = {"model": repr(found.model), **found.header}
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
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
    Console(highlight=False).print(table)
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from streamsvm.demo import run

    return run(arguments.out)
