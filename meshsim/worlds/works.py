"""The works that a rank is handed: they tell the rank's record when they are waited for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from meshsim.trace import CallState
from meshsim.worlds.calls import Call, Tensors
from meshsim.worlds.recorder import Recorder


class RecordedWork(dist.Work):
    """A work whose waiting and completion show in the trace."""

    def __init__(self, work: dist.Work, call: Call, recorder: Recorder) -> None:
        super().__init__()
        self._work = work
        self._call = call
        self._event = call.event
        self._recorder = recorder

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._recorder.closed:
            return True
        self._event.waited = True
        recorder = self._recorder
        # gloo copies some results into place in here.
        before, recorder.moving_data = recorder.moving_data, True
        try:
            done = self._work.wait(timeout) if timeout > timedelta(0) else self._work.wait()
        except BaseException:
            recorder.failed(self._event)
            raise
        finally:
            recorder.moving_data = before
        self._complete()
        if self._event.op == "recv" and self._event.peer is None:
            self._event.peer = self._event.group[self._work._source_rank()]
        return bool(done)

    def _complete(self) -> None:
        first = self._event.state is CallState.ISSUED
        self._recorder.completed(self._event)
        if first and self._event.op == "reduce" and self._event.root != self._event.rank:
            self._recorder.watch.leave_undefined(self._event, self._call.outputs)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        done = bool(self._work.is_completed())
        if done:
            self._event.waited = True
            self._complete()
        return done

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        self._event.waited = True
        return self._work.result()

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    source_rank = _source_rank

    def get_future(self) -> Any:
        # From here on the future says when the result is there, and its callbacks may read it.
        self._event.waited = True
        self._recorder.watch.end(self._event)
        future = self._work.get_future()
        if future.done():
            self._complete()
        return future


class FinishedWork(dist.Work):
    """Of a call that was over when it returned."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


class SkippedWork(dist.Work):
    """Of a call that an injected fault left out: done, and nothing has happened.

    To the checker the event is no call on the group, only a mark that the fault fired.
    """

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._outputs = call.outputs
        event = call.event
        event.group, event.group_name = (event.rank,), ""
        event.state, event.waited = CallState.COMPLETED, True

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> Tensors:
        return self._outputs

    def get_future(self) -> Any:
        future: torch.futures.Future[Tensors] = torch.futures.Future()
        future.set_result(self._outputs)
        return future


class CoalescedWork(dist.Work):
    """The works of one coalescing block, waited for together."""

    def __init__(self, works: list[dist.Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        results = [work.wait(timeout) for work in self._works]
        return all(results)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def get_future(self) -> Any:
        return torch.futures.collect_all([work.get_future() for work in self._works])
