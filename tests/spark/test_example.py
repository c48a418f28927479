"""Test of the example of a query that is stopped and resumes."""

import re
import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_stream.py"


def test_stopped_query_resumes(spark, tmp_path, capsys):
    example = runpy.run_path(str(EXAMPLE))
    rows, n_correct = example["main"](spark, tmp_path)
    row_counts = [int(text.replace(",", "")) for text in re.findall(r"([\d,]+) rows, accuracy", capsys.readouterr().out)]
    assert row_counts == list(range(1000, rows + 1, 1000))  # each micro-batch once
    assert rows >= 1000 * example["BATCHES"]
    assert n_correct > 4700
