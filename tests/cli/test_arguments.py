"""Flags: wrong ones, each told in a line; those of a file; and the help about them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm.cli.arguments import parse_names
from streamsvm.cli.main import _EXAMPLES, _make_parser
from streamsvm.files.messages import join_names

#: Words after ``streamsvm learn FILE --label y``, and the expected message.
OF_LEARN = [
    (["--learner", "bsgd,gama=1"], "--learner bsgd,gama=1: bsgd has no parameter gama. Perhaps 'gamma'"),
    (["--learner", "bsgd,gamma"], "gamma is not KEY=VALUE"),
    (["--learner", "bsgd,gamma=1,gamma=2"], "gamma is given twice"),
    (["--learner", "bsgd,class_weight={{[1]: 2}}"], "class_weight"),
    (["--learner", "svm"], "the name of a learner: auto, bsgd, bsca, linear"),
    (["--learner", "bsgd,budget=0"], "budget must be"),
    (["--learner", "bsgd,maintenance=Merge(find='gss')"], "unexpected keyword argument 'find'"),
    (["--learner", "bsgd,maintenance=Merge(**dict(search='gss'))"], "maintenance must be"),
    (["--labels-are", "a,b,c", "--learner", "bsgd,max_classes=2"], "3 classes are declared"),
    (["--metric", "MAE"], "no such metric for classifiers; try Accuracy, F1, 'FBeta(beta=2)' or ROCAUC; MAE goes with"),
    (["--metric", "__import__('os')"], "no such metric for classifiers"),
    (["--metric", "ConfusionMatrix()"], "ConfusionMatrix does not give one number"),
    (["--metric", "AvragePrecision"], "Perhaps 'AveragePrecision'"),
    (["--metric", "FBeta"], "missing 1 required positional argument: 'beta'"),
    (["--metric", "F1(pos_val='spam')"], "--positive LABEL"),
    (["--metric", "FBeta(beta=1e308)"], "--metric FBeta(beta=1e308): "),
    (["--positive", "spam", "--metric", "Accuracy"], "Accuracy treats all labels alike"),
    (["--regression", "--metric", "F1"], "no such metric for regressors; try MAE, RMSE or R2"),
    (["--regression", "--positive", "1"], "--positive is about labels, and --regression predicts a number"),
    (["--regression", "--labels-are", "1,2"], "--labels-are is about labels, and --regression predicts a number"),
    (["--bound", "1"], "must be a number of at least 2, or 0, not 1"),
    (["--scale", "none", "--bound", "3"], "--bound 3 bounds scaled values, and nothing is scaled: leave it out"),
    (
        ["--format", "libsvm", "--bound", "3"],
        "nothing is scaled of libsvm text unless --scale standard asks for it: leave it out",
    ),
    (["--to", "{csv}"], "would overwrite SOURCE"),
    (["--to", "-", "--quiet"], "standard output"),
    (["--checkpoint-every", "0"], "--checkpoint-every"),
    (["--max-rows", "0"], "--max-rows"),
    (["--on-error", "{csv}"], "--on-error {csv} would overwrite SOURCE"),
    (["--on-error", "x.jsonl", "--to", "x.jsonl"], "--to x.jsonl would overwrite --on-error"),
    (["--on-error", "-", "--quiet"], "--on-error - and --quiet both write to standard output"),
    (["--labels-are", "a"], "--labels-are a: classes must be at least two"),
    (["--error-limit", "-1"], "--error-limit"),
    (["--error-share", "2"], "--error-share"),
    (["--log-level", "debug"], "--log-level is about lines of JSON"),
    (["--metrics-port", "70000"], "must be a port from 0"),
    (["--on-drift", "reset"], "no --drift DETECTOR detects it"),
    (["--drift", "ADWEN"], "--drift ADWEN: there is no such detector. Known are ADWIN, KSWIN, PageHinkley, DDM"),
    (["--drift", "DDM", "--regression"], "there is no such detector; it is for errors of labels. Known are ADWIN"),
    (["--drift", "ADWIN(delta='x')"], "--drift ADWIN(delta='x'): "),
    (["--drift", "ADWIN(delta=-1)"], "delta of ADWIN must be a finite number above 0 and at most 1, not -1"),
    (["--drift", "ADWIN(clock=0)"], "clock of ADWIN must be a finite number above 0, not 0"),  # river panics
    (["--drift", "DDM(warm_start=-1)"], "warm_start of DDM must be a finite number at least 0, not -1"),
    (["--drift", "HDDMA(drift_confidence=5)"], "drift_confidence of HDDMA must be a finite number above 0 and at most 1"),
    (["--drift", "FHDDM(sliding_window_size=0)"], "--drift FHDDM(sliding_window_size=0): "),
    (["--format", "libsvm", "--columns", "1:drop"], "--columns 1:drop means nothing for LIBSVM text"),
    (["--format", "parquet", "--delimiter", ";"], "--delimiter ';' means nothing for parquet"),
    (["--when-missing", "median"], "invalid choice"),
    (
        ["--columns", "a"],
        "a cannot be read: it is NAME:KIND,..., where KIND is drop, category, key, text, date, date=FORMAT, number, quantity",
    ),
    (["--threshold", "0.2"], "--positive LABEL"),
    (["--threshold", "f11", "--positive", "a"], "--threshold f11: there is no such metric for classifiers"),
    (["--costs", "a=1,a=2"], "--costs a=1,a=2: a is given twice"),
    (["--threshold", "0.2", "--costs", "a=2"], "leave one out"),
    (["--threshold", "1.5", "--positive", "a"], "threshold must lie between 0 and 1"),
    (["--threshold", "f1"], "which label is it about? --positive LABEL"),
    (["--threshold", "LogLoss", "--positive", "a"], "--threshold LogLoss: it must be a number, or a metric of labels"),
    (["--costs", "a"], "a is not LABEL=COST"),
    (["--costs", "a=0"], "the cost of 'a' must be a number above 0"),
    (["--costs", "a=2", "--regression"], "--costs is about labels"),
    (["--interval", "1"], "must be a number between 0 and 1"),
    (["--columns", "a:key", "--key-models", "a,rows=3"], "a key has no parameter rows: it has max_keys, idle"),
    (["--columns", "a:key", "--key-models", "a,idle=0"], "--key-models a,idle=0: idle must be an integer at least 1"),
    (
        ["--columns", "a:key", "--key-models", "a,idle=x"],
        "--key-models a,idle=x: idle must be an integer at least 1 and at most 1e+12, not 'x'",
    ),
    (["--columns", "a:key", "--key-models", "a,b"], "--key-models a,b: b is not KEY=VALUE, and a key has max_keys, idle"),
    (["--columns", "a:key", "--key-models", ""], "the name of one key, then"),
    (["--columns", ":drop"], "a name is empty"),
    (["--columns", "a:drop,*:drop"], "nothing is left to learn from"),
    (["--columns", "a:drop,y:category"], "y is the label"),
    (["--columns", "a:drop=x"], "a is dropped, and can have neither a format nor missing-value markers"),
    (["--columns", '"a:drop'], '"a:drop cannot be read'),
]
OF_OTHERS = [
    (["learn", "{csv}"], "--label NAME"),
    (["learn", "{csv}", "--lable", "y"], "unrecognized arguments: --lable y (is it --label?)"),
    (["learn", "--label", "y"], "the following arguments are required: SOURCE"),
    (["predict", "{csv}", "--model", "state", "--to", "-", "--quiet"], "standard output"),
    (["inspect", "state", "--plot", "out.unknown"], "its suffix is not an image format: end it in .png, .svg or .pdf"),
    (["inspect", "state", "--plot", "none/out.png"], "make it first"),
]


@pytest.mark.parametrize(
    ("words", "message"), [*((["learn", "{csv}", "--label", "y", *words], message) for words, message in OF_LEARN), *OF_OTHERS]
)
def test_wrong_command_lines(rows, call, words, message):
    done = call(*(word.format(csv=rows) for word in words), status=2)
    assert message.format(csv=rows) in done.last
    assert done.stderr.startswith(f"usage: streamsvm {words[0]} ")
    assert done.stdout == ""


def test_words_that_are_read_later(rows, call):
    call("grow", status=2, says="invalid choice")
    done = call("learn", rows, "--label", "y", "--columns", "a:date", "--cycles", "moon", status=2)
    assert "--cycles must be of day, week, year" in done.last
    done = call("learn", rows, "--label", "y", "--columns", "a:category", "--key-models", "a", status=2)
    assert done.last.endswith("--key-models a: the column must be a key: --columns a:key")
    done = call("learn", rows, "--label", "y", "--columns", "b:key", "--key-models", "a", status=2)
    assert done.last.endswith("--key-models a: the column must be a key: --columns a:key, or is it --key-models b?")
    done = call("learn", rows, "--label", "y", "--key-models", "a", "--learner", "bsgd", "--bound", "3", status=2)
    assert "--key-models a: the column must be a key: --columns a:key" in done.last


def test_small_models_of_rows_without_columns(tmp_path, call):
    (tmp_path / "rows.txt").write_text("1 1:0.5\n-1 1:0.3\n")
    done = call("learn", tmp_path / "rows.txt", "--format", "libsvm", "--key-models", "1", status=2)
    assert "--key-models 1: the column must be a key: --columns 1:key" in done.last


def test_names_with_commas():
    assert parse_names('a, "b, c",d') == ["a", "b, c", "d"]


@pytest.mark.parametrize(
    ("command", "flag", "group"),
    [
        ("learn", "--labels-are", "rows that cannot be used"),
        *[("learn", "--columns", "the table"), ("learn", "--trusted", "the run"), ("predict", "--model", "the model")],
        *[("predict", "--trusted", "the model"), ("predict", "--checkpoint", "the run")],
    ],
)
def test_help_shows_a_flag_in_its_group(call, command, flag, group):
    text = call(command, "--help").stdout
    headings = re.findall(r"^(\S.*):$", text[: text.index(f"\n  {flag} ")], re.MULTILINE)
    assert headings[-1] == group


def test_help_text_and_examples_parse(call):
    text = call("learn", "--help").stdout
    assert all(f"\n{group}:\n" in text for group in ("source and predictions", "the table", "the model", "the score", "the run"))
    assert "stop after this many rows" in (text := " ".join(text.split()))
    assert "CSV if it ends in .csv, otherwise JSON lines" in text
    text = " ".join(call("predict", "--help").stdout.split())
    assert "loading can then run any code that is in the file. Without this flag, loading runs no code" in text
    assert len(re.findall(r"^  \S", _EXAMPLES, re.MULTILINE)) == 5
    parser, _ = _make_parser()
    for command in re.findall(r"streamsvm (.*)", _EXAMPLES.replace("\\\n", "")):
        parser.parse_args([word.strip("'") for word in command.split()])


@given(st.lists(st.text().map(str.strip).filter(bool)))
def test_lists_are_read_as_they_are_written(values):
    assert parse_names(join_names(values)) == values
