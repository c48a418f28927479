"""The texts that the command line shows to begin with: the overview, and a screen of flags for each of the two long commands."""

from streamsvm import __version__

OVERVIEW = f"""\
streamsvm {__version__}: kernel SVMs for endless streams, in a fixed amount of memory.

Eight things you can do. rows.csv is any table with the label in a column y.

Learn a file or a stream (stop with Ctrl-C; run it again to continue):
  streamsvm learn rows.csv --label y --checkpoint state

Predict with the model:
  streamsvm predict rows.csv --model state --to -

See how well it predicts, what is in it, what matters; or all on one page:
  streamsvm score rows.csv --model state
  streamsvm inspect state
  streamsvm explain state rows.csv
  streamsvm report state rows.csv --to report.html

Run the model without streamsvm, as C, ONNX, JSON or a file for numpy:
  streamsvm export state --to c --out device

Watch a learner being killed and resumed on a Kafka topic (extra demo):
  streamsvm demo

A stream is a path (CSV, JSON lines, LIBSVM text, Parquet, Arrow), - for a pipe,
or kafka://host:port/topic. All commands: streamsvm --help
The flags of a first hour: streamsvm learn --help; all of them: --help all
"""

#: What ``--help`` shows of the commands with many flags; ``--help all`` shows them all.
SCREENS = {
    "learn": """\
usage: streamsvm learn SOURCE --label NAME [flags]

Learn a stream; predict and score each row before learning it.

  SOURCE               a path (CSV, JSON lines, LIBSVM text, also as .gz;
                       Parquet, Arrow), several or a folder of them, - for a
                       pipe, kafka://host:port/topic
  --label NAME         the column or key that holds the label
  --regression         the label is a number to predict
  --columns NAME:KIND,...
                       columns that are no numbers: drop (ignored, as ids),
                       category (names, as cities), date, date=%d.%m.%Y
  --missing NA,-       values that mean missing, as an empty cell does
  --learner NAME[,KEY=VALUE...]
                       auto (the default), bsgd, bsca or linear, and its
                       parameters, such as bsgd,budget=500,gamma=0.5
  --metric NAME[,NAME...]
                       ROCAUC, LogLoss or a metric of river, such as F1 or
                       R2; more after commas, also ConfusionMatrix
  --to SINK            where predictions go: a path, -, kafka://...
  --checkpoint DIR     where the model is kept; run again to continue
  --on-error HOW       a row that cannot be used: stop (the default), skip,
                       or a path or topic to write it to
  --max-rows N         stop after this many rows
  --quiet              print progress as JSON lines, and nothing else
  --config F.toml      read flags from a file
  --help all           show all flags, and more examples

A table of numbers, with the label in column y:
  streamsvm learn rows.csv --label y
An id, a column of names, a date; checkpoints to continue from:
  streamsvm learn people.csv --label income --checkpoint state \\
      --columns id:drop,job:category,since:date=%d.%m.%Y
An endless topic, and a pipe:
  streamsvm learn kafka://localhost:9092/rows --label y --checkpoint state
  tail -f rows.jsonl | streamsvm learn - --format jsonl --label y --to -
""",
    "predict": """\
usage: streamsvm predict SOURCE --model PLACE --to SINK [flags]

Predict the rows of a stream without learning them.

  SOURCE             a path (CSV, JSON lines, LIBSVM text, also as .gz;
                     Parquet, Arrow), several or a folder of them, - for a
                     pipe, kafka://host:port/topic
  --model PLACE      what streamsvm learn --checkpoint wrote: a checkpoint,
                     or a folder or topic of them
  --to SINK          where predictions go: a path, -, kafka://...
  --follow           switch to a newer model as soon as there is one
  --checkpoint DIR   where the position is kept; run again to continue
  --on-error HOW     a row that cannot be used: stop (the default), skip,
                     or a path or topic to write it to
  --max-rows N       stop after this many rows
  --quiet            print the end as a line of JSON, and nothing else
  --config F.toml    read flags from a file
  --help all         show all flags

Columns are read as they were when the model learned.

A file, and a topic that is predicted while another process learns:
  streamsvm predict new.csv --model state --to predictions.csv
  streamsvm predict kafka://localhost:9092/rows --model state --follow --to -
""",
}

EXAMPLES = """\
examples:
  a table of numbers, with the label in column y
    streamsvm learn rows.csv --label y
  a table with an id, two columns of names, a date, and NA for missing values
    streamsvm learn people.csv --label income --missing NA \\
        --columns id:drop,job:category,city:category,since:date
  a CSV from a German Excel, with checkpoints to continue from; then predictions for a file like it
    streamsvm learn kunden.csv --label y --delimiter ';' --encoding cp1252 --checkpoint state
    streamsvm predict neue.csv --model state --to -
  another model and metric, and more flags from a file
    streamsvm learn rows.parquet --label y --learner linear --metric ROCAUC --config flags.toml
  an endless topic, and a pipe
    streamsvm learn kafka://localhost:9092/rows --label y --checkpoint state
    tail -f rows.jsonl | streamsvm learn - --format jsonl --label y --to -
"""
