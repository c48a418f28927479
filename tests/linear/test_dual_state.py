"""Tests of killed fits, which resume from their saved state, of invalid saved states, and of coefficients on disk."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from linear_problems import SLOW, N, compute_objective, make_classes, make_regression
from patience import until
from streamsvm.files.container import unpack_container
from streamsvm.linear import BlockFile, BlockWriter, OutOfCoreLinearSVC, OutOfCoreLinearSVR, dual, dual_state
from streamsvm.linear.dual_state import Coefficients
from streamsvm.linear.solution import save_state


class Killed(BaseException):
    """Stands for a signal that ends the process."""


def kill_fit(monkeypatch, model, X, y, at=3):
    """Fit until the state has been saved ``at`` times and there is a working set; then raise `Killed`."""
    save, block, count = save_state, BlockFile.read_block, [0]

    def save_and_count(path, facts, w):
        save(path, facts, w)
        count[0] += 1
        kill_flags.append(count[0] >= at and (path.parent / "working-set").exists())

    def read_or_kill(self, number):
        if any(kill_flags):
            raise Killed
        return block(self, number)

    kill_flags = []
    with monkeypatch.context() as patch:
        patch.setattr(dual, "_SAVE_INTERVAL_SECONDS", 0.0)
        patch.setattr(dual_state, "save_state", save_and_count)
        patch.setattr(BlockFile, "read_block", read_or_kill)
        with pytest.raises(Killed):
            model.fit(X, y)


@pytest.mark.once
@pytest.mark.parametrize("regression", [False, True])
def test_killed_fit_resumes_from_its_last_save(tmp_path, monkeypatch, regression):
    X, y = make_regression(N, 5) if regression else make_classes()
    kind = OutOfCoreLinearSVR if regression else OutOfCoreLinearSVC
    settings = {"C": 5.0, "memory_limit": 2**17, "tol": 1e-3 if regression else 1e-4}
    monkeypatch.setattr(dual, "_SAVE_INTERVAL_SECONDS", 0.0)
    expected = kind(work_folder=tmp_path / "complete", **settings).fit(X, y)
    save, block, saves, reads, killed_at = save_state, BlockFile.read_block, [], [], [0, 0]

    def save_and_count(path, facts, w):
        save(path, facts, w)
        saves.append(facts)

    def read_or_kill(self, number):
        reads.append(number)
        if len(saves) >= killed_at[0] or len(reads) == killed_at[1]:
            raise Killed  # after a pass, or during one
        return block(self, number)

    monkeypatch.setattr(dual_state, "save_state", save_and_count)
    monkeypatch.setattr(BlockFile, "read_block", read_or_kill)
    model, n_tries = kind(work_folder=tmp_path / "killed", **settings), 0
    while not hasattr(model, "coef_"):
        n_tries += 1
        saves.clear()
        reads.clear()
        killed_at[:] = [n_tries % 4 + 1, 7 * n_tries % 53 + 45]
        try:
            model.fit(X, y)
        except Killed:
            assert not hasattr(model, "coef_")
        assert n_tries < 500
    assert n_tries > 3
    assert model.objective_ == pytest.approx(compute_objective(model, X, y), rel=1e-6)
    assert model.duality_gap_ <= settings["tol"] * model.objective_
    assert model.objective_ <= (1.0 + settings["tol"]) * expected.objective_


@pytest.mark.thorough
@pytest.mark.skipif(SLOW, reason="needs a long fit, and compiled code")
def test_killed_process_resumes_from_saved_state(tmp_path):
    X, y = make_classes(8_000)
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
        numbers.append(read_state(state)[0]["n_passes"])
    assert 0 < numbers[0] < numbers[1]
    model = OutOfCoreLinearSVC(C=1000.0, tol=1e-2, max_iter=3000, work_folder=tmp_path / "work").fit_file(tmp_path / "rows")
    assert model.objective_ == pytest.approx(compute_objective(model, X, y), rel=1e-6)
    assert model.duality_gap_ <= 1e-2 * model.objective_


@pytest.mark.once
def test_state_that_is_corrupt_or_of_another_problem_is_not_used(tmp_path):
    X, y = make_classes()
    fit = lambda **settings: OutOfCoreLinearSVC(work_folder=tmp_path, **settings).fit(X, y).objective_  # noqa: E731
    expected = fit()
    for name in ("state", "coefficients-0", "coefficients-1"):
        for solution in (tmp_path / "streamsvm-fit").glob("solution-*"):
            solution.unlink()
        path = tmp_path / "streamsvm-fit" / name
        path.write_bytes(path.read_bytes()[:100])
        assert fit() == pytest.approx(expected, rel=2e-3)
    expected = fit()
    assert fit(class_weight={1: 3.0}) > 1.1 * expected  # the saved state belongs to another problem
    assert fit() == expected


@pytest.mark.once
@pytest.mark.parametrize(("at", "C"), [(4, 2.0), (1, 1e-4), (9, 10.0 if SLOW else 50.0)])
def test_state_of_a_killed_fit_does_not_disturb_another_problem(tmp_path, monkeypatch, at, C):
    X, y = make_classes()
    kill_fit(monkeypatch, OutOfCoreLinearSVC(C=5.0, tol=1e-6, work_folder=tmp_path), X, y, at)
    model = OutOfCoreLinearSVC(C=C, work_folder=tmp_path, max_iter=5000).fit(X, y)
    best = OutOfCoreLinearSVC(C=C, tol=1e-5, max_iter=50_000).fit(X, y)
    assert model.objective_ == pytest.approx(compute_objective(model, X, y), rel=1e-6)
    assert 0.0 <= model.duality_gap_ <= 1e-3 * model.objective_
    assert model.objective_ <= 1.0011 * best.objective_
    assert not list((tmp_path / "streamsvm-fit").glob("working-set*"))


@pytest.mark.once
def test_state_of_a_killed_fit_is_not_used_for_other_rows(tmp_path, monkeypatch):
    X, y = make_classes()
    kill_fit(monkeypatch, OutOfCoreLinearSVC(C=5.0, tol=1e-6, work_folder=tmp_path), X, y)
    X, y = make_classes(seed=1)
    model = OutOfCoreLinearSVC(C=5.0, work_folder=tmp_path).fit(X, y)
    fresh = OutOfCoreLinearSVC(C=5.0).fit(X, y)
    np.testing.assert_array_equal(model.coef_, fresh.coef_)
    assert not list((tmp_path / "streamsvm-fit").glob("working-set*"))


@pytest.mark.once
def test_fit_killed_while_saving_keeps_the_previous_state(tmp_path, monkeypatch):
    X, y = make_classes()
    expected = OutOfCoreLinearSVC(C=5.0, tol=1e-4).fit(X, y)
    save, passes, n_tries = save_state, [0], [0]

    def save_and_count(path, facts, w):
        if path.name == "state":
            assert facts["n_passes"] >= passes[-1]  # no pass is repeated: no fit started from zero
            passes.append(facts["n_passes"])
            if len(passes) % 5 == 0:
                passes[-1] = passes[-2]
                raise Killed
        save(path, facts, w)

    monkeypatch.setattr(dual, "_SAVE_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(dual_state, "save_state", save_and_count)
    model = OutOfCoreLinearSVC(C=5.0, tol=1e-4, work_folder=tmp_path)
    while not hasattr(model, "coef_"):
        n_tries[0] += 1
        try:
            model.fit(X, y)
        except Killed:
            assert n_tries[0] < 300
    assert n_tries[0] > 3
    assert model.objective_ == pytest.approx(expected.objective_, rel=1e-4)


def read_state(path):
    """Return the facts and w of a saved state."""
    container = unpack_container(path.read_bytes())
    return json.loads(container.strings["facts"]), container.arrays["w"].copy()


#: Facts of invalid types.
FACTS = {"wrong type": {"loss": [1, 2]}, "no list": {"history": 5}}
FACTS |= {"coefficients": {"coefficients": "copy"}}


@pytest.mark.once
@pytest.mark.parametrize("change", [*FACTS, "missing", "list", "nan", "text"])
def test_forged_state_is_validated(tmp_path, monkeypatch, change):
    # Its checksum is valid.
    X, y = make_classes()
    kill_fit(monkeypatch, OutOfCoreLinearSVC(C=5.0, tol=1e-6, work_folder=tmp_path), X, y)
    folder = tmp_path / "streamsvm-fit"
    facts, w = read_state(folder / "state")
    if change == "missing":
        facts.pop("gap")
    elif change == "nan":
        w[:] = np.nan
    facts |= FACTS.get(change, {})
    save_state(folder / "state", [facts] if change == "list" else "state" if change == "text" else facts, w)
    model = OutOfCoreLinearSVC(C=5.0, work_folder=tmp_path).fit(X, y)
    np.testing.assert_array_equal(model.coef_, OutOfCoreLinearSVC(C=5.0).fit(X, y).coef_)


@pytest.mark.parametrize("facts", [{}, {"primal": "low"}, {"history": [[1] * 99]}, [], None])
def test_forged_solution_is_validated(tmp_path, facts):
    X, y = make_classes()
    model = OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    (path,) = (tmp_path / "streamsvm-fit").glob("solution-*")
    old_facts, w = read_state(path)
    if isinstance(facts, dict):
        facts = {**old_facts, **facts} if facts else {"problem": old_facts["problem"]}
    save_state(path, facts, w)
    again = OutOfCoreLinearSVC(work_folder=tmp_path).fit(X, y)
    assert again.objective_ == pytest.approx(model.objective_, rel=2e-3)


def test_saved_coefficients_do_not_follow_later_changes(tmp_path):
    b = Coefficients(tmp_path / "b", 10)
    assert b.values.tolist() == [0.0] * 10
    b.begin_changes()
    b.values[:] = np.arange(10.0)
    copy_name = b.save()
    b.begin_changes()
    b.values[[7, 8, 2, 3, 5]] = -1.0
    again = Coefficients(tmp_path / "b", 10, copy_name)
    np.testing.assert_array_equal(again.values, np.arange(10.0))
    np.testing.assert_array_equal(b.values, [0, 1, -1, -1, 4, -1, 6, -1, -1, 9])
