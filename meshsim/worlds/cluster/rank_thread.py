"""The rank's program, in a thread of its own: the process can then tell of it whatever state it is in."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy
import torch

from meshsim.failure import failure_from
from meshsim.report import RankFailure, RankState
from meshsim.torch_private import Store, calls_by_non_members, p2p_batches_told
from meshsim.trace import CallState, TraceEvent
from meshsim.worlds.base import RunRequest
from meshsim.worlds.checks import prepare
from meshsim.worlds.cluster.backends import ClusterBackend
from meshsim.worlds.cluster.environment import variables_set
from meshsim.worlds.cluster.handing_in import pack_exception, pack_value
from meshsim.worlds.cluster.process_group import JobGroups
from meshsim.worlds.gloo.journal import JournaledEvents
from meshsim.worlds.gloo.messages import Ended, Started, Whereabouts
from meshsim.worlds.gloo.stacks import all_stacks, in_communication
from meshsim.worlds.injection import FaultActions
from meshsim.worlds.rank_program import run_rank
from meshsim.worlds.recorder import Recorder
from meshsim.worlds.recording import note_call_by_non_member

# A call that has been pending for this long is reported, so that a mismatch can be told from a slow rank.
_WAITING_AFTER = 0.4


def _crash(rank: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(rank: int) -> None:
    while True:
        time.sleep(3600)


_FAULT_ACTIONS = FaultActions(crash=_crash, hang=_hang, delay=lambda rank, seconds: time.sleep(seconds))


class RankThread(threading.Thread):
    """One rank of one run. ``wake`` can be read whenever there is news: started, ended, torn down."""

    def __init__(
        self,
        request: RunRequest,
        backend: ClusterBackend,
        store: Store,
        *,
        run: int,
        rank: int,
        device: torch.device,
        address: str,
        variables: dict[str, str],
        journal: Callable[[bytes], object] | None = None,
    ) -> None:
        super().__init__(name=f"meshsim-rank-{rank}", daemon=True)
        self._request = request
        self._backend = backend
        self._run_number = run
        self._rank = rank
        self._device = device
        self._variables = variables
        self._began = time.monotonic()
        self.recorder = Recorder(rank)
        if journal is not None:
            self.recorder.events = JournaledEvents(journal)
        self.groups = JobGroups(
            backend,
            self.recorder,
            store,
            rank=rank,
            world_size=request.world_size,
            device=device,
            address=address,
        )
        self.wake, self._waker = socket.socketpair()
        self.started = False
        self.account: tuple[Ended, bytes] | None = None
        self.torn_down = False
        self._released = threading.Event()
        self._reported: TraceEvent | None = None

    def run(self) -> None:
        try:
            with variables_set(self._variables):
                self.account = self._outcome()
                self._news()
                self._released.wait()
                self.groups.close()
        except BaseException:  # noqa: BLE001 - the other end of a group may be gone
            traceback.print_exc()
        self.torn_down = True
        self._news()

    def release(self) -> None:
        """All ranks are accounted for: tear down."""
        self._released.set()

    def _news(self) -> None:
        self._waker.send(b"!")

    # The program

    def _outcome(self) -> tuple[Ended, bytes]:
        try:
            value = pack_value(self._program())
        except SystemExit as error:
            return self._end(RankState.EXITED, error, _exit_code(error))
        except BaseException as error:  # noqa: BLE001 - whatever a rank raises is its result
            return self._end(RankState.RAISED, error)
        return self._account(RankState.RETURNED), value

    def _program(self) -> Any:
        request = self._request
        if self._device.type != "cpu":
            # The device is chosen for each thread anew.
            torch.accelerator.set_device_index(self._device.index)
        self.groups.join_world()
        self.started = True
        self._news()
        _seed_everything(request.seed)
        prepare(self.recorder, request, _FAULT_ACTIONS, backend=self._backend.name)
        with calls_by_non_members(note_call_by_non_member), p2p_batches_told(self.groups.batch_told()):
            try:
                value = run_rank(
                    request,
                    rank=self._rank,
                    local_rank=int(self._variables["LOCAL_RANK"]),
                    device=self._device,
                    recorder=self.recorder,
                )
            finally:
                self.recorder.close()
        if self._device.type != "cpu":
            # What the device still has to do may fail, and belongs to this run.
            torch.accelerator.synchronize()
        return value

    def _end(
        self, state: RankState, error: BaseException, exit_code: int | None = None
    ) -> tuple[Ended, bytes]:
        failure = failure_from(error)
        failure.exception = None
        account = self._account(state, failure, exit_code)
        packed = pack_exception(error)
        # The frames hold the scenario's tensors and groups; the text has been taken.
        traceback.clear_frames(error.__traceback__)
        return account, packed

    def _account(
        self, state: RankState, failure: RankFailure | None = None, exit_code: int | None = None
    ) -> Ended:
        return Ended(
            self._run_number,
            state,
            ended=time.monotonic() - self._began,
            failure=failure,
            exit_code=exit_code,
            trace=self.recorder.events,
            findings=self.recorder.findings,
        )

    # What the rest of the process tells of it

    def take_news(self) -> list[Started | tuple[Ended, bytes]]:
        """What has happened since it was last asked for."""
        self.wake.setblocking(False)
        try:
            self.wake.recv(16)
        except BlockingIOError:
            return []
        news: list[Started | tuple[Ended, bytes]] = []
        if self.started:
            news.append(Started(self._run_number))
        if self.account is not None:
            news.append(self.account)
        return news

    def waiting_call(self) -> TraceEvent | None:
        """The call whose completion the rank waits for at this moment, if it waits for one."""
        for event in reversed(self.recorder.events):
            if event.state is CallState.ISSUED and event.waited:
                return event
        return None

    def whereabouts_if_waiting(self) -> Whereabouts | None:
        """Where the rank is, once for each call that it has waited in for a while."""
        pending = None if self.account is not None else self.waiting_call()
        if pending is None or pending is self._reported:
            return None
        if self.recorder.elapsed() - pending.started < _WAITING_AFTER:
            return None
        self._reported = pending
        return self.whereabouts(asked=False)

    def whereabouts(self, *, asked: bool) -> Whereabouts:
        """Where the rank is now: its stack and all that it has communicated."""
        frame = sys._current_frames().get(self.ident or 0)
        pending = self.waiting_call()
        on_device = self.groups.note_unfinished() if asked else []
        communicating = in_communication(frame) or bool(on_device)
        if pending is None and on_device:
            pending = on_device[0]
        if pending is None and communicating:
            pending = self.recorder.pending()
        return Whereabouts(
            self._run_number,
            stack=all_stacks(frame, {}),
            pending=pending,
            in_communication=pending is not None or communicating,
            trace=list(self.recorder.events),
            findings=list(self.recorder.findings),
            asked=asked,
        )

    def tear_down(self, *, abort: bool, seconds: float) -> str:
        """End the groups, by force where ``abort``. Why the thread could not be ended; empty if it was."""
        self.release()
        if abort:
            self.join(0.2)
            if self.is_alive():
                self.groups.abort()
        self.join(seconds)
        if not self.is_alive():
            self.wake.close()
            self._waker.close()
            return ""
        line = all_stacks(sys._current_frames().get(self.ident or 0), {}).strip().splitlines()
        return line[-1].strip() if line else "no stack"


def _exit_code(error: SystemExit) -> int:
    """What the process would have ended with."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _seed_everything(seed: int) -> None:
    """Every rank starts from the run's seed; a scenario that wants ranks to differ adds its rank itself."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
