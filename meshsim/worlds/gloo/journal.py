"""A rank's trace on file as it grows, for when the rank can't tell of it: gloo may abort its process."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, SupportsIndex

from meshsim.trace import CallState, SourceLine, TraceEvent

_Change = tuple[int, CallState, bool, str, float | None]

_NAMES = tuple(field.name for field in fields(TraceEvent) if field.name != "site")
# Pickling an event itself would run dataclasses' own getters, in Python, at each call of a rank.
_facts = attrgetter(*_NAMES)


class JournaledEvents(list[TraceEvent]):
    """A trace that writes each event to a file before its call is made, and what became of earlier ones.

    ``destination`` is a file's descriptor, or a function that takes the bytes.
    """

    def __init__(self, destination: int | Callable[[bytes], object]) -> None:
        super().__init__()
        # One pickler for all: what recurs (classes, groups, file names) is written once.
        self._pickler = pickle.Pickler(_Raw(destination), pickle.HIGHEST_PROTOCOL)
        self._open: list[TraceEvent] = []
        self._owner = os.getpid()

    def append(self, event: TraceEvent) -> None:
        super().append(event)
        # A process that the scenario forked has this list too, but it is not the rank.
        if os.getpid() == self._owner:
            site = event.site
            place = None if site is None else (site.file, site.line, site.function, site.text)
            self._pickler.dump((_facts(event), place, self._changes()))
            self._open.append(event)

    def flush(self) -> None:
        """Write what became of the events so far."""
        self._pickler.dump((None, None, self._changes()))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return list, (list(self),)

    def _changes(self) -> list[_Change]:
        changes: list[_Change] = []
        still_open = []
        for event in self._open:
            if event.state is CallState.ISSUED and not event.note:
                still_open.append(event)
            else:
                changes.append((event.index, event.state, event.waited, event.note, event.finished))
        self._open = still_open
        return changes


class _Raw:
    def __init__(self, destination: int | Callable[[bytes], object]) -> None:
        self._destination = destination

    def write(self, data: bytes) -> int:
        if isinstance(self._destination, int):
            return os.write(self._destination, data)
        self._destination(bytes(data))
        return len(data)


def read_journal(data: bytes) -> list[TraceEvent]:
    """The events as last written. What was cut off in mid-write is left out."""
    events: dict[int, TraceEvent] = {}
    unpickler = pickle.Unpickler(io.BytesIO(data))
    while True:
        try:
            facts, place, changes = unpickler.load()
        except (EOFError, pickle.UnpicklingError):
            return list(events.values())
        if facts is not None:
            site = SourceLine(*place) if place is not None else None
            event = TraceEvent(**dict(zip(_NAMES, facts, strict=True)), site=site)
            events[event.index] = event
        for index, state, waited, note, finished in changes:
            changed = events[index]
            changed.state, changed.waited, changed.note, changed.finished = state, waited, note, finished
