"""Reading the notation of the mesh cases."""

from __future__ import annotations

import re

import pytest

from meshlib import MeshPlan


def plan_of(case: str, **options) -> MeshPlan:
    """``W8 dp=2,tp=2``: a world of 8 ranks and topology text."""
    world, _, topology = case.partition(" ")
    return MeshPlan.build(topology, int(world.removeprefix("W")), **options)


def ranks_of(text: str) -> tuple[int, ...]:
    """``0,2`` or ``0-3,8``."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        ranks.extend(range(int(first), int(last or first) + 1))
    return tuple(ranks)


def groups_of(text: str) -> tuple[tuple[int, ...], ...]:
    """``[0,2] [1,3]``."""
    return tuple(ranks_of(part) for part in re.findall(r"\[([^\]]*)\]", text))


def assert_groups(plan: MeshPlan, axes, text: str) -> None:
    """All groups along the axes; after an ellipsis comes the last one."""
    head, _, tail = text.partition("…")
    groups, first = plan.groups(axes), groups_of(head)
    if tail:
        assert groups[: len(first)] == first
        assert groups[-1] == groups_of(tail)[0]
    else:
        assert groups == first


def refusal(build, *fragments: str):
    """The error of a refused call; every fragment has to be in its message."""
    from meshlib import MeshError

    with pytest.raises(MeshError) as caught:
        build()
    assert not isinstance(caught.value, AssertionError | IndexError)
    for fragment in fragments:
        assert fragment in str(caught.value)
    return caught.value
