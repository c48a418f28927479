"""The commands with topics on pages about a run's life print the output that the pages show."""

from pathlib import Path

import pytest

from transcripts import check_step, delete_topics, make_runner, read_steps, write_tables

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.broker
@pytest.mark.parametrize("name", ["change-a-run", "roll-back", "move"])
def test_commands_of_a_page(name, bootstrap, tmp_path):
    page = DOCS / f"{name}.md"
    write_tables(tmp_path / "work")
    run = make_runner(tmp_path / "work", bootstrap)
    try:
        for step in read_steps(page, with_kafka=True):
            check_step(step, run(step.command))
    finally:
        delete_topics(page, bootstrap)
