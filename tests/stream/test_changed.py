"""The warning of columns that have changed since the checkpoint."""

import warnings

import pytest

from streamsvm import BSGDClassifier
from streamsvm.stream import CheckpointFolder, IterableSource, LearningLoop
from streamsvm.stream.tables import TableEncoder

OLD = [
    ({"city": "KLB"[i % 3], "age": float(i % 7), "size": i % 5} | ({"rare": 1.0} if i % 5 == 0 else {}), i % 2)
    for i in range(300)
]


def changed(rows):
    return [({"city": x["city"], "height": 1.5, "size": [1, 2]}, y) for x, y in rows]


def warned(rows, folder, **options):
    model = TableEncoder("city:category") | BSGDClassifier(budget=10)
    with CheckpointFolder(folder) as checkpoints, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop = LearningLoop(IterableSource(rows), model, checkpoints=checkpoints, **options)
        loop.run()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("n", [60, 300])  # fewer rows than are compared, and more
def test_changed_columns_are_reported_once(tmp_path, n):
    limits = {"on_error": "skip", "error_share": 1.0}
    assert warned(OLD, tmp_path) == []
    assert warned([*OLD, *[(x, y) for x, y in OLD if "rare" not in x]], tmp_path) == []  # a rare column is not missed
    longer = [*OLD, *[(x, y) for x, y in OLD if "rare" not in x], *changed(OLD[:n])]
    (said,) = warned(longer, tmp_path, **limits)
    assert said.endswith("since the checkpoint, 'age' is gone (it counts as missing), 'height' is new. This is said once")


def test_sparse_rows_with_ever_new_columns_are_not_reported(tmp_path):
    rows = [({f"word{i * j % 997}": 1.0 for j in range(1, 6)}, i % 2) for i in range(600)]
    for n in (300, 600):
        with CheckpointFolder(tmp_path) as checkpoints:
            LearningLoop(IterableSource(rows[:n]), BSGDClassifier(budget=10), checkpoints=checkpoints).run()


def test_changes_are_not_reported_after_a_few_rows(tmp_path):
    assert warned(OLD, tmp_path) == []
    assert warned([*OLD, *changed(OLD[:5])], tmp_path, on_error="skip") == []
