"""The scenario ``collectives``."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_equal
from meshsim.scenarios.mesh_axes import axes_by_group
from meshsim.scenarios.parameters import mistake

COUNT = 6
"""Elements that each rank has for each other one."""


def collectives(ctx: RankContext) -> list[str]:
    """Every collective on every mesh axis gives exactly what arithmetic says.

    The data are -1, 0 and 1 in a pattern of rank and position, so sums stay small and exact in any dtype and
    order of summing, at any number of ranks. Axes with the same ranks have one group, which is run once.
    Returns what was run.

    Parameter ``break``: ``max_for_sum`` reduces with the wrong operation.
    """
    reduce_op = dist.ReduceOp.SUM
    if mistake(ctx.params, "max_for_sum") == "max_for_sum":
        reduce_op = dist.ReduceOp.MAX
    done: list[str] = []
    for axes, group in axes_by_group(ctx.mesh):
        run = AxisRun(ctx, axes, group, reduce_op)
        for name, collective in COLLECTIVES.items():
            if run.backend == "hccl" and name in ("gather", "scatter"):
                continue  # HCCL has neither
            collective(run)
            done.append(f"{name} on {run.axis}")
    return done


class AxisRun:
    """One rank's part in the collectives of one axis."""

    def __init__(
        self,
        ctx: RankContext,
        axes: tuple[str, ...],
        group: dist.ProcessGroup,
        reduce_op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    ) -> None:
        self.ctx, self.axis, self.group, self.reduce_op = ctx, " = ".join(axes), group, reduce_op
        # From the plan, not from the group: what is expected must not depend on what is tested.
        self.ranks = ctx.mesh.plan.group(axes[0], ctx.rank)
        self.place, self.size = self.ranks.index(ctx.rank), len(self.ranks)
        self.backend = dist.get_backend(group)

    def data(self, place: int, count: int = COUNT, shift: int = 0) -> torch.Tensor:
        """What the member at ``place`` contributes; groups have different data."""
        positions = torch.arange(count) + place + shift + self.ranks[0]
        return (positions % 3 - 1).float().to(self.ctx.device)

    def blocks(self, place: int) -> torch.Tensor:
        """A block of ``COUNT`` for each member."""
        return torch.cat([self.data(place, shift=2 * other) for other in range(self.size)])

    def block(self, place: int, of: int) -> torch.Tensor:
        return self.data(place, shift=2 * of)

    def expect(self, name: str, expected: torch.Tensor, got: torch.Tensor) -> None:
        expect_equal(self.ctx, f"{name} on {self.axis}", expected, got)

    @property
    def roots(self) -> list[int]:
        """The first and the last member's places."""
        return sorted({0, self.size - 1})


def _all_reduce(run: AxisRun) -> None:
    everyone = torch.stack([run.data(place) for place in range(run.size)])
    operations = {
        "sum": (run.reduce_op, everyone.sum(0)),
        "max": (dist.ReduceOp.MAX, everyone.amax(0)),
        "min": (dist.ReduceOp.MIN, everyone.amin(0)),
        "product": (dist.ReduceOp.PRODUCT, everyone.prod(0)),
    }
    for dtype in (torch.float32, torch.int64):
        for name, (operation, expected) in operations.items():
            own = run.data(run.place).to(dtype)
            dist.all_reduce(own, op=operation, group=run.group)
            run.expect(f"all_reduce {name}", expected.to(dtype), own)


def _broadcast(run: AxisRun) -> None:
    for root in run.roots:
        own = run.data(run.place)
        dist.broadcast(own, src=run.ranks[root], group=run.group)
        run.expect("broadcast", run.data(root), own)


def _reduce(run: AxisRun) -> None:
    for root in run.roots:
        own = run.data(run.place)
        dist.reduce(own, dst=run.ranks[root], op=run.reduce_op, group=run.group)
        if run.place == root:
            run.expect("reduce", torch.stack([run.data(place) for place in range(run.size)]).sum(0), own)


def _all_gather(run: AxisRun) -> None:
    expected = [run.data(place) for place in range(run.size)]
    whole = run.data(0).new_empty(run.size * COUNT)
    dist.all_gather_single(whole, run.data(run.place), group=run.group)
    run.expect("all_gather_single", torch.cat(expected), whole)
    parts = [torch.empty_like(part) for part in expected]
    dist.all_gather(parts, run.data(run.place), group=run.group)
    run.expect("all_gather", torch.cat(expected), torch.cat(parts))


def _reduce_scatter(run: AxisRun) -> None:
    own = run.data(0).new_empty(COUNT)
    dist.reduce_scatter_single(own, run.blocks(run.place), op=run.reduce_op, group=run.group)
    expected = torch.stack([run.block(place, run.place) for place in range(run.size)]).sum(0)
    run.expect("reduce_scatter_single", expected, own)


def _all_to_all(run: AxisRun) -> None:
    got = run.data(0).new_empty(run.size * COUNT)
    dist.all_to_all_single(got, run.blocks(run.place), group=run.group)
    expected = torch.cat([run.block(place, run.place) for place in range(run.size)])
    run.expect("all_to_all_single", expected, got)


def _uneven_all_to_all(run: AxisRun) -> None:
    """The member at place i sends (i + j) % 3 elements to the one at place j: to some none."""

    def count(sender: int, receiver: int) -> int:
        return (sender + receiver) % 3

    def part(sender: int, receiver: int) -> torch.Tensor:
        return run.data(sender, count(sender, receiver), shift=receiver)

    sent = [part(run.place, other) for other in range(run.size)]
    expected = torch.cat([part(other, run.place) for other in range(run.size)])
    got = torch.empty_like(expected)
    dist.all_to_all_single(
        got,
        torch.cat(sent),
        [count(other, run.place) for other in range(run.size)],
        [len(one) for one in sent],
        group=run.group,
    )
    run.expect("uneven all_to_all_single", expected, got)


def _scatter(run: AxisRun) -> None:
    for root in run.roots:
        own = run.data(0).new_empty(COUNT)
        parts = [run.block(root, place) for place in range(run.size)] if run.place == root else None
        dist.scatter(own, parts, src=run.ranks[root], group=run.group)
        run.expect("scatter", run.block(root, run.place), own)


def _gather(run: AxisRun) -> None:
    for root in run.roots:
        parts = [run.data(0).new_empty(COUNT) for _ in range(run.size)] if run.place == root else None
        dist.gather(run.data(run.place), parts, dst=run.ranks[root], group=run.group)
        if parts is not None:
            expected = torch.cat([run.data(place) for place in range(run.size)])
            run.expect("gather", expected, torch.cat(parts))


def _ring(run: AxisRun) -> None:
    """To the next member, from the one before."""
    if run.size == 1:
        return
    got = run.data(0).new_empty(COUNT)
    after, before = (run.place + 1) % run.size, (run.place - 1) % run.size
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, run.data(run.place), run.ranks[after], run.group),
            dist.P2POp(dist.irecv, got, run.ranks[before], run.group),
        ]
    )
    for work in works:
        work.wait()
    run.expect("send and recv", run.data(before), got)


def _objects(run: AxisRun) -> None:
    gathered: list[object] = [None] * run.size
    dist.all_gather_object(gathered, {"place": run.place}, group=run.group)
    expect_equal(
        run.ctx,
        f"all_gather_object on {run.axis}",
        [{"place": place} for place in range(run.size)],
        gathered,
    )


def _barrier(run: AxisRun) -> None:
    dist.barrier(group=run.group)


COLLECTIVES: dict[str, Callable[[AxisRun], None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "uneven all_to_all": _uneven_all_to_all,
    "scatter": _scatter,
    "gather": _gather,
    "ring": _ring,
    "objects": _objects,
    "barrier": _barrier,
}
