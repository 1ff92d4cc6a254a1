"""What collectives give, by hand: four ranks, each with its rank + 1 unless said."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

WAYS = [pytest.param(False, id="sync"), pytest.param(True, id="async")]
REDUCED = {"SUM": 10, "AVG": 2.5, "MIN": 1, "MAX": 4, "PRODUCT": 24}
BITWISE = {"BAND": 0, "BOR": 7, "BXOR": 4}
EVERY_OP = [*REDUCED.items(), *BITWISE.items()]
SCATTERED = {
    "SUM": [6, 10, 14, 18],
    "AVG": [1.5, 2.5, 3.5, 4.5],
    "MIN": [0, 1, 2, 3],
    "MAX": [3, 4, 5, 6],
    "PRODUCT": [0, 24, 120, 360],
}
EXCHANGED = [[0, 10, 20, 30], [1, 11, 21, 31], [2, 12, 22, 32], [3, 13, 23, 33]]
UNEVEN = [
    [],
    [1, 11, 21, 31],
    [2, 2, 12, 12, 22, 22, 32, 32],
    [3, 3, 3, 13, 13, 13, 23, 23, 23, 33, 33, 33],
]


def own(ctx: Any, op: str = "SUM") -> torch.Tensor:
    return torch.tensor([ctx.rank + 1], dtype=torch.int64 if op in BITWISE else torch.float64)


def finish(work: Any, is_async: bool) -> None:
    assert (work is not None) == is_async
    if is_async:
        assert work.wait()


def empties(count: int = 4) -> list[torch.Tensor]:
    return [torch.zeros(1) for _ in range(count)]


@pytest.mark.parametrize("is_async", WAYS)
@pytest.mark.parametrize(("op", "value"), EVERY_OP, ids=[f"COLL-01-{op}" for op, _ in EVERY_OP])
def test_all_reduce(passed: Any, op: str, value: float, is_async: bool) -> None:
    def scenario(ctx: Any) -> float:
        x = own(ctx, op)
        finish(dist.all_reduce(x, getattr(dist.ReduceOp, op), async_op=is_async), is_async)
        return x.item()

    assert passed(scenario, "dp=4") == [value] * 4


@pytest.mark.parametrize("is_async", WAYS)
@pytest.mark.parametrize(("op", "value"), EVERY_OP, ids=[f"COLL-02-{op}" for op, _ in EVERY_OP])
def test_reduce(passed: Any, op: str, value: float, is_async: bool) -> None:
    def scenario(ctx: Any) -> float | None:
        x = own(ctx, op)
        finish(dist.reduce(x, 2, getattr(dist.ReduceOp, op), async_op=is_async), is_async)
        return x.item() if ctx.rank == 2 else None

    assert passed(scenario, "dp=4") == [None, None, value, None]


@pytest.mark.parametrize("is_async", WAYS)
@pytest.mark.parametrize("form", ["list", "tensor"])
@pytest.mark.parametrize(("op", "values"), SCATTERED.items(), ids=[f"COLL-03-{op}" for op in SCATTERED])
def test_reduce_scatter(passed: Any, op: str, values: list[float], form: str, is_async: bool) -> None:
    def scenario(ctx: Any) -> float:
        source = torch.arange(4.0) + ctx.rank
        output, kind = torch.zeros(1), getattr(dist.ReduceOp, op)
        if form == "list":
            work = dist.reduce_scatter(output, list(source.split(1)), kind, async_op=is_async)
        else:
            work = dist.reduce_scatter_tensor(output, source, kind, async_op=is_async)
        finish(work, is_async)
        return output.item()

    assert passed(scenario, "dp=4") == values


@pytest.mark.parametrize("is_async", WAYS)
@pytest.mark.parametrize("form", ["list", "tensor"])
def test_all_gather_COLL_04(passed: Any, form: str, is_async: bool) -> None:
    def scenario(ctx: Any) -> list[float]:
        if form == "list":
            outputs = empties()
            finish(dist.all_gather(outputs, own(ctx).float(), async_op=is_async), is_async)
            return torch.cat(outputs).tolist()
        output = torch.zeros(4)
        finish(dist.all_gather_into_tensor(output, own(ctx).float(), async_op=is_async), is_async)
        return output.tolist()

    assert passed(scenario, "dp=4") == [[1, 2, 3, 4]] * 4


@pytest.mark.parametrize("is_async", WAYS)
@pytest.mark.parametrize("form", ["list", "single"])
def test_all_to_all_COLL_05(passed: Any, form: str, is_async: bool) -> None:
    def scenario(ctx: Any) -> list[float]:
        source, output = 10.0 * ctx.rank + torch.arange(4.0), torch.zeros(4)
        if form == "list":
            work = dist.all_to_all(list(output.split(1)), list(source.split(1)), async_op=is_async)
        else:
            work = dist.all_to_all_single(output, source, async_op=is_async)
        finish(work, is_async)
        return output.tolist()

    assert passed(scenario, "dp=4") == EXCHANGED


@pytest.mark.parametrize("is_async", WAYS)
def test_all_to_all_single_with_uneven_splits_COLL_06(passed: Any, is_async: bool) -> None:
    def scenario(ctx: Any) -> list[float]:
        source = torch.cat([torch.full((to,), 10.0 * ctx.rank + to) for to in range(4)])
        output = torch.zeros(4 * ctx.rank)
        splits = [ctx.rank] * 4, [0, 1, 2, 3]
        finish(dist.all_to_all_single(output, source, *splits, async_op=is_async), is_async)
        return output.tolist()

    assert passed(scenario, "dp=4") == UNEVEN


@pytest.mark.parametrize("is_async", WAYS)
def test_broadcast_scatter_and_gather_COLL_07(passed: Any, is_async: bool) -> None:
    def scenario(ctx: Any) -> tuple[float, float, list[float] | None]:
        x = own(ctx)
        finish(dist.broadcast(x, 2, async_op=is_async), is_async)
        mine = torch.zeros(1)
        parts = list(torch.tensor([10.0, 20.0, 30.0, 40.0]).split(1)) if ctx.rank == 1 else None
        finish(dist.scatter(mine, parts, src=1, async_op=is_async), is_async)
        outputs = empties() if ctx.rank == 3 else None
        finish(dist.gather(own(ctx).float(), outputs, dst=3, async_op=is_async), is_async)
        return x.item(), mine.item(), torch.cat(outputs).tolist() if outputs else None

    assert passed(scenario, "dp=4") == [
        (3, 10, None),
        (3, 20, None),
        (3, 30, None),
        (3, 40, [1, 2, 3, 4]),
    ]


def test_objects_COLL_08(passed: Any) -> None:
    def scenario(ctx: Any) -> tuple[Any, ...]:
        everyone: list[Any] = [None] * 4
        dist.all_gather_object(everyone, {"r": ctx.rank})
        one = [f"of {ctx.rank}"]
        dist.broadcast_object_list(one, 1)
        part: list[Any] = [None]
        dist.scatter_object_list(part, ["o0", "o1", "o2", "o3"] if ctx.rank == 0 else None, src=0)
        squares = [None] * 4 if ctx.rank == 0 else None
        dist.gather_object(ctx.rank**2, squares, dst=0)
        return everyone, one, part, squares

    dicts = [{"r": 0}, {"r": 1}, {"r": 2}, {"r": 3}]
    assert passed(scenario, "dp=4") == [
        (dicts, ["of 1"], [f"o{rank}"], [0, 1, 4, 9] if rank == 0 else None) for rank in range(4)
    ]


def test_ring_COLL_09(passed: Any) -> None:
    def scenario(ctx: Any) -> float:
        received = torch.zeros(1)
        operations = [
            dist.P2POp(dist.isend, own(ctx).float(), (ctx.rank + 1) % 4),
            dist.P2POp(dist.irecv, received, (ctx.rank - 1) % 4),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return received.item()

    assert passed(scenario, "dp=4") == [4, 1, 2, 3]


@pytest.mark.parametrize("is_async", WAYS)
def test_pairs_COLL_10(passed: Any, is_async: bool) -> None:
    def scenario(ctx: Any) -> tuple[float, int | None] | None:
        if ctx.rank % 2 == 0:
            if is_async:
                dist.isend(own(ctx), ctx.rank + 1).wait()
            else:
                dist.send(own(ctx), ctx.rank + 1)
            return None
        x, source = torch.zeros(1, dtype=torch.float64), None
        if is_async:
            dist.irecv(x, ctx.rank - 1).wait()
        else:
            source = dist.recv(x, ctx.rank - 1)
        return x.item(), source

    sources = (None, None) if is_async else (0, 2)
    assert passed(scenario, "dp=4") == [None, (1, sources[0]), None, (3, sources[1])]


def test_collectives_on_every_axis_of_a_mesh_COLL_11(passed: Any) -> None:
    def scenario(ctx: Any) -> tuple[float, ...]:
        found = []
        for axis in ("pp", "dp", "cp", "tp"):
            x = torch.tensor([2.0**ctx.rank])
            mesh = ctx.mesh.pp_mesh if axis == "pp" else ctx.mesh.device_mesh[axis]
            dist.all_reduce(x, group=mesh.get_group())
            found.append(x.item())
        return tuple(found)

    # Rank = 8 pp + 4 dp + 2 cp + tp; the ranks along an axis differ in that digit alone.
    expected = [tuple(2.0**rank + 2.0 ** (rank ^ step) for step in (8, 4, 2, 1)) for rank in range(16)]
    assert passed(scenario, "pp=2,dp=2,cp=2,tp=2") == expected


def test_token_mean_over_the_loss_group_COLL_12(passed: Any) -> None:
    def scenario(ctx: Any) -> tuple[float, float]:
        loss, tokens = [(12.0, 6.0), (6.0, 2.0), (4.0, 4.0), (8.0, 4.0)][ctx.rank]
        total = torch.tensor([loss, tokens])
        dist.all_reduce(total, group=ctx.mesh.dp_cp_mesh.get_group())
        mean_of_means = torch.tensor([loss / tokens])
        dist.all_reduce(mean_of_means, dist.ReduceOp.AVG)
        return (total[0] / total[1]).item(), mean_of_means.item()

    assert passed(scenario, "dp=2,cp=2") == [(1.875, 2.0)] * 4


def test_global_norm_counts_the_replicated_part_once_COLL_13(passed: Any) -> None:
    def scenario(ctx: Any) -> tuple[float, float]:
        replicated, shard = torch.tensor([9.0]), torch.tensor([16.0])
        everything = replicated + shard
        group = ctx.mesh.device_mesh["tp"].get_group()
        dist.all_reduce(shard, group=group)
        dist.all_reduce(everything, group=group)
        return math.sqrt(replicated.item() + shard.item()), math.sqrt(everything.item())

    for right, wrong in passed(scenario, "tp=2"):
        assert right == pytest.approx(6.4031, abs=1e-4)
        assert wrong == pytest.approx(7.0711, abs=1e-4)
