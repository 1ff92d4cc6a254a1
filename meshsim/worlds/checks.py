"""Setting a rank's recorder up for a run: its faults, the backend's limits, the checks of its buffers."""

from __future__ import annotations

from collections.abc import Callable

from meshsim.faults import FaultInjector
from meshsim.worlds.base import RunRequest
from meshsim.worlds.buffers import buffer_check
from meshsim.worlds.calls import Call
from meshsim.worlds.injection import FaultActions, Injection
from meshsim.worlds.recorder import Recorder
from meshsim.worlds.refusal import refuser


def _meeting(recorder: Recorder) -> Callable[[Call], None]:
    """A hook that looks for memory that calls under way still need."""

    def check(call: Call) -> None:
        event = call.event
        if event.internal:
            return
        # What a broadcast finds in the buffers that it fills doesn't matter.
        filled = event.op == "broadcast" and event.root != event.rank
        recorder.watch.meet(event, () if filled else call.inputs, call.outputs)

    return check


def prepare(
    recorder: Recorder,
    request: RunRequest,
    actions: FaultActions,
    *,
    backend: str = "gloo",
    axis_of: Callable[[tuple[int, ...]], str] | None = None,
) -> None:
    """Make ``recorder`` refuse, inject and report what the request asks for, by the rules of ``backend``.

    ``axis_of`` names a group by its mesh axis; ranks of one process can share one that remembers.
    """
    recorder.axis_of = axis_of or request.plan.axis_of
    recorder.checks = (
        refuser(backend, request.profile),
        buffer_check(recorder.findings.append),
        _meeting(recorder),
    )
    injector = FaultInjector(request.faults, recorder.rank, request.plan)
    if injector:
        recorder.injection = Injection(injector, actions)
