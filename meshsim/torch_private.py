"""Every call that meshsim makes into torch's private parts, in one place.

Tried on torch 2.13.0. Each access goes through :func:`_private`, so that a torch that has moved on is met
with one clear line instead of an ``AttributeError`` from deep inside a rank.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from inspect import CO_OPTIMIZED
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d as c10d

from meshsim.errors import CannotRun

# torch.distributed has these four too, without its type stubs saying so.
__all__ = [
    "AllgatherOptions",
    "C10dWorld",
    "PrefixStore",
    "Store",
    "TCPStore",
    "calls_by_non_members",
    "check_c10d_layout",
    "default_group_hidden_from_imports",
    "default_groups_made_by",
    "dtensor_custom_handlers",
    "forget_device_meshes",
    "forget_shown_warnings",
    "forget_works_of",
    "has_registered_backend",
    "in_autograd_backward",
    "install_default_group",
    "mode_stack_depths",
    "mode_stack_tops",
    "p2p_batches_told",
    "print_options_put_back",
    "start_gloo_group",
    "start_nccl_group",
    "start_registered_group",
    "stores_made_by",
    "thread_isolated_group_registry",
]

TRIED_ON = ("2.13.0",)


def _private(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise CannotRun(
            f"torch {torch.__version__} has no {getattr(owner, '__name__', owner)}.{name}; "
            f"meshsim was tried on torch {', '.join(TRIED_ON)}"
        ) from None


# The module-level dictionaries behind c10d's ``_World``; tried on 2.13.0.
_WORLD_TABLES = (
    "_pg_map",
    "_pg_names",
    "_pg_group_ranks",
    "_pg_backend_config",
    "_tags_to_pg",
    "_pg_to_tag",
)


class C10dWorld:
    """All of c10d's Python state for one rank: what a process of its own would hold."""

    __slots__ = ("backend", "coalesce", "comms", "default_pg", "group_count", "init_method", "tables")

    def __init__(self) -> None:
        self.tables: tuple[dict[Any, Any], ...] = tuple({} for _ in _WORLD_TABLES)
        self.group_count = 0
        self.default_pg: Any = None
        self.coalesce: dict[Any, Any] = {}
        self.comms: list[Any] = []
        self.backend: Any = None
        self.init_method: Any = None

    def capture(self) -> None:
        """Take over whatever c10d holds now."""
        scope, world = c10d.__dict__, c10d._world
        self.tables = tuple(scope[name] for name in _WORLD_TABLES)
        self.group_count = scope["_group_count"]
        self.default_pg = world._default_pg
        self.coalesce = world._pg_coalesce_state
        self.comms = world._comms
        self.backend = scope["_backend"]
        self.init_method = scope["_default_pg_init_method"]

    def install(self) -> None:
        """Make this the state that c10d works on."""
        scope, world = c10d.__dict__, c10d._world
        for name, table in zip(_WORLD_TABLES, self.tables, strict=True):
            scope[name] = table
        scope["_group_count"] = self.group_count
        world._default_pg = self.default_pg
        world._pg_coalesce_state = self.coalesce
        world._comms = self.comms
        scope["_backend"] = self.backend
        scope["_default_pg_init_method"] = self.init_method


def check_c10d_layout() -> None:
    """Refuse a torch whose c10d keeps its state elsewhere."""
    for name in (
        *_WORLD_TABLES,
        "_group_count",
        "_backend",
        "_default_pg_init_method",
        "_register_pg_in_world",
    ):
        _private(c10d, name)
    for name in ("_default_pg", "_pg_coalesce_state", "_comms"):
        _private(_private(c10d, "_world"), name)


def install_default_group(
    group: dist.ProcessGroup,
    store: Store,
    name: str,
    *,
    ranks: dict[int, int],
    backend: str = "gloo",
) -> None:
    """Make ``group`` this rank's default process group, as ``init_process_group`` would. Tried on 2.13.0.

    ``ranks`` maps each global rank to itself. c10d only reads it, so that thousands of ranks can share one.
    """
    c10d._register_pg_in_world(
        group,
        backend_name=backend,
        store=store,
        group_name=c10d.GroupName(name),
        backend_config=str(c10d.BackendConfig(c10d.Backend(backend))),
        rank_mapping=ranks,
    )
    c10d._update_default_pg(group)
    c10d._backend = backend
    c10d.__dict__["_group_count"] = max(1, c10d.__dict__["_group_count"])


@contextmanager
def calls_by_non_members(tell: Callable[[str], None]) -> Iterator[None]:
    """Inside, ``tell`` hears of each call that c10d leaves out because the rank isn't in the group.

    c10d only warns of them. Tried on 2.13.0.
    """
    warn = _private(c10d, "_warn_not_in_group")

    def warn_and_tell(op_name: str) -> None:
        tell(op_name)
        warn(op_name)

    c10d.__dict__["_warn_not_in_group"] = warn_and_tell
    try:
        yield
    finally:
        c10d.__dict__["_warn_not_in_group"] = warn


@contextmanager
def thread_isolated_group_registry() -> Iterator[None]:
    """Inside, C++ resolves a group's name to the calling thread's group of that name. Tried on 2.13.0."""
    set_mode = _private(torch._C._distributed_c10d, "_set_thread_isolation_mode")
    set_mode(True)
    try:
        yield
    finally:
        set_mode(False)


def forget_works_of(tensors: Iterable[torch.Tensor]) -> None:
    """Take back the works that functional collectives registered for these tensors. Tried on 2.13.0."""
    if _private(torch._C._distributed_c10d, "_get_work_registry_size")():
        wait_tensor = _private(torch.ops._c10d_functional, "wait_tensor")
        for tensor in tensors:
            wait_tensor(tensor)


@contextmanager
def default_group_hidden_from_imports() -> Iterator[None]:
    """Inside, ``group.WORLD`` is None to a module that is being imported.

    Modules such as ``torch.distributed.nn.functional`` take it as the default of their functions' arguments.
    In a process of its own that is the rank's group; here it would be the group of whichever rank came first,
    for every rank and for good. None means the default group to every c10d call. Tried on 2.13.0.
    """
    meta: Any = type(c10d.GroupMember)
    before = _private(meta, "WORLD")

    def default_group(cls: Any) -> Any:
        frame = sys._getframe(1)
        if not frame.f_code.co_flags & CO_OPTIMIZED and _is_being_imported(frame.f_globals):
            return None
        return before.fget(cls)

    meta.WORLD = property(default_group, before.fset)
    try:
        yield
    finally:
        meta.WORLD = before


def _is_being_imported(module_globals: dict[str, Any]) -> bool:
    return bool(getattr(module_globals.get("__spec__"), "_initializing", False))


@contextmanager
def stores_made_by(tcp: Callable[..., Store], file: Callable[..., Store]) -> Iterator[None]:
    """Inside, ``TCPStore`` and ``FileStore`` are these, for c10d's own rendezvous too. Tried on 2.13.0."""
    places = [
        (module.__dict__, name, made)
        for module in (dist, sys.modules["torch.distributed.rendezvous"])
        for name, made in (("TCPStore", tcp), ("FileStore", file))
    ]
    before = [scope[name] for scope, name, _ in places]
    for scope, name, made in places:
        scope[name] = made
    try:
        yield
    finally:
        for (scope, name, _), kept in zip(places, before, strict=True):
            scope[name] = kept


@contextmanager
def default_groups_made_by(make: Callable[[int, int, Store, timedelta], dist.ProcessGroup]) -> Iterator[None]:
    """Inside, ``init_process_group`` gets its group from ``make(rank, world_size, store, timeout)``.

    Tried on 2.13.0.
    """
    helper = _private(c10d, "_new_process_group_helper")

    def new_default_group(
        group_size: int,
        group_rank: int,
        global_ranks: Any,
        backend: Any,
        store: Store,
        group_name: Any,
        *rest: Any,
        timeout: timedelta,
        **others: Any,
    ) -> tuple[dist.ProcessGroup, Store]:
        config = c10d.BackendConfig(c10d.Backend(backend))
        on_cpu = config.get_device_backend_map().get("cpu")
        if on_cpu not in ("gloo", "undefined"):
            raise RuntimeError(
                f"init_process_group({str(backend)!r}) asks for {on_cpu or 'no backend'} on CPU, where this "
                "world runs: use 'gloo', and profile= for another backend's limits"
            )
        group = make(group_rank, group_size, store, timeout)
        c10d._register_pg_in_world(
            group,
            backend_name=backend,
            store=store,
            group_name=group_name,
            backend_config=str(config),
            rank_mapping={rank: rank for rank in range(group_size)},
        )
        return group, store

    c10d.__dict__["_new_process_group_helper"] = new_default_group
    try:
        yield
    finally:
        c10d.__dict__["_new_process_group_helper"] = helper


def dtensor_custom_handlers() -> tuple[dict[str, Any], dict[Any, Any]] | None:
    """Where DTensor keeps its handlers for single operations, and what they are outside ``loss_parallel()``.

    The first is the namespace that holds them as ``_custom_op_handlers``. None where DTensor has not been
    imported. Tried on 2.13.0.
    """
    api = sys.modules.get("torch.distributed.tensor._api")
    if api is None or not hasattr(api, "DTensor"):
        return None
    scope: dict[str, Any] = _private(api.DTensor, "_op_dispatcher").__dict__
    loss = sys.modules.get("torch.distributed.tensor.parallel.loss")
    added = getattr(loss, "customized_loss_ops", {})
    return scope, {op: handler for op, handler in scope["_custom_op_handlers"].items() if op not in added}


def in_autograd_backward() -> bool:
    """Whether the calling thread is inside ``backward()``. Tried on 2.13.0."""
    task: int = _private(torch._C, "_current_graph_task_id")()
    return task != -1


@contextmanager
def print_options_put_back() -> Iterator[None]:
    """On leaving, tensors print as they did before. Tried on 2.13.0."""
    options = _private(_private(torch, "_tensor_str"), "PRINT_OPTS")
    before = vars(options).copy()
    try:
        yield
    finally:
        vars(options).update(before)


def forget_shown_warnings() -> None:
    """Let Python show warnings again that it has shown under other filters. Tried on Python 3.11."""
    _private(warnings, "_filters_mutated")()


def start_gloo_group(
    store: Store, group_rank: int, *, members: tuple[int, ...], name: str, timeout: timedelta, host: str
) -> tuple[dist.ProcessGroup, Any]:
    """A group of torch's own gloo backend that c10d's tables don't know, and its backend object.

    All groups of a process share one device: a device has a thread of its own, and ending that takes 10 ms.
    Tried on 2.13.0.
    """
    kind = dist.ProcessGroupGloo
    options = _private(kind, "_Options")()
    options._timeout = timeout
    options._devices = [_gloo_device(host)]
    options.global_ranks_in_group = list(members)
    options.group_name = name
    backend = kind(store, group_rank, len(members), options)
    group = dist.ProcessGroup(store, group_rank, len(members))
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_group_name(c10d.GroupName(name))
    return group, backend


@cache
def _gloo_device(host: str) -> Any:
    return _private(dist.ProcessGroupGloo, "create_device")(hostname=host)


def forget_device_meshes() -> None:
    """Empty what DTensor remembers of meshes: results cached for an equal mesh whose groups are gone.

    Tried on 2.13.0. Does nothing where DTensor has not been imported.
    """
    api = sys.modules.get("torch.distributed.tensor._api")
    if api is None:
        return
    propagator = _private(_private(api.DTensor, "_op_dispatcher"), "sharding_propagator")
    propagator.propagate_op_sharding.cache_clear()
    _private(type(propagator), "_propagate_tensor_meta_cached").cache_clear()
    _private(torch._C, "_clear_DTensor_sharding_propagator_cache")()
    _private(sys.modules["torch.distributed.tensor._random"], "_rng_tracker")
    sys.modules["torch.distributed.tensor._random"].__dict__["_rng_tracker"] = None


def mode_stack_depths() -> tuple[int, int]:
    """How many dispatch modes and function modes the calling thread has entered. Tried on 2.13.0."""
    dispatch = _private(torch._C, "_len_torch_dispatch_stack")()
    function = _private(torch._C, "_len_torch_function_stack")()
    return dispatch, function


def mode_stack_tops() -> tuple[Any, Any]:
    """The innermost dispatch mode and function mode of the calling thread, None where there is none."""
    dispatch, function = mode_stack_depths()
    return (
        _private(torch._C, "_get_dispatch_stack_at")(dispatch - 1) if dispatch else None,
        _private(torch._C, "_get_function_stack_at")(function - 1) if function else None,
    )


def start_nccl_group(
    store: Store,
    group_rank: int,
    *,
    members: tuple[int, ...],
    name: str,
    timeout: timedelta,
    device: torch.device,
    options: Any = None,
) -> tuple[dist.ProcessGroup, Any]:
    """A group of torch's own NCCL backend that c10d's tables don't know, and its backend object.

    Written by torch 2.13.0's ``_new_process_group_helper``; not run: it needs CUDA devices.
    """
    kind = _private(dist, "ProcessGroupNCCL")
    if options is None:
        options = kind.Options()
        options._timeout = timeout
    options.global_ranks_in_group = list(members)
    options.group_name = name
    backend = kind(store, group_rank, len(members), options)
    backend._set_sequence_number_for_group()
    group = _group_around(
        backend, dist.ProcessGroup.BackendType.NCCL, store, group_rank, len(members), name, device
    )
    # The communicator starts here, not at the first call: a failure to connect is told as one.
    backend.eager_connect_single_device(device)
    return group, backend


def has_registered_backend(name: str) -> bool:
    """Whether a library has registered a backend of that name with c10d. Tried on 2.13.0."""
    return name.upper() in _private(dist.Backend, "_plugins")


def start_registered_group(
    registered: str,
    store: Store,
    group_rank: int,
    *,
    members: tuple[int, ...],
    name: str,
    timeout: timedelta,
    device: torch.device,
    options: Any = None,
) -> tuple[dist.ProcessGroup, Any]:
    """As :func:`start_nccl_group`, of a backend that a library registered with ``Backend.register_backend``.

    Tried on 2.13.0 with a backend registered by a test.
    """
    plugin = _private(dist.Backend, "_plugins")[registered.upper()]
    if plugin.extended_api:
        asked = _private(torch._C._distributed_c10d, "_DistributedBackendOptions")()
        asked.store = store
        asked.group_rank = group_rank
        asked.group_size = len(members)
        asked.timeout = timeout
        asked.group_id = name
        asked.global_ranks_in_group = list(members)
        backend = plugin.creator_fn(asked, options)
    else:
        backend = plugin.creator_fn(store, group_rank, len(members), timeout)
    if isinstance(backend, dist.ProcessGroup):
        return backend, backend
    custom = dist.ProcessGroup.BackendType.CUSTOM
    return _group_around(backend, custom, store, group_rank, len(members), name, device), backend


def _group_around(
    backend: Any, kind: Any, store: Store, group_rank: int, size: int, name: str, device: torch.device
) -> dist.ProcessGroup:
    group = dist.ProcessGroup(store, group_rank, size)
    group._set_default_backend(kind)
    group._register_backend(torch.device(device.type), kind, backend)
    group._set_group_name(c10d.GroupName(name))
    group.bound_device_id = device
    return group


@contextmanager
def p2p_batches_told(tell: Callable[[Any, int], None]) -> Iterator[None]:
    """Inside, ``tell(group, n)`` hears of each ``batch_isend_irecv`` of ``n`` operations before the first.

    c10d groups the operations of a batch on its own groups only, and NCCL may deadlock without.
    Tried on 2.13.0.
    """
    check = _private(c10d, "_check_p2p_op_list")

    def check_and_tell(operations: Any) -> None:
        check(operations)
        tell(operations[0].group or c10d._get_default_group(), len(operations))

    c10d.__dict__["_check_p2p_op_list"] = check_and_tell
    try:
        yield
    finally:
        c10d.__dict__["_check_p2p_op_list"] = check
