"""The bandwidth of each collective along each mesh axis, with the results checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from meshsim.context import RankContext
from meshsim.scenarios.mesh_axes import axes_by_group
from meshsim.smoke.programs.predictable import contribution, label, total, wrong
from meshsim.smoke.programs.timing import seconds_of

_WARM_UP = 2


@dataclass
class _Bench:
    """One size on one group. ``count`` elements are the whole array, divisible by the group's size."""

    group: dist.ProcessGroup
    place: int
    size: int
    count: int
    dtype: torch.dtype
    device: torch.device

    def give(self, member: int) -> torch.Tensor:
        return contribution(member, self.size, self.count, self.dtype, self.device)

    def total(self) -> torch.Tensor:
        return total(self.size, self.count, self.dtype, self.device)

    @property
    def block(self) -> int:
        return self.count // self.size

    def part(self, whole: torch.Tensor, member: int) -> torch.Tensor:
        return whole[member * self.block : (member + 1) * self.block]

    def labels(self, member: int, other: int = 0) -> torch.Tensor:
        return label(member, self.block, self.dtype, self.device, other)


Collective = Callable[[_Bench], tuple[Callable[[], Any], Callable[[], int]]]
"""Gives the call to be timed, and what counts the wrong elements after one call on fresh data."""


def _all_reduce(bench: _Bench) -> tuple[Callable[[], Any], Callable[[], int]]:
    buffer = bench.give(bench.place)

    def check() -> int:
        fresh = bench.give(bench.place)
        dist.all_reduce(fresh, group=bench.group)
        return wrong(bench.total(), fresh)

    # Summing again and again would overflow; the largest stays as it is and costs the same.
    return lambda: dist.all_reduce(buffer, dist.ReduceOp.MAX, group=bench.group), check


def _all_gather(bench: _Bench, *, in_place: bool) -> tuple[Callable[[], Any], Callable[[], int]]:
    output = torch.zeros(bench.count, dtype=bench.dtype, device=bench.device)
    source = bench.part(output, bench.place) if in_place else bench.labels(bench.place)
    source.copy_(bench.labels(bench.place))

    def call() -> None:
        dist.all_gather_single(output, source, group=bench.group)

    def check() -> int:
        call()
        return sum(wrong(bench.labels(other), bench.part(output, other)) for other in range(bench.size))

    return call, check


def _reduce_scatter(bench: _Bench, *, in_place: bool) -> tuple[Callable[[], Any], Callable[[], int]]:
    source = bench.give(bench.place)
    output = bench.part(source, bench.place) if in_place else bench.part(source, bench.place).clone()

    def call() -> None:
        dist.reduce_scatter_single(output, source, dist.ReduceOp.MAX, group=bench.group)

    def check() -> int:
        source.copy_(bench.give(bench.place))
        dist.reduce_scatter_single(output, source, group=bench.group)
        return wrong(bench.part(bench.total(), bench.place), output)

    return call, check


def _all_to_all(bench: _Bench) -> tuple[Callable[[], Any], Callable[[], int]]:
    source = torch.cat([bench.labels(bench.place, other) for other in range(bench.size)])
    output = torch.zeros_like(source)

    def call() -> None:
        dist.all_to_all_single(output, source, group=bench.group)

    def check() -> int:
        call()
        return sum(
            wrong(bench.labels(other, bench.place), bench.part(output, other)) for other in range(bench.size)
        )

    return call, check


def _broadcast(bench: _Bench) -> tuple[Callable[[], Any], Callable[[], int]]:
    buffer = label(bench.place, bench.count, bench.dtype, bench.device)

    def call() -> None:
        dist.broadcast(buffer, group=bench.group, group_src=0)

    def check() -> int:
        call()
        return wrong(label(0, bench.count, bench.dtype, bench.device), buffer)

    return call, check


_COLLECTIVES: tuple[tuple[str, bool, Collective], ...] = (
    ("all_reduce", True, _all_reduce),
    ("all_gather", False, lambda bench: _all_gather(bench, in_place=False)),
    ("all_gather", True, lambda bench: _all_gather(bench, in_place=True)),
    ("reduce_scatter", False, lambda bench: _reduce_scatter(bench, in_place=False)),
    ("reduce_scatter", True, lambda bench: _reduce_scatter(bench, in_place=True)),
    ("all_to_all", False, _all_to_all),
    ("broadcast", True, _broadcast),
)
"""Name, whether in place, and how: what torch's calls can do each way."""


def bandwidth(ctx: RankContext) -> list[dict[str, Any]]:
    """Times each collective along each mesh axis, and counts the elements that come out wrong.

    Parameters: ``sizes`` in bytes, ``dtype``, ``times`` (calls timed for each). Returns a row for each axis,
    collective and size: ``axis``, ``ranks``, ``op``, ``in_place``, ``bytes``, ``seconds`` of this rank's
    call, ``wrong``.
    """
    dtype: torch.dtype = getattr(torch, ctx.params["dtype"])
    rows = []
    for axes, group in axes_by_group(ctx.mesh):
        size = dist.get_world_size(group)
        if size == 1:
            continue
        for nbytes in ctx.params["sizes"]:
            count = max(1, nbytes // dtype.itemsize // size) * size
            bench = _Bench(group, dist.get_rank(group), size, count, dtype, ctx.device)
            for row in _measured(bench, int(ctx.params["times"])):
                rows.append({"axis": "=".join(axes), **row})
    return rows


def _measured(bench: _Bench, times: int) -> Iterator[dict[str, Any]]:
    for name, in_place, collective in _COLLECTIVES:
        call, check = collective(bench)
        for _ in range(_WARM_UP):
            call()
        dist.barrier(group=bench.group)
        seconds = seconds_of(bench.device, call, times)
        yield {
            "ranks": dist.get_process_group_ranks(bench.group),
            "op": name,
            "in_place": in_place,
            "bytes": bench.count * bench.dtype.itemsize,
            "seconds": seconds,
            "wrong": check(),
        }
