"""A model that predicts by a program, and is read from a file by numpy alone: rows in, labels or numbers out."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.edge.program import Column, ExportError, Name, Program, run_program
from streamsvm.edge.step import MAX_NUMBERS_AT_ONCE
from streamsvm.files.category_names import compute_column_seed, compute_name_key, normalize_name
from streamsvm.files.container import CorruptFileError, ModelFileError, read_file, unpack_container

_MOST_OF_TEXTS = 2**24  # bytes of an array of labels that are texts
_FARTHEST = 1e100  # deviations from the mean of usual decision values


class Predictor:
    """A saved model that predicts as it did when it was saved. It does not learn.

    Pass a row as a mapping of names to values, as for the model, or as numbers in the order of ``columns``. In a mapping,
    fields that the model does not know are ignored. A field that is absent, None or not finite is missing; in an array, so is a
    number that is not finite. As in the model, a missing number is 0, or after a scaler the mean. Predictions have no state, so
    any number of threads may call them.

    Parameters
    ----------
    program
        The program that it executes.

    Attributes
    ----------
    kind : str
        What it predicts: ``"class"``, ``"number"`` or ``"anomaly"``.
    labels : list
        The labels of the classes. With two, decision values above 0 mean the second one.
    columns : list
        The names of the numbers of a row.
    nbytes : int
        Bytes of the arrays of the program.
    facts : dict
        What the file says about the model.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.edge import load
    >>> model = BSGDClassifier(budget=10)
    >>> for value in range(10):
    ...     model.learn_one({"a": value}, value > 4)
    >>> path = pathlib.Path(tempfile.mkdtemp(), "model.safetensors")
    >>> model.save(path)
    >>> predictor = load(path)
    >>> predictor
    <Predictor of BSGDClassifier; columns: 1, labels: 2, bytes: 120>
    >>> predictor.predict_one({"a": 9.0}), predictor.predict_many(np.array([[0.0], [9.0]]))
    (True, array([False,  True]))
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kind: str = program.answer.kind
        self.labels: list[Name] = list(program.answer.labels)
        self.metadata: dict[str, Any] = program.metadata
        self._label_array = _as_array(self.labels)
        stacks = max((len(step.arrays["shares"]) for step in program.steps if step.op == "experts"), default=0)
        self._rows_at_once = max(MAX_NUMBERS_AT_ONCE // max(sum(program.widths) + stacks, 1), 1)
        #: Of each field of a row: its column of numbers, its columns by text, and its buckets; and its seed, with the columns and
        #: places of each table that it has numbers of.
        self._numbers: dict[Any, int] = {}
        self._texts: dict[Any, dict[str, int]] = {}
        self._buckets: dict[Any, tuple[int, dict[int, int]]] = {}
        self._tables: dict[Any, tuple[int, dict[int, list[tuple[int, int]]]]] = {}
        for number, column in enumerate(program.columns):
            self._place_column(number, column)
        self._named = self._texts.keys() | self._buckets.keys() | self._tables.keys()

    def __repr__(self) -> str:
        name = str(self.metadata.get("model"))
        of = f" of {name}" if name.isidentifier() and name != "None" else ""  # a file may say anything
        labels = f", labels: {len(self.labels):,}" if self.kind == "class" else ""
        return f"<Predictor{of}; columns: {len(self.program.columns):,}{labels}, bytes: {self.nbytes:,}>"

    def _place_column(self, number: int, column: Column) -> None:
        if column.text is not None:
            self._texts.setdefault(column.field, {})[column.text] = number
        elif column.bucket is not None:
            self._buckets.setdefault(column.field, (column.bucket[1], {}))[1][column.bucket[0]] = number
        elif column.table is not None:
            table, place = column.table
            places = self._tables.setdefault(column.field, (compute_column_seed(column.field), {}))[1]
            places.setdefault(table, []).append((number, place))
        else:
            self._numbers[column.field] = number

    @property
    def columns(self) -> list[Name]:
        """The names of the numbers of a row, in their order."""
        return [column.name for column in self.program.columns]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of the program."""
        return self.program.nbytes

    # One row ----------------------------------------------------------------------------------------------------------------

    def predict_one(self, x: Mapping[Any, Any]) -> Any:
        """Predict the label of a row, its number, or its anomaly score.

        Parameters
        ----------
        x
            The fields of the row, a mapping of names to values.

        Raises
        ------
        ValueError
            A value is not a number where there should be one.
        """
        answer = self._answers_of(*run_program(self.program, self.encode_row(x)[None]))[0]
        return answer.item() if isinstance(answer, np.generic) else answer

    def decision_function_one(self, x: Mapping[Any, Any]) -> Any:
        """Return the decision value of a row.

        It is a float; with several classes, a dict of label to value; with a value for each pair of classes, a list. The errors
        are those of `predict_one`.
        """
        f = run_program(self.program, self.encode_row(x)[None])[0][0].tolist()
        return f[0] if len(f) == 1 else f if self.program.is_pairwise else dict(zip(self.labels, f, strict=True))

    def predict_proba_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """Return the probability of each label of a row.

        The errors are those of `predict_one` and `predict_proba_many`.
        """
        f = run_program(self.program, self.encode_row(x)[None])[0]
        return dict(zip(self.labels, self._probabilities_of(f)[0].tolist(), strict=True))

    def encode_row(self, x: Mapping[Any, Any]) -> np.ndarray:
        """Return the fields of a row as numbers in the order of `columns`, float64 [columns]; the errors are of `predict_one`."""
        if not isinstance(x, Mapping):
            raise ValueError(f"a row must be a mapping of names to values, not a {type(x).__name__}")
        values, places, hashed = [math.nan] * len(self.program.columns), self._numbers, self.program.hashed
        for name, value in x.items():
            place = places.get(name)
            if type(value) is float and place is not None and not hashed:  # as most are
                values[place] = value
            elif place is not None:
                _put_number(values, place, _number_of(name, value))
            elif name in self._named:
                self._set_text(values, name, value)
            elif hashed:
                _put_number(values, _hashed_column(name, hashed), _number_of(name, value))
        return np.array(values, np.float64)

    def _set_text(self, values: Any, name: Any, value: Any) -> None:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return
        text, columns = format_category(value), self._texts.get(name, {})
        if text not in columns:
            text = text.strip()  # as an encoder of tables does
        if text not in columns:
            text = normalize_name(text)
        if text in columns:
            values[columns[text]] = 1.0
        elif text and name in self._buckets:
            of, buckets = self._buckets[name]
            column = buckets.get(_hashed_column(text, of))
            if column is not None:
                values[column] = 1.0
        if text and name in self._tables:
            seed, places = self._tables[name]
            key = compute_name_key(seed, text)
            for number, within in places.items():
                table = self.program.tables[number]
                if (at := table.find_row(key)) >= 0:
                    for column, place in within:
                        values[column] = table.values[at, place]

    # Many rows --------------------------------------------------------------------------------------------------------------

    def predict_many(self, X: Any) -> np.ndarray:
        """Predict many rows.

        Parameters
        ----------
        X
            An array [n, columns] in the order of `columns`, or a frame with columns of these names; other columns are ignored.

        Returns
        -------
        ndarray [n]
            Labels, or numbers or anomaly scores, float64.

        Raises
        ------
        ValueError
            X has another number of columns, or holds something that is not a number.
        """
        return np.concatenate([self._answers_of(*run_program(self.program, part)) for part in self._chunks_of(X)])

    def decision_function_many(self, X: Any) -> np.ndarray:
        """Return the decision values of many rows, float64 [n] or [n, labels or pairs of labels].

        X and the errors are as in `predict_many`.
        """
        f = self._decision_values(X)
        return f[:, 0] if f.shape[1] == 1 else f

    def predict_proba_many(self, X: Any) -> np.ndarray:
        """Return the probabilities of the labels of many rows, float64 [n, labels].

        X is as in `predict_many`.

        Raises
        ------
        ValueError
            X is refused, as in `predict_many`, or the model has no probabilities.
        """
        return self._probabilities_of(self._decision_values(X))

    def _decision_values(self, X: Any) -> np.ndarray:
        return np.concatenate([run_program(self.program, part)[0] for part in self._chunks_of(X)])

    def _chunks_of(self, X: Any) -> list[np.ndarray]:
        rows = self._read_matrix(X)
        return [rows[begin : begin + self._rows_at_once] for begin in range(0, max(len(rows), 1), self._rows_at_once)]

    def _read_matrix(self, X: Any) -> np.ndarray:
        if hasattr(X, "columns") and not isinstance(X, np.ndarray):
            return self._of_frame(X)
        try:
            rows = np.asarray(X, np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"X must be an array of numbers: {error}") from None
        if rows.ndim != 2 or rows.shape[1] != len(self.program.columns):
            shown = ", ".join(map(str, self.columns[:10])) + ", ..." * (len(self.columns) > 10)
            raise ValueError(f"X has the shape {rows.shape}, not (rows, {len(self.program.columns)}): the columns are {shown}")
        return rows

    def _of_frame(self, X: Any) -> np.ndarray:
        rows, names = np.full((len(X), len(self.program.columns)), math.nan), getattr(X, "column_names", None) or list(X.columns)
        for name in names:
            if name in self._named:
                for row, value in zip(rows, np.asarray(X[name], object), strict=True):
                    self._set_text(row, name, value)
            elif name in self._numbers or self.program.hashed:
                place = self._numbers[name] if name in self._numbers else _hashed_column(name, self.program.hashed)
                try:
                    for row, value in zip(rows, np.asarray(X[name], np.float64).tolist(), strict=True):
                        _put_number(row, place, value)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"feature {name!r} holds what is no number: {error}") from None
        return rows

    # Answers ----------------------------------------------------------------------------------------------------------------

    def _answers_of(self, f: np.ndarray, choice: np.ndarray) -> np.ndarray:
        answer = self.program.answer
        if answer.kind == "number":
            return f[:, 0]
        if answer.kind == "anomaly":
            if answer.size == 0.0:  # before two different rows were learned
                return np.zeros(len(f))
            z = np.clip((f[:, 0] - answer.center) / answer.size, -_FARTHEST, _FARTHEST)
            return 0.5 - 0.5 * z / np.sqrt(2.0 + z * z)
        return self._label_array[self._numbers_of_labels(f, choice)]

    def _numbers_of_labels(self, f: np.ndarray, choice: np.ndarray) -> np.ndarray:
        if self.program.answer.costs is not None:
            return (self._probabilities_of(f) * np.array(self.program.answer.costs)).argmax(axis=1)
        if len(self.labels) > 2:
            return choice.argmax(axis=1)
        if len(self.labels) == 1:
            return np.zeros(len(choice), np.int64)
        return ((choice[:, 0] >= 0.0) if self.program.answer.at_zero else (choice[:, 0] > 0.0)).astype(np.int64)

    def _probabilities_of(self, f: np.ndarray) -> np.ndarray:
        if self.program.answer.calibration is None:
            if len(self.labels) == 1:
                return np.ones((len(f), 1))
            raise ValueError("this model has no probabilities, only decision values: decision_function_many")
        return self.program.answer.calibration.compute_probabilities(f)


def _number_of(name: Any, value: Any) -> float:
    if value is None:
        return math.nan
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"feature {name!r} is {value!r:.80}, a {type(value).__name__}: it must be a number")


def format_category(value: Any) -> str:
    """Return the text that a value of a row has, where columns are of texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _hashed_column(name: Any, columns: int) -> int:
    text = name if isinstance(name, str) else repr(name)
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % columns


def _put_number(values: Any, column: int, number: float) -> None:
    # Names that are hashed may share a column.
    if math.isfinite(number):
        values[column] = number + (values[column] if math.isfinite(values[column]) else 0.0)


def _as_array(labels: list[Any]) -> np.ndarray:
    texts = [label for label in labels if isinstance(label, str)]
    room = 4 * max(map(len, texts), default=0) * len(texts)  # each text takes that of the longest one
    if len({type(label) for label in labels}) == 1 and room <= _MOST_OF_TEXTS:
        array = np.array(labels)
        if array.tolist() == labels:  # texts may end with \0
            return array
    values = np.empty(len(labels), object)
    values[:] = labels
    return values


#: The name of the text that holds a program, in a file of a model.
PROGRAM_KEY = "program"
#: The name of the text that says why a file has none.
NO_PROGRAM_KEY = "without_program"


def load(path: str | Path) -> Predictor:
    """Load a model to predict with it, with numpy alone.

    Parameters
    ----------
    path
        A file that ``model.save`` or ``streamsvm export --to numpy`` wrote.

    Returns
    -------
    Predictor

    Raises
    ------
    ExportError
        The file cannot be read, is corrupt or of a newer version, or holds a model that only streamsvm itself can predict with.
        The message names the file, and says what to do.
    """
    try:
        data = read_file(Path(path))
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from error
    except CorruptFileError as error:
        raise ExportError(f"{path}: it is corrupt: {error}") from error
    return loads(data, str(path))


def loads(data: bytes, name: str = "the model") -> Predictor:
    """Load a model from the bytes of its file, as `load` does; ``name`` stands for the file in messages."""
    try:
        strings, arrays = _read_container(data)
        return Predictor(read_program(strings, arrays))
    except ExportError as error:
        raise ExportError(f"{name}: {error}") from None


def read_program(strings: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> Program:
    """Return the program of a file; an ExportError says why there is none."""
    if PROGRAM_KEY not in strings:
        reason = strings.get(NO_PROGRAM_KEY, "it is a checkpoint: `streamsvm export --to numpy` makes a file of it")
        raise ExportError(f"it holds no program to predict by: {reason}")
    return Program.deserialise(strings[PROGRAM_KEY], arrays)


def _read_container(data: bytes) -> tuple[Mapping[str, str], Mapping[str, np.ndarray]]:
    if data[:1] == b"{":
        raise ExportError("it is JSON, which other programs read: `streamsvm export --to numpy` makes a file for numpy")
    try:
        container = unpack_container(data)
    except CorruptFileError as error:
        raise ExportError(f"it is corrupt: {error}") from None
    except ModelFileError as error:
        raise ExportError(str(error)) from None
    return container.strings, container.arrays
