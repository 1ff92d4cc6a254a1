"""``ctx.check``: whether data are the same, or differ, along an axis of the mesh."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from meshsim.checker.kinds import advice_for, severity_of
from meshsim.checker.wording import named_ranks, rank_ranges, site_name
from meshsim.errors import UsageError
from meshsim.source import user_line
from meshsim.verdict import Finding, VerdictKind

if TYPE_CHECKING:
    from meshsim.context import RankContext


class DataDisagreement(AssertionError):
    """Raised on every rank of the group by a check that doesn't hold; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.summary)
        self.meshsim_carried = finding

    def __reduce__(self) -> tuple[Any, ...]:
        return DataDisagreement, (self.meshsim_carried,)


class RankChecks:
    """The checks of one rank. Every rank of the axis's group must make the same check."""

    def __init__(self, context: RankContext) -> None:
        self._context = context

    def same(
        self,
        data: Any,
        axis: str | Sequence[str] = "world",
        *,
        rtol: float = 0.0,
        atol: float = 0.0,
        name: str = "",
    ) -> None:
        """Raise ``DataDisagreement`` on each rank of the group along ``axis`` unless all hold the same data.

        ``data`` is a tensor, or anything that can be pickled; the same means dtype, shape and every bit, and
        for tensors with ``rtol`` or ``atol`` as ``torch.allclose`` has it. ``name`` is what to call it.
        """
        members, held = self._gather(data, axis, whole=bool(rtol or atol))
        sides = _by_closeness(members, held, rtol, atol) if rtol or atol else _by_value(members, held)
        if len(sides) > 1:
            self._fail(VerdictKind.SHOULD_BE_SAME, axis, members, sides, name)

    def differs(self, data: Any, axis: str | Sequence[str] = "world", *, name: str = "") -> None:
        """Raise ``DataDisagreement`` on each rank of the group along ``axis`` if any two hold equal data."""
        members, held = self._gather(data, axis, whole=False)
        equal = [side for side in _by_value(members, held) if len(side) > 1]
        if equal:
            self._fail(VerdictKind.SHOULD_DIFFER, axis, members, equal, name)

    def _gather(
        self, data: Any, axis: str | Sequence[str], *, whole: bool
    ) -> tuple[tuple[int, ...], list[Any]]:
        """What every member of the axis's group holds, in the members' order."""
        plan = self._context.mesh.plan
        members = plan.group(axis, self._context.rank)
        mine = _plain(data) if whole else _digest(data)
        if len(members) == 1:
            return members, [mine]
        held: list[Any] = [None] * len(members)
        dist.all_gather_object(held, mine, group=self._group(axis, members))
        return members, held

    def _group(self, axis: str | Sequence[str], members: tuple[int, ...]) -> Any:
        """The live process group of these ranks."""
        if len(members) == self._context.world_size:
            return dist.group.WORLD
        mesh, rank = self._context.mesh, self._context.rank
        for view in (
            mesh.device_mesh,
            mesh.fsdp_non_moe_mesh,
            mesh.fsdp_moe_mesh,
            mesh.pp_mesh,
            mesh.dp_cp_mesh,
        ):
            for name in getattr(view, "mesh_dim_names", None) or ():
                if tuple(view.group(name, rank)) == members:
                    return view.get_group(name)
        raise UsageError(f"check: no mesh of this context has a process group for axis {axis!r} alone")

    def _fail(
        self,
        kind: VerdictKind,
        axis: str | Sequence[str],
        members: tuple[int, ...],
        sides: Sequence[Sequence[int]],
        name: str,
    ) -> None:
        site = user_line(sys._getframe(2))
        axis_name = axis if isinstance(axis, str) else "_".join(axis)
        what = name or "the data"
        group = f"{axis_name} ({rank_ranges(members)})"
        if kind is VerdictKind.SHOULD_BE_SAME:
            told = f"{what} should be the same along {group} and isn't: " + " against ".join(
                named_ranks(side) for side in sides[:4]
            )
            largest = max(sides, key=len)
            odd = [rank for side in sides if side is not largest for rank in side]
            ranks = members if 2 * len(largest) <= len(members) else tuple(sorted(odd))
        else:
            told = f"{what} should differ along {group} and is the same on " + "; on ".join(
                named_ranks(side) for side in sides[:4]
            )
            ranks = tuple(sorted(rank for side in sides for rank in side))
        details = {
            "axis": axis_name,
            "group": {"axis": axis_name, "ranks": list(members), "name": ""},
            "sides": [rank_ranges(side) for side in sides],
            "site": str(site) if site is not None else None,
            "advice": advice_for(kind),
        }
        summary = f"{told}, at {site_name(site)}"
        raise DataDisagreement(Finding(kind, summary, ranks, (), details, severity_of(kind)))


def _plain(data: Any) -> Any:
    """A tensor as it lies on the CPU; a distributed tensor's local part."""
    if not isinstance(data, torch.Tensor):
        return data
    local = data.to_local() if hasattr(data, "to_local") else data
    return local.detach().cpu().contiguous()


def _digest(data: Any) -> tuple[str, ...]:
    plain = _plain(data)
    if not isinstance(plain, torch.Tensor):
        return type(plain).__qualname__, hashlib.sha256(pickle.dumps(plain)).hexdigest()
    raw = plain.reshape(-1).view(torch.uint8) if plain.numel() else plain.new_empty(0, dtype=torch.uint8)
    content = hashlib.sha256(bytes(raw.numpy().data)).hexdigest()
    return str(plain.dtype), str(tuple(plain.shape)), content


def _by_value(members: Sequence[int], held: Sequence[Any]) -> list[list[int]]:
    sides: dict[Any, list[int]] = {}
    for rank, value in zip(members, held, strict=True):
        sides.setdefault(value, []).append(rank)
    return list(sides.values())


def _by_closeness(members: Sequence[int], held: Sequence[Any], rtol: float, atol: float) -> list[list[int]]:
    """Ranks by the first earlier rank whose data theirs are close to."""
    if not all(isinstance(value, torch.Tensor) for value in held):
        raise UsageError("check.same: rtol and atol are for tensors")
    sides: list[tuple[torch.Tensor, list[int]]] = []
    for rank, value in zip(members, held, strict=True):
        for reference, side in sides:
            if (
                reference.shape == value.shape
                and reference.dtype == value.dtype
                and torch.allclose(reference, value, rtol=rtol, atol=atol, equal_nan=True)
            ):
                side.append(rank)
                break
        else:
            sides.append((value, [rank]))
    return [side for _, side in sides]
