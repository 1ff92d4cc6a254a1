"""Decorators that skip a test where the machine lacks something."""

from __future__ import annotations

import functools
import unittest
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def _skip_where(missing: Callable[[], str | None]) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def run(*arguments: Any, **keywords: Any) -> Any:
            reason = missing()
            if reason is not None:
                raise unittest.SkipTest(reason)
            return function(*arguments, **keywords)

        return run  # type: ignore[return-value]

    return decorate


def _accelerators() -> int:
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def skip_if_lt_x_gpu(x: int, *, allow_cpu: bool = False) -> Callable[[_F], _F]:
    """Skip with fewer than ``x`` accelerators; never with ``allow_cpu``."""

    def missing() -> str | None:
        have = _accelerators()
        return None if allow_cpu or have >= x else f"needs {x} accelerators, have {have}"

    return _skip_where(missing)


def skip_unless_torch_gpu(function: _F) -> _F:
    """Skip without any accelerator."""
    return skip_if_lt_x_gpu(1)(function)


def _requires(backend: str) -> Callable[[_F], _F]:
    def missing() -> str | None:
        import torch.distributed as dist

        there = dist.is_available() and dist.is_backend_available(backend)
        return None if there else f"this build of torch has no {backend} backend"

    return _skip_where(missing)


def requires_gloo() -> Callable[[_F], _F]:
    """Skip where torch was built without gloo."""
    return _requires("gloo")


def requires_nccl() -> Callable[[_F], _F]:
    """Skip where torch was built without NCCL."""
    return _requires("nccl")


def requires_accelerator_dist_backend(backends: Any = None) -> Callable[[_F], _F]:
    """Skip where there is no accelerator, or none of the backends."""

    def missing() -> str | None:
        import torch.distributed as dist

        wanted = [backends] if isinstance(backends, str) else list(backends or ("nccl", "hccl", "xccl"))
        if _accelerators() and any(dist.is_backend_available(name) for name in wanted):
            return None
        return f"needs an accelerator and one of the backends {', '.join(wanted)}"

    return _skip_where(missing)
