"""What is wrong with a call's own tensors: memory that overlaps, or isn't contiguous where nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from meshsim.checker.kinds import severity_of
from meshsim.checker.wording import group_name, site_name
from meshsim.verdict import Finding, VerdictKind
from meshsim.worlds.calls import Call

# gloo reads and writes these calls' tensors as if they were contiguous (pytorch#192920).
_LAYOUT_NOT_CHECKED = frozenset({"all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "scatter"})


def buffer_check(report: Callable[[Finding], None]) -> Callable[[Call], None]:
    """A hook that reports what is wrong with a call's tensors."""

    def check(call: Call) -> None:
        finding = None if call.event.internal else buffer_finding(call)
        if finding is not None:
            report(finding)

    return check


def buffer_finding(call: Call) -> Finding | None:
    """The first thing wrong with the tensors of a call; None when nothing is."""
    event = call.event
    if event.op in _LAYOUT_NOT_CHECKED:
        for tensor in (*call.inputs, *call.outputs):
            if tensor.layout is torch.strided and not tensor.is_contiguous():
                return _finding(
                    call,
                    VerdictKind.NON_CONTIGUOUS_BUFFER,
                    f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} that isn't "
                    "contiguous: gloo takes its memory as it lies and corrupts it, NCCL refuses it",
                )
    overlap = _overlap(call.outputs)
    if overlap is not None:
        first, second = overlap
        return _finding(
            call, VerdictKind.OVERLAPPING_BUFFERS, f"results {first} and {second} that share memory"
        )
    return None


def _finding(call: Call, kind: VerdictKind, what: str) -> Finding:
    event = call.event
    return Finding(
        kind,
        f"rank {event.rank} gives {event.op} on {group_name(event)} at {site_name(event.site)} {what}",
        ranks=(event.rank,),
        details={"call": event.to_json()},
        severity=severity_of(kind),
    )


def _overlap(tensors: Sequence[torch.Tensor]) -> tuple[int, int] | None:
    """Positions of two contiguous tensors that share memory."""
    if len(tensors) < 2:
        return None
    extents = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(), at)
        for at, tensor in enumerate(tensors)
        if tensor.layout is torch.strided and tensor.numel() and tensor.is_contiguous()
    )
    for (_, end, first), (start, _, second) in pairwise(extents):
        if start < end:
            return min(first, second), max(first, second)
    return None
