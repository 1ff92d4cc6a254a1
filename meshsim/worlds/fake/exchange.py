"""Where the calls of all ranks meet: matches them, computes the values, and lets the waiting ranks go on."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from meshsim.checker.compare import compare_calls, compare_p2p
from meshsim.trace import TraceEvent
from meshsim.verdict import Finding, Severity
from meshsim.worlds.calls import POINT_TO_POINT, Call, is_deferred
from meshsim.worlds.fake import kernels
from meshsim.worlds.fake.arguments import check_arguments
from meshsim.worlds.fake.scheduler import RankStopped, Scheduler
from meshsim.worlds.fake.work import FakeWork
from meshsim.worlds.recorder import Recorder


@dataclass(slots=True)
class _Slot:
    """One collective of one group: the calls of the members that have come so far."""

    calls: list[Call | None]
    works: list[FakeWork | None]
    arrived: int = 0


@dataclass(slots=True)
class _Posted:
    """A send or recv that waits for its partner."""

    call: Call
    work: FakeWork


@dataclass(slots=True)
class Meeting:
    """What is under way on one group."""

    size: int
    issued: list[int]
    slots: dict[int, _Slot] = field(default_factory=dict)
    sends: dict[tuple[int, int, int], deque[_Posted]] = field(default_factory=dict)
    recvs: dict[tuple[int, int, int], deque[_Posted]] = field(default_factory=dict)
    any_recvs: dict[tuple[int, int], deque[_Posted]] = field(default_factory=dict)


class Exchange:
    """Shared by all ranks of one run; only the rank that holds the baton touches it."""

    def __init__(
        self,
        scheduler: Scheduler,
        recorders: list[Recorder],
        seed: int,
        *,
        shuffle_reductions: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self._recorders = recorders
        self.findings: list[Finding] = []
        self.blocked: dict[int, TraceEvent] = {}
        """The call that each parked rank waits in."""
        self._random = random.Random(seed)
        self._shuffle = shuffle_reductions
        self._meetings: dict[tuple[str, tuple[int, ...]], Meeting] = {}
        self._waiting: dict[int, FakeWork] = {}
        self._outstanding: dict[int, list[FakeWork]] = {}

    # Beginning a call

    def start(self, call: Call, meeting: Meeting, group_rank: int) -> FakeWork:
        """Post one rank's call; completes the collective if it is the last to come."""
        self.scheduler.check_running()
        event = call.event
        self._check_owner(event.rank)
        self.scheduler.progressed()
        self._make_progress(event.rank)
        work = FakeWork(self, event.rank, event, call.outputs)
        if event.op in POINT_TO_POINT:
            self._post(meeting, call, work, group_rank)
        else:
            self._arrive(meeting, call, work, group_rank)
        if is_deferred(event):
            self._outstanding.setdefault(event.rank, []).append(work)
        return work

    def _check_owner(self, rank: int) -> None:
        """A group that a module keeps in a global variable is that of the rank that stored it last."""
        here = self.scheduler.rank_here()
        if here is None:
            if self.scheduler.current != rank:
                self.scheduler.await_turn_of_helper(rank)
        elif here != rank:
            raise RuntimeError(
                f"rank {here} uses a process group of rank {rank}: they share the variable that holds it; "
                "give each rank its own with isolate=['the.module'] of that variable"
            )

    def meeting(self, name: str, members: tuple[int, ...]) -> Meeting:
        """Where the members of a group meet. Ranks that give one name to different members don't."""
        key = (name, members)
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = Meeting(len(members), [0] * len(members))
        return meeting

    def _arrive(self, meeting: Meeting, call: Call, work: FakeWork, group_rank: int) -> None:
        number = meeting.issued[group_rank]
        meeting.issued[group_rank] += 1
        slot = meeting.slots.get(number)
        if slot is None:
            slot = meeting.slots[number] = _Slot([None] * meeting.size, [None] * meeting.size)
        slot.calls[group_rank] = call
        slot.works[group_rank] = work
        slot.arrived += 1
        if slot.arrived == meeting.size:
            del meeting.slots[number]
            self._complete([c for c in slot.calls if c is not None], [w for w in slot.works if w is not None])

    def _complete(self, calls: list[Call], works: list[FakeWork]) -> None:
        self._check(compare_calls([call.event for call in calls]))
        order = None
        if self._shuffle and calls[0].event.reduce_op:
            order = self._random.sample(range(len(calls)), len(calls))
        with self._moving_data():
            for work, delivery in zip(works, kernels.deliveries(calls, order), strict=True):
                self._hand_over(work, delivery)
        self._wake(works)

    def _hand_over(self, work: FakeWork, delivery: kernels.Delivery) -> None:
        """Write the result at once where the rank is waiting for it, keep it otherwise."""
        work.ready = True
        if not is_deferred(work.event) or self._waiting.get(work.rank) is work:
            kernels.write(delivery)
        else:
            work.delivery = kernels.kept(delivery)

    def _wake(self, works: list[FakeWork]) -> None:
        waiting = [work.rank for work in works if self._waiting.get(work.rank) is work]
        for rank in waiting:
            del self._waiting[rank]
        self.scheduler.wake(waiting)

    def _check(self, finding: Finding | None) -> None:
        """Keep a finding; end the run where no value can be right. Nothing has been delivered yet."""
        if finding is None:
            return
        self.findings.append(finding)
        if finding.severity is not Severity.WARNING:
            last = self.scheduler.current
            if last is not None:
                self.blocked[last] = self._recorders[last].events[-1]
            self.scheduler.stop()
            raise RankStopped

    @contextmanager
    def _moving_data(self) -> Iterator[None]:
        """The harness touches tensors of all ranks, in the thread of whichever rank came last."""
        here = self.scheduler.rank_here()
        recorder = self._recorders[here] if here is not None else None
        if recorder is not None:
            before, recorder.moving_data = recorder.moving_data, True
        try:
            # Neither autograd nor version counters are to see what a backend writes behind their backs.
            with torch.inference_mode():
                yield
        finally:
            if recorder is not None:
                recorder.moving_data = before

    # Point to point

    def _post(self, meeting: Meeting, call: Call, work: FakeWork, here: int) -> None:
        posted, tag = _Posted(call, work), call.event.tag
        if call.event.op == "send":
            key = (here, _peer(call), tag)
            partner = self._earliest(meeting, key)
            if partner is None:
                meeting.sends.setdefault(key, deque()).append(posted)
            else:
                self._transfer(posted, partner, here)
            return
        if call.peer is None:
            sources = sorted(
                src for (src, dst, t), q in meeting.sends.items() if dst == here and t == tag and q
            )
            if not sources:
                meeting.any_recvs.setdefault((here, tag), deque()).append(posted)
                return
            key = (self._random.choice(sources), here, tag)
        else:
            key = (call.peer, here, tag)
        waiting = meeting.sends.get(key)
        if waiting:
            self._transfer(waiting.popleft(), posted, key[0])
        else:
            meeting.recvs.setdefault(key, deque()).append(posted)

    @staticmethod
    def _earliest(meeting: Meeting, key: tuple[int, int, int]) -> _Posted | None:
        """The recv that was posted first, of those for this source and those for any."""
        queues = [q for q in (meeting.recvs.get(key), meeting.any_recvs.get(key[1:])) if q]
        return min(queues, key=lambda queue: queue[0].call.event.index).popleft() if queues else None

    def _transfer(self, send: _Posted, recv: _Posted, source: int) -> None:
        self._check(compare_p2p(send.call.event, recv.call.event))
        recv.work.source = source
        with self._moving_data():
            self._hand_over(recv.work, list(zip(recv.call.outputs, send.call.inputs, strict=True)))
        send.work.ready = True
        self._wake([send.work, recv.work])

    # Finishing a call, in the thread of the rank that made it

    def finish(self, work: FakeWork) -> None:
        """Wait until all partners have called, then put the result in place."""
        if not work.ready:
            self._waiting[work.rank] = work
            self.blocked[work.rank] = work.event
            if self.scheduler.rank_here() is None:
                self.scheduler.await_turn_of_helper(work.rank)
            self.scheduler.block(work.rank)
            del self.blocked[work.rank]
            work.delivery = []
        self._deliver(work)

    def poll(self, work: FakeWork) -> bool:
        """Whether the work is done. Asking lets other ranks go on, so that polling makes progress."""
        if not work.ready and self.scheduler.is_fruitless():
            self.finish(work)
        if not work.ready:
            self.scheduler.pause(work.rank)
        if work.ready:
            self._deliver(work)
        return work.delivered

    def _deliver(self, work: FakeWork) -> None:
        if work.delivery:
            with self._moving_data():
                kernels.write(work.delivery)
            work.delivery = []
        work.delivered = True
        outstanding = self._outstanding.get(work.rank)
        if outstanding and work in outstanding:
            outstanding.remove(work)
        if work.future is not None and not work.future.done():
            work.future.set_result(work.outputs)

    def _make_progress(self, rank: int) -> None:
        """Deliver some of the rank's finished works, drawn from the seed: a backend completes them when it
        likes.
        """
        outstanding = self._outstanding.get(rank)
        if outstanding:
            for work in self._random.sample(outstanding, len(outstanding)):
                if work.ready and self._random.random() < 0.5:
                    self._deliver(work)

    def drain(self, rank: int) -> None:
        """At the end of a rank's program: deliver whatever is complete and was never waited for."""
        for work in list(self._outstanding.pop(rank, ())):
            if work.ready:
                self._deliver(work)


def _peer(call: Call) -> int:
    if call.peer is None:
        raise AssertionError("send without a destination")
    return call.peer


class FakeTransport:
    """One rank's end of one group in the fake world."""

    def __init__(
        self, exchange: Exchange, name: str, members: tuple[int, ...], group_rank: int, timeout: timedelta
    ) -> None:
        self._exchange = exchange
        self._meeting = exchange.meeting(name, members)
        self._group_rank = group_rank
        self._backend = FakeBackend(timeout)

    def start(self, call: Call) -> dist.Work:
        if not call.event.internal:
            check_arguments(call, self._meeting.size)
        return self._exchange.start(call, self._meeting, self._group_rank)

    def backend_for(self, device: torch.device) -> FakeBackend:
        if device.type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self._backend

    def close(self) -> None:
        """Nothing to give up: the exchange ends with the run."""


@dataclass
class BackendOptions:
    """What a c10d backend's options answer."""

    _timeout: timedelta
    backend: str = "gloo"
    global_ranks_in_group: list[int] = field(default_factory=list)
    group_name: str = ""


class FakeBackend:
    """Stands where c10d has a ``Backend``: it answers questions, calls go through the group."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, timeout: timedelta) -> None:
        self.options = BackendOptions(timeout)

    def name(self) -> str:
        return "gloo"

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.options._timeout = timeout

    set_timeout = _set_default_timeout
