"""Encodes a column of texts, in bounded memory: naive Bayes log odds of labels, or mean targets, of words and parts of words."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.core.checks import validate_count
from streamsvm.core.explaining import MAX_NAME_CHARACTERS
from streamsvm.files.characters import Characters, list_character_kinds, split_words
from streamsvm.files.messages import shorten
from streamsvm.stream.tables.target_encoding import MAX_TEXT_LABELS, OrderedEncoding, TargetEncoding
from streamsvm.stream.tables.token_counts import LOGS, N_KINDS, merge_tokens, process_texts, score_average_tokens, score_tokens

#: Maximum number of tokens in the hash table of a column.
MAX_TOKENS = 2**18
#: Maximum number of columns of texts in a table.
MAX_TEXT_COLUMNS = 64


class TextEncoding(OrderedEncoding):
    """The learned encoding of a column of texts: counts of words, pairs of words and 4-grams of characters in a hash table.

    A text is encoded by the labels of earlier rows only. For each label, a token (word, pair or 4-gram) has a score: the log
    odds of naive Bayes, which is the logarithm of its smoothed share of all tokens with this label, minus the mean of this over
    all labels. The features of each label are the sum of the scores divided by the square root of their number, and the maximum,
    over words and pairs, and over 4-grams. If there are two labels, only the larger one has features, which also have the
    minimum. In a regression, the score is the mean of the standardised targets, shrunk to 0. Labels are those of a
    `TargetEncoding`; the first 20 have features.

    The table takes 16 bytes for each of 262,144 tokens with two labels (4 MiB), and 4 more for each further label. When the 8
    slots of a token are full, it replaces the one that was learned longest ago. A text of n characters takes O(n labels).

    >>> labels, encoding = TargetEncoding(), TextEncoding()
    >>> for text, y in [("free prize", "spam"), ("see you at home", "ham")] * 2:
    ...     _ = labels.learn_row([], y)
    ...     encoding.learn_rows(Characters.from_texts([text]), labels, np.array([labels.get_label_code(y)]), np.ones(1))
    >>> X = encoding.encode_rows(Characters.from_texts(["a free home"]), labels)
    >>> dict(zip(encoding.make_names("text", labels), X[0].round(2).tolist()))["text~spam words max"]
    1.6
    """

    def __init__(self) -> None:
        self._n_rows = 0
        self._is_regression: bool | None = None
        self._make_table(2)

    def _make_table(self, n_counts: int) -> None:
        """Replace the hash table by an empty one with ``n_counts`` counts of each token."""
        self._records, self._totals = np.zeros((MAX_TOKENS, 2 + n_counts), np.uint32), np.zeros((N_KINDS + 1, n_counts))

    @staticmethod
    def make_names(column: Hashable, labels: TargetEncoding | None) -> list[str]:
        """Return the names of the features of a column with these labels: the number of words, and those for each label."""
        suffixes = [] if labels is None else labels.find_suffixes(MAX_TEXT_LABELS)[0]
        statistics = ("mean", "max", "min") if len(suffixes) == 1 else ("mean", "max")
        kinds = [f"{kind} {statistic}" for kind in ("words", "4-grams") for statistic in statistics]
        return [f"{column}~words", *(f"{column}~{suffix} {kind}" for suffix in suffixes for kind in kinds)]

    def encode_rows(
        self, texts: Characters, labels: TargetEncoding, y: np.ndarray | None = None, w: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the features of n texts, float64 [n, features], in the order of `make_names`.

        With ``y`` and ``w``, float64 [n], each text is encoded as if those before it had been learned. ``y`` has numbers from
        `TargetEncoding.encode_rows` (NaN: not learned), and ``w`` the weights. Pass the same texts to `learn_rows` next
        to learn them; otherwise, nothing is learned.
        """
        self._prepare(labels)
        out = np.zeros((len(texts.starts) - 1, len(self.make_names("", labels))))
        if y is None or w is None or np.isnan(y).all():
            no_targets = np.full(len(out), np.nan)
            self._process(texts, labels, no_targets, no_targets, out)
        else:
            attributes = {**vars(self), "_totals": self._totals.copy()}
            slots = np.full(3 * len(texts.codes), -1)  # -1: no change
            old_records = np.empty((len(slots), self._records.shape[1]), np.uint32)
            # Of several changes to a slot, the first one is undone last. Set before: Ctrl-C may come at any time.
            self._batch = texts, attributes, [(self._records, slots[::-1], old_records[::-1])]
            self._process(texts, labels, y, w, out, slots, old_records)
        return out

    def score_words(self, text: Characters, labels: TargetEncoding) -> dict[Any, dict[str, float]]:
        """Return the scores of the words of a text, by label (a regression has the key None) and word. Words that were never
        learned, and those that do not distinguish the labels, are left out. Long words are shortened.

        The score of a word is the feature with the mean of scores of a text that consists of this word alone.
        """
        words, features = split_words(text.codes), self.make_names("", labels)
        columns = [column for column, name in enumerate(features) if name.endswith(" words mean")]
        scores = self.encode_rows(Characters.from_texts(words), labels)[:, columns]
        names = [shorten(word, MAX_NAME_CHARACTERS) for word in words]
        by_label = labels.split_scores(scores)
        return {label: {name: s for name, s in zip(names, column, strict=True) if s} for label, column in by_label.items()}

    def learn_rows(self, texts: Characters, labels: TargetEncoding, y: np.ndarray, w: np.ndarray) -> None:
        """Learn n texts in order, with the numbers ``y`` of their labels and their weights ``w``, as in `encode_rows`."""
        if not self._keep(texts):
            self._prepare(labels)
            self._process(texts, labels, y, w, np.zeros((len(y), 0)))

    def _process(
        self, texts: Characters, labels: TargetEncoding, y: np.ndarray, w: np.ndarray, out: np.ndarray, *changes: np.ndarray
    ) -> None:
        """Encode texts to ``out``, and learn them. If there are ``changes``, the slots that were changed, int64 [changes], and
        their former contents, uint32 [changes, 2 + counts], are written to these.
        """
        changes = changes or (np.empty(0, np.int64), np.empty((0, self._records.shape[1]), np.uint32))
        table, positive = (self._records, self._totals), labels.find_suffixes()[1]
        rows = self._n_rows, *texts, list_character_kinds(), LOGS, y, w
        self._n_rows += int(process_texts(*table, *rows, positive, bool(labels.is_regression), out, *changes))

    def _prepare(self, labels: TargetEncoding) -> None:
        """Forget a batch that was not learned, and give each token a count for each registered label. The hash table is emptied
        if the labels have turned out to be the targets of a regression.
        """
        self._roll_back()
        if self._is_regression is not labels.is_regression:
            self._is_regression = labels.is_regression
            self._make_table(2)
        if (n_more := labels.count_labels(MAX_TEXT_LABELS) - self._totals.shape[1]) > 0:
            self._records = np.pad(self._records, ((0, 0), (0, n_more)))
            self._totals = np.pad(self._totals, ((0, 0), (0, n_more)))

    @classmethod
    def merge(cls, encodings: Sequence[tuple[TextEncoding, TargetEncoding]], labels: TargetEncoding) -> TextEncoding:
        """Return an encoding that is approximately as if one had learned all texts of these encodings. Each is paired with its
        labels; ``labels`` are those of the result.
        """
        merged = cls()
        merged._prepare(labels)
        for encoding, old_labels in encodings:
            encoding._prepare(old_labels)  # its labels may have changed since its last text
            records = encoding._list_tokens()
            mapped = np.zeros((len(records), merged._records.shape[1]), np.uint32)
            mapped[:, :2] = records[:, :2]
            for old, new in enumerate(old_labels.map_labels(labels, MAX_TEXT_LABELS)):
                mapped.view(np.float32)[:, 2 + new] += records.view(np.float32)[:, 2 + old]
                merged._totals[:N_KINDS, new] += encoding._totals[:N_KINDS, old]
            merge_tokens(merged._records, merged._totals, mapped)
            merged._n_rows += encoding._n_rows
        return merged

    def compute_scores(self, labels: TargetEncoding) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the sorted keys of all tokens in the hash table, uint32 [n], their scores, float32 [n, suffixes of the labels],
        and the scores of an average token of each kind, float64 [2, suffixes].
        """
        self._prepare(labels)
        tokens, (suffixes, positive) = self._list_tokens(), labels.find_suffixes(MAX_TEXT_LABELS)
        tokens, is_regression = tokens[np.argsort(tokens[:, 0])], bool(labels.is_regression)
        averages, keys = np.zeros((N_KINDS, self._totals.shape[1])), tokens[:, 0].copy()
        score_average_tokens(self._totals, is_regression, averages)
        scores = np.zeros((len(tokens), 1 if is_regression else averages.shape[1]))
        score_tokens(tokens, keys, np.arange(len(keys)), LOGS, is_regression, scores)
        encoded = [positive] * len(suffixes) if averages.shape[1] == 2 else list(range(len(suffixes)))
        return keys, scores[:, encoded].astype(np.float32), averages[:, encoded]

    def _list_tokens(self) -> np.ndarray:
        """Return the records of all tokens in the hash table, uint32 [tokens, 2 + counts]."""
        self._roll_back()
        return self._records[self._records[:, 0] != 0]

    def __getstate__(self) -> dict[str, Any]:
        records = self._list_tokens()
        arrays = {"keys": records[:, 0].copy(), "times": records[:, 1].copy(), "counts": records[:, 2:].copy().view(np.float32)}
        return {"of_numbers": self._is_regression, "rows": self._n_rows, "totals": self._totals, **arrays}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        arrays = [np.array(state[name]) for name in ("keys", "times", "counts", "totals")]
        n, n_counts = len(state["keys"]), state["totals"].shape[-1]
        # Compiled code relies on these types and shapes.
        expected = [("<u4", (n,)), ("<u4", (n,)), ("<f4", (n, n_counts)), ("<f8", (N_KINDS + 1, n_counts))]
        is_valid = state["of_numbers"] in (True, False, None) and 2 <= n_counts <= MAX_TEXT_LABELS + 1 and n <= MAX_TOKENS
        if not is_valid or [(array.dtype.str, array.shape) for array in arrays] != expected or not arrays[0].all():
            raise ValueError("the text encoding is corrupt: its arrays do not fit")
        weights = [arrays[2][:, :1] if state["of_numbers"] else arrays[2], arrays[3]]
        if not (all((array >= 0.0).all() for array in weights) and all(np.isfinite(array).all() for array in arrays)):
            raise ValueError("the text encoding is corrupt: it has invalid counts")
        self.__init__()  # type: ignore[misc]
        self._is_regression, self._n_rows = state["of_numbers"], validate_count("rows", state["rows"])
        self._make_table(n_counts)
        records = np.column_stack([arrays[0], arrays[1], arrays[2].view(np.uint32)])
        merge_tokens(self._records, self._totals, records)
        self._totals = arrays[3]
