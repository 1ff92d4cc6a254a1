"""``@meshsim.rank_fixture``: a fixture that each rank evaluates for itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

import pytest

from meshsim.errors import UsageError
from meshsim.pytest_plugin.ranks.recipe import OnRank

_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def rank_fixture(function: _F) -> _F: ...
@overload
def rank_fixture(
    *,
    scope: str = "function",
    params: Any = None,
    autouse: bool = False,
    ids: Any = None,
    name: str | None = None,
) -> Callable[[_F], _F]: ...
def rank_fixture(
    function: Callable[..., Any] | None = None,
    *,
    scope: str = "function",
    params: Any = None,
    autouse: bool = False,
    ids: Any = None,
    name: str | None = None,
) -> Any:
    """A pytest fixture that is evaluated on each rank, just before the body of a mesh test.

    It may use ``rank_context``, ``mesh_context``, other rank fixtures, and ordinary fixtures, of which each
    rank has its own copy. What follows its ``yield`` runs on the rank when the body has ended. Ranks don't
    outlive a test, so that its scope is always ``function``. The other options are those of
    ``pytest.fixture``.
    """
    if scope != "function":
        raise UsageError(
            f"scope {scope!r} is not for rank fixtures: ranks don't outlive a test, so it is 'function'"
        )

    def decorate(target: Callable[..., Any]) -> Any:
        label = f"rank fixture {name or target.__name__!r}"

        @functools.wraps(target)
        def give_recipe(*arguments: Any, **keywords: Any) -> OnRank:
            return OnRank(target, label, arguments, keywords)

        # pytest asks the function itself; wraps() has taken over only what it is called.
        return pytest.fixture(params=params, autouse=autouse, ids=ids, name=name)(give_recipe)

    return decorate if function is None else decorate(function)
