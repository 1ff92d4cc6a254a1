"""nccl-tests' conventions: algbw is the whole array's bytes over the time, busbw what the hardware moved."""

from __future__ import annotations


def algbw(nbytes: int, seconds: float) -> float:
    """Bytes a second. ``nbytes`` is the whole array: all_gather's output, reduce_scatter's input."""
    return nbytes / seconds if seconds > 0 else 0.0


def busbw_factor(op: str, ranks: int) -> float:
    """What algbw is multiplied by, so that the result doesn't depend on the number of ranks."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def busbw(op: str, nbytes: int, seconds: float, ranks: int) -> float:
    """Bytes a second over the busiest link of a perfect implementation."""
    return algbw(nbytes, seconds) * busbw_factor(op, ranks)
