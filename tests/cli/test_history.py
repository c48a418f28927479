"""``streamsvm checkpoints``, ``rollback`` and ``diff``, and the flags that keep older checkpoints."""

import json
import os
import re

import pytest

from streamsvm import BSGDClassifier
from streamsvm.stream import CheckpointFolder
from streamsvm.stream.checkpoint import list_history, read_newest


@pytest.fixture
def learn(bananas, tmp_path, call):
    """Learns up to a row, with checkpoints every 100 rows."""
    path = bananas(600)

    def run(rows, *flags, state="state"):
        words = ["--label", "y", "--learner", "bsgd,budget=20", "--quiet", "--checkpoint-every", 100, "--max-rows", rows]
        return call("learn", path, *map(str, words), "--checkpoint", tmp_path / state, "--to", tmp_path / "out.csv", *flags)

    return run


def load_header(state):
    return read_newest(state).header


def rows_of(state):
    return [saved.rows for saved in list_history(state)]


def test_checkpoints_are_listed(learn, tmp_path, call):
    state = tmp_path / "state"
    learn(400, "--keep-checkpoints", "3")
    for i, file in enumerate(sorted(state.glob("*.ckpt"))):
        os.utime(file, (3600 * i, 3600 * i))
    lines = call("checkpoints", state).stdout.splitlines()
    assert len(lines) == 3
    pattern = r" +400 rows  1970-01-01T02:00:00\+00:00 +[\d,]+ bytes  Accuracy 0\.\d{4}"
    assert re.fullmatch(pattern, lines[0])
    facts = [json.loads(line) for line in call("checkpoints", state, "--json").stdout.splitlines()]
    assert [(fact["rows"], fact["set_aside"], fact["bytes"]) for fact in facts] == [
        (rows, False, (state / f"checkpoint-{rows:012d}.ckpt").stat().st_size) for rows in (400, 300, 200)
    ]
    assert facts[0]["scores"][0]["name"] == "Accuracy"
    assert facts[0]["scores"][0]["value"] == pytest.approx(float(lines[0].rpartition(" ")[2]), abs=1e-4)
    file = state / "checkpoint-000000000300.ckpt"
    file.write_bytes(file.read_bytes()[:-1])
    assert "checkpoint-000000000300.ckpt is corrupt" in call("checkpoints", state).stdout.splitlines()[1]
    assert "is corrupt" in json.loads(call("checkpoints", state, "--json").stdout.splitlines()[1])["damage"]


def test_one_of_each_period_is_kept(learn, tmp_path):
    learn(500, "--keep-checkpoints", "1", "--keep-every", "DAY")
    assert rows_of(tmp_path / "state") == [500]
    learn(400, "--keep-every", "36500d", state="other")
    assert rows_of(tmp_path / "other") == [400, 300]


def test_what_to_keep_is_remembered(learn, tmp_path, call):
    state, copy = tmp_path / "state", tmp_path / "copy"
    learn(300, "--keep-checkpoints", "4", "--keep-every", "DAY")
    learn(200)
    assert rows_of(state) == [500, 400, 300, 200]
    call("rollback", state, "--to", "400")
    copy.mkdir()
    call("checkpoints", state, "--copy", copy)
    learn(100)
    assert rows_of(state) == [500, 400, 300, 200]
    for _ in range(3):
        learn(50, state="copy")
    assert rows_of(copy) == [550, 500, 450, 400]
    assert load_header(copy)["retention"] == {"keep": 4, "keep_every": 86_400.0}
    learn(50, "--keep-checkpoints", "1", "--keep-every", "inf", state="copy")
    assert (rows_of(copy), load_header(copy)["retention"]) == ([600], {"keep": 1})


def test_a_merged_model_is_kept_as_before(learn, tmp_path, call):
    for rows, flags in ((100, ["--keep-checkpoints", "3"]), (100, []), (100, []), (100, [])):
        learn(rows)
        call("merge", tmp_path / "state", "--to", tmp_path / "merged", *flags)
    assert rows_of(tmp_path / "merged") == [400, 300, 200]


@pytest.mark.parametrize("words", [["--keep-checkpoints", "0"], ["--keep-every", "0s"], ["--keep-every", "MONTH"]])
def test_invalid_retention(words, rows, tmp_path, call):
    call(
        "learn", rows, "--label", "y", "--checkpoint", tmp_path / "state", *words, status=2, says=f"argument {words[0]}: must be"
    )


def test_a_copy_is_a_model(learn, tmp_path, call):
    state, copy = tmp_path / "state", tmp_path / "old.ckpt"
    learn(400, "--keep-checkpoints", "3")
    assert " 300 rows " in call("checkpoints", state, "--copy", copy, "--at", "350").stdout
    assert copy.read_bytes() == (state / "checkpoint-000000000300.ckpt").read_bytes()
    assert "300 learned" in call("inspect", copy).stdout
    call("checkpoints", state, "--copy", copy, status=2, says="--overwrite")
    call("checkpoints", state, "--copy", copy, "--overwrite")
    assert copy.read_bytes() == (state / "checkpoint-000000000400.ckpt").read_bytes()
    call("checkpoints", state, "--copy", state / "copy", status=2, says="would overwrite a checkpoint, or write into it")
    call("checkpoints", state, "--copy", tmp_path / "missing" / "copy", status=1, says="--copy ")
    (tmp_path / "blocked" / "checkpoint-000000000400.ckpt").mkdir(parents=True)
    call("checkpoints", state, "--copy", tmp_path / "blocked", status=1, says=f"--copy {tmp_path / 'blocked'}: Is a directory")
    call("checkpoints", state, "--at", "100", status=1, says="holds no checkpoint so early")
    call("checkpoints", tmp_path / "missing", status=1, says="name a folder or topic of checkpoints")


def test_a_file_that_a_rollback_has_set_aside_can_be_copied(learn, tmp_path, call):
    state, copy = tmp_path / "state", tmp_path / "old.ckpt"
    learn(400)
    call("rollback", state, "--to", 300)
    (file,) = state.glob("*.aside")
    assert " 400 rows " in call("checkpoints", file, "--copy", copy).stdout
    assert copy.read_bytes() == file.read_bytes()


def test_a_run_continues_from_its_copy(learn, tmp_path, call):
    state, copy = tmp_path / "state", tmp_path / "copy"
    copy.mkdir()
    learn(400, "--keep-checkpoints", "3")
    call("checkpoints", state, "--copy", copy, "--at", "350")
    assert rows_of(copy) == [300]
    call(
        "checkpoints", state, "--copy", copy, status=2, says="it has checkpoints already. Name an empty folder, or another model"
    )
    assert rows_of(copy) == [300]
    (tmp_path / "file").mkdir()
    call("checkpoints", copy / "checkpoint-000000000300.ckpt", "--copy", tmp_path / "old")
    assert " 300 rows " in call("checkpoints", tmp_path / "old", "--copy", tmp_path / "file").stdout
    assert rows_of(tmp_path / "file") == [300]
    learn(100, state="copy")
    name = "checkpoint-000000000400.ckpt"
    assert (copy / name).read_bytes() == (state / name).read_bytes()
    assert call("diff", state, copy).stdout == "equal  no difference\n"
    assert "of them in common" in call("diff", state, copy / "checkpoint-000000000300.ckpt").stdout


def test_a_copy_that_writes_elsewhere_leaves_the_files_of_its_run(learn, tmp_path, call):
    learn(400, "--keep-checkpoints", "3")
    before, copy = (tmp_path / "out.csv").read_bytes(), tmp_path / "copy"
    copy.mkdir()
    call("checkpoints", tmp_path / "state", "--copy", copy, "--at", "300")
    learn(100, "--to", tmp_path / "other.csv", state="copy")
    assert rows_of(copy) == [400, 300]
    assert (tmp_path / "out.csv").read_bytes() == before


def test_a_rollback_truncates_predictions_and_can_be_undone(learn, tmp_path, call):
    state, out = tmp_path / "state", tmp_path / "out.csv"
    learn(400, "--keep-checkpoints", "9")
    before = out.read_bytes(), (state / "checkpoint-000000000400.ckpt").read_bytes()
    done = call("rollback", state, "--to", "250")
    assert done.stdout == f"{state}: the next run continues after row 200; to undo this: streamsvm rollback {state} --to 400\n"
    assert "set aside by a rollback" in call("checkpoints", state).stdout
    assert "200 learned" in call("inspect", state).stdout
    call(*done.stdout.partition("streamsvm ")[2].split())
    assert "400 learned" in call("inspect", state).stdout
    call("rollback", state, "--to", "250")
    learn(50, "--keep-checkpoints", "9")
    assert out.read_text().count("\n") == 1 + 250
    learn(150, "--keep-checkpoints", "9")
    assert (out.read_bytes(), (state / "checkpoint-000000000400.ckpt").read_bytes()) == before
    assert rows_of(state) == [400, 300, 250, 200, 100]


def test_refused_rollbacks_change_nothing(learn, tmp_path, call):
    state = tmp_path / "state"
    learn(200)
    file = state / "checkpoint-000000000100.ckpt"
    with CheckpointFolder(state):
        call("rollback", state, "--to", "100", status=1, says="another process is using this checkpoint folder. Stop it")
    file.write_bytes(file.read_bytes()[:-1])
    call("rollback", state, "--to", "100", status=1, says="checkpoint-000000000100.ckpt is corrupt")
    call("rollback", state, "--to", "1970-01-01", status=1, says="holds no checkpoint so early")
    call("rollback", state, "--to", "yesterday", status=2, says="must be a number of rows, or a time such as")
    call("rollback", tmp_path / "missing", "--to", "1", status=1, says="name a folder or topic of checkpoints")
    assert rows_of(state) == [200, 100]
    assert not (tmp_path / "missing").exists()


def test_the_difference_of_two_checkpoints(learn, tmp_path, call):
    state = tmp_path / "state"
    learn(300)
    done = call("diff", state, "--at", "200")
    assert "rows            - 200 learned, 0 refused\n                + 300 learned, 0 refused\n" in done.stdout
    assert "score           - Accuracy" in done.stdout
    assert "columns" not in done.stdout
    facts = json.loads(call("diff", state, "--at", "200", "--json").stdout)
    assert (facts["before"]["rows"], facts["after"]["rows"]) == (["200 learned, 0 refused"], ["300 learned, 0 refused"])
    assert facts["before"]["columns"] == facts["after"]["columns"] == ["a: number", "b: number"]
    models = [saved.load(False).model for saved in list_history(state)]
    common = {row.tobytes() for row in models[0].support_vectors} & {row.tobytes() for row in models[1].support_vectors}
    (vectors,) = facts["vectors"]
    assert (vectors["before"], vectors["after"], vectors["common"]) == (20, 20, len(common))
    assert 0 < len(common) < 20
    assert f"20 to 20, {len(common)} of them in common\n" in done.stdout


def test_the_difference_of_two_models(rows, file, tmp_path, call):
    other = file("other.csv", "a,city,z", *(f"{i % 7},{'uvw'[i % 3]},{'no' if i % 2 else 'yes'}" for i in range(60)))
    for name, path, label in (("a", rows, "y"), ("b", other, "z")):
        call("learn", path, "--label", label, "--learner", "bsgd,budget=5", "--quiet", "--checkpoint", tmp_path / name)
    lines = call("diff", tmp_path / "a", tmp_path / "b").stdout.split("\n")
    for line in ("- b: number", "+ city: category", "- y", "+ z", "+ yes, no"):
        assert any(text.endswith(line) for text in lines), line
    assert "no difference" not in lines[0]
    BSGDClassifier(budget=3).save(tmp_path / "model")
    assert call("diff", tmp_path / "model", tmp_path / "model").stdout == "equal  no difference\n"
    call("diff", tmp_path / "model", "--at", "3", status=1, says="name a folder or topic of checkpoints")
