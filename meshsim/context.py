"""What a scenario is given on each rank."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from meshlib import MeshContext


@dataclass
class RankContext:
    """One rank's view of the run: where it stands, its mesh, its device, and the run's parameters."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    mesh: MeshContext
    seed: int
    params: Mapping[str, Any] = field(default_factory=dict)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("meshsim.rank"))
