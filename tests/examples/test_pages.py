"""The commands on pages about a run's life (change, upgrade, roll back, move) print the output that the pages show."""

from pathlib import Path

import pytest

from transcripts import check_step, make_runner, read_steps, write_tables

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("change-a-run", "upgrade", "roll-back", "move")


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAGES)
def test_commands_of_a_page(name, tmp_path):
    write_tables(tmp_path / "work")
    run = make_runner(tmp_path / "work")
    steps = read_steps(DOCS / f"{name}.md", with_kafka=False)
    assert len(steps) >= 5
    for step in steps:
        check_step(step, run(step.command))
