"""The world of a job: this process is one rank of it, and nothing is spawned."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

import torch.distributed as dist

from meshsim.checker.capabilities import unsupported
from meshsim.checker.wording import named_ranks
from meshsim.errors import CannotRun, UsageError
from meshsim.recordings.source import source_digest
from meshsim.report import RankReport, RankState, WorldReport
from meshsim.reports.values import to_json_value
from meshsim.torch_private import PrefixStore
from meshsim.verdict import Verdict, VerdictKind
from meshsim.worlds import speaking
from meshsim.worlds.base import RunRequest
from meshsim.worlds.cluster.attendance import attend
from meshsim.worlds.cluster.backends import cluster_backend
from meshsim.worlds.cluster.environment import rank_variables
from meshsim.worlds.cluster.facts import RankFacts, RunFacts
from meshsim.worlds.cluster.job import (
    Admission,
    Job,
    LostFirst,
    NotAdmitted,
    refuse,
    this_job,
)
from meshsim.worlds.cluster.launch import detect, why_no_job
from meshsim.worlds.cluster.messages import Journal
from meshsim.worlds.cluster.rank_thread import RankThread
from meshsim.worlds.cluster.supervision import Proof, Supervision

T = TypeVar("T")
_asked_for: list[ClusterWorld] = []
"""The worlds that this process has asked for; the last is the one that other ranks may be waiting in."""


def tell_job(error: Exception) -> None:
    """This rank can't go on for a reason of its own: let the others know."""
    if _asked_for and not isinstance(error, NotAdmitted):
        _asked_for[-1].refuse(str(error))


class ClusterWorld:
    """Runs each request as one rank of the job. Rank 0 gets the report of all ranks; the others know how each
    rank ended and, in the end, rank 0's verdict.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._kind = cluster_backend(backend)
        self._lost_first = ""
        self._admission: Admission | None = None
        _asked_for.append(self)

    def unavailable(self) -> str | None:
        """Why this process can't be a rank of a job; whether the hosts have the backend shows when they
        meet.
        """
        try:
            return None if detect() is not None else why_no_job()
        except UsageError as error:
            return str(error)

    @property
    def world_size(self) -> int:
        """How many ranks the job has."""
        launch = detect()
        if launch is None:
            raise CannotRun(why_no_job())
        return launch.world_size

    @property
    def is_first(self) -> bool:
        """Whether this rank gets the reports of all."""
        return this_job().is_first

    def facts(self) -> tuple[RankFacts, ...]:
        """What the preflight found of every rank. CannotRun on every rank alike for what doesn't fit."""
        self._admission = this_job().admit(self._kind)
        return self._admission.ranks

    def refuse(self, text: str) -> None:
        """Tell the other ranks that this one can't take part in the next run, and why."""
        refuse(self._kind, text)

    def run(self, request: RunRequest) -> WorldReport:
        """Run the scenario on the job's first ranks. CannotRun on every rank alike before anything starts."""
        job = this_job()
        self._lost_first = ""
        if job.broken:
            return _not_started(request.world_size)
        if request.world_size > job.size:
            raise CannotRun(f"the topology needs {request.world_size} ranks, and the job has {job.size}")
        if dist.is_initialized():
            raise UsageError(
                "a default process group is there already; run before init_process_group, or after "
                "destroy_process_group"
            )
        self.facts()
        try:
            run = job.agree(_run_facts(request))
            return self._run(job, request, run)
        except LostFirst as error:
            return self._without_first(job, request, error)

    def _run(self, job: Job, request: RunRequest, run: int) -> WorldReport:
        own = self._start(job, request, run) if job.rank < request.world_size else None
        with _sigterm_noted(job) as terminated:
            if own is not None and job.is_first:
                supervision = Supervision(
                    job.peers,
                    own,
                    request,
                    run,
                    start_timeout=self._kind.start_timeout,
                    terminated=terminated,
                    proof=_proof_for(request),
                )
                report = supervision.report()
                job.broken = supervision.finish(report)
                stuck = own.is_alive()
            else:
                finish, why = attend(job, own, run, terminated)
                report = _as_others_know(job.rank, own, finish.states)
                stuck = bool(why)
        if stuck:
            job.leaving.as_hanging()
        return report

    def _start(self, job: Job, request: RunRequest, run: int) -> RankThread:
        admission = self._admitted()
        thread = RankThread(
            request,
            self._kind,
            PrefixStore(f"run/{run}/", job.store),
            run=run,
            rank=job.rank,
            device=admission.device,
            address=admission.address,
            variables=rank_variables(job.launch, admission.ranks, request.world_size),
            journal=None if job.is_first else _journal(job, run),
        )
        thread.start()
        return thread

    def _admitted(self) -> Admission:
        assert self._admission is not None, "facts() comes first"
        return self._admission

    def _without_first(self, job: Job, request: RunRequest, error: LostFirst) -> WorldReport:
        """Rank 0 is gone, and with it what it knew of the others: say so from the rank after it."""
        self._lost_first = str(error)
        job.leaving.as_failed()
        job.leaving.as_hanging()
        if job.rank == 1:
            speaking.speak()
        reports = _not_started(request.world_size).ranks
        for report in reports:
            report.state = RankState.STOPPED
        reports[0].state = RankState.EXITED
        return WorldReport(reports)

    # After the run

    def share(self, make: Callable[[], T]) -> T:
        """What ``make`` gives on rank 0, on every rank."""
        return this_job().share(make)

    def conclude(self, report: WorldReport, judge: Callable[[], Verdict]) -> Verdict:
        """Rank 0's verdict, on every rank, with the host and device of the ranks that it names."""
        job = this_job()
        if self._lost_first:
            return self._verdict_without_first(job)
        if all(rank.state is RankState.NOT_STARTED for rank in report.ranks) and job.broken:
            return Verdict(VerdictKind.NOT_RUN, f"the job can run nothing more: {job.broken}")
        verdict, job.broken = self.share(lambda: (self._placed(judge(), report), job.broken))
        if not verdict.ok and verdict.kind is not VerdictKind.NOT_RUN:
            job.leaving.as_failed()
        return verdict

    def _verdict_without_first(self, job: Job) -> Verdict:
        place = self._admission.ranks[0].place if self._admission is not None else "unknown place"
        return Verdict(
            VerdictKind.EXITED,
            f"rank 0 ({place}) is gone, and with it the reports of the other ranks",
            (0,),
            tuple(range(1, job.size)),
            {"places": {"0": place}, "noticed by": job.rank},
        )

    def _placed(self, verdict: Verdict, report: WorldReport) -> Verdict:
        lacking = self._lacking(verdict, report)
        if lacking:
            return Verdict(VerdictKind.NOT_RUN, f"unsupported: {lacking}", verdict.ranks)
        ranks = self._admitted().ranks
        named = verdict.ranks or verdict.waiting
        if verdict.ok or not named:
            return verdict
        verdict.details["places"] = {
            str(rank): ranks[rank].place for rank in (*verdict.ranks, *verdict.waiting)
        }
        places = _places_text([ranks[rank] for rank in named])
        gone = {r.rank: r.stack for r in report.ranks if r.rank in named and r.state is RankState.EXITED}
        how = next((text for text in gone.values() if text and "\n" not in text), "")
        verdict.summary += f" [{places}{f'; {how}' if how else ''}]"
        return verdict

    def _lacking(self, verdict: Verdict, report: WorldReport) -> str:
        """What the backend doesn't have, where that alone is why the run failed."""
        if verdict.kind is not VerdictKind.UNSUPPORTED or self.backend == "gloo":
            return ""
        reasons = []
        for rank in verdict.ranks:
            last = next((e for e in reversed(report.ranks[rank].trace) if not e.internal), None)
            reasons.append(unsupported(last, self.backend) if last is not None else None)
        return (reasons[0] or "") if reasons and all(reasons) else ""


def _journal(job: Job, run: int) -> Callable[[bytes], None]:
    """Sends pieces of a rank's trace to rank 0; that rank 0 is gone shows elsewhere."""

    def send(data: bytes) -> None:
        with contextlib.suppress(OSError):
            job.channel.send(Journal(run), data)

    return send


def _places_text(ranks: list[RankFacts]) -> str:
    """``rank 1: host b, cuda:0``; of many ranks their hosts."""
    if len(ranks) <= 4:
        return "; ".join(f"rank {fact.rank}: {fact.place}" for fact in ranks)
    hosts: dict[str, list[int]] = {}
    for fact in ranks:
        hosts.setdefault(fact.host, []).append(fact.rank)
    shown = [f"host {host}: {named_ranks(members)}" for host, members in list(hosts.items())[:4]]
    return "; ".join(shown) + (f"; {len(hosts) - 4} more hosts" if len(hosts) > 4 else "")


def _not_started(world_size: int) -> WorldReport:
    return WorldReport([RankReport(rank, RankState.NOT_STARTED) for rank in range(world_size)])


def _as_others_know(rank: int, own: RankThread | None, states: tuple[str, ...]) -> WorldReport:
    """How every rank ended; of this one also what it did."""
    reports = [RankReport(other, RankState(state)) for other, state in enumerate(states)]
    if own is not None and own.account is not None:
        ended = own.account[0]
        report = reports[rank]
        report.failure, report.exit_code, report.trace = ended.failure, ended.exit_code, ended.trace
    return WorldReport(reports)


def _run_facts(request: RunRequest) -> RunFacts:
    scenario = request.scenario
    return RunFacts(
        scenario=getattr(scenario, "__qualname__", type(scenario).__qualname__),
        source=source_digest(scenario),
        plan=request.plan.digest,
        topology=request.plan.topology,
        seed=request.seed,
        params=json.dumps([to_json_value(dict(request.params)), [str(fault) for fault in request.faults]]),
    )


def _proof_for(request: RunRequest) -> Proof:
    from meshsim.checker.certain import mismatch_is_certain
    from meshsim.checker.deadlock import deadlock_is_certain

    def proof(reports: list[RankReport]) -> bool:
        traces = [report.trace for report in reports]
        return bool(mismatch_is_certain(request.plan, traces) or deadlock_is_certain(request.plan, reports))

    return proof


@contextlib.contextmanager
def _sigterm_noted(job: Job) -> Iterator[Callable[[], bool]]:
    """Inside, SIGTERM doesn't end the process: torchrun sends it when a rank of the host has died, and the
    report of that is still to be made. In a broken job neither later: the process leaves on its own.
    """
    came: list[float] = []

    def note(number: int, frame: FrameType | None) -> Any:
        came.append(time.monotonic())

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: bool(came)
    finally:
        if not job.broken:
            signal.signal(signal.SIGTERM, before)
