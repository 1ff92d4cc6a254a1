"""Watching one run from the parent: who has ended and how, when to stop the rest, what to report of each."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from meshsim.report import RankFailure, RankReport, RankState, WorldReport
from meshsim.worlds.base import RunRequest
from meshsim.worlds.gloo.messages import Ended, Inspect, Release, RunOrder, Started, Surroundings, Whereabouts
from meshsim.worlds.gloo.pool import Pool, Worker, WorkerState
from meshsim.worlds.gloo.protocol import Ask
from meshsim.worlds.gloo.returning import known_classes, unpack
from meshsim.worlds.gloo.sending import Parcel

TO_START = 60.0
"""Seconds for all ranks to join the default process group."""
_GRACE = 0.3
_GRACE_A_RANK = 0.02
_TO_ANSWER = 1.0
_TO_SHOW_STACKS = 0.5
_TO_LEARN_EXIT_CODE = 1.0

Proof = Callable[[list[RankReport]], bool]
"""Whether the traces of ranks, some of them unfinished, show that the run can't succeed any more."""


@dataclass
class _Rank:
    rank: int
    worker: Worker
    report: RankReport | None = None
    started: bool = False
    whereabouts: Whereabouts | None = None
    lost_at: float | None = None
    """When its connection ended without an account of its own."""


class Supervision:
    """One run on acquired workers. ``report()`` returns when every rank is accounted for."""

    def __init__(
        self,
        pool: Pool,
        workers: list[Worker],
        request: RunRequest,
        parcel: Parcel,
        proof: Proof | None = None,
    ) -> None:
        self._pool = pool
        self._request = request
        self._parcel = parcel
        self._proof = proof
        self._run = pool.next_run()
        self._ranks = [_Rank(rank, worker) for rank, worker in enumerate(workers)]
        self._began = time.monotonic()
        self._all_started: float | None = None
        self._first_failure: float | None = None
        self._proven = False
        self._selector = selectors.DefaultSelector()

    def report(self, store_port: int, surroundings: Surroundings) -> WorldReport:
        """Send the orders, watch, stop what must be stopped. Workers that can't be reused are replaced."""
        try:
            self._send_orders(store_port, surroundings)
            deadline = self._watch()
            self._inspect_unfinished()
            reports = [self._final(rank, deadline is not None) for rank in self._ranks]
            self._collect_output(reports)
        except BaseException:
            # Ctrl-C, a test's own timeout: this run's ranks end here and now.
            for rank in self._ranks:
                self._pool.discard(rank.worker)
            raise
        finally:
            self._selector.close()
        self._let_go(reports)
        _order_first_cause(reports)
        return WorldReport(reports, deadline=deadline, duration=time.monotonic() - self._began)

    # Watching

    def _send_orders(self, store_port: int, surroundings: Surroundings) -> None:
        size = len(self._ranks)
        node_size = getattr(self._request.plan, "node_size", None) or size
        self._selector.register(self._pool.server, selectors.EVENT_READ, None)
        for rank in self._ranks:
            worker = rank.worker
            worker.state, worker.run = WorkerState.RUNNING, self._run
            worker.empty_outputs()
            self._selector.register(worker.channel, selectors.EVENT_READ, rank)
            order = RunOrder(self._run, rank.rank, size, node_size, store_port, self._began, surroundings)
            worker.channel.send(order, self._parcel.data)

    def _watch(self) -> float | None:
        """Until every rank has ended, or the rest must be stopped. Returns the deadline, if it has passed."""
        while any(rank.report is None for rank in self._ranks):
            limit, deadline = self._limit()
            if time.monotonic() >= limit:
                return deadline
            self._poll(limit)
            if self._proven:
                return None
        return None

    def _limit(self) -> tuple[float, float | None]:
        """When the watching ends at the latest, and the deadline that this is, if it is one."""
        if self._all_started is None:
            limit, deadline = self._began + TO_START, TO_START
        else:
            limit, deadline = self._all_started + self._request.timeout, self._request.timeout
        if self._first_failure is not None:
            grace = self._first_failure + _GRACE + _GRACE_A_RANK * len(self._ranks)
            if grace < limit:
                return grace, None
        return limit, deadline

    def _poll(self, until: float) -> None:
        """Wait for something to happen, and note it."""
        for rank in self._ranks:
            channel = rank.worker.channel
            if not channel.closed and channel.wants_to_write:
                self._selector.modify(channel, selectors.EVENT_READ | selectors.EVENT_WRITE, rank)
        for key, mask in self._selector.select(max(0.0, until - time.monotonic())):
            rank = key.data
            if rank is None:
                self._note_server()
            else:
                if mask & selectors.EVENT_WRITE:
                    rank.worker.channel.flush()
                    self._selector.modify(rank.worker.channel, selectors.EVENT_READ, rank)
                if mask & selectors.EVENT_READ:
                    self._note_messages(rank)

    def _note_server(self) -> None:
        self._pool.take_notices()
        if self._pool.server_gone:
            self._selector.unregister(self._pool.server)
        for rank in self._ranks:
            self._note_exit(rank)

    def _note_messages(self, rank: _Rank) -> None:
        channel = rank.worker.channel
        for message, blob in self._pool.take_messages(rank.worker):
            if isinstance(message, Started):
                rank.started = True
            elif isinstance(message, Ended):
                self._note_end(rank, message, blob)
            elif isinstance(message, Whereabouts) and message.run == self._run:
                rank.whereabouts = message
                self._look_for_proof()
        if self._all_started is None and all(r.started or r.report is not None for r in self._ranks):
            self._all_started = time.monotonic()
        if channel.closed:
            self._selector.unregister(channel)
            rank.lost_at = time.monotonic()
            self._note_exit(rank)

    def _note_end(self, rank: _Rank, ended: Ended, blob: bytes) -> None:
        report = RankReport(
            rank.rank,
            ended.state,
            failure=ended.failure,
            exit_code=ended.exit_code,
            trace=ended.trace,
            ended=ended.ended,
        )
        self._unpack(report, blob)
        self._set_report(rank, report)
        self._look_for_proof()

    def _unpack(self, report: RankReport, blob: bytes) -> None:
        try:
            with known_classes(self._parcel.classes):
                if report.state is RankState.RETURNED:
                    report.value = unpack(blob)
                elif report.failure is not None and blob:
                    report.failure.exception = unpack(blob)
        except Exception as error:  # noqa: BLE001 - what unpickling runs is the user's
            if report.state is RankState.RETURNED:
                report.state = RankState.RAISED
                message = f"the return value can't be rebuilt in the parent process: {error}"
                report.failure = RankFailure(type(error).__qualname__, message, message)

    def _note_exit(self, rank: _Rank) -> None:
        """A worker that ended without an account of its rank."""
        code = rank.worker.exit_code
        if rank.report is not None or code is None or not (rank.worker.channel.closed or self._drained(rank)):
            return
        seen = rank.lost_at if rank.lost_at is not None else time.monotonic()
        self._set_report(
            rank,
            RankReport(
                rank.rank,
                RankState.EXITED if code >= 0 else RankState.KILLED,
                exit_code=code if code >= 0 else None,
                signal=_signal_name(-code) if code < 0 else None,
                stack=rank.worker.fatal.text(),
                trace=rank.whereabouts.trace if rank.whereabouts else [],
                ended=seen - self._began,
            ),
        )

    def _drained(self, rank: _Rank) -> bool:
        """Its last words may have come after the notice of its end; they count."""
        self._note_messages(rank)
        return rank.report is None

    def _set_report(self, rank: _Rank, report: RankReport) -> None:
        rank.report = report
        if report.state is not RankState.RETURNED and self._first_failure is None:
            self._first_failure = time.monotonic()

    def _look_for_proof(self) -> None:
        if self._proof is not None and not self._proven:
            self._proven = self._proof([self._so_far(rank) for rank in self._ranks])

    def _so_far(self, rank: _Rank) -> RankReport:
        if rank.report is not None:
            return rank.report
        if rank.whereabouts is None:
            return RankReport(rank.rank, RankState.STOPPED)
        return self._unfinished(rank, timed_out=False)

    # Stopping

    def _inspect_unfinished(self) -> None:
        """Ask every rank that hasn't ended where it is; one that can't answer is made to show its stacks."""
        asked = [rank for rank in self._ranks if rank.report is None and not rank.worker.channel.closed]
        for rank in asked:
            rank.worker.channel.send(Inspect(self._run))
        self._poll_while(lambda: any(not _has_answered(rank) for rank in asked), _TO_ANSWER)
        silent = [rank for rank in asked if not _has_answered(rank)]
        for rank in silent:
            self._pool.server.ask(Ask.SHOW_STACKS, rank.worker.number)
        _wait_while(lambda: not all(rank.worker.fatal.text() for rank in silent), _TO_SHOW_STACKS)
        lost = [rank for rank in self._ranks if rank.report is None and rank.worker.channel.closed]
        self._poll_while(lambda: any(rank.report is None for rank in lost), _TO_LEARN_EXIT_CODE)

    def _poll_while(self, condition: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while condition() and time.monotonic() < until:
            self._poll(until)

    def _final(self, rank: _Rank, timed_out: bool) -> RankReport:
        if rank.report is not None:
            return rank.report
        if not rank.started and timed_out and self._all_started is None:
            report = self._unfinished(rank, timed_out=True)
            report.state = RankState.NOT_STARTED
            return report
        if rank.worker.channel.closed:
            return RankReport(rank.rank, RankState.EXITED, ended=time.monotonic() - self._began)
        return self._unfinished(rank, timed_out=timed_out)

    def _unfinished(self, rank: _Rank, *, timed_out: bool) -> RankReport:
        where = rank.whereabouts
        state = RankState.STUCK if timed_out else RankState.STOPPED
        if where is not None and where.in_communication:
            state = RankState.BLOCKED
        return RankReport(
            rank.rank,
            state,
            stack=where.stack if where is not None else rank.worker.fatal.text(),
            pending=where.pending if where is not None else None,
            trace=where.trace if where is not None else [],
            ended=time.monotonic() - self._began,
        )

    def _collect_output(self, reports: Iterable[RankReport]) -> None:
        for report in reports:
            worker = self._ranks[report.rank].worker
            report.stdout, report.stderr = worker.stdout.text(), worker.stderr.text()

    def _let_go(self, reports: list[RankReport]) -> None:
        size = len(reports)
        if all(report.state is RankState.RETURNED for report in reports):
            for rank in self._ranks:
                rank.worker.state = WorkerState.WIPING
                rank.worker.channel.send(Release(self._run))
            self._pool.release(size)
            return
        # A worker that lost a peer, or was stopped in a call, holds connections that nobody can vouch for.
        for rank in self._ranks:
            self._pool.discard(rank.worker)
        self._pool.warm_up(size)


def _has_answered(rank: _Rank) -> bool:
    asked = rank.whereabouts is not None and rank.whereabouts.asked
    return rank.report is not None or asked or rank.worker.channel.closed


def _wait_while(condition: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while condition() and time.monotonic() < until:
        time.sleep(0.01)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _order_first_cause(reports: list[RankReport]) -> None:
    """A process's end is noticed after its peers have felt it: it is put before the first of them."""
    felt = [r.ended for r in reports if r.failure is not None and r.failure.peer_lost]
    for report in reports:
        if felt and report.state in (RankState.KILLED, RankState.EXITED) and report.failure is None:
            report.ended = min(report.ended, min(felt) - 1e-6)
