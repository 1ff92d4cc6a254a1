"""From a backend's name to its world, which is made once and kept: its workers serve run after run."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from functools import cache

from meshsim.errors import CannotRun, UsageError
from meshsim.worlds.base import World

_WORLDS = {
    "fake": ("meshsim.worlds.fake", "FakeWorld"),
    "gloo": ("meshsim.worlds.gloo", "GlooWorld"),
}
_ACCELERATORS = {"nccl": "CUDA", "hccl": "Ascend"}
BACKENDS = (*_WORLDS, *_ACCELERATORS)
"""Every backend's name, besides ``auto``."""


def check_backend(name: str) -> str:
    """The backend that ``name`` means here; ``auto`` is resolved. An unknown name is a UsageError."""
    if name == "auto":
        return auto_backend()
    if name not in BACKENDS:
        raise UsageError(f"backend {name!r} is unknown; known are {', '.join(BACKENDS)} and auto")
    return name


def launcher(environ: Mapping[str, str] | None = None) -> str | None:
    """What started this process as one rank of a job: ``torchrun``, ``Slurm``, or None."""
    env = os.environ if environ is None else environ
    if "TORCHELASTIC_RUN_ID" in env or all(
        name in env for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    ):
        return "torchrun"
    # sbatch sets SLURM_PROCID in the batch script too; only what srun started has a step id of its own.
    if "SLURM_PROCID" in env and "SLURM_STEP_ID" in env and env.get("SLURM_STEP_ID") != "4294967291":
        return "Slurm"
    return None


def auto_backend() -> str:
    """The job's accelerator backend when a launcher started this process, ``fake`` otherwise."""
    if launcher() is None:
        return "fake"
    import torch

    accelerator = torch.accelerator.current_accelerator()
    kind = accelerator.type if accelerator is not None else "cpu"
    return {"cuda": "nccl", "npu": "hccl"}.get(kind, "gloo")


def _unavailable_in_a_job(backend: str) -> str | None:
    job = launcher()
    if backend in _ACCELERATORS and job is None:
        return (
            "this process was not started by torchrun, Slurm or Kubernetes, and "
            f"{backend} runs as the ranks of such a job; without one use fake or gloo"
        )
    if backend in _ACCELERATORS:
        return f"running as the ranks of a {job} job is not built yet; outside of the job use fake or gloo"
    if backend == "gloo" and job is not None:
        return f"this process is a rank of a {job} job, and running as the ranks of a job is not built yet"
    return None


@cache
def _build(backend: str) -> World:
    module, name = _WORLDS[backend]
    make: Callable[[], World] = getattr(importlib.import_module(module), name)
    return make()


def why_unavailable(backend: str) -> str | None:
    """Why a backend can't run here, in one line; None when it can. The name must be a known one."""
    return _unavailable_in_a_job(backend) or _build(backend).unavailable()


def world_for(backend: str) -> World:
    """The world of a backend. UsageError for an unknown name, CannotRun where this machine can't run it."""
    name = check_backend(backend)
    reason = why_unavailable(name)
    if reason:
        raise CannotRun(f"{name}: {reason}")
    return _build(name)
