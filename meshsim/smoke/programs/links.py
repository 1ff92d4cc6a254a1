"""The bandwidth between every two places (a rank for each host), all pairs of a round at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from meshsim.context import RankContext
from meshsim.smoke.programs.predictable import label, wrong
from meshsim.smoke.programs.timing import seconds_of


def rounds_of(places: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Rounds of pairs in which every two places meet once, and none is in two pairs of a round."""
    ring: list[int | None] = [*places] if len(places) % 2 == 0 else [*places, None]
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        opposite = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def links(ctx: RankContext) -> list[dict[str, Any]]:
    """Exchanges data between every two of ``places``, several times, and checks what arrives.

    Parameters: ``places`` (ranks), ``bytes``, ``times``. Returns this rank's rows: ``pair``, ``seconds`` of
    an exchange in both directions, ``wrong`` elements.
    """
    count = max(1, int(ctx.params["bytes"]) // 4)
    rows = []
    for pairs in rounds_of(ctx.params["places"]):
        pair = next((pair for pair in pairs if ctx.rank in pair), None)
        if pair is not None:
            rows.append(_exchange(ctx, pair, count, int(ctx.params["times"])))
        dist.barrier()
    return rows


def _exchange(ctx: RankContext, pair: tuple[int, int], count: int, times: int) -> dict[str, Any]:
    peer = pair[0] if ctx.rank == pair[1] else pair[1]
    mine = label(ctx.rank, count, torch.float32, ctx.device)
    theirs = torch.zeros_like(mine)

    def exchange() -> None:
        calls = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()

    exchange()
    seconds = seconds_of(ctx.device, exchange, times)
    return {
        "pair": list(pair),
        "seconds": seconds,
        "wrong": wrong(label(peer, count, torch.float32, ctx.device), theirs),
    }
