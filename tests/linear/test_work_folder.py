"""What a work folder keeps: fits that were killed go on, and nothing in it is trusted."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from linear_problems import LITTLE, SLOW, N, curve, objective, two_classes
from streamsvm.linear import BlockFile, BlockWriter, OutOfCoreLinearSVC, OutOfCoreLinearSVR, write_blocks
from streamsvm.linear.files.coefficients import Coefficients
from streamsvm.linear.solvers import dual as solver_module
from streamsvm.linear.solvers import state


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


class Killed(BaseException):
    """What a process does not survive."""


def killed_fit(monkeypatch, model, X, y, at=3):
    """Until the undecided rows are learned, and it was kept so often."""
    keep, count = solver_module.DualSolver._keep, [0]

    def kept(self, **arguments):
        keep(self, **arguments)
        count[0] += 1
        if count[0] >= at and self._some is not None:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(solver_module, "_KEPT_EVERY", 0.0)
        patch.setattr(solver_module.DualSolver, "_keep", kept)
        with pytest.raises(Killed):
            model.fit(X, y)


@pytest.mark.parametrize("regression", [False, True])
def test_a_fit_that_is_killed_after_any_pass_goes_on_from_there(tmp_path, monkeypatch, regression):
    X, y = curve(N, 5) if regression else two_classes()
    kind = OutOfCoreLinearSVR if regression else OutOfCoreLinearSVC
    settings = {"C": 5.0, "memory_limit": 2**17, "tol": 1e-4}
    monkeypatch.setattr(solver_module, "_KEPT_EVERY", 0.0)
    whole = kind(work_folder=tmp_path / "whole", **settings).fit(X, y)
    keep, block, passes, reads, killed_at = solver_module.DualSolver._keep, BlockFile.block, [], [], [0, 0]

    def kept(self, **arguments):
        keep(self, **arguments)
        passes.append(len(self._history))
        if len(passes) == killed_at[0] and not arguments:
            raise Killed

    def read(self, number):
        reads.append(number)
        if len(reads) == killed_at[1]:
            raise Killed  # in the middle of a pass
        return block(self, number)

    monkeypatch.setattr(solver_module.DualSolver, "_keep", kept)
    monkeypatch.setattr(BlockFile, "block", read)
    model, tries = kind(work_folder=tmp_path / "killed", **settings), 0
    while not hasattr(model, "coef_"):
        tries += 1
        passes.clear()
        reads.clear()
        killed_at[:] = [tries % 4 + 1, 7 * tries % 53 + 45]
        try:
            model.fit(X, y)
        except Killed:
            assert not hasattr(model, "coef_")
        assert tries < 500
    assert tries > 3
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-12)  # the very same passes
    assert model.objective_ == pytest.approx(whole.objective_, rel=1e-12)
    strip = [[one._replace(seconds=0.0) for one in of.history_] for of in (model, whole)]
    assert str(strip[0]) == str(strip[1])


@pytest.mark.skipif(SLOW, reason="takes a fit that lasts, and compiled code that is quick")
def test_a_process_that_is_killed_in_the_middle_of_a_pass_goes_on(tmp_path):
    X, y = two_classes(40_000)
    with BlockWriter(tmp_path / "rows", block_bytes=20_000) as writer:
        writer.add(X, y.astype(float))
    program = f"""
import sys
from streamsvm.linear.solvers import dual
from streamsvm.linear import OutOfCoreLinearSVC
dual._KEPT_EVERY = 0.05
print("ready", flush=True)
model = OutOfCoreLinearSVC(C=1000.0, tol=1e-9, max_iter=10**6, work_folder={str(tmp_path / "work")!r})
model.fit_file({str(tmp_path / "rows")!r})
"""
    state, numbers = tmp_path / "work" / "streamsvm-fit" / "state", []
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        before = state.read_bytes() if state.exists() else b""
        while not state.exists() or state.read_bytes() == before:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        numbers.append(int(state.read_bytes().partition(b'"number": ')[2].partition(b",")[0]))
    assert numbers[0] < numbers[1] < numbers[2]
    model = OutOfCoreLinearSVC(C=1000.0, tol=1e-2, max_iter=3000, work_folder=tmp_path / "work").fit_file(tmp_path / "rows")
    assert model.objective_ == pytest.approx(objective(model, X, y), rel=1e-6)
    assert model.duality_gap_ <= 1e-2 * model.objective_


def test_a_state_that_does_not_fit_is_not_used(tmp_path):
    X, y = two_classes()
    fit = lambda **settings: OutOfCoreLinearSVC(work_folder=tmp_path, **settings).fit(X, y).objective_  # noqa: E731
    expected = fit()
    for damage in ("state", "coefficients-0", "coefficients-1"):
        for found in (tmp_path / "streamsvm-fit").glob("found-*"):
            found.unlink()
        path = tmp_path / "streamsvm-fit" / damage
        path.write_bytes(path.read_bytes()[:100])
        assert fit() == pytest.approx(expected, rel=2e-3)
    expected = fit()
    assert fit(class_weight={1: 3.0}) > 1.1 * expected  # of another problem
    assert fit() == expected


def test_nothing_is_learned_of_a_loss_that_is_left(tmp_path):
    X, y = two_classes()
    with pytest.warns(ConvergenceWarning, match="for C=100000 ") as told:
        hard, easy = OutOfCoreLinearSVC(max_iter=5, tol=0.5).fit_path(X, y, [1e5, 1e-4])
    assert len(told) == 1
    assert hard.history_[-1].C == 1e5
    assert {one.C for one in easy.history_} == {1e-4}
    with pytest.warns(ConvergenceWarning):
        OutOfCoreLinearSVC(C=1e5, max_iter=3, tol=1e-6, work_folder=tmp_path).fit(X, y)
    other = OutOfCoreLinearSVC(C=1e-4, class_weight="balanced", work_folder=tmp_path).fit(X, y)
    assert other.history_[0].C < 1e-3
    assert other.n_iter_ < 20
    balanced = OutOfCoreLinearSVC(C=100.0, class_weight="balanced", random_state=1).fit(X, y)
    settled = OutOfCoreLinearSVC(C=1e-3, work_folder=tmp_path, random_state=1).fit(X, y)
    assert settled.duality_gap_ <= 1e-3 * settled.objective_
    after = OutOfCoreLinearSVC(C=100.0, class_weight="balanced", work_folder=tmp_path, random_state=1).fit(X, y)
    # From another problem nothing is taken: stages are those of one that begins
    assert sorted({one.C for one in after.history_}) == sorted({one.C for one in balanced.history_})


def test_files_of_others_stay_as_they_are(tmp_path):
    text, folder = "1 1:1\n0 1:-1\n", tmp_path / "work"
    folder.mkdir()
    for name in ("rows", "undecided-notes.txt", "state"):
        (folder / name).write_text(text)
    OutOfCoreLinearSVC(work_folder=folder).fit_file(folder / "rows")
    assert {path.name: path.read_text() for path in folder.iterdir() if path.is_file()} == dict.fromkeys(
        ("rows", "undecided-notes.txt", "state"), text
    )
    with pytest.raises(ValueError, match="would be written over"):
        write_blocks(folder / "rows", folder / "rows")


def test_a_work_folder_holds_no_more_than_it_needs(tmp_path, monkeypatch):
    X, y = two_classes()
    settings = {"work_folder": tmp_path, "memory_limit": LITTLE}
    for C in (0.1, 1.0):
        OutOfCoreLinearSVC(C=C, **settings).fit(X, y)
    names = {path.name.partition("-")[0] for path in (tmp_path / "streamsvm-fit").iterdir()}
    assert names == {"rows", "state", "coefficients", "found", "lock"}
    assert len(list((tmp_path / "streamsvm-fit").glob("found-*"))) == 2
    OutOfCoreLinearSVC(**settings).fit(X[:-1], y[:-1])
    assert len(list((tmp_path / "streamsvm-fit").glob("found-*"))) == 1

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(solver_module, "measure", full)
    with pytest.raises(OSError, match="No space left"):
        OutOfCoreLinearSVC(C=5.0, **settings).fit(X, y)
    undecided = [path.name for path in (tmp_path / "streamsvm-fit").glob("undecided-*")]
    state = (tmp_path / "streamsvm-fit" / "state").read_bytes()
    assert all(f'"serial": {name.split("-")[1]},'.encode() in state for name in undecided)


def test_coefficients_are_those_of_the_last_pass_that_ended(tmp_path):
    b = Coefficients(tmp_path / "b", 10)
    b.begin()
    b.write(0, np.arange(10.0))
    b.end()
    kept = b.keep()
    b.begin(some=True)
    b.scatter(np.array([7, 8, 2, 3, 5], np.uint64), -np.ones(5), np.array([0, 4], np.uint64))
    np.testing.assert_array_equal(b.read(0, 10), np.arange(10.0))
    again = Coefficients(tmp_path / "b", 10, kept)
    np.testing.assert_array_equal(again.read(2, 5), np.arange(2.0, 7.0))
    again.close()
    b.end()
    np.testing.assert_array_equal(b.read(0, 10), [0, 1, -1, -1, 4, -1, 6, -1, -1, 9])
    b.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at", [1, 4, 9])
@pytest.mark.parametrize("C", [2.0, 10.0 if SLOW else 50.0, 1e-4])
def test_after_a_fit_that_was_killed_another_problem_is_solved(tmp_path, monkeypatch, at, C):
    X, y = two_classes()
    killed_fit(monkeypatch, OutOfCoreLinearSVC(C=5.0, tol=1e-6, work_folder=tmp_path), X, y, at)
    assert list((tmp_path / "streamsvm-fit").glob("undecided-*"))
    model = OutOfCoreLinearSVC(C=C, work_folder=tmp_path, max_iter=5000).fit(X, y)
    best = OutOfCoreLinearSVC(C=C, tol=1e-5, max_iter=50_000).fit(X, y)
    assert model.objective_ == pytest.approx(objective(model, X, y), rel=1e-6)
    assert 0.0 <= model.duality_gap_ <= 1e-3 * model.objective_
    assert model.objective_ <= 1.0011 * best.objective_
    assert not list((tmp_path / "streamsvm-fit").glob("undecided-*"))


def test_after_a_fit_that_was_killed_other_rows_are_learned(tmp_path, monkeypatch):
    X, y = two_classes()
    killed_fit(monkeypatch, OutOfCoreLinearSVC(C=5.0, tol=1e-6, work_folder=tmp_path), X, y)
    X, y = two_classes(seed=1)
    model = OutOfCoreLinearSVC(C=5.0, work_folder=tmp_path).fit(X, y)
    fresh = OutOfCoreLinearSVC(C=5.0).fit(X, y)
    np.testing.assert_array_equal(model.coef_, fresh.coef_)
    assert not list((tmp_path / "streamsvm-fit").glob("undecided-*"))


def rewritten(path, change, features, **settings):
    with BlockFile(path) as file:
        blocks = [file.block(number) for number in range(len(file))]
    with BlockWriter(path, **{"numbered": True, **settings}) as writer:
        for block in blocks:
            writer.append(change(block), features)
    with BlockFile(path) as file:
        return file.signature


def wide(block):
    rng = np.random.default_rng(0)
    sizes = np.diff(block.starts.astype(np.int64))
    found = [np.sort(rng.choice(10**6, size, replace=False)) for size in sizes] + [np.empty(0)]
    return block._replace(indices=np.concatenate(found).astype(np.uint32))


def dense(block):
    none = np.empty(0, np.uint32)
    return block._replace(starts=none, indices=none, values=np.ones(len(block.labels), np.float32))


@pytest.mark.parametrize(
    "change",
    ["features", "dense", "numbers", "not numbered", "missing", "wrong type", "no list", "list", "nan", "serial", "kept", "text"],
)
def test_a_state_and_rows_that_somebody_made_are_not_trusted(tmp_path, monkeypatch, change):
    # Their checksums are right.
    X, y = two_classes()
    killed_fit(monkeypatch, OutOfCoreLinearSVC(C=5.0, tol=1e-6, work_folder=tmp_path), X, y)
    folder, header = tmp_path / "streamsvm-fit", state._HEADER
    data = (folder / "state").read_bytes()
    length = header.unpack_from(data)[2]
    facts, w = json.loads(data[header.size : header.size + length]), np.frombuffer(data[header.size + length :]).copy()
    rows = folder / f"undecided-{facts['serial']}"
    if change == "features":
        facts["kept_some"][1] = rewritten(rows, wide, 10**6)
    elif change == "dense":
        facts["kept_some"][1] = rewritten(rows, dense, 1, dense=True)
    elif change == "numbers":
        facts["kept_some"][1] = rewritten(rows, lambda block: block._replace(numbers=block.numbers + np.uint64(2**62)), 20)
    elif change == "not numbered":
        facts["kept_some"][1] = rewritten(rows, lambda block: block._replace(numbers=np.empty(0, np.uint64)), 20, numbered=False)
    elif change == "missing":
        facts.pop("gap")
    elif change == "wrong type":
        facts["loss"] = [1, 2]
    elif change == "no list":
        facts["history"] = 5
    elif change == "nan":
        w[:] = np.nan
    elif change == "serial":
        facts["serial"] = "../../rows"
    elif change == "kept":
        facts["kept"] = "copy"
    state.save(folder / "state", [facts] if change == "list" else "state" if change == "text" else facts, w)
    if change == "numbers":  # which are read when they are used
        with pytest.raises(ValueError, match="has rows that there are not"):
            OutOfCoreLinearSVC(C=5.0, work_folder=tmp_path).fit(X, y)
        return
    model = OutOfCoreLinearSVC(C=5.0, work_folder=tmp_path).fit(X, y)
    np.testing.assert_array_equal(model.coef_, OutOfCoreLinearSVC(C=5.0).fit(X, y).coef_)


@pytest.mark.parametrize("facts", [{}, {"primal": "low"}, {"history": [[1] * 99]}, [], None])
def test_a_solution_that_somebody_made_is_not_trusted(tmp_path, facts):
    X, y = two_classes()
    model = OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    (path,) = (tmp_path / "streamsvm-fit").glob("found-*")
    data = path.read_bytes()
    length = state._HEADER.unpack_from(data)[2]
    kept, w = json.loads(data[state._HEADER.size :][:length]), np.frombuffer(data[state._HEADER.size + length :])
    if isinstance(facts, dict):
        facts = {**kept, **facts} if facts else {"problem": kept["problem"]}
    state.save(path, facts, w)
    again = OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    assert again.objective_ == pytest.approx(model.objective_, rel=2e-3)


def test_two_fits_do_not_share_a_folder(tmp_path, monkeypatch):
    X, y = two_classes()
    step = solver_module.DualSolver._over_all
    refused = []

    def another(self):
        if not refused:
            refused.append(True)
            with pytest.raises(RuntimeError, match="in use by another fit"):
                OutOfCoreLinearSVC(C=2.0, work_folder=tmp_path).fit(X, y)
        step(self)

    monkeypatch.setattr(solver_module.DualSolver, "_over_all", another)
    model = OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    np.testing.assert_array_equal(model.coef_, OutOfCoreLinearSVC().fit(X, y).coef_)
    assert refused


def test_rows_that_were_damaged_since_are_parsed_again(tmp_path):
    (tmp_path / "rows.txt").write_text("".join(f"{i % 2} 1:{i % 7} 2:{i % 2 + 0.1 * (i % 5)}\n" for i in range(900)))
    fit = lambda: OutOfCoreLinearSVC(work_folder=tmp_path / "work").fit_file(tmp_path / "rows.txt").coef_  # noqa: E731
    expected, rows = fit(), tmp_path / "work" / "streamsvm-fit" / "rows"
    data = bytearray(rows.read_bytes())
    data[5000] ^= 1
    rows.write_bytes(data)
    for found in (tmp_path / "work" / "streamsvm-fit").glob("found-*"):
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


def test_few_files_are_open_however_long_it_takes(tmp_path, monkeypatch):
    X, y = two_classes(60, 40)
    most, begin = [0], solver_module.DualSolver._over_all

    def counted(self):
        begin(self)
        most[0] = max(most[0], open_files())

    monkeypatch.setattr(solver_module.DualSolver, "_over_all", counted)
    before = open_files()
    OutOfCoreLinearSVC(C=1e4, work_folder=tmp_path, max_iter=3000).fit(X, y)
    assert most[0] <= before + 16


@pytest.mark.parametrize("what", ["interrupt", "state", "files"])
def test_why_a_fit_cannot_begin_is_told(tmp_path, monkeypatch, what):
    X, y = two_classes()
    model = OutOfCoreLinearSVC(work_folder=tmp_path)
    if what == "interrupt":

        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(solver_module, "Coefficients", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y)
    elif what == "state":
        (tmp_path / "streamsvm-fit" / "state").mkdir(parents=True)
        with pytest.raises(IsADirectoryError):
            model.fit(X, y)
    else:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 3, limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                model.fit(X, y)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not hasattr(model, "coef_")


def test_what_was_kept_stays_until_what_comes_after_it_is(tmp_path, monkeypatch):
    # Killed while it is kept: what was kept before is all there.
    X, y = two_classes()
    whole = OutOfCoreLinearSVC(C=5.0, tol=1e-5).fit(X, y)
    save, count = solver_module.state.save, [0]

    def saved(*arguments):
        count[0] += 1
        if count[0] % 5 == 0:
            raise Killed
        save(*arguments)

    monkeypatch.setattr(solver_module, "_KEPT_EVERY", 0.0)
    monkeypatch.setattr(solver_module.state, "save", saved)
    model, begins = OutOfCoreLinearSVC(C=5.0, tol=1e-5, work_folder=tmp_path), []
    restore = solver_module.DualSolver._restore

    def restored(self, *kept):
        begins.append(restore(self, *kept))
        return begins[-1]

    monkeypatch.setattr(solver_module.DualSolver, "_restore", restored)
    while not hasattr(model, "coef_"):
        try:
            model.fit(X, y)
        except Killed:
            assert len(begins) < 300
    assert begins
    assert all(begins)
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-12)


def test_leftovers_of_other_fits_are_removed(tmp_path):
    X, y = two_classes()
    folder = tmp_path / "streamsvm-fit"
    folder.mkdir()
    for name in ("undecided-7", "undecided-7-b-0", "undecided-7-b-1", "undecided-9.partial"):
        (folder / name).write_bytes(b"rows")
    OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    assert not list(folder.glob("undecided-*"))
