"""Warnings on one rank: its own filters, and a list of what was given."""

from __future__ import annotations

import os
import warnings
from typing import Any

from meshsim.pytest_plugin.ranks.outcome import RankWarning
from meshsim.pytest_plugin.ranks.patch import RankPatch
from meshsim.pytest_plugin.ranks.settings import RankSettings

_State = tuple[Any, Any, Any]


def _state() -> _State:
    return warnings.filters, warnings.showwarning, vars(warnings).get("_showwarnmsg_impl")


def _set_state(state: _State) -> None:
    module = vars(warnings)
    module["filters"], module["showwarning"], module["_showwarnmsg_impl"] = state
    # What was shown before is remembered for one set of filters only.
    mutated = module.get("_filters_mutated") or module.get("_filters_mutated_lock_held")
    if mutated is not None:
        mutated()


class RankWarnings(RankPatch):
    """Between ``start`` and ``stop``, ``pytest.warns`` and the like see this rank's warnings only."""

    def __init__(self, settings: RankSettings) -> None:
        filters = list(settings.warning_filters)
        if settings.in_process == os.getpid():
            filters = list(warnings.filters)
        self._given: list[warnings.WarningMessage] = []
        self._inside: _State = (filters, vars(warnings).get("_showwarning_orig"), self._given.append)
        self._outside: _State = _state()

    def apply(self) -> None:
        self._outside = _state()
        _set_state(self._inside)

    def remove(self) -> None:
        self._inside = _state()
        _set_state(self._outside)

    def given(self) -> list[RankWarning]:
        """Every different warning once."""
        return list(dict.fromkeys(map(_told, self._given)))


def _told(given: warnings.WarningMessage) -> RankWarning:
    category = (given.category.__module__, given.category.__qualname__)
    return RankWarning(category, str(given.message), given.filename, given.lineno)
