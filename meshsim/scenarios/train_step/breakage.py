"""Mistakes to make on purpose, to see that the scenario finds them."""

from __future__ import annotations

from enum import Enum


class Breakage(Enum):
    """The values of the parameter ``break``."""

    NOTHING = "nothing"
    GRAD_MEAN_OVER_DP = "grad_mean_over_dp"
    """FSDP over dp alone, so cp ranks keep their own gradients. Wrong as soon as cp is above 1."""
    NORM_COUNTS_REPLICATED = "norm_counts_replicated"
    """The gradient norm counts what is replicated over tp once a tp rank. Wrong as soon as tp is above 1."""
    EXPERTS_NOT_REDUCED = "experts_not_reduced"
    """FSDP of the experts over edp_shard alone: their replicas drift. Wrong when edp_replicate is above 1."""
    LOCAL_CAUSAL_MASK = "local_causal_mask"
    """The causal mask forgets where a rank's positions begin. Wrong as soon as cp is above 1."""
