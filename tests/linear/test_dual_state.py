"""Killed fits go on from their saved state, which is not trusted; coefficients on disk."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from linear_problems import SLOW, N, curve, objective, two_classes
from patience import until
from refused import refused
from streamsvm.files.container import unpack_container
from streamsvm.linear import BlockFile, BlockWriter, OutOfCoreLinearSVC, OutOfCoreLinearSVR, dual, dual_state
from streamsvm.linear.dual_state import Coefficients
from streamsvm.linear.solution import save_state


class Killed(BaseException):
    """Ends a fit as a signal would."""


def killed_fit(monkeypatch, model, X, y, at=3):
    """Fit until the state was saved so often, and with a working set; the next block is not read."""
    save, block, count = save_state, BlockFile.read_block, [0]

    def saved(path, facts, w):
        save(path, facts, w)
        count[0] += 1
        doomed.append(count[0] >= at and facts["working_set"] is not None)

    def read(self, number):
        if any(doomed):
            raise Killed
        return block(self, number)

    doomed = []
    with monkeypatch.context() as patch:
        patch.setattr(dual, "_SAVE_INTERVAL_SECONDS", 0.0)
        patch.setattr(dual_state, "save_state", saved)
        patch.setattr(BlockFile, "read_block", read)
        with pytest.raises(Killed):
            model.fit(X, y)


@pytest.mark.once
@pytest.mark.parametrize("regression", [False, True])
def test_a_fit_that_is_killed_after_any_pass_goes_on_from_there(tmp_path, monkeypatch, regression):
    X, y = curve(N, 5) if regression else two_classes()
    kind = OutOfCoreLinearSVR if regression else OutOfCoreLinearSVC
    settings = {"C": 5.0, "memory_limit": 2**17, "tol": 1e-3 if regression else 1e-4}
    monkeypatch.setattr(dual, "_SAVE_INTERVAL_SECONDS", 0.0)
    whole = kind(work_folder=tmp_path / "whole", **settings).fit(X, y)
    save, block, saves, reads, killed_at = save_state, BlockFile.read_block, [], [], [0, 0]

    def saved(path, facts, w):
        save(path, facts, w)
        saves.append(facts)

    def read(self, number):
        reads.append(number)
        if len(saves) >= killed_at[0] or len(reads) == killed_at[1]:
            raise Killed  # after a pass, or in the middle of one
        return block(self, number)

    monkeypatch.setattr(dual_state, "save_state", saved)
    monkeypatch.setattr(BlockFile, "read_block", read)
    model, tries = kind(work_folder=tmp_path / "killed", **settings), 0
    while not hasattr(model, "coef_"):
        tries += 1
        saves.clear()
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
    without_times = [[one._replace(seconds=0.0) for one in machine.history_] for machine in (model, whole)]
    assert str(without_times[0]) == str(without_times[1])


@pytest.mark.thorough
@pytest.mark.skipif(SLOW, reason="takes a fit that lasts, and compiled code that is quick")
def test_a_process_that_is_killed_in_the_middle_of_a_pass_goes_on(tmp_path):
    X, y = two_classes(8_000)
    with BlockWriter(tmp_path / "rows", block_bytes=20_000) as writer:
        writer.add(X, y.astype(float))
    program = f"""
import sys
from streamsvm.linear import dual
from streamsvm.linear import OutOfCoreLinearSVC
dual._SAVE_INTERVAL_SECONDS = 0.05
print("ready", flush=True)
model = OutOfCoreLinearSVC(C=1000.0, tol=1e-9, max_iter=10**6, work_folder={str(tmp_path / "work")!r})
model.fit_file({str(tmp_path / "rows")!r})
"""
    state, numbers = tmp_path / "work" / "streamsvm-fit" / "state", []
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        before = state.read_bytes() if state.exists() else b""
        until(lambda before=before: state.exists() and state.read_bytes() != before)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        numbers.append(saved_in(state)[0]["n_passes"])
    assert 0 < numbers[0] < numbers[1]
    model = OutOfCoreLinearSVC(C=1000.0, tol=1e-2, max_iter=3000, work_folder=tmp_path / "work").fit_file(tmp_path / "rows")
    assert model.objective_ == pytest.approx(objective(model, X, y), rel=1e-6)
    assert model.duality_gap_ <= 1e-2 * model.objective_


def test_a_state_that_does_not_fit_is_not_used(tmp_path):
    X, y = two_classes()
    fit = lambda **settings: OutOfCoreLinearSVC(work_folder=tmp_path, **settings).fit(X, y).objective_  # noqa: E731
    expected = fit()
    for name in ("state", "coefficients-0", "coefficients-1"):
        for found in (tmp_path / "streamsvm-fit").glob("solution-*"):
            found.unlink()
        path = tmp_path / "streamsvm-fit" / name
        path.write_bytes(path.read_bytes()[:100])
        assert fit() == pytest.approx(expected, rel=2e-3)
    expected = fit()
    assert fit(class_weight={1: 3.0}) > 1.1 * expected  # of another problem
    assert fit() == expected


@pytest.mark.once
@pytest.mark.parametrize(("at", "C"), [(4, 2.0), (1, 1e-4), (9, 10.0 if SLOW else 50.0)])
def test_after_a_fit_that_was_killed_another_problem_is_solved(tmp_path, monkeypatch, at, C):
    X, y = two_classes()
    killed_fit(monkeypatch, OutOfCoreLinearSVC(C=5.0, tol=1e-6, work_folder=tmp_path), X, y, at)
    assert list((tmp_path / "streamsvm-fit").glob("working-set-*"))
    model = OutOfCoreLinearSVC(C=C, work_folder=tmp_path, max_iter=5000).fit(X, y)
    best = OutOfCoreLinearSVC(C=C, tol=1e-5, max_iter=50_000).fit(X, y)
    assert model.objective_ == pytest.approx(objective(model, X, y), rel=1e-6)
    assert 0.0 <= model.duality_gap_ <= 1e-3 * model.objective_
    assert model.objective_ <= 1.0011 * best.objective_
    assert not list((tmp_path / "streamsvm-fit").glob("working-set-*"))


def test_after_a_fit_that_was_killed_other_rows_are_learned(tmp_path, monkeypatch):
    X, y = two_classes()
    killed_fit(monkeypatch, OutOfCoreLinearSVC(C=5.0, tol=1e-6, work_folder=tmp_path), X, y)
    X, y = two_classes(seed=1)
    model = OutOfCoreLinearSVC(C=5.0, work_folder=tmp_path).fit(X, y)
    fresh = OutOfCoreLinearSVC(C=5.0).fit(X, y)
    np.testing.assert_array_equal(model.coef_, fresh.coef_)
    assert not list((tmp_path / "streamsvm-fit").glob("working-set-*"))


@pytest.mark.once
def test_a_saved_state_stays_until_the_next_one_is_whole(tmp_path, monkeypatch):
    # A process that is killed while it saves leaves all that was saved before.
    X, y = two_classes()
    whole = OutOfCoreLinearSVC(C=5.0, tol=1e-4).fit(X, y)
    save, passes, tries = save_state, [0], [0]

    def saved(path, facts, w):
        if path.name == "state":
            assert facts["n_passes"] >= passes[-1]  # none is made twice: no fit began anew
            passes.append(facts["n_passes"])
            if len(passes) % 5 == 0:
                passes[-1] = passes[-2]
                raise Killed
        save(path, facts, w)

    monkeypatch.setattr(dual, "_SAVE_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(dual_state, "save_state", saved)
    model = OutOfCoreLinearSVC(C=5.0, tol=1e-4, work_folder=tmp_path)
    while not hasattr(model, "coef_"):
        tries[0] += 1
        try:
            model.fit(X, y)
        except Killed:
            assert tries[0] < 300
    assert tries[0] > 3
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-12)


def saved_in(path):
    """The facts and w of a saved state."""
    container = unpack_container(path.read_bytes())
    return json.loads(container.strings["facts"]), container.arrays["w"].copy()


def rewritten(path, change, features, **settings):
    with BlockFile(path) as file:
        blocks = [file.read_block(number) for number in range(len(file))]
    with BlockWriter(path, **{"with_row_numbers": True, **settings}) as writer:
        for block in blocks:
            writer.append_block(change(block), features)
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


def without_numbers(block):
    return block._replace(row_numbers=np.empty(0, np.uint64))


#: Rows of a working set that its state does not fit, facts of other types, and what is no state.
ROWS = {"features": (wide, 10**6, {}), "dense": (dense, 1, {"dense": True})}
ROWS |= {"numbers": (lambda block: block._replace(row_numbers=block.row_numbers + np.uint64(2**62)), 20, {})}
ROWS |= {"not numbered": (without_numbers, 20, {"with_row_numbers": False})}
FACTS = {"wrong type": {"loss": [1, 2]}, "no list": {"history": 5}, "path": {"working_sets": "../../rows"}}
FACTS |= {"coefficients": {"coefficients": "copy"}}


@pytest.mark.once
@pytest.mark.parametrize("change", [*ROWS, *FACTS, "missing", "list", "nan", "text"])
def test_a_state_and_rows_that_somebody_made_are_not_trusted(tmp_path, monkeypatch, change):
    # Their checksums are right.
    X, y = two_classes()
    killed_fit(monkeypatch, OutOfCoreLinearSVC(C=5.0, tol=1e-6, work_folder=tmp_path), X, y)
    folder = tmp_path / "streamsvm-fit"
    facts, w = saved_in(folder / "state")
    rows = folder / f"working-set-{facts['working_sets']}"
    if change in ROWS:
        how, features, settings = ROWS[change]
        facts["working_set"] = rewritten(rows, how, features, **settings)
    elif change == "missing":
        facts.pop("gap")
    elif change == "nan":
        w[:] = np.nan
    facts |= FACTS.get(change, {})
    save_state(folder / "state", [facts] if change == "list" else "state" if change == "text" else facts, w)
    if change == "numbers":  # which are read when they are used
        refused("is corrupt: it refers to a row that", OutOfCoreLinearSVC(C=5.0, work_folder=tmp_path).fit, X, y)
        return
    model = OutOfCoreLinearSVC(C=5.0, work_folder=tmp_path).fit(X, y)
    np.testing.assert_array_equal(model.coef_, OutOfCoreLinearSVC(C=5.0).fit(X, y).coef_)


@pytest.mark.parametrize("facts", [{}, {"primal": "low"}, {"history": [[1] * 99]}, [], None])
def test_a_solution_that_somebody_made_is_not_trusted(tmp_path, facts):
    X, y = two_classes()
    model = OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    (path,) = (tmp_path / "streamsvm-fit").glob("solution-*")
    saved, w = saved_in(path)
    if isinstance(facts, dict):
        facts = {**saved, **facts} if facts else {"problem": saved["problem"]}
    save_state(path, facts, w)
    again = OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    assert again.objective_ == pytest.approx(model.objective_, rel=2e-3)


def test_coefficients_stay_as_they_were_saved(tmp_path):
    b = Coefficients(tmp_path / "b", 10)
    assert b.values.tolist() == [0.0] * 10
    b.begin_changes()
    b.values[:] = np.arange(10.0)
    saved = b.save()
    b.begin_changes()
    b.values[[7, 8, 2, 3, 5]] = -1.0
    again = Coefficients(tmp_path / "b", 10, saved)
    np.testing.assert_array_equal(again.values, np.arange(10.0))
    np.testing.assert_array_equal(b.values, [0, 1, -1, -1, 4, -1, 6, -1, -1, 9])
