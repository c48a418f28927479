"""Systems without the functions of POSIX that this one has, as Windows: they are taken away."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE
from streamsvm.files.model_file import sync_folder

pytestmark = pytest.mark.thorough

#: What Python has not on Windows.
MISSING = {
    "os": ["O_NONBLOCK", "O_DIRECTORY", "pread", "pwrite", "geteuid", "getuid", "fchmod", "mkfifo", "set_blocking"],
    "select": ["poll", "epoll"],
    "signal": ["SIGKILL", "SIGHUP", "SIGUSR1", "pthread_sigmask"],
}
#: In a process of its own, which imports everything after that. There, no folder can be opened either.
START = f"""
import io, os, select, signal, sys
for module, names in {MISSING!r}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
real = os.open
def open_file(path, flags, *more, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return real(path, flags, *more, **options)
os.open = open_file
import json
from streamsvm.cli.main import main
sys.exit(max(main(words) for words in json.loads(sys.argv[1])))
"""


def test_a_file_is_learned_resumed_and_predicted(tmp_path):
    path, state, out, later = (str(tmp_path / name) for name in ("rows.csv", "state", "out.csv", "later.jsonl"))
    text = "a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(60))
    Path(path).write_text(text)
    learn = ["learn", path, "--label", "y", "--learner", "bsgd", "--checkpoint", state, "--to", out, "--checkpoint-every", "10"]
    predict = ["predict", path, "--model", state, "--to", later, "--checkpoint", str(tmp_path / "own")]
    commands = [[*words, *more] for words in (learn, predict) for more in (["--max-rows", "25"], [])]
    commands.append(["predict", "-", "--format", "csv", "--model", state, "--to", "-"])
    command = [sys.executable, "-c", START, json.dumps(commands)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 60), done.stderr
    assert [line.split(",")[0] for line in Path(out).read_text().splitlines()[1:]] == [str(row) for row in range(60)]
    assert [json.loads(line)["row"] for line in Path(later).read_text().splitlines()] == list(range(60))


def test_invalid_checkpoint_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.delattr(os, "open")
    sync_folder(tmp_path)


def test_here_folders_are_made_durable(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    sync_folder(tmp_path)
    assert len(synced) == 1
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "none")
