"""One rank of one run, inside a worker."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.distributed as dist

from meshsim.errors import MeshsimError
from meshsim.failure import failure_from
from meshsim.report import RankFailure, RankState
from meshsim.torch_private import calls_by_non_members
from meshsim.trace import CallState, TraceEvent
from meshsim.worlds.checks import prepare
from meshsim.worlds.gloo.environment import rank_environment
from meshsim.worlds.gloo.frames import BlockingChannel
from meshsim.worlds.gloo.journal import JournaledEvents
from meshsim.worlds.gloo.messages import Ended, RunOrder, Started
from meshsim.worlds.gloo.process_group import GlooGroups
from meshsim.worlds.gloo.receiving import load_request
from meshsim.worlds.gloo.returning import pack_exception, pack_value
from meshsim.worlds.gloo.store_client import StoreClient
from meshsim.worlds.injection import FaultActions
from meshsim.worlds.rank_program import run_rank
from meshsim.worlds.recorder import Recorder
from meshsim.worlds.recording import note_call_by_non_member


class LeftProcessGroup(MeshsimError):
    """The scenario started a default process group of its own and left it."""


class RankRun:
    """What the main thread does with an order. The control thread reads ``recorder`` meanwhile."""

    def __init__(self, order: RunOrder, channel: BlockingChannel, journal: int) -> None:
        self.order = order
        self.recorder = Recorder(order.rank, _clock_of(order.began))
        self._journal = JournaledEvents(journal)
        self.recorder.events = self._journal
        self.hangs = False
        """An injected fault makes it hang: it only seems to communicate."""
        self._process = os.getpid()
        self.released = threading.Event()
        self.has_ended = False
        self._channel = channel
        self.store = StoreClient(channel, order.run)
        self._groups = GlooGroups(order, self.recorder, self.store)

    def waiting_call(self) -> TraceEvent | None:
        """The call whose completion the rank waits for at this moment, if it waits for one."""
        for event in reversed(self.recorder.events):
            if event.state is CallState.ISSUED and event.waited:
                return event
        return None

    def store_wait(self) -> TraceEvent | None:
        """The wait for the store that the rank is in, as a call that no trace has."""
        waiting = self.store.waiting()
        if waiting is None:
            return None
        return TraceEvent(
            rank=self.order.rank,
            index=len(self.recorder.events),
            op="store.wait",
            group=tuple(range(self.order.world_size)),
            note=waiting,
        )

    def execute(self, request: bytes) -> None:
        """Run the rank, hand in its end, and tear down once every rank has ended."""
        ended, blob = self._outcome(request)
        if os.getpid() != self._process:
            # A child that the scenario forked came back here: it is not the rank.
            os._exit(0)
        self.has_ended = True
        self._channel.send(ended, blob)
        self.released.wait()
        self.recorder.close()
        self._groups.close()

    def _outcome(self, request: bytes) -> tuple[Ended, bytes]:
        try:
            value = pack_value(self._scenario(request))
        except SystemExit as error:
            code = _exit_code(error)
            return self._end(RankState.EXITED, failure_from(error), error, exit_code=code)
        except BaseException as error:  # noqa: BLE001 - whatever a rank raises is its result
            return self._end(RankState.RAISED, failure_from(error), error)
        return self._account(RankState.RETURNED), value

    def _end(
        self, state: RankState, failure: RankFailure, error: BaseException, exit_code: int | None = None
    ) -> tuple[Ended, bytes]:
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
            self.order.run,
            state,
            ended=time.monotonic() - self.order.began,
            failure=failure,
            exit_code=exit_code,
            trace=list(self.recorder.events),
            findings=list(self.recorder.findings),
        )

    def _scenario(self, request: bytes) -> Any:
        order = self.order
        local_rank = order.rank % order.node_size
        rank_environment(order)
        self._groups.join_world()
        self._channel.send(Started(order.run))
        loaded = load_request(request)
        _seed_everything(loaded.seed)
        prepare(self.recorder, loaded, FaultActions(crash=self._crash, hang=self._hang, delay=_delay))
        with calls_by_non_members(note_call_by_non_member), self._groups.rendezvous.installed():
            value = run_rank(
                loaded,
                rank=order.rank,
                local_rank=local_rank,
                device=torch.device("cpu"),
                recorder=self.recorder,
            )
        self._refuse_left_group()
        return value

    def _crash(self, rank: int) -> None:
        """An injected fault: gone, without a word."""
        self._journal.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def _hang(self, rank: int) -> None:
        """An injected fault: never come back."""
        self.hangs = True
        threading.Event().wait()

    def _refuse_left_group(self) -> None:
        if dist.is_initialized() and dist.group.WORLD is not self._groups.world:
            raise LeftProcessGroup(
                "left a process group: the scenario started a default process group of its own; "
                "end it with torch.distributed.destroy_process_group() before returning"
            )


def _clock_of(began: float) -> Callable[[], float]:
    """A clock whose first reading is when the run began, so that all ranks' traces share one zero."""
    readings = iter([began])
    return lambda: next(readings, None) or time.monotonic()


def _delay(rank: int, seconds: float) -> None:
    time.sleep(seconds)


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
