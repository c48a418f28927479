"""Errors about packages that only an extra installs: which is missing, and the command that installs it."""

from __future__ import annotations

__all__ = ["MissingPackageError", "missing_package"]


class MissingPackageError(ModuleNotFoundError):
    """A package of an extra is not installed. The message is one line, with the command that installs it."""


def missing_package(what: str, needs: str, extra: str, error: ImportError) -> MissingPackageError:
    """Return the error to raise where the import of an extra's packages failed.

    Parameters
    ----------
    what
        What cannot be done without them.
    needs
        The packages, by the names that pip knows.
    extra
        The extra that installs them.
    error
        That of the import. Where a package is there and cannot be imported, the message has its reason.

    Examples
    --------
    >>> raise missing_package("streamsvm.batch", "scikit-learn", "batch", ModuleNotFoundError("No module named 'sklearn'"))
    Traceback (most recent call last):
        ...
    streamsvm._extras.MissingPackageError: streamsvm.batch needs scikit-learn: pip install "streamsvm[batch]"
    """
    reason = "" if isinstance(error, ModuleNotFoundError) else f", and the import fails ({' '.join(str(error).split())})"
    text = f'{what} needs {needs}{reason}: pip install "streamsvm[{extra}]"'
    return MissingPackageError(text, name=error.name, path=error.path)
