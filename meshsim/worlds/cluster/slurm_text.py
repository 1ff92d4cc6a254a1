"""Slurm's short forms of host lists and of task counts."""

from __future__ import annotations

import re

from meshsim.errors import UsageError


def first_host(nodes: str) -> str:
    """The first host of a list such as ``gpu[01-04,7],login1``."""
    match = re.match(r"\s*([^,\[\s]+)(?:\[(\d+)[^\]]*\]([^,\[\s]*))?", nodes)
    if match is None:
        raise UsageError(f"Slurm's host list {nodes!r} can't be read: set MASTER_ADDR to rank 0's host")
    prefix, first, suffix = match.groups()
    return f"{prefix}{first or ''}{suffix or ''}"


def tasks_on_node(counts: str, node: int) -> int | None:
    """The tasks of one node by Slurm's list of counts, such as ``4(x2),3``; None where it doesn't say."""
    listed: list[int] = []
    for part in counts.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if match is None:
            return None
        listed += [int(match[1])] * int(match[2] or 1)
    return listed[node] if node < len(listed) else None
