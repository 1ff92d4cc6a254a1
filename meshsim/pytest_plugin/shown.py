"""What an exception's report shows in place of the parent process's own traceback."""

from __future__ import annotations

from typing import Any

_SHOWN = "meshsim_shown"


def showing(error: BaseException, representation: Any) -> BaseException:
    """``error``, with what its report is to show in place of the parent's own traceback."""
    vars(error)[_SHOWN] = representation
    return error


def shown_by(error: BaseException | None) -> Any:
    """The representation that an exception brings along, or None.

    Notes that were added to the exception in pytest's process (Hypothesis's falsifying example) go below.
    """
    shown = getattr(error, _SHOWN, None)
    if shown is not None:
        text = str(shown)
        for note in getattr(error, "__notes__", ()):
            if note not in text:
                shown.addsection("note", note)
    return shown
