"""What each rank communicated, in order: the one record that worlds write and the checker reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's code (never of torch or meshsim)."""

    file: str
    line: int
    function: str = ""
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class CallState(str, Enum):
    """How far a call came."""

    ISSUED = "issued"
    """Called; not complete when the trace was taken."""
    COMPLETED = "completed"
    """Its result is in the caller's tensors."""
    FAILED = "failed"
    """It raised in the caller."""


@dataclass(slots=True)
class TraceEvent:
    """One communication call of one rank.

    Ranks are global everywhere. ``op`` is the name users write (``all_reduce``, ``send``, ``new_group``).
    ``number`` counts the calls of this rank on this group from 0; point-to-point calls are counted for each
    ``(op, peer, tag)`` on their own. ``shapes`` are those of the tensors handed in, ``numel`` their total.
    ``started`` and ``finished`` are seconds since the run began and are no part of a comparison.
    """

    rank: int
    index: int
    op: str
    group: tuple[int, ...]
    group_name: str = ""
    axis: str = ""
    """The mesh axis, or several joined by ``_``; ``world``; empty when the group is none of the mesh's."""
    number: int = 0
    dtype: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    numel: int = 0
    reduce_op: str = ""
    root: int | None = None
    peer: int | None = None
    """Of send and recv; None on a recv from any source until it is matched."""
    tag: int = 0
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """all_to_all_single: input and output split sizes, in elements of the first dimension; all_to_all: the
    number of elements of each tensor."""
    async_op: bool = False
    site: SourceLine | None = None
    names: tuple[str, ...] = ()
    """The scenario's variables that hold the tensor, as ``function:name``: they tell like calls apart."""
    state: CallState = CallState.ISSUED
    waited: bool = False
    """An async call's ``wait()`` (or its result) was asked for."""
    internal: bool = False
    """Made by meshsim itself (binding the mesh), not by the scenario."""
    note: str = ""
    started: float = 0.0
    finished: float | None = None

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["state"] = self.state.value
        return data


@dataclass(slots=True)
class Trace:
    """The events of all ranks: ``trace[rank]`` is one rank's list, iteration goes rank by rank."""

    events: list[list[TraceEvent]] = field(default_factory=list)

    def __getitem__(self, rank: int) -> list[TraceEvent]:
        return self.events[rank]

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[TraceEvent]:
        for of_rank in self.events:
            yield from of_rank

    def to_json(self) -> list[list[dict[str, Any]]]:
        return [[event.to_json() for event in of_rank] for of_rank in self.events]
