"""Infers whether labels are classes or numbers to predict, and warns of unusual labels and of a misleading order of rows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.files.messages import short_repr
from streamsvm.stream.schema.column_inference import (
    MIN_ROWS_TO_JUDGE,
    InferredColumn,
    format_most_common,
    infer_column,
    is_number,
    make_kind_option,
    may_group_thousands,
)
from streamsvm.stream.tables.column_kinds import DATE, DURATION, NUMBER, QUANTITY
from streamsvm.stream.tables.row_order import FOLLOWS_LAST, are_falling, are_sorted
from streamsvm.stream.tables.table_parser import TableParser

#: Note on a label column whose values look like numbers to predict, if no regression was requested.
TARGET_NOTE = "a number to predict"
#: More distinct whole numbers are numbers to predict; and the number of distinct labels that are examined.
MAX_CLASSES, MAX_COUNTS = 100, 1000
_MIN_ROWS_PER_CLASS = 5  # on average
#: Neighbouring values of a count are about as frequent, and those of classes are not: the mean square of the differences of
#: frequencies, or of their ranks, is below this share of twice their variance. Chosen on half of 3,800 generated columns,
#: confirmed on the others: .3 % of random classes are taken for counts, and 95 % of counts, some of them rounded.
_MAX_ROUGHNESS = 0.55
_ROUND = 5  # multiples of this are often more frequent than their neighbours: people round
_MAX_STEP_RATIO = 2.0  # of the median step between the values of a count, and the smallest one


def infer_label(name: str, labels: Sequence[Any], regression: bool) -> InferredColumn:
    """Infer from a sample of labels in the column ``name`` whether they are numbers to predict, and the options that parse them.

    >>> prices = [f"${1000 + 7 * i:,}" for i in range(30)]
    >>> infer_label("price", [*prices, "unknown"], True).required_options
    {'columns': {'price': 'quantity=.'}, 'missing': ['unknown']}
    >>> infer_label("price", prices[:3], False).required_options
    {}
    """
    options, parsed = _infer_target_options(name, labels)
    numbers = [number for number in parsed if number is not None]
    is_target = _are_targets(numbers) and (not options or len(set(numbers)) > MIN_ROWS_TO_JUDGE)
    note = TARGET_NOTE if is_target and not regression else ""
    kind = "target" if regression else "label"
    return InferredColumn(name, kind, format_most_common(labels), note, options if regression or is_target else {})


def _infer_target_options(name: str, labels: Sequence[Any]) -> tuple[dict[str, Any], list[float | None]]:
    """Return the options that parse all labels as numbers, and the numbers (None for a missing one). These are empty if there
    are no such options.
    """
    texts = [str(label).strip() for label in labels]
    if may_group_thousands(texts):
        return make_kind_option(name, f"{QUANTITY}=,"), [float(text.replace(".", "")) for text in texts]
    if all(map(is_number, labels)):
        return {}, list(map(float, labels))
    column = infer_column(name, labels, reads_text=True)
    inferred = column.required_options
    mark, kind = inferred.get("decimal", ""), inferred.get("columns", {}).get(name, "")
    missing = {"missing": inferred["missing"]} if "missing" in inferred else {}
    quantity = f"{QUANTITY}={mark}" if mark else kind if kind.startswith(QUANTITY) else DURATION
    kinds = quantity, DURATION, *([kind] if kind.startswith(DATE) else ())
    candidates = [make_kind_option(name, f"{NUMBER}={'|'.join(inferred.get('missing', ()))}")]  # markers of this column only
    candidates += [{"decimal": mark} | missing] if mark else []
    for options in (*candidates, *(make_kind_option(name, kind) | missing for kind in kinds)):
        targets = list(map(TableParser(**options, label=name).parse_label, labels))
        if all(y is None or is_number(y) for y in targets):
            return options, [None if y is None else float(y) for y in targets]
    return {}, []


def _are_targets(numbers: Sequence[float]) -> bool:
    """Return whether labels, as numbers, look like targets of a regression: some have fractions, or there are too many distinct
    values for classes.
    """
    distinct = set(numbers)
    if len(distinct) > 2 and not all(map(float.is_integer, distinct)):
        return True
    return len(distinct) > MAX_CLASSES or (len(distinct) > MIN_ROWS_TO_JUDGE and 2 * len(distinct) > len(numbers))


def warn_of_labels(name: str, label: str | None, labels: Sequence[Any], are_classes: bool, is_file: bool) -> None:
    """Warn of class labels that differ only in upper and lower case, such as ``Yes`` and ``yes``, of whole numbers that are
    probably counts rather than classes, and of a file that is sorted by its labels. ``name`` is the source in the message,
    ``label`` the label column, and ``labels`` has the label of each row.
    """
    labels = [y for y in labels if y is not None and y.__hash__ is not None]
    if is_file and are_sorted(labels):  # a frame is checked when it is learned
        text = f"{name}: the rows are sorted by {label}, {FOLLOWS_LAST}: shuffle them, unless this is their order in time"
        warnings.warn(text, stacklevel=2)
    counts = Counter(labels if are_classes else ())
    first_spellings: dict[str, str] = {}
    for text in filter(lambda y: isinstance(y, str), counts):
        if (first := first_spellings.setdefault(text.casefold(), text)) != text:
            spellings = f"{short_repr(first)} and {short_repr(text)}"
            warnings.warn(f"{name}: {spellings} are two labels. If they mean one, write them alike", stacklevel=2)
            break
    if _are_counts(label or "", counts):
        text = f"{name}: the {len(counts)} numbers in {label} are learned as labels. To predict a number: --regression"
        warnings.warn(f"{text} (in Python regression=True, or TableRegressor)", stacklevel=2)


def _are_counts(name: str, counts: Mapping[Any, int]) -> bool:
    """Return whether labels in the column ``name`` are probably counts rather than classes: many numbers, also with units, that
    have few rows each, or whose neighbours are about equally frequent. ``counts`` has the number of rows with each label.
    """
    if not MIN_ROWS_TO_JUDGE < len(counts) <= MAX_COUNTS:
        return False
    numbers = zip(_infer_target_options(name, list(counts))[1], counts.values(), strict=False)
    pairs = sorted(pair for pair in numbers if pair[0] is not None)
    if len(pairs) < 2:
        return False
    values, frequencies = np.array(pairs).T
    are_rare = frequencies.mean() < _MIN_ROWS_PER_CLASS
    is_varied, steps = frequencies.var() > frequencies.mean(), np.diff(values)
    if np.median(steps) <= _MAX_STEP_RATIO * steps.min():  # ids of classes may have gaps
        unrounded = frequencies[values % _ROUND != 0.0]
        frequencies = unrounded if 2 * len(unrounded) > len(values) else frequencies
        ordered = np.sort(frequencies)
        frequencies = np.searchsorted(ordered, frequencies) + np.searchsorted(ordered, frequencies, "right")
    is_smooth = np.square(np.diff(frequencies)).sum() < _MAX_ROUGHNESS * 2.0 * frequencies.var() * len(frequencies)
    return bool(are_rare or (is_varied and is_smooth))


def warn_of_falling_times(name: str, columns: Iterable[InferredColumn]) -> None:
    """Warn if the rows have the newest first, judged by a date column. ``name`` is the source in the message."""
    if falling := [column.name for column in columns if are_falling(column.times)]:
        text = f"{name}: {falling[0]} falls from row to row, so the newest rows come first, {FOLLOWS_LAST}"
        warnings.warn(f"{text}: sort the rows by time, oldest first", stacklevel=2)
