"""Each step of a program as C, an ensemble's answer too: tables, and statements that compute its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from streamsvm.edge.ensembles import MAX_EXPERT_LOG_ODDS, MAX_EXPERT_TARGET, MIN_DISTANCE, ROUNDING_OFFSET, TIE_TOLERANCE
from streamsvm.edge.program import ExportError, Program
from streamsvm.edge.step import Step, dequantise_vectors
from streamsvm.export.c.library import LANES, eight_bits, in_groups, sums_function, takes_eight_bits
from streamsvm.export.c.text import LARGEST, TEMPLATES, CSource, fill_marks, number, type_of


def experts(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Write the step ``experts``, as `streamsvm.edge.operations` describes it."""
    step = program.steps[i]
    votes, outputs = step.arrays["votes"], step.options["outputs"]
    place = source.keep(f"votes{i}", votes / votes.sum())
    names: dict[str, Any] = {"x": x, "out": out, "votes": place, "n": len(votes), "k": outputs}
    names |= {"best": step.options["best"], "follows": step.options["follows"], "alike": number(TIE_TOLERANCE)}
    names["at"] = names["alike"] if step.options["follows"] else number(0.0)
    weights, shares = step.arrays["weights"], step.arrays["shares"] / step.arrays["shares"].sum()
    if step.options["task"] == "regression":
        text = TEMPLATES["stacked_numbers"]
        names |= {"weights": source.keep(f"stacks{i}", weights), "shares": source.keep(f"shares{i}", shares)}
        names |= {"corrects": source.keep(f"corrects{i}", step.arrays["corrects"].astype(np.int32)), "stacks": len(weights)}
        names |= {"said": number(MAX_EXPERT_TARGET), "width": weights.shape[1]}
    else:
        text = TEMPLATES["stacked_decision"] if outputs == 1 else TEMPLATES["stacked_decisions"]
        names |= {
            "weights": source.keep(f"stacks{i}", shares @ weights, "of both stacks, by their shares"),
            "said": number(MAX_EXPERT_LOG_ODDS),
        }
        if outputs == 1:
            source.used |= {"exp", "log"}
            prior, share = step.options["prior"], step.options["share"]
            names |= {"kept": number(1.0 - prior), "for": number(prior * share), "against": number(prior * (1.0 - share))}
    source.takes(len(votes) if step.options["task"] == "regression" else 2 * outputs if outputs > 1 else 0)
    source.body += fill_marks(text, names).split("\n")


def forest(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Write the step ``forest``, as `streamsvm.edge.ensembles` describes it: a function of its own."""
    step = program.steps[i]
    floats = [name for name in ("thresholds", "means") if name in step.arrays]
    arrays = {name: _smallest_integers(array) for name, array in step.arrays.items() if name not in {*floats, "votes"}}
    arrays |= {name: step.arrays[name] for name in floats} | {"votes": step.arrays["votes"] / step.arrays["votes"].sum()}
    names: dict[str, Any] = {"leaf": TEMPLATES["counted_leaf"] if step.options["labels"] else TEMPLATES["mean_leaf"]}
    names |= {name: source.keep(f"{name}{i}", array) for name, array in arrays.items()}
    names |= {"i": i, "trees": len(arrays["roots"]), "width": step.options["labels"] or 1}
    source.functions[f"forest{i}"] = fill_marks(TEMPLATES["forest"], names)
    source.body.append(f"@_forest{i}({x}, {out});")


def _smallest_integers(array: np.ndarray) -> np.ndarray:
    """Return whole numbers in the smallest signed type."""
    return array.astype(np.result_type(np.int8, np.min_scalar_type(-int(array.max(initial=0)) - 1)))


def add_step(source: CSource, program: Program, number_of: int) -> None:
    """Write a step. Value i is the array ``vi``.

    A ``linear`` step behind a ``kernel`` is one function with it, which needs no room for the kernel values.
    """
    step, out = program.steps[number_of], number_of + (2 if is_fused(program, number_of) else 1)
    if step.op not in _STEPS:
        raise ExportError(f"a step {step.op!r} has no form in C: model.to_budget(500) makes a learner of a forest, which has")
    _STEPS[step.op](source, program, number_of, f"v{step.inputs[0]}", f"v{out}")


def is_fused(program: Program, number_of: int) -> bool:
    """Whether a step is a ``kernel`` that one ``linear`` step alone reads, the next one."""
    readers = [place for place, step in enumerate(program.steps) if number_of + 1 in step.inputs]
    answer = program.answer
    return (
        program.steps[number_of].op == "kernel"
        and readers == [number_of + 1]
        and program.steps[number_of + 1].op == "linear"
        and number_of + 1 not in (answer.decision, answer.choice)
    )


def _each_loop(n: int, statement: str) -> str:
    return f"for (j = 0; j < {n}; j++) {statement}"


def _write_fill(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    source.used.add("fill")
    source.body.append(f"@_fill({x}, {program.widths[i + 1]}, {out});")


def _write_scale(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    step, n = program.steps[i], program.widths[i + 1]
    source.used.add("scale")
    location, spread = step.arrays["location"], step.arrays["spread"]
    first = location.astype(np.float32)
    names = [
        source.keep(f"location{i}", first),
        source.keep(f"rest{i}", location - first, "of the location, that float has not"),
        source.keep(f"factor{i}", np.divide(1.0, spread, out=np.zeros(len(spread)), where=spread > 0.0), "1 / spread"),
    ]
    bound = LARGEST if step.options["bound"] is None else step.options["bound"]
    source.body.append(f"@_scale({x}, {', '.join(names)}, {number(bound)}, {n}, {out});")


def _write_select(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    columns = source.keep(f"columns{i}", program.steps[i].arrays["columns"])
    source.body.append(_each_loop(program.widths[i + 1], f"{out}[j] = {x}[{columns}[j]];"))


def _write_clip(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    bound = number(program.steps[i].options["bound"])
    clipped = f"{x}[j] > {bound} ? {bound} : {x}[j] < -{bound} ? -{bound} : {x}[j]"
    source.body.append(_each_loop(program.widths[i + 1], f"{out}[j] = {clipped};"))


def _write_log(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    source.used.add("log")
    least = number(program.steps[i].options["least"])
    source.body.append(_each_loop(program.widths[i + 1], f"{out}[j] = @_log({x}[j] > {least} ? {x}[j] : {least});"))


def _write_hinges(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    source.used.add("hinges")
    functions, knot = program.steps[i].options["functions"], number(program.steps[i].options["knot"])
    source.body.append(f"@_hinges({x}, {program.widths[i + 1] // functions}, {functions}, {knot}, {out});")


def _write_vectors(source: CSource, step: Step, i: int, kind: str) -> tuple[list[str], str]:
    """Write a step's vectors; return statements that bring x to their units, and a call that sums over features of a group."""
    vectors, features = step.arrays["vectors"], step.arrays["vectors"].shape[1]
    laid = in_groups(vectors)
    place = source.keep(f"vectors{i}", laid, f"in groups of {LANES}, feature by feature")
    name, text = sums_function(kind, type_of(laid))
    source.functions.setdefault(name, text)
    call = f"@_{name}(x, {place} + first * {features}, {features}, n, sums);"
    if "scale" not in step.arrays:
        return [], call
    unit = step.arrays["scale"]
    given = [f"float scaled[{max(features, 1)}];"]
    factor = source.keep(f"unit{i}", 1.0 / unit if kind == "squares" else unit, "1 / unit" if kind == "squares" else "unit")
    away = f"(x[j] - {source.keep(f'middle{i}', step.arrays['center'])}[j])" if "center" in step.arrays else "x[j]"
    given.append(_each_loop(features, f"scaled[j] = {away} * {factor}[j];"))
    extra = f"{source.keep(f'squares{i}', unit * unit, 'unit squared')}, " if kind == "squares" else ""
    return given, call.replace("(x, ", "(scaled, ").replace(f", {features}, n", f", {extra}{features}, n")


def _write_kernel(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    if is_fused(program, i) and takes_eight_bits(program, i):
        eight_bits(source, program, i, x, out)
        return
    step, m = program.steps[i], program.widths[i + 1]
    given, call = _write_vectors(source, step, i, "squares" if step.options["kind"] == "rbf" else "products")
    if is_fused(program, i):
        room, begin, use, end = _write_sums(source, program.steps[i + 1], i + 1)
    else:
        room, begin, use, end = [], [], ["for (i = 0; i < n; i++) out[first + i] = sums[i];"], []
    declared = [line for line in given if line.startswith("float")]
    counters = ["first", "i"] + (["k"] if begin else []) + (["j"] if given else [])
    outputs = len(program.steps[i + 1].arrays["biases"]) if room else 0
    source.takes(LANES * (1 + outputs) + (step.arrays["vectors"].shape[1] if given else 0))
    lines = [
        *declared,
        *room,
        f"float sums[{LANES}];",
        f"int {', '.join(counters)};",
        *(line for line in given if line not in declared),
        *begin,
        f"for (first = 0; first < {m}; first += {LANES}) {{",
        f"    const int n = {m} - first < {LANES} ? {m} - first : {LANES};",
        f"    {call}",
        f"    for (i = 0; i < {LANES}; i++) sums[i] = {_value_expression(source, step)};",
        *(f"    {line}" for line in use),
        "}",
        *end,
    ]
    head = f"static void @_kernel{i}(const float *@UP_RESTRICT x, float *@UP_RESTRICT out)"
    source.functions[f"kernel{i}"] = "\n".join([head, "{", *(f"    {line}" for line in lines), "}"])
    source.body.append(f"@_kernel{i}({x}, {out});")


def _write_sums(source: CSource, step: Step, i: int) -> tuple[list[str], list[str], list[str], list[str]]:
    """Write the sums of a ``linear`` step over kernel values: arrays, and statements before, in and behind the loop of groups."""
    weights, (outputs, m) = step.arrays["weights"], step.arrays["weights"].shape
    biases = source.keep(f"biases{i}", step.arrays["biases"])
    if outputs > LANES:  # a loop over outputs is long enough; partial sums of all would take much of the stack
        place = source.keep(f"weights{i}", weights.T.ravel(), "vector by vector")
        begin = [f"for (k = 0; k < {outputs}; k++) out[k] = {biases}[k];"]
        use = ["for (i = 0; i < n; i++)"]
        use.append(f"    for (k = 0; k < {outputs}; k++) out[k] += {place}[(first + i) * {outputs} + k] * sums[i];")
        return [], begin, use, []
    padded = -(-m // LANES) * LANES
    filled = np.zeros((outputs, padded))
    filled[:, :m] = weights
    place = source.keep(f"weights{i}", filled)
    begin = [f"for (i = 0; i < {outputs * LANES}; i++) parts[i] = 0.0f;"]
    use = [f"for (k = 0; k < {outputs}; k++)"]
    use.append(f"    for (i = 0; i < {LANES}; i++) parts[k * {LANES} + i] += {place}[k * {padded} + first + i] * sums[i];")
    end = [f"for (k = 0; k < {outputs}; k++) {{", f"    float sum = {biases}[k];"]
    end += [f"    for (i = 0; i < {LANES}; i++) sum += parts[k * {LANES} + i];", "    out[k] = sum;", "}"]
    return [f"float parts[{outputs * LANES}];"], begin, use, end


def _value_expression(source: CSource, step: Step) -> str:
    """Return the expression of a kernel value from ``sums[i]``."""
    o = step.options
    if o["kind"] == "rbf":
        source.used.add("fade")
        return f"@_fade({number(o['gamma'])} * sums[i])"
    if o["kind"] == "linear":
        return "sums[i]"
    product = f"{number(o['gamma'])} * sums[i] + {number(o['coef0'])}"
    if o["kind"] == "sigmoid":
        source.used.add("tanh")
        return f"@_tanh({product})"
    source.used.add("power")
    return f"@_power({product}, {o['degree']})"


def _write_fourier(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    step, m = program.steps[i], program.widths[i + 1] // 2
    angles = dequantise_vectors(step) * step.options["factor"]
    place = source.keep(f"vectors{i}", angles, "times the factor")
    source.used |= {"circle", "fourier"}
    source.body.append(f"@_fourier({x}, {place}, {m}, {angles.shape[1]}, {out});")


def _write_linear(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    if i and program.steps[i].inputs == (i,) and is_fused(program, i - 1):
        return  # it is a part of the kernel before it
    step = program.steps[i]
    weights, biases = (source.keep(f"{name}{i}", step.arrays[name]) for name in ("weights", "biases"))
    source.used.add("linear")
    source.body.append(
        f"@_linear({x}, {weights}, {biases}, {step.arrays['weights'].shape[1]}, {len(step.arrays['biases'])}, {out});"
    )


def _write_join(source: CSource, program: Program, i: int, x: str, out: str) -> None:  # noqa: ARG001 - of several values
    begin = 0
    for part in program.steps[i].inputs:
        source.body.append(_each_loop(program.widths[part], f"{out}[{begin} + j] = v{part}[j];"))
        begin += program.widths[part]


def _write_votes(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    source.used.add("votes")
    source.body.append(f"@_votes({x}, {program.steps[i].options['classes']}, {out});")


def _write_pair_scores(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    classes = program.steps[i].options["classes"]
    source.used.add("pair_scores")
    source.takes(classes)
    source.body += ["{", f"    float sums[{classes}];", f"    @_pair_scores({x}, {classes}, sums, {out});", "}"]


def neighbours(source: CSource, program: Program, i: int, x: str, out: str) -> None:
    """Write the step ``neighbours``, as `streamsvm.edge.operations` describes it: a function of its own."""
    step, options = program.steps[i], program.steps[i].options
    vectors, targets, labels = step.arrays["vectors"], step.arrays["targets"], options["labels"]
    (n, features), nearest = vectors.shape, min(options["neighbours"], len(vectors))
    laid = in_groups(vectors)
    given = [f"{source.keep(f'vectors{i}', laid, f'in groups of {LANES}, feature by feature')} + first * {features}"]
    given += [source.keep(f"{name}{i}", step.arrays[name]) for name in ("scale", "feature_weights") if name in step.arrays]
    weights = source.keep(f"weights{i}", step.arrays["weights"])
    if labels:
        targets = targets.astype(np.min_scalar_type(-labels))
    name, text = sums_function("ways", type_of(laid))
    source.functions.setdefault(name, text)
    source.takes(LANES + 2 * nearest)
    names = {
        "call": f"@_{name}(x, {', '.join(given)}, {number(options['max_difference'])}, {features}, size, sums)",
        "share": _SHARE if labels else _MEAN,
        "i": i,
        "k": nearest,
        "n": n,
        "lanes": LANES,
        "far": number(LARGEST),
        "nearest": number(MIN_DISTANCE),
        "offset": number(options["offset"]),
        "power": options["power"],
        "weights": weights,
        "targets": source.keep(f"targets{i}", targets),
        "width": program.widths[i + 1],
    }
    source.functions["rounded"] = fill_marks(TEMPLATES["rounded"], {"rounding": number(float(ROUNDING_OFFSET))})
    source.functions[f"neighbours{i}"] = fill_marks(TEMPLATES["neighbours"], names)
    source.body.append(f"@_neighbours{i}({x}, {out});")


_SHARE = "out[$targets$[which[i]]] += near[i] / total;"
_MEAN = "out[0] += near[i] / total * $targets$[which[i]];"


_STEPS: Mapping[str, Callable[[CSource, Program, int, str, str], None]] = {
    "impute": _write_fill,
    "scale": _write_scale,
    "select": _write_select,
    "clip": _write_clip,
    "hinges": _write_hinges,
    "kernel": _write_kernel,
    "fourier": _write_fourier,
    "neighbours": neighbours,
    "forest": forest,
    "log": _write_log,
    "linear": _write_linear,
    "concat": _write_join,
    "votes": _write_votes,
    "pair_scores": _write_pair_scores,
    "experts": experts,
}
