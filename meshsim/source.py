"""Finding the user's line: the innermost frame that is neither torch's nor ours."""

from __future__ import annotations

import linecache
import os
from functools import lru_cache
from types import FrameType, TracebackType

import meshlib
from meshsim.trace import SourceLine

_HARNESS_ROOTS = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (__file__, meshlib.__file__)
)
_LIBRARY_PARTS = (
    f"{os.sep}torch{os.sep}",
    f"{os.sep}_pytest{os.sep}",
    f"{os.sep}pluggy{os.sep}",
    f"{os.sep}typing_extensions.py",
)
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
# Scenarios that ship with meshsim are user code: a failure in one is to be shown at its own line.
_SCENARIOS = tuple(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), folder) + os.sep
    for folder in ("scenarios", os.path.join("smoke", "programs"))
)


@lru_cache(maxsize=4096)
def is_user_file(filename: str) -> bool:
    """Whether a code object's file is the user's (or a scenario's), not torch's, Python's or meshsim's."""
    if filename.startswith("<frozen ") or any(part in filename for part in _LIBRARY_PARTS):
        return False
    path = os.path.abspath(filename)
    if path.startswith(_SCENARIOS):
        return True
    if is_harness_file(filename):
        return False
    return not (path.startswith(_STDLIB) and f"{os.sep}site-packages{os.sep}" not in path)


@lru_cache(maxsize=4096)
def is_harness_file(filename: str) -> bool:
    """Whether a code object's file is meshsim's or meshlib's own; the built-in scenarios don't count."""
    path = os.path.abspath(filename)
    return path.startswith(_HARNESS_ROOTS) and not path.startswith(_SCENARIOS)


def source_line(filename: str, line: int, function: str) -> SourceLine:
    """The source line with its text, where the file can be read."""
    return SourceLine(filename, line, function, linecache.getline(filename, line).strip())


def user_line(frame: FrameType | None) -> SourceLine | None:
    """The innermost user frame at or above ``frame``; None when the stack is all library code."""
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return source_line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def user_line_of_traceback(traceback: TracebackType | None) -> SourceLine | None:
    """The innermost user line of an exception's traceback."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_file(code.co_filename):
            found = source_line(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return found
