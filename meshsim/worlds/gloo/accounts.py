"""From what the parent learned of a rank to its report."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshsim.report import RankFailure, RankReport, RankState
from meshsim.worlds.gloo.journal import read_journal
from meshsim.worlds.gloo.messages import Ended, Whereabouts
from meshsim.worlds.gloo.pool import Worker
from meshsim.worlds.gloo.returning import known_classes, unpack

_NO_STACK = "The process showed no stack: it is stopped (SIGSTOP), or the system gave it no time.\n"


@dataclass
class RankUnderWatch:
    """One rank of a run under way."""

    rank: int
    worker: Worker
    began: float
    report: RankReport | None = None
    """Set once the rank has ended."""
    started: bool = False
    whereabouts: Whereabouts | None = None
    """Where it was when it last said so."""
    lost_at: float | None = None
    """When its connection ended."""

    @property
    def is_lost(self) -> bool:
        """Its process is gone, and how it ended isn't known yet."""
        return self.report is None and self.lost_at is not None

    @property
    def has_answered(self) -> bool:
        """Nothing more is to be had from it."""
        asked = self.whereabouts is not None and self.whereabouts.asked
        return self.report is not None or asked or self.worker.channel.closed


def own_account(rank: RankUnderWatch, ended: Ended, blob: bytes, classes: Mapping[int, type]) -> RankReport:
    """The report of a rank that told of its end itself."""
    report = RankReport(
        rank.rank,
        ended.state,
        failure=ended.failure,
        exit_code=ended.exit_code,
        trace=ended.trace,
        ended=ended.ended,
    )
    try:
        with known_classes(classes):
            if report.state is RankState.RETURNED:
                report.value = unpack(blob)
            elif report.failure is not None and blob:
                report.failure.exception = unpack(blob)
    except Exception as error:  # noqa: BLE001 - what unpickling runs is the user's
        if report.state is RankState.RETURNED:
            report.state = RankState.RAISED
            message = f"the return value can't be rebuilt in the parent process: {error}"
            report.failure = RankFailure(type(error).__qualname__, message, message)
    return report


def of_dead(rank: RankUnderWatch, code: int | None) -> RankReport:
    """The report of a rank whose process ended without its account. ``code`` is minus a signal's number."""
    killed = code is not None and code < 0
    seen = rank.lost_at if rank.lost_at is not None else time.monotonic()
    return RankReport(
        rank.rank,
        RankState.KILLED if killed else RankState.EXITED,
        exit_code=None if killed else code,
        signal=_signal_name(-code) if code is not None and killed else None,
        stack=rank.worker.fatal.text(),
        trace=read_journal(rank.worker.journal.data()),
        ended=seen - rank.began,
    )


def of_unfinished(rank: RankUnderWatch, otherwise: RankState) -> RankReport:
    """The report of a rank that runs: BLOCKED in communication, or ``otherwise``."""
    where = rank.whereabouts
    if where is None:
        return RankReport(
            rank.rank,
            otherwise,
            stack=rank.worker.fatal.text() or _NO_STACK,
            trace=read_journal(rank.worker.journal.data()),
            ended=time.monotonic() - rank.began,
        )
    return RankReport(
        rank.rank,
        RankState.BLOCKED if where.in_communication else otherwise,
        stack=where.stack,
        pending=where.pending,
        trace=where.trace,
        ended=time.monotonic() - rank.began,
    )


def so_far(rank: RankUnderWatch) -> RankReport:
    """What can be said of a rank while the run goes on."""
    if rank.report is not None:
        return rank.report
    if rank.whereabouts is None:
        return RankReport(rank.rank, RankState.STOPPED)
    return of_unfinished(rank, RankState.STOPPED)


def put_first_cause_first(reports: Sequence[RankReport]) -> None:
    """A process's end is noticed after its peers have felt it: it is put before the first of them."""
    felt = [r.ended for r in reports if r.failure is not None and r.failure.peer_lost]
    for report in reports:
        if felt and report.state in (RankState.KILLED, RankState.EXITED) and report.failure is None:
            report.ended = min(report.ended, min(felt) - 1e-6)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
