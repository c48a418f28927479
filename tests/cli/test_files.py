"""Several files, a folder or a pattern are learned and predicted as one stream."""

import pytest

from streamsvm import load

LINES = [f"{i % 7},{'KLB'[i % 3]},{i % 2}" for i in range(300)]


@pytest.fixture
def folder(tmp_path):
    """A folder with three files of rows, beside one with all."""
    (tmp_path / "data").mkdir()
    for i, part in enumerate((LINES[:120], LINES[120:121], LINES[121:])):
        (tmp_path / "data" / f"part-{i}.csv").write_text("\n".join(["a,b,y", *part, ""]))
    (tmp_path / "all.csv").write_text("\n".join(["a,b,y", *LINES, ""]))
    return tmp_path / "data"


@pytest.mark.parametrize("form", ["folder", "pattern", "several"])
def test_they_are_learned_as_one(folder, tmp_path, call, form):
    several = sorted(folder.iterdir())
    places = {"folder": [folder], "pattern": [f"{folder}/*.csv"], "several": several}[form]
    learn = ["--label", "y", "--checkpoint"]
    said = call("learn", *places, *learn, tmp_path / "state", "--max-rows", 130).stderr
    name = f"{several[0]} and 2 more" if form == "several" else str(places[0])
    assert f"first look at {name}, 200 rows" in said
    assert "read with --columns b:category (" in said
    assert "continuing after row 130" in call("learn", *places, *learn, tmp_path / "state").stderr
    call("learn", tmp_path / "all.csv", *learn, tmp_path / "other")
    x = {"a": 3, "b": "L"}
    assert load(tmp_path / "state").predict_proba_one(x) == load(tmp_path / "other").predict_proba_one(x)
    out = [tmp_path / name for name in ("one.jsonl", "other.jsonl")]
    for sources, to in ((places, out[0]), ([tmp_path / "all.csv"], out[1])):
        call("predict", *sources, "--model", tmp_path / "state", "--to", to, "--passthrough", "b,a")
    assert out[0].read_text() == out[1].read_text()
    assert len(out[0].read_text().splitlines()) == 300


def test_output_that_is_an_input_is_refused(folder, tmp_path, call):
    for place, name in ((folder, "out.jsonl"), (f"{folder}/*", "out.jsonl"), (f"{folder}/*.csv", "out.csv")):
        words = ["learn", place, "--label", "y", "--to", folder / name]
        call(*words, status=2, says="would be one of the files of SOURCE")
    call("learn", f"{folder}/*.csv", "--label", "y", "--to", folder / "out.jsonl")
    words = ["learn", *sorted(folder.glob("*.csv")), "--label", "y", "--overwrite", "--to"]
    call(*words, folder / "part-1.csv", status=2, says="would be one of the files of SOURCE")
    call(*words, folder / "out.csv")


def test_a_label_of_a_folder_is_proposed(folder, call):
    call("learn", folder, status=2, says="has 'a', 'b', 'y'. Perhaps --label y")
