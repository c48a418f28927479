"""What becomes of a command: its status, and errors and warnings that are told in a line each."""

import gzip
import io
import re
import socket
import subprocess
import sys

import pytest
from river import datasets, linear_model

import streamsvm
from streamsvm import BSGDClassifier
from streamsvm.cli.main import _make_parser, main
from streamsvm.stream import CheckpointFolder, IterableSource, LearningLoop


def test_help_names_every_command_and_the_version(call):
    done = subprocess.run([sys.executable, "-m", "streamsvm", "--help"], capture_output=True, text=True, check=True)
    assert all(word in done.stdout for word in ("learn", "predict", "inspect", "demo"))
    assert call("--version").stdout.startswith(f"streamsvm {streamsvm.__version__}\nmachine code: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["learn", "{folder}/none.csv", "--label", "y"], "streamsvm: {folder}/none.csv: No such file or directory"),
        (["learn", "{csv}", "--label", "z"], "no column 'z'"),
        (["learn", "-", "--label", "y"], "give --format csv"),
        (["learn", "{csv}", "--label", "a", "--ask"], "y (string). Try: --columns y:category"),
        (["learn", "{csv}", "--label", "y", "--to", "/dev/full"], "/dev/full: No space left on device"),
        (["learn", "{folder}/damaged.csv.gz", "--label", "y", "--max-rows", "5000"], "damaged.csv.gz, after byte"),
        (["learn", "{csv}", "--label", "y", "--metrics-port", "{port}"], "--metrics-port: cannot listen at 127.0.0.1:{port}"),
        (["predict", "{csv}", "--model", "{folder}", "--to", "-"], "holds no checkpoint"),
        (["inspect", "{csv}"], "is corrupt: it is cut off, or not a file of streamsvm"),
        (["merge", "{folder}", "--to", "{folder}/merged"], "no model to merge yet"),
        (["export", "{folder}/none", "--to", "numpy"], "streamsvm: {folder}/none: No such file or directory"),
    ],
)
def test_failures_print_one_line(bananas, tmp_path, call, words, message):
    csv = bananas()
    (tmp_path / "damaged.csv.gz").write_bytes(gzip.compress(b"".join(csv.read_bytes().splitlines(keepends=True)[:501]))[:-100])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {"csv": csv, "folder": tmp_path, "port": taken.getsockname()[1]}
        done = call(*(word.format(**names) for word in words), status=1)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("streamsvm: "))
    assert message.format(**names) in line


@pytest.mark.filterwarnings("default")
def test_warnings_are_readable(rows, tmp_path, call):
    state = tmp_path / "state"
    for n in (10, 20):
        call("learn", rows, "--label", "y", "--checkpoint", state, "--max-rows", n)
    newest = state / "checkpoint-000000000030.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1])
    (warning,) = call("inspect", state).stderr.splitlines()
    assert warning.startswith(f"streamsvm: warning: {newest} is corrupt: ")


INTERRUPTED = {
    "in the middle of an import, as by a key": (
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # it is ignored where tests run in the background
        "from streamsvm.cli.main import main\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'streamsvm.stream': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    ),
    "while the first modules are imported": (
        "found = builtins.__import__\n"
        "def importing(name, *rest):\n"
        "    if name.startswith('numba'): raise KeyboardInterrupt\n"
        "    return found(name, *rest)\n"
        "builtins.__import__ = importing\n"
        "from streamsvm.cli.main import main\n"
    ),
}


@pytest.mark.parametrize("when", INTERRUPTED)
def test_ctrl_c_during_start_prints_one_line(rows, when):
    code = f"import builtins, signal, sys\n{INTERRUPTED[when]}sys.exit(main(sys.argv[1:]))\n"
    done = subprocess.run(
        [sys.executable, "-c", code, "learn", rows, "--label", "y"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "streamsvm: interrupted\n")


WILD = "\x1b[2J\x07"


def test_names_from_files_are_escaped(file, tmp_path, call):
    model = BSGDClassifier(budget=5)
    model.learn_one({f"a{WILD}": 1.0}, f"yes{WILD}")
    position = {"rows": 1, f"at{WILD}": WILD, "label": None}
    with CheckpointFolder(tmp_path / "state") as folder:
        folder.save(model, None, rows=1, position=position, source=f"rows{WILD}.csv", **{f"more{WILD}": f"one\n{WILD}"})
    shown = call("inspect", tmp_path / "state", "--all").stdout
    assert r"rows\x1b[2J\x07.csv" in shown
    assert r"more\x1b[2J\x07" in shown
    assert shown.replace("\n", "").isprintable()

    path = file(f"rows{WILD}.csv", f"a{WILD},b,y", *(f"{i % 7},{WILD}{i % 3},{i % 2}" for i in range(60)))
    dropped = ["learn", path, "--label", "y", "--columns", "b:drop"]
    for status, words in (
        (1, ["learn", path, "--label", f"z{WILD}"]),
        (1, ["learn", path, "--label", "y", "--ask"]),
        (0, dropped),
        (2, [*dropped, "--to", path]),
        (1, ["predict", path, "--model", tmp_path / "state", "--label", f"z{WILD}", "--to", f"{tmp_path / 'out'}{WILD}"]),
        (1, ["predict", path, "--model", tmp_path / f"none{WILD}", "--to", "-"]),
    ):
        said = call(*words, status=status, says=r"\x1b[2J").stderr
        assert said.replace("\n", "").isprintable()


class Mine(linear_model.Perceptron):
    """A class that is neither of streamsvm nor of river."""


@pytest.mark.parametrize("words", [["inspect", "STATE"], ["score", "ROWS", "--model", "STATE"], ["explain", "STATE", "ROWS"]])
def test_an_encoding_without_the_letters_of_labels(file, tmp_path, call, monkeypatch, words):
    places = {"ROWS": file("rows.csv", "a,y", *(f"{i % 7},{'nein' if i % 7 > 3 else 'ja✓'}" for i in range(60)))}
    places["STATE"] = tmp_path / "state"
    call("learn", places["ROWS"], "--label", "y", "--learner", "bsgd,budget=5", "--checkpoint", places["STATE"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert main([str(places.get(word, word)) for word in words]) == 0
    sys.stdout.flush()
    assert rb"ja\u2713" in sys.stdout.buffer.getvalue()


def test_classes_of_the_users_own_need_trust(bananas, tmp_path, call):
    rows = [({"a": x["1"], "b": x["2"]}, y) for x, y in datasets.Bananas().take(20)]
    with CheckpointFolder(tmp_path / "state", trusted=True) as folder:
        LearningLoop(IterableSource(rows), Mine(), checkpoints=folder).run()
    predict = ["predict", bananas(20), "--label", "y", "--model", tmp_path / "state", "--to", tmp_path / "out.csv"]
    for words in (["inspect", tmp_path / "state"], predict):
        call(*words, status=1, says="which is not a class of a model of streamsvm or river")
        call(*words, "--trusted")


def test_without_arguments_the_help_lists_the_commands(call):
    done = call()
    assert done.stderr == ""
    _, commands = _make_parser()
    for name, parser in commands.items():
        assert re.search(rf"(?m)^    {name}\s+\w", done.stdout)
        assert call(name, "--help").stdout == parser.format_help()
