"""Ctrl-C in compiled code."""

__all__ = ["is_interrupt"]


def is_interrupt(error: BaseException) -> bool:
    """Whether the user asked to stop. Where that happens as a compiled function returns, Python says SystemError."""
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, SystemError) and isinstance(error.__cause__, KeyboardInterrupt)
    )
