"""A sequence of collectives as data: a scenario that knows its own right answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from meshlib import MeshPlan
    from meshsim.context import RankContext

OPS = ("barrier", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
REDUCE_OPS = ("sum", "max", "min")

Numbers = list[int]
_REDUCE: dict[str, Callable[[tuple[int, ...]], int]] = {"sum": sum, "max": max, "min": min}


@dataclass(frozen=True)
class CollectiveStep:
    """One call that every rank makes on its group along ``axis``. ``count`` elements a member and part."""

    op: str
    axis: str = "world"
    count: int = 1
    dtype: str = "float32"
    reduce_op: str = "sum"
    asynchronous: bool = False


@dataclass(frozen=True)
class CollectiveProgram:
    """Called on a rank, makes its calls in order. All data are small whole numbers, exact in every dtype."""

    topology: str
    steps: tuple[CollectiveStep, ...]

    def __call__(self, context: RankContext) -> list[Numbers]:
        return [_run(context, number, step) for number, step in enumerate(self.steps)]

    def expected(self, rank: int) -> list[Numbers]:
        """What the call returns on ``rank``, by hand."""
        from meshsim.topologies import build_plan

        plan = build_plan(self.topology)
        return [_expected(plan, rank, number, step) for number, step in enumerate(self.steps)]


def _input(rank: int, number: int, length: int) -> Numbers:
    return [(3 * rank + 5 * number + 2 * place) % 4 for place in range(length)]


def _length(step: CollectiveStep, size: int) -> int:
    return step.count * size if step.op in ("reduce_scatter", "all_to_all") else step.count


def _expected(plan: MeshPlan, rank: int, number: int, step: CollectiveStep) -> Numbers:
    group = plan.group(step.axis, rank)
    mine = group.index(rank)
    inputs = [_input(member, number, _length(step, len(group))) for member in group]
    part = slice(mine * step.count, (mine + 1) * step.count)
    if step.op == "barrier":
        return []
    if step.op == "broadcast":
        return inputs[0]
    if step.op == "all_gather":
        return [value for values in inputs for value in values]
    if step.op == "all_to_all":
        return [value for values in inputs for value in values[part]]
    reduced = [_REDUCE[step.reduce_op](column) for column in zip(*inputs, strict=True)]
    return reduced if step.op == "all_reduce" else reduced[part]


def _run(context: RankContext, number: int, step: CollectiveStep) -> Numbers:
    import torch
    import torch.distributed as dist

    group = None if step.axis == "world" else context.mesh.device_mesh.get_group(step.axis)
    size = dist.get_world_size(group)
    values = _input(context.rank, number, _length(step, size))
    tensor = torch.tensor(values, dtype=getattr(torch, step.dtype), device=context.device)
    result, work = _call(step, tensor, group, size)
    if work is not None:
        work.wait()
    return [] if result is None else [int(value) for value in result.tolist()]


def _call(step: CollectiveStep, tensor: torch.Tensor, group: Any, size: int) -> tuple[Any, Any]:
    import torch.distributed as dist

    later = step.asynchronous
    reduce_op = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[step.reduce_op]
    if step.op == "barrier":
        return None, dist.barrier(group, async_op=later)
    if step.op == "broadcast":
        return tensor, dist.broadcast(tensor, group=group, group_src=0, async_op=later)
    if step.op == "all_reduce":
        return tensor, dist.all_reduce(tensor, reduce_op, group=group, async_op=later)
    if step.op == "all_gather":
        whole = tensor.new_empty(size * step.count)
        return whole, dist.all_gather_into_tensor(whole, tensor, group=group, async_op=later)
    if step.op == "reduce_scatter":
        part = tensor.new_empty(step.count)
        return part, dist.reduce_scatter_tensor(part, tensor, reduce_op, group=group, async_op=later)
    received = tensor.new_empty(len(tensor))
    return received, dist.all_to_all_single(received, tensor, group=group, async_op=later)
