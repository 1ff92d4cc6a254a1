"""What a scenario says that it needs of a backend, against the capability table, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshsim.checker.capabilities import DTYPES, REDUCE_OPS, CallFacts, unsupported
from meshsim.errors import UsageError


def lacking(scenario: Any, *backends: str | None) -> str | None:
    """Why one of the backends can't run a scenario, by the scenario's attribute ``needs``; None if all can.

    ``needs`` lists calls as text: ``all_reduce float64 SUM``, ``broadcast int64``, ``all_gather_object``. A
    need that can't be read is a ``UsageError``.
    """
    for backend in filter(None, backends):
        for call in parse_needs(getattr(scenario, "needs", ())):
            reason = unsupported(call, backend)
            if reason:
                return reason
    return None


def parse_needs(needs: str | Iterable[str]) -> list[CallFacts]:
    """Each need as the facts of a call."""
    return [_parse(need) for need in ([needs] if isinstance(needs, str) else needs)]


def _parse(need: str) -> CallFacts:
    op, *words = str(need).split()
    dtypes = [word for word in words if word in DTYPES]
    reduce_ops = [word for word in words if word in REDUCE_OPS]
    if len(dtypes) + len(reduce_ops) != len(words) or len(dtypes) > 1 or len(reduce_ops) > 1:
        raise UsageError(
            f"a scenario's need {need!r} can't be read; write the operation, then its dtype and reduce op, "
            "such as 'all_reduce float64 SUM'"
        )
    return CallFacts(op, dtype=dtypes[0] if dtypes else "", reduce_op=reduce_ops[0] if reduce_ops else "")
