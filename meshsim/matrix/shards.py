"""Splitting a matrix over CI jobs, so that they take about as long as each other."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from meshsim.errors import UsageError

Key = tuple[str, int]
"""Topology text and rank count."""


def balanced(keys: Sequence[Key], shards: int, seconds: Mapping[Key, float] | None = None) -> list[int]:
    """The shard of each key, from 0 on: the longest first, each to the shard with the least work so far.

    A key without recorded seconds counts as the median of the recorded ones, scaled by its rank count;
    with none recorded the rank count itself is the measure.
    """
    costs = _costs(keys, seconds or {})
    load = [0.0] * shards
    filled = [0] * shards
    chosen = [0] * len(keys)
    for place in sorted(range(len(keys)), key=lambda place: (-costs[place], place)):
        shard = min(range(shards), key=lambda shard: (load[shard], filled[shard], shard))
        chosen[place] = shard
        load[shard] += costs[place]
        filled[shard] += 1
    return chosen


def _costs(keys: Sequence[Key], seconds: Mapping[Key, float]) -> list[float]:
    a_rank = [seconds[key] / key[1] for key in keys if key in seconds]
    typical = median(a_rank) if a_rank else 1.0
    return [seconds.get(key, typical * key[1]) for key in keys]


def read_durations(path: str | os.PathLike[str]) -> dict[Key, float]:
    """Seconds by topology, from a file that ``meshsim run --json`` wrote. The slowest of several counts."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"can't read durations {os.fspath(path)}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"durations {os.fspath(path)} are not JSON: {error}") from error
    found: dict[Key, float] = {}
    for run in _runs(data, path):
        key = (run["topology"], run["world_size"])
        found[key] = max(found.get(key, 0.0), float(run["duration"]))
    return found


def _runs(data: Any, path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    runs = data.get("runs") if isinstance(data, dict) else data
    if isinstance(runs, list) and all(_is_run(run) for run in runs):
        return runs
    raise UsageError(
        f"durations {os.fspath(path)} can't be used; give a file that `meshsim run --json FILE` wrote, "
        'or a list of {"topology", "world_size", "duration"}'
    )


def _is_run(run: Any) -> bool:
    return (
        isinstance(run, dict)
        and isinstance(run.get("topology"), str)
        and isinstance(run.get("world_size"), int)
        and isinstance(run.get("duration"), int | float)
        and run["duration"] >= 0
    )
