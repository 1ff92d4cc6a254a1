"""Works and futures of the fake world: waiting lets other ranks run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from meshsim.torch_private import in_autograd_backward

if TYPE_CHECKING:
    from meshsim.trace import TraceEvent
    from meshsim.worlds.fake.exchange import Exchange
    from meshsim.worlds.fake.kernels import Delivery


class FakeWork(dist.Work):
    """One rank's handle on one call.

    ``ready``: all partners have called. ``delivered``: the result is in the rank's tensors; that happens in
    the rank's own thread, when it waits or (drawn from the seed) at one of its later communication calls.
    """

    def __init__(self, exchange: Exchange, rank: int, event: TraceEvent, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.exchange = exchange
        self.rank = rank
        self.event = event
        self.outputs = outputs
        self.ready = False
        self.delivered = False
        self.delivery: Delivery = []
        self.source: int | None = None
        self.future: RankFuture | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if not self.delivered:
            self.exchange.finish(self)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.delivered or self.exchange.poll(self)

    def is_success(self) -> bool:
        return self.delivered

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self.outputs

    def _source_rank(self) -> int:
        return -1 if self.source is None else self.source

    source_rank = _source_rank

    def get_future(self) -> RankFuture:
        # C++ waits on a communication hook's future without coming back to Python, and would then keep every
        # other rank from running; inside backward, and where C++ asks, the result is therefore fetched first.
        if in_autograd_backward() or not _asked_by_python():
            self.wait()
        if self.future is None:
            self.future = RankFuture(self.wait)
            if self.delivered:
                self.future.set_result(self.outputs)
        return self.future


def _asked_by_python() -> bool:
    """Whether it is Python code that calls ``get_future``. A call from C++ leaves no frame of its own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name == "get_future":
        frame = frame.f_back
    return frame is not None and "get_future" in frame.f_code.co_names


class RankFuture(torch.futures.Future[Any]):
    """A future whose ``wait`` passes the baton instead of blocking the thread that holds it."""

    def __init__(self, fetch: Callable[[], Any]) -> None:
        super().__init__()
        self._fetch = fetch
        self._then: list[Callable[[], None]] = []

    def wait(self) -> Any:
        if not super().done():
            self._fetch()
        return super().wait()

    def value(self) -> Any:
        return super().value()

    def set_result(self, result: Any) -> None:
        super().set_result(result)
        self._run_callbacks()

    def set_exception(self, result: Any) -> None:
        super().set_exception(result)
        self._run_callbacks()

    def then(self, callback: Callable[[Any], Any]) -> RankFuture:
        child = RankFuture(self.wait)

        def run() -> None:
            try:
                result = callback(self)
            except Exception as error:  # noqa: BLE001 - the child carries it to whoever waits
                child.set_exception(error)
            else:
                child.set_result(result.wait() if isinstance(result, torch.futures.Future) else result)

        self._call(run)
        return child

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        self._call(lambda: callback(self))

    @classmethod
    def of_all(cls, futures: Sequence[torch.futures.Future[Any]]) -> RankFuture:
        """What ``torch.futures.collect_all`` gives: done, with the futures, when all are."""
        futures = list(futures)
        parent = cls(lambda: [future.wait() for future in futures])
        left = [len(futures)]

        def count(_: Any) -> None:
            left[0] -= 1
            if not left[0]:
                parent.set_result(futures)

        for future in futures:
            future.add_done_callback(count)
        return parent

    def _call(self, run: Callable[[], None]) -> None:
        if super().done():
            run()
        else:
            self._then.append(run)

    def _run_callbacks(self) -> None:
        waiting, self._then = self._then, []
        for run in waiting:
            run()
