"""Assertions of the built-in scenarios: what differs, on which rank of which topology."""

from __future__ import annotations

from typing import Any

import torch

from meshsim.context import RankContext


def expect_equal(ctx: RankContext, what: str, expected: Any, got: Any) -> None:
    """Exactly equal; tensors in shape and every element."""
    same = torch.equal(expected, got) if isinstance(expected, torch.Tensor) else expected == got
    if not same:
        raise AssertionError(f"{what}: expected {_shown(expected)}, got {_shown(got)}, {_where(ctx)}")


def expect_close(ctx: RankContext, what: str, expected: Any, got: Any, tolerance: float = 1e-5) -> None:
    """Equal within ``tolerance``, relative to the largest expected element."""
    right, wrong = torch.as_tensor(expected), torch.as_tensor(got)
    right = right.to(wrong.device, wrong.dtype)
    if right.shape != wrong.shape:
        raise AssertionError(
            f"{what}: expected shape {list(right.shape)}, got {list(wrong.shape)}, {_where(ctx)}"
        )
    if right.numel() and not (right - wrong).abs().max() <= tolerance * right.abs().max():
        raise AssertionError(f"{what}: expected {_shown(right)}, got {_shown(wrong)}, {_where(ctx)}")


def _where(ctx: RankContext) -> str:
    return f"on rank {ctx.rank} of topology {ctx.mesh.plan.topology}"


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    flat = value.detach().flatten()
    text = ", ".join(f"{number:g}" for number in flat[:8].tolist())
    return f"{list(value.shape)}[{text}{', ...' if flat.numel() > 8 else ''}]"
