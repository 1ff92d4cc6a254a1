"""Sizes of the model and of its data, chosen so that they divide over every axis of a topology."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from meshlib import MeshPlan

IGNORED = -100
"""Label of a position that doesn't count towards the loss."""


@dataclass(frozen=True)
class TrainConfig:
    """One training job. Nothing here depends on the rank: the reference and all ranks share it."""

    seed: int
    dtype: torch.dtype
    layers: int
    heads: int
    mlp_size: int
    experts: int
    """0: each block has an MLP. Else each block has this many experts in its place."""
    vocabulary: int
    batch: int
    sequence: int
    microbatches: int
    """Into how many parts a pipeline cuts a rank's samples."""
    hidden: int = 8
    head_dim: int = 2
    expert_size: int = 4
    experts_per_token: int = 2
    norm_eps: float = 1e-6
    steps: int = 3
    learning_rate: float = 0.2
    momentum: float = 0.9

    @classmethod
    def of_plan(
        cls, plan: MeshPlan, *, seed: int = 0, dtype: torch.dtype = torch.float64, schedule: str = "GPipe"
    ) -> TrainConfig:
        """As small as a topology allows: one block a stage, two samples a dp rank, one head a tp rank."""
        dp, cp, tp, pp, ep = (plan.size(axis) for axis in ("dp", "cp", "tp", "pp", "ep"))
        microbatches = max(2, pp) if schedule == "1F1B" else 2
        return cls(
            seed=seed,
            dtype=dtype,
            layers=pp,
            heads=_multiple_of(tp, at_least=2),
            mlp_size=_multiple_of(tp, at_least=8),
            experts=2 * ep if ep > 1 else 0,
            vocabulary=_multiple_of(tp, at_least=12),
            batch=dp * microbatches,
            sequence=_multiple_of(cp * tp, at_least=6),
            microbatches=microbatches,
        )


def _multiple_of(size: int, *, at_least: int) -> int:
    return -(-at_least // size) * size
