"""Files of each format version are loaded, predict as when they were written, and continue to learn."""

import gzip
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import saved_models
from streamsvm.files.codecs import OWN_CLASSES
from streamsvm.files.container import VERSION, pack_container, unpack_container
from streamsvm.files.model_file import is_model, read_metadata, read_parts
from streamsvm.stream.checkpoint import read_checkpoint, read_newest
from streamsvm_kafka.model_topic import NewestCheckpoint

GOLDEN = Path(__file__).parent / "golden"
FOLDERS = sorted(GOLDEN.iterdir())
MODELS = sorted(GOLDEN.glob("version-*/models/*.gz"))
RUNS = sorted(GOLDEN.glob("version-*/runs/*"))


def name_of(path):
    return path.name.partition(".")[0]


def expected_of(folder):
    return json.loads((folder / "expected.json").read_text())


def load(path):
    return read_parts(unpack_container(gzip.decompress(path.read_bytes())))["model"]


def test_current_version_has_golden_files():
    assert [folder.name for folder in FOLDERS] == [f"version-{number}" for number in range(1, VERSION + 1)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_class_is_in_a_golden_file(folder):
    files = [gzip.decompress(path.read_bytes()) for path in MODELS if folder in path.parents]
    files += [path.read_bytes() for path in folder.rglob("*.ckpt")]
    contents = [unpack_container(data) for data in files]
    assert all(is_model(read_parts(content)["model"]) for content in contents)
    assert {f"version-{content.strings['version']}" for content in contents} == {folder.name}
    trees = [content.arrays["tree"].tobytes().decode() for content in contents]
    assert {name for tree in trees for name in re.findall(r'"streamsvm:(\w+)"', tree)} == OWN_CLASSES.keys()
    names = {name_of(path) for path in MODELS if folder in path.parents}
    names |= {f"run {path.name}" for path in RUNS if folder in path.parents}
    assert expected_of(folder).keys() == names


@pytest.mark.filterwarnings("ignore:the key 'b' is a fraction")
@pytest.mark.parametrize("path", MODELS, ids=name_of)
def test_models_predict_as_before_and_continue_to_learn(path):
    expected, model = expected_of(path.parents[1])[name_of(path)], load(path)
    np.testing.assert_allclose(saved_models.answers_of(model), expected["saved"], rtol=1e-5, atol=1e-5)
    if "learned" in expected:
        saved_models.learn(model, saved_models.N_LEARNED, len(saved_models.ROWS))
        np.testing.assert_allclose(saved_models.answers_of(model), expected["learned"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_runs_resume_and_end_as_before(path, tmp_path):
    saved_models.write_rows_of_runs(tmp_path)
    shutil.copytree(path, tmp_path / "state")
    final, expected = saved_models.run(path.name, tmp_path), expected_of(path.parents[1])[f"run {path.name}"]
    scores, expected_scores = final.pop("scores"), expected.pop("scores")
    assert final == expected
    assert scores.keys() == expected_scores.keys()
    for name, values in expected_scores.items():
        assert scores[name] == pytest.approx(values, rel=1e-5)


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_checkpoints_are_valid_messages_of_a_model_topic(path):
    [file] = path.rglob("*.ckpt")
    newest = NewestCheckpoint("model")
    newest.add_message(0, b"model", file.read_bytes())
    newest.add_message(1, b"model", b"something else")
    decoded, read = read_checkpoint("kafka://host/models", data=newest.data), read_newest(file.parent)
    assert decoded.header == read.header
    assert decoded.header["rows"] == saved_models.N_LEARNED
    assert str(decoded.model) == str(read.model)


def test_other_package_versions_are_accepted():
    content = unpack_container(gzip.decompress(MODELS[0].read_bytes()))
    facts = json.loads(content.strings["metadata"])
    assert facts["versions"].keys() == {"numpy", "river", "streamsvm"}
    for versions in (dict.fromkeys(facts["versions"], "0"), dict.fromkeys(facts["versions"], "999.0"), {}):
        strings = content.strings | {"metadata": json.dumps(facts | {"versions": versions})}
        changed = unpack_container(
            pack_container(content.arrays, {name: text for name, text in strings.items() if name not in ("format", "version")})
        )
        assert read_metadata(changed)["versions"] == versions
        assert saved_models.answers_of(read_parts(changed)["model"]) == saved_models.answers_of(load(MODELS[0]))
