"""The parser of the command line, for the page that is generated from it."""

import argparse

from streamsvm.cli import main


def parser() -> argparse.ArgumentParser:
    """Return the parser with all its commands."""
    return main._make_parser()[0]
