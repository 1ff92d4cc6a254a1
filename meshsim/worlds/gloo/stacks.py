"""The Python stacks of a rank that has not finished, as text."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from types import FrameType

from meshsim.source import is_user_file

_COMMUNICATION = (
    os.path.join("torch", "distributed", ""),
    os.path.join("meshsim", "worlds", "recording"),
)


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def in_communication(frame: FrameType | None) -> bool:
    """Whether a thread is inside torch.distributed, called from the user's innermost line."""
    for each in _outward(frame):
        filename = each.f_code.co_filename
        if any(part in filename for part in _COMMUNICATION):
            return True
        if is_user_file(filename):
            return False
    return False


def _text(frame: FrameType, *, whole: bool) -> str:
    frames = list(_outward(frame))
    frames.reverse()
    if not whole:
        first = next((i for i, f in enumerate(frames) if is_user_file(f.f_code.co_filename)), 0)
        frames = frames[first:]
    summary = traceback.StackSummary.extract((f, f.f_lineno) for f in frames)
    return "".join(summary.format())


def all_stacks(main: FrameType | None, others: Mapping[int, FrameType]) -> str:
    """The main thread's stack from the first user frame on, then the other threads', innermost call last."""
    parts = []
    if main is not None:
        parts.append("Stack of the rank (most recent call last):\n" + _text(main, whole=False))
    for ident, frame in others.items():
        parts.append(f"Thread {ident:#x} (most recent call last):\n" + _text(frame, whole=True))
    return "\n".join(parts)
