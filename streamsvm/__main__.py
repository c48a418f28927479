"""Entry point of the command line, also for ``python -m streamsvm``. It installs signal handlers before other imports."""

import sys

from streamsvm.cli import exit_at_once, set_signal_handlers


def main() -> int:
    """Run the command line and return its exit status. SIGINT and SIGTERM end it cleanly, even during imports."""
    set_signal_handlers(exit_at_once)
    from streamsvm.cli.main import main as run  # noqa: PLC0415 - after the signal handlers are installed

    return run()


if __name__ == "__main__":
    sys.exit(main())
