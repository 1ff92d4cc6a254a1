"""The parent's hold on its fork server."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

from meshsim.errors import CannotRun
from meshsim.worlds.gloo.output import OutputFile
from meshsim.worlds.gloo.protocol import NOTICE, REQUEST, Ask, Tell

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)
_TO_END = 2.0


@dataclass(frozen=True)
class Notice:
    """``first`` and ``second`` as ``Tell`` has them."""

    tell: Tell
    worker: int
    first: int
    second: int


class ServerLink:
    """Starts a fork server, sends it requests and reads its notices. The server ends when this is closed."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._errors = OutputFile()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "meshsim.worlds.gloo.fork_server",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._errors.fileno(),
                stderr=self._errors.fileno(),
                env=_environment(),
                # Ctrl-C in the terminal is the parent's to handle.
                start_new_session=True,
            )
        ours.setblocking(False)
        self._socket = ours
        self._buffer = b""
        self.gone = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self, ask: Ask, worker: int, files: list[int] | None = None) -> None:
        request = REQUEST.pack(ask, worker)
        deadline = time.monotonic() + 60
        while not self.gone:
            try:
                socket.send_fds(self._socket, [request], files or [])
                return
            except BlockingIOError:
                self._wait(selectors.EVENT_WRITE, deadline)
            except OSError:
                self.gone = True

    def notices(self) -> list[Notice]:
        """What the server has said since the last call; sets ``gone`` when it has ended."""
        while not self.gone:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.gone = not data
            self._buffer += data
        whole = len(self._buffer) // NOTICE.size * NOTICE.size
        found = [
            Notice(Tell(tell), worker, first, second)
            for tell, worker, first, second in NOTICE.iter_unpack(self._buffer[:whole])
        ]
        self._buffer = self._buffer[whole:]
        return found

    def why_gone(self) -> CannotRun:
        """The error to raise when the server ended by itself."""
        last = self._errors.text().strip().splitlines()[-1:]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TO_END)
        return CannotRun(
            f"the process that starts gloo workers ended with code {self._process.returncode}: "
            + (last[0] if last else "it printed nothing")
        )

    def close(self, *, at_once: bool = False) -> None:
        """End the server and, with it, every worker. ``at_once`` where there are none yet."""
        self._socket.close()
        self.gone = True
        if at_once:
            self._process.kill()
        try:
            self._process.wait(_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def abandon(self) -> None:
        """In a forked child: let go of what belongs to the parent of this process."""
        self._socket.close()
        self._errors.close()
        self.gone = True
        # Not ours to wait for; without this its destructor would complain.
        self._process.returncode = 0

    def _wait(self, event: int, deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, event)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise CannotRun("the process that starts gloo workers does not answer")


def _environment() -> dict[str, str]:
    environ = dict(os.environ)
    environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    # The server must find this very meshsim, whatever made it importable here.
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [environ.get("PYTHONPATH"), root]))
    # On macOS, system frameworks refuse to work in a forked process unless told otherwise.
    environ["OBJC_DISABLE_INITIALIZE_FORK_SAFETY"] = "YES"
    return environ
