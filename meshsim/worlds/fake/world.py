"""The fake world: runs a request's ranks as threads of this process, one at a time."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cache
from types import FrameType

import torch

from meshsim import torch_private
from meshsim.errors import UsageError
from meshsim.failure import failure_from
from meshsim.report import RankFailure, RankReport, RankState, WorldReport
from meshsim.torch_private import Store
from meshsim.trace import TraceEvent
from meshsim.worlds.base import RunRequest
from meshsim.worlds.checks import prepare
from meshsim.worlds.fake.blocking import ranks_wait_politely
from meshsim.worlds.fake.capture import Capture
from meshsim.worlds.fake.exchange import Exchange, FakeTransport
from meshsim.worlds.fake.isolation import Isolation
from meshsim.worlds.fake.leftovers import put_back
from meshsim.worlds.fake.scheduler import RankStopped, Scheduler
from meshsim.worlds.fake.store import FakeStore
from meshsim.worlds.injection import FaultActions
from meshsim.worlds.rank_program import run_rank
from meshsim.worlds.recorder import Recorder
from meshsim.worlds.recording import RecordingGroup, note_call_by_non_member
from meshsim.worlds.rendezvous import Rendezvous
from meshsim.worlds.transport import Transport

_DEFAULT_GROUP = "0"
_TIMEOUT = timedelta(minutes=30)
# Formatting a stack reads source files; a few dozen say what there is to say.
_MOST_STACKS = 64
_UNWIND_SECONDS = 2.0
_IMPORT_SECONDS = 30.0

# Process-wide state is swapped between the ranks of one run; two runs at a time would mix theirs.
_one_at_a_time = threading.Lock()


class _Crashed(BaseException):
    """An injected crash: the rank is gone, as if its process had been killed."""


def _handled_meanwhile(stopped: RankStopped) -> RankFailure | None:
    """The exception in whose handling (``except`` or ``finally``) a rank communicated when the run ended."""
    cause = stopped.__context__
    while isinstance(cause, RankStopped):
        cause = cause.__context__
    return failure_from(cause) if isinstance(cause, Exception) else None


class FakeWorld:
    """Thousands of ranks in one process. Same request, same seed: the same interleaving and the same bits."""

    backend = "fake"

    def unavailable(self) -> str | None:
        return None

    def run(self, request: RunRequest) -> WorldReport:
        if not _one_at_a_time.acquire(blocking=False):
            raise UsageError(
                "a fake world is already running in this process: a scenario can't start another, "
                "and two threads can't run one at the same time"
            )
        try:
            torch_private.check_c10d_layout()
            return _Run(request).report()
        finally:
            _one_at_a_time.release()


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Each rank is a thread; a pool of compute threads for each would be thousands."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _imports(frame: FrameType | None) -> bool:
    """Whether a thread is in the midst of importing a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def _collecting_new_objects_only() -> Iterator[None]:
    """Torch alone is half a million objects; thousands of ranks would have them searched again and again."""
    if gc.get_freeze_count():  # the caller's own doing, and his to undo
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Run:
    """One run of one request."""

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        size = request.world_size
        self._capture = Capture(self._rank_writing)
        self._isolation = Isolation(
            size, request.seed, request.isolate, self._capture.stdout, self._capture.stderr
        )
        self._scheduler = Scheduler(
            size,
            request.seed,
            enter=self._isolation.enter,
            leave=self._isolation.leave,
            on_quiet=self._note_blocked,
        )
        self._recorders = [Recorder(rank) for rank in range(size)]
        self._exchange = Exchange(
            self._scheduler,
            self._recorders,
            request.seed,
            shuffle_reductions=request.shuffle_reductions,
        )
        self._store = FakeStore(self._scheduler)
        self._rendezvous = Rendezvous(self._scheduler.rank_here, self._store, self._default_group)
        actions = FaultActions(crash=self._crash, hang=self._hang, delay=self._delay)
        axis_of = cache(request.plan.axis_of)
        for recorder in self._recorders:
            prepare(recorder, request, actions, axis_of=axis_of)
        self._reports: list[RankReport | None] = [None] * size
        self._own_ranks = {rank: rank for rank in range(size)}
        self._members = tuple(range(size))
        self._began = time.monotonic()
        self._stacks: dict[int, str] = {}
        self._hanging: set[int] = set()
        self._interrupted: dict[int, RankFailure | None] = {}
        """What a rank was handling when the run ended in one of its calls."""
        self._stuck: set[int] = set()
        self._late: set[int] = set()

    def report(self) -> WorldReport:
        late: float | None = None
        with ExitStack() as stack:
            stack.enter_context(_collecting_new_objects_only())
            stack.enter_context(put_back())
            stack.enter_context(self._capture.of_loggers())
            stack.callback(self._isolation.restore)
            stack.enter_context(_one_torch_thread())
            stack.enter_context(torch_private.thread_isolated_group_registry())
            stack.enter_context(torch_private.calls_by_non_members(note_call_by_non_member))
            stack.enter_context(torch_private.default_group_hidden_from_imports())
            stack.enter_context(self._rendezvous.installed())
            stack.enter_context(ranks_wait_politely(self._scheduler))
            stack.callback(self._unwind)
            self._scheduler.start(self._program)
            if not self._scheduler.wait(self._request.timeout):
                late = self._request.timeout
                self._note_blocked()
                self._find_stuck()
        ranks = [self._final(rank) for rank in self._members]
        for report in ranks:
            report.stdout = self._capture.stdout.text(report.rank)
            report.stderr = self._capture.stderr.text(report.rank)
        findings = self._exchange.findings + [f for recorder in self._recorders for f in recorder.findings]
        return WorldReport(ranks, findings, late, time.monotonic() - self._began)

    def _rank_writing(self) -> int | None:
        rank = self._scheduler.rank_here()
        # A helper thread that a rank started writes while that rank holds the baton, as a rule.
        return self._scheduler.current if rank is None else rank

    # In a rank's thread

    def _program(self, rank: int) -> None:
        recorder = self._recorders[rank]
        try:
            self._join_default_group(rank)
            value = run_rank(
                self._request,
                rank=rank,
                local_rank=rank,
                device=torch.device("cpu"),
                recorder=recorder,
            )
            self._exchange.drain(rank)
            if self._scheduler.stopping:
                # The scenario has swallowed RankStopped: it never got past the call that ended the run.
                return
            report = RankReport(rank, RankState.RETURNED, value=value)
        except RankStopped as stopped:
            self._interrupted[rank] = _handled_meanwhile(stopped)
            return
        except _Crashed:
            report = RankReport(rank, RankState.KILLED, signal="SIGKILL")
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            report = RankReport(rank, RankState.EXITED, failure=failure_from(error), exit_code=code)
        except BaseException as error:  # noqa: BLE001 - whatever a rank raises is its result
            if self._scheduler.stopping:
                return
            report = RankReport(rank, RankState.RAISED, failure=failure_from(error))
        finally:
            recorder.close()
        report.ended = recorder.elapsed()
        self._reports[rank] = report

    def _join_default_group(self, rank: int) -> None:
        group = RecordingGroup(
            self._store,
            rank,
            members=self._members,
            name=_DEFAULT_GROUP,
            timeout=_TIMEOUT,
            recorder=self._recorders[rank],
            factory=self._transport,
        )
        torch_private.install_default_group(group, self._store, _DEFAULT_GROUP, ranks=self._own_ranks)

    def _default_group(
        self,
        rank: int,
        group_rank: int,
        members: tuple[int, ...],
        times: int,
        store: Store,
        timeout: timedelta,
    ) -> RecordingGroup:
        """For ``init_process_group`` in a scenario that has destroyed the default group."""
        return RecordingGroup(
            store,
            group_rank,
            members=members,
            name=_DEFAULT_GROUP,
            timeout=timeout,
            recorder=self._recorders[rank],
            factory=self._transport,
            era=f"{times}:",
        )

    def _transport(
        self, members: tuple[int, ...], name: str, group_rank: int, store: Store, timeout: timedelta
    ) -> Transport:
        return FakeTransport(self._exchange, name, members, group_rank, timeout)

    # Injected faults, in the thread of the rank that they strike

    def _crash(self, rank: int) -> None:
        raise _Crashed

    def _hang(self, rank: int) -> None:
        """Never come back. The others go on until nobody can."""
        self._hanging.add(rank)
        self._scheduler.block(rank)

    def _delay(self, rank: int, seconds: float) -> None:
        """Come late. Time doesn't pass here: every other rank that can go on does so first."""
        self._late.add(rank)
        while self._scheduler.others_can_run(self._late):
            self._scheduler.pause(rank)
        self._late.discard(rank)

    # Ending

    def _find_stuck(self) -> None:
        """The deadline has passed: let the other ranks go on for a while without the one that runs.

        What they do shows what they need from it. If it communicates meanwhile, it was only busy.
        """
        suspect = self._scheduler.current
        if suspect is None:
            return
        if self._scheduler.go_on_without_current():
            self._scheduler.over.wait(_UNWIND_SECONDS)
        thread = self._scheduler.thread_of(suspect)
        if thread is not None and thread.is_alive():
            self._stuck.add(suspect)

    def _note_blocked(self) -> None:
        """Keep the stacks of the ranks that have not finished, before they are unwound."""
        frames = sys._current_frames()
        unfinished = [rank for rank in self._members if self._reports[rank] is None]
        current = self._scheduler.current
        if current is not None and current in unfinished:
            unfinished.insert(0, current)
        for rank in unfinished[:_MOST_STACKS]:
            thread = self._scheduler.thread_of(rank)
            frame = frames.get(thread.ident or 0) if thread is not None else None
            if frame is not None:
                self._stacks[rank] = "".join(traceback.format_stack(frame))

    def _unwind(self) -> None:
        """End every rank's thread. One that doesn't communicate is interrupted where it runs Python code."""
        self._scheduler.stop()
        deadline = time.monotonic() + _UNWIND_SECONDS
        last = deadline + _IMPORT_SECONDS
        importing = False
        while not self._scheduler.all_finished.wait(0.05):
            if time.monotonic() > (last if importing else deadline):
                break
            importing = self._interrupt_ranks()
        for rank in self._scheduler.join(0.0):
            warnings.warn(
                f"meshsim: the thread of rank {rank} blocks in a call that can't be interrupted; "
                "it stays until that call returns, and ends there",
                RuntimeWarning,
                stacklevel=2,
            )

    def _interrupt_ranks(self) -> bool:
        """Raise RankStopped where each rank runs Python code. Whether some were spared, in an import.

        A module whose import is cut short is broken for the whole process.
        """
        frames = sys._current_frames()
        importing = False
        for rank in self._members:
            thread = self._scheduler.thread_of(rank)
            if thread is None or not thread.is_alive() or thread.ident is None:
                continue
            if _imports(frames.get(thread.ident)):
                importing = True
            else:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(RankStopped)
                )
        return importing

    def _final(self, rank: int) -> RankReport:
        report = self._reports[rank]
        if report is None:
            report = self._unfinished(rank)
            report.failure = self._interrupted.get(rank)
        report.trace = self._recorders[rank].events
        return report

    def _unfinished(self, rank: int) -> RankReport:
        pending = self._exchange.blocked.get(rank)
        if pending is not None:
            state = RankState.BLOCKED
        elif rank in self._store.waits:
            state, pending = RankState.BLOCKED, self._store_wait(rank)
        elif rank in self._stuck or rank in self._hanging or rank in self._scheduler.asleep:
            state = RankState.STUCK
        else:
            state = RankState.STOPPED
        return RankReport(
            rank,
            state,
            pending=pending,
            stack=self._stacks.get(rank, ""),
            ended=self._recorders[rank].elapsed(),
        )

    def _store_wait(self, rank: int) -> TraceEvent:
        key, site = self._store.waits[rank]
        return TraceEvent(
            rank=rank,
            index=len(self._recorders[rank].events),
            op="store.wait",
            group=self._members,
            site=site,
            note=f"waits for the store's key {key}",
        )
