"""Predictions of saved models, computed with numpy alone."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.edge.program import Column, ExportError, Name, Program, run_program
from streamsvm.edge.step import MAX_NUMBERS_AT_ONCE
from streamsvm.edge.texts import TextTable
from streamsvm.files.category_names import compute_column_seed, compute_name_key, format_category, normalize_name
from streamsvm.files.container import CorruptFileError, ModelFileError, read_file, unpack_container

#: The key of the program among the strings of a saved model.
PROGRAM_KEY = "program"
#: The key of the reason why a saved model has no program.
NO_PROGRAM_KEY = "without_program"
_MAX_LABEL_ARRAY_BYTES = 2**24  # labels that would take more as a numpy string array are stored as objects
_MAX_DEVIATIONS = 1e100  # decision values are clipped to this many deviations from their mean, so that squares stay finite


def load(path: str | Path) -> Predictor:
    """Load a model from a file that ``model.save`` or ``streamsvm export --to numpy`` wrote, for predictions where only numpy is
    installed. Returns a `Predictor`, which cannot learn.

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
        The message names the file and the remedy.
    """
    try:
        data = read_file(Path(path))
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from error
    except CorruptFileError as error:
        raise ExportError(f"{path}: it is corrupt: {error}") from error
    return loads(data, str(path))


def loads(data: bytes, name: str = "the model") -> Predictor:
    """Load a model from the bytes of its file, for predictions with numpy alone, as `load` does from a path. Error messages call
    the file ``name``. Raises ExportError if the bytes are corrupt, or hold a model that only streamsvm itself can predict with.
    """
    try:
        strings, arrays = _read_container(data)
        return Predictor(read_program(strings, arrays))
    except ExportError as error:
        raise ExportError(f"{name}: {error}") from None


class Predictor:
    """A saved model that predicts as it did when it was saved. It does not learn.

    Pass a row as a mapping of names to values, as to the model, or as numbers in the order of ``columns``. In a mapping,
    unknown fields are ignored. A value is missing if its field is absent, None or not finite; in an array, if it is not finite.
    As in the model, a missing number becomes 0, or after a scaler the mean. Predictions have no state: any number of threads may
    call them.

    Parameters
    ----------
    program
        The program to evaluate.

    Attributes
    ----------
    kind : str
        The kind of prediction: ``"class"``, ``"number"`` or ``"anomaly"``.
    labels : list
        The labels of the classes. With two, decision values above 0 mean the second one.
    columns : list
        Names of the input columns, in their order.
    nbytes : int
        Bytes of the arrays of the program.
    metadata : dict
        Metadata of the model that the file contains.

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
        self._label_array = _make_label_array(self.labels)
        n_stacks = max((len(step.arrays["shares"]) for step in program.steps if step.op == "experts"), default=0)
        self._chunk_rows = max(MAX_NUMBERS_AT_ONCE // max(sum(program.widths) + n_stacks, 1), 1)
        # How to encode a row that is a mapping. For each field:
        self._number_columns: dict[Any, int] = {}  # index of the column that holds its value
        self._text_columns: dict[Any, dict[str, int]] = {}  # index of the column of each text (one-hot encoding)
        self._bucket_columns: dict[Any, tuple[int, dict[int, int]]] = {}  # number of buckets, and index of each bucket's column
        # Seed of the hashes and, for each table, pairs of an input column and a column of the table (target encoding).
        self._table_columns: dict[Any, tuple[int, dict[int, list[tuple[int, int]]]]] = {}
        for number, column in enumerate(program.columns):
            self._index_column(number, column)
        self._categorical = self._text_columns.keys() | self._bucket_columns.keys() | self._table_columns.keys()

    def __repr__(self) -> str:
        name = str(self.metadata.get("model"))
        model = f" of {name}" if name.isidentifier() and name != "None" else ""  # the file may be from a stranger
        labels = f", labels: {len(self.labels):,}" if self.kind == "class" else ""
        return f"<Predictor{model}; columns: {len(self.program.columns):,}{labels}, bytes: {self.nbytes:,}>"

    def _index_column(self, number: int, column: Column) -> None:
        """Add an input column of the model to the lookup tables of `encode_row`, which map a field name to its columns for each
        encoding (plain number, one-hot, hash bucket, target encoding). ``number`` is the index of ``column`` in the input.
        """
        if column.text is not None:
            self._text_columns.setdefault(column.field, {})[column.text] = number
        elif column.bucket is not None:
            self._bucket_columns.setdefault(column.field, (column.bucket[1], {}))[1][column.bucket[0]] = number
        elif column.table is not None:
            table, table_column = column.table
            by_table = self._table_columns.setdefault(column.field, (compute_column_seed(column.field), {}))[1]
            by_table.setdefault(table, []).append((number, table_column))
            if len(by_table) > 1 and self.program.is_text(column):
                raise ExportError(f"the column {column.field!r:.80} has more than one table: a long text would take too long")
        else:
            self._number_columns[column.field] = number

    @property
    def columns(self) -> list[Name]:
        """Names of the model's input columns, in the order of the columns of an array of rows."""
        return [column.name for column in self.program.columns]

    @property
    def nbytes(self) -> int:
        """Size of the model in memory: bytes of all its numpy arrays."""
        return self.program.nbytes

    # One row ----------------------------------------------------------------------------------------------------------------

    def predict_one(self, x: Mapping[Any, Any]) -> Any:
        """Predict one row, a dict of field names to values. Returns the label for a classifier, a number for a regressor, and a
        score from 0 to 1 for an anomaly detector.

        Parameters
        ----------
        x
            The fields of the row, a mapping of names to values.

        Raises
        ------
        ValueError
            A value is not a number where there should be one.
        """
        prediction = self._predict_from_values(*run_program(self.program, self.encode_row(x)[None]))[0]
        return prediction.item() if isinstance(prediction, np.generic) else prediction

    def decision_function_one(self, x: Mapping[Any, Any]) -> Any:
        """Return the decision value of one row, a dict of field names to values: a float, or with more than two classes a dict of
        label to float.

        With a value for each pair of classes (one-vs-one), it is a list. The errors are those of `predict_one`.
        """
        f = run_program(self.program, self.encode_row(x)[None])[0][0].tolist()
        return f[0] if len(f) == 1 else f if self.program.is_pairwise else dict(zip(self.labels, f, strict=True))

    def predict_proba_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """Return the probability of each label for one row, a dict of field names to values, as a dict of label to float. Raises
        ValueError if the model has no probabilities.

        The errors are also those of `predict_one`.
        """
        f = run_program(self.program, self.encode_row(x)[None])[0]
        return dict(zip(self.labels, self._compute_probabilities(f)[0].tolist(), strict=True))

    def encode_row(self, x: Mapping[Any, Any]) -> np.ndarray:
        """Convert one row, a dict of field names to values, to the model's input: float64 [columns], in the order of `columns`,
        with categories encoded and NaN for missing numbers. Unknown fields are ignored.

        The errors are those of `predict_one`.
        """
        if not isinstance(x, Mapping):
            raise ValueError(f"a row must be a mapping of names to values, not a {type(x).__name__}")
        values, columns = [math.nan] * len(self.program.columns), self._number_columns
        n_hash_columns = self.program.n_hash_columns
        for name, value in x.items():
            column = columns.get(name)
            if type(value) is float and column is not None and not n_hash_columns:  # the common case, without function calls
                values[column] = value
            elif column is not None:
                _add_number(values, column, _to_number(name, value))
            elif name in self._categorical:
                self._encode_category(values, name, value)
            elif n_hash_columns:
                _add_number(values, _hash_to_column(name, n_hash_columns), _to_number(name, value))
        return np.array(values, np.float64)

    def _encode_category(self, row: Any, name: Any, value: Any) -> None:
        """Write the encoding of the categorical field ``name`` with this ``value`` into ``row``, the model's input, float64
        [columns]: a 1 in its one-hot column or hash bucket, and its target encodings. A missing value (None or NaN) changes
        nothing.
        """
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return
        text, columns = format_category(value), self._text_columns.get(name, {})
        sentence = text.strip()
        if text not in columns:  # as a TableEncoder does
            text = sentence if sentence in columns else normalize_name(sentence)
        if text in columns:
            row[columns[text]] = 1.0
        elif text and name in self._bucket_columns:
            n_buckets, buckets = self._bucket_columns[name]
            column = buckets.get(_hash_to_column(text, n_buckets))
            if column is not None:
                row[column] = 1.0
        if text and name in self._table_columns:
            seed, by_table = self._table_columns[name]
            key = compute_name_key(seed, text)
            for number, pairs in by_table.items():
                table = self.program.tables[number]
                values = table.encode_text(sentence) if isinstance(table, TextTable) else table.find_values(key)
                for column, table_column in pairs:
                    row[column] = values[table_column]

    # Many rows --------------------------------------------------------------------------------------------------------------

    def predict_many(self, X: Any) -> np.ndarray:
        """Predict many rows at once, from an array [n, columns] or a data frame. Returns labels, numbers, or anomaly scores from
        0 to 1, as an array [n].

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
            X has another number of columns, or contains a value that is not a number.
        """
        return np.concatenate([self._predict_from_values(*run_program(self.program, chunk)) for chunk in self._split_rows(X)])

    def decision_function_many(self, X: Any) -> np.ndarray:
        """Return the decision values of many rows, an array [n, columns] or a data frame: float64 [n] for two labels or a
        regressor, [n, labels] for more labels. A one-vs-one classifier returns a column for each pair of labels.

        X and the errors are as in `predict_many`.
        """
        f = self._decision_values(X)
        return f[:, 0] if f.shape[1] == 1 else f

    def predict_proba_many(self, X: Any) -> np.ndarray:
        """Return the probabilities of the labels for many rows, an array [n, columns] or a data frame: float64 [n, labels], in
        the order of ``labels``.

        X is as in `predict_many`.

        Raises
        ------
        ValueError
            X is invalid, as in `predict_many`, or the model has no probabilities.
        """
        return self._compute_probabilities(self._decision_values(X))

    def _decision_values(self, X: Any) -> np.ndarray:
        """Return the decision values of many rows, an array [n, columns] or a data frame, always in two dimensions: float64 [n,
        1], [n, labels] or [n, pairs of labels].
        """
        return np.concatenate([run_program(self.program, chunk)[0] for chunk in self._split_rows(X)])

    def _split_rows(self, X: Any) -> list[np.ndarray]:
        """Convert X, an array or data frame, to float64 input rows, and split them into a list of chunks [n, columns], small
        enough that all intermediate values fit into memory. Returns one empty chunk if X has no rows.
        """
        rows = self._read_matrix(X)
        return [rows[start : start + self._chunk_rows] for start in range(0, max(len(rows), 1), self._chunk_rows)]

    def _read_matrix(self, X: Any) -> np.ndarray:
        """Convert X, an array or data frame, to input rows, float64 [n, columns]. Raises ValueError if X is invalid."""
        if hasattr(X, "columns") and not isinstance(X, np.ndarray):
            return self._read_frame(X)
        try:
            rows = np.asarray(X, np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"X must be an array of numbers: {error}") from None
        if rows.ndim != 2 or rows.shape[1] != len(self.program.columns):
            names = ", ".join(map(str, self.columns[:10])) + ", ..." * (len(self.columns) > 10)
            raise ValueError(f"X has the shape {rows.shape}, not (rows, {len(self.program.columns)}): the columns are {names}")
        return rows

    def _read_frame(self, X: Any) -> np.ndarray:
        """Convert a data frame to input rows of the model, float64 [n, columns], with categories encoded. Columns that the model
        does not know are ignored; missing ones become NaN. Raises ValueError if a numeric column contains anything but numbers.
        """
        rows, names = np.full((len(X), len(self.program.columns)), math.nan), getattr(X, "column_names", None) or list(X.columns)
        for name in names:
            if name in self._categorical:
                for row, value in zip(rows, np.asarray(X[name], object), strict=True):
                    self._encode_category(row, name, value)
            elif name in self._number_columns or self.program.n_hash_columns:
                columns, n_hash_columns = self._number_columns, self.program.n_hash_columns
                column = columns[name] if name in columns else _hash_to_column(name, n_hash_columns)
                try:
                    for row, value in zip(rows, np.asarray(X[name], np.float64).tolist(), strict=True):
                        _add_number(row, column, value)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"feature {name!r} must contain numbers: {error}") from None
        return rows

    # Predictions from the values of a program ---------------------------------------------------------------------------------

    def _predict_from_values(self, f: np.ndarray, choice: np.ndarray) -> np.ndarray:
        """Convert the outputs of the model for n rows to labels, numbers or anomaly scores, an array [n]. ``f`` are the decision
        values. A classifier predicts the label with the largest score in ``choice``, or for two labels, by the sign of the score.
        Both are float64 [n, width].
        """
        answer = self.program.answer
        if answer.kind == "number":
            return f[:, 0]
        if answer.kind == "anomaly":
            if answer.size == 0.0:  # the model has not learned two different rows yet
                return np.zeros(len(f))
            z = np.clip((f[:, 0] - answer.center) / answer.size, -_MAX_DEVIATIONS, _MAX_DEVIATIONS)
            return 0.5 - 0.5 * z / np.sqrt(2.0 + z * z)
        return self._label_array[self._choose_labels(f, choice)]

    def _choose_labels(self, f: np.ndarray, choice: np.ndarray) -> np.ndarray:
        """Return the index of the predicted label for each row, int [n]. It is the label with the largest score in ``choice``, or
        for two labels, given by the sign of the score. A model with misclassification costs uses the probabilities from the
        decision values ``f`` times these costs as scores.
        """
        if self.program.answer.costs is not None:
            return (self._compute_probabilities(f) * np.array(self.program.answer.costs)).argmax(axis=1)
        if len(self.labels) > 2:
            return choice.argmax(axis=1)
        if len(self.labels) == 1:
            return np.zeros(len(choice), np.int64)
        return ((choice[:, 0] >= 0.0) if self.program.answer.at_zero else (choice[:, 0] > 0.0)).astype(np.int64)

    def _compute_probabilities(self, f: np.ndarray) -> np.ndarray:
        """Convert the decision values ``f``, float64 [n, width], to probabilities of the labels, float64 [n, labels]. Raises
        ValueError if the model has no calibration to probabilities.
        """
        if self.program.answer.calibration is None:
            if len(self.labels) == 1:
                return np.ones((len(f), 1))
            raise ValueError("this model has no probabilities, only decision values: decision_function_many")
        return self.program.answer.calibration.compute_probabilities(f)


def _to_number(name: Any, value: Any) -> float:
    """Convert the value of a numeric field, called ``name`` in messages, to a float; None becomes NaN. Raises ValueError if it is
    a text or cannot be converted.
    """
    if value is None:
        return math.nan
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"feature {name!r} is {value!r:.80}, a {type(value).__name__}: it must be a number")


def _hash_to_column(name: Any, n_columns: int) -> int:
    """Return the index that the hashing trick assigns to a name: its CRC-32 modulo ``n_columns``, the number of columns."""
    text = name if isinstance(name, str) else repr(name)
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % n_columns


def _add_number(row: Any, column: int, number: float) -> None:
    """Add ``number`` to the entry at index ``column`` of ``row``, the model's input, in place. An entry of NaN counts as 0, and a
    number that is NaN or infinite is not added. So fields that are hashed to the same column are summed up.
    """
    if math.isfinite(number):
        row[column] = number + (row[column] if math.isfinite(row[column]) else 0.0)


def _make_label_array(labels: list[Any]) -> np.ndarray:
    """Convert labels to a numpy array of their own type (str, int, bool or float) if all have the same one. Otherwise, or if the
    conversion would change a label or take too much memory, returns an array of dtype object.
    """
    texts = [label for label in labels if isinstance(label, str)]
    nbytes = 4 * max(map(len, texts), default=0) * len(texts)  # numpy gives each string the space of the longest one
    if len({type(label) for label in labels}) == 1 and nbytes <= _MAX_LABEL_ARRAY_BYTES:
        array = np.array(labels)
        if array.tolist() == labels:  # numpy strips trailing \0 from strings
            return array
    values = np.empty(len(labels), object)
    values[:] = labels
    return values


def read_program(strings: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> Program:
    """Return the program, the model as a list of numpy operations, from the named strings and arrays of a saved model's file.
    Raises ExportError with the reason if the file contains none, for example because the model cannot be exported.
    """
    if PROGRAM_KEY not in strings:
        reason = strings.get(NO_PROGRAM_KEY, "it is a checkpoint: `streamsvm export --to numpy` makes a file of it")
        raise ExportError(f"it holds no program to predict by: {reason}")
    return Program.deserialise(strings[PROGRAM_KEY], arrays)


def _read_container(data: bytes) -> tuple[Mapping[str, str], Mapping[str, np.ndarray]]:
    """Return the named strings and named arrays that the bytes of a saved model's file contain. Raises ExportError if the bytes
    are corrupt, JSON, or of a newer format version.
    """
    if data[:1] == b"{":
        raise ExportError("it is JSON, which other programs read: `streamsvm export --to numpy` makes a file for numpy")
    try:
        container = unpack_container(data)
    except CorruptFileError as error:
        raise ExportError(f"it is corrupt: {error}") from None
    except ModelFileError as error:
        raise ExportError(str(error)) from None
    return container.strings, container.arrays
