"""What is at MASTER_ADDR and MASTER_PORT: for scenarios that start a default process group themselves."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

_LOOPBACK = "127.0.0.1"
_TIMEOUT = timedelta(seconds=60)


class MeetingPlace:
    """A port of the loopback interface that the system chose and nobody else can take.

    A store answers there from the first connection on; most runs never need one.
    """

    def __init__(self) -> None:
        self._listener: socket.socket | None = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.bind((_LOOPBACK, 0))
        self._listener.listen(socket.SOMAXCONN)
        self.port: int = self._listener.getsockname()[1]
        self._store: Any = None

    def fileno(self) -> int:
        return -1 if self._listener is None else self._listener.fileno()

    def open(self) -> None:
        """Somebody has connected: let torch's store take over the socket."""
        from meshsim.torch_private import TCPStore

        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        self._store = TCPStore(
            _LOOPBACK,
            self.port,
            None,
            True,
            timeout=_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener = self._store = None
