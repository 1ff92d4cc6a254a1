"""The job that this process is a rank of: met once, kept until the process ends."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import cloudpickle
import torch

from meshsim.errors import CannotRun, MeshsimError, UsageError
from meshsim.torch_private import Store
from meshsim.worlds import speaking
from meshsim.worlds.cluster.backends import ClusterBackend
from meshsim.worlds.cluster.devices import choose_device
from meshsim.worlds.cluster.environment import local_ranks
from meshsim.worlds.cluster.facts import RankFacts, RunFacts, common_facts
from meshsim.worlds.cluster.launch import Launch, detect, why_no_job
from meshsim.worlds.cluster.leaving import Leaving
from meshsim.worlds.cluster.messages import Admitted, Asked, Beat, Go, Presented, Refused, Shared
from meshsim.worlds.cluster.preflight import job_problems, run_problems
from meshsim.worlds.cluster.wiring import (
    Peers,
    connect_to_first,
    join_timeout,
    open_store,
    receive_ranks,
)
from meshsim.worlds.gloo.frames import BlockingChannel

T = TypeVar("T")


class NotAdmitted(CannotRun):
    """Ranks don't fit together; raised on every rank alike."""


class LostFirst(MeshsimError):
    """The connection to rank 0 has ended."""


@dataclass(frozen=True)
class Admission:
    """What the preflight of a backend found."""

    ranks: tuple[RankFacts, ...]
    device: torch.device
    address: str


class Job:
    """Rank 0's or another rank's end of the job."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.rank = launch.rank
        self.size = launch.world_size
        self.is_first = launch.rank == 0
        self.store: Store = open_store(launch)
        self.broken = ""
        """Why no further run is possible."""
        self.runs = 0
        self._admitted: dict[str, Admission] = {}
        self._peers: Peers | None = None
        self._channel: BlockingChannel | None = None
        if self.is_first:
            self._peers = receive_ranks(launch, self.store)
        else:
            self._channel = connect_to_first(launch, self.store)
            speaking.let_another_speak()
        self.leaving = Leaving(self)

    @property
    def peers(self) -> Peers:
        assert self._peers is not None, "only rank 0 has peers"
        return self._peers

    @property
    def channel(self) -> BlockingChannel:
        assert self._channel is not None, "rank 0 has no channel to itself"
        return self._channel

    # The preflight of a backend

    def admit(self, backend: ClusterBackend) -> Admission:
        """Compare all ranks, once for each backend, and bind this one's device. CannotRun on every rank alike
        for whatever doesn't fit.
        """
        if backend.name not in self._admitted:
            facts = gather_facts(self.launch, backend)
            answer = self._present(facts) if self.is_first else self._be_presented(facts)
            if isinstance(answer, Refused):
                raise NotAdmitted(_listed(answer.problems))
            facts = answer.ranks[self.rank]
            device = torch.device(facts.device)
            if device.type != "cpu":
                bind_device(device)
            self._admitted[backend.name] = Admission(answer.ranks, device, answer.addresses[self.rank])
        return self._admitted[backend.name]

    def _be_presented(self, facts: RankFacts) -> Admitted | Refused:
        self.channel.send(Presented(facts))
        answer: Admitted | Refused = self.receive(Admitted, Refused)
        return answer

    def _present(self, own: RankFacts) -> Admitted | Refused:
        found = {0: own, **{rank: m.facts for rank, m in self._collect(Presented).items()}}
        ranks = _with_devices([found[rank] for rank in range(self.size)])
        problems = job_problems(ranks)
        answer: Admitted | Refused
        answer = Refused(tuple(problems)) if problems else Admitted(tuple(ranks), self._addresses(ranks))
        self.peers.broadcast(answer)
        self.peers.flush(5.0)
        return answer

    def _addresses(self, ranks: list[RankFacts]) -> tuple[str, ...]:
        """Loopback where all ranks are on one host; else what the ranks' connections show of each."""
        if len({fact.host for fact in ranks}) == 1:
            return ("127.0.0.1",) * len(ranks)
        own_host = ranks[0].host
        elsewhere = next(fact.rank for fact in ranks if fact.host != own_host)
        of_first = self.peers.own_address(elsewhere)
        return tuple(
            of_first if fact.host == own_host else self.peers.address_of(fact.rank) for fact in ranks
        )

    # The preflight of a run

    def agree(self, facts: RunFacts) -> int:
        """Begin a run that every rank asks for alike; its number. CannotRun on every rank otherwise."""
        self.runs += 1
        if self.is_first:
            asked = {0: facts, **{rank: message.facts for rank, message in self._collect(Asked).items()}}
            ranks = next(iter(self._admitted.values())).ranks
            problems = run_problems([asked[rank] for rank in range(self.size)], ranks)
            answer: Go | Refused = Refused(tuple(problems)) if problems else Go(self.runs)
            self.peers.broadcast(answer)
            self.peers.flush(5.0)
        else:
            self.channel.send(Asked(self.runs, facts))
            answer = self.receive(Go, Refused)
        if isinstance(answer, Refused):
            raise NotAdmitted(_listed(answer.problems))
        return self.runs

    def _collect(self, kind: type[Any]) -> dict[int, Any]:
        """One such message from every other rank."""
        found: dict[int, Any] = {}
        until = time.monotonic() + join_timeout()
        while len(found) < len(self.peers):
            if self.peers.lost:
                rank, how = next(iter(self.peers.lost.items()))
                self.broken = f"rank {rank} ended before the run: {how}"
                problem = self.broken
            elif time.monotonic() >= until:
                missing = sorted(set(self.peers.present) - set(found))
                problem = f"nothing came from ranks {missing} for {join_timeout():g} s before the run"
            else:
                for rank, message, _ in self.peers.poll(until):
                    if isinstance(message, kind):
                        found[rank] = message
                continue
            self.peers.broadcast(Refused((problem,)))
            self.peers.flush(5.0)
            raise NotAdmitted(problem)
        return found

    # One value for all

    def share(self, make: Callable[[], T]) -> T:
        """What ``make`` gives on rank 0, on every rank."""
        if not self.is_first:
            message = self.receive(Shared)
            if message.error:
                raise MeshsimError(message.error)
            value: T = pickle.loads(message.value)
            return value
        try:
            made = make()
            self.peers.broadcast(Shared(cloudpickle.dumps(made)))
        except BaseException as error:
            self.peers.broadcast(Shared(error=f"rank 0 failed with {type(error).__name__}: {error}"))
            self.peers.flush(5.0)
            raise
        self.peers.flush(5.0)
        return made

    def receive(self, *kinds: type[Any]) -> Any:
        """Another rank: the next message of these kinds. LostFirst when rank 0 is gone."""
        while True:
            try:
                message, _ = self.channel.receive()
            except (EOFError, OSError):
                self.broken = "rank 0 is gone"
                raise LostFirst(
                    f"rank {self.rank}: rank 0 is gone: its process or its host has ended"
                ) from None
            if isinstance(message, kinds):
                return message
            if not isinstance(message, Beat) and isinstance(message, Refused):
                raise NotAdmitted(_listed(message.problems))


def _listed(problems: tuple[str, ...]) -> str:
    return "; ".join(problems)


def gather_facts(launch: Launch, backend: ClusterBackend) -> RankFacts:
    """What this rank says of itself. The launcher's local rank chooses its device, where there is one."""
    facts = common_facts(launch, backend.name)
    problem = backend.problem()
    settings = {name: os.environ[name] for name in backend.settings if name in os.environ}
    if problem or backend.device_type == "cpu":
        device = "" if problem else "cpu"
        return RankFacts(**facts, device=device, settings=settings, problem=problem)
    facts["versions"] |= backend.versions()
    unplaced = RankFacts(
        **facts,
        visible=os.environ.get(backend.visible_variable),
        count=backend.device_count(),
        settings=settings,
    )
    return unplaced if launch.local_rank is None else place_on_device(unplaced, launch.local_rank, backend)


def place_on_device(facts: RankFacts, local_rank: int, backend: ClusterBackend) -> RankFacts:
    """The facts with the rank's device, or with the reason that it has none."""
    from dataclasses import replace

    chosen = choose_device(local_rank, facts.count, facts.visible, backend.visible_variable)
    if isinstance(chosen, str):
        return replace(facts, problem=chosen)
    name, uuid = backend.describe(chosen.index)
    return replace(
        facts,
        device=f"{backend.device_type}:{chosen.index}",
        device_name=name,
        physical=chosen.physical,
        uuid=uuid,
    )


def _with_devices(ranks: list[RankFacts]) -> list[RankFacts]:
    """Ranks whose launcher gave them no local rank get the device of their place on the host."""
    from meshsim.worlds.cluster.backends import cluster_backend

    placed = []
    for fact, local_rank in zip(ranks, local_ranks(ranks), strict=True):
        waits = not fact.device and not fact.problem
        if waits:
            from dataclasses import replace

            backend = cluster_backend(fact.backend)
            chosen = choose_device(local_rank, fact.count, fact.visible, backend.visible_variable)
            fact = (
                replace(fact, problem=chosen)
                if isinstance(chosen, str)
                else replace(fact, device=f"{backend.device_type}:{chosen.index}", physical=chosen.physical)
            )
        placed.append(fact)
    return placed


def bind_device(device: torch.device) -> None:
    """Make ``device`` the process's current accelerator, before anything asks for one."""
    torch.accelerator.set_device_index(device.index)
    init = getattr(getattr(torch, device.type, None), "init", None)
    if init is not None:
        init()


@cache
def this_job() -> Job:
    """The job of this process: the first call meets the other ranks. CannotRun outside of a job."""
    launch = detect()
    if launch is None:
        raise CannotRun(why_no_job())
    return Job(launch)


def refuse(backend: ClusterBackend, text: str) -> None:
    """Tell the other ranks that this one can't take part in the next run, and why."""
    try:
        job = this_job()
        job.admit(backend)
        job.agree(RunFacts("", None, "", "", 0, "", refused=text))
    except (CannotRun, UsageError, LostFirst):
        return
