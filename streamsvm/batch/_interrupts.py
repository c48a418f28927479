"""Ctrl-C in compiled code."""

__all__ = ["is_interrupt"]


def is_interrupt(error: BaseException | None) -> bool:
    """Whether the user asked to stop. Where that happens as a compiled function returns, Python says SystemError, of which one
    may be the cause of another.
    """
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)
