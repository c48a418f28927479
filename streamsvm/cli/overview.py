"""The text that ``streamsvm`` prints without arguments: five common tasks, each with its command."""

from streamsvm import __version__

__all__ = ["OVERVIEW"]

OVERVIEW = f"""\
streamsvm {__version__}: kernel SVMs for endless streams, in a fixed amount of memory.

Five things you can do. rows.csv is any table with the label in a column y.

Learn a file or a stream (stop with Ctrl-C; run it again to continue):
  streamsvm learn rows.csv --label y --checkpoint state

Predict with the model:
  streamsvm predict rows.csv --model state --to -

See how well the model predicted each row before it learned it:
  streamsvm inspect state

Run the model without streamsvm, as C, ONNX, JSON or a file for numpy:
  streamsvm export state --to c --out device

Watch a learner being killed and resumed on a Kafka topic (extra demo):
  streamsvm demo

A stream is a path (CSV, JSON lines, LIBSVM text, Parquet, Arrow), - for a pipe,
or kafka://host:port/topic. All commands: streamsvm --help
All flags of a command, with examples: streamsvm learn --help
"""
