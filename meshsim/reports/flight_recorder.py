"""A run's traces as Flight Recorder dumps: one pickle a rank, as torch's own analyser reads them.

The analyser comes with torch: ``torchfrtrace DIR`` (``torch.distributed.flight_recorder.fr_trace``).
It compares operations, sizes, dtypes and states; it knows nothing of reduce ops, roots and call sites.
Format version 2.10, that of torch 2.13.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshsim.checker.replay import was_left_out
from meshsim.errors import UsageError
from meshsim.trace import CallState, TraceEvent
from meshsim.worlds.speaking import speaks_for_all

if TYPE_CHECKING:
    import os

    from meshsim.result import RunResult

VERSION = "2.10"
PREFIX = "rank_"
"""Of the files' names; the rank follows."""

_DUMP = re.compile(re.escape(PREFIX) + r"\d+")
_NANOSECONDS = 1_000_000_000
_P2P = frozenset({"send", "recv"})
# By the names that the analyser knows. It adds up the sizes of all ranks for "all_to_all", which is right for
# every form of it; it compares those of "all_to_all_single" by rank, which is only right for even splits.
_NAMES = {
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_gather_into_tensor": "_all_gather_base",
    "all_gather_coalesced": "ALLGATHER_coalesced",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
    "monitored_barrier": "barrier",
}
_DTYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}
_KNOWN_BACKENDS = ("gloo", "nccl", "hccl")

Sizes = list[list[int]]


def write_flight_recorder(directory: str | os.PathLike[str], result: RunResult) -> list[Path]:
    """Write ``rank_0``, ``rank_1`` ... into a folder, which is made if need be. Returns the files' paths.

    Dumps that an earlier run left there are replaced, all of them: the analyser would take them for this
    run's. UsageError where the folder can't be written or holds anything else. Of the ranks of a job one
    writes.
    """
    if not speaks_for_all():
        return []
    folder = Path(directory)
    check_flight_recorder_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.iterdir():
            earlier.unlink()
        paths = []
        for rank, dump in enumerate(flight_recorder_dumps(result)):
            path = folder / f"{PREFIX}{rank}"
            path.write_bytes(pickle.dumps(dump, protocol=4))
            paths.append(path)
    except OSError as error:
        raise UsageError(
            f"can't write Flight Recorder dumps to {folder}: {error.strerror or error}"
        ) from error
    return paths


def write_flight_recorders(directory: str | os.PathLike[str], results: Sequence[RunResult]) -> None:
    """Write the dumps of one run into a folder, those of several runs into a folder each inside it."""
    for result, folder in zip(results, flight_recorder_folders(directory, results), strict=True):
        if not result.not_run:
            write_flight_recorder(folder, result)


def flight_recorder_folders(directory: str | os.PathLike[str], results: Sequence[RunResult]) -> list[Path]:
    """Where each run's dumps go: ``000-dp=2,tp=2-gloo`` and so on where there are several."""
    folder = Path(directory)
    if len(results) == 1:
        return [folder]
    return [folder / f"{i:03}-{result.topology}-{result.backend}" for i, result in enumerate(results)]


def check_flight_recorder_folder(directory: str | os.PathLike[str], *, only_run: bool = True) -> None:
    """Refuse what isn't a folder and, for the dumps of only one run, one in which something else lies."""
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"can't write Flight Recorder dumps to {folder}: it is a file; give a folder")
    there = sorted(folder.iterdir()) if only_run and folder.is_dir() else []
    strange = next((path for path in there if path.is_dir() or not _DUMP.fullmatch(path.name)), None)
    if strange is not None:
        raise UsageError(
            f"can't write Flight Recorder dumps to {folder}: {strange.name} lies there, and torch's analyser "
            "reads all that is in a folder; give an empty one"
        )


def flight_recorder_dumps(result: RunResult) -> list[dict[str, Any]]:
    """Each rank's dump, in rank order.

    A send and its receive stand in a group of their own, one for each pair of ranks and tag: the analyser
    expects every member of a group at every entry.
    """
    backend = result.backend if result.backend in _KNOWN_BACKENDS else "gloo"
    return [
        _RankDump(rank, result.world_size, backend).of(trace)
        for rank, trace in enumerate(result.trace.events)
    ]


@dataclass
class _Group:
    """One of the groups that a rank's entries are in."""

    id: int
    name: str
    description: str
    members: tuple[int, ...]
    enqueued: int = 0
    completed: int = 0


@dataclass
class _RankDump:
    rank: int
    world_size: int
    backend: str
    groups: dict[object, _Group] = field(default_factory=dict)

    def of(self, trace: Sequence[TraceEvent]) -> dict[str, Any]:
        self._group(("0", tuple(range(self.world_size))), "0", "world", tuple(range(self.world_size)))
        calls = [event for event in trace if _is_entry(event)]
        entries = [self._entry(place, event) for place, event in enumerate(calls)]
        groups = self.groups.values()
        return {
            "version": VERSION,
            "comm_lib_version": "",
            "pg_config": {
                g.name: {"name": g.name, "desc": g.description, "ranks": str(list(g.members))} for g in groups
            },
            "pg_status": {
                str(g.id): {
                    "last_enqueued_collective": g.enqueued,
                    "last_started_collective": g.enqueued,
                    "last_completed_collective": g.completed,
                }
                for g in groups
            },
            "entries": entries,
        }

    def _entry(self, place: int, event: TraceEvent) -> dict[str, Any]:
        group = self._group_of(event)
        group.enqueued += 1
        done = event.state is CallState.COMPLETED
        if done:
            group.completed = group.enqueued
        inputs, outputs = _sizes(event)
        dtype = _DTYPES.get(event.dtype, event.dtype)
        finished = event.finished if done else None
        return {
            "record_id": place,
            "pg_id": group.id,
            "process_group": (group.name, group.description),
            "collective_seq_id": group.enqueued,
            "p2p_seq_id": group.enqueued if event.op in _P2P else 0,
            "op_id": place,
            "is_p2p": event.op in _P2P,
            "profiling_name": f"{self.backend}:{_profiling_name(event, group)}",
            "input_sizes": inputs,
            "input_dtypes": [dtype] * len(inputs),
            "output_sizes": outputs,
            "output_dtypes": [dtype] * len(outputs),
            "time_created_ns": round(event.started * _NANOSECONDS),
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None if finished is None else round(finished * _NANOSECONDS),
            "state": "completed" if done else "scheduled",
            "retired": done,
            "timeout_ms": 0,
            "frames": _frames(event),
        }

    def _group_of(self, event: TraceEvent) -> _Group:
        if event.op not in _P2P:
            return self._group(
                (event.group_name, event.group), event.group_name, event.axis or "undefined", event.group
            )
        if event.peer is None:
            # Nobody sent anything that it matched: a call that all the others miss.
            name = f"{event.group_name}:recv of rank {self.rank} from any rank"
            return self._group((name,), name, event.axis or "undefined", event.group)
        source, to = (self.rank, event.peer) if event.op == "send" else (event.peer, self.rank)
        name = f"{event.group_name}:{source}->{to}" + (f" tag {event.tag}" if event.tag else "")
        members = tuple(sorted({source, to}))
        return self._group((name, event.group), name, event.axis or "undefined", members)

    def _group(self, key: object, name: str, description: str, members: tuple[int, ...]) -> _Group:
        group = self.groups.get(key)
        if group is None:
            if any(other.name == name for other in self.groups.values()):
                # c10d may give one name to several groups, and the dump goes by name.
                name = f"{name} of {','.join(map(str, members))}"
            group = self.groups[key] = _Group(len(self.groups), name, description, members)
        return group


def _is_entry(event: TraceEvent) -> bool:
    """Whether the event is a call on a group that the rank is in, and was made."""
    creates = event.op in ("new_group", "split_group")
    return bool(event.group) and not creates and not event.op.startswith("store") and not was_left_out(event)


def _profiling_name(event: TraceEvent, group: _Group) -> str:
    if event.op not in _P2P:
        return _NAMES.get(event.op, event.op)
    own = group.members.index(event.rank)
    peer = group.members.index(event.peer) if event.peer is not None else own
    return f"{event.op} {own}{'->' if event.op == 'send' else '<-'}{peer}"


def _sizes(event: TraceEvent) -> tuple[Sizes, Sizes]:
    """Sizes of what goes in and of what comes out: a trace has one side, the operation gives the other."""
    shapes = [list(shape) for shape in event.shapes]
    n = len(event.group)
    if event.op == "send":
        return shapes, [[]]
    if event.op == "recv":
        return [[]], shapes
    if event.splits is not None and event.op.startswith("all_to_all"):
        return _all_to_all_sizes(event, event.splits)
    if event.op == "gather":
        return shapes, [[n, *shape] for shape in shapes] if event.root == event.rank else [[]]
    if event.op == "scatter":
        return [[n, *shape] for shape in shapes] if event.root == event.rank else [[]], shapes
    if event.op == "reduce_scatter":
        return [[n, *shape] for shape in shapes], shapes
    if event.op in ("all_gather", "all_gather_coalesced"):
        return shapes, [[n, *shape] for shape in shapes]
    if event.op.startswith("all_gather"):
        return shapes, [[n * shape[0], *shape[1:]] if shape else [n] for shape in shapes]
    if event.op.startswith("reduce_scatter"):
        return shapes, [[shape[0] // n, *shape[1:]] if shape else [] for shape in shapes]
    return shapes or [[]], shapes or [[]]


def _all_to_all_sizes(
    event: TraceEvent, splits: tuple[tuple[int, ...], tuple[int, ...]]
) -> tuple[Sizes, Sizes]:
    """One size a side: the analyser adds up the first ones of all ranks."""
    sent, expected = map(sum, splits)
    if event.op == "all_to_all":
        return [[sent]], [[expected]]
    shape = list(event.shapes[0]) if event.shapes else []
    return [shape], [[expected, *shape[1:]]]


def _frames(event: TraceEvent) -> list[dict[str, Any]]:
    site = event.site
    return [] if site is None else [{"name": site.function, "filename": site.file, "line": site.line}]
