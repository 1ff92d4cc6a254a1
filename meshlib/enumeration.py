"""Every topology of a world size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from meshlib.dims import ParallelDims, checked_world_size
from meshlib.errors import TopologyError, UnknownAxis
from meshlib.integers import divisors
from meshlib.size_rules import SIZE_AXES

_DEFAULT_AXES = ("dp", "dp_replicate", "cp", "tp", "pp", "ep")


def topologies(world_size: int, axes: str | Iterable[str] | None = None) -> Iterator[ParallelDims]:
    """Every valid topology of ``world_size`` ranks, each once, simplest first.

    ``axes`` are the axes that may be above 1; by default dp, dp_replicate, cp, tp, pp and ep. ``dp_shard``
    means the same choice as ``dp_replicate``: one fixes the other. ``edp_shard`` is left at its default
    unless it is named.

    A topology is in canonical form: only sizes above 1 are set, ``dp_shard`` never (it follows from
    ``dp_replicate``), and the one rank's topology is ``dp=1``; its text is ``plan.topology``. The order is
    by the number of axes that are set, then by the axes, then by the sizes.
    """
    world = checked_world_size(world_size)
    chosen = _checked_axes(axes)
    found = list(_combinations(world, chosen))
    found.sort(
        key=lambda sizes: (len(sizes), [SIZE_AXES.index(axis) for axis in sizes], list(sizes.values()))
    )
    for sizes in found:
        yield ParallelDims(**{f"{axis}_size": size for axis, size in (sizes or {"dp": 1}).items()})


def _checked_axes(axes: str | Iterable[str] | None) -> frozenset[str]:
    if axes is None:
        return frozenset(_DEFAULT_AXES)
    names = [axes] if isinstance(axes, str) else list(axes)
    unknown = [name for name in names if name not in SIZE_AXES]
    if unknown:
        raise UnknownAxis(f"unknown axis {', '.join(map(repr, unknown))}; known are {', '.join(SIZE_AXES)}")
    if not names:
        raise TopologyError(f"axes is empty; name at least one of {', '.join(SIZE_AXES)}")
    return frozenset("dp_replicate" if name == "dp_shard" else name for name in names)


def _combinations(world: int, axes: frozenset[str]) -> Iterator[dict[str, int]]:
    def sizes_of(axis: str, span: int) -> tuple[int, ...]:
        return divisors(span) if axis in axes else (1,)

    for cp, tp, pp in product(sizes_of("cp", world), sizes_of("tp", world), sizes_of("pp", world)):
        if world % (cp * tp * pp):
            continue
        dp = world // (cp * tp * pp)
        if dp > 1 and "dp" not in axes:
            continue
        for replicate in sizes_of("dp_replicate", dp * cp):
            for ep in sizes_of("ep", dp * cp * tp):
                for edp_shard in sizes_of("edp_shard", dp * cp * tp // ep):
                    sizes = {
                        "dp": dp,
                        "dp_replicate": replicate,
                        "cp": cp,
                        "tp": tp,
                        "pp": pp,
                        "ep": ep,
                        "edp_shard": edp_shard,
                    }
                    yield {axis: size for axis, size in sizes.items() if size > 1}
