"""Data whose reduced value is exact at any number of ranks, in any dtype and in any order of summing.

Of each element at most eight members of the group contribute, each a whole number from 1 to 4: every partial
sum is at most 32, which float16, bfloat16 and int8 hold exactly. (All-ones data are exact in bfloat16 up to
256 ranks only.) Which members contribute moves from element to element, so that each member is tested.
"""

from __future__ import annotations

import torch

CONTRIBUTORS = 8
VALUES = 4


def contribution(
    member: int, size: int, count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """What ``member`` of ``size`` gives to each of ``count`` elements; 0 where it isn't a contributor."""
    places = torch.arange(count, device=device)
    distance = (member - places) % size
    value = 1 + (places + member) % VALUES
    return torch.where(distance < CONTRIBUTORS, value, torch.zeros_like(value)).to(dtype)


def total(size: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The sum of all members' contributions, without adding them up: a sum over at most eight of them."""
    places = torch.arange(count, device=device)
    added = torch.zeros_like(places)
    for step in range(min(CONTRIBUTORS, size)):
        added += 1 + (places + (places + step) % size) % VALUES
    return added.to(dtype)


def label(member: int, count: int, dtype: torch.dtype, device: torch.device, other: int = 0) -> torch.Tensor:
    """What ``member`` has for ``other`` where data are moved and not reduced; at most 100, exact anywhere."""
    return ((torch.arange(count, device=device) + 7 * member + 31 * other) % 101).to(dtype)


def wrong(expected: torch.Tensor, got: torch.Tensor) -> int:
    """How many elements differ: nccl-tests' #wrong. NaN is wrong."""
    return int((expected != got).sum().item())
