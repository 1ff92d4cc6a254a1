"""What meshsim raises when it is used wrongly or can't run here.

A scenario that fails is a result, not an exception; these are about the call itself.
Each message is one line that says what is wrong and what would be right.
"""

from __future__ import annotations


class MeshsimError(Exception):
    """Base of everything that meshsim raises on its own account."""


class UsageError(MeshsimError, ValueError):
    """The call is wrong: a topology that doesn't fit, an unknown scenario, a value out of range.

    The command line exits with 2.
    """


class CannotRun(MeshsimError, RuntimeError):
    """The call is right but this machine can't do it: a missing backend, device or launcher.

    The command line exits with 3.
    """


class UnsupportedCall(MeshsimError, RuntimeError):
    """Raised in a rank for a call that the backend, or the backend of the run's profile, doesn't have."""


class RunFailed(MeshsimError, AssertionError):
    """Raised by ``meshsim.run(..., raises=True)`` when the run failed; ``result`` holds the whole of it."""

    def __init__(self, result: object) -> None:
        super().__init__(str(getattr(getattr(result, "verdict", None), "summary", result)))
        self.result = result
