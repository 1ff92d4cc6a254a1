"""The values of collectives: who gets what, from the calls of all members. Plain tensor arithmetic, no
scheduling.

Reductions go in group-rank order in the tensors' own dtype, as gloo's do, unless another order is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from meshsim.worlds.calls import Call, Tensors

Delivery = list[tuple[torch.Tensor, torch.Tensor]]
"""For one rank: pairs of a tensor of that rank and the value it gets."""

_IN_PLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "SUM": torch.Tensor.add_,
    "AVG": torch.Tensor.add_,
    "PRODUCT": torch.Tensor.mul_,
    "MIN": lambda total, other: torch.minimum(total, other, out=total),
    "MAX": lambda total, other: torch.maximum(total, other, out=total),
    "BAND": torch.Tensor.bitwise_and_,
    "BOR": torch.Tensor.bitwise_or_,
    "BXOR": torch.Tensor.bitwise_xor_,
}


def reduced(
    tensors: Sequence[torch.Tensor], reduce_op: str, order: Sequence[int] | None = None
) -> torch.Tensor:
    """The element-wise reduction, a new tensor. ``order`` is a permutation of the tensors."""
    if order is not None:
        tensors = [tensors[at] for at in order]
    if tensors[0].is_sparse:
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total + tensor
        return total / len(tensors) if reduce_op == "AVG" else total
    total = tensors[0].clone(memory_format=torch.contiguous_format)
    step = _IN_PLACE[reduce_op]
    for tensor in tensors[1:]:
        # Elements are paired by position, not by shape: c10d only looks at the count.
        step(total, tensor if tensor.shape == total.shape else tensor.reshape(total.shape))
    return total.div_(len(tensors)) if reduce_op == "AVG" else total


def deliveries(calls: list[Call], order: Sequence[int] | None = None) -> list[Delivery]:
    """What each member of the group is to receive, in group-rank order."""
    return _KERNELS[calls[0].event.op](calls, order)


def _all_reduce(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    reduce_op = calls[0].event.reduce_op
    totals = [reduced(tensors, reduce_op, order) for tensors in _transposed([call.inputs for call in calls])]
    return [list(zip(call.outputs, totals, strict=True)) for call in calls]


def _reduce(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    found: list[Delivery] = [[] for _ in calls]
    root = _root(calls)
    reduce_op = calls[0].event.reduce_op
    for at, tensors in enumerate(_transposed([call.inputs for call in calls])):
        found[root].append((calls[root].outputs[at], reduced(tensors, reduce_op, order)))
    return found


def _broadcast(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    root = _root(calls)
    source = calls[root].inputs
    return [
        [] if at == root else list(zip(call.outputs, source, strict=True)) for at, call in enumerate(calls)
    ]


def _all_gather(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    # Several inputs a rank (the coalesced form) come back rank by rank.
    sources = [tensor for call in calls for tensor in call.inputs]
    return [list(zip(call.outputs, sources, strict=True)) for call in calls]


def _all_gather_into_tensor(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    found: list[Delivery] = []
    for call in calls:
        delivery: Delivery = []
        for at, output in enumerate(call.outputs):
            pieces = _pieces(output, len(calls))
            delivery.extend((piece, other.inputs[at]) for piece, other in zip(pieces, calls, strict=True))
        found.append(delivery)
    return found


def _gather(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    found: list[Delivery] = [[] for _ in calls]
    root = _root(calls)
    found[root] = [(output, call.inputs[0]) for output, call in zip(calls[root].outputs, calls, strict=True)]
    return found


def _scatter(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    source = calls[_root(calls)].inputs
    return [[(call.outputs[0], piece)] for call, piece in zip(calls, source, strict=True)]


def _reduce_scatter(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    reduce_op = calls[0].event.reduce_op
    return [
        [(call.outputs[0], reduced([other.inputs[at] for other in calls], reduce_op, order))]
        for at, call in enumerate(calls)
    ]


def _reduce_scatter_tensor(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    reduce_op = calls[0].event.reduce_op
    found: list[Delivery] = [[] for _ in calls]
    for at, sources in enumerate(_transposed([call.inputs for call in calls])):
        pieces = _pieces(reduced(sources, reduce_op, order), len(calls))
        for rank, call in enumerate(calls):
            found[rank].append((call.outputs[at], pieces[rank]))
    return found


def _all_to_all_single(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    sources = [_parts(call.inputs[0], _split_sizes(call, 0)) for call in calls]
    found: list[Delivery] = []
    for rank, call in enumerate(calls):
        places = _parts(call.outputs[0], _split_sizes(call, 1))
        found.append([(place, parts[rank]) for place, parts in zip(places, sources, strict=True)])
    return found


def _all_to_all(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    return [
        [(output, other.inputs[rank]) for output, other in zip(call.outputs, calls, strict=True)]
        for rank, call in enumerate(calls)
    ]


def _nothing(calls: list[Call], order: Sequence[int] | None) -> list[Delivery]:
    return [[] for _ in calls]


_KERNELS: dict[str, Callable[[list[Call], Sequence[int] | None], list[Delivery]]] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_coalesced": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_into_tensor_coalesced": _all_gather_into_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_tensor,
    "all_to_all_single": _all_to_all_single,
    "all_to_all": _all_to_all,
    "barrier": _nothing,
    "monitored_barrier": _nothing,
}


def _root(calls: list[Call]) -> int:
    root = calls[0].root
    if root is None:
        raise AssertionError(f"{calls[0].event.op} without a root")
    return root


def _transposed(lists: list[Tensors]) -> list[Tensors]:
    return [list(tensors) for tensors in zip(*lists, strict=True)]


def _pieces(tensor: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """``tensor`` as ``parts`` flat views of equal length, in memory order."""
    flat = tensor.view(-1)
    length = flat.numel() // parts
    return [flat.narrow(0, at * length, length) for at in range(parts)]


def _split_sizes(call: Call, side: int) -> tuple[int, ...]:
    if call.event.splits is None:
        raise AssertionError("all_to_all_single without splits")
    return call.event.splits[side]


def _parts(tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Flat views of ``tensor``, cut along the first dimension."""
    row = math.prod(tensor.shape[1:])
    flat = tensor.view(-1)
    found, at = [], 0
    for size in sizes:
        found.append(flat.narrow(0, at * row, size * row))
        at += size
    return found


def write(delivery: Delivery) -> None:
    """Put the values where they belong."""
    for place, value in delivery:
        if place.is_sparse or place.shape == value.shape:
            place.copy_(value)
        else:
            place.copy_(value.reshape(place.shape))


def kept(delivery: Delivery) -> Delivery:
    """The same delivery with values of its own, for a rank that takes them later."""
    return [(place, value.clone()) for place, value in delivery]
