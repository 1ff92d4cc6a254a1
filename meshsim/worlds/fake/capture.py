"""Each rank's own standard output and error."""

from __future__ import annotations

import io
import sys
from types import TracebackType
from typing import TextIO

from meshsim.worlds.fake.scheduler import Scheduler


class _RankStream(io.TextIOBase):
    """Stands where ``sys.stdout`` was: what a rank writes goes to that rank's buffer."""

    def __init__(self, scheduler: Scheduler, outside: TextIO) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._outside = outside
        self.buffers: dict[int, io.StringIO] = {}

    def _target(self) -> TextIO:
        rank = self._scheduler.rank_here()
        # A helper thread that a rank started writes while that rank holds the baton, as a rule.
        rank = self._scheduler.current if rank is None else rank
        if rank is None:
            return self._outside
        return self.buffers.setdefault(rank, io.StringIO())

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
        buffer = self.buffers.get(rank)
        return "" if buffer is None else buffer.getvalue()


class Capture:
    """Inside, ranks' prints are kept apart; outside, nothing is changed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._outside = (sys.stdout, sys.stderr)
        self.stdout = _RankStream(scheduler, sys.stdout)
        self.stderr = _RankStream(scheduler, sys.stderr)

    def __enter__(self) -> Capture:
        sys.stdout, sys.stderr = self.stdout, self.stderr
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        sys.stdout, sys.stderr = self._outside
