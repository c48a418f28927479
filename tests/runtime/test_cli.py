"""The command line, as a shell calls it."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from river import datasets

from streamsvm.cli import main


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "bananas.csv"
    path.write_text("a,b,y\n" + "".join(f"{x['1']!r},{x['2']!r},{y}\n" for x, y in datasets.Bananas()))
    return path


def call(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "streamsvm", *map(str, words)], capture_output=True, text=True, check=False, timeout=300, **options
    )


def test_learn_inspect_predict(csv_file, tmp_path):
    state, out = tmp_path / "state", tmp_path / "out.csv"
    done = call("learn", csv_file, "--label", "y", "--budget", 50, "--checkpoint", state, "--to", out, "--quiet")
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


def test_same_command_again_goes_on_and_gives_the_same_bytes(csv_file, tmp_path):
    def learn(state, *more):
        done = call("learn", csv_file, "--label", "y", "--budget", 30, "--checkpoint", state, "--quiet", *more)
        assert done.returncode == 0, done.stderr
        return (state / "checkpoint-000000005300.ckpt").read_bytes() if not more else b""

    learn(tmp_path / "pieces", "--max-rows", 1234)
    assert learn(tmp_path / "pieces") == learn(tmp_path / "whole")
    learn(tmp_path / "whole")


def test_standard_input_and_libsvm_text():
    text = "".join(f"{1 if y else -1} 1:{x['1']} 2:{x['2']}\n" for x, y in datasets.Bananas().take(500))
    done = call("learn", "-", "--format", "libsvm", "--budget", 20, "--metric", "F1", "--set", "gamma=1.0", "--quiet", input=text)
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert end["metric_name"] == "F1"
    assert end["rows"] == 500


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
        learner.wait(timeout=120)
        with contextlib.suppress(BrokenPipeError):
            learner.stdin.close()
    assert learner.returncode == 130
    assert errors == b""
    end = json.loads(output.splitlines()[-1])
    assert end["interrupted"] is True
    assert (tmp_path / f"checkpoint-{end['rows']:012d}.ckpt").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["learn", "{csv}"], "--label NAME"),
        (["learn", "{csv}", "--label", "y", "--set", "gama=1"], "gamma"),
        (["learn", "{csv}", "--label", "y", "--set", "gamma=-1"], "gamma must be"),
        (["learn", "{csv}", "--label", "y", "--set", "maintenance=Merge('gs')"], "search must be one of"),
        (["learn", "{csv}", "--label", "y", "--budget", "0"], "budget must be"),
        (["learn", "{csv}", "--label", "y", "--metric", "MAE"], "no such metric for classifiers"),
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
        (["learn", "-", "--label", "y"], "--format"),
        (["learn", "{csv}", "--label", "a", "--scale", "none"], "row 1: feature 'y' is 'False', a str"),
        (["learn", "{csv}", "--label", "a"], "row 1: "),
        (["predict", "{csv}", "--model", "{folder}", "--to", "-"], "holds no checkpoint"),
        (["inspect", "{csv}"], "not a checkpoint"),
    ],
)
def test_what_fails_says_why_in_one_line(csv_file, tmp_path, capsys, words, message):
    assert main([word.format(csv=csv_file, folder=tmp_path) for word in words]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("streamsvm: ")]
    assert len(lines) == 1
    assert message in lines[0]


def test_help_names_every_command():
    done = call("--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("learn", "predict", "inspect", "demo"))


def test_progress_on_a_terminal(csv_file):
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="140")
        os.execv(sys.executable, [sys.executable, "-m", "streamsvm", "learn", str(csv_file), "--label", "y"])
    seen, deadline = b"", time.monotonic() + 120
    while time.monotonic() < deadline:
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
