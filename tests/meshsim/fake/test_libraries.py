"""What users build on torch.distributed runs unchanged, and gives what one process computes."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import mse_loss

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

STEPS = 3
NEAR = 1e-6
COARSE = 2e-3
"""Of parameters after three steps in which gradients or activations went through bfloat16."""


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(1)
    return torch.randn(8, 8, generator=numbers), torch.randn(8, 4, generator=numbers)


def share(place: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = data()
    return x.chunk(parts)[place], y.chunk(parts)[place]


def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor, optimizer: Any = None) -> None:
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(net(x).float(), y).backward()
        optimizer.step()


@pytest.fixture(scope="module")
def alone() -> list[torch.Tensor]:
    """The parameters after one process has trained on all the data."""
    state = torch.get_rng_state()
    net = model()
    train(net, *data())
    torch.set_rng_state(state)
    return [parameter.detach() for parameter in net.parameters()]


def off(parameters: Iterable[torch.Tensor], reference: list[torch.Tensor]) -> float:
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parameters]
    return max((a - b).abs().max().item() for a, b in zip(whole, reference, strict=True))


def bf16_hook(state, bucket):  # type: ignore[no-untyped-def] # DDP refuses annotations that are text
    squeezed = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    work = dist.all_reduce(squeezed, async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))


DDP_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "small buckets": {"bucket_cap_mb": 0.0001},
    "static_graph": {"static_graph": True},
}


@pytest.mark.parametrize("options", DDP_OPTIONS)
def test_ddp(passed: Any, alone: list[torch.Tensor], options: str) -> None:
    def scenario(ctx: Any) -> float:
        net = nn.parallel.DistributedDataParallel(model(), **DDP_OPTIONS[options])
        train(net, *share(ctx.rank, 2))
        return off(net.parameters(), alone)

    assert max(passed(scenario, "dp=2")) < NEAR


def test_ddp_with_a_communication_hook(passed: Any, alone: list[torch.Tensor]) -> None:
    def scenario(ctx: Any) -> float:
        net = nn.parallel.DistributedDataParallel(model())
        net.register_comm_hook(None, bf16_hook)
        train(net, *share(ctx.rank, 2))
        return off(net.parameters(), alone)

    differences = passed(scenario, "dp=2")
    assert 0 < max(differences) < COARSE


def test_ddp_under_join(passed: Any) -> None:
    from torch.distributed.algorithms.join import Join

    def scenario(ctx: Any) -> float:
        net = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
        with torch.no_grad():
            net.module.weight.fill_(1.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        with Join([net]):
            for batch in range(3 - ctx.rank):
                optimizer.zero_grad()
                net(torch.full((1, 1), batch + 1.0)).sum().backward()
                optimizer.step()
        return net.module.weight.item()

    # The mean gradients are 1 and 2, then 3 of one rank over the two that there were.
    assert passed(scenario, "dp=2") == [1 - 1 - 2 - 1.5] * 2


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("topology", "shape", "names"),
    [("dp=4", (4,), ("shard",)), ("dp=4", (2, 2), ("replicate", "shard"))],
    ids=["FSDP", "HSDP"],
)
def test_fully_shard(
    passed: Any,
    alone: list[torch.Tensor],
    topology: str,
    shape: tuple[int, ...],
    names: tuple[str, ...],
    mixed: bool,
) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def scenario(ctx: Any) -> tuple[float, float]:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if mixed else None, reduce_dtype=torch.float32
        )
        net = model()
        for layer in (net[0], net[2]):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(net, mesh=mesh, mp_policy=policy)
        train(net, *share(ctx.rank, 4))
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1e9).full_tensor().item()
        return off(net.parameters(), alone), norm

    values = passed(scenario, topology)
    assert max(difference for difference, _ in values) < (COARSE if mixed else NEAR)
    assert len({norm for _, norm in values}) == 1


def test_tensor_parallel_and_its_norm(passed: Any, alone: list[torch.Tensor]) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    single = model()
    train(single, *data())
    expected = nn.utils.clip_grad_norm_(single.parameters(), 1e9).item()

    def scenario(ctx: Any) -> tuple[float, float]:
        mesh = ctx.mesh.device_mesh["tp"]
        net = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        train(net, *data())
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1e9)
        return off(net.parameters(), alone), norm.full_tensor().item()

    for difference, norm in passed(scenario, "tp=2"):
        assert difference < NEAR
        assert norm == pytest.approx(expected, rel=1e-5)


def test_redistributing_uneven_shards(passed: Any) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    whole = torch.arange(35.0).reshape(7, 5)

    def scenario(ctx: Any) -> tuple[Any, ...]:
        mesh = init_device_mesh("cpu", (3,))
        rows = distribute_tensor(whole, mesh, [Shard(0)])
        columns = rows.redistribute(placements=[Shard(1)])
        ones = DTensor.from_local(torch.full((6,), ctx.rank + 1.0), mesh, [Partial()])
        return (
            torch.equal(columns.full_tensor(), whole),
            torch.equal(columns.redistribute(placements=[Replicate()]).to_local(), whole),
            tuple(rows.to_local().shape),
            tuple(columns.to_local().shape),
            ones.redistribute(placements=[Shard(0)]).to_local().tolist(),
        )

    shapes = [((3, 5), (7, 2)), ((3, 5), (7, 2)), ((1, 5), (7, 1))]
    assert passed(scenario, "tp=3") == [(True, True, rows, columns, [6, 6]) for rows, columns in shapes]


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"])
def test_pipelines(passed: Any, schedule: str) -> None:
    from torch.distributed import pipelining

    def scenario(ctx: Any) -> float:
        torch.manual_seed(0)
        layers = [nn.Linear(4, 4) for _ in range(4)]
        reference = copy.deepcopy(nn.Sequential(*layers))
        numbers = torch.Generator().manual_seed(1)
        x, y = torch.randn(8, 4, generator=numbers), torch.randn(8, 4, generator=numbers)
        kind, device = getattr(pipelining, schedule), torch.device("cpu")
        if schedule == "ScheduleInterleaved1F1B":
            mine = [ctx.rank, ctx.rank + 2]
            stages: Any = [pipelining.PipelineStage(layers[at], at, 4, device) for at in mine]
        else:
            mine = [2 * ctx.rank, 2 * ctx.rank + 1]
            part = nn.Sequential(*(layers[at] for at in mine))
            stages = pipelining.PipelineStage(part, ctx.rank, 2, device)
        losses: list[torch.Tensor] = []
        run = kind(stages, n_microbatches=4, loss_fn=mse_loss)
        run.step(x) if ctx.rank == 0 else run.step(target=y, losses=losses)
        mse_loss(reference(x), y).backward()
        return max((layers[at].weight.grad - reference[at].weight.grad).abs().max().item() for at in mine)

    assert max(passed(scenario, "pp=2")) < NEAR


@pytest.mark.parametrize("way", ["save", "async_save"])
def test_distributed_checkpoints(passed: Any, tmp_path: Path, way: str) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    def scenario(ctx: Any) -> bool:
        net = fully_shard(model())
        before = [p.full_tensor().clone() for p in net.parameters()]
        saved = getattr(dcp, way)(net.state_dict(), checkpoint_id=tmp_path)
        if way == "async_save":
            saved.result()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
        dcp.load(net.state_dict(), checkpoint_id=tmp_path)
        return off(net.parameters(), before) == 0

    assert passed(scenario, "dp=2") == [True, True]


def test_zero_redundancy_optimizer(passed: Any) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def scenario(ctx: Any) -> float:
        net, reference = model(), model()
        train(net, *data(), ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.1))
        train(reference, *data(), torch.optim.Adam(reference.parameters(), lr=0.1))
        return off(net.parameters(), [p.detach() for p in reference.parameters()])

    assert max(passed(scenario, "dp=2")) < NEAR


def test_sync_batch_norm_is_refused_by_torch_on_cpu(passed: Any) -> None:
    def scenario(ctx: Any) -> None:
        net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3))
        with pytest.raises(ValueError, match="expected input tensor to be on GPU"):
            net(torch.ones(4, 3))

    passed(scenario, "dp=2")


def test_a_compiled_function_that_communicates(passed: Any) -> None:
    import torch.distributed._functional_collectives as functional

    def scenario(ctx: Any) -> list[float]:
        @torch.compile(backend="eager", fullgraph=True)
        def doubled_sum(x: torch.Tensor) -> torch.Tensor:
            return functional.all_reduce(x, "sum", dist.group.WORLD) * 2

        return doubled_sum(torch.tensor([ctx.rank + 1.0])).tolist()

    assert passed(scenario, "dp=2") == [[6], [6]]
