"""The example of a query that is stopped and goes on."""

import re
import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_stream.py"


def test_a_query_that_is_stopped_and_goes_on(spark, tmp_path, capsys):
    example = runpy.run_path(str(EXAMPLE))
    rows, right = example["main"](spark, tmp_path)
    told = [int(found.replace(",", "")) for found in re.findall(r"([\d,]+) rows, accuracy", capsys.readouterr().out)]
    assert told == list(range(1000, rows + 1, 1000))  # each micro-batch once
    assert rows >= 1000 * example["BATCHES"]
    assert right > 4700
