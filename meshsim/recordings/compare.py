"""What differs between a recording and a run, first things first: plan, verdict, trace, returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from meshsim.recordings.recording import COMPARED, Recording, call_json
from meshsim.recordings.values import differences
from meshsim.reports.values import to_json_value
from meshsim.result import RunResult
from meshsim.verdict import VerdictKind


@dataclass(frozen=True)
class Difference:
    """One thing that differs. ``rank`` is None where it isn't one rank's; ``call`` counts from 0."""

    what: str
    """``plan``, ``verdict``, ``trace`` or ``returns``."""
    text: str
    rank: int | None = None
    call: int | None = None

    def __str__(self) -> str:
        rank = f", rank {self.rank}" if self.rank is not None else ""
        call = f", call {self.call + 1}" if self.call is not None else ""
        return f"{self.what}{rank}{call}: {self.text}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(recording: Recording, result: RunResult) -> list[Difference]:
    """All differences; the first in the list is what differs first."""
    return [
        *_plans(recording, result),
        *_verdicts(recording, result),
        *_traces(recording, result),
        *_returns(recording, result),
    ]


def _plans(recording: Recording, result: RunResult) -> Iterator[Difference]:
    before, now = recording.plan["digest"], result.plan.digest
    if before != now:
        yield Difference(
            "plan", f"digest {before[:16]} was recorded, this meshlib makes {now[:16]} of the same sizes"
        )


def _verdicts(recording: Recording, result: RunResult) -> Iterator[Difference]:
    before, now = recording.verdict, result.verdict
    if before["kind"] != now.kind.value:
        yield Difference("verdict", f"{_told(before)} was recorded, {now} came now")
    elif tuple(before["ranks"]) != tuple(now.ranks):
        yield Difference(
            "verdict", f"{now.kind.value} of ranks {before['ranks']} was recorded, of {list(now.ranks)} now"
        )


def _told(verdict: dict[str, Any]) -> str:
    return f"{verdict['kind']} ({verdict['summary']})" if verdict["summary"] else str(verdict["kind"])


def _traces(recording: Recording, result: RunResult) -> list[Difference]:
    """Each rank's first difference, the earliest call first.

    How far ranks came before a failed run was ended depends on the world, so of a failed run the calls that
    both have are compared.
    """
    passed = recording.verdict["kind"] == VerdictKind.PASSED.value
    found = []
    for rank, before in enumerate(recording.trace):
        now = [call_json(event) for event in result.trace[rank] if not event.internal]
        difference = _first_difference(rank, before, now, whole=passed)
        if difference is not None:
            found.append(difference)
    return sorted(found, key=lambda difference: (difference.call or 0, difference.rank or 0))


def _first_difference(
    rank: int, before: list[dict[str, Any]], now: list[dict[str, Any]], *, whole: bool
) -> Difference | None:
    for at, (old, new) in enumerate(zip(before, now, strict=False)):
        fields = [name for name in COMPARED if old.get(name) != new.get(name)]
        if fields:
            return Difference("trace", _calls_differ(fields, old, new), rank, at)
    shared = min(len(before), len(now))
    if not whole or len(before) == len(now):
        return None
    if len(before) > shared:
        return Difference(
            "trace", f"{_call_text(before[shared])} was recorded, nothing came now", rank, shared
        )
    return Difference("trace", f"nothing was recorded, {_call_text(now[shared])} came now", rank, shared)


def _calls_differ(fields: list[str], old: dict[str, Any], new: dict[str, Any]) -> str:
    if "op" in fields:
        return f"{_call_text(old)} was recorded, {_call_text(new)} came now"
    told = "; ".join(f"{name} was {old.get(name)!r}, now {new.get(name)!r}" for name in fields[:3])
    return f"{_call_text(new)}: {told}"


def _call_text(call: dict[str, Any]) -> str:
    group = call.get("axis") or f"ranks {call['group']}"
    site = f" at {call['site']}" if "site" in call else ""
    return f"{call['op']} on {group}{site}"


def _returns(recording: Recording, result: RunResult) -> Iterator[Difference]:
    for rank, before in enumerate(recording.returns):
        for text in differences(before, to_json_value(result.returns[rank])):
            yield Difference("returns", text, rank)
            break
