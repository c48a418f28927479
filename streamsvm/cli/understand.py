"""``streamsvm inspect``, ``explain`` and ``report``: contents, important columns and scores of a model. ``checkpoints``,
``rollback`` and ``diff``: the earlier ones.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from river import base

from streamsvm.cli import CommandError, UsageError, escape_unprintable
from streamsvm.cli.arguments import as_command_error, as_usage_error, parse_path_or_url
from streamsvm.cli.outputs import check_output_files
from streamsvm.cli.parsing import find_positive_label
from streamsvm.cli.progress import format_scores, scores_to_json
from streamsvm.cli.score import check_any_scored, choose_metrics, count_unscored_rows, make_labelled_job, scoring_loop
from streamsvm.cli.streams import interruptible, iter_first_rows, load_newest, open_checkpoint_store, read_first_rows
from streamsvm.cli.tables import read_saved_label
from streamsvm.core.checks import finite_or_none
from streamsvm.core.explaining import Examples
from streamsvm.edge.program import ExportError
from streamsvm.explanations import examples_one, explain_one
from streamsvm.export import plots
from streamsvm.export.convert import make_program
from streamsvm.export.report.contents import ReportRows, make_report, measure_importance
from streamsvm.export.report.summary import ModelSummary, read_score_reports
from streamsvm.files.container import ModelFileError
from streamsvm.files.messages import format_count, shorten, suggest_name
from streamsvm.files.model_file import write_file
from streamsvm.stream import BadRow, StreamError
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, SavedCheckpoint, find_saved, list_checkpoints
from streamsvm.stream.page import render_page
from streamsvm.stream.prediction import open_followed
from streamsvm.stream.rows import ValidatingPipeline, find_keys, find_learner, split_pipeline

_LEARNER_ATTRIBUTES = ["budget", "n_support", "n_merges", "n_learned", "nbytes", "effective_gamma", "follows_average"]
_LEARNER_ATTRIBUTES += ["labels", "feature_names"]
_VECTORS_FORMAT = "{before:,} to {after:,}, {common:,} of them in common"
_MAX_ROWS, _MAX_KEY_ROWS = 1000, 10_000  # to measure importance, and the errors of keys
_MAX_NAME_CHARS, _MAX_NAMES, _MAX_EXPERTS = 40, 8, 4


def run_inspect(arguments: argparse.Namespace) -> None:
    """Run ``streamsvm inspect``: print facts about a saved model. With ``--plot``, draw its learning curve and decision boundary.

    Raises UsageError if the picture cannot be written to the path, and CommandError if there is nothing to draw.
    """
    if arguments.plot is not None:
        check_output_files("--plot", [arguments.plot], {"the model": arguments.path}, arguments.overwrite)
        with as_usage_error("--plot: ", (plots.DrawingError,)):
            plots.check_plot_path(arguments.plot)
    checkpoint = load_newest(arguments.path, arguments.trusted)
    summary = ModelSummary(checkpoint)
    if arguments.key is not None:
        facts = _describe_key(checkpoint.model, arguments.key)
        print(json.dumps(facts, default=str)) if arguments.json else _print_facts(facts)
    elif arguments.json:
        print(json.dumps(_collect_facts(checkpoint), default=str, sort_keys=True))
    else:
        keys = ", ".join(find_keys(checkpoint.model))
        _print_facts(_summarise_model(summary) | ({"keys": f"{keys}; inspect --key shows one, such as a device"} if keys else {}))
        if arguments.all:
            print()
            _print_facts(_collect_facts(checkpoint))
    if arguments.plot is None:
        return
    if summary.curve_error:
        raise CommandError(f"--plot: {summary.curve_error}")
    with as_command_error("--plot: ", plots.DrawingError), interruptible():
        left_out = plots.save_plot(arguments.plot, checkpoint.model, summary.curve)
    # Not on standard output, which may be JSON for scripts.
    print(escape_unprintable(f"drawn: {arguments.plot}{''.join(f' ({reason})' for reason in left_out)}"), file=sys.stderr)


def _describe_key(model: Any, text: str) -> dict[str, Any]:
    """Return what a model has learned of one key, by the ``text`` of ``--key``: ``a7``, or ``device=a7``. Raise a UsageError if
    its column is unclear, and a CommandError if the model does not know the key.
    """
    keys, facts = find_keys(model), dict[str, Any]()
    models: Any = getattr(split_pipeline(model)[1], "key_models", None)
    column, _, value = text.partition("=")
    if column not in keys:
        column, value = (keys or [""])[0], text
        if len(keys) != 1:
            advice = f"name its column, {column}={text}" if keys else "no column is a key: learn with --columns NAME:key"
            raise UsageError(f"--key {text}: {advice}")
    names, ids = list[Any](), list[Any]([value, *([float(value)] if re.fullmatch(r"-?\d+(\.\d+)?", value) else [])])
    if (encoder := ValidatingPipeline(model, learns=False).table_encoder) is not None:
        state, memory = encoder.column_state, encoder.get_memory({column: value})
        names, ids = [*state.categories.get(column, ())], [state.encode_category(column, value).key]
        if memory and (encoding := encoder.target_encoding) and (n := encoding.count_rows(ids[0])):
            numbers = {str(name).removeprefix(f"{column}~"): float(f"{number:.6g}") for name, number in memory.items()}
            recent = {name: number for name, number in numbers.items() if not name.startswith(("last ", "rows"))}
            facts = {"rows": n, "last": encoder.find_key_labels(memory, column)[0], **recent}
    for key in ids if models is not None and models.key == column else ():
        facts |= models.describe_key(key)
    if not facts:
        raise CommandError(f"the model does not know the {column} {value!r}{suggest_name(value, names)}")
    return {column: value, **facts}


def _print_facts(facts: Mapping[str, Any]) -> None:
    """Print facts (values by name) in two aligned columns on standard output."""
    printable_facts = {escape_unprintable(str(name)): value for name, value in facts.items()}
    width = max(map(len, printable_facts)) + 2
    for name, value in printable_facts.items():
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else escape_unprintable(str(value), True)
        print(f"{name:<{width}}" + text.replace("\n", "\n" + " " * width))


def _summarise_model(summary: ModelSummary) -> dict[str, str]:
    """Return the main facts about a model (labels, rows, scores, columns, size) as texts by name, for ``inspect``."""
    target = "a number" if summary.is_regressor else "how odd a row is" if summary.is_anomaly_detector else "labels"
    lines = {"predicts": summary.label or target}
    if summary.labels:
        lines["labels"] = _format_names(summary.labels)
    if summary.source is not None:
        lines["learned from"] = summary.source
    rows = [f"{summary.n_learned or 0:,} learned"]
    rows += [f"{summary.n_unlabelled:,} without a label"] * bool(summary.n_unlabelled)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in summary.refused.items())
    rows.append(f"{summary.n_refused:,} refused" + f" ({counts})" * bool(counts))
    rows += [format_count(summary.n_drifts or 0, "drift")] * (summary.n_drifts is not None)
    lines["rows"] = ", ".join(rows)
    reports = [report for report in summary.reports if math.isfinite(report.value)]
    last_rows = 0 if summary.curve is None else min(summary.curve.window, summary.n_learned or 0)
    for number, line in enumerate(format_scores(reports, last_rows)):
        lines["score" if not number else f"score {number + 1}"] = line
    columns = [column for column in summary.columns if column.kind not in ("label", "target")]
    if columns:
        kinds = Counter(column.kind for column in columns)
        kind_counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
        lines["columns"] = f"{kind_counts}\n{_format_names([column.name for column in columns if column.kind != 'dropped'])}"
    lines["learner"] = f"{summary.learner_name}: {summary.learner_description[:1].lower()}{summary.learner_description[1:]}"
    if summary.experts:
        weights = (f"{name} ({100.0 * share:.0f} %)" for name, share, _ in summary.experts[:_MAX_EXPERTS])
        lines["listens to"] = ", ".join(weights) + (", ..." if len(summary.experts) > _MAX_EXPERTS else "")
    lines |= summary.facts
    if summary.curve_error:
        lines["learning curve"] = summary.curve_error
    elif summary.curve is not None and (points := summary.curve.points):
        text = f"{format_count(len(points), 'point')}, one every {format_count(summary.curve.every, 'row').removeprefix('1 ')}"
        lines["learning curve"] = f"{text}; inspect --plot draws them, and streamsvm report shows it all"
    return lines


def _format_names(names: list[Any]) -> str:
    """Return the first names of a list as one text with commas, with their number if there are more."""
    shown = [shorten(str(name), _MAX_NAME_CHARS) for name in names[:_MAX_NAMES]]
    return ", ".join(shown) + (f", ... ({len(names):,})" if len(names) > _MAX_NAMES else "")


def _collect_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return all facts about a checkpoint for ``inspect --json``: header, attributes of the learner, size of the export."""
    learner = find_learner(checkpoint.model)
    facts = checkpoint.header | {name: getattr(learner, name) for name in _LEARNER_ATTRIBUTES if hasattr(learner, name)}
    try:
        program = make_program(checkpoint.model)
        facts["export"] = {"columns": len(program.columns), "bytes": program.nbytes, "steps": [step.op for step in program.steps]}
    except ExportError as error:
        facts["export"] = str(error)
    experts = [report._asdict() for report in getattr(learner, "experts", [])]
    if experts:
        del facts["follows_average"]  # an ensemble uses both iterates of each expert
        facts |= {"effort": learner.effort, "active_combiner": learner.active_combiner, "experts": experts}
    return facts


def run_checkpoints(arguments: argparse.Namespace) -> None:
    """Run ``streamsvm checkpoints``: list the checkpoints of a folder or topic, newest first, or copy one to a file, an empty
    folder, or a topic.

    Raises UsageError if streamsvm did not write the existing file, or the folder or topic has checkpoints already, and
    CommandError if the file cannot be written.
    """
    files = [arguments.copy] if isinstance(arguments.copy, Path) else []
    check_output_files("--copy", files, {"a checkpoint": arguments.path}, arguments.overwrite)
    with contextlib.closing(open_followed(arguments.path)) as models:
        history = models.history()
        chosen = find_saved(arguments.path, history, arguments.at)
        if arguments.copy is not None:
            _copy_checkpoint(chosen, arguments.copy)
        for saved in history if arguments.at is None and arguments.copy is None else [chosen]:
            # Messages may have later timestamps than the year 9999, where datetime ends.
            written = datetime.fromtimestamp(min(saved.time, 253_402_300_799), UTC).isoformat(timespec="seconds")
            facts: dict[str, Any] = {"rows": saved.rows, "time": written, "bytes": saved.nbytes, "set_aside": saved.is_aside}
            try:
                facts["scores"] = scores_to_json(read_score_reports(saved.load()))
                note = "".join(f"{score['name']} {score['value']:.4f}" for score in facts["scores"][:1] if score.get("value"))
            except CheckpointError as error:
                note = facts["damage"] = str(error)
            note += "  set aside by a rollback" * saved.is_aside
            text = escape_unprintable(f"{saved.rows:>14,} rows  {written}  {saved.nbytes:>11,} bytes  {note}")
            print(json.dumps(facts) if arguments.json else text.rstrip())


def _copy_checkpoint(saved: SavedCheckpoint, place: Path | str) -> None:
    """Copy a checkpoint to a file, or into a folder or model topic (a URL) without checkpoints, where its run can continue."""
    if isinstance(place, Path) and not place.is_dir():
        with as_command_error(f"--copy {place}: ", ModelFileError):
            write_file(place, saved.read())
        return
    with contextlib.closing(open_followed(place)) as present, contextlib.suppress(StreamError):  # the topic may not exist yet
        if present.history():  # checked before a running learner is fenced
            raise UsageError(f"--copy {place}: it has checkpoints already. Name an empty folder, or another model (?name=NAME)")
    with as_command_error(f"--copy {place}: ", ModelFileError), open_checkpoint_store(place, False, sources=[""]) as checkpoints:
        checkpoints.roll_back(saved)


def run_rollback(arguments: argparse.Namespace) -> None:
    """Run ``streamsvm rollback``: make an earlier checkpoint of a folder or topic the newest one, and set later ones aside."""
    place = arguments.path
    with contextlib.closing(open_followed(place)) as models:
        history = models.history()
        target = find_saved(place, history, arguments.to)
        target.load()  # so that an error changes nothing
        with open_checkpoint_store(place, False, sources=[""]) as checkpoints:
            checkpoints.roll_back(target)
    newest = next((saved for saved in history if not saved.is_aside), target)
    undo = f"to undo this: streamsvm rollback {shlex.quote(str(place))} --to {newest.rows}"
    print(escape_unprintable(f"{place}: the next run continues after row {target.rows:,}; {undo}"))


def run_diff(arguments: argparse.Namespace) -> None:
    """Run ``streamsvm diff``: print what differs between two models, or between two checkpoints of a folder or topic."""
    first = load_newest(arguments.path, arguments.trusted, arguments.at)
    second = load_newest(arguments.other or arguments.path, arguments.trusted)
    before, after, vectors = _list_facts(first), _list_facts(second), _compare_vectors(first.model, second.model)
    if arguments.json:
        print(json.dumps({"before": before, "after": after, "vectors": vectors}))
        return
    changes = {}
    for name in before | after:
        a, b = before.get(name, []), after.get(name, [])
        changes[name] = "\n".join([f"- {line}" for line in a if line not in b] + [f"+ {line}" for line in b if line not in a])
    changes["vectors"] = "\n".join(_VECTORS_FORMAT.format_map(one) for one in vectors if len({*one.values()}) > 1)
    _print_facts({name: text for name, text in changes.items() if text} or {"equal": "no difference"})


def _list_facts(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Return the facts about a model that ``inspect`` prints, by name, with all columns, and parameters: each a list of lines."""
    summary = ModelSummary(checkpoint)
    facts = _summarise_model(summary) | {"parameters": str(checkpoint.header.get("parameters", ""))}
    columns = [f"{column.name}: {column.kind}" for column in summary.columns]
    return {name: text.splitlines() for name, text in facts.items()} | {"columns": columns}


def _compare_vectors(*models: Any) -> list[dict[str, int]]:
    """Compare the support vectors of each kernel machine of two models: return the number of each, and the number in common. The
    list is empty if a model cannot be exported.
    """
    try:
        programs = [make_program(model).steps for model in models]
    except ExportError:
        return []
    machines = []
    for steps in zip(*programs, strict=False):
        if all(step.op == "kernel" for step in steps):
            width = min(step.arrays["vectors"].shape[1] for step in steps)  # later columns are new
            before, after = ({row[:width].tobytes() for row in step.arrays["vectors"]} for step in steps)
            machines.append({"before": len(before), "after": len(after), "common": len(before & after)})
    return machines


def run_explain(arguments: argparse.Namespace) -> None:
    """Run ``streamsvm explain``: print how important each column is to a saved model, and explain the predictions of the first
    rows. Without ``--model``, the first of two places is that of the model.

    Raises UsageError if the model is not named, and CommandError if there are no rows, or the model cannot explain them.
    """
    source, place = arguments.source, arguments.path
    if place is None and (isinstance(source, str) or len(source) != 2):
        raise UsageError("which model explains them? streamsvm explain ROWS --model PLACE")
    if place is None:
        place, source = parse_path_or_url(source[0]), source[1]
    checkpoint = load_newest(place, arguments.trusted)
    job = make_labelled_job(source, arguments)
    model: Any = checkpoint.model
    with as_command_error(f"{place} cannot explain {job.source_name}: ", ValueError):
        rows = list(iter_first_rows(job, checkpoint, _MAX_ROWS))
        if not rows:
            raise CommandError(f"{job.source_name} has no rows to explain")
        ranking = measure_importance(model, rows)
        explanations = [explain_one(model, x) for x, _ in rows[: arguments.rows]]
        n_examples = arguments.examples
        nearest_examples = [examples_one(model, x, n_examples) for x, _ in rows[: arguments.rows]] if n_examples else []
    if arguments.json:
        facts: dict[str, Any] = {"mean_contributions": ranking.mean_contributions, "error_increases": ranking.error_increases}
        facts |= {"rows": ranking.n_rows, "error": finite_or_none(ranking.error)}
        facts["explained"] = [{name: value for name, value in vars(one).items() if name != "values"} for one in explanations]
        for explained, examples in zip(facts["explained"], nearest_examples, strict=False):  # empty without --examples
            explained["examples"] = _examples_to_json(examples)
        print(json.dumps({name: _to_text_keys(value) for name, value in facts.items()}, default=str))
        return
    print(escape_unprintable(f"{ranking}\n", newlines=True))
    if not ranking.error_increases and (label := read_saved_label(checkpoint)) is not None:
        text = f"No row has its label ({label}), so how much the error grows without a column is not known.\n"
        print(escape_unprintable(text, newlines=True))
    for number, (explanation, examples) in enumerate(itertools.zip_longest(explanations, nearest_examples), 1):
        nearest = "" if examples is None else f"the nearest examples:\n{examples}\n"
        print(escape_unprintable(f"row {number:,}: {explanation}\n{nearest}", newlines=True))


def _examples_to_json(examples: Examples) -> list[dict[str, Any]]:
    """Convert the stored examples that explain a prediction, the nearest rows of each label, to a list of dicts (label, target,
    distance, values) that JSON can represent.
    """
    return [
        {"label": label, "target": example.target, "distance": example.distance, "values": _to_text_keys(example.values)}
        for label, nearest in examples.nearest.items()
        for example in nearest
    ]


def _to_text_keys(value: Any) -> Any:
    """Return a copy of nested dicts and lists where all keys of dicts are texts, as JSON requires."""
    if isinstance(value, dict):
        return {str(key): _to_text_keys(inner) for key, inner in value.items()}
    return [_to_text_keys(inner) for inner in value] if isinstance(value, list) else value


def run_report(arguments: argparse.Namespace) -> None:
    """Run ``streamsvm report``: write an HTML page about a saved model, and print the path and size of the file.

    Raises UsageError if the file's name does not end in .html, or streamsvm did not write the existing file, and CommandError if
    a row cannot be read, or the file cannot be written.
    """
    path: Path = arguments.into
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--to {path}: the report is a page: name an .html file")
    for name in ("labels", "label", "positive", "format") if not arguments.source else ():
        if (value := getattr(arguments, name)) is not None:
            raise UsageError(f"--{name} {value} is about ROWS: name them, too")
    if "-" in arguments.source:
        raise UsageError("ROWS -: a report reads the rows twice, and standard input has them once: save them in a file")
    rows = {f"ROWS {name}": Path(name) for name in arguments.source}
    check_output_files("--to", [path], {"the model": arguments.path, **rows}, arguments.overwrite)
    checkpoint = load_newest(arguments.path, arguments.trusted)
    scored_rows = _score_rows(arguments, checkpoint) if arguments.source else None
    place = arguments.path
    n_bytes = next((saved.nbytes for saved in list_checkpoints(place)), place.stat().st_size) if isinstance(place, Path) else None
    report = make_report(checkpoint, scored_rows, n_bytes)
    with as_command_error(f"--to {path}: ", ModelFileError), interruptible():
        write_file(path, render_page(report).encode())
    print(escape_unprintable(f"{path}: {path.stat().st_size:,} bytes"))


def _score_rows(arguments: argparse.Namespace, checkpoint: Checkpoint) -> ReportRows:
    """Return the first 1,000 rows of ``report``'s source, or 10,000 if the model has keys, and the scores of the checkpoint's
    model on all labelled rows.
    """
    source = arguments.source[0] if len(arguments.source) == 1 else arguments.source
    job = make_labelled_job(source, arguments)
    name = job.source_name
    rows = read_first_rows(job, checkpoint, _MAX_KEY_ROWS if find_keys(checkpoint.model) else _MAX_ROWS)
    first_rows = [row for row in rows if not isinstance(row, BadRow)]
    if not first_rows:
        reasons = [f"{row.place}: {row.reason}" for row in rows[:1] if isinstance(row, BadRow)]
        raise CommandError(*reasons or [f"{name} has no rows"])
    xs, ys = [row.x for row in first_rows], [row.y for row in first_rows]
    model: Any = checkpoint.model
    positive = find_positive_label(arguments.positive, model, job.text_format)
    if not isinstance(find_learner(model), base.Classifier | base.Regressor):
        return ReportRows(name, xs, ys)
    with scoring_loop(job, checkpoint, model, choose_metrics(model, positive), positive) as loop:
        start_time = time.process_time()
        try:
            progress = loop.run()
        except StreamError:
            if loop.scored or loop.unlabelled < loop.rows:
                raise
            return ReportRows(name, xs, ys)  # no row has a label
        check_any_scored(progress, loop.source.name)
        seconds = time.process_time() - start_time
    return ReportRows(name, xs, ys, progress.scored, progress.scores, count_unscored_rows(progress), seconds)
