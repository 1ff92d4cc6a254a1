"""How ranks, groups, calls and lines are written in a verdict. Numbers in texts count from 1."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshsim.trace import SourceLine, TraceEvent

_LISTED = 8
"""Up to so many ranks are listed one by one; more are written as ranges."""


def rank_ranges(ranks: Iterable[int]) -> str:
    """``0, 1, 2`` for a few ranks, ``0-510, 512-1023`` for many."""
    ordered = sorted(set(ranks))
    if len(ordered) <= _LISTED:
        return ", ".join(map(str, ordered))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs]
    if len(parts) > 2 * _LISTED:
        left_out = len(parts) - 2 * _LISTED
        parts = [*parts[: 2 * _LISTED], f"and {left_out} ranges more"]
    return ", ".join(parts)


def named_ranks(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0, 2`` or ``ranks 0-510``."""
    ordered = sorted(set(ranks))
    return f"rank{'' if len(ordered) == 1 else 's'} {rank_ranges(ordered)}"


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The verb's form for so many ranks."""
    return one if len(ranks) == 1 else many


def member_list(ranks: Sequence[int]) -> str:
    """A group's members as the user writes them: ``[0,2]``."""
    return "[" + (",".join(map(str, ranks)) if len(ranks) <= _LISTED else rank_ranges(ranks)) + "]"


def group_name(event: TraceEvent) -> str:
    """The group by its mesh axis and ranks, ``tp (0, 1)``; ``group (0, 2)`` when it is none of the mesh's."""
    return f"{event.axis or 'group'} ({rank_ranges(event.group)})"


def site_name(site: SourceLine | None) -> str:
    """``train.py:12``: the file's own name, as the full path is in the details."""
    return f"{os.path.basename(site.file)}:{site.line}" if site is not None else "an unknown line"


def site_names(events: Iterable[TraceEvent]) -> str:
    """The lines of some calls, each once: ``train.py:12, train.py:15``."""
    names = list(dict.fromkeys(site_name(event.site) for event in events))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more lines" if len(names) > 3 else "")


def shape_name(event: TraceEvent) -> str:
    """``(4,)``, or ``(2,), (2,)`` for a list of tensors; long lists are cut."""
    shown = ", ".join(str(tuple(shape)) for shape in event.shapes[:4])
    return shown + (f" and {len(event.shapes) - 4} more" if len(event.shapes) > 4 else "")


def call_name(event: TraceEvent) -> str:
    """An operation with what tells it from another: ``all_reduce(SUM, float32, (4,))``."""
    parts = [event.reduce_op, event.dtype, shape_name(event)]
    if event.root is not None:
        parts.append(f"root {event.root}")
    if event.peer is not None:
        parts.append(f"{'to' if event.op in ('send', 'isend') else 'from'} {event.peer}")
    if event.tag:
        parts.append(f"tag {event.tag}")
    return f"{event.op}({', '.join(part for part in parts if part)})"


def tensor_name(event: TraceEvent) -> str | None:
    """What the user's line hands to the call, ``a`` of ``dist.all_reduce(a)``; None if it can't be seen."""
    if event.site is None:
        return None
    pattern = (
        rf"\b\w*{re.escape(event.op)}\w*\s*\(\s*(?:(?:tensor|input|output)\s*=\s*)?([\w.\[\]'\"]+)\s*[,)]"
    )
    found = re.search(pattern, event.site.text)
    return found.group(1) if found else None


def row_site(row: Mapping[str, Any]) -> str:
    """The line of a table's row: ``train.py:12``."""
    return f"{os.path.basename(row['file'])}:{row['line']}" if row["file"] else "an unknown line"


def table_row(ranks: Sequence[int], event: TraceEvent) -> dict[str, Any]:
    """One JSON-safe row of a verdict's table: what these ranks did."""
    site = event.site
    return {
        "ranks": rank_ranges(ranks),
        "op": event.op,
        "dtype": event.dtype,
        "shapes": [list(shape) for shape in event.shapes],
        "numel": event.numel,
        "reduce_op": event.reduce_op,
        "root": event.root,
        "peer": event.peer,
        "tag": event.tag,
        "splits": [list(part) for part in event.splits] if event.splits is not None else None,
        "names": [name.partition(":")[2] for name in event.names],
        "number": event.number + 1,
        "axis": event.axis,
        "group": rank_ranges(event.group),
        "file": site.file if site is not None else None,
        "line": site.line if site is not None else None,
        "text": site.text if site is not None else None,
    }
