"""The command line for tests that are not about the learner."""

from streamsvm.cli import main as command_line


def with_a_model(words):
    """The words; where they learn and name no learner, bsgd, which compiles in a third of the time."""
    words = [*map(str, words)]
    return [*words, "--learner", "bsgd"] if words[:1] == ["learn"] and not {"--learner", "--config"} & {*words} else words


def main(words):
    """Call the command line in this process."""
    return command_line.main(with_a_model(words))
