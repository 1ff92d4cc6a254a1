"""A stand-in for Huawei's torch_npu: a device ``npu`` whose memory is the host's, and a backend ``hccl``.

It registers what torch_npu registers, under the same names: the device type, ``torch.npu``, and the c10d
backend with the extended API. Every operation on its tensors runs on CPU tensors that they hold.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

__version__ = "2.13.0.standin"


class _Npu:
    """``torch.npu``. As many devices as ``ASCEND_RT_VISIBLE_DEVICES`` names."""

    def __init__(self) -> None:
        self.initialized = False

    def is_available(self) -> bool:
        return self.device_count() > 0

    def device_count(self) -> int:
        visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "0")
        return len([part for part in visible.split(",") if part])

    def get_device_name(self, index: int) -> str:
        return "Stand-in 910"

    def current_device(self) -> int:
        return 0

    def set_device(self, index: int) -> None:
        self.initialized = True

    def init(self) -> None:
        self.initialized = True

    def is_initialized(self) -> bool:
        return self.initialized

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """There is no generator of its own."""

    def synchronize(self, device: Any = None) -> None:
        """The host's memory is always up to date."""


npu = _Npu()
_setup_privateuseone_for_python_backend("npu", backend_module=npu)


class NpuTensor(torch.Tensor):
    """A tensor of device ``npu`` that holds its data as ``on_host``."""

    on_host: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl


def _to_npu(host: torch.Tensor) -> torch.Tensor:
    made = torch._C._acc.create_empty_tensor(tuple(host.shape), host.dtype)
    made.__class__ = NpuTensor
    made.on_host = host
    return made


def _to_host(value: Any) -> Any:
    return value.on_host if isinstance(value, NpuTensor) else value


def _on_host(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the tensors' host data; what it changed in place is its argument still."""
    held = {id(_to_host(a)): a for a in _pytree.tree_leaves((args, kwargs)) if isinstance(a, NpuTensor)}
    host_args, host_kwargs = _pytree.tree_map(_to_host, (args, kwargs))
    asked = host_kwargs.get("device")
    if asked is not None:
        host_kwargs["device"] = torch.device("cpu")
    result = op(*host_args, **host_kwargs)
    if asked is not None and asked.type == "cpu":
        return result

    def back(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return held.get(id(value)) if id(value) in held else _to_npu(value)

    return _pytree.tree_map(back, result)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _to_host(target).copy_(_to_host(source))
    return target


_operations = torch.library.Library("_", "IMPL")
_operations.fallback(_on_host, "PrivateUse1")
_copies = torch.library.Library("aten", "IMPL")
_copies.impl("_copy_from", _copy_from, "PrivateUse1")
_copies.impl("detach", lambda tensor: _to_npu(_to_host(tensor).detach()), "PrivateUse1")
_copies.impl("alias", lambda tensor: _to_npu(_to_host(tensor)), "PrivateUse1")


class StandinHccl(dist.ProcessGroup):
    """Moves the tensors' host data over gloo. Refuses AVG, so that the caller must divide."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        self.options = self._gloo.options

    def _start(self, name: str, *args: Any) -> dist.Work:
        for tensor in _pytree.tree_leaves(args):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "npu":
                raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")
        return getattr(self._gloo, name)(*_pytree.tree_map(_to_host, args))

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        if opts.reduceOp == dist.ReduceOp.AVG:
            raise RuntimeError("this stand-in has no AVG")
        return self._start("allreduce", tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:
        return self._start("broadcast", tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return self._start("allgather", outputs, inputs, opts)

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._gloo.barrier(dist.BarrierOptions())

    def send(self, tensors: Any, peer: int, tag: int = 0) -> dist.Work:
        return self._start("send", tensors, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> dist.Work:
        return self._start("recv", tensors, peer, tag)


def _new_group(asked: Any, options: Any) -> dist.ProcessGroup:
    return StandinHccl(asked.store, asked.group_rank, asked.group_size, asked.timeout)


dist.Backend.register_backend("hccl", _new_group, extended_api=True, devices=["npu"])

# The Python half of a device has no streams to wait for, and torch refuses to wait for none.
torch.accelerator.synchronize = lambda device=None: None
