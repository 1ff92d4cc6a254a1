"""The context: a plan bound to this rank and to its meshes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from meshlib.dims import ParallelDims
from meshlib.errors import MeshError, TopologyError
from meshlib.grid import Grid
from meshlib.integers import checked_rank
from meshlib.offline import OfflineMesh, mesh_on_grid
from meshlib.plan import MeshPlan
from meshlib.process_group import default_device_type, has_process_group
from meshlib.size_rules import SIZE_AXES
from meshlib.stage_meshes import expert_axes, stage_mesh
from meshlib.timeouts import as_timedelta

if TYPE_CHECKING:
    from meshlib.binding import Binding

Mesh = "LiveMesh | OfflineMesh"


@dataclass(eq=False)
class MeshContext:
    """This rank's meshes, sizes and coordinates.

    Made from sizes (None: unset) and filled by :meth:`build_meshes`, from a plan with :meth:`from_plan`, or
    in one call with ``build_mesh_context``. After binding all sizes are numbers. It is a context manager:
    leaving it tears its process groups down.

    =====================  ==================================================  ======================
    mesh                   axes                                                ranks
    =====================  ==================================================  ======================
    ``device_mesh``        ``(dp, cp, tp)``                                    this rank's pipeline stage
    ``fsdp_non_moe_mesh``  ``(fsdp_replicate, fsdp_shard, tp)``                the same
    ``fsdp_moe_mesh``      ``([edp_replicate,] edp_shard, ep)``; None at ep_size 1the same
    ``dp_cp_mesh``         ``(dp_cp,)``                                        the FSDP domain
    ``cp_mesh``            ``(cp,)``; None at cp_size 1                        this rank's cp group
    ``pp_mesh``            ``(pp,)``                                           this rank's pipeline
    =====================  ==================================================  ======================
    """

    device_mesh: Any = None
    fsdp_non_moe_mesh: Any = None
    fsdp_moe_mesh: Any = None
    dp_size: int | None = None
    dp_replicate_size: int | None = None
    dp_shard_size: int | None = None
    edp_shard_size: int | None = None
    tp_size: int = 1
    cp_size: int = 1
    pp_size: int = 1
    ep_size: int = 1
    dp_rank: int = 0
    tp_rank: int = 0
    cp_rank: int = 0
    pp_rank: int = 0
    ep_rank: int = 0
    sequence_parallel: bool = False
    loss_parallel: bool = False
    _plan: MeshPlan | None = field(init=False, repr=False, default=None)
    _rank: int | None = field(init=False, repr=False, default=None)
    _pp_mesh: Any = field(init=False, repr=False, default=None)
    _binding: Binding | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        for name in ("sequence_parallel", "loss_parallel"):
            if not isinstance(getattr(self, name), bool):
                raise TopologyError(f"{name} must be True or False, got {getattr(self, name)!r}")

    @classmethod
    def from_plan(
        cls, plan: MeshPlan, *, sequence_parallel: bool = False, loss_parallel: bool = False
    ) -> MeshContext:
        """A context of a plan, without meshes until :meth:`build_meshes`."""
        context = cls(sequence_parallel=sequence_parallel, loss_parallel=loss_parallel)
        context._take_plan(plan)
        return context

    # Binding

    def build_meshes(
        self,
        device_type: str,
        world_size: int,
        *,
        timeout: timedelta | float | None = None,
        options: Any = None,
    ) -> MeshContext:
        """Fill the meshes and the rank fields; every rank of the world calls it. Returns the context.

        ``timeout`` (a timedelta or seconds) and ``options`` hold for every group: base, flattened and expert.
        ``options`` is a backend's ``Options``, a backend's name, a pair of both, or a mapping from axes to
        these. Without a process group the meshes are offline ones.

        Raises ``TopologyError`` where the sizes don't fit the world, ``PlanDisagreement`` on every rank
        where ranks ask for different meshes; both before any group is made. Building again replaces the
        meshes.
        """
        self.close()
        if not has_process_group():
            as_timedelta(timeout)
            self._take_plan(self._planned(world_size))
            self._fill_offline(self._rank or 0)
            return self
        self._bind(device_type, world_size, timeout, options)
        return self

    build_meshs = build_meshes

    def _bind(
        self, device_type: str, world_size: int, timeout: timedelta | float | None, options: Any
    ) -> None:
        import torch.distributed as dist

        from meshlib.binding import bind, group_axes, world_round
        from meshlib.groups import GroupOptions

        try:
            plan = self._planned(world_size)
            _check_world(plan.world_size, dist.get_world_size())
            checked = GroupOptions(timeout, options, group_axes(plan))
        except MeshError as error:
            # The others are about to wait for this rank.
            world_round(device_type, None).refuse(dist.get_rank(), str(error))
            raise
        binding = bind(plan, device_type, checked, as_timedelta(timeout))
        self._take_plan(plan)
        self._binding = binding
        self._fill(
            dist.get_rank(),
            binding.device_mesh,
            binding.fsdp_non_moe_mesh,
            binding.fsdp_moe_mesh,
            binding.pp_mesh,
        )

    def _planned(self, world_size: int) -> MeshPlan:
        if self._plan is not None:
            _check_world(self._plan.world_size, world_size)
            return self._plan
        dims = ParallelDims(**{f"{axis}_size": getattr(self, f"{axis}_size") for axis in SIZE_AXES})
        return MeshPlan.build(dims, world_size)

    def _take_plan(self, plan: MeshPlan) -> None:
        self._plan = plan
        for axis, size in plan.dims.sizes().items():
            setattr(self, f"{axis}_size", size)

    def _fill(self, rank: int, device_mesh: Any, fsdp: Any, moe: Any, pp: Any) -> None:
        plan = self.plan
        self._rank = rank
        self.device_mesh, self.fsdp_non_moe_mesh, self.fsdp_moe_mesh, self._pp_mesh = (
            device_mesh,
            fsdp,
            moe,
            pp,
        )
        dense = plan.coordinate(rank)
        self.dp_rank, self.tp_rank, self.cp_rank, self.pp_rank = (dense[a] for a in ("dp", "tp", "cp", "pp"))
        self.ep_rank = plan.coordinate(rank, "expert")["ep"]

    def _fill_offline(self, rank: int) -> None:
        plan = self.plan
        number = checked_rank(rank, plan.world_size)

        def mesh(view: str, axes: tuple[str, ...], flat: Mapping[str, tuple[int, ...]] = {}) -> OfflineMesh:
            return mesh_on_grid(axes, stage_mesh(plan, view, axes, number).grid, rank=number, flat=flat)

        pp_ranks = plan.group("pp", number)
        self._fill(
            number,
            mesh("dense", ("dp", "cp", "tp"), {"dp_cp": (0, 1)}),
            mesh("fsdp", ("fsdp_replicate", "fsdp_shard", "tp")),
            mesh("expert", expert_axes(plan)) if plan.dims.ep_size > 1 else None,
            mesh_on_grid(("pp",), Grid(pp_ranks, (len(pp_ranks),)), rank=number),
        )

    # What it knows

    @property
    def plan(self) -> MeshPlan:
        """The plan behind the meshes."""
        if self._plan is None:
            raise MeshError("this context has no plan yet: call build_meshes(device_type, world_size)")
        return self._plan

    @property
    def rank(self) -> int:
        """This rank, in the world."""
        if self._rank is None:
            raise MeshError(
                "this context isn't bound to a rank yet: call build_meshes(device_type, world_size)"
            )
        return self._rank

    @property
    def pp_enabled(self) -> bool:
        """Whether there is more than one pipeline stage."""
        return self.pp_size > 1

    @property
    def dp_cp_mesh(self) -> Any:
        """The 1-D mesh ``dp_cp`` over data and context parallel ranks, for all-reduce; None before there
        is a mesh.
        """
        return None if self.device_mesh is None else self.device_mesh["dp_cp"]

    @property
    def cp_mesh(self) -> Any:
        """The 1-D mesh ``cp``; None when ``cp_size`` is 1, or before there is a mesh."""
        return None if self.device_mesh is None or self.cp_size == 1 else self.device_mesh["cp"]

    @property
    def pp_mesh(self) -> Any:
        """The 1-D mesh ``pp`` of this rank's pipeline; None before there is a mesh."""
        return self._pp_mesh

    # Ending

    def close(self) -> None:
        """Tear down each process group that this context made, once. Meshes stay, their groups don't."""
        binding, self._binding = self._binding, None
        if binding is not None:
            binding.groups.close()

    def __enter__(self) -> MeshContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def build_mesh_context(
    dims: ParallelDims | str,
    world_size: int | None = None,
    *,
    device_type: str | None = None,
    rank: int | None = None,
    order: Sequence[str] | None = None,
    ep_scope: str = "stage",
    timeout: timedelta | float | None = None,
    options: Any = None,
    offline: bool = False,
    sequence_parallel: bool = False,
    loss_parallel: bool = False,
) -> MeshContext:
    """A bound context from ``ParallelDims`` or topology text, in one call that every rank makes.

    ``world_size`` defaults to that of the process group. ``offline=True`` gives the context of any ``rank``
    (0 by default) with offline meshes; there ``world_size`` defaults to what the sizes make.
    ``device_type`` defaults to that of the process group's backend. For ``timeout`` and ``options`` see
    :meth:`MeshContext.build_meshes`.
    """
    flags = {"sequence_parallel": sequence_parallel, "loss_parallel": loss_parallel}
    if offline:
        as_timedelta(timeout)
        requested = ParallelDims.of(dims)
        size = requested.own_world_size() if world_size is None else world_size
        plan = MeshPlan.build(requested, size, order=order, ep_scope=ep_scope)
        context = MeshContext.from_plan(plan, **flags)
        context._fill_offline(0 if rank is None else rank)
        return context
    if not has_process_group():
        raise MeshError(
            "there is no process group: call torch.distributed.init_process_group() first, "
            "or pass offline=True"
        )
    import torch.distributed as dist

    from meshlib.binding import world_round

    device = device_type or default_device_type()
    size = dist.get_world_size() if world_size is None else world_size
    try:
        if rank is not None and rank != dist.get_rank():
            raise MeshError(
                f"rank={rank} was given, but this is rank {dist.get_rank()}; "
                "leave rank out, or pass offline=True"
            )
        plan = MeshPlan.build(ParallelDims.of(dims), size, order=order, ep_scope=ep_scope)
        context = MeshContext.from_plan(plan, **flags)
    except MeshError as error:
        world_round(device, None).refuse(dist.get_rank(), str(error))
        raise
    return context.build_meshes(device, size, timeout=timeout, options=options)


def _check_world(planned: int, actual: int) -> None:
    if planned != actual:
        raise MeshError(
            f"the mesh is planned for {planned} ranks, but the world has {actual}: "
            f"build it for world_size={actual}"
        )
