"""Writes each step of a program as C: its constant tables, and the statements that compute its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from streamsvm.edge.ensembles import MAX_EXPERT_LOG_ODDS, MAX_EXPERT_TARGET, MIN_DISTANCE, ROUNDING_OFFSET, TIE_TOLERANCE
from streamsvm.edge.program import ExportError, Program
from streamsvm.edge.step import Step, dequantise_vectors
from streamsvm.export.c.library import LANES, can_use_eight_bits, group_vectors, make_sum_function, write_eight_bit_kernel
from streamsvm.export.c.text import MAX_TABLE_FLOAT, TEMPLATES, CSource, fill_template, format_float, get_c_type


def write_step(source: CSource, program: Program, i: int) -> None:
    """Append the C code of step ``i`` (an operation of an exported model) to ``source``: its constant tables, perhaps a function,
    and the statements that compute its output. In C, the output of step i is the array ``v`` with the number i + 1.

    A ``kernel`` and the ``linear`` step after it become one function, which does not store the kernel values. Raises ExportError
    if the step is not supported in C.
    """
    step, out = program.steps[i], i + (2 if is_fused(program, i) else 1)
    if step.op not in _STEP_WRITERS:
        raise ExportError(f"a step {step.op!r} is not supported in C: model.to_budget(500) makes a learner, which is")
    _STEP_WRITERS[step.op](source, program, i, f"v{step.inputs[0]}", f"v{out}")


def is_fused(program: Program, i: int) -> bool:
    """Return whether step ``i`` of an exported model is a kernel whose values are read by the next step alone, a weighted sum.
    The C code then computes both in one function, without storing the kernel values.
    """
    readers = [number for number, step in enumerate(program.steps) if i + 1 in step.inputs]
    answer = program.answer
    return (
        program.steps[i].op == "kernel"
        and readers == [i + 1]
        and program.steps[i + 1].op == "linear"
        and i + 1 not in (answer.decision, answer.choice)
    )


# Each function below writes step i, from the C array x to the array out.


def _make_loop(n: int, statement: str) -> str:
    """Return a C ``for`` loop that executes ``statement`` for j from 0 to n - 1."""
    return f"for (j = 0; j < {n}; j++) {statement}"


def _write_impute(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for an ``impute`` step (the operation ``i`` of an exported model): a call that copies the array
    ``x`` to ``out`` with missing numbers replaced by 0.
    """
    source.used.add("fill")
    source.body.append(f"@_fill({x}, {program.widths[i + 1]}, {out});")


def _write_fill(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``fill`` step (the operation ``i`` of an exported model): a table of values, and a loop
    that copies the array ``x`` to ``out`` with missing numbers replaced by them.
    """
    values = source.add_table(f"values{i}", program.steps[i].arrays["values"])
    source.body.append(_make_loop(program.widths[i + 1], f"{out}[j] = {x}[j] == {x}[j] ? {x}[j] : {values}[j];"))


def _write_scale(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``scale`` step (the operation ``i`` of an exported model): constant tables, and a call
    that writes (x - location) / spread, clipped to a bound, to the array ``out``. The location is split into two floats, so that
    its rounding error is not lost.
    """
    step, n = program.steps[i], program.widths[i + 1]
    source.used.add("scale")
    location, spread = step.arrays["location"], step.arrays["spread"]
    first = location.astype(np.float32)
    tables = [
        source.add_table(f"location{i}", first),
        source.add_table(f"rest{i}", location - first, "of the location, that float has not"),
        source.add_table(f"factor{i}", np.divide(1.0, spread, out=np.zeros(len(spread)), where=spread > 0.0), "1 / spread"),
    ]
    bound = MAX_TABLE_FLOAT if step.options["bound"] is None else step.options["bound"]
    source.body.append(f"@_scale({x}, {', '.join(tables)}, {format_float(bound)}, {n}, {out});")


def _write_cycles(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``cycles`` step (the operation ``i`` of an exported model): tables of the periods and
    offsets, and a call that writes the array ``x`` to ``out`` with times replaced by the sine of their phase.
    """
    source.used |= {"circle", "cycles"}
    periods, offsets = (source.add_table(f"{name}{i}", program.steps[i].arrays[name]) for name in ("periods", "offsets"))
    source.body.append(f"@_cycles({x}, {periods}, {offsets}, {program.widths[i + 1]}, {out});")


def _write_select(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``select`` step (the operation ``i`` of an exported model): a table of column indices,
    and a loop that copies these columns of the array ``x`` to ``out``.
    """
    columns = source.add_table(f"columns{i}", program.steps[i].arrays["columns"])
    source.body.append(_make_loop(program.widths[i + 1], f"{out}[j] = {x}[{columns}[j]];"))


def _write_clip(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``clip`` step (the operation ``i`` of an exported model): a loop that copies the array
    ``x`` to ``out`` with the numbers clipped to +- a bound.
    """
    bound = format_float(program.steps[i].options["bound"])
    clipped = f"{x}[j] > {bound} ? {bound} : {x}[j] < -{bound} ? -{bound} : {x}[j]"
    source.body.append(_make_loop(program.widths[i + 1], f"{out}[j] = {clipped};"))


def _write_log(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``log`` step (the operation ``i`` of an exported model): a loop that writes the
    logarithms of the array ``x``, with small numbers raised to a positive limit, to ``out``.
    """
    source.used.add("log")
    least = format_float(program.steps[i].options["least"])
    source.body.append(_make_loop(program.widths[i + 1], f"{out}[j] = @_log({x}[j] > {least} ? {x}[j] : {least});"))


def _write_hinges(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``hinges`` step (the operation ``i`` of an exported model): a call that writes 2 or 4
    piecewise linear functions of each number of the array ``x`` to ``out``.
    """
    source.used.add("hinges")
    functions, knot = program.steps[i].options["functions"], format_float(program.steps[i].options["knot"])
    source.body.append(f"@_hinges({x}, {program.widths[i + 1] // functions}, {functions}, {knot}, {out});")


class _VectorSums(NamedTuple):
    """C for the sums over features between x and a group of vectors."""

    declarations: list[str]
    conversions: list[str]
    """Statements that convert x to the units of quantised vectors."""
    call: str
    """The call that writes the sums of the group from vector ``first`` on."""


def _write_vectors(source: CSource, step: Step, i: int, kind: str) -> _VectorSums:
    """Append the support vectors of step ``i`` of an exported model as a constant table to ``source``, and a C function that
    computes sums with them, such as squared distances (``kind``, see `make_sum_function`). Returns the C declarations and
    statements that call the function.
    """
    vectors, features = step.arrays["vectors"], step.arrays["vectors"].shape[1]
    grouped = group_vectors(vectors)
    table = source.add_table(f"vectors{i}", grouped, f"in groups of {LANES}, feature by feature")
    name, text = make_sum_function(kind, get_c_type(grouped))
    source.functions.setdefault(name, text)
    call = f"@_{name}(x, {table} + first * {features}, {features}, n, sums);"
    if "scale" not in step.arrays:
        return _VectorSums([], [], call)
    unit = step.arrays["scale"]
    factor, comment = (1.0 / unit, "1 / unit") if kind == "squares" else (unit, "unit")
    factors = source.add_table(f"unit{i}", factor, comment)
    shifted = f"(x[j] - {source.add_table(f'middle{i}', step.arrays['center'])}[j])" if "center" in step.arrays else "x[j]"
    squares = f"{source.add_table(f'squares{i}', unit * unit, 'unit squared')}, " if kind == "squares" else ""
    return _VectorSums(
        [f"float scaled[{max(features, 1)}];"],
        [_make_loop(features, f"scaled[j] = {shifted} * {factors}[j];")],
        call.replace("(x, ", "(scaled, ").replace(f", {features}, n", f", {squares}{features}, n"),
    )


def _write_kernel(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``kernel`` step (the operation ``i`` of an exported model): a function, and its call,
    that writes kernel values between the row ``x`` and all vectors to ``out``, or directly their weighted sums if the next step
    computes these.
    """
    if is_fused(program, i) and can_use_eight_bits(program, i):
        write_eight_bit_kernel(source, program, i, x, out)
        return
    step, m = program.steps[i], program.widths[i + 1]
    vectors = _write_vectors(source, step, i, "squares" if step.options["kind"] == "rbf" else "products")
    if is_fused(program, i):
        reader = _write_weighted_sum(source, program.steps[i + 1], i + 1)
    else:
        reader = _WeightedSum([], [], ["for (i = 0; i < n; i++) out[first + i] = sums[i];"], [])
    counters = ["first", "i"] + (["k"] if reader.before else []) + (["j"] if vectors.conversions else [])
    outputs = len(program.steps[i + 1].arrays["biases"]) if reader.declarations else 0
    source.count_stack(LANES * (1 + outputs) + (step.arrays["vectors"].shape[1] if vectors.conversions else 0))
    lines = [
        *vectors.declarations,
        *reader.declarations,
        f"float sums[{LANES}];",
        f"int {', '.join(counters)};",
        *vectors.conversions,
        *reader.before,
        f"for (first = 0; first < {m}; first += {LANES}) {{",
        f"    const int n = {m} - first < {LANES} ? {m} - first : {LANES};",
        f"    {vectors.call}",
        f"    for (i = 0; i < {LANES}; i++) sums[i] = {_make_kernel_expression(source, step)};",
        *(f"    {line}" for line in reader.inside),
        "}",
        *reader.after,
    ]
    head = f"static void @_kernel{i}(const float *@UP_RESTRICT x, float *@UP_RESTRICT out)"
    source.functions[f"kernel{i}"] = "\n".join([head, "{", *(f"    {line}" for line in lines), "}"])
    source.body.append(f"@_kernel{i}({x}, {out});")


class _WeightedSum(NamedTuple):
    """C that uses kernel values, group by group: declarations, and statements before, inside and after the loop over groups."""

    declarations: list[str]
    before: list[str]
    inside: list[str]
    after: list[str]


def _write_weighted_sum(source: CSource, step: Step, i: int) -> _WeightedSum:
    """Append the weights and biases of step ``i`` of an exported model, a weighted sum of kernel values, as constant tables to
    ``source``. Returns the C statements that initialise the sums, add up a group of kernel values, and finish.
    """
    weights, (outputs, m) = step.arrays["weights"], step.arrays["weights"].shape
    biases = source.add_table(f"biases{i}", step.arrays["biases"])
    if outputs > LANES:  # the loop over outputs is long enough for SIMD, and partial sums would take much of the stack
        table = source.add_table(f"weights{i}", weights.T.ravel(), "vector by vector")
        before = [f"for (k = 0; k < {outputs}; k++) out[k] = {biases}[k];"]
        inside = ["for (i = 0; i < n; i++)"]
        inside.append(f"    for (k = 0; k < {outputs}; k++) out[k] += {table}[(first + i) * {outputs} + k] * sums[i];")
        return _WeightedSum([], before, inside, [])
    padded_m = -(-m // LANES) * LANES
    padded = np.zeros((outputs, padded_m))
    padded[:, :m] = weights
    table = source.add_table(f"weights{i}", padded)
    before = [f"for (i = 0; i < {outputs * LANES}; i++) parts[i] = 0.0f;"]
    inside = [f"for (k = 0; k < {outputs}; k++)"]
    inside.append(f"    for (i = 0; i < {LANES}; i++) parts[k * {LANES} + i] += {table}[k * {padded_m} + first + i] * sums[i];")
    after = [f"for (k = 0; k < {outputs}; k++) {{", f"    float sum = {biases}[k];"]
    after += [f"    for (i = 0; i < {LANES}; i++) sum += parts[k * {LANES} + i];", "    out[k] = sum;", "}"]
    return _WeightedSum([f"float parts[{outputs * LANES}];"], before, inside, after)


def _make_kernel_expression(source: CSource, step: Step) -> str:
    """Return the C expression that computes a kernel value from ``sums[i]``, the squared distance or the inner product of a row
    and a vector. Functions that it calls are added to ``source``.
    """
    o = step.options
    if o["kind"] == "rbf":
        source.used.add("fade")
        return f"@_fade({format_float(o['gamma'])} * sums[i])"
    if o["kind"] == "linear":
        return "sums[i]"
    product = f"{format_float(o['gamma'])} * sums[i] + {format_float(o['coef0'])}"
    if o["kind"] == "sigmoid":
        source.used.add("tanh")
        return f"@_tanh({product})"
    source.used.add("power")
    return f"@_power({product}, {o['degree']})"


def _write_fourier(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``fourier`` step (the operation ``i`` of an exported model): a table of frequency
    vectors, and a call that writes random Fourier features of the row ``x`` to the array ``out``.
    """
    step, m = program.steps[i], program.widths[i + 1] // 2
    frequencies = dequantise_vectors(step) * step.options["factor"]
    table = source.add_table(f"vectors{i}", frequencies, "times the factor")
    source.used |= {"circle", "fourier"}
    source.body.append(f"@_fourier({x}, {table}, {m}, {frequencies.shape[1]}, {out});")


def _write_linear(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``linear`` step (the operation ``i`` of an exported model): tables of weights and biases,
    and a call that writes weights times ``x`` plus biases to the array ``out``. Does nothing if `_write_kernel` has written it.
    """
    if i and program.steps[i].inputs == (i,) and is_fused(program, i - 1):
        return  # `_write_kernel` has written it
    step = program.steps[i]
    weights, biases = (source.add_table(f"{name}{i}", step.arrays[name]) for name in ("weights", "biases"))
    source.used.add("linear")
    source.body.append(
        f"@_linear({x}, {weights}, {biases}, {step.arrays['weights'].shape[1]}, {len(step.arrays['biases'])}, {out});"
    )


def _write_concat(source: CSource, program: Program, i: int, x: str, out: str) -> None:  # noqa: ARG001 - it has several inputs
    """Append C code to ``source`` for a ``concat`` step (the operation ``i`` of an exported model): loops that copy all its input
    arrays, one after the other, to the array ``out``. ``x`` is not used.
    """
    start = 0
    for value in program.steps[i].inputs:
        source.body.append(_make_loop(program.widths[value], f"{out}[{start} + j] = v{value}[j];"))
        start += program.widths[value]


def _write_votes(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``votes`` step (the operation ``i`` of an exported one-vs-one classifier): a call that
    counts the votes for each class from the decision values of class pairs, ``x``, and writes them to the array ``out``.
    """
    source.used.add("votes")
    source.body.append(f"@_votes({x}, {program.steps[i].options['classes']}, {out});")


def _write_pair_scores(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``pair_scores`` step (the operation ``i`` of an exported one-vs-one classifier): a call
    that scores each class by its votes and, to break ties, the decision values of its pairs, ``x``, and writes them to ``out``.
    """
    classes = program.steps[i].options["classes"]
    source.used.add("pair_scores")
    source.count_stack(classes)
    source.body += ["{", f"    float sums[{classes}];", f"    @_pair_scores({x}, {classes}, sums, {out});", "}"]


# Operations of ensembles (see `streamsvm.edge.ensembles`) -----------------------------------------------------------------------


def _write_experts(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for an ``experts`` step (the operation ``i`` of an exported ensemble): tables of weights, and
    statements that combine the members' predictions, the array ``x``, by votes and stacking models, and write to ``out``.
    """
    step = program.steps[i]
    votes, outputs = step.arrays["votes"], step.options["outputs"]
    votes_table = source.add_table(f"votes{i}", votes / votes.sum())
    values: dict[str, Any] = {"x": x, "out": out, "votes": votes_table, "n": len(votes), "k": outputs}
    values |= {"best": step.options["best"], "follows": step.options["follows"], "alike": format_float(TIE_TOLERANCE)}
    values["at"] = values["alike"] if step.options["follows"] else format_float(0.0)
    weights, shares = step.arrays["weights"], step.arrays["shares"] / step.arrays["shares"].sum()
    if step.options["task"] == "regression":
        template = TEMPLATES["stacked_numbers"]
        values |= {"weights": source.add_table(f"stacks{i}", weights), "shares": source.add_table(f"shares{i}", shares)}
        corrects = step.arrays["corrects"].astype(np.int32)
        values |= {"corrects": source.add_table(f"corrects{i}", corrects), "stacks": len(weights)}
        values |= {"said": format_float(MAX_EXPERT_TARGET), "width": weights.shape[1]}
    else:
        template = TEMPLATES["stacked_decision"] if outputs == 1 else TEMPLATES["stacked_decisions"]
        values["weights"] = source.add_table(f"stacks{i}", shares @ weights, "of both stacks, by their shares")
        values["said"] = format_float(MAX_EXPERT_LOG_ODDS)
        if outputs == 1:
            source.used |= {"exp", "log"}
            prior, share = step.options["prior"], step.options["share"]
            values |= {"for": format_float(prior * share), "against": format_float(prior * (1.0 - share))}
            values["kept"] = format_float(1.0 - prior)
    source.count_stack(len(votes) if step.options["task"] == "regression" else 2 * outputs if outputs > 1 else 0)
    source.body += fill_template(template, values).split("\n")


def _write_forest(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``forest`` step (the operation ``i`` of an exported model): tables of the decision trees'
    nodes, and a function with its call that predicts the row ``x`` and writes each label's share of the votes, or the mean of the
    leaves, to the array ``out``.
    """
    step = program.steps[i]
    floats = [name for name in ("thresholds", "means") if name in step.arrays]
    arrays = {name: _to_smallest_integers(array) for name, array in step.arrays.items() if name not in {*floats, "votes"}}
    arrays |= {name: step.arrays[name] for name in floats} | {"votes": step.arrays["votes"] / step.arrays["votes"].sum()}
    values: dict[str, Any] = {"leaf": TEMPLATES["counted_leaf"] if step.options["labels"] else TEMPLATES["mean_leaf"]}
    values |= {name: source.add_table(f"{name}{i}", array) for name, array in arrays.items()}
    values |= {"i": i, "trees": len(arrays["roots"]), "width": step.options["labels"] or 1}
    source.functions[f"forest{i}"] = fill_template(TEMPLATES["forest"], values)
    source.body.append(f"@_forest{i}({x}, {out});")


def _to_smallest_integers(array: np.ndarray) -> np.ndarray:
    """Convert an array of integers of at least -1 to the smallest signed type (int8, int16 ...) that can hold them."""
    return array.astype(np.result_type(np.int8, np.min_scalar_type(-int(array.max(initial=0)) - 1)))


_ADD_TO_LABEL = "out[$targets$[which[i]]] += near[i] / total;"
_ADD_TO_MEAN = "out[0] += near[i] / total * $targets$[which[i]];"


def _write_neighbours(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Append C code to ``source`` for a ``neighbours`` step (the operation ``i`` of an exported model): tables of the stored
    rows, and a function with its call that predicts the row ``x`` by its k nearest neighbours and writes each label's share of
    the votes, or the mean target, to the array ``out``.
    """
    step, options = program.steps[i], program.steps[i].options
    vectors, targets, labels = step.arrays["vectors"], step.arrays["targets"], options["labels"]
    (n, features), nearest = vectors.shape, min(options["neighbours"], len(vectors))
    grouped = group_vectors(vectors)
    arguments = [f"{source.add_table(f'vectors{i}', grouped, f'in groups of {LANES}, feature by feature')} + first * {features}"]
    arguments += [
        source.add_table(f"{name}{i}", step.arrays[name]) for name in ("scale", "feature_weights") if name in step.arrays
    ]
    weights = source.add_table(f"weights{i}", step.arrays["weights"])
    if labels:
        targets = targets.astype(np.min_scalar_type(-labels))
    function, text = make_sum_function("ways", get_c_type(grouped))
    source.functions.setdefault(function, text)
    source.count_stack(LANES + 2 * nearest)
    max_difference = format_float(options["max_difference"])
    values = {
        "call": f"@_{function}(x, {', '.join(arguments)}, {max_difference}, {features}, size, sums)",
        "share": _ADD_TO_LABEL if labels else _ADD_TO_MEAN,
        "i": i,
        "k": nearest,
        "n": n,
        "lanes": LANES,
        "far": format_float(MAX_TABLE_FLOAT),
        "nearest": format_float(MIN_DISTANCE),
        "offset": format_float(options["offset"]),
        "power": options["power"],
        "weights": weights,
        "targets": source.add_table(f"targets{i}", targets),
        "width": program.widths[i + 1],
    }
    source.functions["rounded"] = fill_template(TEMPLATES["rounded"], {"rounding": format_float(float(ROUNDING_OFFSET))})
    source.functions[f"neighbours{i}"] = fill_template(TEMPLATES["neighbours"], values)
    source.body.append(f"@_neighbours{i}({x}, {out});")


_STEP_WRITERS: Mapping[str, Callable[[CSource, Program, int, str, str], None]] = {
    "impute": _write_impute,
    "cycles": _write_cycles,
    "fill": _write_fill,
    "scale": _write_scale,
    "select": _write_select,
    "clip": _write_clip,
    "hinges": _write_hinges,
    "kernel": _write_kernel,
    "fourier": _write_fourier,
    "neighbours": _write_neighbours,
    "forest": _write_forest,
    "log": _write_log,
    "linear": _write_linear,
    "concat": _write_concat,
    "votes": _write_votes,
    "pair_scores": _write_pair_scores,
    "experts": _write_experts,
}
