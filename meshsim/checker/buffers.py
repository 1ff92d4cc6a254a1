"""What worlds see of buffers: the same line of code on several ranks is one finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshsim.checker.compare import CallPart, details_of
from meshsim.checker.wording import named_ranks, verb
from meshsim.trace import CallState, SourceLine, TraceEvent
from meshsim.verdict import Finding, VerdictKind

_OF_BUFFERS = frozenset(
    {
        VerdictKind.READ_BEFORE_WAIT,
        VerdictKind.WRITE_BEFORE_WAIT,
        VerdictKind.UNDEFINED_RESULT,
        VerdictKind.NON_CONTIGUOUS_BUFFER,
        VerdictKind.OVERLAPPING_BUFFERS,
    }
)


def merge_alike(findings: Sequence[Finding]) -> list[Finding]:
    """Findings in their order, those about one line's buffers on several ranks made one."""
    merged: dict[object, list[Finding]] = {}
    for i, finding in enumerate(findings):
        merged.setdefault(_key(finding) or i, []).append(finding)
    return [_merged(alike) for alike in merged.values()]


def _key(finding: Finding) -> object:
    call = finding.details.get("call")
    if finding.kind not in _OF_BUFFERS or not isinstance(call, dict):
        return None
    site = call["site"] or {}
    return (finding.kind, call["op"], site.get("file"), site.get("line"), finding.details.get("access"))


def _merged(alike: Sequence[Finding]) -> Finding:
    first = alike[0]
    call = first.details.get("call")
    if first.kind not in _OF_BUFFERS or not isinstance(call, dict):
        return first
    ranks = tuple(sorted({rank for finding in alike for rank in finding.ranks}))
    others = [rank for rank in ranks if rank not in first.ranks]
    same = f" ({named_ranks(others)} {verb(others, 'does', 'do')} the same)" if others else ""
    events = tuple(event_from_json(finding.details["call"]) for finding in alike)
    parts = [CallPart(ranks, events)]
    if first.details.get("other"):
        parts.append(CallPart(ranks, tuple(event_from_json(finding.details["other"]) for finding in alike)))
    details = {**first.details, **details_of(first.kind, events[0], parts)}
    return Finding(first.kind, first.summary + same, ranks, first.waiting, details, first.severity)


def event_from_json(data: dict[str, Any]) -> TraceEvent:
    """The event that ``TraceEvent.to_json`` wrote."""
    site = data["site"]
    splits = data["splits"]
    return TraceEvent(
        **{
            **data,
            "group": tuple(data["group"]),
            "shapes": tuple(map(tuple, data["shapes"])),
            "names": tuple(data["names"]),
            "splits": None if splits is None else (tuple(splits[0]), tuple(splits[1])),
            "site": None if site is None else SourceLine(**site),
            "state": CallState(data["state"]),
        }
    )
