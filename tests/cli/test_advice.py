"""Advice in messages: its flags are typed, and the next run succeeds, or fails later and with another message."""

import difflib
import io
import json
import random
import re
import shlex
import shutil
from types import SimpleNamespace

import pytest

from command_words import main
from streamsvm.cli.main import _make_parser

pytestmark = pytest.mark.once

_, PARSERS = _make_parser()
#: Words after ``streamsvm``, and the values for placeholders of the advice.
MISTAKES = [
    # The label, and the columns
    ("learn rows.csv", {}),
    ("learn rows.csv --label Y", {}),
    ("learn rows.csv --label y --columns ID:drop", {}),
    ("learn rows.csv --label y --columns cc:category", {}),
    ("learn rows.csv --label y --columns c:number", {}),
    ("learn rows.csv --label y --columns y:category", {}),
    ("learn libsvm.t --columns 1:drop", {}),
    ("learn rows.jsonl --label y --delimiter ;", {}),
    ("learn rows.csv --label y --ask", {}),
    ("learn dash.csv --label y --ask", {}),
    ("learn comma.csv --label y --ask", {}),
    ("learn date.csv --label y --ask", {}),
    ("learn semi.csv --label y --delimiter ,", {}),
    ("learn latin.csv --label y --encoding utf-8", {}),
    ("learn rows.csv --label y --passthrough Id --to p.jsonl", {}),
    # Formats and places
    ("learn rows.txt --label y", {}),
    ("learn texts --label y", {}),
    ("learn texts/*.txt --label y", {}),
    ("learn rows.jsonl --label y --format json", {}),
    ("learn rows.csv --label y --to mine.txt", {}),
    ("learn rows.csv --label y --on-error mine.txt", {}),
    ("learn rows.csv --label y --on-error skp", {}),
    ("predict rows.txt --model names --to -", {}),
    ("score rows.txt --model names", {}),
    ("explain rows.txt --model names", {}),
    ("report names rows.txt --to page.html", {}),
    ("learn kafka://localhost:1/rows --label y --format csv", {"ends": "no Kafka broker at localhost:1"}),
    # Flags of other tools and of earlier versions, and misspelt ones
    ("learn rows.csv --lable y", {}),
    ("learn rows.csv --target y", {}),
    ("learn rows.csv --label y --keep id --to p.jsonl", {}),
    ("learn rows.csv --label y --metrics Accuracy", {}),
    ("learn rows.csv --label y --out p.jsonl", {}),
    ("learn rows.csv --label y --output p.jsonl", {}),
    ("learn rows.csv --label y --model new", {}),
    ("learn semi.csv --label y --sep ;", {}),
    ("predict rows.csv --model names --out -", {}),
    ("score rows.csv --checkpoint names", {}),
    ("explain rows.csv", {"ROWS": "rows.csv", "PLACE": "names"}),
    ("export names --to c --output folder", {}),
    ("export names --to onxx", {}),
    ("lern rows.csv --label y", {}),
    ("predict rows.csv --model names --to - --proba", {}),
    ("inspect names --jsn", {}),
    ("merge names --out merged", {}),
    ("report names --out page.html", {}),
    ("score rows.csv --model names --positve yes", {}),
    ("explain rows.csv --model names --row 2", {}),
    ("explain rows.csv names ten.csv", {"ROWS": "rows.csv", "PLACE": "names"}),
    ("inspect names --plot mine.txt --overwrit", {"ends": "--plot: mine.txt: its suffix"}),
    # Metrics and decisions
    ("learn rows.csv --label y --metric f1 --positive yes", {}),
    ("learn rows.csv --label y --metric Acuracy", {}),
    ("learn rows.csv --label y --metric F1", {"LABEL": "yes"}),
    ("learn rows.csv --label y --metric Accuracy --positive yes", {}),
    ("learn numbers.csv --label y --metric RMSE", {}),
    ("learn numbers.csv --label y --regression --positive 1", {}),
    ("learn rows.csv --label y --regression", {"PATH": "refused.jsonl"}),
    ("learn rows.csv --label y --threshold .3", {"LABEL": "yes"}),
    ("learn rows.csv --label y --threshold f1", {"LABEL": "yes"}),
    ("learn rows.csv --label y --threshold .3 --positive yes --costs yes=2", {}),
    ("learn ten.csv --label y --threshold f1 --positive a", {"LABEL=N": "a=2"}),
    ("learn ten.csv --label y --metric F1", {"LABEL": "a"}),
    ("score ten.csv --model ten --threshold .3", {"LABEL": "a"}),
    ("score rows.csv --model names --positive Yes", {}),
    ("predict rows.csv --model names --to p.jsonl --threshold .3", {"LABEL": "yes"}),
    ("export names --to json --threshold .3", {"LABEL": "yes"}),
    ("predict numbers.csv --model numbers --to p.jsonl --probabilities", {}),
    ("predict numbers.csv --model numbers --to p.jsonl --costs 1=2", {}),
    # Learners and runs
    ("learn rows.csv --label y --learner bsgd,bugdet=5", {}),
    ("learn rows.csv --label y --on-drift reset", {"DETECTOR": "ADWIN"}),
    ("learn rows.csv --label y --log-level debug", {}),
    ("learn rows.csv --label y --group workers", {}),
    ("learn rows.csv --label y --scale none --bound 3", {}),
    ("learn rows.csv --label y --labels labels.csv?key=id", {}),
    ("learn features.csv --label y --labels labels.csv", {"NAME": "id", "STREAM": "labels.csv", "ID": "id", "AT": "at"}),
    ("learn features.csv --label y --labels labels.csv?key=id", {"STREAM": "labels.csv", "ID": "id", "AT": "at"}),
    ("learn rows.csv --label y --checkpoint names --columns id:number", {}),
    # Other runs than the one of the checkpoint
    ("learn other.csv --checkpoint names", {}),
    ("learn rows.csv --checkpoint names --label b", {"STATE": "names", "FOLDER": "new", "ends": "rows.csv, line 2: label"}),
    ("learn rows.csv --checkpoint names --weight b", {}),
    ("learn rows.csv --checkpoint names --regression", {}),
    ("learn rows.csv --checkpoint names --learner linear", {}),
    ("learn rows.csv --checkpoint names --scale none --bound 5", {}),
    ("learn rows.csv --checkpoint copied --to copied.csv --passthrough a", {"FILE": "new.csv"}),
    ("learn other.csv rows.csv --checkpoint names", {"STATE": "names", "FOLDER": "new"}),
    ("predict rows.csv --model names --to p.jsonl --columns a:category", {}),
    ("learn rows.csv --label y --labels-are yes,maybe", {"PATH": "refused.jsonl"}),
    # Exports
    ("export names --to c --max-bytes 10", {}),
    ("export names --to onnx --max-bytes 10", {}),
    ("export names --to numpy --bits 8", {}),
    ("export names --to c --inputs double", {}),
    ("export names --to c --out mine", {}),
]
#: Values of flags in messages: quoted, or up to a blank or punctuation.
SHELL_CHARACTER = re.compile(r"[&<>|;*?()$`]")
FLAG = re.compile(r"(--[a-z][\w-]*)(?:[ =]('[^']*'|[^\s;()]*[^\s,;:().?']))?")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with the files and models that the mistakes are about."""
    folder, generator = tmp_path_factory.mktemp("advice"), random.Random(2)
    cells = [(i, generator.random(), generator.random(), generator.choice(["red", "blue"])) for i in range(120)]
    rows = [(i, f"{a:.3f}", f"{b:.3f}", c, "yes" if a > b else "no") for i, a, b, c in cells]

    def write(name, *lines, encoding="utf-8"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding)

    write("rows.csv", "id,a,b,c,y", *(",".join(map(str, row)) for row in rows))
    write("other.csv", "id,a,b,c,y", *(",".join(map(str, row)) for row in reversed(rows)))
    write("features.csv", "id,at,a,b,c", *(f"{i},{10 * i},{a},{b},{c}" for i, a, b, c, _ in rows))
    write("labels.csv", "id,at,y", *(f"{i},{10 * i + 5},{y}" for i, _, _, _, y in rows))
    write("numbers.csv", "a,b,y", *(f"{a},{b},{float(a) + float(b):.4f}" for _, a, b, _, _ in rows))
    write("ten.csv", "a,b,y", *(f"{a},{b},{'abcdefghij'[int(10 * float(a))]}" for _, a, b, _, _ in rows))
    write("semi.csv", "a;b;y", *(f"{a};{b};{y}" for _, a, b, _, y in rows))
    write("comma.csv", "a;b;y", *(f"{a};{b};{y}".replace(".", ",") for _, a, b, _, y in rows))
    write("dash.csv", "a,b,y", *(f"{a},{'-' if i % 5 == 0 else 'NA' if i % 7 == 0 else b},{y}" for i, a, b, _, y in rows))
    write("date.csv", "t,a,y", *(f"{i % 28 + 1:02d}.03.2017,{a},{y}" for i, a, _, _, y in rows))
    write("latin.csv", "a,c,y", *(f"{a},{'éü'[i % 2]},{y}" for i, a, _, _, y in rows), encoding="cp1252")
    write("rows.jsonl", *(json.dumps({"a": float(a), "b": float(b), "y": y}) for _, a, b, _, y in rows))
    write("libsvm.t", *(f"{int(y == 'yes')} 1:{a} 2:{b}" for _, a, b, _, y in rows))
    write("mine.txt", "not by streamsvm")
    write("mine/model.c", "not by streamsvm")
    for name in ("rows.txt", "texts/one.txt", "texts/two.txt"):
        write(name, *(folder / "rows.csv").read_text().splitlines())
    for name, flags in (("rows", ["--columns", "id:drop,c:category"]), ("ten", []), ("numbers", ["--regression"])):
        model = folder / {"rows": "names"}.get(name, name)
        assert main(["learn", folder / f"{name}.csv", "--label", "y", "--checkpoint", model, "--quiet", *flags]) == 0
    words = ["learn", folder / "rows.csv", "--label", "y", "--to", folder / "copied.csv", "--max-rows", "60"]
    assert main([*words, "--checkpoint", folder / "copied", "--quiet"]) == 0
    return folder


def run(words, capfd):
    """Run a command, and return the message of its error; None if it succeeds."""
    capfd.readouterr()
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    said = capfd.readouterr().err
    return said.splitlines()[-1].partition(": ")[2].removeprefix("error: ") if status else None


def find_action(words, flag):
    """Return the action of a flag of the command that the words begin with; None if it has none."""
    return PARSERS[words[0]]._option_string_actions.get(flag) if words[0] in PARSERS else None


def apply_advice(words, message, values):
    """Return the words that a message suggests to type in place of those that caused it."""
    for flag, value in FLAG.findall(message):  # a shell would cut the value, or replace it
        assert not SHELL_CHARACTER.search(value) or value.startswith("'") or find_action(words, flag) is None, message
    for name, value in values.items():
        message = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", value, message)
    if command := re.search(rf"streamsvm (?:{'|'.join(PARSERS)}) (?!error).*", message):  # a whole command
        return shlex.split(command[0])[1:]
    flags = [(flag, (value or "").strip("'")) for flag, value in FLAG.findall(message) if find_action(words, flag)]
    if start := re.search(r"--start-from (\S+) --checkpoint (\S+)", message):  # in place of the folder
        i = words.index("--checkpoint")
        return [*words[:i], "--start-from", start[1], "--checkpoint", start[2], *words[i + 2 :]]
    if left_out := re.search(r"leave ((?:--[\w-]+(?:, | and )?){2,}) out", message):
        given = [i for i, word in enumerate(words) if word in left_out[1].replace(",", "").split()]
        return [word for i, word in enumerate(words) if i not in given and i - 1 not in given]
    if removed := re.search(r"leave (--[\w-]+) out|[Ll]eave (?:it|one|the flag) out|means nothing", message):
        flag = removed[1] or next(flag for flag, _ in flags if flag in words)
        start = words.index(flag)
        return words[:start] + words[start + 1 + (find_action(words, flag).nargs != 0) :]
    if tried := re.search(r"(?:Try:|Perhaps) (--.*)", message):
        return [*words, *shlex.split(tried[1])]
    if similar := re.search(r"[(;.:] ?[Ii]s it (-*\w+)\?|Perhaps '([^']+)'", message):  # a misspelt word, or part of one
        name = similar[1] or similar[2]
        if name.startswith("--"):
            (misspelt,) = (word for word in words if word.startswith("--") and find_action(words, word) is None)
        else:
            parts = [part for word in words for part in re.split(r"[,:=]", word) if part and part in message and part != name]
            misspelt = max(parts, key=lambda part: difflib.SequenceMatcher(None, part.casefold(), name.casefold()).ratio())
        return [re.sub(rf"(?<![\w-]){re.escape(misspelt)}(?![\w-])", name, word) for word in words]
    if pattern := re.search(r": '([^']+)' --", message):  # in place of the source
        words = [words[0], pattern[1], *words[2:]]
    corrected = re.findall(r"(?:\(|Write |such as |column, )(--[a-z][\w-]*)", message)  # flags that may have been typed
    typed = {*words, *(word.partition("=")[2] for word in words)}
    advice = [(flag, value) for flag, value in flags if flag not in words or (flag in corrected and value not in typed)]
    assert advice, f"no advice: {message}"
    flag, value = advice[0]
    return [*words, f"{flag}={value}" if find_action(words, flag).nargs != 0 else flag]


@pytest.mark.parametrize(("command", "values"), MISTAKES)
def test_advice_works_when_it_is_typed(command, values, template, tmp_path, monkeypatch, capfd):
    shutil.copytree(template, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    words, messages = shlex.split(command.replace(";", "';'")), []
    while (message := run(words, capfd)) is not None and not message.startswith(values.get("ends", "!")):
        assert message not in messages, f"{words}: {message}"
        messages.append(message)
        assert len(messages) < 5, messages
        words = apply_advice(words, message, values)
    assert messages, "this is no mistake"


@pytest.mark.parametrize("flag", ["--help-me", "--verbose", "--halp", "--epochs"])
def test_flags_that_are_like_none_of_the_command_get_no_hint(flag, call):
    assert call("learn", "rows.csv", "--label", "y", flag, status=2).last.endswith(f"unrecognized arguments: {flag}")


def test_a_flag_is_not_abbreviated(call):
    call("learn", "rows.csv", "--lab", "y", status=2, says="unrecognized arguments: --lab y (is it --label?)")


@pytest.mark.parametrize("words", [["--missing", "-,NA"], ["--missing=-,NA"], ["--missing", "NA,-"]])
def test_values_may_begin_with_a_dash(words, template, tmp_path, call):
    state = tmp_path / "state"
    call("learn", template / "dash.csv", "--label", "y", *words, "--checkpoint", state)
    assert call("inspect", state, "--all").stdout.count("120 learned") == 1
    flags = call("learn", template / "dash.csv", "--label", "y", "--ask", status=1).last.partition("Try: ")[2]
    call("learn", template / "dash.csv", "--label", "y", *shlex.split(flags), "--checkpoint", state)


@pytest.mark.parametrize("checkpoint", [[], ["--checkpoint", "new"]])
def test_the_next_step_that_a_run_suggests_works(checkpoint, template, tmp_path, monkeypatch, capfd):
    shutil.copytree(template, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("streamsvm.cli.learn.sys", SimpleNamespace(stderr=terminal))
    words = ["learn", "rows.csv", "--label", "y", *checkpoint]
    assert run(words, capfd) is None
    advice = terminal.getvalue().splitlines()[-1]
    assert run(apply_advice(words, advice, {"FOLDER": "new", "SOURCE": "rows.csv"}), capfd) is None
    assert (tmp_path / "work" / "new").is_dir()
