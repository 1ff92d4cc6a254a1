"""What a backend doesn't have is refused before the call, on every rank alike, with the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import torch

from meshsim.checker.capabilities import CallFacts, facts_of, unsupported
from meshsim.errors import UnsupportedCall
from meshsim.worlds.calls import Call

_C10D = "distributed_c10d.py"
_FUNCTIONAL = "_functional_collectives.py"
_BY_PARTS = frozenset({"", "SUM", "AVG", "PREMUL_SUM"})
_ACCELERATED = ("nccl", "hccl")


def _object_collective(frame: FrameType | None) -> str | None:
    """The object collective that a tensor call is part of."""
    while frame is not None:
        code = frame.f_code
        if "object" in code.co_name and code.co_filename.endswith(_C10D):
            return code.co_name
        frame = frame.f_back
    return None


def facts_of_call(call: Call, *, with_device: bool = False) -> CallFacts:
    """A call's facts with the layout of its tensors, and their device if asked: the trace keeps neither."""
    tensors = call.inputs if call.outputs is call.inputs else [*call.inputs, *call.outputs]
    known = facts_of(call.event)
    return CallFacts(
        op=known.op,
        dtype=_complex_dtype(known) or known.dtype,
        reduce_op=known.reduce_op,
        contiguous=all(tensor.layout is not torch.strided or tensor.is_contiguous() for tensor in tensors),
        ndim=known.ndim,
        device=tensors[0].device.type if with_device and tensors else "",
        any_source=known.any_source,
        sparse=any(tensor.is_sparse for tensor in tensors),
        to_self=known.to_self,
        even=_is_even(call),
    )


def _complex_dtype(known: CallFacts) -> str | None:
    """The dtype that a functional reduce-scatter was given, where it is complex.

    It hands on the real numbers behind it, also for what isn't done part by part: with PRODUCT gloo is
    silently wrong.
    """
    if known.reduce_op in _BY_PARTS or not known.op.startswith("reduce_scatter_tensor"):
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith(_FUNCTIONAL):
        frame = frame.f_back
    given = frame.f_locals.get("self") if frame is not None else None
    if isinstance(given, torch.Tensor) and given.is_complex():
        return str(given.dtype).removeprefix("torch.")
    return None


def _is_even(call: Call) -> bool:
    if call.event.op not in ("all_gather", "all_to_all"):
        return True
    return len({tensor.numel() for tensor in (*call.inputs, *call.outputs)}) <= 1


def refuser(backend: str, profile: str | None) -> Callable[[Call], None]:
    """A hook that raises :class:`UnsupportedCall` for what ``backend``, or the profile's backend, doesn't
    have.
    """

    known: dict[CallFacts, str | None] = {}

    def reason_for(facts: CallFacts) -> str | None:
        if facts not in known:
            known[facts] = unsupported(facts, backend) or (unsupported(facts, profile) if profile else None)
        return known[facts]

    def check(call: Call) -> None:
        event = call.event
        if event.internal:
            return
        # In a world of that backend a tensor's device counts; elsewhere everything is on CPU.
        reason = reason_for(facts_of_call(call, with_device=backend in _ACCELERATED))
        target = backend if backend in _ACCELERATED else profile
        if target is not None:
            # The tensors of an object collective are torch's own: what is wrong is the collective.
            name = _object_collective(sys._getframe(1))
            reason = (unsupported(CallFacts(op=name), target) if name else None) or reason
        if reason is not None:
            # The same text on every rank that does it; the verdict adds ranks and line.
            raise UnsupportedCall(reason)

    return check
