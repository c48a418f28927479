"""The files of a work folder."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from failing import Failing, interrupted, interrupts
from linear_problems import LITTLE, two_classes
from refused import refused
from streamsvm.linear import BlockFile, OutOfCoreLinearSVC, dual, write_blocks


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_files_of_others_stay_as_they_are(tmp_path):
    text, folder = "1 1:1\n0 1:-1\n", tmp_path / "work"
    folder.mkdir()
    for name in ("rows", "working-set-notes.txt", "state"):
        (folder / name).write_text(text)
    OutOfCoreLinearSVC(work_folder=folder).fit_file(folder / "rows")
    assert {path.name: path.read_text() for path in folder.iterdir() if path.is_file()} == dict.fromkeys(
        ("rows", "working-set-notes.txt", "state"), text
    )
    refused("would be overwritten", write_blocks, folder / "rows", folder / "rows")


def test_a_work_folder_holds_no_more_than_it_needs(tmp_path, monkeypatch):
    X, y = two_classes()
    settings = {"work_folder": tmp_path, "memory_limit": LITTLE}
    for C in (0.1, 1.0):
        OutOfCoreLinearSVC(C=C, **settings).fit(X, y)
    names = {path.name.partition("-")[0] for path in (tmp_path / "streamsvm-fit").iterdir()}
    assert names == {"rows", "state", "coefficients", "solution", "lock"}
    assert len(list((tmp_path / "streamsvm-fit").glob("solution-*"))) == 2
    OutOfCoreLinearSVC(**settings).fit(X[:-1], y[:-1])
    assert len(list((tmp_path / "streamsvm-fit").glob("solution-*"))) == 1
    monkeypatch.setattr(dual, "measure", Failing(None, 1, OSError(28, "No space left on device")))
    refused("No space left", OutOfCoreLinearSVC(C=5.0, **settings).fit, X, y, error=OSError)
    left = [path.name for path in (tmp_path / "streamsvm-fit").glob("working-set-*")]
    state = (tmp_path / "streamsvm-fit" / "state").read_bytes()
    assert all(f'"working_sets": {name.split("-")[2]},'.encode() in state for name in left)


def test_leftovers_of_other_fits_are_removed(tmp_path):
    X, y = two_classes()
    folder = tmp_path / "streamsvm-fit"
    folder.mkdir()
    for name in ("working-set-7", "working-set-7-b-0", "working-set-7-b-1", "working-set-9.partial"):
        (folder / name).write_bytes(b"rows")
    OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    assert not list(folder.glob("working-set-*"))


def test_two_fits_do_not_share_a_folder(tmp_path, monkeypatch):
    X, y = two_classes()
    block, tried = BlockFile.block, []

    def another(self, number):
        if not tried:
            tried.append(True)
            refused("in use by another fit", OutOfCoreLinearSVC(C=2.0, work_folder=tmp_path).fit, X, y, error=RuntimeError)
        return block(self, number)

    monkeypatch.setattr(BlockFile, "block", another)
    model = OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    np.testing.assert_array_equal(model.coef_, OutOfCoreLinearSVC().fit(X, y).coef_)
    assert tried


def test_corrupt_rows_are_parsed_again(tmp_path):
    (tmp_path / "rows.txt").write_text("".join(f"{i % 2} 1:{i % 7} 2:{i % 2 + 0.1 * (i % 5)}\n" for i in range(900)))
    fit = lambda: OutOfCoreLinearSVC(work_folder=tmp_path / "work").fit_file(tmp_path / "rows.txt").coef_  # noqa: E731
    expected, rows = fit(), tmp_path / "work" / "streamsvm-fit" / "rows"
    data = bytearray(rows.read_bytes())
    data[5000] ^= 1
    rows.write_bytes(data)
    for found in (tmp_path / "work" / "streamsvm-fit").glob("solution-*"):
        found.unlink()
    (tmp_path / "work" / "streamsvm-fit" / "state").unlink()
    np.testing.assert_array_equal(fit(), expected)


def test_a_text_of_another_folder_is_another_one(tmp_path):
    for name, sign in (("a", ""), ("b", "-")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.txt").write_text(f"1 1:{sign}1\n0 1:{'-' if not sign else ''}1\n" * 50)
        os.utime(tmp_path / name / "rows.txt", ns=(10**18, 10**18))
    work = {"work_folder": tmp_path / "work"}
    one, other = (OutOfCoreLinearSVC(**work).fit_file(tmp_path / name / "rows.txt").coef_[0, 0] for name in "ab")
    assert one > 0.0 > other


@pytest.mark.once
def test_few_files_are_open_however_long_it_takes(tmp_path, monkeypatch):
    X, y = two_classes(60, 40)
    most, block = [0], BlockFile.block

    def counted(self, number):
        most[0] = max(most[0], open_files())
        return block(self, number)

    monkeypatch.setattr(BlockFile, "block", counted)
    before = open_files()
    OutOfCoreLinearSVC(C=1e4, work_folder=tmp_path, max_iter=3000).fit(X, y)
    assert before < most[0] <= before + 16


@pytest.mark.parametrize("what", ["interrupt", "state", "files"])
def test_a_fit_that_cannot_begin_says_why(tmp_path, monkeypatch, what):
    X, y = two_classes()
    model = OutOfCoreLinearSVC(work_folder=tmp_path)
    if what == "interrupt":
        monkeypatch.setattr("streamsvm.linear.dual_state.Coefficients", interrupted)
        interrupts(model.fit, X, y)
    elif what == "state":
        (tmp_path / "streamsvm-fit" / "state").mkdir(parents=True)
        with pytest.raises(IsADirectoryError):
            model.fit(X, y)
    else:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 3, limits[1]))
        try:
            refused("Too many open files", model.fit, X, y, error=OSError)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not hasattr(model, "coef_")
