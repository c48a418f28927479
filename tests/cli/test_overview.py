"""What is shown without arguments: commands that can be run as they stand."""

import shlex

import streamsvm
from streamsvm.cli.main import OVERVIEW, _parser


def commands():
    """The commands that the overview shows."""
    lines = [line for line in OVERVIEW.splitlines() if line.startswith("  ")]
    assert all(line.startswith("  streamsvm ") for line in lines)
    return [shlex.split(line)[1:] for line in lines]


def test_without_arguments_the_overview_is_shown(call):
    done = call()
    assert (done.returncode, done.stdout, done.stderr) == (0, OVERVIEW, "")
    lines = OVERVIEW.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert streamsvm.__version__ in lines[0]


def test_the_commands_are_those_that_exist():
    parser, known = _parser()
    words = commands()
    assert len(words) == 5
    assert {first for first, *_ in words} == known.keys() - {"compile", "merge"}
    for each in words:
        parser.parse_args(each)


def test_the_commands_run_one_after_the_other(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i % 13},{i % 7},{'yes' if i % 13 > 6 else 'no'}\n" for i in range(300))
    (tmp_path / "rows.csv").write_text("a,b,y\n" + rows)
    said = {}
    for words in commands():
        if words != ["demo"]:  # it has tests of its own
            done = call(*words, *(["--model", "bsgd"] if words[0] == "learn" else []))
            assert done.returncode == 0, done.stderr
            said[words[0]] = done.stdout
    assert len(said["predict"].splitlines()) == 300
    assert "rows" in said["inspect"]
    assert sorted(path.name for path in (tmp_path / "device").iterdir()) == ["model.c", "model.h"]
