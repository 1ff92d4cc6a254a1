"""``meshsim.replay``: a recorded run, run again in any world and compared."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlib import MeshPlan
from meshsim.errors import UsageError
from meshsim.recordings.compare import Difference, compare
from meshsim.recordings.recording import Recording, read_recording
from meshsim.recordings.source import source_digest
from meshsim.result import RunResult

if TYPE_CHECKING:
    from meshsim.worlds.base import World


@dataclass
class ReplayResult:
    """A replay: ``result`` is the new run, ``differences`` are all that differs, first things first."""

    recording: Recording
    result: RunResult
    differences: list[Difference]

    @property
    def ok(self) -> bool:
        """Nothing differs. A recorded failure that comes again is the same, too."""
        return not self.differences and not self.result.not_run

    @property
    def first(self) -> Difference | None:
        """What differs first."""
        return self.differences[0] if self.differences else None

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "ok": self.ok,
            "differences": [difference.to_json() for difference in self.differences],
            "recorded_in": self.recording.backend,
            "run": self.result.to_json(),
        }

    def __str__(self) -> str:
        run = (
            f"{self.result.topology}: recorded in {self.recording.backend}, replayed in {self.result.backend}"
        )
        if self.result.not_run:
            return f"{run}: {self.result.verdict}"
        if self.ok:
            calls = sum(map(len, self.recording.trace))
            return (
                f"{run}: the same verdict ({self.result.verdict.kind.value}), "
                f"plan, returns of {self.result.world_size} ranks and {calls} calls"
            )
        others = len(self.differences) - 1
        more = f" (and {others} more difference{'s' if others > 1 else ''})" if others else ""
        return f"{run}: differs first in {self.differences[0]}{more}"


def replay(
    recording: str | os.PathLike[str] | Recording,
    *,
    backend: str | World = "fake",
    scenario: Callable[..., Any] | None = None,
    timeout: float | None = None,
    allow_changed: bool = False,
) -> ReplayResult:
    """Run a recorded run again in the world of ``backend`` and compare plan, verdict, trace and returns.

    ``scenario`` stands in for the recorded reference, for functions that only their caller can name.
    ``timeout`` is in seconds; without it the recorded one holds. ``UsageError`` for a file that isn't a
    recording of a known schema, a scenario that isn't there or whose source has changed (unless
    ``allow_changed``); ``CannotRun`` where this machine or job can't run it.
    """
    from meshsim.runner import build_request, run_request, world_of

    read = recording if isinstance(recording, Recording) else read_recording(recording)
    target = scenario if scenario is not None else find_scenario(read)
    if not allow_changed:
        _check_unchanged(read, target)
    world = world_of(backend)
    plan = _plan(read)
    request = build_request(
        target,
        plan,
        seed=read.seed,
        timeout=read.timeout if timeout is None else timeout,
        params=read.params,
        isolate=read.isolate,
        profile=read.profile,
        faults=read.faults,
        shuffle_reductions=read.shuffle_reductions,
    )
    result = run_request(request, world, name=read.name, topology=read.topology)
    share = getattr(world, "share", None)
    differences = share(lambda: compare(read, result)) if share is not None else compare(read, result)
    return ReplayResult(read, result, differences)


def find_scenario(recording: Recording) -> Callable[..., Any]:
    """The scenario that a recording names."""
    from meshsim.scenarios import load

    target = recording.target
    if target is None:
        raise UsageError(
            f"{_where(recording)} is of {recording.name!r}, a function that no file or module names; "
            "give it with meshsim.replay(..., scenario=function)"
        )
    path, colons, name = target.rpartition("::")
    if colons and not os.path.isfile(path) and recording.path is not None:
        beside = recording.path.absolute().parent / (path if not os.path.isabs(path) else Path(path).name)
        if beside.is_file():
            target = f"{beside}::{name}"
    try:
        return load(target)
    except UsageError as error:
        raise UsageError(f"{_where(recording)} can't be replayed here: {error}") from error


def _check_unchanged(recording: Recording, scenario: Callable[..., Any]) -> None:
    now = source_digest(scenario)
    if recording.digest is None or now == recording.digest:
        return
    raise UsageError(
        f"the source of scenario {recording.name!r} has changed since {_where(recording)} was made "
        f"({recording.digest[7:15]} then, {now[7:15] if now else 'no source'} now): record it again, "
        "or compare all the same with --allow-changed (allow_changed=True)"
    )


def _plan(recording: Recording) -> MeshPlan:
    """Built from the recorded content; a digest that differs is a difference to report, not an error."""
    content = {key: value for key, value in recording.plan.items() if key != "digest"}
    return MeshPlan.from_json(content)


def _where(recording: Recording) -> str:
    return str(recording.path) if recording.path is not None else "the recording"
