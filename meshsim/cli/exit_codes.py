"""What the command line's exit codes mean."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    PASSED = 0
    FAILED = 1
    """A scenario failed."""
    WRONG_USE = 2
    CANNOT_RUN = 3
    """A backend or device is missing here."""
    INTERRUPTED = 130
