"""One rank at a time: a baton passed between rank threads at communication points, in an order drawn from a
seed.

Each rank is a thread, since torch keeps grad mode, autocast, dispatch modes and default devices per thread. A
parked thread waits on a lock of its own; passing the baton is releasing the next rank's lock. No rank is ever
woken to look whether it may go on, so the cost of a hand-over doesn't grow with the number of ranks.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Collection, Sequence

# Threads that exist only to run a rank need less stack than the main thread; thousands of them need address
# space.
_STACK_BYTES = 16 * 2**20
_STACK_BYTES_MANY = 2 * 2**20
_MANY_RANKS = 256


class RankStopped(BaseException):
    """Raised inside a rank's communication call to unwind it after the run is over.

    A ``BaseException``, so that a scenario's ``except Exception`` doesn't swallow it.
    """


class Scheduler:
    """Runs rank programs one at a time.

    ``enter`` and ``leave`` are called in a rank's thread whenever it gets or gives up the baton; they install
    and put away what a process of its own would have had. ``on_quiet`` is called when no rank can go on
    although some have not finished: the deadlock, known without waiting.
    """

    def __init__(
        self,
        world_size: int,
        seed: int,
        *,
        enter: Callable[[int], None],
        leave: Callable[[int], None],
        on_quiet: Callable[[], None],
    ) -> None:
        self.world_size = world_size
        self.current: int | None = None
        self.stopping = False
        self._random = random.Random(seed)
        self._enter = enter
        self._leave = leave
        self._on_quiet = on_quiet
        self._runnable: list[int] = list(range(world_size))
        self._locks = [threading.Lock() for _ in range(world_size)]
        for lock in self._locks:
            lock.acquire()
        self._threads: list[threading.Thread] = []
        self._rank_of_thread: dict[int, int] = {}
        self._unfinished = world_size
        self.all_finished = threading.Event()

    # From the thread that runs the world

    def start(self, program: Callable[[int], None]) -> None:
        """Start every rank's thread and hand the baton to the first. ``program`` never raises."""
        before = threading.stack_size(_STACK_BYTES if self.world_size <= _MANY_RANKS else _STACK_BYTES_MANY)
        try:
            for rank in range(self.world_size):
                thread = threading.Thread(
                    target=self._run, args=(rank, program), name=f"meshsim-rank-{rank}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
        finally:
            threading.stack_size(before)
        self._pass_on()

    def wait(self, timeout: float) -> bool:
        """Wait for all ranks to finish; False when the time is up."""
        return self.all_finished.wait(timeout)

    def stop(self) -> None:
        """End the run: every parked rank is unwound, and so is any that communicates from now on."""
        if self.stopping:
            return
        self.stopping = True
        for rank, lock in enumerate(self._locks):
            if rank != self.current:
                _release(lock)

    def join(self, timeout: float) -> list[int]:
        """Wait for the threads to end; the ranks whose thread did not."""
        self.all_finished.wait(timeout)
        left = []
        for rank, thread in enumerate(self._threads):
            if rank in self._rank_of_thread.values() or thread.is_alive():
                thread.join(0.2 if self.all_finished.is_set() else 0.0)
            if thread.is_alive():
                left.append(rank)
        return left

    def thread_of(self, rank: int) -> threading.Thread | None:
        return self._threads[rank] if rank < len(self._threads) else None

    # From a rank's thread

    def rank_here(self) -> int | None:
        """The rank whose thread this is; None in a thread that the harness didn't start."""
        return self._rank_of_thread.get(threading.get_ident())

    def others_can_run(self, besides: Collection[int] = ()) -> bool:
        """Whether any rank but the calling one, and those in ``besides``, can go on."""
        return any(rank not in besides for rank in self._runnable) if besides else bool(self._runnable)

    def check_running(self) -> None:
        """Unwind the calling rank if the run is over."""
        if self.stopping:
            raise RankStopped

    def block(self, rank: int) -> None:
        """Park the calling rank until :meth:`wake`."""
        self.check_running()
        self._leave(rank)
        self._pass_on()
        self._resume(rank)

    def pause(self, rank: int) -> None:
        """Let another rank go first, if any can."""
        self.check_running()
        if not self._runnable:
            return
        self._leave(rank)
        self._runnable.append(rank)
        self._pass_on()
        self._resume(rank)

    def wake(self, ranks: Sequence[int]) -> None:
        """Make parked ranks runnable. The caller keeps the baton."""
        self._runnable.extend(ranks)

    def _resume(self, rank: int) -> None:
        self._locks[rank].acquire()
        if self.stopping:
            raise RankStopped
        self._enter(rank)

    def _pass_on(self) -> None:
        """Hand the baton to a rank drawn from those that can go on."""
        if self.stopping:
            return
        runnable = self._runnable
        if runnable:
            last = len(runnable) - 1
            at = self._random.randrange(last + 1) if last else 0
            runnable[at], runnable[last] = runnable[last], runnable[at]
            self.current = runnable.pop()
            _release(self._locks[self.current])
            return
        self.current = None
        if self._unfinished:
            self._on_quiet()
            self.stop()

    def _run(self, rank: int, program: Callable[[int], None]) -> None:
        self._rank_of_thread[threading.get_ident()] = rank
        try:
            self._resume(rank)
            program(rank)
            if not self.stopping:
                self._leave(rank)
        except RankStopped:
            pass
        finally:
            self._rank_of_thread.pop(threading.get_ident(), None)
            self._finish()

    def _finish(self) -> None:
        with _counting:
            self._unfinished -= 1
            last = self._unfinished == 0
        if last:
            self.all_finished.set()
        elif not self.stopping:
            self._pass_on()


def _release(lock: threading.Lock) -> None:
    """Release a baton lock. A stop from outside may have done so at the same moment; then the rank is awake
    anyway.
    """
    with contextlib.suppress(RuntimeError):
        lock.release()


# Ranks that are unwound after a stop finish in any order, several at once.
_counting = threading.Lock()
