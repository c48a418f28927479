"""``streamsvm export``: formats of models, checkpoints and folders, and errors for models without a format."""

import json
import re

import numpy as np
import onnxruntime
import pytest
from river import datasets, preprocessing

import streamsvm
from lists import OF_RELEASE, first
from streamsvm import BSGDClassifier, SVMClassifier, edge
from streamsvm.cli.streams import load_newest
from streamsvm.export.convert import make_program
from streamsvm.export.formats import export
from streamsvm.stream.tables import TableEncoder

NATURAL = "takes numbers in the natural order of their names, for the model knows no order of a table"


@pytest.fixture
def saved(tmp_path):
    model = preprocessing.StandardScaler() | BSGDClassifier(budget=10, scaling=None, seed=1)
    for x, y in datasets.Bananas().take(100):
        model.learn_one(x, y)
    streamsvm.save(model, tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("form", ["onnx", "numpy", "json"])
def test_a_model_is_exported(saved, tmp_path, call, form):
    done = call("export", saved, "--to", form, "--out", tmp_path / "new" / "folder", "--name", "bananas")
    path = tmp_path / "new" / "folder" / f"bananas.{'safetensors' if form == 'numpy' else form}"
    assert done.stderr == ""
    order = f"{NATURAL}: 1, 2\n" if form == "onnx" else ""
    assert done.stdout == f"{order}{path}: {path.stat().st_size:,} bytes\n"


@pytest.mark.parametrize("form", ["c", "onnx", "numpy", "json"])
def test_out_may_be_the_file(saved, tmp_path, call, form):
    suffixes = {"c": ["c", "h"], "numpy": ["safetensors"]}.get(form, [form])
    for suffix in suffixes:
        folder = tmp_path / suffix
        call("export", saved, "--to", form, "--out", folder / f"p.{suffix}")
        assert sorted(path.name for path in folder.iterdir()) == [f"p.{known}" for known in suffixes]
        [*_, path] = export(streamsvm.load(saved), form, folder / f"P.{suffix}")
        assert (path.parent, path.stem) == (folder, "P")
        call("export", saved, "--to", form, "--out", folder / f"p.{suffix}")  # again: streamsvm wrote it
        (folder / f"p.{suffix}").write_text("mine" * 99)
        call("export", saved, "--to", form, "--out", folder / f"p.{suffix}", status=2, says="streamsvm did not write it")


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (
            ["--to", "onnx", "--out", "p.json"],
            1,
            "p.json would be a file of the format json, not onnx: name a folder, or PATH.onnx",
        ),
        (["--to", "c", "--out", "p.safetensors"], 1, "would be a file of the format numpy, not c: name a folder, or PATH.c"),
        (["--to", "json", "--out", "p.json", "--name", "q"], 2, "--name q: --out p.json names the file already: leave out one"),
        (["--to", "c", "--out", "1p.c"], 1, "1p"),
    ],
)
def test_files_of_other_formats_or_two_names_are_refused(saved, tmp_path, call, monkeypatch, words, status, reason):
    monkeypatch.chdir(tmp_path)
    call("export", saved, *words, status=status, says=reason)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("name", ["v1.2", "p.json"])
def test_folders_may_have_a_dot_in_their_names(saved, tmp_path, call, name):
    if name == "p.json":
        (tmp_path / name).mkdir()
    call("export", saved, "--to", "json", "--out", tmp_path / name)
    assert [path.name for path in (tmp_path / name).iterdir()] == ["model.json"]


def test_an_onnx_file_of_double_rows(saved, tmp_path, call):
    call("export", saved, "--to", "onnx", "--inputs", "double", "--out", tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert session.get_inputs()[0].type == "tensor(double)"


def test_a_model_is_made_smaller(saved, tmp_path, call):
    done = call("export", saved, "--to", "c", "--out", tmp_path, "--max-bytes", "165")
    assert done.stderr == ""
    said = done.stdout.splitlines()[0]
    assert " of 10 vectors, " in said
    assert f"Made smaller: {said}." in (tmp_path / "model.h").read_text()
    call("export", saved, "--to", "c", "--max-bytes", "20", status=1, says="more than max_bytes=20: allow ")


def test_fewer_bits_are_compared_with_the_model(saved, file, tmp_path, call):
    words = "export", saved, "--to", "c", "--out", tmp_path, "--bits", "8"
    [bits, compared, order, *files, needs] = call(*words).stdout.splitlines()
    assert bits == "vectors have 8 bits"
    assert compared == "not compared with the model: --sample ROWS counts the predictions that changed"
    assert order == f"{NATURAL}: 1, 2"
    assert len(files) == 2
    assert re.match(r"on a device: \d+ bytes of flash for tables, .*; of RAM, up to \d+ bytes of stack", needs)
    sample = file("rows.csv", "1,2", *(f"{x['1']!r},{x['2']!r}" for x, _ in datasets.Bananas().take(200)))
    lines = call(*words, "--sample", sample).stdout.splitlines()
    assert lines[1].startswith(f"compared with the model on rows of {sample}: 0 of 200 rows (0%) have another label; ")
    assert len(lines) == 6
    other_file = file("other.csv", "x,z", "1,2")
    call(*words, "--sample", other_file, status=1, says="has none of the columns that the model has learned")
    call(*words, "--sample", "-", status=2, says="--sample - is standard input: give a file")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--out", "saved"], "--out saved is a file: name a folder there"),
        (["--out", "state"], "state/model.h would overwrite the model, or write into it: name another file"),
        (["--bits", "8", "--sample", "model.c", "--overwrite"], "model.c would overwrite --sample"),
    ],
)
def test_refuses_flags_that_would_lose_columns_or_are_ambiguous(bananas, tmp_path, call, monkeypatch, words, reason):
    monkeypatch.chdir(tmp_path)
    call("learn", bananas(100), "--label", "y", "--checkpoint", "state", "--learner", "bsgd", "--quiet")
    (tmp_path / "saved").touch()
    (tmp_path / "model.c").write_text("a,b\n1,2\n")
    call("export", "state", "--to", "c", *words, status=2, says=reason)
    assert (tmp_path / "model.c").read_text() == "a,b\n1,2\n"


@pytest.mark.filterwarnings("default")
def test_much_that_changed_is_warned_of(saved, file, tmp_path, call):
    sample = file("rows.csv", "1,2", *(f"{x['1']!r},{x['2']!r}" for x, _ in datasets.Bananas().take(200)))
    done = call("export", saved, "--to", "c", "--out", tmp_path, "--max-bytes", "100", "--sample", sample)
    much = f"over 1% of labels differ on rows of {sample}: allow more bits or bytes"
    assert done.stderr == f"streamsvm: warning: {much}\n"
    assert (tmp_path / "model.c").exists()


def test_a_sample_is_read_as_predict_reads_it(file, tmp_path, call):
    cities = ("Rome", "Oslo", "Bonn")
    lines = [f"{i % 7},{cities[i % 3]},{i},{i % 3 == 1}" for i in range(400)]
    table = file("table.csv", "a,city,id,y", *lines)
    words = "--columns", "city:category,id:drop", "--label", "y", "--learner", "bsgd", "--quiet"
    call("learn", table, *words, "--checkpoint", tmp_path / "state")
    words = "export", tmp_path / "state", "--to", "c", "--out", tmp_path / "out", "--bits", "8", "--sample"
    assert f"of {table}: 0 of 400 rows" in call(*words, table).stdout
    call(*words, file("text.csv", "a,city", "1,Rome", "x,Rome"), status=1, says="row 2: feature 'a' is 'x'")
    call(*words, file("empty.csv", "a,city"), status=1, says="empty.csv has no rows to compare on")
    call(*words, file("bad.csv", "a,city", "1,Rome,2"), status=1, says="--sample")
    call(*words, tmp_path / "none.csv", status=1, says="none.csv: No such file or directory")
    assert not list((tmp_path / "out").glob("text*"))


def test_the_default_model_names_the_way_to_a_small_one(tmp_path, call):
    model = SVMClassifier(seed=0)
    for x, y in datasets.Bananas().take(20):
        model.learn_one(x, y)
    streamsvm.save(model, tmp_path / "saved")
    said = call("export", tmp_path / "saved", "--to", "numpy", "--out", tmp_path).stdout.splitlines()[-1]
    assert re.match(r"an ensemble of [\d,]+ bytes of numbers: .*--max-bytes.*--learner bsgd,budget=60", said)


SIZES = [("onnx", 2), ("c", 2), ("numpy", 2), ("json", 2), ("c", 12), *[("onnx", 12)] * OF_RELEASE]


@pytest.mark.parametrize("case", first(2, SIZES), ids=str)
def test_the_advice_on_size_works_when_it_is_typed(tmp_path, call, case):
    """As many labels, or encodings, as need over 16,000 bytes: that much is advised. For a release with one form more."""
    form, n_labels = case
    rng, model = np.random.default_rng(0), TableEncoder("k:category", max_values=1) | SVMClassifier(seed=0)
    for number in range(100 if n_labels == 2 else 600):
        label = number % n_labels
        x = {f"f{i}": float(rng.normal(label % (i + 2))) for i in range(8)} | {"k": f"k{rng.integers(900)}"}
        model.learn_one(x, f"l{label}")
    streamsvm.save(model, tmp_path / "saved")
    words = ["export", tmp_path / "saved", "--to", form, "--out", tmp_path / "out"]
    advice = call(*words).stdout.splitlines()[-1]
    flags = re.search(r"--max-bytes (\d+)(?: --bits 8)?", advice)
    assert ("--bits" in flags[0]) == (form == "c")
    said = call(*words, *flags[0].split()).stdout
    assert re.search(r"[\d,]+ of [\d,]+ vectors, [\d,]+ bytes of tables", said)
    assert flags[0] not in said
    reason = call(*words, "--max-bytes", "500", status=1).last
    call(*words, "--max-bytes", re.search(r"--max-bytes (\d+)", reason)[1])


def test_export_keeps_and_prints_column_order(file, tmp_path, call):
    lines = [f"{i % 7},{i * 37 % 100},{i % 5},{i % 7 > 3}" for i in range(300)]
    table = file("table.csv", "sex,income,age,y", *lines)
    call("learn", table, "--label", "y", "--learner", "bsgd", "--quiet", "--checkpoint", tmp_path / "state")
    said = call("export", tmp_path / "state", "--to", "c", "--out", tmp_path).stdout
    assert said.startswith("takes numbers in the order of the table: sex, income, age\n")
    assert "x[0]  sex\n *   x[1]  income\n *   x[2]  age\n" in (tmp_path / "model.h").read_text()


def test_checkpoints_are_exported(bananas, tmp_path, call):
    state, out = tmp_path / "state", tmp_path / "out"
    call("learn", bananas(300), "--label", "y", "--checkpoint", state, "--learner", "bsgd", "--quiet")
    model = streamsvm.load(state)
    header = json.loads(call("inspect", state, "--json").stdout)
    for place in (state, next(state.glob("*.ckpt"))):
        call("export", place, "--to", "numpy", "--out", out)
        x = {"a": 1.0, "b": -1.0}
        predictor = edge.load(out / "model.safetensors")
        assert predictor.predict_one(x) == model.predict_one(x)
        assert predictor.metadata["rows"] == 300
        assert predictor.metadata["score"] == header["scores"][0]
        assert predictor.metadata["parameters"]["budget"] == 500


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["--to", "c", "--inputs", "float"], 2, "--inputs means nothing for --to c: leave it out"),
        (["--to", "numpy", "--sample", "rows.csv"], 2, "only a model of fewer bits or bytes predicts differently: add --bits"),
        (["--to", "pickle"], 2, "invalid choice: 'pickle'"),
        ([], 2, "required: --to"),
        (["--to", "numpy", "--name", "a/b"], 1, "was not exported: invalid file name 'a/b'"),
        (["--to", "numpy", "--out", "/dev/null/new"], 1, "was not exported: /dev/null/new: Not a directory"),
    ],
)
def test_invalid_export_flags_are_refused(saved, call, words, status, reason):
    assert reason in call("export", saved, *words, status=status).last


def test_a_model_without_a_program(tmp_path, call):
    streamsvm.save(BSGDClassifier(), tmp_path / "model")
    done = call("export", tmp_path / "model", "--to", "numpy", "--out", tmp_path / "out", status=1)
    reason = f"streamsvm: {tmp_path / 'model'} was not exported: it has not learned yet: there is nothing to predict by\n"
    assert done.stderr == reason
    assert not (tmp_path / "out").exists()


def test_a_model_with_texts_is_exported_for_numpy(file, tmp_path, call):
    rows = [f"{'free prize now' if i % 3 else 'see you at home'} {i % 50},{i % 3 > 0}" for i in range(200)]
    source, state, out = file("rows.csv", "body,y", *rows), tmp_path / "state", tmp_path / "out"
    call(
        "learn", source, "--label", "y", "--columns", "body:text", "--learner", "bsgd,budget=60", "--checkpoint", state, "--quiet"
    )
    program = make_program(load_newest(state, False).model)
    size = f"{program.text_nbytes:,}"
    shown = call("export", state, "--to", "numpy", "--out", out).stdout
    assert f" bytes (scores of the words of texts: {size} bytes of numbers)\n" in shown
    assert edge.load(out / "model.safetensors").nbytes == program.nbytes
    assert f"{program.nbytes:,} bytes of numbers, {size} of them for texts" in call("inspect", state).stdout
    words = "--max-bytes", str(program.text_nbytes + 2000), "--sample", source
    compared = call("export", state, "--to", "numpy", "--out", out, *words).stdout
    assert "compared with the model on rows of" in compared
    assert "0 of 200 rows (0%) have another label" in compared
    for form in ("c", "onnx"):
        says = f"the column 'body' has texts, which {form.upper()} cannot encode: use --to numpy"
        call("export", state, "--to", form, "--out", out, "--max-bytes", "100", status=1, says=says)


def test_inspect_reports_exportability(saved, tmp_path, call):
    size = edge.load(saved).nbytes
    assert f"export           {size:,} bytes of numbers, which fit a small device\n" in call("inspect", saved).stdout
    facts = json.loads(call("inspect", saved, "--json").stdout)
    assert facts["export"] == {"columns": 2, "bytes": size, "steps": ["scale", "impute", "kernel", "linear"]}
    streamsvm.save(BSGDClassifier(), tmp_path / "new")
    shown = call("inspect", tmp_path / "new").stdout
    assert "\nexport           it has not learned yet: there is nothing to predict by\n" in shown
