"""A rank's end of an accelerator's group: batches start together, and the device may be behind the host."""

from __future__ import annotations

from typing import Any

import torch

from meshsim.trace import TraceEvent
from meshsim.worlds.calls import Call
from meshsim.worlds.cluster.process_group import JobTransport


class Work:
    def __init__(self) -> None:
        self.done = False
        self.waits = 0

    def wait(self) -> bool:
        self.waits += 1
        return True

    def is_completed(self) -> bool:
        return self.done


class Group:
    """Notes what it is asked for. As NCCL's, it gives no work for a call within a batch."""

    supports_coalescing = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.works: list[Work] = []
        self.in_batch = False

    def _start_coalescing(self, device: torch.device) -> None:
        self.asked.append("start")
        self.in_batch = True

    def _end_coalescing(self, device: torch.device) -> Work:
        self.asked.append("end")
        self.in_batch = False
        return self._work()

    def _work(self) -> Work:
        self.works.append(Work())
        return self.works[-1]

    def send(self, *arguments: Any) -> Work | None:
        self.asked.append("send")
        return None if self.in_batch else self._work()

    recv = send

    def allreduce(self, *arguments: Any) -> Work:
        self.asked.append("allreduce")
        return self._work()


def transport(group: Group) -> JobTransport:
    backend = type("Backend", (), {"supports_coalescing": True})()
    return JobTransport(group, backend, torch.device("cuda", 0), averages=True)


def call(op: str, index: int) -> Call:
    return Call(TraceEvent(0, index, op, (0, 1)), {"all_reduce": "allreduce"}.get(op, op), ())


def test_operations_of_a_batch_start_and_end_together() -> None:
    group = Group()
    end = transport(group)
    end.begin_batch(2)
    first, second = end.start(call("send", 0)), end.start(call("recv", 1))
    assert group.asked == ["start", "send", "send", "end"]
    assert not first.is_completed()
    assert first.wait()
    assert second.wait()
    assert group.works[0].waits == 2
    group.works[0].done = True
    assert first.is_completed()
    # What follows is no part of it.
    end.start(call("send", 2))
    assert group.asked[4:] == ["send"]


def test_calls_that_the_device_has_not_done_are_unfinished_though_the_host_went_on() -> None:
    group = Group()
    end = transport(group)
    for index in range(3):
        end.start(call("all_reduce", index)).wait()
    group.works[0].done = True
    assert [event.index for event in end.unfinished()] == [1, 2]
    for work in group.works:
        work.done = True
    assert end.unfinished() == []
