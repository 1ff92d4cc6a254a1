"""Collectives that gradients flow through. Each one's backward is the collective that its forward calls for.

========================  =============================  =======================================
function                  forward                        backward
========================  =============================  =======================================
``gather``                all-gather                     reduce-scatter: every rank used the parts
``split_replicated``      own part, no communication     all-gather
``gather_replicated``     all-gather                     own part: every rank went on identically
``exchange_rows``         all-to-all                     all-to-all the other way
========================  =============================  =======================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Function


def gather(part: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    """The ranks' parts side by side along ``dim``. In backward the ranks' gradients of a part are summed."""
    return _apply(_Gather, part, group, dim)


def split_replicated(whole: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    """This rank's part of a tensor that all ranks hold alike. ``dim`` must divide by the number of ranks."""
    return _apply(_SplitReplicated, whole, group, dim)


def gather_replicated(part: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    """The ranks' parts side by side, for all ranks to go on alike: the inverse of ``split_replicated``."""
    return _apply(_GatherReplicated, part, group, dim)


def exchange_rows(
    rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Rows (first dim) to every rank of the group: ``sent[i]`` go to rank i, ``received[i]`` come from it."""
    return _apply(_ExchangeRows, rows, sent, received, group)


def _apply(function: type[Function], tensor: torch.Tensor, *options: Any) -> torch.Tensor:
    result: torch.Tensor = function.apply(tensor, *options)
    return result


def _all_gather(part: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    first = part.movedim(dim, 0).contiguous()
    whole = first.new_empty((first.shape[0] * group.size(), *first.shape[1:]))
    dist.all_gather_single(whole, first, group=group)
    return whole.movedim(0, dim)


def _reduce_scatter(whole: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    first = whole.movedim(dim, 0).contiguous()
    part = first.new_empty((first.shape[0] // group.size(), *first.shape[1:]))
    dist.reduce_scatter_single(part, first, group=group)
    return part.movedim(0, dim)


def _own_part(whole: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    return whole.chunk(group.size(), dim)[dist.get_rank(group)].contiguous()


def _all_to_all(
    rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    arrived = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(arrived, rows.contiguous(), list(received), list(sent), group=group)
    return arrived


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return _all_gather(part, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _reduce_scatter(grad, ctx.group, ctx.dim), None, None


class _SplitReplicated(Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return _own_part(whole, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _all_gather(grad, ctx.group, ctx.dim), None, None


class _GatherReplicated(Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return _all_gather(part, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _own_part(grad, ctx.group, ctx.dim), None, None


class _ExchangeRows(Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _all_to_all(grad, ctx.received, ctx.sent, ctx.group), None, None, None
