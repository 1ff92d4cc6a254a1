"""A worker process: runs one rank of one run after another, and answers while a rank runs or hangs."""

from __future__ import annotations

import faulthandler
import gc
import os
import queue
import select
import signal
import socket
import sys
import threading
import traceback
from types import FrameType

import torch

from meshsim.trace import TraceEvent
from meshsim.worlds.gloo.frames import BlockingChannel
from meshsim.worlds.gloo.messages import Inspect, Ready, Release, RunOrder, StoreReply, Whereabouts
from meshsim.worlds.gloo.rank_run import RankRun
from meshsim.worlds.gloo.slate import Slate
from meshsim.worlds.gloo.stacks import all_stacks, in_communication

# A call that has been pending for this long is reported, so that a mismatch can be told from a slow rank.
_WAITING_AFTER = 0.4
_LOOK_EVERY = 0.2


class Control(threading.Thread):
    """Reads the parent's messages while the main thread runs the scenario; ends with the parent."""

    def __init__(self, channel: BlockingChannel, server: int) -> None:
        super().__init__(name="meshsim-control", daemon=True)
        self.orders: queue.SimpleQueue[tuple[RunOrder, bytes]] = queue.SimpleQueue()
        self.current: RankRun | None = None
        self._channel = channel
        self._server = server
        self._main = threading.main_thread().ident or 0
        self._reported: TraceEvent | None = None

    def run(self) -> None:
        try:
            while True:
                if self._channel.has_arrived() or self._wait_for_message():
                    self._act()
                else:
                    self._report_waiting()
                    if os.getppid() != self._server:
                        os._exit(1)
        except (EOFError, OSError):
            # The parent is gone. The scenario is not given a chance to object.
            os._exit(1)

    def _wait_for_message(self) -> bool:
        watched = self.current is not None and not self.current.has_ended
        readable, _, _ = select.select([self._channel], [], [], _LOOK_EVERY if watched else 1.0)
        return bool(readable)

    def _act(self) -> None:
        message, blob = self._channel.receive()
        if isinstance(message, RunOrder):
            self.orders.put((message, blob))
        elif isinstance(message, StoreReply):
            if self.current is not None and message.run == self.current.order.run:
                self.current.store.take(message)
        elif isinstance(message, Release):
            if self.current is not None:
                self.current.released.set()
        elif isinstance(message, Inspect):
            self._tell_whereabouts(asked=True)

    def _report_waiting(self) -> None:
        run = self.current
        if run is None or run.has_ended:
            return
        pending = run.waiting_call()
        if pending is None or pending is self._reported:
            return
        if run.recorder.elapsed() - pending.started >= _WAITING_AFTER:
            self._reported = pending
            self._tell_whereabouts(asked=False)

    def _tell_whereabouts(self, *, asked: bool) -> None:
        run = self.current
        if run is None or run.has_ended:
            return
        frames = sys._current_frames()
        main: FrameType | None = frames.get(self._main)
        here = threading.get_ident()
        others = {ident: frame for ident, frame in frames.items() if ident not in (here, self._main)}
        pending = run.waiting_call()
        communicating = in_communication(main) and not run.hangs
        if pending is None and communicating:
            pending = run.recorder.pending()
        if pending is None:
            pending = run.store_wait()
        whereabouts = Whereabouts(
            run.order.run,
            stack=all_stacks(main, others),
            pending=pending,
            in_communication=pending is not None or communicating,
            trace=list(run.recorder.events),
            findings=list(run.recorder.findings),
            asked=asked,
        )
        self._channel.send(whereabouts)


def main(files: list[int], server: int) -> None:
    """Serve runs on ``files`` (control socket, stdout, stderr, fatal, journal) until the parent is gone."""
    control_fd, stdout, stderr, fatal, journal = files
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    faulthandler.enable(fatal, all_threads=True)
    # Works also when the interpreter is stuck in C code and the control thread can't run.
    faulthandler.register(signal.SIGQUIT, fatal, all_threads=True, chain=False)
    torch.set_num_threads(1)
    slate = Slate(stdout, stderr)
    channel = BlockingChannel(socket.socket(fileno=control_fd))
    control = Control(channel, server)
    control.start()
    while True:
        order, request = control.orders.get()
        slate.lay_out(order.surroundings)
        _serve(control, RankRun(order, channel, journal), request)
        dirty = slate.wipe()
        channel.send(Ready(order.run, dirty))
        if dirty:
            # The fork server then ends what else the scenario has left.
            os._exit(0)
        gc.collect()


def _serve(control: Control, run: RankRun, request: bytes) -> None:
    control.current = run
    try:
        run.execute(request)
    except (EOFError, OSError):
        # The parent is gone; the control thread says so too.
        os._exit(1)
    except BaseException:  # noqa: BLE001 - a fault of ours: the parent learns of it by our end
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    finally:
        control.current = None
