"""One rank at a time: a baton passed between rank threads at communication points, in an order drawn from a
seed.

Each rank is a thread, since torch keeps grad mode, autocast, dispatch modes and default devices per thread. A
parked thread waits on a lock of its own; passing the baton is releasing the next rank's lock. No rank is ever
woken to look whether it may go on, so the cost of a hand-over doesn't grow with the number of ranks.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

# Threads that exist only to run a rank need less stack than the main thread; thousands of them need address
# space.
_STACK_BYTES = 16 * 2**20
_STACK_BYTES_MANY = 2 * 2**20
_MANY_RANKS = 256
_FRUITLESS_POLLS = 2_000
# Seconds between two looks, in waits that have no lock to wait on. An event's wait is another one in a rank's
# thread: see blocking.py.
_SLICE = 0.02
_GLANCE = 0.001
_real_sleep = time.sleep
_FRUITLESS_POLLS_EACH = 50


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
        self.asleep: set[int] = set()
        """Ranks in ``sleep``."""
        self._sleepers: list[tuple[float, int, int, float]] = []
        """When each wakes, by the ranks' clock; a number that tells equal times apart; the rank; and when
        by the real clock.
        """
        self._clock = 0.0
        self._sleeps = 0
        self._waiting_outside: set[int] = set()
        self._fruitless = 0
        self._patience = _FRUITLESS_POLLS + _FRUITLESS_POLLS_EACH * world_size
        self.over = threading.Event()
        """Set when no rank will be handed the baton any more."""
        self.passed_over: set[int] = set()
        """Ranks that the baton was taken from, since they kept it without communicating."""
        # Guards the question who may give the baton away: the rank that has it, or the world that takes it.
        self._giving = threading.Lock()
        self._between_ranks = True

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
        self.over.set()
        for rank, lock in enumerate(self._locks):
            if rank != self.current:
                _release(lock)

    def go_on_without_current(self) -> bool:
        """Take the baton from the rank that has it and let the others run until none can go on.

        The rank is unwound when it communicates again. False when no rank is to blame or none else can run.
        """
        with self._giving:
            stuck = self.current
            if stuck is None or self._between_ranks or self.stopping or not self._runnable:
                return False
            self.passed_over.add(stuck)
            self._between_ranks = True
        self._leave(stuck)
        self._pass_on()
        return True

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
        if self.stopping or (self.passed_over and self.rank_here() in self.passed_over):
            raise RankStopped

    def _give_up_baton(self, rank: int) -> None:
        with self._giving:
            if self.stopping or rank in self.passed_over:
                raise RankStopped
            self._between_ranks = True

    def block(self, rank: int) -> None:
        """Park the calling rank until :meth:`wake`."""
        self._give_up_baton(rank)
        self._leave(rank)
        self._pass_on()
        self._resume(rank)

    def pause(self, rank: int) -> None:
        """Let another rank go first, if any can."""
        self.check_running()
        if not self._runnable:
            return
        self._give_up_baton(rank)
        self._leave(rank)
        self._runnable.append(rank)
        self._pass_on()
        self._resume(rank)

    def wake(self, ranks: Sequence[int]) -> None:
        """Make parked ranks runnable. The caller keeps the baton."""
        self._runnable.extend(ranks)

    def sleep(self, rank: int, seconds: float) -> None:
        """Let all others go first that can, then wait until ``seconds`` have passed."""
        self._give_up_baton(rank)
        self._leave(rank)
        self.asleep.add(rank)
        self._sleeps += 1
        until = time.monotonic() + seconds
        heapq.heappush(self._sleepers, (self._clock + seconds, self._sleeps, rank, until))
        self._pass_on()
        self._locks[rank].acquire()
        while not self.stopping and time.monotonic() < until:
            _real_sleep(min(_SLICE, max(0.0, until - time.monotonic())))
        if self.stopping:
            raise RankStopped
        self.asleep.discard(rank)
        self._between_ranks = False
        self._enter(rank)

    @contextmanager
    def waiting_outside(self, rank: int) -> Iterator[None]:
        """Inside, the rank's own thread waits for something in its own process.

        It keeps the baton, which a helper thread of the rank may pass on and get back meanwhile.
        """
        self._waiting_outside.add(rank)
        try:
            yield
        finally:
            self._waiting_outside.discard(rank)
        while self.current != rank:
            self.check_running()
            look_again_later()

    def await_turn_of_helper(self, rank: int) -> None:
        """Called in a thread that isn't the rank's own, before it passes the baton on in the rank's name."""
        while rank not in self._waiting_outside:
            self.check_running()
            if self.current != rank:
                raise RuntimeError(
                    f"rank {rank} communicates in two threads at once, and the fake world runs one thread "
                    "of a rank at a time: wait for the other thread first, or run on gloo"
                )
            look_again_later()

    def progressed(self) -> None:
        """Something has happened that a polling rank may be waiting for."""
        self._fruitless = 0

    def is_fruitless(self) -> bool:
        """To be asked at each poll: whether polling has gone on for so long that nobody else can be at work.

        A rank that polls while no other can go on would poll for ever, and so would two that poll for each
        other. Programs that poll a number of times and then do something else stay below this.
        """
        self._fruitless += 1
        return self._fruitless > self._patience

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
            self._between_ranks = False
            _release(self._locks[self.current])
            return
        if self._sleepers:
            self._clock, _, self.current, _ = heapq.heappop(self._sleepers)
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
            self._give_up_baton(rank)
            self._leave(rank)
        except RankStopped:
            pass
        finally:
            self._rank_of_thread.pop(threading.get_ident(), None)
            self._finish(rank)

    def _finish(self, rank: int) -> None:
        with _counting:
            self._unfinished -= 1
            last = self._unfinished == 0
        if last:
            self.all_finished.set()
        elif not self.stopping and rank not in self.passed_over:
            self._pass_on()


def look_again_later() -> None:
    """Sleep for a moment, for real."""
    _real_sleep(_GLANCE)


def _release(lock: threading.Lock) -> None:
    """Release a baton lock. A stop from outside may have done so at the same moment; then the rank is awake
    anyway.
    """
    with contextlib.suppress(RuntimeError):
        lock.release()


# Ranks that are unwound after a stop finish in any order, several at once.
_counting = threading.Lock()
