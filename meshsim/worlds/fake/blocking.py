"""Waits outside of communication: sleeping, waiting for a thread, an event or a future.

A rank that sleeps lets the others go first, and wakes when nobody else can go on, in order of waking time: a
rank that comes late is late in the same way at each run. Other waits keep the baton, for what they wait for
happens in a thread of the rank's own; such a thread may communicate in the rank's name meanwhile. All of them
end when the run does.

Out of reach are a bare ``Lock.acquire()``, ``SimpleQueue.get()`` and whatever else blocks in C: a rank that
hangs there is reported at the deadline, and its thread stays until the call returns. So is a ``sleep`` that a
module took from ``time`` before the run; it only isn't cut short.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch

from meshsim.worlds.fake.scheduler import RankStopped, Scheduler, look_again_later
from meshsim.worlds.fake.work import RankFuture

# Seconds between two looks whether the run is over.
_SLICE = 0.02


@contextmanager
def ranks_wait_politely(scheduler: Scheduler) -> Iterator[None]:
    """Inside, the waits of Python's and torch's own that a rank may block in know of the run."""
    with ExitStack() as stack:
        for owner, name, made in (
            (time, "sleep", _sleep),
            # The lock that Condition.wait() blocks on; events, queues, barriers and futures wait by it.
            (threading, "_allocate_lock", _allocate_lock),
            (threading.Thread, "join", _join),
            (torch.futures.Future, "wait", _future_wait),
            (torch.futures, "collect_all", _collect_all),
        ):
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, made(scheduler, original))
        yield


def _sleep(scheduler: Scheduler, original: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        rank = scheduler.rank_here()
        if rank is None or not seconds >= 0:
            original(seconds)
        else:
            scheduler.sleep(rank, float(seconds))

    return sleep


def _allocate_lock(scheduler: Scheduler, original: Callable[[], Any]) -> Callable[[], Any]:
    def allocate_lock() -> Any:
        rank = scheduler.rank_here()
        if rank is None or _starts_a_thread(sys._getframe(1)):
            return original()
        return _WaiterLock(scheduler, rank, original())

    return allocate_lock


def _starts_a_thread(frame: FrameType | None) -> bool:
    """Whether it is ``Thread.start`` that waits, for the thread to run at all.

    A rank that does so may hold locks that all ranks share, such as those of thread pools.
    """
    for _ in range(3):
        if frame is None or frame.f_code is threading.Thread.start.__code__:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code is threading.Thread.start.__code__


class _WaiterLock:
    """A lock whose owner's wait for it ends with the run."""

    def __init__(self, scheduler: Scheduler, rank: int, lock: Any) -> None:
        self._scheduler = scheduler
        self._rank = rank
        self._lock = lock
        self.release = lock.release
        self.locked = lock.locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(False):
            return True
        if not blocking or self._scheduler.rank_here() != self._rank:
            return blocking and bool(self._lock.acquire(True, timeout))
        return _in_slices(
            self._scheduler,
            self._rank,
            lambda seconds: bool(self._lock.acquire(True, seconds)),
            None if timeout < 0 else timeout,
        )

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *unused: object) -> None:
        self.release()


def _join(scheduler: Scheduler, original: Callable[..., None]) -> Callable[..., None]:
    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        rank = scheduler.rank_here()
        if rank is None or thread is threading.current_thread() or not thread.is_alive():
            original(thread, timeout)
            return

        def wait(seconds: float) -> bool:
            original(thread, seconds)
            return not thread.is_alive()

        _in_slices(scheduler, rank, wait, timeout)

    return join


def _future_wait(scheduler: Scheduler, original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(future: torch.futures.Future[Any]) -> Any:
        rank = scheduler.rank_here()
        if rank is not None and not future.done():

            def done(seconds: float) -> bool:
                look_again_later()
                return future.done()

            _in_slices(scheduler, rank, done, None)
        return original(future)

    return wait


def _collect_all(scheduler: Scheduler, original: Callable[..., Any]) -> Callable[..., Any]:
    def collect_all(futures: Sequence[torch.futures.Future[Any]]) -> Any:
        if not any(isinstance(future, RankFuture) for future in futures):
            return original(futures)
        return RankFuture.of_all(futures)

    return collect_all


def _in_slices(scheduler: Scheduler, rank: int, wait: Callable[[float], bool], timeout: float | None) -> bool:
    """``wait(seconds)`` again and again until it is true, the time is up, or the run over."""
    deadline = None if timeout is None else time.monotonic() + timeout
    with scheduler.waiting_outside(rank):
        while True:
            left = _SLICE if deadline is None else min(_SLICE, max(0.0, deadline - time.monotonic()))
            if wait(left):
                return True
            if scheduler.stopping:
                raise RankStopped
            if deadline is not None and time.monotonic() >= deadline:
                return False
