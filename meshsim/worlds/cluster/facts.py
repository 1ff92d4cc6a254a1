"""What a rank tells the others of itself before the first collective."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshsim.worlds.cluster.launch import Launch

HOST_VARIABLE = "MESHSIM_HOST"
"""The host's name in reports, where the system's own says nothing, as in pods."""


@dataclass(frozen=True)
class RankFacts:
    """One rank: where it is and what it runs. ``problem`` is why it can't run, in one line."""

    rank: int
    host: str
    pid: int
    launcher: str
    backend: str
    local_rank: int | None
    local_world_size: int | None
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    """Such as ``cuda:1``; ``cpu`` for gloo."""
    device_name: str = ""
    physical: str = ""
    """The device as the host knows it: its index or UUID, from ``CUDA_VISIBLE_DEVICES`` or its like."""
    uuid: str = ""
    visible: str | None = None
    count: int = 0
    """How many devices the process sees."""
    settings: dict[str, str] = field(default_factory=dict)
    """Environment variables of the backend that are set."""
    problem: str = ""

    @property
    def place(self) -> str:
        """For reports: ``host a, cuda:1 (physical 6)``."""
        physical = (
            f" (physical {self.physical})"
            if self.physical and self.physical != self.device.partition(":")[2]
            else ""
        )
        return f"host {self.host}, {self.device or 'no device'}{physical}"


@dataclass(frozen=True)
class RunFacts:
    """What a rank is about to run; it must be the same on all."""

    scenario: str
    source: str | None
    plan: str
    """The plan's digest."""
    topology: str
    seed: int
    params: str
    refused: str = ""
    """Why this rank can't take part at all."""


def host_name() -> str:
    """This host's name, as reports give it."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def common_facts(launch: Launch, backend: str) -> dict[str, Any]:
    """What every rank knows, whatever its backend."""
    from importlib.metadata import version

    import torch

    return {
        "rank": launch.rank,
        "host": host_name(),
        "pid": os.getpid(),
        "launcher": launch.launcher,
        "backend": backend,
        "local_rank": launch.local_rank,
        "local_world_size": launch.local_world_size,
        "versions": {
            "meshsim": version("meshsim"),
            "torch": torch.__version__,
            "Python": platform.python_version(),
        },
    }
