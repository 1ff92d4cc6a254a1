"""The environment variables of a rank for the time of a run, as torchrun sets them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from meshsim.worlds.cluster.facts import RankFacts
from meshsim.worlds.cluster.launch import Launch


def local_ranks(ranks: Sequence[RankFacts]) -> tuple[int, ...]:
    """Each rank's local rank: the launcher's, else its place among the ranks of its host."""
    seen: dict[str, int] = {}
    found = []
    for fact in ranks:
        place = seen.get(fact.host, 0)
        seen[fact.host] = place + 1
        found.append(place if fact.local_rank is None else fact.local_rank)
    return tuple(found)


def rank_variables(launch: Launch, ranks: Sequence[RankFacts], world_size: int) -> dict[str, str]:
    """For a run on the first ``world_size`` ranks of the job."""
    taking_part = ranks[:world_size]
    hosts = list(dict.fromkeys(fact.host for fact in taking_part))
    host = ranks[launch.rank].host
    return {
        "RANK": str(launch.rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_ranks(ranks)[launch.rank]),
        "LOCAL_WORLD_SIZE": str(sum(fact.host == host for fact in taking_part)),
        "GROUP_RANK": str(hosts.index(host)),
        "GROUP_WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": launch.master_addr,
        "MASTER_PORT": str(launch.master_port),
    }


@contextlib.contextmanager
def variables_set(variables: dict[str, str]) -> Iterator[None]:
    """Inside, the process has these variables; after it those that it had."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
