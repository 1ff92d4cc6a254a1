"""What must be right before the first collective, judged from what every rank says of itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshsim.checker.wording import named_ranks, rank_ranges
from meshsim.worlds.cluster.facts import RankFacts, RunFacts


def job_problems(ranks: Sequence[RankFacts]) -> list[str]:
    """Everything wrong with the job itself, each problem once, with its hosts and ranks."""
    return [
        *_unable(ranks),
        *_differing_versions(ranks),
        *_differing_backends(ranks),
        *_too_few_devices(ranks),
        *_shared_devices(ranks),
        *_hosts_against_local_sizes(ranks),
    ]


def run_problems(runs: Sequence[RunFacts], ranks: Sequence[RankFacts]) -> list[str]:
    """Everything that the ranks are about to do differently."""
    refused = _by_value((run.refused, rank) for rank, run in enumerate(runs) if run.refused)
    if refused:
        return [f"{named_ranks(members)} can't take part: {text}" for text, members in refused.items()]
    fields: tuple[tuple[str, Callable[[RunFacts], Any]], ...] = (
        ("run different scenarios", lambda run: run.scenario),
        ("have different sources of the scenario", lambda run: (run.source or "no source")[7:19]),
        ("ask for different plans", lambda run: f"{run.topology} ({run.plan[:12]})"),
        ("have different seeds", lambda run: run.seed),
        ("have different parameters", lambda run: run.params),
    )
    found = []
    for what, value_of in fields:
        text = _disagreement(what, [value_of(run) for run in runs], ranks)
        if text is not None:
            found.append(text)
    return found


def _by_value(pairs: Iterable[tuple[Any, int]]) -> dict[Any, list[int]]:
    members: dict[Any, list[int]] = defaultdict(list)
    for value, rank in pairs:
        members[value].append(rank)
    return members


def _hosts(ranks: Iterable[RankFacts]) -> str:
    hosts = list(dict.fromkeys(fact.host for fact in ranks))
    shown = ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
    return f"{'host' if len(hosts) == 1 else 'hosts'} {shown}"


def _disagreement(what: str, values: Sequence[Any], ranks: Sequence[RankFacts]) -> str | None:
    members = _by_value((value, rank) for rank, value in enumerate(values))
    if len(members) <= 1:
        return None
    told = "; ".join(
        f"{value} on {named_ranks(of)} ({_hosts(ranks[rank] for rank in of)})"
        for value, of in members.items()
    )
    return f"ranks {what}: {told}"


def _unable(ranks: Sequence[RankFacts]) -> list[str]:
    members = _by_value((fact.problem, fact.rank) for fact in ranks if fact.problem)
    return [
        f"{_hosts(ranks[rank] for rank in of)} ({named_ranks(of)}): {problem}"
        for problem, of in members.items()
    ]


def _differing_versions(ranks: Sequence[RankFacts]) -> list[str]:
    names = dict.fromkeys(name for fact in ranks for name in fact.versions)
    found = []
    for name in names:
        # A host that lacks a library has said so itself.
        having = [fact for fact in ranks if not fact.problem or name in fact.versions]
        values = [fact.versions.get(name, "none") for fact in having]
        members = _by_value(zip(values, (fact.rank for fact in having), strict=True))
        if len(members) > 1:
            told = "; ".join(
                f"{value} on {_hosts(ranks[rank] for rank in of)} ({named_ranks(of)})"
                for value, of in members.items()
            )
            found.append(f"versions of {name} differ: {told}")
    return found


def _differing_backends(ranks: Sequence[RankFacts]) -> list[str]:
    found = [
        _disagreement("ask for different backends", [fact.backend for fact in ranks], ranks),
        _disagreement("see different launchers", [fact.launcher for fact in ranks], ranks),
    ]
    return [text for text in found if text is not None]


def _of_hosts(ranks: Sequence[RankFacts]) -> dict[str, list[RankFacts]]:
    hosts: dict[str, list[RankFacts]] = defaultdict(list)
    for fact in ranks:
        hosts[fact.host].append(fact)
    return hosts


def _has_devices(fact: RankFacts) -> bool:
    return bool(fact.device) and fact.device != "cpu"


def _too_few_devices(ranks: Sequence[RankFacts]) -> list[str]:
    """Where each process sees the same devices, and there are fewer of them than ranks."""
    found = []
    for host, members in _of_hosts(ranks).items():
        counts = {(fact.visible, fact.count) for fact in members}
        if len(counts) != 1 or not any(_has_devices(fact) for fact in members):
            continue
        count = members[0].count
        if count < len(members) and len({fact.uuid or fact.physical for fact in members}) <= count:
            kind = next(fact.device for fact in members if fact.device).partition(":")[0]
            devices = f"{count} {kind} device{'' if count == 1 else 's'}"
            found.append(f"host {host} has {devices} for {len(members)} ranks")
    return found


def _shared_devices(ranks: Sequence[RankFacts]) -> list[str]:
    used: dict[tuple[str, str], list[RankFacts]] = defaultdict(list)
    for fact in ranks:
        if _has_devices(fact):
            # A UUID tells two containers of one machine apart from two machines.
            key = ("", fact.uuid) if fact.uuid else (fact.host, fact.physical)
            used[key].append(fact)
    found = []
    for members in used.values():
        if len(members) > 1:
            numbers = ", ".join(str(fact.rank) for fact in members[:16])
            hosts = list(dict.fromkeys(fact.host for fact in members))
            device = members[0].physical or members[0].device.partition(":")[2]
            many = "both" if len(members) == 2 else "all"
            found.append(f"ranks {numbers} are {many} on host {' and '.join(hosts)}, device {device}")
    return found


def _hosts_against_local_sizes(ranks: Sequence[RankFacts]) -> list[str]:
    """A launcher's count of the ranks on a host, against the hosts that the ranks say they are on."""
    found = []
    for host, members in _of_hosts(ranks).items():
        said = {fact.local_world_size for fact in members} - {None}
        # Pods or several agents on one host: each counts its own.
        if len(said) == 1 and len(members) % (next(iter(said)) or 1):
            found.append(
                f"host {host} has {len(members)} ranks ({rank_ranges(fact.rank for fact in members)}), "
                f"and the launcher says {next(iter(said))} a host"
            )
    return found
