"""The command line: called in this process, and as a shell calls it where the process itself matters."""

import contextlib
import gzip
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from river import datasets

import streamsvm
from command_words import main, with_a_model
from patience import PATIENCE, until
from streamsvm import BSGDClassifier
from streamsvm.cli import streams
from streamsvm.cli.logs import Output
from streamsvm.cli.progress import Display
from streamsvm.stream import Progress


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "bananas.csv"
    path.write_text("a,b,y\n" + "".join(f"{x['1']!r},{x['2']!r},{y}\n" for x, y in datasets.Bananas()))
    return path


# What is said where a machine with other work takes more than a second to stop.
SLOW_END = b"streamsvm: stopping after the step that is running; press Ctrl-C again to stop now\n"


def shell(*words, **options):
    """Calls the command line in a process of its own."""
    command = [sys.executable, "-m", "streamsvm", *with_a_model(words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, **options)


def test_learners_by_name(csv_file, call):
    ends = {}
    for name, setting in (("bsgd", "l2=0.001"), ("bsca", "C=2.0")):
        done = call("learn", csv_file, "--label", "y", "--learner", f"{name},{setting}", "--max-rows", 2000, "--quiet")
        assert (done.returncode, done.stderr) == (0, "")
        ends[name] = json.loads(done.stdout.splitlines()[-1])
        assert ends[name]["metric"] > 0.85
    assert ends["bsgd"]["metric"] != ends["bsca"]["metric"]
    assert call("learn", csv_file, "--label", "y", "--learner", "bsca,l2=1").returncode == 2


def test_a_linear_learner_of_many_features(tmp_path, call):
    path, state = tmp_path / "rows.libsvm", tmp_path / "state"
    path.write_text("".join(f"{i % 2} {i % 97 + 1}:1 {1000 + i % 2}:1 {2000 + i}:0.5\n" for i in range(2000)))
    done = call("learn", path, "--learner", "linear,C=1.0", "--checkpoint", state, "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    end = json.loads(done.stdout.splitlines()[-1])
    assert end["metric"] > 0.95
    assert "n_support" not in end
    done = call("learn", path, "--learner", "linear", "--max-rows", 100)
    assert done.returncode == 0
    assert "support vectors" not in done.stderr
    facts = json.loads(call("inspect", state, "--json").stdout)
    assert (facts["n_learned"], len(facts["feature_names"])) == (2000, 97 + 2 + 2000)
    done = call("learn", path, "--learner", "linear,budget=5")
    assert done.returncode == 2
    assert "linear has no parameter budget" in done.stderr


def test_learn_inspect_predict(csv_file, tmp_path, call):
    state, out = tmp_path / "state", tmp_path / "out.csv"
    done = call("learn", csv_file, "--label", "y", "--learner", "bsgd,budget=50", "--checkpoint", state, "--to", out, "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    end = json.loads(done.stdout.splitlines()[-1])
    assert end["event"] == "end"
    assert (end["rows"], end["learned"], end["interrupted"]) == (5300, 5300, False)
    assert end["metric"] > 0.87
    assert 0 < end["n_support"] <= 50
    assert end["n_merges"] > 0
    lines = out.read_text().splitlines()
    assert lines[0] == "row,y_pred,y_true,probability"
    assert len(lines) == 5301

    shown = call("inspect", state, "--json")
    facts = json.loads(shown.stdout)
    assert facts["rows"] == 5300
    assert facts["budget"] == 50
    assert facts["feature_names"] == ["a", "b"]
    assert "support" in call("inspect", state).stdout

    new = tmp_path / "new.jsonl"
    new.write_text('{"a": 0.1, "b": 0.2}\n{"a": -1.0, "b": 1.0}\n')
    predicted = call("predict", new, "--model", state, "--to", "-")
    assert predicted.returncode == 0
    rows = [json.loads(line) for line in predicted.stdout.splitlines()]
    assert [row["row"] for row in rows] == [0, 1]
    assert all(row["y_pred"] in (True, False) and 0.5 <= row["probability"] <= 1.0 for row in rows)


def test_same_command_again_goes_on_and_gives_the_same_bytes(csv_file, tmp_path, call):
    def learn(state, *more):
        done = call("learn", csv_file, "--label", "y", "--learner", "bsgd,budget=30", "--checkpoint", state, "--quiet", *more)
        assert done.returncode == 0, done.stderr
        return (state / "checkpoint-000000005300.ckpt").read_bytes() if not more else b""

    learn(tmp_path / "pieces", "--max-rows", 1234)
    assert learn(tmp_path / "pieces") == learn(tmp_path / "whole")
    learn(tmp_path / "whole")


@pytest.mark.thorough
def test_standard_input_and_libsvm_text():
    text = "".join(f"{1 if y else -1} 1:{x['1']} 2:{x['2']}\n" for x, y in datasets.Bananas().take(500))
    done = shell(
        "learn", "-", "--format", "libsvm", "--learner", "bsgd,budget=20,gamma=1.0", "--metric", "F1", "--quiet", input=text
    )
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert end["metric_name"] == "F1"
    assert end["rows"] == 500


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_with_a_checkpoint(tmp_path, number):
    command = [
        sys.executable,
        "-m",
        "streamsvm",
        "learn",
        "-",
        "--format",
        "csv",
        "--label",
        "y",
        "--checkpoint",
        str(tmp_path),
        "--quiet",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as learner:
        learner.stdin.write(b"a,b,y\n")
        rows = [f"{x['1']},{x['2']},{y}\n".encode() for x, y in datasets.Bananas()]
        sent = False
        try:
            for row in rows * 1000:
                learner.stdin.write(row)
                if not sent and any(tmp_path.glob("*.ckpt")):
                    learner.send_signal(number)
                    sent = True
            learner.stdin.close()
        except BrokenPipeError:
            pass
        output, errors = learner.stdout.read(), learner.stderr.read()
        learner.wait(timeout=PATIENCE)
        with contextlib.suppress(BrokenPipeError):
            learner.stdin.close()
    assert learner.returncode == 130
    assert errors in (b"", SLOW_END)
    end = json.loads(output.splitlines()[-1])
    assert end["interrupted"] is True
    assert (tmp_path / f"checkpoint-{end['rows']:012d}.ckpt").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["learn", "{csv}"], "--label NAME"),
        (
            ["learn", "{csv}", "--label", "y", "--learner", "bsgd,gama=1"],
            "--learner bsgd,gama=1: bsgd has no parameter gama; is it gamma?",
        ),
        (["learn", "{csv}", "--label", "y", "--learner", "bsgd,gamma"], "gamma is no KEY=VALUE"),
        (["learn", "{csv}", "--label", "y", "--learner", "bsgd,gamma=1,gamma=2"], "gamma stands there twice"),
        (["learn", "{csv}", "--label", "y", "--learner", "bsgd,"], "nothing is no KEY=VALUE"),
        (["learn", "{csv}", "--label", "y", "--learner", "bsgd,class_weight={{[1]: 2}}"], "class_weight"),
        (["learn", "{csv}", "--label", "y", "--learner", "svm"], "the name of a learner: auto, bsgd, bsca, linear"),
        (["learn", "{csv}", "--label", "y", "--learner", "budget=9"], "the name of a learner: auto, bsgd, bsca, linear"),
        (["learn", "{csv}", "--label", "y", "--learner", "bsgd,gamma=-1"], "gamma must be"),
        (["learn", "{csv}", "--label", "y", "--learner", "bsgd,maintenance=Merge('gs')"], "search must be one of"),
        (["learn", "{csv}", "--label", "y", "--learner", "bsgd,budget=0"], "budget must be"),
        (
            ["learn", "{csv}", "--label", "y", "--learner", "bsgd,maintenance=Merge(find='gss')"],
            "unexpected keyword argument 'find'",
        ),
        (["learn", "{csv}", "--label", "y", "--learner", "bsgd,maintenance=Merge(**dict(search='gss'))"], "maintenance must be"),
        (["learn", "{csv}", "--label", "y", "--metric", "MAE"], "no such metric for classifiers"),
        (["learn", "{csv}", "--label", "y", "--metric", "__import__('os')"], "no such metric for classifiers"),
        (["learn", "{csv}", "--label", "y", "--metric", "ConfusionMatrix"], "ConfusionMatrix does not give one number"),
        (["learn", "{csv}", "--label", "y", "--metric", "FBeta"], "missing 1 required positional argument: 'beta'"),
        (["learn", "{csv}", "--label", "y", "--metric", "F1(pos_val='spam')"], "--positive LABEL"),
        (["learn", "{csv}", "--label", "y", "--positive", "spam"], "Accuracy treats all labels alike"),
        (["learn", "{csv}", "--label", "y", "--to", "{csv}"], "would overwrite SOURCE"),
        (["learn", "{csv}", "--label", "y", "--to", "-", "--quiet"], "standard output"),
        (["learn", "{csv}", "--label", "y", "--checkpoint-every", "0"], "--checkpoint-every"),
        (["learn", "{csv}", "--label", "y", "--max-rows", "0"], "--max-rows"),
        (["grow"], "invalid choice"),
    ],
)
def test_wrong_command_lines(csv_file, capsys, words, message):
    with pytest.raises(SystemExit) as left:
        main([word.format(csv=csv_file) for word in words])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["learn", "{folder}/none.csv", "--label", "y"], "No such file"),
        (["learn", "{csv}", "--label", "z"], "no column 'z'"),
        (["learn", "-", "--label", "y"], "name the format"),
        (["learn", "{csv}", "--label", "a"], "y (text). Try: --columns y:category"),
        (["learn", "{csv}", "--label", "y", "--to", "/dev/full"], "/dev/full: No space left on device"),
        (["learn", "{folder}", "--format", "csv", "--label", "y"], "Is a directory"),
        (["predict", "{csv}", "--model", "{folder}", "--to", "-"], "holds no checkpoint"),
        (["inspect", "{csv}"], "is corrupt: it is cut off, or not a file of streamsvm"),
    ],
)
def test_what_fails_says_why_in_one_line(csv_file, tmp_path, capsys, words, message):
    assert main([word.format(csv=csv_file, folder=tmp_path) for word in words]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("streamsvm: ")]
    assert len(lines) == 1
    assert message in lines[0]


def test_help_names_every_command():
    done = shell("--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("learn", "predict", "inspect", "demo"))


@pytest.mark.thorough
def test_progress_on_a_terminal(csv_file):
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="140")
        os.execv(sys.executable, [sys.executable, "-m", "streamsvm", "learn", str(csv_file), "--label", "y", "--learner", "bsgd"])
    seen = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        seen += part
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    text = seen.decode()
    assert "5,300 rows" in text
    assert "Accuracy 0.8" in text
    assert "support vectors" in text
    assert "done after" in text


def csv_of(rows, labels=(False, True)):
    return "".join(f"{x['1']!r},{x['2']!r},{labels[y]}\n" for x, y in datasets.Bananas().take(rows))


def start(*words, **options):
    command = [sys.executable, "-m", "streamsvm", *with_a_model(words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_rows_piped_in_one_by_one_and_an_end_while_waiting(tmp_path, number):
    with start("learn", "-", "--format", "csv", "--label", "y", "--to", "-", "--checkpoint", tmp_path) as learner:
        learner.stdin.write(b"a,b,y\n")
        for row in range(3):
            learner.stdin.write(csv_of(3).splitlines(keepends=True)[row].encode())
            assert json.loads(learner.stdout.readline())["row"] == row
        learner.stdin.write(b"0.5,0.")
        time.sleep(0.1)
        learner.send_signal(number)
        assert learner.wait(PATIENCE) == 130
        assert learner.stdout.read() == b""
        assert "3 rows" in (errors := learner.stderr.read().decode())
        assert "last 3 rows" in errors
        assert "interrupted" in errors
    assert (tmp_path / "checkpoint-000000000003.ckpt").exists()


def catches(pid, number):
    (mask,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask.split()[1], 16) & 1 << (number - 1))


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["learn", "predict"])
def test_an_end_before_there_is_a_writer(tmp_path, csv_file, command):
    os.mkfifo(tmp_path / "rows.csv")
    main(["learn", str(csv_file), "--label", "y", "--checkpoint", str(tmp_path / "state"), "--max-rows", "10"])
    options = {"learn": ["--label", "y"], "predict": ["--model", tmp_path / "state", "--to", "-"]}[command]
    with start(command, tmp_path / "rows.csv", *options) as waiting:
        while not catches(waiting.pid, signal.SIGTERM):
            assert waiting.poll() is None
            time.sleep(0.05)
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(PATIENCE) == 130
        assert b"Traceback" not in waiting.stderr.read()


def test_a_label_that_never_comes_is_an_error(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"a": {i}, "y": {i % 2}}}\n' for i in range(30)))
    words = ["learn", str(path), "--label", "lable", "--checkpoint", str(tmp_path / "state"), "--checkpoint-every", "10"]
    assert main(words) == 1
    assert (
        "none of its 30 rows had a label: nothing was learned. Is its name right? The last row had 'a', 'y'"
        in capsys.readouterr().err
    )
    assert main([*words, "--max-rows", "20"]) == 1
    assert "none of 20 rows had a label" in capsys.readouterr().err
    assert main(["learn", str(path), "--label", "y", "--checkpoint", str(tmp_path / "other")]) == 0


@pytest.mark.filterwarnings("default")
def test_a_model_of_other_rows(tmp_path, csv_file, capsys):
    state, other = tmp_path / "state", tmp_path / "other.csv"
    main(["learn", str(csv_file), "--label", "y", "--checkpoint", str(state), "--max-rows", "50"])
    other.write_text("A,B\n1,2\n3,4\n")
    capsys.readouterr()
    assert main(["predict", str(other), "--model", str(state), "--to", str(tmp_path / "out.csv")]) == 1
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.endswith("the row has none of the features that the model knows (it has 'A', 'B'; known are 'a', 'b')")
    assert warning.startswith(f"streamsvm: warning: {other}, line 2: ")
    assert "to the end" in error
    other.write_text("A,b\n1,2\n")
    assert main(["predict", str(other), "--model", str(state), "--to", str(tmp_path / "out.csv")]) == 0


def test_text_labels_and_metrics_with_parameters(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,y\n" + csv_of(500, ("ham", "spam")))

    def score(*words):
        assert main(["learn", str(path), "--label", "y", "--quiet", *words]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])["metric"]

    assert main(["learn", str(path), "--label", "y", "--metric", "F1"]) == 1
    assert "which one is not known: is it 'ham', or the other? So name the positive label" in capsys.readouterr().err
    f1, f2 = score("--metric", "F1", "--positive", "spam"), score("--metric", "FBeta(beta=2)", "--positive", "spam")
    assert 0.5 < f1 < 1.0
    assert 0.5 < f2 < 1.0
    assert f1 != f2
    assert score("--metric", "F1", "--positive", '"ham"') != f1
    main(["learn", str(path), "--label", "y", "--metric", "F1", "--positive", "eggs"])
    assert "no label so far is 'eggs', which was named as the positive one: there are 'ham' and 'spam'" in capsys.readouterr().err
    assert score("--learner", 'bsgd,maintenance=Merge(search="gss"),budget=10') > 0.5


def test_damaged_gzip_is_one_line(tmp_path, capsys):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"a,b,y\n" + csv_of(500).encode())[:-100])
    assert main(["learn", str(path), "--label", "y", "--max-rows", "5000"]) == 1
    assert "rows.csv.gz, after byte" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["learn", "{csv}", "--label", "y", "--to", "-"],
        ["learn", "{csv}", "--label", "y", "--quiet"],
        ["predict", "{csv}", "--model", "{state}", "--to", "-"],
        ["predict", "{csv}", "--model", "{state}", "--to", "/dev/null", "--quiet"],
        ["inspect", "{state}"],
    ],
)
def test_standard_output_that_is_full(csv_file, tmp_path, capsys, monkeypatch, words):
    state = tmp_path / "state"
    main(["learn", str(csv_file), "--label", "y", "--checkpoint", str(state), "--max-rows", "10"])
    capsys.readouterr()
    with Path("/dev/full").open("w") as full:  # to close it fails if there is something left to write, as an exit does
        monkeypatch.setattr(sys, "stdout", full)
        assert main([word.format(csv=csv_file, state=state) for word in words]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "streamsvm: standard output: No space left on device"


@pytest.mark.thorough
def test_output_that_cannot_be_written(csv_file, tmp_path):
    main(["learn", str(csv_file), "--label", "y", "--checkpoint", str(tmp_path / "state"), "--max-rows", "10"])
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "streamsvm", "inspect", tmp_path / "state"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "streamsvm: standard output: No space left on device"
    assert "Traceback" not in done.stderr
    with start("predict", csv_file, "--model", tmp_path / "state", "--to", "-") as piped:
        assert piped.stdout.readline()
        piped.stdout.close()
        assert piped.wait(PATIENCE) == 1
        assert piped.stderr.read() == b""
    assert main(["learn", str(csv_file), "--label", "y", "--to", "/dev/null", "--max-rows", "5"]) == 0


def test_lines_are_not_broken_and_nothing_is_taken_for_markup(tmp_path, call):
    path = tmp_path / f"{'long' * 40}.csv"
    path.write_text("[red]a[/red],[b],y\n" + csv_of(30))
    state = tmp_path / "state"
    done = call("learn", path, "--label", "y", "--checkpoint", state)
    look, _, *columns, first = done.stderr.splitlines()[:6]
    assert look == f"first look at {path}, 30 rows"
    assert [line.split()[0] for line in columns] == ["[red]a[/red]", "[b]", "y"]
    assert first.startswith("starting")
    *between, last = done.stderr.splitlines()[6:]
    assert last.startswith("30 rows")
    assert "last 30 rows" in last
    assert last.endswith(" s")
    assert all("rows/s" in line and line.endswith("merges") for line in between)  # on a slow machine
    shown = call("inspect", state).stdout
    assert "['[b]', '[red]a[/red]']" in shown
    assert any(line.startswith("source ") and line.endswith(str(path)) for line in shown.splitlines())
    assert 'scaling="auto"' in shown


@pytest.mark.thorough
def test_warnings_are_readable(tmp_path, csv_file):
    state = tmp_path / "state"
    for rows in (10, 20):
        main(["learn", str(csv_file), "--label", "y", "--checkpoint", str(state), "--max-rows", str(rows)])
    newest = state / "checkpoint-000000000030.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1])
    warning = shell("inspect", state).stderr
    assert warning.startswith(f"streamsvm: warning: {newest} is corrupt: ")
    assert len(warning.splitlines()) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(("words", "closed"), [(["-", "--format", "csv"], 0), (["{csv}", "--to", "-"], 1)])
def test_closed_streams(csv_file, words, closed):
    command = [
        sys.executable,
        "-m",
        "streamsvm",
        *with_a_model(["learn", "--label", "y", *(word.format(csv=csv_file) for word in words)]),
    ]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {"<>"[closed]}&-', "sh", *command], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"streamsvm: standard {'input' if closed == 0 else 'output'} is closed"


def test_version_and_what_sinks_take(call):
    assert call("--version").stdout.startswith(f"streamsvm {streamsvm.__version__}\nmachine code: ")
    text = " ".join(call("learn", "--help", "all").stdout.split())
    assert "stop after this many rows" in text
    assert "CSV if it ends in .csv, otherwise JSON lines" in text


@pytest.mark.parametrize(
    ("command", "flag", "group"),
    [
        ("learn", "--labels-are", "rows that cannot be used"),
        ("learn", "--columns", "the table"),
        ("learn", "--trusted", "the run"),
        ("predict", "--model", "the model"),
        ("predict", "--trusted", "the model"),
        ("predict", "--checkpoint", "the run"),
    ],
)
def test_help_shows_a_flag_in_its_group(call, command, flag, group):
    text = call(command, "--help", "all").stdout
    headings = re.findall(r"^(\S.*):$", text[: text.index(f"\n  {flag} ")], re.MULTILINE)
    assert headings[-1] == group


def test_json_has_no_nan(capsys):
    progress = Progress(1, 1, 1.0, "F1", float("nan"), float("inf"), 10, None, 1.0, ended=True)
    with Display(Output(quiet=True, json=False)) as display:
        display.show(progress)
    facts = json.loads(capsys.readouterr().out)
    assert facts["metric"] is None
    assert facts["windowed"] is None


def test_ctrl_c_during_start_prints_one_line(csv_file):
    # Interrupted in the middle of an import, as a key would.
    code = (
        "import sys, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # it is ignored where tests run in the background
        "from streamsvm.cli.main import main\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'streamsvm.stream': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "learn", str(csv_file), "--label", "y"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "streamsvm: interrupted\n")


def test_nothing_starts_without_a_file(tmp_path, call):
    done = call("learn", tmp_path / "none.csv", "--label", "y")
    assert done.stderr.splitlines() == [f"streamsvm: {tmp_path / 'none.csv'}: No such file or directory"]


def test_the_first_line_of_progress_is_not_of_one_row(tmp_path, monkeypatch, capfd, csv_file):
    monkeypatch.setattr("streamsvm.stream.stream_loop._PROGRESS_SECONDS", 0.0)
    assert main(["learn", str(csv_file), "--label", "y", "--max-rows", "3", "--quiet"]) == 0
    assert [json.loads(line)["rows"] for line in capfd.readouterr().out.splitlines()] == [2, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on-error", "{csv}"], "--on-error {csv} would overwrite SOURCE"),
        (["--on-error", "x.jsonl", "--to", "x.jsonl"], "--to x.jsonl would overwrite --on-error"),
        (["--on-error", "-", "--quiet"], "--on-error - and --quiet both write to standard output"),
        (["--labels-are", "a"], "--labels-are a: classes must be at least two"),
        (["--bound", "1"], "must be a number of at least 2, or 0, not 1"),
        (["--error-limit", "-1"], "--error-limit"),
        (["--error-share", "2"], "--error-share"),
        (["--labels-are", "a,b,c", "--learner", "bsgd,max_classes=2"], "3 classes are declared"),
    ],
)
def test_mistakes_of_the_policy(csv_file, call, words, message):
    done = call("learn", csv_file, "--label", "y", *(word.format(csv=csv_file) for word in words))
    assert done.returncode == 2, done.stderr
    assert message.format(csv=csv_file) in done.stderr


def test_labels_that_are_declared(tmp_path, call):
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n" + "".join(f"{i % 7},{'AB7'[i % 3]}\n" for i in range(60)) + "1,C\n")
    done = call("learn", path, "--label", "y", "--labels-are", "A,B,7", "--on-error", "skip", "--quiet")
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["learned"], end["refused"]) == (60, {"label": 1})
    done = call("learn", path, "--label", "y", "--on-error", "skip")
    assert "21 refused  20 label" not in done.stderr
    assert "20 refused  20 label" in done.stderr.splitlines()[-1]


def in_a_terminal(*words, send=None):
    """Run the command with a terminal as standard error; send a signal after a text was shown; what was shown, and the status."""
    main_end, other_end = pty.openpty()
    command = [sys.executable, "-m", "streamsvm", *map(str, with_a_model(list(words)))]
    shown = b""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=other_end) as process:
        os.close(other_end)
        with contextlib.suppress(OSError):  # the other end was closed
            while part := os.read(main_end, 4096):
                shown += part
                if send is not None and send[0] in shown:
                    process.send_signal(send[1])
                    send = None
    os.close(main_end)
    return shown.decode(), process.returncode


@pytest.mark.thorough
def test_the_next_step_is_said_on_a_terminal(csv_file, tmp_path, call):
    state = tmp_path / "my state"
    shown, status = in_a_terminal("learn", csv_file, "--label", "y", "--max-rows", "50", "--checkpoint", state)
    assert status == 0
    assert f"streamsvm predict SOURCE --model '{state}' --to -" in shown
    shown, _ = in_a_terminal("learn", csv_file, "--label", "y", "--max-rows", "50")
    assert "the model was not saved: give --checkpoint FOLDER to keep it" in shown
    assert "to predict" not in call("learn", csv_file, "--label", "y", "--max-rows", "50", "--checkpoint", state).stderr


def test_a_slow_end_says_how_to_end_now(monkeypatch, caplog):
    monkeypatch.setattr(streams, "_SECONDS_TO_STOP", 0.05)
    stopped = []
    with streams.stopping(lambda: stopped.append(True)):
        signal.raise_signal(signal.SIGINT)
        assert stopped == [True]
        until(lambda: "press Ctrl-C again to stop now" in caplog.text)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    caplog.clear()
    monkeypatch.setattr(streams, "_SECONDS_TO_STOP", PATIENCE)
    others = set(threading.enumerate())
    with streams.stopping(lambda: None):
        signal.raise_signal(signal.SIGTERM)  # and the end comes at once
    until(lambda: set(threading.enumerate()) <= others)
    assert caplog.text == ""


def test_a_stream_that_pauses_is_said_to(capsys):
    progress = Progress(10, 10, 0.0, "Accuracy", 0.5, 0.5, 1000, BSGDClassifier(), 1.0, majority=("no", 0.75))
    display = Display(Output(quiet=False, json=False))
    for seconds in range(4):
        display._last_line = -100.0
        display.show(progress if seconds else replace(progress, rows=9))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["9 rows", "10 rows", "waiting for rows"]
    assert "Accuracy 0.5000 (always 'no': 0.7500)" in lines[0]
