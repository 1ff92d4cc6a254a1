"""The rules that tie the sizes together: what is inferred, and all that is wrong, in one pass.

``dp * cp * tp * pp == world_size``; ``dp_replicate * dp_shard == dp * cp``; and for the experts either
``edp_replicate * edp_shard * ep == dp * cp * tp`` (``ep_scope="stage"``) or ``edp_shard * ep == fsdp_shard
* tp`` (``ep_scope="replica"``). Nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from meshlib.errors import Problem
from meshlib.integers import divisors, exact_int, meant_size, nearest, product_text, remainder_text

SIZE_AXES = ("dp", "dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "edp_shard")
"""The axes whose sizes can be asked for, in the order of topology text."""
DENSE = ("dp", "cp", "tp", "pp")
DEFAULTS_TO_ONE = frozenset({"cp", "tp", "pp", "ep"})
EP_SCOPES = ("stage", "replica")
INFERRED = -1

Sizes = dict[str, "int | None"]


def read_sizes(values: Mapping[str, Any]) -> tuple[Sizes, list[Problem]]:
    """Exact sizes from whatever was given, each at least 1, or -1 for the one that is inferred."""
    sizes: Sizes = {}
    problems: list[Problem] = []
    for axis, value in values.items():
        if value is None:
            sizes[axis] = 1 if axis in DEFAULTS_TO_ONE else None
            continue
        size = exact_int(value)
        if size is None:
            kind = type(value).__name__
            reason = f"must be a whole number, got {value!r} ({kind})"
            problems.append(Problem(axis, reason, fix=f"{axis}={meant_size(value)}"))
        elif size < 1 and size != INFERRED:
            reason = f"must be at least 1 (or -1: inferred), got {size}"
            problems.append(Problem(axis, reason, fix=f"{axis}=1, or leave it unset"))
        else:
            sizes[axis] = size
    inferred = [axis for axis in sizes if sizes[axis] == INFERRED]
    if len(inferred) > 1:
        reason = f"{len(inferred)} sizes are -1 ({', '.join(inferred)}); at most one can be inferred"
        problems.append(Problem(inferred[-1], reason, fix=f"a size for {' or '.join(inferred)}"))
    return sizes, problems


def own_world_size(sizes: Mapping[str, int | None]) -> tuple[int, list[Problem]]:
    """The number of ranks that the sizes ask for by themselves.

    An unset dp is 1, or what ``dp_replicate * dp_shard`` ask for.
    """
    for axis in ("cp", "tp", "pp", "ep", "edp_shard"):
        if sizes[axis] == INFERRED:
            reason = f"{axis}=-1 is inferred from the world size, and none is given"
            return 1, [Problem(axis, reason, fix=f"a size for {axis}, or world_size=")]
    return _asked_domain(sizes) * _known(sizes["tp"]) * _known(sizes["pp"]), []


def _known(size: int | None) -> int:
    return 1 if size is None or size == INFERRED else size


def _asked_domain(sizes: Mapping[str, int | None]) -> int:
    """dp * cp, as far as the sizes themselves ask for it."""
    cp = _known(sizes["cp"])
    if sizes["dp"] not in (None, INFERRED):
        return _known(sizes["dp"]) * cp
    domain = _known(sizes["dp_replicate"]) * _known(sizes["dp_shard"])
    both = sizes["dp_replicate"] not in (None, INFERRED) and sizes["dp_shard"] not in (None, INFERRED)
    return domain if both and domain % cp == 0 else math.lcm(cp, domain)


class Resolution:
    """One pass over all rules for one world size. ``sizes`` are complete when ``problems`` is empty."""

    def __init__(self, sizes: Mapping[str, int | None], world_size: int, ep_scope: str) -> None:
        self.sizes: Sizes = dict(sizes)
        self.problems: list[Problem] = []
        self._world = world_size
        self._labels: dict[str, str] = {}
        dense = self._resolve_dense()
        if dense:
            self._resolve_fsdp()
            (self._resolve_replica_experts if ep_scope == "replica" else self._resolve_stage_experts)()

    # dp * cp * tp * pp == world_size

    def _resolve_dense(self) -> bool:
        """Whether dp, cp and tp are known afterwards."""
        unknown = [axis for axis in ("cp", "tp", "pp") if self.sizes[axis] == INFERRED]
        if unknown and self.sizes["dp"] is None:
            self._labels["dp"] = self._label_of_asked_dp()
            asked = 1 if unknown == ["cp"] else _asked_domain(self.sizes) // _known(self.sizes["cp"])
            self.sizes["dp"] = asked
        if self.sizes["dp"] in (None, INFERRED):
            unknown = ["dp"]
        others = [axis for axis in DENSE if axis not in unknown]
        sizes = [_known(self.sizes[axis]) for axis in others]
        if not unknown:
            if math.prod(sizes) != self._world:
                self.problems.append(self._wrong_product(sizes))
            return True
        if self._world % math.prod(sizes):
            self.problems.append(self._indivisible(unknown[0], others, sizes))
            return False
        self.sizes[unknown[0]] = self._world // math.prod(sizes)
        return True

    def _label_of_asked_dp(self) -> str:
        """What to call an unset dp that follows from the FSDP sizes: the one that was given."""
        given = [axis for axis in ("dp_replicate", "dp_shard") if self.sizes[axis] not in (None, INFERRED)]
        return given[0] if len(given) == 1 and self.sizes["cp"] == 1 else "dp"

    def _wrong_product(self, sizes: list[int]) -> Problem:
        total = math.prod(sizes)
        edits = []
        valid: tuple[int, ...] = ()
        for axis, size in zip(DENSE, sizes, strict=True):
            rest = total // size
            if self._world % rest == 0:
                edits.append(f"{axis}={self._world // rest}")
                if axis == "dp":
                    valid = (self._world // rest,)
        if not edits:
            inner = [pair for pair in zip(DENSE, sizes, strict=True) if pair[0] != "dp" and pair[1] > 1]
            edits.append(self._fitting([*inner, ("dp", self._world)]))
        edits.append(f"a world of {total} ranks")
        world = f"world {self._world}"
        if total < self._world:
            left = f"ranks {total} to {self._world - 1}" if total < self._world - 1 else f"rank {total}"
            reason = (
                f"{product_text(DENSE, sizes)}, {world}: {left} of its {self._world} ranks would be left over"
            )
        else:
            reason = f"{product_text(DENSE, sizes)}, {world}: needs {total} ranks, has {self._world} ranks"
        return Problem("dp", reason, valid or divisors(self._world), " or ".join(edits))

    def _indivisible(self, unknown: str, axes: list[str], sizes: list[int]) -> Problem:
        named = [
            (self._labels.get(axis, axis), size) for axis, size in zip(axes, sizes, strict=True) if size > 1
        ]
        total = math.prod(sizes)
        reason = f"{product_text(*zip(*named, strict=True))}, {remainder_text(self._world, total)}"
        reason += f", so {unknown} would not be whole in a world of {self._world}"
        options = {
            axis: divisors(self._world // (total // size))
            for axis, size in named
            if self._world % (total // size) == 0
        }
        if not options:
            return Problem(named[0][0], reason, divisors(self._world), self._fitting(named))
        axis = max(options, key=lambda name: len(named) > 1 and self._world % self._size(name) != 0)
        edits = [
            f"{name}={value}" for name, valid in options.items() for value in nearest(valid, self._size(name))
        ]
        return Problem(axis, reason, options[axis], " or ".join(edits))

    def _fitting(self, named: list[tuple[str, int]]) -> str:
        """Sizes that fit, each as large as asked for or the next smaller one that is left."""
        left, edits = self._world, []
        for axis, size in named:
            fits = max(d for d in divisors(left) if d <= size)
            left //= fits
            edits.append(f"{axis}={fits}")
        return ",".join(edits)

    # dp_replicate * dp_shard == dp * cp

    def _resolve_fsdp(self) -> None:
        domain = self._size("dp") * self._size("cp")
        replicate, shard = self.sizes["dp_replicate"], self.sizes["dp_shard"]
        given = {
            axis: size
            for axis, size in (("dp_replicate", replicate), ("dp_shard", shard))
            if size is not None and size != INFERRED
        }
        if len(given) == 2:
            if math.prod(given.values()) != domain:
                self.problems.append(self._wrong_domain(given, domain))
            return
        if not given:
            given = {"dp_replicate": 1}
        ((axis, size),) = given.items()
        if domain % size:
            reason = f"{self._domain_text()}, {axis} = {size}, {remainder_text(domain, size)}"
            self.problems.append(_not_a_divisor(axis, size, reason, domain))
            return
        self.sizes[axis] = size
        self.sizes["dp_shard" if axis == "dp_replicate" else "dp_replicate"] = domain // size

    def _domain_text(self) -> str:
        return product_text(("dp", "cp"), (self._size("dp"), self._size("cp")))

    def _wrong_domain(self, given: dict[str, int], domain: int) -> Problem:
        reason = f"{product_text(given, given.values())}, but {self._domain_text()}"
        edits = {
            axis: domain // other
            for axis, other in (("dp_replicate", given["dp_shard"]), ("dp_shard", given["dp_replicate"]))
            if domain % other == 0
        }
        if edits:
            axis = next(iter(edits))
            return Problem(axis, reason, (edits[axis],), " or ".join(f"{a}={s}" for a, s in edits.items()))
        replicate = max(d for d in divisors(domain) if d <= given["dp_replicate"])
        fix = f"dp_replicate={replicate},dp_shard={domain // replicate}"
        return Problem("dp_replicate", reason, divisors(domain), fix)

    # The experts

    def _resolve_stage_experts(self) -> None:
        axes = ("dp", "cp", "tp")
        sizes = [self._size(axis) for axis in axes]
        span = math.prod(sizes)
        if self.sizes["edp_shard"] is None:
            self.sizes["edp_shard"] = 1
        unknown = [axis for axis in ("ep", "edp_shard") if self.sizes[axis] == INFERRED]
        self._fit_experts(span, product_text(axes, sizes), unknown, exact=bool(unknown))

    def _resolve_replica_experts(self) -> None:
        if self.sizes["dp_shard"] in (None, INFERRED):
            return  # the FSDP rule has been broken, and reported
        axes, sizes = ("fsdp_shard", "tp"), [self._size("dp_shard"), self._size("tp")]
        if self.sizes["ep"] == INFERRED and self.sizes["edp_shard"] is None:
            self.sizes["edp_shard"] = 1
        unknown = [axis for axis in ("ep", "edp_shard") if self.sizes[axis] in (None, INFERRED)]
        self._fit_experts(math.prod(sizes), product_text(axes, sizes), unknown, exact=True)

    def _fit_experts(self, span: int, span_text: str, unknown: list[str], *, exact: bool) -> None:
        """``edp_shard * ep`` divides the span; with ``exact`` they are all of it."""
        known = [axis for axis in ("ep", "edp_shard") if axis not in unknown]
        sizes = [self._size(axis) for axis in known]
        total = math.prod(sizes)
        named = [(axis, size) for axis, size in zip(known, sizes, strict=True) if size > 1] or [
            (known[0], sizes[0])
        ]
        if span % total:
            reason = f"{span_text}, {product_text(*zip(*named, strict=True))}, {remainder_text(span, total)}"
        elif exact and not unknown and total != span:
            reason = f"{product_text(('edp_shard', 'ep'), sizes[::-1])}, but {span_text}"
        else:
            if unknown:
                self.sizes[unknown[0]] = span // total
            return
        options = {}
        given = zip(known, sizes, strict=True) if exact and not unknown else named
        for axis, size in given:
            rest = total // size
            if span % rest == 0:
                options[axis] = (span // rest,) if exact and not unknown else divisors(span // rest)
        if not options:
            ep = max(d for d in divisors(span) if d <= self._size("ep"))
            shards = divisors(span // ep)
            shard = shards[-1] if exact else max(d for d in shards if d <= self._size("edp_shard"))
            self.problems.append(Problem("ep", reason, divisors(span), f"ep={ep},edp_shard={shard}"))
            return
        axis = next(iter(options))
        edits = [
            f"{name}={value}" for name, valid in options.items() for value in nearest(valid, self._size(name))
        ]
        if exact and "edp_shard" in options:
            edits.append("leave edp_shard out")
        self.problems.append(Problem(axis, reason, options[axis], " or ".join(edits)))

    def _size(self, axis: str) -> int:
        return _known(self.sizes[axis])


def _not_a_divisor(axis: str, size: int, reason: str, span: int) -> Problem:
    valid = divisors(span)
    return Problem(axis, reason, valid, " or ".join(f"{axis}={value}" for value in nearest(valid, size)))
