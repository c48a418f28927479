"""Progress is shown on a terminal only."""

import numpy as np
import pytest
from rich.console import Console

from streamsvm.batch import HierarchicalSVC
from streamsvm.core import progress as _progress
from streamsvm.linear import OutOfCoreLinearSVC, write_blocks, write_rows


def work(folder, verbose):
    (folder / "rows.txt").write_text("1 1:2\n0 1:1\n" * 50)
    (folder / "rows.csv").write_text("y,x\n" + "1,2\n0,1\n" * 50)
    write_blocks(folder / "rows.txt", folder / "text", verbose=verbose)
    write_blocks(folder / "rows.csv", folder / "table", target="y", verbose=verbose)
    write_rows([({"x": 1.0 + i % 2}, i % 2) for i in range(100)], folder / "stream", verbose=verbose)
    OutOfCoreLinearSVC(verbose=verbose).fit(np.eye(6), [0, 1] * 3)
    HierarchicalSVC(n_trees=2, n_jobs=2, verbose=verbose).fit(np.eye(6), [0, 1] * 3)


@pytest.mark.thorough  # as a forest of kernel machines is compiled for it
def test_no_progress_without_terminal(tmp_path, capsys):
    work(tmp_path, verbose=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.thorough
@pytest.mark.parametrize("verbose", [True, False])
def test_progress_is_shown_on_a_terminal(tmp_path, capsys, monkeypatch, verbose):
    monkeypatch.setattr(_progress, "Console", lambda **of: Console(force_terminal=True, width=100, **of))
    work(tmp_path, verbose)
    out, shown = capsys.readouterr()
    assert out == ""
    for text in ("reading rows.txt", "reading rows.csv", "reading rows ", "100 rows", "pass 1", "duality gap", "trees"):
        assert (text in shown) == verbose
