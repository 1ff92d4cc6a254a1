"""The gloo world: one real process a rank, from a pool of warm workers."""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from meshsim.report import RankReport, WorldReport
from meshsim.worlds.base import RunRequest
from meshsim.worlds.gloo.messages import Surroundings
from meshsim.worlds.gloo.pool import exclusive_pool
from meshsim.worlds.gloo.sending import pack_request
from meshsim.worlds.gloo.supervision import TO_START, Proof, Supervision

if TYPE_CHECKING:
    from meshsim.torch_private import TCPStore

_LOOPBACK = "127.0.0.1"


class GlooWorld:
    """Runs a request on gloo workers. The pool of workers belongs to the process and outlives this object."""

    backend = "gloo"

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
            store, port = _host_store()
            workers = pool.acquire(request.world_size)
            supervision = Supervision(pool, workers, request, parcel, _proof_for(request))
            try:
                return supervision.report(port, _surroundings())
            finally:
                del store


def warm_up(ranks: int = 4) -> None:
    """Start loading torch for the workers now, beside whatever this process does before its first run."""
    with exclusive_pool() as pool:
        pool.warm_up(ranks)


def _proof_for(request: RunRequest) -> Proof:
    from meshsim.checker.certain import mismatch_is_certain
    from meshsim.checker.deadlock import deadlock_is_certain

    def proof(reports: list[RankReport]) -> bool:
        traces = [report.trace for report in reports]
        return bool(mismatch_is_certain(request.plan, traces) or deadlock_is_certain(request.plan, reports))

    return proof


def _host_store() -> tuple[TCPStore, int]:
    """The store where the ranks of one run meet, on a port that the system chose and nobody else can take."""
    from meshsim.torch_private import TCPStore

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((_LOOPBACK, 0))
    listener.listen(socket.SOMAXCONN)
    port = listener.getsockname()[1]
    store = TCPStore(
        _LOOPBACK,
        port,
        None,
        True,
        timeout=timedelta(seconds=TO_START),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, port


def _surroundings() -> Surroundings:
    return Surroundings(dict(os.environ), os.getcwd(), [str(entry) for entry in sys.path], list(sys.argv))
