"""Setting a rank's recorder up for a run: its faults, the backend's limits, the checks of its buffers."""

from __future__ import annotations

from meshsim.faults import FaultInjector
from meshsim.worlds.base import RunRequest
from meshsim.worlds.buffers import buffer_check
from meshsim.worlds.injection import FaultActions, Injection
from meshsim.worlds.recording import Recorder
from meshsim.worlds.refusal import refuser


def prepare(recorder: Recorder, request: RunRequest, actions: FaultActions) -> None:
    """Make ``recorder`` refuse, inject and report what the request asks for, on a CPU backend with gloo's
    rules.
    """
    recorder.axis_of = request.plan.axis_of
    recorder.checks = (refuser("gloo", request.profile), buffer_check(recorder.findings.append))
    injector = FaultInjector(request.faults, recorder.rank, request.plan)
    if injector:
        recorder.injection = Injection(injector, actions)
