"""The command line, called in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from meshsim.cli import main

SCENARIOS = '''
import torch
import torch.distributed as dist


def adds_up(ctx):
    """Every rank adds its number."""
    x = torch.tensor([float(ctx.rank)])
    dist.all_reduce(x)
    assert x.item() == sum(range(ctx.world_size))
    return x


def breaks_with_tp(ctx):
    if ctx.mesh.tp_size == 2 and ctx.rank == 1:
        print("about to break")
        raise ValueError("tp is not my thing")
    dist.barrier()


def rank_one_skips(ctx):
    if ctx.rank != 1:
        dist.all_reduce(torch.ones(1))


def wants(ctx):
    return ctx.params


def no_pp(ctx):
    return ctx.rank


no_pp.unsupported = lambda plan: "pp isn't covered yet" if plan.size("pp") > 1 else None
'''


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """``call("run", "x")``: exit code, standard output and standard error."""

    def call(*arguments: str) -> Answer:
        capsys.readouterr()
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return call


@pytest.fixture
def scenarios(tmp_path: Path) -> str:
    """The path of a file with scenarios."""
    file = tmp_path / "my_scenarios.py"
    file.write_text(SCENARIOS)
    return str(file)
