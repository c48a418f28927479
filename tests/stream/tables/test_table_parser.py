"""Columns of tables are parsed like their rows, value by value."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunks import exact
from streamsvm.stream import Row, Table
from streamsvm.stream.tables import TableParser

NUMBERS = [0, 1, -999, 2024, 20240131, 1_700_000_000_000, 2**60, 0.0, 1.0, -999.0, 2.5, 1e11, 1.7e12, -1e15, math.nan, math.inf]
TEXTS = ["", " ", "NA", " NA ", "nan", "1", "-999", "1.5", "1,5", "1_0", "x", "02.01.2024", "20240131", "1700000000000"]
TEXTS += ["<5", "1,5 kg", "1:30:00", "12\u00a0", "0x1F"]
DATES = ["2024-01-02", "2024-01-03", " 2024-01-02", "2024-02-30", "2024-W01-1", "2024-01-02T03:04:05", ""]
OTHERS = [None, True, False, Decimal("1.5"), Decimal("NaN"), np.float32(0.1), np.int64(1), np.float64("nan"), np.bool_(1)]
OTHERS += [date(2024, 1, 2), datetime(2024, 1, 2, 3, tzinfo=UTC), [1.0], b"x", (1,)]
KINDS = [TEXTS, DATES, DATES[:2], [2.5, 1e12, None], [0.0, math.nan], [*NUMBERS, *TEXTS, *DATES, *OTHERS]]
lists = st.sampled_from(KINDS).flatmap(lambda values: st.lists(st.sampled_from(values), min_size=1))
floats = st.lists(st.sampled_from([0.0, 1.0, 2.5, math.nan, 1e11]), min_size=1)
arrays = st.tuples(st.lists(st.integers(0, 3), min_size=1), st.sampled_from(["i8", "i4", "u1", "?"])).map(
    lambda arguments: np.array(*arguments)
)
arrays |= st.tuples(floats, st.sampled_from(["f8", "f4"])).map(lambda arguments: np.array(*arguments))
arrays |= st.lists(st.sampled_from([1.0, 2.5, math.nan, math.inf]), min_size=1).map(lambda values: np.array(values, "f2"))
COLUMN_KINDS = [
    *["", "a:category", "a:date", "a:date=%d.%m.%Y", "a:date=ms", "b:number,*:drop"],
    *["a:drop", "a:number=NA|1,b:number=-999", "a:category=NA|2024-01-02", 'a:quantity=",|<5|kg"', "a:duration"],
]
missing = st.sampled_from([[], ["NA"], ["-999", "1", "2.5"], ["2024-01-02", "nan"]])


@pytest.mark.parametrize("values", [lists, arrays])
@given(st.data(), st.sampled_from(COLUMN_KINDS), missing, st.sampled_from([None, None, ".", ","]))
def test_columns_are_parsed_like_single_rows(values, data, columns, missing, decimal):
    values = data.draw(values)
    parser, cells = TableParser(columns, missing=missing, decimal=decimal), list(values)
    if isinstance(values, np.ndarray):
        cells = values.tolist()
    table = parser.parse_table(Table(("a",), [values], cells))
    assert table.names == (() if parser.get_kind("a") == "drop" else ("a",))
    for i, value in enumerate(cells):
        assert exact(table.row(i)) == exact(Row(parser.parse_row([("a", value)]), parser.parse_label(value)))
