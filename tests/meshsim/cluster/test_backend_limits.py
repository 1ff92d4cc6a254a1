"""What a backend doesn't have: refused with the reason, or not run. Never a failure of the scenario's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshsim
from meshsim.errors import UnsupportedCall, UsageError
from meshsim.trace import TraceEvent
from meshsim.worlds.calls import Call
from meshsim.worlds.refusal import refuser


@pytest.mark.parametrize("case", ["CLUS-04"])
@pytest.mark.parametrize(
    ("need", "profile", "told"),
    [
        (
            "all_reduce float64 SUM",
            "hccl",
            "HCCL has all_reduce with SUM of float64 on its newest chips only",
        ),
        ("all_reduce float32 PREMUL_SUM", None, "gloo has no all_reduce with PREMUL_SUM"),
        ("all_reduce int64 AVG", None, "gloo has no all_reduce with AVG of int64"),
        ("all_reduce int64 BAND", "nccl", "NCCL has no all_reduce with BAND"),
        ("broadcast complex64", "hccl", "HCCL has no broadcast of complex64"),
        ("all_gather_object", "nccl", "NCCL can't all_gather_object"),
    ],
)
def test_scenario_that_needs_what_a_backend_lacks_is_not_run(
    case: str, need: str, profile: str | None, told: str
) -> None:
    def scenario(ctx: Any) -> None:
        raise AssertionError("it was run")

    scenario.needs = ["all_reduce float32 SUM", need]  # type: ignore[attr-defined]
    result = meshsim.run(scenario, "dp=2", profile=profile)
    assert result.not_run
    assert result.verdict.summary.startswith(f"unsupported: {told}")


def test_needs_that_the_backend_has_are_run_and_mistakes_in_them_are_told() -> None:
    def scenario(ctx: Any) -> int:
        return 1

    scenario.needs = "all_reduce int64 SUM"  # type: ignore[attr-defined]
    assert meshsim.run(scenario, "dp=2", profile="hccl").returns == [1, 1]
    scenario.needs = ["all_reduce int46 SUM"]  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="'all_reduce int46 SUM' can't be read; write the operation"):
        meshsim.run(scenario, "dp=2")


@pytest.mark.parametrize("case", ["CLUS-05"])
@pytest.mark.parametrize("backend", ["fake", "gloo"])
@pytest.mark.parametrize(
    ("what", "told"), [("premul", "PREMUL_SUM"), ("average", "AVG of int64: use SUM and divide")]
)
def test_gloo_refuses_on_every_rank_with_the_reason(case: str, backend: str, what: str, told: str) -> None:
    def scenario(ctx: Any) -> None:
        if what == "premul":
            dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(2.0))
        else:
            dist.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.AVG)

    result = meshsim.run(scenario, "dp=3", backend=backend)
    assert result.verdict.kind == "unsupported"
    assert result.verdict.ranks == (0, 1, 2)
    for report in result.ranks:
        assert report.failure is not None
        assert told in report.failure.message


def _call(tensor: torch.Tensor) -> Call:
    event = TraceEvent(0, 0, "all_reduce", (0, 1), dtype="float32", shapes=((2,),), numel=2, reduce_op="SUM")
    return Call(event, "allreduce", (), [tensor], [tensor])


@pytest.mark.parametrize("case", ["CLUS-06"])
@pytest.mark.parametrize(("backend", "name", "device"), [("nccl", "NCCL", "cuda"), ("hccl", "HCCL", "npu")])
def test_cpu_tensor_on_an_accelerators_group_names_device_and_backend(
    case: str, backend: str, name: str, device: str
) -> None:
    with pytest.raises(
        UnsupportedCall, match=f"{name} has no backend for device cpu: move the tensor to {device}"
    ):
        refuser(backend, None)(_call(torch.ones(2)))
    refuser("gloo", None)(_call(torch.ones(2)))


@pytest.mark.parametrize("case", ["CLUS-06"])
def test_object_collective_with_a_profile_is_refused_on_every_rank(case: str) -> None:
    def scenario(ctx: Any) -> None:
        dist.all_gather_object([None] * ctx.world_size, ctx.rank)

    result = meshsim.run(scenario, "dp=3", profile="nccl")
    assert result.verdict.kind == "unsupported"
    assert result.verdict.ranks == (0, 1, 2)
    for report in result.ranks:
        assert report.failure is not None
        assert (
            "NCCL can't all_gather_object: the group has no backend for device cpu" in report.failure.message
        )
