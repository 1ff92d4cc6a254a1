"""Rank 0's watch over a run: who has ended, when to stop the rest, and what to report of each rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meshsim.report import RankFailure, RankReport, RankState, WorldReport
from meshsim.verdict import Finding
from meshsim.worlds.base import RunRequest
from meshsim.worlds.cluster.handing_in import unpack
from meshsim.worlds.cluster.messages import Finish, Journal, TornDown
from meshsim.worlds.cluster.rank_thread import RankThread
from meshsim.worlds.cluster.wiring import BEAT_EVERY, Peers
from meshsim.worlds.gloo.journal import read_journal
from meshsim.worlds.gloo.messages import Ended, Inspect, Started, Whereabouts

_GRACE = 0.5
_GRACE_A_RANK = 0.02
_TO_ANSWER = 3.0
_TO_TEAR_DOWN = 3.0
_AFTER_SIGTERM = 2.0

Proof = Callable[[list[RankReport]], bool]


@dataclass
class _Watched:
    rank: int
    report: RankReport | None = None
    started: bool = False
    whereabouts: Whereabouts | None = None
    journal: bytearray = field(default_factory=bytearray)
    """Its trace as it grows, for when the rank can't tell of it any more."""

    @property
    def has_answered(self) -> bool:
        return self.report is not None or (self.whereabouts is not None and self.whereabouts.asked)


class Supervision:
    """One run. ``report()`` returns when every rank is accounted for; ``finish()`` ends it everywhere."""

    def __init__(
        self,
        peers: Peers,
        own: RankThread,
        request: RunRequest,
        run: int,
        *,
        start_timeout: float,
        terminated: Callable[[], bool],
        proof: Proof,
    ) -> None:
        self._peers = peers
        self._own = own
        self._request = request
        self._run = run
        self._start_timeout = start_timeout
        self._terminated = terminated
        self._proof = proof
        self._began = time.monotonic()
        self._ranks = [_Watched(rank) for rank in range(request.world_size)]
        self._all_started: float | None = None
        self._first_failure: float | None = None
        self._first_term: float | None = None
        self._news = False
        self._findings: list[Finding] = []
        self._torn_down: dict[int, str] = {}

    def report(self) -> WorldReport:
        self._peers.watch(self._own.wake)
        try:
            deadline = self._watch()
            self._inspect_unfinished()
        finally:
            self._peers.unwatch(self._own.wake)
        reports = [self._final(rank, deadline) for rank in self._ranks]
        _put_first_cause_first(reports)
        return WorldReport(reports, self._findings, deadline, time.monotonic() - self._began)

    # Watching

    def _watch(self) -> float | None:
        while True:
            self._note_lost()
            if all(rank.report is not None for rank in self._ranks):
                return None
            limit, deadline = self._limit()
            if time.monotonic() >= limit:
                return deadline
            self._poll(min(limit, time.monotonic() + BEAT_EVERY / 4))
            if self._is_proven():
                return None

    def _limit(self) -> tuple[float, float | None]:
        deadline: float | None
        if self._all_started is None:
            limit, deadline = self._began + self._start_timeout, self._start_timeout
        else:
            limit, deadline = self._all_started + self._request.timeout, self._request.timeout
        if self._terminated() and self._first_term is None:
            self._first_term = time.monotonic()
        for since, grace in (
            (self._first_failure, _GRACE + _GRACE_A_RANK * len(self._ranks)),
            (self._first_term, _AFTER_SIGTERM),
        ):
            if since is not None and since + grace < limit:
                limit, deadline = since + grace, None
        return limit, deadline

    def _poll(self, until: float) -> None:
        self._peers.beat()
        for rank, message, blob in self._peers.poll(until):
            self._note(rank, message, blob)
        for news in self._own.take_news():
            message, blob = news if isinstance(news, tuple) else (news, b"")
            self._note(0, message, blob)
        where = self._own.whereabouts_if_waiting()
        if where is not None:
            self._note(0, where, b"")
        if self._all_started is None and all(r.started or r.report is not None for r in self._ranks):
            self._all_started = time.monotonic()

    def _note(self, number: int, message: object, blob: bytes) -> None:
        if isinstance(message, TornDown) and message.run == self._run:
            self._torn_down[number] = message.stuck
            return
        if number >= len(self._ranks) or getattr(message, "run", None) != self._run:
            return
        rank = self._ranks[number]
        if isinstance(message, Journal):
            rank.journal += blob
        elif isinstance(message, Started):
            rank.started = True
        elif isinstance(message, Ended) and rank.report is None:
            self._findings += message.findings
            self._set_report(rank, _own_account(number, message, blob))
            rank.journal.clear()
        elif isinstance(message, Whereabouts):
            rank.whereabouts = message
            self._news = True

    def _note_lost(self) -> None:
        for number, how in self._peers.lost.items():
            if number < len(self._ranks) and self._ranks[number].report is None:
                rank = self._ranks[number]
                report = RankReport(
                    number,
                    RankState.EXITED,
                    stack=how,
                    trace=read_journal(bytes(rank.journal)),
                    ended=time.monotonic() - self._began,
                )
                self._set_report(rank, report)

    def _set_report(self, rank: _Watched, report: RankReport) -> None:
        rank.report = report
        self._news = True
        if report.state is not RankState.RETURNED and self._first_failure is None:
            self._first_failure = time.monotonic()

    def _is_proven(self) -> bool:
        if not self._news or not any(r.report is None and r.whereabouts is not None for r in self._ranks):
            return False
        self._news = False
        return self._proof([_so_far(rank) for rank in self._ranks])

    # Stopping

    def _inspect_unfinished(self) -> None:
        asked = [rank for rank in self._ranks if not rank.has_answered]
        for rank in asked:
            if rank.rank == 0:
                self._note(0, self._own.whereabouts(asked=True), b"")
            else:
                self._peers.send(rank.rank, Inspect(self._run))
        until = time.monotonic() + _TO_ANSWER
        while not all(rank.has_answered for rank in asked) and time.monotonic() < until:
            self._poll(min(until, time.monotonic() + BEAT_EVERY / 4))
            self._note_lost()

    def _final(self, rank: _Watched, deadline: float | None) -> RankReport:
        if rank.report is not None:
            return rank.report
        report = _unfinished(rank, RankState.STOPPED if deadline is None else RankState.STUCK)
        report.ended = time.monotonic() - self._began
        if rank.whereabouts is not None:
            self._findings += rank.whereabouts.findings
        if deadline is not None and self._all_started is None and not rank.started:
            report.state = RankState.NOT_STARTED
        return report

    def finish(self, report: WorldReport) -> str:
        """Tear the run down on all ranks. Why the job can run nothing more; empty when it can."""
        abort = any(rank.state is not RankState.RETURNED for rank in report.ranks)
        states = tuple(rank.state.value for rank in report.ranks)
        self._peers.broadcast(Finish(self._run, abort, states))
        self._peers.flush(1.0)
        self._torn_down[0] = self._own.tear_down(abort=abort, seconds=_TO_TEAR_DOWN)
        until = time.monotonic() + _TO_TEAR_DOWN + 1.0
        while (
            any(r not in self._torn_down for r in self._peers.present if r < len(self._ranks))
            and time.monotonic() < until
        ):
            self._peers.beat()
            for rank, message, blob in self._peers.poll(min(until, time.monotonic() + BEAT_EVERY)):
                self._note(rank, message, blob)
        return self._why_broken()

    def _why_broken(self) -> str:
        if self._terminated():
            return "the job is being ended (SIGTERM)"
        for lost, how in self._peers.lost.items():
            return f"rank {lost} is lost: {how}"
        for number, rank in enumerate(self._ranks):
            stuck = self._torn_down.get(number, "it did not answer")
            if stuck:
                return f"rank {rank.rank} still hangs in an earlier run ({stuck})"
        return ""


def _own_account(rank: int, ended: Ended, blob: bytes) -> RankReport:
    report = RankReport(
        rank,
        ended.state,
        failure=ended.failure,
        exit_code=ended.exit_code,
        trace=ended.trace,
        ended=ended.ended,
    )
    try:
        if report.state is RankState.RETURNED:
            report.value = unpack(blob)
        elif report.failure is not None and blob:
            report.failure.exception = unpack(blob)
    except Exception as error:  # noqa: BLE001 - what unpickling runs is the user's
        if report.state is RankState.RETURNED:
            report.state = RankState.RAISED
            message = f"the return value can't be rebuilt on rank 0: {error}"
            report.failure = RankFailure(type(error).__qualname__, message, message)
    return report


def _unfinished(rank: _Watched, otherwise: RankState) -> RankReport:
    where = rank.whereabouts
    if where is None:
        trace = read_journal(bytes(rank.journal))
        return RankReport(rank.rank, otherwise, stack="The rank did not answer.\n", trace=trace)
    return RankReport(
        rank.rank,
        RankState.BLOCKED if where.in_communication else otherwise,
        stack=where.stack,
        pending=where.pending,
        trace=where.trace,
    )


def _so_far(rank: _Watched) -> RankReport:
    if rank.report is not None:
        return rank.report
    if rank.whereabouts is None:
        return RankReport(rank.rank, RankState.STOPPED)
    return _unfinished(rank, RankState.STOPPED)


def _put_first_cause_first(reports: Sequence[RankReport]) -> None:
    """A process's end is noticed after its peers have felt it: it is put before the first of them."""
    felt = [r.ended for r in reports if r.failure is not None and r.failure.peer_lost]
    for report in reports:
        if felt and report.state is RankState.EXITED and report.failure is None:
            report.ended = min(report.ended, min(felt) - 1e-6)
