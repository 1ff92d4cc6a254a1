"""Carrying out the faults of a run at the calls where they fire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from meshsim.faults import Fault, FaultInjector, InjectedFault
from meshsim.worlds.calls import Call


@dataclass(frozen=True)
class FaultActions:
    """What differs from world to world: how a rank dies, hangs and comes late. Seconds for ``delay``."""

    crash: Callable[[int], None]
    hang: Callable[[int], None]
    delay: Callable[[int, float], None]


class Injection:
    """One rank's faults."""

    def __init__(self, injector: FaultInjector, actions: FaultActions) -> None:
        self._injector = injector
        self._actions = actions

    def before(self, call: Call) -> str | None:
        """Carry out what fires at this call. ``skip`` and ``duplicate`` are left to the caller, by name."""
        fault = self._injector.before(call.event, gives_tensor=_first_input(call) is not None)
        if fault is None:
            return None
        rank = call.event.rank
        if fault.action == "crash":
            self._actions.crash(rank)
        elif fault.action == "hang":
            self._actions.hang(rank)
        elif fault.action == "delay":
            self._actions.delay(rank, fault.seconds or 0.0)
        elif fault.action == "raise":
            raise InjectedFault(f"injected fault {fault} on rank {rank}, at {call.event.op}")
        elif fault.action in ("bitflip", "nan"):
            _damage(call, fault)
        return fault.action


def _damage(call: Call, fault: Fault) -> None:
    """Damage the first element that the rank sends, in its own tensor, as failing memory would."""
    tensor = _first_input(call)
    if tensor is None:
        return
    with torch.inference_mode():
        first = tensor[(slice(0, 1),) * tensor.ndim].reshape(-1) if tensor.ndim else tensor.view(1)
        if fault.action == "bitflip":
            damaged = first.clone()
            damaged.view(torch.uint8)[-1:].bitwise_xor_(0x40)
            first.copy_(damaged)
        elif tensor.is_floating_point() or tensor.is_complex():
            first.fill_(float("nan"))
        elif tensor.dtype is torch.bool:
            first.logical_not_()
        else:
            first.fill_(torch.iinfo(tensor.dtype).max)


def _first_input(call: Call) -> torch.Tensor | None:
    return next((t for t in call.inputs if t.numel() and t.layout is torch.strided), None)
