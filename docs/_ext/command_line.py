"""The parser of the command line, from which a page of the reference is generated."""

import argparse

from streamsvm.cli import main


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``streamsvm`` with all its commands."""
    return main._make_parser()[0]
