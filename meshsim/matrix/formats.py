"""A matrix as text for people and for CI systems."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from meshsim.errors import UsageError
from meshsim.reports.tables import aligned

Row = dict[str, Any]
"""``{"topology": text, "world_size": ranks, "shard": number from 0 on}``"""

_GITHUB_JOBS = 256
_GITLAB_JOBS = 200


def as_json(rows: Sequence[Row], sharded: bool) -> str:
    """A JSON list, one row a line."""
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]" if rows else "[]"


def as_text(rows: Sequence[Row], sharded: bool) -> str:
    """A table."""
    cells = [(str(row["world_size"]), row["topology"], str(row["shard"])) for row in rows]
    return aligned(("ranks", "topology", "shard"), cells, right=(0,))


def as_github(rows: Sequence[Row], sharded: bool) -> str:
    """One line of JSON for a GitHub Actions ``strategy.matrix``: a job a topology, or a job a shard.

    A shard's ``topologies`` are separated by spaces.
    """
    return json.dumps({"include": _jobs(rows, sharded, _GITHUB_JOBS, "GitHub")})


def as_gitlab(rows: Sequence[Row], sharded: bool) -> str:
    """YAML with a hidden job ``.mesh-matrix`` to extend: a job each, as ``parallel:matrix`` wants."""
    lines = [".mesh-matrix:", "  parallel:", "    matrix:"]
    for job in _jobs(rows, sharded, _GITLAB_JOBS, "GitLab"):
        for place, (name, value) in enumerate(job.items()):
            lines.append(f"      {'-' if place == 0 else ' '} {name.upper()}: {json.dumps(str(value))}")
    return "\n".join(lines)


def _jobs(rows: Sequence[Row], sharded: bool, most: int, system: str) -> list[dict[str, Any]]:
    jobs = _shards(rows) if sharded else [dict(row) for row in rows]
    if len(jobs) > most:
        raise UsageError(
            f"{len(jobs)} jobs are more than {system} takes in a matrix ({most}); give --shards {most}"
        )
    return jobs


def _shards(rows: Sequence[Row]) -> list[dict[str, Any]]:
    of_shard: dict[int, list[Row]] = {}
    for row in rows:
        of_shard.setdefault(row["shard"], []).append(row)
    return [
        {
            "shard": shard,
            "world_size": max(row["world_size"] for row in of_shard[shard]),
            "topologies": " ".join(row["topology"] for row in of_shard[shard]),
        }
        for shard in sorted(of_shard)
    ]


FORMATS: dict[str, Callable[[Sequence[Row], bool], str]] = {
    "json": as_json,
    "github": as_github,
    "gitlab": as_gitlab,
    "text": as_text,
}
