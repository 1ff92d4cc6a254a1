"""The process groups of one binding: one for each distinct rank set, backend and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha1
from typing import Any

import torch
import torch.distributed as dist

from meshlib.errors import MeshError, NotInMesh, UnknownAxis
from meshlib.rank_text import names_text, rank_list_text
from meshlib.timeouts import as_timedelta
from meshlib.torch_private import (
    create_group,
    default_group,
    device_types,
    group_timeout,
    is_registered,
    rank_thread,
)


@dataclass(frozen=True)
class GroupSettings:
    """What a group is created with. None means the default group's."""

    timeout: timedelta | None = None
    backend: str | None = None
    options: Any = None

    @property
    def effective_timeout(self) -> timedelta | None:
        """The timeout given, else the one in the options."""
        return self.timeout if self.timeout is not None else getattr(self.options, "_timeout", None)


class GroupOptions:
    """The caller's timeout and backend options, for any axis.

    ``options`` is one setting for all axes, or a mapping from axis names to settings. A setting is a
    backend's ``Options``, a backend's name, or a pair of both, as in torch's ``backend_override``. Nothing
    that the caller gave is changed.
    """

    def __init__(self, timeout: timedelta | float | None, options: Any, axes: tuple[str, ...]) -> None:
        self._timeout = as_timedelta(timeout)
        self._by_axis: dict[str, GroupSettings] = {}
        if isinstance(options, Mapping):
            unknown = [key for key in options if key not in axes]
            if unknown:
                raise UnknownAxis(
                    f"options name {names_text(map(repr, unknown))}; the axes are {names_text(axes)}"
                )
            self._default = self._settings(None)
            self._by_axis = {axis: self._settings(value) for axis, value in options.items()}
        else:
            self._default = self._settings(options)

    def _settings(self, value: Any) -> GroupSettings:
        if value is None:
            return GroupSettings(self._timeout)
        if isinstance(value, str):
            return GroupSettings(self._timeout, value)
        if isinstance(value, tuple):
            if len(value) != 2 or not (value[0] is None or isinstance(value[0], str)):
                raise MeshError(f"backend options must be (backend name, Options), got {value!r}")
            return GroupSettings(self._timeout, *value)
        return GroupSettings(self._timeout, None, value)

    def for_axis(self, axis: str) -> GroupSettings:
        return self._by_axis.get(axis, self._default)


# Filled in by c10d for each group.
_OWN_TO_A_GROUP = frozenset({"_timeout", "global_ranks_in_group", "group_name", "split_from", "split_color"})


def _option_values(options: Any) -> list[tuple[str, Any]]:
    """The settings that an options object holds, besides those of one group."""
    names = [name for name in dir(options) if not name.startswith("__") and name not in _OWN_TO_A_GROUP]
    values = [(name, getattr(options, name)) for name in names]
    return [(name, value) for name, value in values if not callable(value)]


def _options_key(options: Any) -> Any:
    return None if options is None else (type(options), repr(_option_values(options)))


def copied_options(options: Any) -> Any:
    """A copy that c10d may write a group's name and ranks into."""
    if options is None:
        return None
    try:
        fresh = type(options)()
    except TypeError as error:
        raise MeshError(
            f"can't make a copy of backend options of type {type(options).__name__}: {error}"
        ) from None
    for name, value in [*_option_values(options), ("_timeout", getattr(options, "_timeout", None))]:
        try:
            setattr(fresh, name, value)
        except (AttributeError, TypeError):
            continue  # read-only: the constructor has set it
    return fresh


class Groups:
    """Creates groups under names of their own, finds the ones that are there, and tears each down once."""

    def __init__(self, name: str, options: GroupOptions, device_type: str) -> None:
        self._name = name
        self._options = options
        self._device = torch.device(device_type)
        self._default = default_group()
        self._world_size = self._default.size()
        self.rank: int = self._default.rank()
        self._made: dict[Any, dist.ProcessGroup] = {}
        self._owned: list[dist.ProcessGroup] = []
        self._inherited = group_timeout(self._default, self._device)
        self.thread = rank_thread(self._default)
        self.closed = False

    def get(self, axis: str, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """The group of ``ranks`` with the settings of ``axis``; made when there is none yet.

        All its members have to ask for it, and for different groups in one order.
        """
        settings = self._options.for_axis(axis)
        timeout = settings.effective_timeout or self._inherited
        key = (ranks, settings.backend, _options_key(settings.options), timeout)
        found = self._made.get(key)
        if found is None:
            self._check_usable(axis, ranks)
            if self._default_serves(ranks, settings, timeout):
                found = self._default
            else:
                found = self._create(axis, ranks, settings, timeout)
            self._made[key] = found
        return found

    def _check_usable(self, axis: str, ranks: tuple[int, ...]) -> None:
        if self.closed:
            raise MeshError(f"can't make the {axis} group: its mesh context is closed")
        if self.rank not in ranks:
            raise NotInMesh(f"rank {self.rank} isn't in the {axis} group of ranks {rank_list_text(ranks)}")

    def _default_serves(
        self, ranks: tuple[int, ...], settings: GroupSettings, timeout: timedelta | None
    ) -> bool:
        return (
            len(ranks) == self._world_size
            and ranks == tuple(range(self._world_size))
            and settings.backend is None
            and settings.options is None
            and timeout == self._inherited
            and self._device.type in device_types(self._default)
        )

    def _create(
        self, axis: str, ranks: tuple[int, ...], settings: GroupSettings, timeout: timedelta | None
    ) -> dist.ProcessGroup:
        # Members make a rank set's group for the same axis, and no other mesh has this name: so only they
        # can meet.
        name = sha1(f"{self._name}/{axis}/{ranks}".encode(), usedforsecurity=False).hexdigest()
        group = create_group(
            ranks,
            name=name,
            description=f"mesh_{axis}",
            timeout=timeout,
            backend=settings.backend,
            options=copied_options(settings.options),
        )
        self._owned.append(group)
        _verify(group, axis, ranks, self.rank)
        return group

    def close(self) -> None:
        """Destroy every group that was created here, once. The default group isn't one of them."""
        self.closed = True
        owned, self._owned = self._owned, []
        self._made.clear()
        for group in reversed(owned):
            if is_registered(group):
                dist.destroy_process_group(group)


def _verify(group: dist.ProcessGroup, axis: str, ranks: tuple[int, ...], rank: int) -> None:
    """The group holds what the plan says, in its order."""
    held = tuple(dist.get_process_group_ranks(group))
    if held != ranks:
        raise MeshError(
            f"the {axis} group of rank {rank} holds {rank_list_text(held)}, not {rank_list_text(ranks)}"
        )
    if group.rank() != ranks.index(rank) or group.size() != len(ranks):
        raise MeshError(
            f"rank {rank} is number {group.rank()} of {group.size()} in the {axis} group, "
            f"not {ranks.index(rank)} of {len(ranks)}"
        )
