"""The command line's entry, also of ``python -m streamsvm``: signals have their handlers before anything else is imported."""

import sys

from streamsvm.cli import exit_at_once, set_signal_handlers


def main() -> int:
    """Run the command line, as `streamsvm.cli.main.main` does, and let SIGINT and SIGTERM end it in order from the beginning."""
    set_signal_handlers(exit_at_once)
    from streamsvm.cli.main import main as run  # noqa: PLC0415 - after the handlers are there

    return run()


if __name__ == "__main__":
    sys.exit(main())
