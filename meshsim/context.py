"""What a scenario is given on each rank."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshsim.errors import UsageError

if TYPE_CHECKING:
    import torch

    from meshlib import MeshContext
    from meshsim.rank_checks import RankChecks


@dataclass
class RankContext:
    """One rank's view of the run: where it stands, its mesh, its device, and the run's parameters."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    mesh: MeshContext = field(repr=False)
    seed: int
    params: Mapping[str, Any] = field(default_factory=dict)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("meshsim.rank"), repr=False)

    @property
    def check(self) -> RankChecks:
        """Checks between ranks: ``ctx.check.same(tensor, "dp")``, ``ctx.check.differs(batch, "dp")``."""
        from meshsim.rank_checks import RankChecks

        return RankChecks(self)


running: ContextVar[RankContext] = ContextVar("running")
"""The context of the rank whose scenario runs here; set by the worlds."""


def this_rank(asked_by: str) -> RankContext:
    """The context of the rank that runs here; UsageError outside of a scenario."""
    context = running.get(None)
    if context is None:
        raise UsageError(
            f"{asked_by} asks the ranks of a run, and none runs here: call it in a scenario or in the body "
            "of a mesh test, from the thread that the rank started in"
        )
    return context
