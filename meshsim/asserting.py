"""Assertions about all ranks together, for scenarios and the bodies of mesh tests.

Every one of them is a call that all ranks make, ends with the same answer on every rank, and raises on all
or on none: no rank is left waiting for another that has raised.
"""

from __future__ import annotations

import hashlib
import json
import re
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshsim.context import this_rank
from meshsim.errors import MeshsimError, UsageError
from meshsim.verdict import Finding, VerdictKind

if TYPE_CHECKING:
    from meshsim.context import RankContext

_SHOWN = 120
_LINES = 6


class RanksDisagree(MeshsimError, AssertionError):
    """Raised on every rank. ``finding`` names the ranks at fault."""

    def __init__(self, message: str, finding: Finding | None = None) -> None:
        super().__init__(message)
        self.finding = finding


def all_agree(value: Any, along: str | Sequence[str] = "world") -> Any:
    """Assert that all ranks hold the same value, bit for bit, and return it.

    ``value`` is anything that JSON can describe, and tensors: of those the local data, dtype and shape count.
    ``along`` names an axis, or several: then the ranks of each of its groups are to agree with each other.
    RanksDisagree says on every rank which ranks hold what.
    """
    context = this_rank("all_agree")
    told = _exchange(context, _tell(value))
    odd: list[int] = []
    lines: list[str] = []
    for group in context.mesh.plan.groups(along):
        holders = _holders(told, group)
        if len(holders) > 1:
            odd += _odd_ones(holders)
            lines += _lines(holders, told)
    if lines:
        _disagree(VerdictKind.SHOULD_BE_SAME, f"all_agree{_named(along)}: {'; '.join(lines[:_LINES])}", odd)
    return value


def differs_along(axis: str | Sequence[str], value: Any) -> Any:
    """Assert that no two ranks of a group along ``axis`` hold the same value, and return it.

    As for data, random masks and shards, which are useless when they are equal.
    """
    context = this_rank("differs_along")
    told = _exchange(context, _tell(value))
    odd: list[int] = []
    lines: list[str] = []
    for group in context.mesh.plan.groups(axis):
        for ranks in _holders(told, group).values():
            if len(ranks) > 1:
                odd += ranks
                lines.append(f"{_ranks(ranks)} all have {told[ranks[0]].text}")
    if lines:
        _disagree(VerdictKind.SHOULD_DIFFER, f"differs_along {_axes(axis)}: {'; '.join(lines[:_LINES])}", odd)
    return value


@dataclass
class Raised:
    """What ``raises_on`` caught on this rank: ``value`` is the exception, or None."""

    value: BaseException | None = None


@contextmanager
def raises_on(
    ranks: int | Iterable[int] | Callable[[int], bool],
    expected: type[BaseException] | tuple[type[BaseException], ...],
    match: str | None = None,
) -> Iterator[Raised]:
    """Assert that the block raises ``expected`` on exactly these ranks.

    ``ranks`` are global ranks, one or several, or a function that tells from a rank. All ranks enter and
    leave the block; at its end they tell each other what they raised. ``match`` is searched in the message.
    An exception of another kind is raised on as it is, while the other ranks raise RanksDisagree.
    """
    context = this_rank("raises_on")
    wanted = _wanted(ranks, context.world_size)
    caught = Raised()
    other: BaseException | None = None
    told = "nothing"
    try:
        yield caught
    except expected as error:
        caught.value = error
        told = "expected" if match is None or re.search(match, str(error)) else f"unlike {error}"
    except Exception as error:  # noqa: BLE001 - raised on below, once the others know
        other = error
        told = f"other {type(error).__qualname__}: {error}"
    all_told = [str(one) for one in _gather(context, told)]
    if other is not None:
        raise other
    _judge_raised(all_told, wanted, expected, match)


def vote_skip(reason: str, when: bool = True) -> None:
    """Skip the test on every rank if ``when`` is true on any of them; each rank gives its own opinion."""
    context = this_rank("vote_skip")
    votes = _gather(context, bool(when))
    for_it = [rank for rank, vote in enumerate(votes) if vote]
    if for_it:
        everyone = len(for_it) == context.world_size
        raise unittest.SkipTest(reason if everyone else f"{reason} (on {_ranks(for_it)})")


def _judge_raised(told: Sequence[str], wanted: frozenset[int], expected: Any, match: str | None) -> None:
    name = _kind_names(expected)
    wrong: dict[str, list[int]] = {}
    for rank, one in enumerate(told):
        if one.startswith("other "):
            problem = f"raised {one[6:]} instead of {name}"
        elif one.startswith("unlike "):
            problem = f"raised {name} with {one[7:]!r}, which doesn't match {match!r}"
        elif (one == "expected") == (rank in wanted):
            continue
        else:
            problem = f"raised {name}, and should not" if one == "expected" else f"did not raise {name}"
        wrong.setdefault(problem, []).append(rank)
    if wrong:
        odd = sorted(rank for ranks in wrong.values() for rank in ranks)
        text = "; ".join(f"{_ranks(ranks)} {problem}" for problem, ranks in wrong.items())
        raise RanksDisagree(
            f"raises_on: {text}", Finding(VerdictKind.RAISED, f"raises_on: {text}", tuple(odd))
        )


def _kind_names(expected: Any) -> str:
    kinds = expected if isinstance(expected, tuple) else (expected,)
    return " or ".join(kind.__qualname__ for kind in kinds)


def _wanted(ranks: int | Iterable[int] | Callable[[int], bool], world_size: int) -> frozenset[int]:
    if callable(ranks):
        return frozenset(rank for rank in range(world_size) if ranks(rank))
    wanted = frozenset([ranks] if isinstance(ranks, int) else ranks)
    outside = sorted(rank for rank in wanted if not 0 <= rank < world_size)
    if outside:
        raise UsageError(
            f"raises_on: there is no {_ranks(outside)}; the run has {world_size} ranks, from 0 on"
        )
    return wanted


@dataclass(frozen=True)
class _Told:
    """What a rank tells of its value: enough to compare, and to show."""

    digest: str
    text: str


def _tell(value: Any) -> _Told:
    from meshsim.reports.values import to_json_value

    described = json.dumps(to_json_value(_local(value)), sort_keys=True)
    text = repr(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return _Told(hashlib.sha256(described.encode()).hexdigest(), " ".join(shown.split()))


def _local(value: Any) -> Any:
    """A DTensor's own part: its whole would take communication that not every rank may join."""
    to_local = getattr(value, "to_local", None)
    return to_local() if callable(to_local) and hasattr(value, "placements") else value


def _exchange(context: RankContext, told: _Told) -> list[_Told]:
    return [_Told(*one) for one in _gather(context, (told.digest, told.text))]


def _gather(context: RankContext, value: Any) -> list[Any]:
    import torch.distributed as dist

    if context.world_size == 1:
        return [value]
    gathered: list[Any] = [None] * context.world_size
    dist.all_gather_object(gathered, value)
    return gathered


def _holders(told: Sequence[_Told], group: Iterable[int]) -> dict[str, list[int]]:
    holders: dict[str, list[int]] = {}
    for rank in group:
        holders.setdefault(told[rank].digest, []).append(rank)
    return holders


def _odd_ones(holders: dict[str, list[int]]) -> list[int]:
    """The ranks outside of the majority; all of them when there is none."""
    by_size = sorted(holders.values(), key=len, reverse=True)
    kept = by_size[1:] if len(by_size[0]) > len(by_size[1]) else by_size
    return sorted(rank for ranks in kept for rank in ranks)


def _lines(holders: dict[str, list[int]], told: Sequence[_Told]) -> list[str]:
    return [
        f"{_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {told[ranks[0]].text}"
        for ranks in sorted(holders.values(), key=lambda ranks: (len(ranks), ranks))
    ]


def _ranks(ranks: Iterable[int]) -> str:
    from meshsim.checker.wording import named_ranks

    return named_ranks(ranks)


def _axes(axes: str | Sequence[str]) -> str:
    return axes if isinstance(axes, str) else ", ".join(axes)


def _named(along: str | Sequence[str]) -> str:
    return "" if along == "world" else f" along {_axes(along)}"


def _disagree(kind: VerdictKind, text: str, odd: Sequence[int]) -> None:
    raise RanksDisagree(text, Finding(kind, text, tuple(sorted(set(odd)))))
