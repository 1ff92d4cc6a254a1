"""Scenarios that end the default process group, and start one of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshsim


def total(ctx: Any, group: Any = None) -> float:
    x = torch.tensor([ctx.rank + 1.0])
    dist.all_reduce(x, group=group)
    return x.item()


def test_the_default_group_can_be_destroyed(passed: Any) -> None:
    def scenario(ctx: Any) -> bool:
        dist.destroy_process_group()
        return dist.is_initialized()

    assert passed(scenario, "dp=2") == [False, False]


def start(ctx: Any, way: str, folder: Path) -> None:
    rank = {"rank": ctx.rank, "world_size": ctx.world_size}
    if way == "env":
        dist.init_process_group("gloo")
    elif way == "no backend":
        dist.init_process_group()
    elif way == "tcp":
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", **rank)
    elif way == "file":
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", **rank)
    elif way == "TCPStore":
        store = dist.TCPStore("localhost", 29500, ctx.world_size, is_master=ctx.rank == 0)
        dist.init_process_group("gloo", store=store, **rank)
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), **rank)


@pytest.mark.parametrize("way", ["env", "no backend", "tcp", "file", "TCPStore", "HashStore"])
def test_a_default_group_of_the_scenario_s_own(passed: Any, way: str, tmp_path: Path) -> None:
    def scenario(ctx: Any) -> list[Any]:
        found = []
        for _ in range(2):
            dist.destroy_process_group()
            start(ctx, way, tmp_path)
            pair = dist.new_group([0, 2])
            everyone: list[Any] = [None] * 3
            dist.all_gather_object(everyone, ctx.rank)
            found += [dist.get_rank(), total(ctx), everyone]
            if ctx.rank != 1:
                found.append(total(ctx, pair))
        return found

    expected = [[rank, 6, [0, 1, 2]] + ([4] if rank != 1 else []) for rank in range(3)]
    assert passed(scenario, "dp=3") == [2 * each for each in expected]
    assert list(tmp_path.iterdir()) == []


def test_ranks_in_another_order(passed: Any) -> None:
    def scenario(ctx: Any) -> tuple[int, float, float]:
        dist.destroy_process_group()
        place = 2 - ctx.rank
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=place, world_size=3)
        first = dist.new_group([0, 1])
        x = torch.tensor([float(ctx.rank)])
        dist.broadcast(x, 0)
        return dist.get_rank(), x.item(), total(ctx, first) if place < 2 else 0.0

    assert passed(scenario, "dp=3") == [(2, 2, 0), (1, 2, 5), (0, 2, 5)]


def test_two_worlds_at_two_places(passed: Any) -> None:
    def scenario(ctx: Any) -> tuple[int, float]:
        dist.destroy_process_group()
        place, rank = divmod(ctx.rank, 2)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{place}", rank=rank, world_size=2)
        return dist.get_world_size(), total(ctx)

    assert passed(scenario, "dp=4") == [(2, 3), (2, 3), (2, 7), (2, 7)]


def test_a_rank_that_never_comes_is_a_deadlock_at_once() -> None:
    def scenario(ctx: Any) -> None:
        dist.destroy_process_group()
        if ctx.rank:
            dist.init_process_group("gloo")

    result = meshsim.run(scenario, "dp=3", timeout=600)
    assert result.verdict.kind == "deadlock"
    assert "returned" in result.verdict.summary
    assert result.duration < 60


def test_a_second_default_group_beside_the_first_is_torch_s_error() -> None:
    verdict = meshsim.run(lambda ctx: dist.init_process_group("gloo"), "dp=2").verdict
    assert "default process group twice" in verdict.summary


def test_a_backend_that_is_not_here_is_named() -> None:
    def scenario(ctx: Any) -> None:
        dist.destroy_process_group()
        dist.init_process_group("nccl")

    verdict = meshsim.run(scenario, "dp=2").verdict
    assert "'nccl'" in verdict.summary
    assert "use 'gloo'" in verdict.summary


def test_a_default_argument_taken_in_an_import_is_no_rank_s_group(
    passed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_in_a_run.py").write_text(
        "import torch.distributed as dist\n"
        "def total(x, group=dist.group.WORLD):\n"
        "    dist.all_reduce(x, group=group)\n"
        "    return x.item()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def scenario(ctx: Any) -> float:
        from imported_in_a_run import total

        return total(torch.tensor([ctx.rank + 1.0]))

    for _ in range(2):
        assert passed(scenario, "dp=3") == [6, 6, 6]


def test_a_group_shared_through_a_global_variable_is_explained() -> None:
    kept: list[Any] = []

    def scenario(ctx: Any) -> None:
        kept[:] = [dist.new_group([0, 1])]
        dist.barrier()
        kept[0].allreduce([torch.ones(1)]).wait()

    verdict = meshsim.run(scenario, "dp=2").verdict
    assert verdict.kind == "raised"
    assert "uses a process group of rank" in verdict.summary
    assert "isolate=" in verdict.summary
