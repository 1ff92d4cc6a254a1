"""One small all-reduce of all ranks before anything long, and the search for who breaks it."""

from __future__ import annotations

from collections.abc import Sequence

from meshsim.checker.wording import named_ranks
from meshsim.result import RunResult
from meshsim.smoke.bisection import find_broken
from meshsim.smoke.outcome import Check, Stage, StageState
from meshsim.smoke.programs.probe import probe
from meshsim.smoke.session import Session

_PROBE = 30.0
"""Seconds for one probe."""


def contact(session: Session, places: Sequence[int]) -> Stage:
    """Whether all ranks can do an all-reduce; else which of ``places`` (a rank for each host) can't."""
    ranks = list(range(session.plan.world_size))
    result = session.run(probe, {"members": ranks}, timeout=_PROBE)
    verdict = session.share(lambda: _what_is_wrong(result))
    if not verdict:
        summary = f"an all-reduce of {named_ranks(ranks)}"
        return Stage("contact", StageState.PASSED, summary, seconds=result.duration)
    found = find_broken(list(places), lambda members: _fails(session, members))
    culprits = (
        f"; it works without {named_ranks(sorted(found))}" if found and len(found) < len(places) else ""
    )
    return Stage(
        "contact",
        StageState.FAILED,
        verdict + culprits,
        checks=[Check("all-reduce of all ranks", StageState.FAILED, verdict + culprits)],
        data={"broken": sorted(found)},
        seconds=result.duration,
    )


def _what_is_wrong(result: RunResult) -> str:
    if not result.ok:
        return str(result.verdict)
    wrong = {rank: count for rank, count in enumerate(result.returns) if count}
    return f"wrong sums on {named_ranks(wrong)}" if wrong else ""


def _fails(session: Session, members: Sequence[int]) -> bool | None:
    if session.time_left() < _PROBE:
        return None
    result = session.run(probe, {"members": list(members)}, timeout=_PROBE)
    if result.not_run:
        return None
    return bool(session.share(lambda: _what_is_wrong(result)))
