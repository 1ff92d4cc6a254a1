"""A run as the page reads it: JSON-safe, every repeated text and call once, calls as plain numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshsim.report import RankReport
from meshsim.reports.failure_text import what_and_where
from meshsim.reports.html.from_json import result_from_json
from meshsim.reports.html.interned import Interned, packed_ranks
from meshsim.reports.html.mesh_data import mesh_data
from meshsim.reports.values import to_json_value
from meshsim.result import RunResult
from meshsim.trace import CallState, TraceEvent
from meshsim.verdict import Verdict

_LONGEST_TEXT = 20_000
"""Characters of a rank's output, traceback or stack; of longer ones the end is kept."""
_LONGEST_VALUE = 600
_STATES = {CallState.ISSUED: 0, CallState.COMPLETED: 1, CallState.FAILED: 2}
_TABLES = ("table", "second", "lines_part")
_DETAILS = ("severity", "meaning", "advice", "missing_table", "cycle", "cycle_ranks", "failures", "also")


@dataclass
class PageRun:
    """What the page needs of one run: ``head`` for the grid, ``body`` for its own view, its mesh.

    All three are JSON-safe, so that a run can be sent between processes: ``PageRun(**data)``.
    """

    head: dict[str, Any]
    body: dict[str, Any]
    mesh: dict[str, Any]


def run_data(run: RunResult | Mapping[str, Any] | PageRun) -> PageRun:
    """The page's part of a result, or of the JSON of one."""
    if isinstance(run, PageRun):
        return run
    if isinstance(run, RunResult):
        return _page_run(run, [to_json_value(value) for value in run.returns])
    return _page_run(result_from_json(run), run["returns"])


def _page_run(result: RunResult, returns: Sequence[Any]) -> PageRun:
    return PageRun(head=_head(result), body=_body(result, returns), mesh=mesh_data(result.plan))


def _head(result: RunResult) -> dict[str, Any]:
    return {
        "scenario": result.scenario or "scenario",
        "backend": result.backend,
        "topology": result.topology or result.plan.topology,
        "world_size": result.world_size,
        "seed": result.seed,
        "duration": result.duration,
        "outcome": outcome(result),
        "kind": result.verdict.kind.value,
        "summary": result.verdict.summary,
        "warnings": len(result.verdict.warnings),
        "plan": result.plan.digest,
    }


def outcome(result: RunResult) -> str:
    """``passed``, ``warned`` (passed with warnings), ``failed`` or ``not-run``."""
    if result.not_run:
        return "not-run"
    if not result.ok:
        return "failed"
    return "warned" if result.verdict.warnings else "passed"


def _body(result: RunResult, returns: Sequence[Any]) -> dict[str, Any]:
    texts = Interned()
    return {
        "complete": result.is_complete,
        "params": _value_text(to_json_value(result.params)) if result.params else "",
        "verdict": _verdict(result.verdict),
        "ranks": [_rank(report, value, texts) for report, value in zip(result.ranks, returns, strict=False)],
        "ends": _ends(result.ranks),
        "texts": texts.values,
        **_calls(result),
    }


# The verdict


def _verdict(verdict: Verdict) -> dict[str, Any]:
    details = to_json_value(verdict.details)
    kept = {name: details[name] for name in _DETAILS if details.get(name)}
    odd = frozenset(verdict.ranks)
    for name in _TABLES:
        if details.get(name):
            kept[name] = [{**row, "odd": _mentions(row["ranks"], odd)} for row in details[name]]
    return {
        "kind": verdict.kind.value,
        "summary": verdict.summary,
        "ranks": packed_ranks(verdict.ranks),
        "waiting": packed_ranks(verdict.waiting),
        "warnings": [
            {"kind": warning.kind.value, "summary": warning.summary, "ranks": packed_ranks(warning.ranks)}
            for warning in verdict.warnings
        ],
        **kept,
    }


def _mentions(text: str, ranks: frozenset[int]) -> bool:
    """Whether the text of a table's row, ``0-3, 7``, has any of the ranks."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", text.partition("and ")[0])
    return any(
        int(first) in ranks if not last else any(int(first) <= rank <= int(last) for rank in ranks)
        for first, last in spans
    )


# The ranks


def _rank(report: RankReport, value: Any, texts: Interned) -> dict[str, Any]:
    failure = report.failure
    found = {
        "state": report.state.value,
        "value": None if value is None else texts.number(_value_text(value)),
        "error": None if failure is None else texts.number(_cut(_error(failure.type, failure.message))),
        "traceback": _text(texts, failure.traceback if failure is not None else ""),
        "peer_lost": bool(failure is not None and failure.peer_lost),
        "exit_code": report.exit_code,
        "signal": report.signal,
        "stdout": _text(texts, report.stdout),
        "stderr": _text(texts, report.stderr),
        "stack": _text(texts, report.stack),
        "ended": round(report.ended, 6),
    }
    return {name: content for name, content in found.items() if content is not None and content is not False}


def _error(kind: str, message: str) -> str:
    return f"{kind}: {message}" if message else kind


def _text(texts: Interned, text: str) -> int | None:
    return texts.number(_cut(text)) if text.strip() else None


def _cut(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"({len(text) - _LONGEST_TEXT} characters before are left out)\n{text[-_LONGEST_TEXT:]}"


def _value_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]} …"


def _ends(ranks: Sequence[RankReport]) -> list[dict[str, Any]]:
    """Ranks that ended alike, in the order of their lowest rank."""
    same: dict[tuple[str, str, str], list[int]] = {}
    for report in ranks:
        same.setdefault((report.state.value, *what_and_where(report)), []).append(report.rank)
    return [
        {"ranks": packed_ranks(members), "state": state, "what": what, "where": where}
        for (state, what, where), members in same.items()
    ]


# The calls


def _calls(result: RunResult) -> dict[str, Any]:
    """``calls`` has a flat list a rank: kind, number, start and end in microseconds (-1: none), state."""
    tables = _CallTables()
    calls = []
    for of_rank in result.trace.events:
        flat: list[int] = []
        for event in of_rank:
            ended = -1 if event.finished is None else round(event.finished * 1e6)
            started = round(event.started * 1e6)
            flat += (tables.kind(event), event.number + 1, started, ended, _STATES[event.state])
        calls.append(flat)
    return {
        "kinds": tables.kinds.values,
        "groups": tables.groups.values,
        "sites": tables.sites.values,
        "calls": calls,
    }


class _CallTables:
    def __init__(self) -> None:
        self.kinds = Interned()
        self.groups = Interned()
        self.sites = Interned()

    def kind(self, event: TraceEvent) -> int:
        """The number of what the call has in common with others: all but its number, times and state."""
        group = self.groups.number(event.group, packed_ranks(event.group))
        site = None
        if event.site is not None:
            at = event.site
            site = self.sites.number((at.file, at.line, at.text), [at.file, at.line, at.function, at.text])
        key = (
            event.op, event.axis, group, event.dtype, event.shapes, event.numel, event.reduce_op, event.root,
            event.peer, event.tag, event.splits, event.async_op, site, event.names, event.internal,
            event.note,
        )  # fmt: skip
        return self.kinds.number(key, _kind(event, group, site))


def _kind(event: TraceEvent, group: int, site: int | None) -> dict[str, Any]:
    splits = event.splits
    found = {
        "op": event.op,
        "axis": event.axis,
        "group": group,
        "dtype": event.dtype,
        "shapes": _shapes(event.shapes),
        "numel": event.numel,
        "reduce_op": event.reduce_op,
        "root": event.root,
        "peer": event.peer,
        "tag": event.tag or None,
        "splits": f"in {list(splits[0])} out {list(splits[1])}" if splits is not None else None,
        "async": event.async_op or None,
        "site": site,
        "names": ", ".join(name.partition(":")[2] or name for name in event.names),
        "internal": event.internal or None,
        "note": event.note,
    }
    return {name: content for name, content in found.items() if content not in (None, "")}


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    shown = ", ".join(str(tuple(shape)) for shape in shapes[:4])
    return shown + (f" and {len(shapes) - 4} more" if len(shapes) > 4 else "")
