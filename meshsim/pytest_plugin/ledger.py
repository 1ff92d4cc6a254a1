"""Nothing vanishes: for each test, topology and backend, whether it ran anywhere, and if not, why not.

One session prints what it collected and never ran. ``--mesh-ledger FILE`` writes the whole of it, merged over
xdist's workers; ``python -m meshsim.pytest_plugin.ledger FILE...`` merges the files of CI shards, and exits
with 1 when something ran in none of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RAN = ("passed", "failed", "xfailed")
_SHOWN = 20
DESELECTED = "deselected"
NOT_REACHED = "not reached"


@dataclass(frozen=True, order=True)
class Key:
    """One line of the ledger."""

    test: str
    topology: str
    backend: str


class Ledger:
    """What is known of every mesh test that was collected: how it ended, or why it didn't run."""

    def __init__(self) -> None:
        self._entries: dict[Key, str] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, key: Key, status: str) -> None:
        """``status`` is an outcome, or the reason for none; a run goes before any reason."""
        known = self._entries.get(key)
        if known is None or (_rank(status) > _rank(known)):
            self._entries[key] = status

    def merge(self, entries: Iterable[Sequence[str]]) -> None:
        """Take over another ledger's entries, as ``to_json`` gives them."""
        for test, topology, backend, status in entries:
            self.note(Key(test, topology, backend), status)

    def never_ran(self) -> dict[Key, str]:
        """Everything that did not run, with the reason, in order."""
        return {key: self._entries[key] for key in sorted(self._entries) if not _ran(self._entries[key])}

    def to_json(self) -> list[list[str]]:
        return [[k.test, k.topology, k.backend, self._entries[k]] for k in sorted(self._entries)]

    def lines(self, *, besides: Collection[str] = ()) -> list[str]:
        """What a person reads: reasons with their tests, the most frequent first; without some reasons."""
        by_reason: dict[str, list[Key]] = {}
        for key, reason in self.never_ran().items():
            if reason not in besides:
                by_reason.setdefault(reason, []).append(key)
        lines = []
        for reason, keys in sorted(by_reason.items(), key=lambda pair: -len(pair[1])):
            lines.append(f"{len(keys)} never ran: {reason}")
            lines += [f"  {key.test} on {key.topology}, {key.backend}" for key in keys[:_SHOWN]]
            if len(keys) > _SHOWN:
                lines.append(f"  and {len(keys) - _SHOWN} more")
        return lines


def _ran(status: str) -> bool:
    return status in RAN


def _rank(status: str) -> int:
    """What says more: a failure, a run, a reason, that it was never reached."""
    order = (NOT_REACHED, DESELECTED)
    if status in order:
        return order.index(status)
    return {"failed": 5, "passed": 4, "xfailed": 4}.get(status, 3)


def read_ledgers(paths: Iterable[str]) -> Ledger:
    """The ledgers of several sessions, merged. ValueError for a file that is none."""
    ledger = Ledger()
    for path in paths:
        data: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(data, Mapping) or "entries" not in data:
            raise ValueError(f"{path} is not a ledger; give files that pytest --mesh-ledger FILE wrote")
        ledger.merge(data["entries"])
    return ledger


def write_ledger(path: str, ledger: Ledger) -> None:
    """Write a file for :func:`read_ledgers`."""
    text = json.dumps({"schema_version": 1, "entries": ledger.to_json()}, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")


def main(paths: Sequence[str]) -> int:
    """Print what ran in none of the sessions. The exit code: 0 nothing, 1 something, 2 wrong use."""
    if not paths:
        print("usage: python -m meshsim.pytest_plugin.ledger FILE...", file=sys.stderr)
        return 2
    try:
        ledger = read_ledgers(paths)
    except (OSError, ValueError) as error:
        print(f"can't read the ledger: {error}", file=sys.stderr)
        return 2
    never = ledger.never_ran()
    for line in ledger.lines():
        print(line)
    print(f"{len(ledger) - len(never)} of {len(ledger)} ran")
    return 1 if never else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
