"""Classes of the user's own in a checkpoint: only where the command line says that it is trusted."""

import subprocess
import sys

from river import datasets, linear_model

from streamsvm.stream import CheckpointFolder, IterableSource, LearningLoop


class Mine(linear_model.Perceptron):
    """A class that is neither of streamsvm nor of river."""


def test_trusted(tmp_path, call):
    rows = list(datasets.Bananas().take(20))
    with CheckpointFolder(tmp_path / "state", trusted=True) as folder:
        LearningLoop(IterableSource(rows), Mine(), checkpoints=folder).run()
    path = tmp_path / "rows.csv"
    path.write_text("1,2\n" + "".join(f"{x['1']},{x['2']}\n" for x, _ in rows))
    commands = (["inspect", tmp_path / "state"], ["predict", path, "--model", tmp_path / "state", "--to", tmp_path / "out.csv"])
    for words in commands:
        done = call(*words)
        assert done.returncode == 1
        assert "which is not a class of a model of streamsvm or river" in done.stderr
        assert call(*words, "--trusted").returncode == 0
    text = " ".join(call("predict", "--help", "all").stdout.split())
    assert "loading can then run any code that is in the file. Without this flag, loading runs no code" in text


def test_an_interrupt_while_modules_are_imported(tmp_path):
    code = "import builtins, sys\n" + (
        "found = builtins.__import__\n"
        "def importing(name, *rest):\n"
        "    if name.startswith('numba'):\n"
        "        raise KeyboardInterrupt\n"
        "    return found(name, *rest)\n"
        "builtins.__import__ = importing\n"
        "sys.argv = ['streamsvm', 'learn', 'none.csv', '--label', 'y']\n"
        "from streamsvm.cli.main import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stderr == "streamsvm: interrupted\n"
    assert done.returncode == 130
