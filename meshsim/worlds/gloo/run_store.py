"""The store of one run, in the parent: what ranks set, and who waits for what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshsim.worlds.gloo.messages import Meeting, StoreCall, StoreReply

Answer = Callable[[StoreReply], None]


@dataclass
class _Gathering:
    values: dict[int, bytes] = field(default_factory=dict)
    answers: list[tuple[int, Answer]] = field(default_factory=list)


class RunStore:
    """Keys and values of one attempt, out of reach of any other. ``add`` keeps decimal text."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}
        self._waiting: list[tuple[StoreCall, Answer]] = []
        self._gatherings: dict[tuple[Any, ...], _Gathering] = {}

    def serve(self, call: StoreCall, answer: Answer) -> None:
        """Do what a rank asks for; answers at once, or when the keys that it waits for are there."""
        if not self._try(call, answer):
            self._waiting.append((call, answer))

    def gather(self, meeting: Meeting, answer: Answer) -> None:
        """Keep a member's value; answer all members once all have come."""
        gathering = self._gatherings.setdefault(meeting.key, _Gathering())
        gathering.values[meeting.member] = meeting.value
        gathering.answers.append((meeting.number, answer))
        if len(gathering.values) == meeting.size:
            del self._gatherings[meeting.key]
            values = [gathering.values[member] for member in range(meeting.size)]
            for number, reply in gathering.answers:
                reply(StoreReply(meeting.run, number, values))

    def _try(self, call: StoreCall, answer: Answer) -> bool:
        if any(key not in self._data for key in _awaited_keys(call)):
            return False
        value = getattr(self, f"_do_{call.operation}")(*call.arguments)
        answer(StoreReply(call.run, call.number, value))
        return True

    def _changed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call, answer in waiting:
            self.serve(call, answer)

    def _do_set(self, key: str, value: bytes) -> None:
        self._data[key] = value
        self._changed()

    def _do_multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        self._data.update(zip(keys, values, strict=True))
        self._changed()

    def _do_get(self, key: str) -> bytes:
        return self._data[key]

    def _do_multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self._data[key] for key in keys]

    def _do_wait(self, keys: Sequence[str]) -> None:
        """The keys are there."""

    def _do_check(self, keys: Sequence[str]) -> bool:
        return all(key in self._data for key in keys)

    def _do_add(self, key: str, amount: int) -> int:
        total = int(self._data.get(key, b"0")) + amount
        self._data[key] = str(total).encode()
        self._changed()
        return total

    def _do_append(self, key: str, value: bytes) -> None:
        self._data[key] = self._data.get(key, b"") + value
        self._changed()

    def _do_compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """As TCPStore: set where the old value is the expected one, or both are absent. What holds now."""
        if key not in self._data:
            if expected:
                return expected
        elif self._data[key] != expected:
            return self._data[key]
        self._data[key] = desired
        self._changed()
        return desired

    def _do_delete_key(self, key: str) -> bool:
        return self._data.pop(key, None) is not None

    def _do_num_keys(self) -> int:
        return len(self._data)

    def _do_list_keys(self) -> list[str]:
        return list(self._data)


def _awaited_keys(call: StoreCall) -> Sequence[str]:
    if call.operation == "get":
        return call.arguments[:1]
    return call.arguments[0] if call.operation in ("wait", "multi_get") else ()
