"""Laying the model over the mesh: pipeline stage, experts, tensor parallelism, then FSDP.

What is summed where, in backward:

* FSDP sums each gradient over the ranks that hold the same parameter and saw other tokens: dp x cp for the
  dense ones, the expert data parallel ranks for the experts. It is told to sum, not to average, since the
  loss is already divided by the number of tokens of the whole batch.
* Tensor parallelism makes what is replicated over tp (norms, embeddings, router) come out alike
  on all tp ranks, so nothing is left to be summed there.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from meshlib import MeshContext
from meshsim.scenarios.train_step.breakage import Breakage
from meshsim.scenarios.train_step.config import TrainConfig
from meshsim.scenarios.train_step.experts import Experts, TokenRouting
from meshsim.scenarios.train_step.model import SequencePart, Stage
from meshsim.scenarios.train_step.weights import initial_weights


def build_stage(
    config: TrainConfig, mesh: MeshContext, device: torch.device, broken: Breakage = Breakage.NOTHING
) -> Stage:
    """This rank's stage with the initial weights, parallelised over the mesh."""
    # On the meta device no random weights are drawn, to be thrown away at once.
    with torch.device("meta"):
        stage = Stage(
            config,
            stage=mesh.pp_rank,
            stages=mesh.pp_size,
            part=_sequence_part(mesh),
            routing=_token_routing(mesh),
            local_mask=broken is Breakage.LOCAL_CAUSAL_MASK,
        )
    weights = initial_weights(config)
    own = {name: weights[name].to(device, copy=True) for name in stage.state_dict()}
    stage.load_state_dict(own, assign=True)
    if mesh.ep_size > 1:
        _distribute_experts(stage, mesh)
    if mesh.tp_size > 1:
        _apply_tensor_parallel(stage, mesh.fsdp_non_moe_mesh["tp"])
    _apply_fsdp(stage, mesh, broken)
    return stage


def _sequence_part(mesh: MeshContext) -> SequencePart:
    group = None if mesh.cp_mesh is None else mesh.cp_mesh.get_group()
    return SequencePart(mesh.cp_rank, mesh.cp_size, group)


def _token_routing(mesh: MeshContext) -> TokenRouting | None:
    if mesh.fsdp_moe_mesh is None:
        return None
    tp_group = mesh.device_mesh.get_group("tp") if mesh.tp_size > 1 else None
    return TokenRouting(mesh.fsdp_moe_mesh.get_group("ep"), tp_group)


def _experts(module: nn.Module) -> list[Experts]:
    return [part for part in module.modules() if isinstance(part, Experts)]


def _distribute_experts(stage: Stage, mesh: MeshContext) -> None:
    """Leave each rank its share of every layer's experts."""
    ep_mesh = mesh.fsdp_moe_mesh["ep"]
    for experts in _experts(stage):
        for name, weight in list(experts.named_parameters()):
            # Every rank has the same weights already, so nothing needs to be sent.
            own = distribute_tensor(weight.detach(), ep_mesh, [Shard(0)], src_data_rank=None)
            experts.register_parameter(name, nn.Parameter(own))


def _apply_tensor_parallel(stage: Stage, tp_mesh: DeviceMesh) -> None:
    """Heads, MLP columns and logits are split; the activations between the layers are replicated."""
    plan: dict[str, ParallelStyle] = {
        "head.logits": ColwiseParallel(output_layouts=Replicate()),
    }
    for layer, block in stage.blocks.items():
        prefix = f"blocks.{layer}"
        plan[f"{prefix}.attention.qkv"] = ColwiseParallel()
        plan[f"{prefix}.attention.out"] = RowwiseParallel()
        if not _experts(block):
            plan[f"{prefix}.feed_forward.up"] = ColwiseParallel()
            plan[f"{prefix}.feed_forward.down"] = RowwiseParallel()
    names = {name for name, _ in stage.named_modules()}
    here = {name: style for name, style in plan.items() if name in names}
    parallelize_module(stage, tp_mesh, here, src_data_rank=None)


def _apply_fsdp(stage: Stage, mesh: MeshContext, broken: Breakage) -> None:
    for experts in _experts(stage):
        broken_mesh = broken is Breakage.EXPERTS_NOT_REDUCED
        _shard(experts, mesh.fsdp_moe_mesh["edp_shard"] if broken_mesh else expert_data_parallel_mesh(mesh))
    dense = dense_data_parallel_mesh(mesh)
    if broken is Breakage.GRAD_MEAN_OVER_DP:
        dense = mesh.device_mesh["dp"]
    for block in stage.blocks.values():
        _shard(block, dense)
    _shard(stage, dense)


def _shard(module: nn.Module, mesh: DeviceMesh) -> None:
    sharded = fully_shard(module, mesh=mesh)
    sharded.set_gradient_divide_factor(1.0)
    # Without this, a factor needs a reduce op that only NCCL has.
    sharded.set_force_sum_reduction_for_comms(True)


def dense_data_parallel_mesh(mesh: MeshContext) -> DeviceMesh:
    """The FSDP mesh of all that isn't an expert: 1-D, or (replicate, shard) for HSDP."""
    fsdp: DeviceMesh = mesh.fsdp_non_moe_mesh
    return fsdp["fsdp_shard"] if mesh.dp_replicate_size == 1 else fsdp["fsdp_replicate", "fsdp_shard"]


def expert_data_parallel_mesh(mesh: MeshContext) -> DeviceMesh:
    """The FSDP mesh of the experts: the ranks that hold the same ones."""
    expert: DeviceMesh = mesh.fsdp_moe_mesh
    replicated = "edp_replicate" in (expert.mesh_dim_names or ())
    return expert["edp_replicate", "edp_shard"] if replicated else expert["edp_shard"]
