"""What ``streamsvm`` shows without arguments: what one does with it, with a command for each."""

from streamsvm import __version__

__all__ = ["OVERVIEW"]

OVERVIEW = f"""\
streamsvm {__version__}: kernel SVMs that learn streams in a fixed number of bytes.

Five things to do with it. rows.csv is any table with the label in a column y.

Learn a file or a stream; stopped at any time, the same command goes on:
  streamsvm learn rows.csv --label y --checkpoint state

Predict rows by the model:
  streamsvm predict rows.csv --model state --to -

Look at the model, and how well it predicted each row before it learned it:
  streamsvm inspect state

Take it to where streamsvm is not: as C, ONNX, JSON or a file for numpy:
  streamsvm export state --to c --out device

Watch a learner be killed and go on from a Kafka topic (extra demo):
  streamsvm demo

A stream is a path (CSV, JSON lines, LIBSVM text, Parquet, Arrow), - for a pipe,
or kafka://host:port/topic. All commands: streamsvm --help
All flags of a command, with examples: streamsvm learn --help
"""
