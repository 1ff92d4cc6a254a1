"""Ending gloo's connections from outside: gloo's own ``abort`` frees no rank that waits in a call."""

from __future__ import annotations

import contextlib
import os
import socket

Connections = dict[int, str]
"""Descriptors of this process's sockets, each with what the system says it is."""

_DESCRIPTORS = "/proc/self/fd"


def open_sockets() -> Connections:
    """The sockets that this process has open; none where the system doesn't tell."""
    found: Connections = {}
    if not os.path.isdir(_DESCRIPTORS):
        return found
    for name in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):
            what = os.readlink(f"{_DESCRIPTORS}/{name}")
            if what.startswith("socket:"):
                found[int(name)] = what
    return found


def opened_since(before: Connections) -> Connections:
    """The sockets that are there now and weren't before."""
    return {number: what for number, what in open_sockets().items() if before.get(number) != what}


def cut(connections: Connections) -> None:
    """End these connections, as far as they are still there: who waits for them gets an error."""
    now = open_sockets()
    for number, what in connections.items():
        if now.get(number) != what:
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as end:
            if not end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                end.shutdown(socket.SHUT_RDWR)
