"""What carries a rank's calls on one group: the fake world's exchange, or torch's own backend."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from meshsim.torch_private import Store
from meshsim.worlds.calls import Call


class Transport(Protocol):
    """Carries the calls of one rank on one group."""

    def start(self, call: Call) -> dist.Work:
        """Begin the call. Never blocks, as far as the backend allows it."""

    def backend_for(self, device: torch.device) -> Any:
        """What ``group._get_backend(device)`` gives: it answers ``options._timeout`` and ``name()``."""

    def close(self) -> None:
        """Give up the group on this rank."""


class GroupFactory(Protocol):
    """How a world makes the transport of a group."""

    def __call__(
        self, members: tuple[int, ...], name: str, group_rank: int, store: Store, timeout: timedelta
    ) -> Transport: ...
