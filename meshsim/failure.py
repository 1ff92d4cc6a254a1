"""Turning a rank's exception into a record that outlives the rank."""

from __future__ import annotations

import traceback
from types import TracebackType

from meshsim.report import RankFailure
from meshsim.source import is_harness_file, is_user_file, user_line_of_traceback

# What c10d backends say when the other end is gone: the consequence of another rank's end, not a cause.
_PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "failed to recv, got 0 bytes",
)


def qualified_name(kind: type[BaseException]) -> str:
    """``ValueError`` for builtins, ``package.module.Name`` for the others."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def without_harness_frames(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from the first user frame on; all of it when there is none."""
    first = tb
    while first is not None and not is_user_file(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or tb


def format_for_user(error: BaseException) -> str:
    """The traceback as Python prints it, from the first user frame on and without our own frames between."""
    shown = traceback.TracebackException(type(error), error, without_harness_frames(error.__traceback__))
    chain: traceback.TracebackException | None = shown
    while chain is not None:
        kept = [frame for frame in chain.stack if not is_harness_file(frame.filename)]
        if kept:
            chain.stack = traceback.StackSummary.from_list(kept)
        chain = chain.__cause__ or chain.__context__
    return "".join(shown.format())


def failure_from(error: BaseException) -> RankFailure:
    """A record of ``error`` with the traceback a user would see in his own process."""
    message = str(error)
    return RankFailure(
        type=qualified_name(type(error)),
        message=message,
        traceback=format_for_user(error),
        site=user_line_of_traceback(error.__traceback__),
        exception=error,
        peer_lost=isinstance(error, RuntimeError) and any(text in message for text in _PEER_LOST),
        carried=getattr(error, "meshsim_carried", None),
    )
