"""Rank counts as text."""

from __future__ import annotations

import pytest

from meshsim.errors import UsageError
from meshsim.topologies import parse_world_sizes


@pytest.mark.parametrize(
    ("text", "sizes"), [("8", (8,)), ("1-4", (1, 2, 3, 4)), ("6, 1-2,2", (1, 2, 6)), (" 3 - 3 ", (3,))]
)
def test_world_sizes_are_read(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_world_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "0", "0-3", "4-2", "a", "1,,2", "-1", "1-", "1.5"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"world sizes .* 1-8"):
        parse_world_sizes(text)
