"""From a backend's name to its world, which is made once and kept: its workers serve run after run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache

from meshsim.errors import CannotRun, UsageError
from meshsim.worlds.base import World
from meshsim.worlds.cluster.launch import launcher, why_no_job

__all__ = ["BACKENDS", "auto_backend", "check_backend", "launcher", "why_unavailable", "world_for"]

_WORLDS = {
    "fake": ("meshsim.worlds.fake", "FakeWorld"),
    "gloo": ("meshsim.worlds.gloo", "GlooWorld"),
}
_ACCELERATORS = ("nccl", "hccl")
BACKENDS = (*_WORLDS, *_ACCELERATORS)
"""Every backend's name, besides ``auto``."""


def check_backend(name: str) -> str:
    """The backend that ``name`` means here; ``auto`` is resolved. An unknown name is a UsageError."""
    if name == "auto":
        return auto_backend()
    if name not in BACKENDS:
        raise UsageError(f"backend {name!r} is unknown; known are {', '.join(BACKENDS)} and auto")
    return name


def auto_backend() -> str:
    """The job's accelerator backend when a launcher started this process, ``fake`` otherwise."""
    if launcher() is None:
        return "fake"
    import torch

    accelerator = torch.accelerator.current_accelerator()
    kind = accelerator.type if accelerator is not None else "cpu"
    return {"cuda": "nccl", "npu": "hccl"}.get(kind, "gloo")


@cache
def _build(backend: str, *, in_a_job: bool) -> World:
    if in_a_job:
        from meshsim.worlds.cluster.world import ClusterWorld

        return ClusterWorld(backend)
    module, name = _WORLDS[backend]
    make: Callable[[], World] = getattr(importlib.import_module(module), name)
    return make()


def _world(backend: str) -> World | str:
    """The world, or why there is none here. In a job all but ``fake`` mean the job's own ranks."""
    in_a_job = backend != "fake" and launcher() is not None
    if backend in _ACCELERATORS and not in_a_job:
        return f"{why_no_job()}, and {backend} runs as the ranks of such a job; without one use fake or gloo"
    world = _build(backend, in_a_job=in_a_job)
    return world.unavailable() or world


def why_unavailable(backend: str) -> str | None:
    """Why a backend can't run here, in one line; None when it can. The name must be a known one."""
    world = _world(backend)
    return world if isinstance(world, str) else None


def world_for(backend: str) -> World:
    """The world of a backend. UsageError for an unknown name, CannotRun where this machine can't run it."""
    name = check_backend(backend)
    world = _world(name)
    if isinstance(world, str):
        raise CannotRun(f"{name}: {world}")
    return world
