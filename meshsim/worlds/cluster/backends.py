"""The backends of a job: what each needs to be there, which device a rank gets, how a group starts."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from meshsim.torch_private import Store

_MODULES = {"gloo": "cpu", "nccl": "nccl", "hccl": "hccl"}


class ClusterBackend(Protocol):
    """One backend. Everything that is special to it is behind this."""

    name: str
    device_type: str
    averages: bool
    """Whether it has AVG; where it hasn't, a sum is divided by the number of ranks."""
    visible_variable: str
    """The environment variable that hides devices from a process; empty for CPUs."""
    settings: tuple[str, ...]
    """Environment variables that the preflight lists, and that must be the same on all ranks or unset."""
    start_timeout: float
    """Seconds for all ranks to join the default group."""

    def problem(self) -> str:
        """Why this host can't run it, in one line; empty when it can."""

    def versions(self) -> dict[str, str]:
        """Of the libraries that ranks must have in common."""

    def device_count(self) -> int: ...

    def describe(self, index: int) -> tuple[str, str]:
        """A device's model and UUID; empty where unknown."""

    def start_group(
        self,
        store: Store,
        group_rank: int,
        *,
        members: tuple[int, ...],
        name: str,
        timeout: timedelta,
        device: torch.device,
        address: str,
        options: Any = None,
    ) -> tuple[dist.ProcessGroup, Any]:
        """A group that c10d's tables don't know, and its backend object."""


def cluster_backend(name: str) -> ClusterBackend:
    """The backend of that name; importing it loads no library of the accelerator's."""
    backend: ClusterBackend = import_module(f"meshsim.worlds.cluster.{_MODULES[name]}").BACKEND
    return backend
