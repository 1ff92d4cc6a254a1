"""The first stage: who is there, on what, and whether they fit together."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from meshsim.checker.wording import rank_ranges
from meshsim.errors import CannotRun
from meshsim.reports.tables import aligned
from meshsim.smoke.outcome import Check, Stage, StageState
from meshsim.smoke.session import Session


def preflight(session: Session) -> tuple[Stage, tuple[str, ...]]:
    """The stage, and the hosts."""
    facts_of = getattr(session.world, "facts", None)
    if facts_of is None:
        host = platform.node()
        summary = f"{session.plan.world_size} {session.world.backend} ranks as processes of this machine"
        return Stage("preflight", StageState.PASSED, summary, data={"ranks": []}), (host,)
    try:
        ranks = facts_of()
    except CannotRun as error:
        checks = [Check(problem, StageState.FAILED, problem) for problem in str(error).split("; ")]
        return Stage("preflight", StageState.FAILED, str(error), checks=checks), ()
    return _stage_of(ranks), tuple(dict.fromkeys(fact.host for fact in ranks))


def _stage_of(ranks: Sequence[Any]) -> Stage:
    hosts: dict[str, list[Any]] = defaultdict(list)
    for fact in ranks:
        hosts[fact.host].append(fact)
    rows = [
        (host, rank_ranges(fact.rank for fact in members), _devices(members), members[0].device_name)
        for host, members in hosts.items()
    ]
    versions = ", ".join(f"{name} {version}" for name, version in ranks[0].versions.items())
    differing = _differing_settings(ranks)
    return Stage(
        "preflight",
        StageState.PASSED,
        f"{len(ranks)} ranks on {len(hosts)} host{'' if len(hosts) == 1 else 's'}; {versions}",
        lines=[*aligned(("host", "ranks", "devices", "model"), rows).splitlines(), *differing],
        data={
            "ranks": [
                {"rank": fact.rank, "host": fact.host, "device": fact.device, "physical": fact.physical}
                for fact in ranks
            ],
            "versions": ranks[0].versions,
        },
    )


def _devices(members: Sequence[Any]) -> str:
    kinds = dict.fromkeys(fact.device.partition(":")[0] for fact in members)
    indices = ",".join(fact.physical for fact in members if fact.physical)
    return " ".join(kinds) + (f":{indices}" if indices else "")


def _differing_settings(ranks: Sequence[Any]) -> list[str]:
    """Environment variables of the backend that are not the same on all ranks: worth a look, not an error."""
    names = sorted({name for fact in ranks for name in fact.settings})
    lines = []
    for name in names:
        values: dict[str, list[int]] = defaultdict(list)
        for fact in ranks:
            values[fact.settings.get(name, "not set")].append(fact.rank)
        if len(values) > 1:
            told = "; ".join(f"{value} on ranks {rank_ranges(of)}" for value, of in values.items())
            lines.append(f"{name} differs: {told}")
    return lines
