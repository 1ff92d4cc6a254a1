"""The other ranks' part of a run: run the program, answer rank 0, tear down when it says so."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from meshsim.worlds.cluster.job import Job, LostFirst
from meshsim.worlds.cluster.messages import Beat, Finish, TornDown
from meshsim.worlds.cluster.rank_thread import RankThread
from meshsim.worlds.cluster.wiring import BEAT_EVERY, lost_after
from meshsim.worlds.gloo.messages import Inspect

_TO_TEAR_DOWN = 3.0
_AFTER_SIGTERM = 15.0


def attend(job: Job, own: RankThread | None, run: int, terminated: Callable[[], bool]) -> tuple[Finish, str]:
    """Until rank 0 says that the run is over: its word, and why this rank could not be torn down, if so.

    ``own`` is None where this rank takes no part. LostFirst when rank 0 is gone.
    """
    channel = job.channel
    heard = beaten = time.monotonic()
    since_term: float | None = None
    while True:
        watched: list[Any] = [channel] if own is None else [channel, own.wake]
        ready = [] if channel.has_arrived() else select.select(watched, [], [], BEAT_EVERY / 4)[0]
        now = time.monotonic()
        if own is not None:
            _tell_news(job, own)
        if now - beaten >= BEAT_EVERY:
            _send(job, Beat())
            beaten = now
        if channel.has_arrived() or channel in ready:
            heard = now
            finish = _act(job, own, run)
            if finish is not None:
                return finish
        if terminated() and since_term is None:
            since_term = now
        if now - heard > lost_after():
            job.broken = f"nothing was heard of rank 0 for {lost_after():g} s"
            raise LostFirst(f"rank {job.rank}: {job.broken}")
        if since_term is not None and now - since_term > _AFTER_SIGTERM:
            job.broken = "the job is being ended (SIGTERM)"
            raise LostFirst(f"rank {job.rank}: {job.broken}, and rank 0 says nothing")


def _act(job: Job, own: RankThread | None, run: int) -> tuple[Finish, str] | None:
    try:
        message, _ = job.channel.receive()
    except (EOFError, OSError):
        job.broken = "rank 0 is gone"
        raise LostFirst(f"rank {job.rank}: rank 0 is gone: its process or its host has ended") from None
    if isinstance(message, Inspect) and message.run == run and own is not None:
        _send(job, own.whereabouts(asked=True))
    if isinstance(message, Finish) and message.run == run:
        stuck = own.tear_down(abort=message.abort, seconds=_TO_TEAR_DOWN) if own is not None else ""
        _send(job, TornDown(run, stuck))
        return message, stuck
    return None


def _tell_news(job: Job, own: RankThread) -> None:
    for news in own.take_news():
        message, blob = news if isinstance(news, tuple) else (news, b"")
        _send(job, message, blob)
    where = own.whereabouts_if_waiting()
    if where is not None:
        _send(job, where)


def _send(job: Job, message: object, blob: bytes = b"") -> None:
    try:
        job.channel.send(message, blob)
    except OSError:
        job.broken = "rank 0 is gone"
        raise LostFirst(f"rank {job.rank}: rank 0 is gone: its process or its host has ended") from None
