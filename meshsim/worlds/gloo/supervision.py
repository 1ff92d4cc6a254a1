"""Watching one run from the parent: who has ended, when to stop the rest, and what to report of each."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable

from meshsim.report import RankReport, RankState, WorldReport
from meshsim.verdict import Finding
from meshsim.worlds.base import RunRequest
from meshsim.worlds.gloo.accounts import (
    RankUnderWatch,
    of_dead,
    of_unfinished,
    own_account,
    put_first_cause_first,
    so_far,
)
from meshsim.worlds.gloo.meeting_place import MeetingPlace
from meshsim.worlds.gloo.messages import (
    Ended,
    Inspect,
    Meeting,
    Release,
    RunOrder,
    Started,
    StoreCall,
    Surroundings,
    Whereabouts,
)
from meshsim.worlds.gloo.pool import Pool, Worker, WorkerState
from meshsim.worlds.gloo.protocol import Ask
from meshsim.worlds.gloo.run_store import RunStore
from meshsim.worlds.gloo.sending import Parcel

TO_START = 60.0
"""Seconds for all ranks to join the default process group."""
_GRACE = 0.3
_GRACE_A_RANK = 0.02
_TO_ANSWER = 1.0
_TO_SHOW_STACKS = 0.5
_TO_LEARN_EXIT_CODE = 1.0

Proof = Callable[[list[RankReport]], bool]
"""Whether what is known of the ranks, some of which still run, shows that the run can't succeed any more.

A rank that runs has the state STOPPED, no pending call, and as much of its trace as it has handed in.
"""


class Supervision:
    """One run on acquired workers. ``report()`` returns when every rank is accounted for."""

    def __init__(
        self, pool: Pool, workers: list[Worker], request: RunRequest, parcel: Parcel, proof: Proof
    ) -> None:
        self._pool = pool
        self._server = pool.server
        self._request = request
        self._parcel = parcel
        self._proof = proof
        self._run = pool.next_run()
        self._store = RunStore()
        self._began = time.monotonic()
        self._ranks = [RankUnderWatch(rank, worker, self._began) for rank, worker in enumerate(workers)]
        self._all_started: float | None = None
        self._first_failure: float | None = None
        self._news = False
        """Something that may complete a proof has come in."""
        self._findings: list[Finding] = []
        self._selector = selectors.DefaultSelector()
        self._meeting_place = MeetingPlace()

    def report(self, surroundings: Surroundings) -> WorldReport:
        """Send the orders, watch, stop what must be stopped. Workers that can't be reused are replaced."""
        try:
            self._send_orders(surroundings)
            deadline = self._watch()
            self._inspect_unfinished()
            reports = [self._final(rank, deadline) for rank in self._ranks]
            self._let_go(reports)
        except BaseException:
            # Ctrl-C, a test's own timeout: this run's ranks end here and now.
            for rank in self._ranks:
                self._pool.discard(rank.worker)
            raise
        finally:
            self._selector.close()
            self._meeting_place.close()
        put_first_cause_first(reports)
        return WorldReport(reports, self._findings, deadline, time.monotonic() - self._began)

    # Watching

    def _send_orders(self, surroundings: Surroundings) -> None:
        size = len(self._ranks)
        node_size = getattr(self._request.plan, "node_size", None) or size
        self._selector.register(self._server, selectors.EVENT_READ, None)
        self._selector.register(self._meeting_place, selectors.EVENT_READ, self._meeting_place)
        port = self._meeting_place.port
        for rank in self._ranks:
            worker = rank.worker
            worker.state, worker.run = WorkerState.RUNNING, self._run
            worker.empty_outputs()
            self._selector.register(worker.channel, selectors.EVENT_READ, rank)
            order = RunOrder(self._run, rank.rank, size, node_size, port, self._began, surroundings)
            worker.channel.send(order, self._parcel.data)

    def _watch(self) -> float | None:
        """Until every rank has ended, or the rest must be stopped. Returns the deadline, if it has passed."""
        while True:
            self._settle_lost()
            if all(rank.report is not None for rank in self._ranks):
                return None
            limit, deadline = self._limit()
            if time.monotonic() >= limit:
                return deadline
            if any(rank.is_lost for rank in self._ranks):
                limit = min(limit, time.monotonic() + _TO_LEARN_EXIT_CODE)
            self._poll(limit)
            if self._is_proven():
                return None

    def _limit(self) -> tuple[float, float | None]:
        """When the watching ends at the latest, and the deadline that this is, if it is one."""
        deadline: float | None
        if self._all_started is None:
            limit, deadline = self._began + TO_START, TO_START
        else:
            limit, deadline = self._all_started + self._request.timeout, self._request.timeout
        if self._first_failure is not None:
            grace = self._first_failure + _GRACE + _GRACE_A_RANK * len(self._ranks)
            if grace < limit:
                limit, deadline = grace, None
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
                continue
            if rank is self._meeting_place:
                self._selector.unregister(self._meeting_place)
                self._meeting_place.open()
                continue
            if mask & selectors.EVENT_WRITE:
                rank.worker.channel.flush()
                self._selector.modify(rank.worker.channel, selectors.EVENT_READ, rank)
            if mask & selectors.EVENT_READ and not rank.worker.channel.closed:
                self._note_messages(rank)

    def _note_server(self) -> None:
        self._pool.take_notices()
        if self._server.gone:
            self._selector.unregister(self._server)
        for rank in self._ranks:
            self._note_exit(rank)

    def _note_messages(self, rank: RankUnderWatch) -> None:
        for message, blob in self._pool.take_messages(rank.worker):
            if isinstance(message, Started):
                rank.started = True
            elif isinstance(message, Ended):
                self._findings += message.findings
                self._set_report(rank, own_account(rank, message, blob, self._parcel.classes))
            elif isinstance(message, StoreCall):
                self._store.serve(message, rank.worker.channel.send)
            elif isinstance(message, Meeting):
                self._store.gather(message, rank.worker.channel.send)
            elif isinstance(message, Whereabouts):
                rank.whereabouts = message
                self._news = True
        if self._all_started is None and all(r.started or r.report is not None for r in self._ranks):
            self._all_started = time.monotonic()
        if rank.worker.channel.closed:
            self._selector.unregister(rank.worker.channel)
            rank.lost_at = time.monotonic()
            self._note_exit(rank)

    def _note_exit(self, rank: RankUnderWatch) -> None:
        """A worker has ended, as the fork server says. Its last words count, though read after that."""
        if rank.worker.exit_code is None or rank.report is not None:
            return
        if not rank.worker.channel.closed:
            self._note_messages(rank)
        if rank.report is None:
            self._set_report(rank, of_dead(rank, rank.worker.exit_code))

    def _settle_lost(self) -> None:
        """Account for ranks whose process is gone and of whose end the fork server doesn't tell."""
        for rank in self._ranks:
            if rank.is_lost and self._server.gone:
                # Workers are killed by the system when their server ends.
                self._set_report(rank, of_dead(rank, -signal.SIGKILL))
            elif rank.is_lost and time.monotonic() - (rank.lost_at or 0.0) > _TO_LEARN_EXIT_CODE:
                self._set_report(rank, of_dead(rank, None))

    def _set_report(self, rank: RankUnderWatch, report: RankReport) -> None:
        rank.report = report
        self._news = True
        if report.state is not RankState.RETURNED and self._first_failure is None:
            self._first_failure = time.monotonic()

    def _is_proven(self) -> bool:
        """Whether some rank waits for what can't come any more."""
        if not self._news or not any(r.report is None and r.whereabouts is not None for r in self._ranks):
            return False
        self._news = False
        return self._proof([so_far(rank) for rank in self._ranks])

    # Stopping

    def _inspect_unfinished(self) -> None:
        """Ask every rank that hasn't ended where it is; one that can't answer is made to show its stacks."""
        asked = [rank for rank in self._ranks if not rank.has_answered]
        for rank in asked:
            rank.worker.channel.send(Inspect(self._run))
        self._poll_while(lambda: not all(rank.has_answered for rank in asked), _TO_ANSWER)
        silent = [rank for rank in asked if not rank.has_answered]
        for rank in silent:
            self._server.ask(Ask.SHOW_STACKS, rank.worker.number)
        _wait_while(lambda: not all(rank.worker.fatal.text() for rank in silent), _TO_SHOW_STACKS)
        self._poll_while(lambda: any(rank.is_lost for rank in self._ranks), _TO_LEARN_EXIT_CODE)

    def _poll_while(self, condition: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while condition() and time.monotonic() < until:
            self._poll(until)

    def _final(self, rank: RankUnderWatch, deadline: float | None) -> RankReport:
        report = rank.report
        if report is None and rank.is_lost:
            report = of_dead(rank, None)
        if report is None:
            report = of_unfinished(rank, RankState.STOPPED if deadline is None else RankState.STUCK)
            if rank.whereabouts is not None:
                self._findings += rank.whereabouts.findings
            if deadline is not None and self._all_started is None and not rank.started:
                report.state = RankState.NOT_STARTED
        report.stdout, report.stderr = rank.worker.stdout.text(), rank.worker.stderr.text()
        return report

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
        if not self._server.gone:
            self._pool.warm_up(size)


def _wait_while(condition: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while condition() and time.monotonic() < until:
        time.sleep(0.01)
