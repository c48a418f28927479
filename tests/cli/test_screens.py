"""What is shown to begin with: commands that can be run as they stand, and flags that there are."""

import re
import shlex

import pytest

import streamsvm
from streamsvm.cli.main import _make_parser
from streamsvm.cli.screens import OVERVIEW, SCREENS


def commands():
    """The commands that the overview shows."""
    lines = [line for line in OVERVIEW.splitlines() if line.startswith("  ")]
    assert all(line.startswith("  streamsvm ") for line in lines)
    return [shlex.split(line)[1:] for line in lines]


def test_without_arguments_the_overview_is_shown(call):
    done = call()
    assert (done.stdout, done.stderr) == (OVERVIEW, "")
    lines = OVERVIEW.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert streamsvm.__version__ in lines[0]


def test_the_commands_are_those_that_exist():
    parser, known = _make_parser()
    words = commands()
    assert len(words) == 8
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
            done = call(*words, *(["--learner", "bsgd"] if words[0] == "learn" else []))
            said[words[0]] = done.stdout
    assert len(said["predict"].splitlines()) == 300
    assert "rows" in said["inspect"]
    assert "report.html" in said["report"]
    assert sorted(path.name for path in (tmp_path / "device").iterdir()) == ["model.c", "model.h"]


@pytest.mark.parametrize(("command", "most"), [("learn", 16), ("predict", 10)])
def test_the_help_of_a_command_is_a_screen(call, command, most):
    text = SCREENS[command]
    for words in ([command, "--help"], [command, "-h"]):
        done = call(*words)
        assert (done.stdout, done.stderr) == (text, "")
    lines = text.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80
    shown = re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)
    assert len(shown) <= most
    whole = call(command, "--help", "all").stdout
    assert {*shown} < {*re.findall(r"^  (?:-h, |-h \[all\], )?(--[a-z-]+)", whole, re.MULTILINE)}
    parser, _ = _make_parser()
    for line in text.replace("\\\n", "").splitlines():
        if (found := re.search(r"^  (?:.*\| )?streamsvm (.*)", line)) is not None:
            parser.parse_args(shlex.split(found[1]))
