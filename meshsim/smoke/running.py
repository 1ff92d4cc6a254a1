"""The smoke run itself: one stage after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from meshlib import ParallelDims
from meshsim.errors import MeshsimError, UsageError
from meshsim.runner import world_of
from meshsim.smoke.contact import contact
from meshsim.smoke.library import library
from meshsim.smoke.measures import measure_bandwidth, measure_links, measure_stragglers
from meshsim.smoke.outcome import SmokeReport, Stage, StageState
from meshsim.smoke.preflight import preflight
from meshsim.smoke.session import Session
from meshsim.topologies import build_plan, default_world_size, parse_dims, topology_text
from meshsim.worlds.registry import auto_backend, check_backend

ON_ONE_MACHINE = "dp=2,tp=2"
"""The topology where there is no job and none is given."""
MAX_BYTES = {"gloo": 1 << 22, "fake": 1 << 18, "nccl": 1 << 28, "hccl": 1 << 28}
_LINK_BYTES = {"gloo": 1 << 20, "fake": 1 << 16, "nccl": 1 << 24, "hccl": 1 << 24}
_SIDE = {"gloo": 256, "fake": 128, "nccl": 4096, "hccl": 4096}
_MOST_PLACES = 64
"""Links are measured between so many places at most: every pair takes its turn."""


def smoke_backend(name: str = "auto") -> str:
    """The backend that ``auto`` means for a smoke run: the job's; on one machine gloo."""
    if name != "auto":
        return check_backend(name)
    backend = auto_backend()
    return "gloo" if backend == "fake" else backend


def run_smoke(
    topology: str | ParallelDims | None = None,
    *,
    backend: str = "auto",
    budget: float | None = None,
    max_bytes: int | None = None,
    seed: int = 0,
) -> SmokeReport:
    """Preflight, contact, scenario library, bandwidth, stragglers and links on the job's topology.

    ``topology`` is that of the job that is to follow; without one all ranks are data parallel, on one machine
    ``dp=2,tp=2``. ``budget`` is in seconds: what doesn't fit is reported as not run. ``max_bytes`` is the
    largest array of the bandwidth stage. Every rank of a job calls it; rank 0's report is handed to all.

    ``UsageError`` for a topology or a number that can't be right, ``CannotRun`` where this machine can't run
    the backend. What the hosts lack is in the report's first stage.
    """
    if budget is not None and not budget > 0:
        raise UsageError(f"budget must be a number of seconds above 0, got {budget!r}")
    if max_bytes is not None and max_bytes < 1:
        raise UsageError(f"max_bytes must be at least 1, got {max_bytes!r}")
    name = smoke_backend(backend)
    world = world_of(name)
    job_size = getattr(world, "world_size", None)
    dims = parse_dims(ON_ONE_MACHINE if topology is None and job_size is None else topology)
    plan = build_plan(dims, default_world_size(dims, job_size))
    session = Session(world, plan, topology_text(dims, plan.world_size), budget=budget, seed=seed)
    report = SmokeReport(
        session.topology, plan.world_size, name, (), budget=budget, slow_fails=session.in_a_job
    )
    first, report.hosts = preflight(session)
    report.stages.append(first)
    if first.state is StageState.PASSED:
        try:
            _run_stages(session, report, first, max_bytes or MAX_BYTES[name])
        except MeshsimError as error:
            report.stages.append(Stage("job", StageState.FAILED, str(error)))
    report.seconds = session.elapsed
    return report


def _run_stages(session: Session, report: SmokeReport, first: Stage, max_bytes: int) -> None:
    places = _places(session, first)
    heads = _heads(places)
    backend = report.backend
    stages: Sequence[tuple[str, Callable[[], Stage]]] = (
        ("contact", lambda: contact(session, heads)),
        ("scenarios", lambda: library(session)),
        ("bandwidth", lambda: measure_bandwidth(session, places, max_bytes)),
        ("stragglers", lambda: measure_stragglers(session, places, side=_SIDE[backend])),
        ("links", lambda: measure_links(session, places, heads, _LINK_BYTES[backend])),
    )
    stop = ""
    for name, run in stages:
        if not stop and session.time_left() < 1.0:
            stop = f"the budget of {session.budget:g} s is spent"
        if stop:
            report.stages.append(Stage(name, StageState.NOT_RUN, stop))
            continue
        stage = run()
        report.stages.append(stage)
        if name == "contact" and stage.state is StageState.FAILED:
            stop = "ranks have no contact"


def _places(session: Session, first: Stage) -> dict[int, str]:
    """Each rank's host, in a job; else the rank is all that there is to say."""
    ranks: list[dict[str, Any]] = first.data.get("ranks", [])
    if ranks:
        return {row["rank"]: f"host {row['host']}" for row in ranks[: session.plan.world_size]}
    return {rank: f"host {os.uname().nodename}" for rank in range(session.plan.world_size)}


def _heads(places: dict[int, str]) -> list[int]:
    """The first rank of each host; on one host all ranks. Evenly fewer where there are very many."""
    firsts = list({place: rank for rank, place in reversed(places.items())}.values())[::-1]
    heads = sorted(firsts) if len(firsts) > 1 else sorted(places)
    step = -(-len(heads) // _MOST_PLACES)
    return heads[::step]
