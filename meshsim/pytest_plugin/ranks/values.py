"""A test's arguments on their way to the ranks: in every world each rank gets its own copies."""

from __future__ import annotations

import enum
import inspect
import io
import os
import pathlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle

from meshsim.errors import UsageError
from meshsim.pytest_plugin.ranks.recipe import OnRank

_ATOMS = (str, bytes, int, float, bool, complex, type(None), enum.Enum, pathlib.PurePath)


class CannotBePrivate(UsageError):
    """A value of which no rank can get a copy."""


class _Key(NamedTuple):
    """Stands for a value: its place among the plain ones, or among the recipes."""

    number: int
    on_rank: bool


@dataclass(frozen=True)
class _Recipe:
    make: Callable[..., Any]
    label: str
    arguments: tuple[_Key, ...]
    keywords: Mapping[str, _Key]


class RankValues:
    """Everything that a test's body is given, by name. ``add`` in the parent, ``resolve`` on each rank."""

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}
        self._plain: list[Any] = []
        self._labels: list[str] = []
        self._recipes: list[_Recipe] = []
        self._known: dict[int, tuple[_Key, Any]] = {}
        self._packed: bytes | None = None
        self._process = os.getpid()

    def add(self, name: str, value: Any, label: str) -> None:
        """Note a value under ``name``; ``label`` is what messages call it."""
        self._keys[name] = self._key_of(value, label)

    def _key_of(self, value: Any, label: str) -> _Key:
        known = self._known.get(id(value))
        if known is not None:
            return known[0]
        if isinstance(value, OnRank):
            recipe = _Recipe(
                value.make,
                value.label,
                tuple(
                    self._key_of(part, f"argument {i} of {value.label}")
                    for i, part in enumerate(value.arguments)
                ),
                {
                    name: self._key_of(part, f"{name!r}, which {value.label} uses,")
                    for name, part in value.keywords.items()
                },
            )
            self._recipes.append(recipe)
            key = _Key(len(self._recipes) - 1, True)
        else:
            self._plain.append(value)
            self._labels.append(label)
            key = _Key(len(self._plain) - 1, False)
        # The value is kept, so that no other can get its id.
        self._known[id(value)] = key, value
        return key

    def check(self) -> None:
        """CannotBePrivate for the first value that can't be copied to a rank, in whatever world."""
        for label, value in zip(self._labels, self._plain, strict=True):
            check_private(value, label)
        self._known.clear()
        if not all(map(_is_atom, self._plain)):
            self._packed = cloudpickle.dumps(self._plain)

    def __getstate__(self) -> dict[str, Any]:
        # To another process the values go as they are, in one stream with the body.
        return {**self.__dict__, "_known": {}, "_packed": None}

    @contextmanager
    def resolve(self) -> Iterator[Resolved]:
        """On a rank: its own values. What fixtures have to tear down is torn down at the end."""
        with ExitStack() as stack:
            yield Resolved(self._keys, self._own_plain(), self._recipes, stack)

    def _own_plain(self) -> list[Any]:
        if self._packed is None:
            return self._plain
        copied: list[Any] = pickle.loads(self._packed)
        return copied


class Resolved:
    """One rank's values; those that are made on the rank are made when they are first asked for."""

    def __init__(
        self, keys: Mapping[str, _Key], plain: list[Any], recipes: list[_Recipe], stack: ExitStack
    ) -> None:
        self._keys = keys
        self._plain = plain
        self._recipes = recipes
        self._stack = stack
        self._made: dict[int, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def __getitem__(self, name: str) -> Any:
        return self._value(self._keys[name])

    def names(self) -> list[str]:
        return list(self._keys)

    def _value(self, key: _Key) -> Any:
        if not key.on_rank:
            return self._plain[key.number]
        if key.number not in self._made:
            self._made[key.number] = self._make(self._recipes[key.number])
        return self._made[key.number]

    def _make(self, recipe: _Recipe) -> Any:
        arguments = [self._value(key) for key in recipe.arguments]
        keywords = {name: self._value(key) for name, key in recipe.keywords.items()}
        if not inspect.isgeneratorfunction(recipe.make):
            return recipe.make(*arguments, **keywords)
        return self._stack.enter_context(_once(recipe)(*arguments, **keywords))


def _once(recipe: _Recipe) -> Any:
    @contextmanager
    def run(*arguments: Any, **keywords: Any) -> Iterator[Any]:
        steps = recipe.make(*arguments, **keywords)
        try:
            value = next(steps)
        except StopIteration:
            raise UsageError(f"{recipe.label} did not yield a value") from None
        yield value
        try:
            next(steps)
        except StopIteration:
            return
        raise UsageError(f"{recipe.label} yields more than once")

    return run


def _is_atom(value: Any) -> bool:
    if isinstance(value, _ATOMS):
        return True
    return type(value) in (tuple, frozenset) and all(map(_is_atom, value))


def check_private(value: Any, label: str) -> None:
    """CannotBePrivate where a rank can't get its own copy of ``value``: in a worker, or in this process.

    The same values are refused in every world.
    """
    from meshsim.worlds.gloo.unsendable import blame

    if _is_atom(value):
        return
    try:
        _pack(value)
    except Exception as error:  # noqa: BLE001 - what pickling runs is the user's
        reason = blame({label: value}, _can_be_packed, error)
        raise CannotBePrivate(
            f"{reason}. Each rank gets its own copy of every fixture's value and parameter. Ways out: "
            "evaluate the fixture on each rank (@meshsim.rank_fixture in place of @pytest.fixture), or hand "
            "over plain data and build the object in the test"
        ) from None


def check_sendable(function: Callable[..., Any], label: str) -> None:
    """CannotBePrivate where a test's function can't be sent to worker processes."""
    from meshsim.worlds.gloo.unsendable import blame

    try:
        _pack(function)
    except Exception as error:  # noqa: BLE001 - any refusal counts
        reason = blame({label: function}, _can_be_packed, error)
        raise CannotBePrivate(
            f"{reason}. On gloo the ranks are other processes. Ways out: make it inside the test, import it "
            "from a module of its own, or run this test in the fake world"
        ) from None


def _pack(value: Any) -> None:
    from meshsim.worlds.gloo.sending import RequestPickler

    packer = RequestPickler(io.BytesIO())
    try:
        packer.dump(value)
    finally:
        packer.finish()


def _can_be_packed(value: Any) -> bool:
    try:
        _pack(value)
    except Exception:  # noqa: BLE001 - any refusal counts
        return False
    return True
