"""The private calls of torch that meshlib depends on, all of them. Each was tried on torch 2.13.0.

They are needed because torch has no public way to name a process group (its names count the groups of the
process, so that ranks which hold different numbers of groups never meet), and none to make a mesh whose
axes have groups of one's own and whose slices share a root.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

TRIED_ON = "2.13.0"


class TorchChanged(RuntimeError):
    """A private part of torch isn't where it was."""


def _private(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        owner_name = getattr(owner, "__name__", type(owner).__name__)
        raise TorchChanged(
            f"torch {torch.__version__} has no {owner_name}.{name}; meshlib was tried on torch {TRIED_ON}"
        ) from None


def default_group() -> dist.ProcessGroup:
    """The default process group, which must be up."""
    group = dist.group.WORLD
    if group is None:
        raise RuntimeError("there is no process group: call torch.distributed.init_process_group() first")
    return group


def default_store() -> Any:
    """The key-value store of the default process group. torch 2.13.0 has no public call for it."""
    return _private(c10d, "_get_default_store")()


def group_timeout(group: dist.ProcessGroup, device: torch.device) -> timedelta | None:
    """The timeout of a group's backend for a device; None where the backend has no such option. Tried on
    2.13.0.
    """
    try:
        options = _private(group, "_get_backend")(device).options
    except RuntimeError:
        return None
    timeout: timedelta | None = getattr(options, "_timeout", None)
    return timeout


def device_types(group: dist.ProcessGroup) -> tuple[str, ...]:
    """The device types that a group has backends for. Tried on 2.13.0."""
    return tuple(device.type for device in _private(group, "_device_types"))


def is_registered(group: dist.ProcessGroup) -> bool:
    """Whether c10d still holds the group: it hasn't been destroyed, alone or with the world. Tried on
    2.13.0.
    """
    return group in _private(c10d, "_world").pg_map


def create_group(
    ranks: Sequence[int],
    *,
    name: str,
    description: str,
    timeout: timedelta | None,
    backend: str | None,
    options: Any,
) -> dist.ProcessGroup:
    """A process group that only its members create, under a name of our own. Tried on 2.13.0.

    ``dist.new_group(use_local_synchronization=True)`` does the same, but names the group after its ranks
    and the number of groups that this process holds. Members that hold different numbers would wait for
    each other for ever.
    """
    world, default = _private(c10d, "_world"), default_group()
    default_backend, store = world.pg_map[default]
    kind = dist.Backend(backend or default_backend)
    if timeout is None:
        timeout = _private(c10d, "_get_default_timeout")(kind)
    mapping = {rank: place for place, rank in enumerate(ranks)}
    group_name = _private(c10d, "GroupName")(name)
    own_factory = getattr(default, "new_group", None)
    if callable(own_factory):
        # Default groups written in Python make their own subgroups; new_group registers them like this.
        group: dist.ProcessGroup = own_factory(
            list(ranks), timeout=timeout, pg_options=options, group_name=group_name, group_desc=description
        )
        _private(c10d, "_register_pg_in_world")(
            group,
            backend_name=kind,
            store=_private(dist, "PrefixStore")(f"{group_name}/", store),
            group_name=group_name,
            backend_config=str(_private(c10d, "BackendConfig")(kind)),
            rank_mapping=mapping,
        )
        return group
    made: dist.ProcessGroup
    # With a device bound to it, the default group would be split, which all its ranks have to take part in.
    bound, default.bound_device_id = default.bound_device_id, None
    try:
        made, _ = _private(c10d, "_new_process_group_helper")(
            len(ranks),
            mapping[default.rank()],
            list(ranks),
            kind,
            store,
            group_name,
            backend_options=options,
            timeout=timeout,
            group_desc=description,
        )
    finally:
        default.bound_device_id = bound
    world.pg_group_ranks[made] = mapping
    return made


@lru_cache(maxsize=1024)
def mesh_layout(axes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> Any:
    """The layout of a ``DeviceMesh``: for each axis the sizes and strides that it is made of. Tried on
    2.13.0.
    """
    from torch.distributed import _mesh_layout

    flat = _private(_mesh_layout, "_FlatLayout")
    return _private(_mesh_layout, "_MeshLayout")([flat(sizes, strides) for sizes, strides in axes])


def fill_device_mesh(
    mesh: Any,
    *,
    device_type: str,
    layout: Any,
    rank_map: torch.Tensor,
    flat_rank_map: tuple[int, ...],
    names: tuple[str, ...] | None,
    root: Any,
    groups: Sequence[dist.ProcessGroup],
    rank: int,
    coordinate: tuple[int, ...] | None,
    thread: int | None,
) -> None:
    """Give a ``DeviceMesh`` what its own ``__init__`` would work out, and its groups. Tried on 2.13.0.

    ``DeviceMesh.__init__(_init_backend=False)`` derives all of this from tensors, which at hundreds of
    ranks in one process is most of the time that a binding takes. A test compares the two.
    """
    mesh._device_type = device_type
    mesh._layout = layout
    mesh._rank_map = rank_map
    mesh._mesh_dim_names = names
    mesh._root_mesh = root
    mesh._flatten_rank_map = flat_rank_map
    mesh._thread_id = thread
    mesh._flatten_mapping = {}
    mesh._pg_registry = {}
    mesh._rank = rank
    mesh._coordinate_on_dim = coordinate
    mesh._hash = None
    mesh._dim_group_names = [group.group_name for group in groups]
    registry = mesh._pg_registry if root is None else root._pg_registry
    for group in groups:
        registry[group.group_name] = group


def rank_thread(default: dist.ProcessGroup) -> int | None:
    """The thread's id where ranks are threads of one process: DTensor's caches must not hand one rank's
    mesh to another.

    torch does this for its own threaded backend. Default groups written in Python are the other case.
    """
    if type(default) is dist.ProcessGroup or threading.current_thread() is threading.main_thread():
        return None
    return threading.get_ident()
