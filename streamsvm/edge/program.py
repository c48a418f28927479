"""Programs: models as data, from which predictions are computed with numpy, or which are exported as C, ONNX or JSON.

A program is a list of steps. Value 0 is the input row, one number for each column; a number that is not finite is missing, and is
NaN from then on. Step i computes value i + 1 from earlier values. Each value has a width: for n rows, it is float64 [n, width].
`streamsvm.edge.operations` evaluates the steps with numpy. `streamsvm.export` writes programs in other formats.

===========  ========================================================================================================
operation    value
===========  ========================================================================================================
impute       missing numbers become 0; if ``float32``, the others are rounded to float32
fill         missing numbers become those of ``values``, one for each column
cycles       where ``periods`` are above 0, the sine of the phase of x, in turns, plus ``offsets`` (.25: the cosine); x elsewhere
scale        (x - location) / spread, clipped to +- bound; 0 where spread is 0; missing numbers stay missing
select       the numbers at ``columns``
clip         x clipped to +- bound
hinges       for each number x: x, |x| - knot, and with 4 ``functions`` also max(x - knot, 0) and max(-x - knot, 0)
kernel       the values of the kernel ``kind`` with ``vectors``; integer vectors are multiplied by ``scale``, then ``center``
             is added
fourier      random Fourier features: the cosines, then the sines, of ``factor`` times the products with ``vectors``
trees        the sum over trees of the kernel expansion in the leaf that x reaches (see `streamsvm.edge.operations`)
neighbours   k nearest neighbours: the share of each label in their votes, or the mean of their targets (see
             `streamsvm.edge.ensembles`)
forest       a forest of decision trees: the share of each label in their votes, or the mean of their leaves (see there)
log          the logarithm of max(x, ``least``)
linear       ``weights`` x + ``biases``
concat       several values, one after the other
votes        the number of votes for each class, from a number for each pair of ``classes`` (0 or more: the second one)
pair_scores  such votes (above 0: the second one), and less than half a vote for the sum of the numbers, to break ties
experts      the prediction of an ensemble, from those of its experts (see `streamsvm.edge.ensembles`)
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
from streamsvm.edge.texts import MAX_SCORES, N_KINDS, TextTable

__all__ = ["Answer", "CategoryTable", "Column", "ExportError", "Program", "Step", "TextTable"]

Name = str | int | float | bool

_VERSION = 1
_MAX_COLUMNS = 2**26
_MAX_STEPS = 1000  # ensembles have fewer than 100
#: The values of a row may together have this many times the numbers of all arrays. A small program may have more of them.
_MAX_EXPANSION, _ALWAYS_ALLOWED_NUMBERS = 64, 2**20
_MAX_NAME_CHARACTERS = 2**11
_ARRAY_PREFIX = "program."


class Column(NamedTuple):
    """An input column of a program (a number of value 0), and how to compute it from a row that is a mapping of field names."""

    name: Name
    """Name of the column."""
    field: Name
    """Name of the field of the row that it is computed from."""
    text: str | None = None
    """One-hot encoding: the number is 1 if the field has this text, else 0. None: the number is the value of the field."""
    bucket: tuple[int, int] | None = None
    """Hashing: the number is 1 if no other column has the field's text, and its CRC-32 modulo the second int is the first int."""
    table: tuple[int, int] | None = None
    """Target encoding: index of a table, and column of its ``values``, where the field's text is looked up; NaN if not found.

    Column of texts: index of a `TextTable`, and of the feature that is computed from the field's text.
    """


class CategoryTable(NamedTuple):
    """Target encodings: the numbers that replace the categories (texts) of columns."""

    keys: np.ndarray
    """Hash of each category, from ``compute_name_key``, uint32 [n], in ascending order. It may begin with 0, for all others."""
    values: np.ndarray
    """The numbers of each category, float64 [n, m]."""

    def find_values(self, key: int) -> np.ndarray:
        """Return the target encodings of a category, float64 [m]. ``key`` is the category's hash. If the table does not contain
        it, they are those of the key 0, or NaN.
        """
        for wanted in (key, 0):
            row = int(np.searchsorted(self.keys, np.uint32(wanted)))
            if row < len(self.keys) and self.keys[row] == wanted:
                return self.values[row]
        return np.full(self.values.shape[1], math.nan)


Table = CategoryTable | TextTable


class Answer(NamedTuple):
    """How the values of a program become a prediction."""

    kind: str
    """The prediction. ``"class"``: a label. ``"number"``: the decision value itself. ``"anomaly"``: a score from 0 to 1."""
    decision: int
    """Index of the value that holds the decision values: one, or one for each label if there are more than two."""
    choice: int
    """Index of the value whose largest number chooses the label, the first one in a tie."""
    labels: tuple[Name, ...] = ()
    at_zero: int = 0
    """With two labels, the index of the label that is predicted for a decision value of 0."""
    calibration: MarginCalibration | LogOddsCalibration | None = None
    """Converts decision values to probabilities; None if the model has no probabilities."""
    center: float = 0.0
    size: float = 0.0
    """For an anomaly detector, ``center`` is the mean of usual decision values, and ``size`` their mean deviation from it."""
    costs: tuple[float, ...] | None = None
    """Cost of missing each label: the label with the largest product of probability and cost is predicted.

    None: ``choice`` chooses the label.
    """


class Program:
    """A model as a list of steps. Each step is checked when it is added.

    Parameters
    ----------
    columns
        Columns of the input row, which is value 0.
    n_hash_columns
        The hashing trick for fields without a column: its number is added to the column whose index is the CRC-32 of its name
        modulo ``n_hash_columns``. 0 ignores such fields.
    tables
        The tables that columns refer to.

    Raises
    ------
    ExportError
        A table is invalid, or a column refers to a table that does not exist.

    Attributes
    ----------
    steps : list of Step
        The steps so far.
    widths : list of int
        Widths of the values; there is one value more than steps.
    answer : Answer
        How the values become a prediction.
    metadata : dict
        Metadata of the model, which JSON can hold. Files call it ``facts``.
    text_nbytes : int
        Bytes of the tables of columns of texts.

    Examples
    --------
    >>> program = Program([Column("a", "a")])
    >>> value = program.add("linear", program.add("impute", 0, float32=True), weights=np.ones((1, 1)), biases=np.zeros(1))
    >>> program.answer = Answer("number", value, value)
    >>> strings, arrays = program.serialise()
    >>> Program.deserialise(strings, arrays).widths
    [1, 1, 1]
    """

    def __init__(self, columns: Sequence[Column], n_hash_columns: int = 0, tables: Sequence[Table] = ()) -> None:
        self.columns: list[Column] = list(columns)
        self.n_hash_columns: int = n_hash_columns
        self.tables: tuple[Table, ...] = tuple(tables)
        for table in self.tables:
            _check_table(table)
        for column in self.columns:
            _check_table_reference(column, self.tables)
        self.text_nbytes: int = sum(array.nbytes for table in self.tables if isinstance(table, TextTable) for array in table)
        self.steps: list[Step] = []
        self.widths: list[int] = [len(self.columns)]
        self.answer: Answer = Answer("number", 0, 0)
        self.metadata: dict[str, Any] = {}
        self._n_value_numbers = self._n_array_numbers = len(self.columns)

    def add(self, op: str, *inputs: int, **arguments: Any) -> int:
        """Append a step to this program (a model as a list of numpy operations), and return the index of its output. ``op`` names
        the operation, such as ``"linear"``, and ``arguments`` are its constant arrays and options. ``inputs`` are the indices of
        the outputs that it reads; 0 is the input row.

        Parameters
        ----------
        op
            Name of the operation.
        inputs
            Indices of the values that it reads.
        arguments
            Arrays and options of the operation, by name.

        Raises
        ------
        ExportError
            They are not those of the operation, or do not fit the values that it reads.
        """
        arrays = {name: np.ascontiguousarray(value) for name, value in arguments.items() if isinstance(value, np.ndarray)}
        options = {name: value for name, value in arguments.items() if name not in arrays}
        self.add_step(Step(op, inputs, arrays, options))
        return len(self.steps)

    def add_step(self, step: Step) -> None:
        """Add an existing `Step` (an operation with its inputs, arrays and options) to the end of this program. Raises
        ExportError if its arrays or options are invalid, or do not fit the values that it reads.
        """
        if len(self.steps) == _MAX_STEPS:
            raise ExportError(f"it has more than {_MAX_STEPS:,} steps, which no model has")
        if not step.inputs or (step.op != "concat" and len(step.inputs) != 1):
            raise ExportError(f"a step {step.op!r} has {len(step.inputs)} inputs")
        if not all(type(number) is int and 0 <= number <= len(self.steps) for number in step.inputs):
            raise ExportError(f"a step {step.op!r} has inputs that do not come before it")
        width = check_step(step, sum(self.widths[number] for number in step.inputs))
        self._n_value_numbers += width
        self._n_array_numbers += sum(array.size for array in step.arrays.values())
        # A small file must not make a prediction allocate gigabytes.
        if self._n_value_numbers > max(_ALWAYS_ALLOWED_NUMBERS, _MAX_EXPANSION * self._n_array_numbers):
            raise ExportError(f"its values have {self._n_value_numbers:,} numbers, which no model of its size has")
        self.steps.append(step)
        self.widths.append(width)

    def with_steps(self, steps: Iterable[Step]) -> Program:
        """Return a copy of this program (a model as a list of numpy operations) with other ``steps``. The input columns, target
        encodings and metadata stay the same, and so does the way that outputs become predictions (``answer``).
        """
        program = Program(self.columns, self.n_hash_columns, self.tables)
        program.answer, program.metadata = self.answer, self.metadata
        for step in steps:
            program.add_step(step)
        return program

    @property
    def nbytes(self) -> int:
        """Size of the program: bytes of the arrays of all steps and of the tables of target encodings."""
        arrays = [array for step in self.steps for array in step.arrays.values()]
        return sum(array.nbytes for array in (*arrays, *(array for table in self.tables for array in table)))

    def is_text(self, column: Column) -> bool:
        """Return whether an input column of this program is a feature of texts."""
        return column.table is not None and isinstance(self.tables[column.table[0]], TextTable)

    @property
    def is_pairwise(self) -> bool:
        """Whether the decision values of this program (an exported model) are those of a one-vs-one classifier: one for each pair
        of labels, and not one for each label.
        """
        decision, choice = (self.steps[value - 1].op if value else "" for value in self.answer[1:3])
        return choice == "votes" and decision != "pair_scores"

    # Files ------------------------------------------------------------------------------------------------------------------

    def serialise(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return this program as JSON text, and a dict of the arrays that it refers to by name. `deserialise` is the inverse.

        Raises
        ------
        ExportError
            A label or the name of a column cannot be restored from JSON.
        """
        for name in (*self.answer.labels, *(name for column in self.columns for name in column[:2])):
            _check_name(name)
        arrays: dict[str, np.ndarray] = {}
        steps = []
        for step in self.steps:
            keys = {}
            for name, array in step.arrays.items():
                keys[name] = f"{_ARRAY_PREFIX}{len(arrays)}"
                arrays[keys[name]] = array
            steps.append({"op": step.op, "inputs": step.inputs, "arrays": keys, "options": step.options})
        tables = []
        for table in self.tables:
            keys = {name: f"{_ARRAY_PREFIX}{len(arrays) + number}" for number, name in enumerate(table._fields)}
            arrays.update(zip(keys.values(), table, strict=True))
            tables.append(keys)
        saved = {
            "version": _VERSION,
            "columns": [column if column.table is not None else column[:4] for column in self.columns],
            **({"tables": tables} if tables else {}),
            "hashed": self.n_hash_columns,
            "steps": steps,
            "answer": _serialise_answer(self.answer),
            "facts": self.metadata,
        }
        return json.dumps(saved, separators=(",", ":"), allow_nan=False), arrays

    @classmethod
    def deserialise(cls, text: str, arrays: Mapping[str, np.ndarray]) -> Program:
        """Restore a program from the JSON text and the dict of named arrays that `serialise` returned. Raises ExportError if they
        are invalid, or of a newer version.
        """
        try:
            saved = json.loads(text)
            if saved["version"] > _VERSION:
                raise ExportError(f"it has program version {saved['version']}, and this streamsvm reads {_VERSION}: upgrade")
            # Each array may be used once: otherwise a small file could compute with a large array ten thousand times.
            unused = dict(arrays)
            fields = [{name: unused.pop(key) for name, key in table.items()} for table in saved.get("tables", ())]
            tables: list[Any] = [(TextTable if "scores" in table else CategoryTable)(**table) for table in fields]
            program = cls([_read_column(*column) for column in saved["columns"]], _read_count(saved["hashed"]), tables)
            if len(program.columns) > _MAX_COLUMNS:
                raise ExportError(f"it has {len(program.columns):,} columns, more than {_MAX_COLUMNS:,}")
            for step in saved["steps"]:
                step_arrays = {str(name): unused.pop(key) for name, key in step["arrays"].items()}
                program.add_step(Step(str(step["op"]), tuple(step["inputs"]), step_arrays, dict(step["options"])))
            program.answer = _deserialise_answer(saved["answer"])
            program.metadata = dict(saved["facts"])
        except ExportError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ExportError(f"its program is corrupt ({type(error).__name__}: {error})") from error
        program.check_answer()
        return program

    def check_answer(self) -> None:
        """Check the rule that converts the outputs of this program's steps to predictions (``answer``: labels, calibration,
        costs, and the indices of the outputs that it reads). Raises ExportError if the parts do not fit together, or do not fit
        the steps.
        """
        a, n_steps = self.answer, len(self.steps)
        if not all(type(number) is int and 0 <= number <= n_steps for number in (a.decision, a.choice)):
            raise ExportError("its answer is a value that it does not have")
        has_many_labels = a.kind == "class" and len(a.labels) > 2
        width = len(a.labels) if has_many_labels else 1
        if a.kind not in ("class", "number", "anomaly") or (a.kind == "class") != bool(a.labels):
            raise ExportError(f"its answer is a {a.kind!r} with {len(a.labels)} labels")
        decisions, choices = self.widths[a.decision], self.widths[a.choice]
        # Decision values of pairs of labels have no probabilities.
        pairs = width * (width - 1) // 2 if has_many_labels and a.calibration is None else width
        if choices != width or decisions not in (width, pairs):
            raise ExportError(f"its answer has {decisions} decision values and {choices} numbers for {len(a.labels)} labels")
        if len(set(a.labels)) < len(a.labels) or a.at_zero not in (0, 1):
            raise ExportError("its labels are not different, or it has an invalid label for a decision value of 0")
        if not (is_number(a.center) and is_number(a.size) and a.size >= 0.0):
            raise ExportError("the center or size of its anomaly scores is not a finite number")
        if a.calibration is not None and not a.calibration.is_valid(len(a.labels)):
            raise ExportError("the calibration of its probabilities is invalid")
        costs = a.costs or ()
        if a.costs is not None and (
            a.calibration is None or len(costs) != len(a.labels) or not all(is_number(cost, 0.0, 1e9) and cost for cost in costs)
        ):
            raise ExportError("its costs are not numbers above 0, one for each label, or it has no probabilities")


def run_program(program: Program, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Evaluate a program (an exported model as a list of numpy operations) for input rows, float64 [n, columns]. Returns
    (decision values, scores that choose the label), both float64 [n, width]. The label with the largest score is predicted; with
    two labels, the sign of the only score decides.

    O(n m width) for each step with m vectors; memory O(n width).
    """
    values = [np.where(np.isfinite(rows), rows, math.nan)]
    with np.errstate(over="ignore", invalid="ignore"):
        for step in program.steps:
            inputs = [values[number] for number in step.inputs]
            values.append(evaluate_step(step, inputs[0] if len(inputs) == 1 else np.concatenate(inputs, axis=1)))
    return values[program.answer.decision], values[program.answer.choice]


def _check_table(table: Table) -> None:
    """Raise ExportError if a table from a file is invalid. The keys must be ascending uint32 hashes. Target encodings must be
    finite float64 [keys, columns], the scores of texts float32 [keys, labels], and their averages float64 [2, labels].
    """
    keys, values, *averages = table
    kinds = [(array.dtype.kind, array.dtype.itemsize, array.ndim) for array in table]
    expected = [("u", 4, 1), ("f", 4, 2), ("f", 8, 2)] if averages else [("u", 4, 1), ("f", 8, 2)]
    if kinds != expected or len(values) != len(keys) or not _count_columns(table):
        raise ExportError("the arrays of a table are of another type, or do not fit together")
    if averages and averages[0].shape != (N_KINDS, min(values.shape[1], MAX_SCORES)):
        raise ExportError("the averages of a table do not fit its scores, or there are too many")
    if not (keys[1:] > keys[:-1]).all():
        raise ExportError("the keys of a table are not in ascending order")
    if not all(np.isfinite(array).all() for array in table):
        raise ExportError("the values of a table are not finite")


def _count_columns(table: Table) -> int:
    """Return the number of columns of a table of target encodings, or of features of a text."""
    if isinstance(table, TextTable):
        return 1 + N_KINDS * table.n_statistics * table.scores.shape[1]
    return table.values.shape[1]


def _check_table_reference(column: Column, tables: Sequence[Table]) -> None:
    """Raise ExportError if an input column refers to an invalid table: one of ``tables`` or a column in it
    that does not exist. A column with a reference must not have another encoding (one-hot or hash bucket). Columns without a
    reference are valid.
    """
    if column.table is None:
        return
    table, table_column = column.table
    if column.text is not None or column.bucket is not None:
        raise ExportError("a column has a number of a table, and is 1 for some texts as well")
    if not (table < len(tables) and table_column < _count_columns(tables[table])):
        raise ExportError("a column has a number of a table that does not exist")


def _read_column(name: Any, field_name: Any, text: Any, bucket: Any, table: Any = None) -> Column:
    """Create an input `Column` of an exported model from values in a JSON file: its ``name``, the row's field that it reads, and
    at most one encoding: ``text`` (one-hot), ``bucket`` (hashing) or ``table`` (target encoding). Without an encoding, it is
    numeric. Raises ExportError if a value is invalid.
    """
    if not (text is None or isinstance(text, str)):
        raise ExportError("the text of a column is not a string")
    if bucket is not None:
        remainder, modulus = map(_read_count, bucket)
        if not remainder < modulus:
            raise ExportError("the bucket of a column is not below the number of buckets")
        bucket = remainder, modulus
    if table is not None:
        table, table_column = map(_read_count, table)
        table = table, table_column
    return Column(_check_name(name), _check_name(field_name), text, bucket, table)


def _check_name(value: Any) -> Name:
    """Return the name of a column or a label unchanged. Raises ExportError if it is not a str, bool or finite number, or is
    longer than 2,048 characters, because a file could not hold it.
    """
    if not isinstance(value, Name):
        raise ExportError(f"{value!r:.80}, a {type(value).__name__}, is a name or a label: it must be a text, number or bool")
    if isinstance(value, str) and len(value) > _MAX_NAME_CHARACTERS:
        raise ExportError(f"the name or label {value!r:.80} has {len(value):,} characters, more than {_MAX_NAME_CHARACTERS:,}")
    if isinstance(value, int | float) and not is_number(value + 0):
        raise ExportError("a name or a label is not finite, or a number that no float holds")
    return value


def _read_count(value: Any) -> int:
    """Return a count or index from a file unchanged. Raises ExportError if it is not an int between 0 and 2^31 - 1."""
    if type(value) is not int or not 0 <= value < 2**31:
        raise ExportError(f"{value!r:.80} is not a valid count: it must be an int from 0 to 2^31 - 1")
    return value


def _serialise_answer(answer: Answer) -> dict[str, Any]:
    """Convert ``answer`` to a dict for JSON. It is the rule that converts outputs of a program (an exported model) to
    predictions: labels, calibration, costs and indices of outputs. For compatibility with earlier files, the calibration is
    stored under the key ``odds``.
    """
    parts = {name: value for name, value in answer._asdict().items() if name != "costs" or value is not None}
    if answer.calibration is not None:
        kind = next(kind for kind, cls in CALIBRATIONS.items() if isinstance(answer.calibration, cls))
        parts["calibration"] = {"kind": kind, **answer.calibration._asdict()}
    return {"odds" if name == "calibration" else name: value for name, value in parts.items()}


def _deserialise_answer(parts: Mapping[str, Any]) -> Answer:
    """Restore an `Answer`, the rule that converts outputs of a program (an exported model) to predictions, from ``parts``, the
    dict that `_serialise_answer` returned. The caller checks its numbers afterwards with `Program.check_answer`.
    """
    fields = {"calibration" if name == "odds" else name: value for name, value in parts.items()}
    calibration, costs = fields["calibration"], fields.get("costs")
    if calibration is not None:
        cls: Any = CALIBRATIONS[calibration["kind"]]
        calibration = cls(**{k: tuple(v) if k == "shares" else v for k, v in calibration.items() if k != "kind"})
    labels = tuple(map(_check_name, fields["labels"]))
    return Answer(**{**fields, "labels": labels, "calibration": calibration, "costs": None if costs is None else tuple(costs)})
