"""The order in which the ranks of a failed job leave: rank 0 first, when it has reported.

torchrun ends all ranks of a host as soon as one has ended with a failure. So the others wait for rank 0, and
from the failure on SIGTERM no longer ends a rank before it has left on its own.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshsim.worlds.cluster.job import Job

_FOR_FIRST = 10.0
"""Seconds for rank 0 to report."""
_AFTER_SIGTERM = 20.0
"""Seconds for a rank to leave after SIGTERM; torchrun sends SIGKILL after 30."""


class Leaving:
    """How this process will end."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._failed = False
        self._hangs = False
        atexit.register(self._leave)

    def as_failed(self) -> None:
        """A run has failed, and the process will say so by its exit code."""
        if not self._failed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note)
        self._failed = True

    def as_hanging(self) -> None:
        """A thread of the process hangs in a library: at the end it isn't waited for."""
        self._hangs = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._job.broken = self._job.broken or "the job is being ended (SIGTERM)"
        limit = threading.Timer(_AFTER_SIGTERM, os._exit, (1,))
        limit.daemon = True
        limit.start()

    def _leave(self) -> None:
        if self._failed and not self._job.is_first:
            self._wait_for_first()
        if self._failed:
            # The interpreter's end would put back a handler of ours, not this.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._hangs:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(1)

    def _wait_for_first(self) -> None:
        """Until rank 0's end of the connection is closed."""
        until = time.monotonic() + _FOR_FIRST
        channel = self._job.channel
        while time.monotonic() < until:
            readable, _, _ = select.select([channel], [], [], max(0.0, until - time.monotonic()))
            try:
                if readable:
                    channel.receive()
            except (EOFError, OSError):
                return
