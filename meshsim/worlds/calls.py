"""One c10d call in one form for all its spellings, and what its arguments say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from meshsim.trace import TraceEvent

Tensors = list[torch.Tensor]

POINT_TO_POINT = frozenset({"send", "recv"})


def is_deferred(event: TraceEvent) -> bool:
    """Whether the caller may go on before the result is there. isend and send look the same from here."""
    return event.async_op or event.op in POINT_TO_POINT


@dataclass(slots=True)
class Call:
    """One c10d call, in one form for all its spellings.

    ``inputs`` is what this rank contributes, ``outputs`` where its results go, as lists of tensors: for
    ``gather``, ``all_gather``, ``scatter``, ``reduce_scatter`` and ``all_to_all`` the list form has one
    tensor a rank. ``root`` and ``peer`` are group ranks. ``method`` and ``arguments`` are the c10d call
    itself.
    """

    event: TraceEvent
    method: str
    arguments: tuple[Any, ...]
    inputs: Tensors = field(default_factory=list)
    outputs: Tensors = field(default_factory=list)
    root: int | None = None
    peer: int | None = None


def as_list(tensors: torch.Tensor | Sequence[torch.Tensor]) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def flat(lists: Sequence[Any]) -> Tensors:
    """``[[a, b]]`` or ``[a, b]`` as ``[a, b]``."""
    flat: Tensors = []
    for item in lists:
        flat.extend([item] if isinstance(item, torch.Tensor) else item)
    return flat


_DTYPE_NAMES: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


def tensor_facts(tensors: Tensors) -> dict[str, Any]:
    if not tensors:
        return {}
    return {
        "dtype": dtype_name(tensors[0].dtype),
        "shapes": tuple(tuple(t.shape) for t in tensors),
        "numel": sum(t.numel() for t in tensors),
    }


def reduce_op_name(reduce_op: Any) -> str:
    """``SUM`` for ``ReduceOp.SUM``, whichever of c10d's two types it comes as."""
    kind = getattr(reduce_op, "op", reduce_op)
    return str(kind).rsplit(".", 1)[-1]


def options_of(opts: Any, kind: type[Any]) -> Any:
    """c10d's options object; c10d also takes a bare reduce op in its place."""
    if isinstance(opts, kind):
        return opts
    made = kind()
    if opts is not None:
        made.reduceOp = opts
    return made


def split_sizes(tensor: torch.Tensor, given: Sequence[int], parts: int) -> tuple[int, ...]:
    """Split sizes along the first dimension; an empty list means equal parts, as c10d has it."""
    if given:
        return tuple(given)
    rows = tensor.shape[0] if tensor.ndim else 1
    return (rows // parts,) * parts if rows % parts == 0 else ()
