"""What a column is taken for, by its values."""

from datetime import datetime

import pytest

from streamsvm.stream.look.column_kinds import column_of


@pytest.mark.parametrize(
    ("values", "kind", "answer"),
    [
        ([float(i) for i in range(30)], "number", None),
        ([1.0] * 30, "number", None),
        ([1.0, "NA", 2.0, "-", 3.0, 4.0], "number", ("missing", ["NA", "-"])),
        ([1.0, "NA", "N/A", "NA", "-", "none"], "number", ("missing", ["NA", "N/A", "-", "none"])),
        ([1.0, "low", "low"], "number", ("missing", ["low"])),
        ([1.0, "a", "b", "c", "d"], "text", ("categorical", "c")),
        (["NA", "NA"], "text", ("categorical", "c")),
        ([1.0, [1, 2]], "nested", ("drop", "c")),
        (["a", "b", "a"], "text", ("categorical", "c")),
        ([f"n{i}" for i in range(30)], "text", ("drop", "c")),
        (["2024-01-01", "2024-01-02T03:04:05Z"], "date", ("dates", ("c", None))),
        (["31.12.2024", "01.02.2024"], "date", ("dates", ("c", "%d.%m.%Y"))),
        (["12/31/2024"], "date", ("dates", ("c", "%m/%d/%Y"))),
        ([datetime(2024, 1, 1)], "date", ("dates", ("c", None))),
        (["1", "2.5"], "number", ("features", "c")),
        ([[1, 2]], "nested", ("drop", "c")),
        ([True, False], "number", None),
        ([], "number", None),
    ],
)
def test_what_columns_are_taken_for(values, kind, answer):
    column = column_of("c", values)
    assert (column.kind, column.answers) == (kind, () if answer is None else (answer,))
