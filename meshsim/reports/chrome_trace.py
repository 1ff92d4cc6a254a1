"""Runs as Chrome trace events, as Perfetto reads them: a process a rank, a slice a call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshsim.result import RunResult
from meshsim.trace import TraceEvent

_MICROSECONDS = 1e6


def chrome_trace(results: Sequence[RunResult]) -> dict[str, Any]:
    """All runs on one time line, one after the other."""
    events: list[dict[str, Any]] = []
    begin, first_process = 0.0, 0
    for result in results:
        events.extend(_run_events(result, begin, first_process))
        begin += result.duration
        first_process += result.world_size
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _run_events(result: RunResult, begin: float, first_process: int) -> Iterable[dict[str, Any]]:
    for rank, calls in enumerate(result.trace.events):
        process = first_process + rank
        name = f"{result.topology} {result.backend} rank {rank}"
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": process,
            "tid": 0,
            "args": {"sort_index": process},
        }
        for call in calls:
            # A call that never completed lasts until the end of the run.
            finished = result.duration if call.finished is None else call.finished
            yield {
                "ph": "X",
                "name": call.op,
                "cat": call.axis or "group",
                "pid": process,
                "tid": 0,
                "ts": (begin + call.started) * _MICROSECONDS,
                "dur": max(0.0, finished - call.started) * _MICROSECONDS,
                "args": _call_args(call),
            }


def _call_args(call: TraceEvent) -> dict[str, Any]:
    args: dict[str, Any] = {
        "group": list(call.group),
        "axis": call.axis,
        "dtype": call.dtype,
        "shapes": [list(shape) for shape in call.shapes],
        "reduce_op": call.reduce_op,
        "root": call.root,
        "peer": call.peer,
        "state": call.state.value,
        "line": str(call.site) if call.site else None,
    }
    return {name: value for name, value in args.items() if value not in (None, "")}
