"""Reading timeouts, without torch."""

from __future__ import annotations

from datetime import timedelta

from meshlib.errors import MeshError


def as_timedelta(timeout: timedelta | float | None) -> timedelta | None:
    """A timeout from a timedelta or from seconds."""
    if timeout is None or isinstance(timeout, timedelta):
        length = timeout
    elif isinstance(timeout, int | float) and not isinstance(timeout, bool):
        try:
            length = timedelta(seconds=timeout)
        except (OverflowError, ValueError):
            raise MeshError(
                f"timeout must be a number of seconds that a timedelta holds, got {timeout!r}"
            ) from None
    else:
        raise MeshError(f"timeout must be a timedelta or seconds, got {timeout!r}")
    if length is not None and length <= timedelta(0):
        raise MeshError(f"timeout must be above 0, got {timeout!r}")
    return length
