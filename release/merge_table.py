"""Writes the table of the merging problem to the package: streamsvm/core/budget/merge_table.z.

python release/merge_table.py
"""

from pathlib import Path

from streamsvm.core.budget import merge_table

Path(merge_table.__file__).with_name("merge_table.z").write_bytes(merge_table.pack_tables(merge_table.compute_tables()))
