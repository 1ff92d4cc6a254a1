"""Every call that meshsim makes into torch's private parts, in one place.

Tried on torch 2.13.0. Each access goes through :func:`_private`, so that a torch that has moved on is met with
one clear line instead of an ``AttributeError`` from deep inside a rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from meshsim.errors import CannotRun

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
    store: dist.Store,
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
def thread_isolated_group_registry() -> Iterator[None]:
    """Inside, C++ resolves a group's name to the group that the calling thread registered. Tried on 2.13.0."""
    set_mode = _private(torch._C._distributed_c10d, "_set_thread_isolation_mode")
    set_mode(True)
    try:
        yield
    finally:
        set_mode(False)


def in_autograd_backward() -> bool:
    """Whether the calling thread is inside ``backward()``. Tried on 2.13.0."""
    task: int = _private(torch._C, "_current_graph_task_id")()
    return task != -1
