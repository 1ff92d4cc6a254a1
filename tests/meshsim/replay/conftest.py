"""Scenario files and recordings in a folder of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meshsim

SOURCE = '''
import torch
import torch.distributed as dist


def sums(ctx):
    """Ranks add their numbers along dp; the sum is scaled by the parameter."""
    x = torch.full((4,), float(ctx.rank) + 0.25, device=ctx.device)
    dist.all_reduce(x, group=ctx.mesh.device_mesh.get_group("dp"))
    dist.broadcast(x, src=0)
    return {"x": x * ctx.params.get("scale", 1), "first": x[0].item()}


def fails_on_one(ctx):
    dist.barrier()
    if ctx.rank == 1:
        raise ValueError("one")
    dist.barrier()
'''


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    file = tmp_path / "recorded_scenarios.py"
    file.write_text(SOURCE)
    return file


@pytest.fixture
def recorded(scenario_file: Path, tmp_path: Path) -> Callable[..., Path]:
    """``recorded("sums", backend="fake")``: the file of a recorded run."""

    def record(name: str = "sums", topology: str = "dp=2,tp=2", **options: Any) -> Path:
        file = tmp_path / f"{name}.json"
        meshsim.run(f"{scenario_file}::{name}", topology, record=file, **options)
        return file

    return record


@pytest.fixture
def edited() -> Callable[[Path, Callable[[Any], None]], Path]:
    """Change a recording's data by hand."""

    def edit(file: Path, change: Callable[[Any], None]) -> Path:
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data))
        return file

    return edit
