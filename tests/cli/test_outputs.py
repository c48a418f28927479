"""Files that commands write: which are continued, replaced, or must not be overwritten."""

import json
import os

import pytest

from crafted import repacked
from lists import first
from streamsvm import BSGDClassifier, load, save
from streamsvm.files.container import unpack_container
from streamsvm.stream import IterableSource, LearningLoop

LEARN = ["learn", "--label", "y", "--learner", "bsgd", "--quiet"]


@pytest.fixture
def model(rows, tmp_path, call):
    call(*LEARN, rows, "--checkpoint", tmp_path / "state")
    save(load(tmp_path / "state"), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_sinks_overwrite_only_files_of_earlier_runs(file, tmp_path, call, suffix):
    rows = file("rows.csv", "a,y", *["1,0", "x,1", "2,1"] * 40)
    sinks = {"--to": tmp_path / f"out.{suffix}", "--on-error": tmp_path / f"dead.{suffix}"}
    flags = [word for pair in sinks.items() for word in map(str, pair)]
    for more in ([], [], ["--checkpoint", tmp_path / "state"], ["--checkpoint", tmp_path / "state"]):
        call(*LEARN, rows, *flags, *more)
    for option, path in sinks.items():
        written = path.read_bytes()
        assert len(written) > 1000
        for content in (b"my notes\n" + written, b"row,of,my,table\n1,2,3,4\n", b"\n", b'{"row": 1}\n'):
            path.write_bytes(content)
            call(*LEARN, rows, *flags, status=2, says=f"{option} {path} exists, and streamsvm did not write it: name another")
            assert path.read_bytes() == content
        call(*LEARN, rows, *flags, "--overwrite")
        assert path.read_bytes()[:30] == written[:30]
        path.write_bytes(b"")
        call(*LEARN, rows, *flags)


@pytest.mark.parametrize("form", ["c", "json", "numpy", "onnx"])
def test_exports_overwrite_only_earlier_exports(model, tmp_path, call, form):
    words = ["export", tmp_path / "state", "--to", form, "--out", tmp_path / "out"]
    call(*words)
    call(*words)
    (path,) = (tmp_path / "out").glob("*.safetensors" if form == "numpy" else f"*.{form}")
    written = path.read_bytes()
    path.write_text("int main(void) { return 0; }")
    call(*words, status=2, says=f"{path} exists, and streamsvm did not write it: name another file, or give --overwrite")
    assert path.read_text() == "int main(void) { return 0; }"
    call(*words, "--overwrite")
    assert path.read_bytes() == written


@pytest.mark.parametrize("link", [os.link, os.symlink, None], ids=["hard", "symbolic", "itself"])
def test_export_never_overwrites_its_model(model, tmp_path, call, link):
    path = model
    if link is not None:
        link(model, path := tmp_path / "linked.safetensors")
    before = model.read_bytes()
    words = ["export", model, "--to", "numpy", "--out", tmp_path, "--name", path.stem, "--overwrite"]
    call(*words, status=2, says=f"{path} would overwrite the model")
    call("inspect", model, "--plot", path, "--overwrite", status=2, says=f"{path} would overwrite the model")
    assert model.read_bytes() == before


@pytest.mark.parametrize("suffix", first(1, ["png", "svg", "pdf"]))
def test_pictures_overwrite_only_earlier_pictures(model, tmp_path, call, suffix):
    path = tmp_path / f"curve.{suffix}"
    words = ["inspect", tmp_path / "state", "--plot", path]
    call(*words)
    call(*words)
    path.write_bytes(b"my picture")
    call(*words, status=2, says=f"--plot {path} exists, and streamsvm did not write it")
    call(*words, "--overwrite")
    assert path.read_bytes() != b"my picture"


def test_demo_removes_only_its_own_folders(tmp_path, call):
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "notes.txt").touch()
    call("demo", "--out", tmp_path, status=1, says="notes.txt was not written by a demo: give another folder, --out DIR")
    assert (tmp_path / "killed" / "notes.txt").exists()


def test_large_export_is_recognised_as_own_file(file, tmp_path, call):
    names = [f"a_column_with_a_long_name_{i}" for i in range(150)]
    rows = file("rows.csv", ",".join([*names, "y"]), *(",".join(map(str, [*range(i, 150 + i), i % 2])) for i in range(20)))
    call(*LEARN, rows, "--checkpoint", tmp_path / "state")
    for form in ("c", "json", "numpy"):
        for _ in range(2):
            call("export", tmp_path / "state", "--to", form, "--out", tmp_path / "out")
    path = tmp_path / "out" / "model.c"
    path.write_text("/* what holds streamsvm's model and the rest of the firmware together */\n")
    call("export", tmp_path / "state", "--to", "c", "--out", tmp_path / "out", status=2, says="streamsvm did not write it")


def test_sink_refuses_read_only_formats(rows, tmp_path, call):
    call(
        *LEARN,
        rows,
        "--to",
        tmp_path / "out.parquet",
        status=2,
        says="are written as CSV or JSON lines: name a .csv or .jsonl file",
    )


@pytest.mark.parametrize("flag", ["--to", "--on-error"])
@pytest.mark.parametrize("name", ["out.csv", "dead.jsonl"])
def test_predict_does_not_write_into_the_files_of_the_learner(file, tmp_path, call, flag, name):
    rows = file("rows.csv", "a,y", *["1,0", "x,1", "2,1"] * 20)
    more = ["--to", tmp_path / "out.csv", "--on-error", tmp_path / "dead.jsonl", "--checkpoint", tmp_path / "state"]
    call(*LEARN, rows, *more)
    written = (tmp_path / name).read_bytes()
    words = ["predict", rows, "--model", tmp_path / "state", "--quiet", *["--to", "-"] * (flag != "--to"), "--overwrite"]
    words = [word for word in words if flag == "--to" or word != "--quiet"]
    (tmp_path / f"link-{name}").symlink_to(tmp_path / name)
    for path in (tmp_path / name, tmp_path / f"link-{name}"):
        call(*words, flag, path, status=2, says=f"{flag} {path} is where the learner of this model writes, too")
    assert (tmp_path / name).read_bytes() == written
    (tmp_path / "other").mkdir()
    for _ in range(2):  # a file with this name elsewhere
        call("predict", rows, "--model", tmp_path / "state", "--to", tmp_path / "other" / name, "--on-error", "skip")
    file("rows.csv", "a,y", *["1,0", "x,1", "2,1"] * 40)
    call(*LEARN, rows, *more)  # it continues


@pytest.mark.parametrize("position", [5, {"dead_letters": 5}, {"dead_letters": {"name": ["p.csv"], "offset": 2**70}}])
def test_positions_that_no_run_has_saved_are_no_files_of_the_learner(file, tmp_path, call, position):
    rows, state = file("rows.csv", "a,y", *["1,0", "2,1"] * 20), tmp_path / "state"
    call(*LEARN, rows, "--checkpoint", state)
    (path,) = state.glob("*.ckpt")
    container = unpack_container(path.read_bytes())
    arrays, header = dict(container.arrays), json.loads(container.strings["metadata"])
    repacked(path, arrays.pop("tree").tobytes(), arrays, header | {"refused": position, "sink": [position]})
    for _ in range(2):  # the second time, the file exists
        call("predict", rows, "--model", state, "--to", tmp_path / "p.csv")


@pytest.mark.parametrize("word", ["skp", "Stop", "dead"])
def test_a_misspelt_word_is_not_the_file_of_refused_rows(rows, tmp_path, call, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    hint = {"skp": ". Perhaps 'skip'", "Stop": ". Perhaps 'stop'"}.get(word, "\n")
    says = f"--on-error must be stop, skip, or a file with a folder or an ending (./{word}, {word}.jsonl), not {word!r}{hint}"
    call(*LEARN, rows, "--on-error", word, status=2, says=says)
    assert not (tmp_path / word).exists()
    with pytest.raises(ValueError, match="on_error must be stop, skip, or a file"):
        LearningLoop(IterableSource([]), BSGDClassifier(), on_error=word)
    call(*LEARN, rows, "--on-error", f"./{word}")


def test_advice_on_the_format_of_files_works(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for i in range(2):
        (tmp_path / "data" / f"rows{i}.txt").write_text("a,y\n" + "1,0\n2,1\n" * 20)
    said = call(*LEARN, "data", status=1).stderr
    assert "'data/*.txt' --format csv" in said
    assert "80" not in said
    assert "give --format csv" in call(*LEARN, "data/*.txt", status=1).stderr
    assert '"rows": 80' in call(*LEARN, "data/*.txt", "--format", "csv").stdout


@pytest.mark.parametrize("command", ["learn", "predict"])
def test_a_topic_has_no_file_format(command, model, call):
    words = ["kafka://127.0.0.1:1/rows", "--label", "y", "--format", "jsonl"]
    words += ["--model", model, "--to", "-"] if command == "predict" else []
    call(command, *words, status=1, says="--format jsonl is of files, and the URL of a topic names a codec: leave it out")
