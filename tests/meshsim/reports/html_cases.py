"""Results for the page, written out by hand, and reading the data back out of a page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from meshlib import MeshPlan
from meshsim.report import RankFailure, RankReport, RankState
from meshsim.result import RunResult
from meshsim.trace import CallState, SourceLine, TraceEvent
from meshsim.verdict import Verdict, VerdictKind

EVIL = (
    "</script><script>document.title='broken out'</script><img src=x onerror=\"document.title='out'\">{{7*7}}"
)

BARRIER = SourceLine("/home/me/train.py", 30, "step", "dist.barrier()")


def call(rank: int, index: int, group: tuple[int, ...], **fields: Any) -> TraceEvent:
    """An all-reduce that lasts half a second, one a second."""
    given: dict[str, Any] = {
        "op": "all_reduce",
        "axis": "tp",
        "number": index,
        "dtype": "float32",
        "shapes": ((4,),),
        "numel": 4,
        "reduce_op": "SUM",
        "site": SourceLine("/home/me/train.py", 10 + index % 3, "step", f"dist.all_reduce(x{index % 3})"),
        "state": CallState.COMPLETED,
        "started": float(index),
        "finished": index + 0.5,
        **fields,
    }
    return TraceEvent(rank=rank, index=index, group=group, **given)


def passing(topology: str, world_size: int, calls: int, *, backend: str = "fake", **fields: Any) -> RunResult:
    """Every rank makes so many calls on its tp group."""
    plan = MeshPlan.build(topology, world_size)
    ranks = [
        RankReport(
            rank,
            RankState.RETURNED,
            value=rank * 10,
            trace=[call(rank, index, plan.group("tp", rank)) for index in range(calls)],
            ended=float(calls),
        )
        for rank in range(world_size)
    ]
    return RunResult(
        verdict=Verdict(VerdictKind.PASSED, f"all {world_size} ranks returned"),
        backend=backend,
        topology=topology,
        world_size=world_size,
        plan=plan,
        duration=float(calls),
        ranks=ranks,
        **{"scenario": "train.py::step", **fields},
    )


def cycle_of(world_size: int, topology: str) -> RunResult:
    """Every rank receives from the next one: a cycle of all of them."""
    result = passing(topology, world_size, 1)
    edges = []
    for report in result.ranks:
        peer = (report.rank + 1) % world_size
        site = SourceLine("/home/me/train.py", 20, "ring", "dist.recv(x, src=peer)")
        waiting = call(
            report.rank, 1, tuple(range(world_size)), op="recv", axis="world", peer=peer, reduce_op="",
            site=site, state=CallState.ISSUED, finished=None,
        )  # fmt: skip
        report.trace.append(waiting)
        report.state, report.pending, report.value = RankState.BLOCKED, waiting, None
        text = f"rank {report.rank} waits in recv from {peer} at train.py:20"
        row = {"op": "recv", "axis": "world", "file": site.file, "line": 20, "text": site.text}
        edges.append({"rank": report.rank, "waits_for": peer, "text": text, "call": row})
    ranks = tuple(range(world_size))
    result.verdict = Verdict(
        VerdictKind.SEND_RECV_CYCLE,
        "sends and receives wait in a cycle",
        ranks=ranks,
        details={"cycle": edges, "cycle_ranks": [list(ranks)], "advice": "Let one side receive first."},
    )
    return result


def one_odd(world_size: int, topology: str, odd: int, calls: int = 3) -> RunResult:
    """One rank returns before the last call, in which the others wait."""
    result = passing(topology, world_size, calls)
    everyone = tuple(range(world_size))
    for report in result.ranks:
        if report.rank == odd:
            continue
        waiting = call(
            report.rank, calls, everyone, op="barrier", axis="world", state=CallState.ISSUED, finished=None,
            dtype="", shapes=(), reduce_op="", site=BARRIER,
        )  # fmt: skip
        report.trace.append(waiting)
        report.state, report.pending, report.value = RankState.BLOCKED, waiting, None
    result.verdict = Verdict(
        VerdictKind.DEADLOCK,
        f"rank {odd} never called barrier",
        ranks=(odd,),
        waiting=tuple(rank for rank in everyone if rank != odd),
        details={"advice": "Make every rank reach the call."},
    )
    return result


def hostile() -> RunResult:
    """Every text that a user can put into a run tries to break out of the page."""
    result = passing("tp=2", 2, 1, scenario=EVIL, params={"note": EVIL})
    site = SourceLine(EVIL, 3, EVIL, EVIL)
    failure = RankFailure(EVIL, EVIL, f"Traceback\n{EVIL}", site=site)
    odd = result.ranks[1]
    odd.state, odd.failure, odd.stdout, odd.stderr, odd.stack = RankState.RAISED, failure, EVIL, EVIL, EVIL
    odd.trace[0].site = site
    odd.trace[0].names = (f"step:{EVIL}",)
    result.ranks[0].value = EVIL
    row = {
        "ranks": "1", "op": EVIL, "dtype": "", "shapes": [], "reduce_op": EVIL, "root": None, "peer": None,
        "splits": None, "names": [EVIL], "number": 1, "axis": EVIL, "group": EVIL, "file": EVIL, "line": 3,
        "text": EVIL,
    }  # fmt: skip
    failures = [{"ranks": "1", "traceback": EVIL, "peer_lost": False, "count": 1}]
    details = {"table": [row], "advice": EVIL, "failures": failures}
    result.verdict = Verdict(VerdictKind.RAISED, EVIL, ranks=(1,), waiting=(0,), details=details)
    return result


class Page(HTMLParser):
    """What a page is made of: tags with their attributes, the text of script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._inside == "style":
            self.styles.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def data(self, name: str) -> Any:
        """The embedded JSON with this id."""
        return next(json.loads(text) for attributes, text in self.scripts if attributes.get("id") == name)
