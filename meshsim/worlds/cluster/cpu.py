"""gloo on CPU, between hosts."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from meshsim import torch_private
from meshsim.errors import CannotRun

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from meshsim.torch_private import Store


class _Gloo:
    name = "gloo"
    device_type = "cpu"
    averages = True
    visible_variable = ""
    settings = ("GLOO_SOCKET_IFNAME",)
    start_timeout = 60.0

    def problem(self) -> str:
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            return "this build of torch has no gloo backend"
        return ""

    def versions(self) -> dict[str, str]:
        return {}

    def device_count(self) -> int:
        return 0

    def describe(self, index: int) -> tuple[str, str]:
        return "", ""

    def start_group(
        self,
        store: Store,
        group_rank: int,
        *,
        members: tuple[int, ...],
        name: str,
        timeout: timedelta,
        device: torch.device,
        address: str,
        options: Any = None,
    ) -> tuple[dist.ProcessGroup, Any]:
        return torch_private.start_gloo_group(
            store,
            group_rank,
            members=members,
            name=name,
            timeout=timeout,
            host=_address_of_interface() or address,
        )


def _address_of_interface() -> str:
    """The address of the interface that the user chose with ``GLOO_SOCKET_IFNAME``; empty without one."""
    import psutil

    name = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if not name:
        return ""
    interfaces = psutil.net_if_addrs()
    for address in interfaces.get(name, ()):
        if address.family in (socket.AF_INET, socket.AF_INET6):
            return str(address.address)
    raise CannotRun(f"GLOO_SOCKET_IFNAME={name}: this host has {', '.join(sorted(interfaces))}")


BACKEND = _Gloo()
