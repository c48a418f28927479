"""Forged headers of checkpoints: a run continues from them, or raises an error with a remedy."""

import copy
import json

import pytest

from crafted import repacked
from streamsvm import BSGDClassifier
from streamsvm.files.container import Container, CorruptFileError, unpack_container
from streamsvm.files.model_file import read_metadata
from streamsvm.stream import (
    CheckpointError,
    CheckpointFolder,
    CSVSource,
    DelayedLabels,
    DelayedLearningLoop,
    FileSink,
    JoinedSource,
    LearningLoop,
    StreamError,
)
from streamsvm.stream.checkpoint import read_header


def run_on(kind, folder, rows):
    with (
        CheckpointFolder(folder / "saved") as checkpoints,
        CSVSource(folder / "rows.csv", "y", label_needed=kind == "learn", missing="?") as source,
        CSVSource(folder / "labels.csv", "y") as labels,
        FileSink(folder / f"{kind}.csv") as sink,
    ):
        common = {"checkpoints": checkpoints, "on_error": str(folder / f"{kind}.dead"), "error_share": 1.0}
        if kind == "learn":
            loop = LearningLoop(source, BSGDClassifier(budget=5, seed=1), sink=sink, window=50, **common)
        else:
            joined, delayed = JoinedSource(source, labels, key="id", time="t"), DelayedLabels(max_age=9.0)
            loop = DelayedLearningLoop(joined, BSGDClassifier(budget=5, seed=1), delayed=delayed, sink=sink, window=50, **common)
        loop.run(rows)


@pytest.fixture(scope="module", params=["learn", "delayed"])
def run(request, tmp_path_factory):
    """A run of 100 rows with two refused ones: its kind, its folder and its checkpoint."""
    folder, kind = tmp_path_factory.mktemp(request.param), request.param
    rows = [f"{i % 7},{i % 5},{'yes' if i % 3 else 'no'}" if i % 50 else "x,," for i in range(1, 121)]
    if kind != "delayed":
        (folder / "rows.csv").write_text("\n".join(["a,b,y", *rows]))
    else:
        rows = [f"{i % 7},{i % 5},{i},{i}" if i % 25 else "x,,,3" for i in range(1, 121)]
        (folder / "rows.csv").write_text("\n".join(["a,b,id,t", *rows]))
    labels = [f"{i},{i + (i % 5) * 4.0 - 5},{'yes' if i % 3 else 'no'}" for i in range(1, 121)]
    (folder / "labels.csv").write_text("\n".join(["id,t,y", *labels]))
    run_on(kind, folder, 100)
    (path,) = (folder / "saved").glob("*.ckpt")
    return kind, folder, path


def resumed(run, change):
    """Resume from a changed header, and return the error, or None."""
    kind, folder, path = run
    data_written = path.read_bytes()
    container = unpack_container(data_written)
    facts, arrays = json.loads(container.strings["metadata"]), dict(container.arrays)
    change(facts)
    written = {name: (folder / name).read_bytes() for name in (f"{kind}.csv", f"{kind}.dead")}
    tree = arrays.pop("tree").tobytes()
    repacked(path, tree, arrays, facts)
    try:
        run_on(kind, folder, 10)
    except (CheckpointError, StreamError) as error:
        return str(error)
    finally:
        for file in (folder / "saved").glob("*.ckpt"):
            file.unlink()
        path.write_bytes(data_written)
        for name, data in written.items():
            (folder / name).write_bytes(data)
    return None


def put(place, value):
    def change(facts):
        *way, last = place
        for key in way:
            facts = facts[key]
        facts[last] = copy.deepcopy(value)

    return change


NO_COUNTS = [-1, 0.5, True, "12", None, [], 2**63, float("inf")]
NO_MAPPINGS = [[], [1], "text", 5, True]
#: Positions in a header, with values that no run saves there.
WRONG = [
    *(((name,), NO_COUNTS) for name in ("rows", "learned", "unlabelled", "empty", "abstained")),
    (("sink", "offset"), NO_COUNTS),
    *((("refused", *name), NO_COUNTS) for name in (["recent_row"], ["dead_letters", "offset"], ["counts", "not a number"])),
    *((("position", *at, name), NO_COUNTS) for at in ((), ("rows",), ("labels",)) for name in ("rows", "offset", "line")),
    *((place, NO_MAPPINGS) for place in (("position",), ("refused",), ("sink",))),
    *((("refused", name), NO_MAPPINGS) for name in ("dead_letters", "counts")),
    (("position", "rows", "table"), NO_MAPPINGS),
    (("labels",), NO_MAPPINGS),
    (("labels", "seen"), [[["a"]], None]),
    (("labels", "classes"), ["ab", [[1], [2]], ["a"]]),
    *(((name,), [101]) for name in ("learned", "empty", "abstained")),
    *[(("delayed", "clock"), ["now"])],
    *[(("position", "times"), [[None]]), (("position", "read_ahead"), [{}]), (("position", "key"), ["a"])],
]


# Each count is tried with some of the invalid values, in turn.
WRONG = [(place, values[i % 3 :: 3] if values is NO_COUNTS else values) for i, (place, values) in enumerate(WRONG)]


@pytest.mark.parametrize(("place", "values"), WRONG, ids=lambda value: ".".join(value) if isinstance(value, tuple) else "")
def test_values_that_no_run_has_saved_are_refused(run, place, values):
    inner = read_header(run[2])
    for name in place[:-1]:
        inner = inner.get(name, {}) if isinstance(inner, dict) else {}
    if not isinstance(inner, dict) or (place[-1] not in inner and place[:2] != ("refused", "counts")):
        return  # another kind of run has this field
    for value in values:
        error = resumed(run, put(place, value))
        assert error, value
        assert "another" in error or "Remove it" in error, (value, error)


def test_an_unchanged_header_resumes(run):
    assert resumed(run, lambda facts: None) is None


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 1000])
def test_facts_are_finite_and_short(tmp_path, text):
    path = repacked(tmp_path / "facts", b"{}", {}, {"rows": "HERE"})
    container = unpack_container(path.read_bytes())
    strings = {"metadata": container.strings["metadata"].replace('"HERE"', text)}

    with pytest.raises(CorruptFileError, match="has no valid metadata"):
        read_metadata(Container(container.arrays, strings))
