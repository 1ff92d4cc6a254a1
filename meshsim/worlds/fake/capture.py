"""Each rank's own standard output and error."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class _Bytes(io.RawIOBase):
    """``sys.stdout.buffer`` of a rank."""

    def __init__(self, stream: _RankStream) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        block = bytes(data)
        self._stream.write(block.decode("utf-8", "replace"))
        return len(block)


class _RankStream(io.TextIOBase):
    """Stands where ``sys.stdout`` was: what a rank writes goes to that rank's buffer."""

    def __init__(self, rank_here: Callable[[], int | None], outside: TextIO) -> None:
        super().__init__()
        self._rank_here = rank_here
        self._outside = outside
        self._texts: dict[int, io.StringIO] = {}
        self.buffer = _Bytes(self)

    def _target(self) -> TextIO:
        rank = self._rank_here()
        return self._outside if rank is None else self._texts.setdefault(rank, io.StringIO())

    def write(self, text: str) -> int:
        return self._target().write(text)

    def flush(self) -> None:
        self._target().flush()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._outside.fileno()

    def text(self, rank: int) -> str:
        written = self._texts.get(rank)
        return "" if written is None else written.getvalue()


class Capture:
    """``stdout`` and ``stderr`` for every rank. ``rank_here()`` is the rank that is writing, None for the
    caller.
    """

    def __init__(self, rank_here: Callable[[], int | None]) -> None:
        self._outside = {id(stream) for stream in (sys.stdout, sys.__stdout__)}
        self._outside_errors = {id(stream) for stream in (sys.stderr, sys.__stderr__)}
        self.stdout = _RankStream(rank_here, sys.stdout)
        self.stderr = _RankStream(rank_here, sys.stderr)

    @contextmanager
    def of_loggers(self) -> Iterator[None]:
        """Inside, logging handlers that were made for the caller's streams write to the ranks'."""
        moved = []
        for reference in logging._handlerList:  # type: ignore[attr-defined]
            handler = reference()
            if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                stream = self._instead_of(getattr(handler, "stream", None))
                # logging's last resort looks sys.stderr up at each message.
                if stream is not None and "stream" in vars(handler):
                    moved.append((handler, handler.stream))
                    handler.stream = stream
        try:
            yield
        finally:
            for handler, before in moved:
                handler.stream = before

    def _instead_of(self, stream: Any) -> _RankStream | None:
        if id(stream) in self._outside_errors:
            return self.stderr
        return self.stdout if id(stream) in self._outside else None
