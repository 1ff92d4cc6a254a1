"""The workers of this process: forked when needed, kept warm, replaced when they can't be trusted."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterator
from enum import Enum

from meshsim.errors import CannotRun
from meshsim.worlds.gloo.frames import Channel, Message
from meshsim.worlds.gloo.messages import Ready
from meshsim.worlds.gloo.output import OutputFile
from meshsim.worlds.gloo.protocol import LOADABLE, Ask, Tell
from meshsim.worlds.gloo.server_link import Notice, ServerLink

KEPT_IDLE = 8
"""Workers kept for the next run, beyond as many as the last run used."""
_TO_GET_READY = 5.0
_TO_LOAD = 60.0


class WorkerState(Enum):
    IDLE = "idle"
    RUNNING = "running"
    WIPING = "wiping"
    """Its run is over; it puts its process back in order."""
    GONE = "gone"


class Worker:
    """One worker process, as the parent sees it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid: int | None = None
        self.state = WorkerState.IDLE
        self.exit_code: int | None = None
        """Minus the signal's number when a signal ended it; None while it lives."""
        self.run = 0
        """The run that it serves, or served last."""
        self.stdout, self.stderr, self.fatal, self.journal = (OutputFile() for _ in range(4))
        ours, self._theirs = socket.socketpair()
        self.channel = Channel(ours)

    @property
    def _files(self) -> tuple[OutputFile, ...]:
        return self.stdout, self.stderr, self.fatal, self.journal

    def hand_over(self, server: ServerLink) -> None:
        with self._theirs:
            server.ask(Ask.FORK, self.number, [self._theirs.fileno(), *(f.fileno() for f in self._files)])

    def empty_outputs(self) -> None:
        for file in self._files:
            file.empty()

    def close(self) -> None:
        self.state = WorkerState.GONE
        self.channel.close()
        for file in self._files:
            file.close()


class Pool:
    """All workers of one parent process, and their fork server."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held for a whole run: one run at a time in a process."""
        self._server: ServerLink | None = None
        self._server_ready = False
        self._loaded: set[str] = set()
        self._workers: dict[int, Worker] = {}
        self._last_number = 0
        self._last_run = 0

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    @property
    def server(self) -> ServerLink:
        if self._server is None or self._server.gone:
            self.close()
            self._server = ServerLink()
            self._server_ready = False
            self._loaded = set()
        return self._server

    def next_run(self) -> int:
        self._last_run += 1
        return self._last_run

    def warm_up(self, count: int) -> None:
        """Start the server and ask it for workers, without waiting for either."""
        self._look()
        server = self.server
        self._load_what_parent_has(server)
        for _ in range(count - len(self._workers)):
            self._fork(server)

    def acquire(self, count: int) -> list[Worker]:
        """``count`` idle workers. What is missing is forked and not waited for: it reads its orders later."""
        server = self.server
        self._look()
        self._wait_until_ready(server)
        self._wait_for_wiping(count)
        idle = [worker for worker in self._workers.values() if worker.state is WorkerState.IDLE][:count]
        idle += [self._fork(server) for _ in range(count - len(idle))]
        return idle

    def release(self, count: int) -> None:
        """After a run of ``count`` ranks: end what is beyond the bound."""
        kept = [worker for worker in self._workers.values() if worker.state is not WorkerState.GONE]
        for worker in kept[max(count, KEPT_IDLE) :]:
            self.discard(worker)

    def discard(self, worker: Worker) -> None:
        """End a worker and whatever it started."""
        if self._workers.pop(worker.number, None) is None:
            return
        if self._server is not None and worker.exit_code is None:
            self._server.ask(Ask.KILL, worker.number)
        worker.close()

    def take_notices(self) -> list[Notice]:
        """Read what the fork server has to say, and note it on the workers."""
        if self._server is None:
            return []
        notices = self._server.notices()
        for notice in notices:
            worker = self._workers.get(notice.worker)
            if notice.tell is Tell.READY:
                self._server_ready = True
            elif notice.tell is Tell.NOT_FORKED:
                raise CannotRun(_why_not_forked(notice))
            elif worker is not None and notice.tell is Tell.FORKED:
                worker.pid = notice.first
            elif worker is not None and notice.tell is Tell.ENDED:
                worker.exit_code = notice.first
        return notices

    def take_messages(self, worker: Worker) -> list[Message]:
        """Read what a worker has to say; its readiness is noted here, the rest is the caller's."""
        messages = []
        for message, blob in worker.channel.receive():
            if not isinstance(message, Ready):
                messages.append((message, blob))
            elif message.dirty:
                self.discard(worker)
            elif worker.state is WorkerState.WIPING:
                worker.state = WorkerState.IDLE
        return messages

    def close(self) -> None:
        """End every worker and the server."""
        for worker in list(self._workers.values()):
            worker.close()
        self._workers.clear()
        if self._server is not None:
            self._server.close(at_once=not self._server_ready)
            self._server = None

    def abandon(self) -> None:
        """In a forked child: let go of the parent's workers without ending them."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        if self._server is not None:
            self._server.abandon()
            self._server = None

    def _fork(self, server: ServerLink) -> Worker:
        self._last_number += 1
        try:
            worker = Worker(self._last_number)
        except OSError as error:
            raise CannotRun(f"no room for another worker: {error.strerror}; see `ulimit -n`") from error
        worker.hand_over(server)
        self._workers[worker.number] = worker
        return worker

    def _load_what_parent_has(self, server: ServerLink) -> None:
        """Have workers begin with the slow modules that this process uses. Those forked before make room."""
        news = [name for name in LOADABLE if name in sys.modules and name not in self._loaded]
        for name in news:
            server.ask(Ask.LOAD, LOADABLE.index(name))
            self._loaded.add(name)
        if news:
            for worker in list(self._workers.values()):
                if worker.state is not WorkerState.RUNNING:
                    self.discard(worker)

    def _look(self) -> None:
        """Catch up on what happened between runs."""
        self.take_notices()
        for worker in list(self._workers.values()):
            self.take_messages(worker)
            if worker.channel.closed or worker.exit_code is not None:
                self.discard(worker)

    def _wait_until_ready(self, server: ServerLink) -> None:
        deadline = time.monotonic() + _TO_LOAD
        while not self._server_ready:
            self._wait_for([server], deadline)
            self._look()
            if server.gone:
                raise server.why_gone()
            if time.monotonic() >= deadline:
                raise CannotRun(f"loading torch for the gloo workers took more than {_TO_LOAD:g} s")

    def _wait_for_wiping(self, count: int) -> None:
        """Workers about to be idle are worth the wait; those that don't get there are replaced."""
        deadline = time.monotonic() + _TO_GET_READY
        while True:
            wiping = [worker for worker in self._workers.values() if worker.state is WorkerState.WIPING]
            idle = sum(worker.state is WorkerState.IDLE for worker in self._workers.values())
            if not wiping or idle >= count:
                return
            if time.monotonic() >= deadline:
                break
            self._wait_for([worker.channel for worker in wiping], deadline)
            self._look()
        for worker in wiping:
            self.discard(worker)

    @staticmethod
    def _wait_for(ends: list[ServerLink] | list[Channel], deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            for end in ends:
                selector.register(end, selectors.EVENT_READ)
            selector.select(max(0.0, deadline - time.monotonic()))


def _why_not_forked(notice: Notice) -> str:
    if notice.first:
        return f"no worker process could be started: {os.strerror(notice.first)}"
    return (
        f"the process that forks gloo workers has {notice.second} threads; forking is safe with one only. "
        "Something that Python loads at its start (sitecustomize, a .pth file, LD_PRELOAD) starts a thread"
    )


_pools: dict[int, Pool] = {}


def pool_of_this_process() -> Pool:
    """This process's pool. A forked child gets its own."""
    pid = os.getpid()
    if pid not in _pools:
        _pools[pid] = Pool()
    return _pools[pid]


@contextlib.contextmanager
def exclusive_pool() -> Iterator[Pool]:
    """The pool, for one run."""
    pool = pool_of_this_process()
    with pool.lock:
        yield pool


def _abandon_parents() -> None:
    for pool in _pools.values():
        pool.abandon()
    _pools.clear()


def _close_own() -> None:
    pool = _pools.pop(os.getpid(), None)
    if pool is not None:
        pool.close()


atexit.register(_close_own)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_parents)
