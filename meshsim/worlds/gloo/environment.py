"""The environment variables of a rank, as torchrun sets them, on the loopback interface."""

from __future__ import annotations

import os
import socket
from functools import cache

import psutil

from meshsim.errors import CannotRun
from meshsim.worlds.gloo.messages import RunOrder

LOOPBACK = "127.0.0.1"


@cache
def loopback_interface() -> str:
    """The name of the interface that has 127.0.0.1: ``lo`` on Linux, ``lo0`` on macOS."""
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family == socket.AF_INET and address.address == LOOPBACK:
                return str(name)
    raise CannotRun(f"no network interface has the address {LOOPBACK}; gloo workers talk over loopback")


def torchrun_variables(order: RunOrder) -> dict[str, str]:
    """What torchrun would set for this rank."""
    nodes = -(-order.world_size // order.node_size)
    on_this_node = min(order.node_size, order.world_size - order.rank // order.node_size * order.node_size)
    return {
        "RANK": str(order.rank),
        "WORLD_SIZE": str(order.world_size),
        "LOCAL_RANK": str(order.rank % order.node_size),
        "LOCAL_WORLD_SIZE": str(on_this_node),
        "GROUP_RANK": str(order.rank // order.node_size),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(order.rank),
        "ROLE_WORLD_SIZE": str(order.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(order.store_port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": f"meshsim-{order.run}",
        # The parent hosts the store, as torchrun's agent does: rank 0 must not listen on that port too.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": order.surroundings.environ.get("OMP_NUM_THREADS", "1"),
    }


def rank_environment(order: RunOrder) -> None:
    """Set them. A user's own choice of interface is overridden: ranks of one machine need no other."""
    os.environ.update(torchrun_variables(order))
    os.environ["GLOO_SOCKET_IFNAME"] = loopback_interface()
