"""Traces written by hand: what each rank called, in a line."""

from __future__ import annotations

from math import prod
from typing import Any

from meshsim.report import RankFailure, RankReport, RankState, WorldReport
from meshsim.trace import CallState, SourceLine, TraceEvent

WORLD = (0, 1, 2, 3)


def at(line: int, text: str = "", file: str = "/home/me/train.py") -> SourceLine:
    return SourceLine(file, line, "step", text)


def call(rank: int, op: str = "all_reduce", line: int = 10, **facts: Any) -> TraceEvent:
    """A call that completed, on four ranks' world, of four floats, unless ``facts`` say otherwise."""
    shapes = facts.get("shapes", () if "barrier" in op else ((4,),))
    defaults: dict[str, Any] = {
        "index": 0,
        "group": WORLD,
        "group_name": "0",
        "axis": "world",
        "dtype": "" if "barrier" in op else "float32",
        "shapes": shapes,
        "numel": sum(map(prod, shapes)),
        "reduce_op": "SUM" if "reduce" in op else "",
        "site": at(line),
        "state": CallState.COMPLETED,
        "waited": True,
    }
    return TraceEvent(rank=rank, op=op, **{**defaults, **facts})


def trace(*events: TraceEvent) -> list[TraceEvent]:
    """The events as one rank's trace, numbered."""
    counts: dict[object, int] = {}
    for index, event in enumerate(events):
        event.index = index
        key: tuple[object, ...] = (event.group, event.group_name)
        if event.op in ("send", "recv"):
            key = (*key, event.op, event.peer, event.tag)
        event.number = counts.get(key, 0)
        counts[key] = event.number + 1
    return list(events)


def returned(rank: int, *events: TraceEvent) -> RankReport:
    return RankReport(rank, RankState.RETURNED, trace=trace(*events), ended=1.0)


def blocked(rank: int, *events: TraceEvent) -> RankReport:
    """In the last of these calls."""
    events[-1].state = CallState.ISSUED
    return RankReport(rank, RankState.BLOCKED, pending=events[-1], trace=trace(*events), ended=2.0)


def raised(
    rank: int,
    *events: TraceEvent,
    type: str = "ValueError",
    message: str = "boom",
    peer_lost: bool = False,
    ended: float = 1.0,
) -> RankReport:
    failure = RankFailure(type, message, f"Traceback\n{type}: {message}\n", at(99), peer_lost=peer_lost)
    return RankReport(rank, RankState.RAISED, failure=failure, trace=trace(*events), ended=ended)


def lost_its_peer(rank: int, *events: TraceEvent, ended: float = 1.5) -> RankReport:
    """In the last of these calls, until another rank was gone."""
    events[-1].state = CallState.FAILED
    message = "Connection closed by peer [127.0.0.1]:1"
    return raised(rank, *events, type="RuntimeError", message=message, peer_lost=True, ended=ended)


def stuck(rank: int, *events: TraceEvent, line: int = 77) -> RankReport:
    stack = f'  File "/home/me/train.py", line {line}, in step\n    time.sleep(600)\n'
    return RankReport(rank, RankState.STUCK, stack=stack, trace=trace(*events), ended=3.0)


def world(*ranks: RankReport, **facts: Any) -> WorldReport:
    return WorldReport(list(ranks), **facts)
