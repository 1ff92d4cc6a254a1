"""A small process that has torch loaded and one thread, and forks a worker whenever the parent asks for one.

Forking is safe here and nowhere else: a fork keeps the calling thread only, so a lock held by any other
thread (OpenMP's pool, gloo's loop, a logger) stays locked for ever in the child. The server starts no thread,
and counts them before each fork. It is also the workers' parent in the sense of the system, so it alone can
signal them without a race: until it has waited for a child, that child's process id can't be given away.

Started as ``python -m meshsim.worlds.gloo.fork_server FD PARENT``.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
from collections import deque

import psutil

from meshsim.worlds.gloo.lifetime import die_with_parent, open_parent_pidfd, outlive_starting_thread
from meshsim.worlds.gloo.protocol import FILES_OF_A_WORKER, LOADABLE, NOTICE, REQUEST, Ask, Tell

# What a rank needs in any case.
_NEEDED = ("numpy", "torch", "torch.distributed", "meshsim.worlds.gloo.worker")
# How often the server looks whether its parent is still there, where the system doesn't tell it.
_LOOK_AFTER_PARENT = 0.5


def _load(names: tuple[str, ...]) -> None:
    # Collections during the imports would find nothing to free; without them torch loads a fifth faster.
    gc.disable()
    for name in names:
        importlib.import_module(name)
    gc.enable()
    # A collection in a worker would touch, and so copy, every page that holds one of these objects.
    gc.freeze()


class ForkServer:
    """Serves one parent until that parent goes away."""

    def __init__(self, parent: socket.socket, parent_pid: int) -> None:
        self._parent = parent
        self._parent_pid = parent_pid
        self._pids: dict[int, int] = {}
        self._outbox: deque[bytes] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._pidfd = open_parent_pidfd(parent_pid)

    def serve(self) -> None:
        for end in (self._parent, self._wake, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._parent, selectors.EVENT_READ, self._read_requests)
        self._selector.register(self._wake, selectors.EVENT_READ, self._reap)
        if self._pidfd is not None:
            self._selector.register(self._pidfd, selectors.EVENT_READ, self._stop)
        self._tell(Tell.READY, 0, _threads())
        while os.getppid() == self._parent_pid:
            for key, mask in self._selector.select(_LOOK_AFTER_PARENT):
                if mask & selectors.EVENT_WRITE:
                    self._flush()
                if mask & selectors.EVENT_READ:
                    key.data()
        self._stop()

    # Requests

    def _read_requests(self) -> None:
        while True:
            try:
                data, files, _, _ = socket.recv_fds(self._parent, REQUEST.size, FILES_OF_A_WORKER)
            except BlockingIOError:
                return
            except OSError:
                data, files = b"", []
            if len(data) < REQUEST.size:
                self._stop()
            ask, worker = REQUEST.unpack(data)
            if ask == Ask.FORK:
                self._fork(worker, files)
            elif ask == Ask.KILL:
                self._signal(worker, signal.SIGKILL)
            elif ask == Ask.SHOW_STACKS:
                self._signal(worker, signal.SIGQUIT)
            elif ask == Ask.LOAD:
                with contextlib.suppress(ImportError):
                    _load((LOADABLE[worker],))
            else:
                self._stop()

    def _fork(self, worker: int, files: list[int]) -> None:
        server = os.getpid()
        try:
            threads = _threads()
            if threads != 1:
                self._tell(Tell.NOT_FORKED, worker, 0, threads)
                return
            try:
                pid = os.fork()
            except OSError as error:
                self._tell(Tell.NOT_FORKED, worker, error.errno or errno.EAGAIN)
                return
            if pid == 0:
                self._become_worker(server, files)
        finally:
            for file in files:
                os.close(file)
        self._pids[worker] = pid
        self._tell(Tell.FORKED, worker, pid)

    def _become_worker(self, server: int, files: list[int]) -> None:
        """In the child: never returns."""
        code = 1
        try:
            die_with_parent(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A group of its own, so that what a scenario starts can be ended with it.
            os.setpgid(0, 0)
            self._selector.close()
            for end in (self._parent, self._wake, self._waker):
                end.close()
            if self._pidfd is not None:
                os.close(self._pidfd)
            from meshsim.worlds.gloo.worker import main

            main(files, server)
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not go on as a second server
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _signal(self, worker: int, number: int) -> None:
        pid = self._pids.get(worker)
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                os.killpg(pid, number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    # Children that end

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake.recv(4096):
                pass
        for worker, pid in list(self._pids.items()):
            # Look first and wait after: while the child is a zombie its group's number is still its own.
            if hasattr(os, "waitid"):  # not on macOS before Python 3.13
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    continue
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self._pids[worker]
            self._tell(Tell.ENDED, worker, os.waitstatus_to_exitcode(status))

    # Notices

    def _tell(self, tell: Tell, worker: int, first: int = 0, second: int = 0) -> None:
        self._outbox.append(NOTICE.pack(tell, worker, first, second))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            try:
                sent = self._parent.send(self._outbox[0])
            except BlockingIOError:
                break
            except OSError:
                self._stop()
            if sent < len(self._outbox[0]):
                self._outbox[0] = self._outbox[0][sent:]
            else:
                self._outbox.popleft()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
        self._selector.modify(self._parent, wanted, self._read_requests)

    def _stop(self) -> None:
        """End every worker, and this process. Never returns."""
        for worker in list(self._pids):
            self._signal(worker, signal.SIGKILL)
        for pid in self._pids.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os._exit(0)


def _threads() -> int:
    return int(psutil.Process().num_threads())


def main(arguments: list[str]) -> None:
    descriptor, parent = (int(argument) for argument in arguments)
    # While modules load nothing here looks after the parent, so the kernel does.
    die_with_parent(parent)
    sys.argv = [sys.argv[0]]
    _load(_NEEDED)
    server = ForkServer(socket.socket(fileno=descriptor), parent)
    outlive_starting_thread()
    server.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
