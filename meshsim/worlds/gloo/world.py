"""The gloo world: one real process a rank, from a pool of warm workers."""

from __future__ import annotations

import os
import sys

from meshsim.report import RankReport, WorldReport
from meshsim.worlds.base import RunRequest
from meshsim.worlds.gloo.messages import Surroundings
from meshsim.worlds.gloo.pool import exclusive_pool, pool_of_this_process
from meshsim.worlds.gloo.sending import pack_request
from meshsim.worlds.gloo.supervision import Proof, Supervision


class GlooWorld:
    """Runs a request on gloo workers. The pool of workers belongs to the process and outlives this object."""

    backend = "gloo"

    def __init__(self) -> None:
        # Workers' torch loads beside this process's own.
        if hasattr(os, "fork"):
            warm_up(0)

    def unavailable(self) -> str | None:
        if not hasattr(os, "fork"):
            return f"gloo workers are forked, and {sys.platform} has no fork; use the fake backend here"
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            return "this build of torch has no gloo backend; use the fake backend, or another build"
        return None

    def run(self, request: RunRequest) -> WorldReport:
        """Run the scenario on every rank.

        UsageError for a scenario or parameter that can't be sent to another process, before anything starts;
        CannotRun where no process can be started.
        """
        parcel = pack_request(request)
        with exclusive_pool() as pool:
            pool.warm_up(request.world_size)
            workers = pool.acquire(request.world_size)
            supervision = Supervision(pool, workers, request, parcel, _proof_for(request))
            return supervision.report(_surroundings())


def warm_up(ranks: int = 4) -> None:
    """Start loading torch for the workers now, beside whatever this process does before its first run."""
    pool = pool_of_this_process()
    if pool.lock.acquire(blocking=False):
        try:
            pool.warm_up(ranks)
        finally:
            pool.lock.release()


def _proof_for(request: RunRequest) -> Proof:
    from meshsim.checker.certain import mismatch_is_certain
    from meshsim.checker.deadlock import deadlock_is_certain

    def proof(reports: list[RankReport]) -> bool:
        traces = [report.trace for report in reports]
        return bool(mismatch_is_certain(request.plan, traces) or deadlock_is_certain(request.plan, reports))

    return proof


def _surroundings() -> Surroundings:
    return Surroundings(dict(os.environ), os.getcwd(), [str(entry) for entry in sys.path], list(sys.argv))
