"""Random numbers that depend on a seed and a purpose, not on what was drawn before."""

from __future__ import annotations

import zlib

import torch


def seeded_generator(seed: int, purpose: str) -> torch.Generator:
    """A CPU generator of its own for each pair of seed and purpose, the same in every process."""
    # Of a generator's seed torch uses the lower 32 bits only, so both are hashed into these.
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {purpose}".encode()))
