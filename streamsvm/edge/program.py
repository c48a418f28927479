"""A model as a program: numbered values, each computed from earlier ones, and how they answer.

Value 0 is the input row, one number for each column. A number that is not finite is missing, and is NaN from then on. Step i
computes value i + 1 from earlier values. A value has a width: for n rows, it is float64 [n, width]. A program is data:
`streamsvm.edge.operations` executes it with numpy, and `streamsvm.export` writes it as C, ONNX or JSON.

===========  ========================================================================================================
step         its value
===========  ========================================================================================================
impute       missing numbers become 0; others are rounded to float32 if ``float32``
scale        (x - location) / spread, between -bound and bound; 0 where spread is 0; missing numbers stay missing
select       the numbers at ``columns``
clip         x between -bound and bound
hinges       for each number x: x, |x| - knot, and with 4 ``functions`` max(x - knot, 0) and max(-x - knot, 0)
kernel       values of the kernel ``kind`` with ``vectors``; integers are multiplied by ``scale``, then ``center`` is added
fourier      the cosines of ``factor`` times the products with ``vectors``, then the sines
trees        the sum over trees of the expansion in the leaf that x goes to, as `streamsvm.edge.operations` describes
neighbours   the share of each label in the votes of the nearest ``vectors``, or the mean of their targets, as
             `streamsvm.edge.ensembles` describes
forest       the share of each label in the votes of trees, or the mean of their leaves, as described there
log          the logarithm of x, or of ``least`` where x is less
linear       ``weights`` x + ``biases``
concat       several values, one after the other
votes        from a number for each pair of ``classes``, 0 or more for the second: the votes that each class has
pair_scores  from the same, above 0 for the second: those votes, and less than half a vote for the sum of the numbers
experts      the answer of an ensemble to what its experts say, as `streamsvm.edge.ensembles` describes
===========  ========================================================================================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.edge.calibration import CALIBRATIONS, LogOddsCalibration, MarginCalibration
from streamsvm.edge.operations import check_step, evaluate_step
from streamsvm.edge.step import ExportError, Step, is_number

__all__ = ["Answer", "CategoryTable", "Column", "ExportError", "Program", "Step"]

Name = str | int | float | bool

_VERSION = 1
_MOST_COLUMNS = 2**26
_MOST_STEPS = 1000  # ensembles have less than 100
#: All values of a row together may have so many times the numbers that a program is written with, and so many at least.
_TIMES, _FREE_NUMBERS = 64, 2**20
_LONGEST_NAME = 2**11
_PREFIX = "program."


class Column(NamedTuple):
    """A number of a row (value 0), and where it comes from if the row is a mapping of names."""

    name: Name
    """Name of the feature."""
    field: Name
    """Name of the field of the row."""
    text: str | None = None
    """The number is 1 if the field has this text, else 0. None: the number is that of the field."""
    bucket: tuple[int, int] | None = None
    """The number is 1 if the field has a text that no other column has, and whose CRC-32 modulo the second number is the first.
    """
    table: tuple[int, int] | None = None
    """The number is that of the field's text in the table with the first number, at the second one; missing if it has none."""


class CategoryTable(NamedTuple):
    """Numbers of names, such as what the labels of the rows that were learned say of each."""

    keys: np.ndarray
    """The key of each name, as ``key_of`` gives it, uint32 [n], in ascending order."""
    values: np.ndarray
    """The numbers of each, float64 [n, m]."""

    def find_row(self, key: int) -> int:
        """Return the place of a key; -1 if the table does not have it."""
        place = int(np.searchsorted(self.keys, np.uint32(key)))
        return place if place < len(self.keys) and self.keys[place] == key else -1


class Answer(NamedTuple):
    """How the values of a program become a prediction."""

    kind: str
    """The prediction. ``"class"``: a label. ``"number"``: the decision value itself. ``"anomaly"``: a score from 0 to 1."""
    decision: int
    """Number of the value that is the decision value. Its width is 1, or the number of labels if there are several classes."""
    choice: int
    """Number of the value that chooses the label: the one whose number in it is the largest, and the first of equal ones."""
    labels: tuple[Name, ...] = ()
    at_zero: int = 0
    """With two labels, the index of the label for a decision value of 0."""
    calibration: MarginCalibration | LogOddsCalibration | None = None
    """Turns decision values into probabilities; None if there are none."""
    center: float = 0.0
    size: float = 0.0
    """For an anomaly detector, ``center`` is the mean of usual decision values, and ``size`` their mean deviation from it."""
    costs: tuple[float, ...] | None = None
    """The cost of missing a row of each label: the label whose probability times its cost is the largest is the answer.

    None: ``choice`` chooses it.
    """


class Program:
    """A model as a list of steps, to which you add steps one by one, and which is checked as a whole.

    Parameters
    ----------
    columns
        Columns of value 0.
    hashed
        Number by which fields without a column are hashed: such a field is added to the column with the number CRC-32 of its
        name modulo ``hashed``. 0 leaves such fields out.
    tables
        The tables that columns have numbers of.

    Raises
    ------
    ExportError
        A table is none, or a column has a number of a table that is not there.

    Attributes
    ----------
    steps : list of Step
        The steps so far.
    widths : list of int
        Widths of the values.
    answer : Answer
        How the values become a prediction.
    facts : dict
        What is known about the model, as JSON.

    Examples
    --------
    >>> program = Program([Column("a", "a")])
    >>> value = program.add("linear", program.add("impute", 0, float32=True), weights=np.ones((1, 1)), biases=np.zeros(1))
    >>> program.answer = Answer("number", value, value)
    >>> strings, arrays = program.serialise()
    >>> Program.deserialise(strings, arrays).widths
    [1, 1, 1]
    """

    def __init__(self, columns: Sequence[Column], hashed: int = 0, tables: Sequence[CategoryTable] = ()) -> None:
        self.columns: list[Column] = list(columns)
        self.hashed: int = hashed
        self.tables: tuple[CategoryTable, ...] = tuple(tables)
        for table in self.tables:
            _check_table(table)
        for column in self.columns:
            _check_place(column, self.tables)
        self.steps: list[Step] = []
        self.widths: list[int] = [len(self.columns)]
        self.answer: Answer = Answer("number", 0, 0)
        self.metadata: dict[str, Any] = {}
        self._wide = self._held = len(self.columns)  # numbers of its values; those that it is written with

    def add(self, op: str, *inputs: int, **given: Any) -> int:
        """Add a step, and return the number of its value. Arrays and options are given by name.

        Raises
        ------
        ExportError
            They are not those of the step, or do not fit the values that it uses.
        """
        arrays = {name: np.ascontiguousarray(value) for name, value in given.items() if isinstance(value, np.ndarray)}
        options = {name: value for name, value in given.items() if name not in arrays}
        self.add_step(Step(op, inputs, arrays, options))
        return len(self.steps)

    def add_step(self, step: Step) -> None:
        """Add a step that is already made; the errors are those of `add`."""
        if len(self.steps) == _MOST_STEPS:
            raise ExportError(f"it has more than {_MOST_STEPS:,} steps, which no model has")
        if not step.inputs or (step.op != "concat" and len(step.inputs) != 1):
            raise ExportError(f"a step {step.op!r} takes {len(step.inputs)} values")
        if not all(type(number) is int and 0 <= number <= len(self.steps) for number in step.inputs):
            raise ExportError(f"a step {step.op!r} takes values that do not come before it")
        width = check_step(step, sum(self.widths[number] for number in step.inputs))
        self._wide += width
        self._held += sum(array.size for array in step.arrays.values())
        if self._wide > max(_FREE_NUMBERS, _TIMES * self._held):  # a small file must not ask for gigabytes
            raise ExportError(f"its values have {self._wide:,} numbers, which no model of its size has")
        self.steps.append(step)
        self.widths.append(width)

    def with_steps(self, steps: Iterable[Step]) -> Program:
        """Return a program with other steps, and the same columns, tables, answer and facts."""
        made = Program(self.columns, self.hashed, self.tables)
        made.answer, made.metadata = self.answer, self.metadata
        for step in steps:
            made.add_step(step)
        return made

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        held = [array for step in self.steps for array in step.arrays.values()]
        return sum(array.nbytes for array in (*held, *(array for table in self.tables for array in table)))

    @property
    def is_pairwise(self) -> bool:
        """Whether it has a decision value for each pair of labels, and not one for each label.

        The value of a pair is above 0 for its first label.
        """
        decision, choice = (self.steps[value - 1].op if value else "" for value in self.answer[1:3])
        return choice == "votes" and decision != "pair_scores"

    # Files ------------------------------------------------------------------------------------------------------------------

    def serialise(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the program as JSON, and its arrays under the names that the JSON uses.

        Raises
        ------
        ExportError
            A label or the name of a column is something that JSON does not give back.
        """
        for name in (*self.answer.labels, *(name for column in self.columns for name in column[:2])):
            _name_of(name)
        arrays: dict[str, np.ndarray] = {}
        steps = []
        for step in self.steps:
            places = {}
            for name, array in step.arrays.items():
                places[name] = f"{_PREFIX}{len(arrays)}"
                arrays[places[name]] = array
            steps.append({"op": step.op, "inputs": step.inputs, "arrays": places, "options": step.options})
        tables = []
        for table in self.tables:
            places = {name: f"{_PREFIX}{len(arrays) + number}" for number, name in enumerate(table._fields)}
            arrays.update(zip(places.values(), table, strict=True))
            tables.append(places)
        text = json.dumps(
            {
                "version": _VERSION,
                "columns": [column if column.table is not None else column[:4] for column in self.columns],
                **({"tables": tables} if tables else {}),
                "hashed": self.hashed,
                "steps": steps,
                "answer": _serialise_answer(self.answer),
                "facts": self.metadata,
            },
            separators=(",", ":"),
            allow_nan=False,
        )
        return text, arrays

    @classmethod
    def deserialise(cls, text: str, arrays: Mapping[str, np.ndarray]) -> Program:
        """Return the program that `parts` took apart, checked. an ExportError says what is wrong with it."""
        try:
            saved = json.loads(text)
            if saved["version"] > _VERSION:
                raise ExportError(
                    f"it has version {saved['version']} of the programs, and this streamsvm reads {_VERSION}: upgrade"
                )
            left = dict(arrays)  # each is used once: a small file must not compute with a large array ten thousand times
            tables = [
                CategoryTable(*(left.pop(table[name]) for name in CategoryTable._fields)) for table in saved.get("tables", ())
            ]
            program = cls([_column_of(*column) for column in saved["columns"]], _count_of(saved["hashed"]), tables)
            if len(program.columns) > _MOST_COLUMNS:
                raise ExportError("it has too many columns")
            for step in saved["steps"]:
                named = {str(name): left.pop(place) for name, place in step["arrays"].items()}
                program.add_step(Step(str(step["op"]), tuple(step["inputs"]), named, dict(step["options"])))
            program.answer = _deserialise_answer(saved["answer"])
            program.metadata = dict(saved["facts"])
        except ExportError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ExportError(f"its program is corrupt ({type(error).__name__}: {error})") from error
        program.check_answer()
        return program

    def check_answer(self) -> None:
        """Raise an ExportError if the answer does not fit the steps."""
        a, last = self.answer, len(self.steps)
        if not all(type(number) is int and 0 <= number <= last for number in (a.decision, a.choice)):
            raise ExportError("its answer is a value that it does not have")
        several = a.kind == "class" and len(a.labels) > 2
        wanted = len(a.labels) if several else 1
        if a.kind not in ("class", "number", "anomaly") or (a.kind == "class") != bool(a.labels):
            raise ExportError(f"its answer is a {a.kind!r} with {len(a.labels)} labels")
        decided, chosen = self.widths[a.decision], self.widths[a.choice]
        pairs = wanted * (wanted - 1) // 2 if several and a.calibration is None else wanted  # which have no probabilities
        if chosen != wanted or decided not in (wanted, pairs):
            raise ExportError(f"its answer has {decided} decision values and {chosen} numbers for {len(a.labels)} labels")
        if len(set(a.labels)) < len(a.labels) or a.at_zero not in (0, 1):
            raise ExportError("its labels are not different, or not in an order")
        if not (is_number(a.center) and is_number(a.size) and a.size >= 0.0):
            raise ExportError("its scores are not of numbers")
        if a.calibration is not None and not a.calibration.is_valid(len(a.labels)):
            raise ExportError("its probabilities cannot be computed")
        if a.costs is not None and (
            a.calibration is None
            or len(a.costs) != len(a.labels)
            or not all(is_number(cost, 0.0, 1e9) and cost for cost in a.costs)
        ):
            raise ExportError("its costs are not numbers above 0, one for each label, or it has no probabilities")


def run_program(program: Program, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the decision values and the choices of rows float64 [n, columns]: float64 [n, width] each.

    O(n m width) for each step with m vectors; memory O(n width).
    """
    values = [np.where(np.isfinite(rows), rows, math.nan)]
    with np.errstate(over="ignore", invalid="ignore"):
        for step in program.steps:
            taken = [values[number] for number in step.inputs]
            values.append(evaluate_step(step, taken[0] if len(taken) == 1 else np.concatenate(taken, axis=1)))
    return values[program.answer.decision], values[program.answer.choice]


def _check_table(table: CategoryTable) -> None:
    keys, values = table
    kinds = [(array.dtype.kind, array.dtype.itemsize, array.ndim) for array in table]
    if kinds != [("u", 4, 1), ("f", 8, 2)] or len(values) != len(keys) or not values.shape[1]:
        raise ExportError("the arrays of a table are of another type, or do not fit together")
    if not (keys[1:] > keys[:-1]).all():
        raise ExportError("the keys of a table are not in ascending order")
    if not np.isfinite(values).all():
        raise ExportError("the values of a table are not finite")


def _check_place(column: Column, tables: Sequence[CategoryTable]) -> None:
    if column.table is None:
        return
    table, place = column.table
    if column.text is not None or column.bucket is not None:
        raise ExportError("a column has a number of a table, and is 1 for some texts as well")
    if not (table < len(tables) and place < tables[table].values.shape[1]):
        raise ExportError("a column has a number of a table that is not there")


def _column_of(name: Any, field_name: Any, text: Any, bucket: Any, table: Any = None) -> Column:
    if not (text is None or isinstance(text, str)):
        raise ExportError("a text of a column is none")
    if bucket is not None:
        number, of = map(_count_of, bucket)
        if not number < of:
            raise ExportError("a bucket of a column is none")
        bucket = number, of
    if table is not None:
        number, place = map(_count_of, table)
        table = number, place
    return Column(_name_of(name), _name_of(field_name), text, bucket, table)


def _name_of(value: Any) -> Name:
    if not isinstance(value, Name):
        raise ExportError(f"{value!r:.80}, a {type(value).__name__}, is a name or a label, and no text, number or bool")
    if isinstance(value, str) and len(value) > _LONGEST_NAME:
        raise ExportError(f"the name or label {value!r:.80} has {len(value):,} characters, more than {_LONGEST_NAME:,}")
    if isinstance(value, int | float) and not is_number(value + 0):
        raise ExportError("a name or a label is a number that no float holds")
    return value


def _count_of(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise ExportError("a count is none")
    return value


def _serialise_answer(answer: Answer) -> dict[str, Any]:
    """Return an answer as the JSON object that a file holds, where the calibration is called ``odds``."""
    parts = {name: value for name, value in answer._asdict().items() if name != "costs" or value is not None}
    if answer.calibration is not None:
        kind = next(kind for kind, cls in CALIBRATIONS.items() if isinstance(answer.calibration, cls))
        parts["calibration"] = {"kind": kind, **answer.calibration._asdict()}
    return {"odds" if name == "calibration" else name: value for name, value in parts.items()}


def _deserialise_answer(parts: Mapping[str, Any]) -> Answer:
    """Return the answer that a file holds as a JSON object; its numbers are checked later, by `Program.check_answer`."""
    fields = {"calibration" if name == "odds" else name: value for name, value in parts.items()}
    calibration, costs = fields["calibration"], fields.get("costs")
    if calibration is not None:
        cls: Any = CALIBRATIONS[calibration["kind"]]
        calibration = cls(**{k: tuple(v) if k == "shares" else v for k, v in calibration.items() if k != "kind"})
    labels = tuple(map(_name_of, fields["labels"]))
    return Answer(**{**fields, "labels": labels, "calibration": calibration, "costs": None if costs is None else tuple(costs)})
