"""Out-of-core linear support vector machines, which learn files that do not fit in memory.

The estimators follow scikit-learn's conventions. They need the extra ``batch``.
"""

from streamsvm.files.messages import missing_package_error

try:
    import sklearn  # noqa: F401
except ImportError as _error:
    raise missing_package_error("streamsvm.linear", "scikit-learn", "batch", _error) from _error

from streamsvm.linear.block_file import Block, BlockFile, BlockFileError
from streamsvm.linear.block_writer import BlockWriter
from streamsvm.linear.convert import write_blocks
from streamsvm.linear.estimators import OutOfCoreLinearSVC, OutOfCoreLinearSVR
from streamsvm.linear.fit import to_online
from streamsvm.linear.rows import write_rows
from streamsvm.linear.solution import Pass

__all__ = [
    "Block",
    "BlockFile",
    "BlockFileError",
    "BlockWriter",
    "OutOfCoreLinearSVC",
    "OutOfCoreLinearSVR",
    "Pass",
    "to_online",
    "write_blocks",
    "write_rows",
]
