"""The plan's right answers, worked out the long way: every rank's coordinates in lists and dictionaries.

Nothing here computes with strides: ranks are numbered by counting through the coordinates in rank order,
and views are cut from sorted lists of ranks.
"""

from __future__ import annotations

from itertools import product


class BruteForcePlan:
    """Coordinates of every rank by view, and groups found by comparing coordinates."""

    def __init__(self, sizes, order=("pp", "dp", "cp", "tp"), ep_scope="stage"):
        self.world_size = sizes["pp"] * sizes["dp"] * sizes["cp"] * sizes["tp"]
        counted = product(*(range(sizes[axis]) for axis in order))
        self.dense = {rank: dict(zip(order, place, strict=True)) for rank, place in enumerate(counted)}
        self.fsdp = self._fsdp(sizes)
        self.expert = self._expert(sizes, ep_scope)

    def _parts(self, *keys, view="dense"):
        """Ascending lists of the ranks that agree in ``keys``."""
        parts = {}
        for rank, place in sorted(getattr(self, view).items()):
            parts.setdefault(tuple(place[key] for key in keys), []).append(rank)
        return parts

    def _fsdp(self, sizes):
        found = {}
        for (pp, tp), domain in self._parts("pp", "tp").items():
            for replicate in range(sizes["dp_replicate"]):
                for shard in range(sizes["dp_shard"]):
                    found[domain.pop(0)] = {
                        "pp": pp,
                        "fsdp_replicate": replicate,
                        "fsdp_shard": shard,
                        "tp": tp,
                    }
        return found

    def _expert(self, sizes, ep_scope):
        found = {}
        if ep_scope == "replica":
            for (pp, replica), ranks in self._parts("pp", "fsdp_replicate", view="fsdp").items():
                for shard in range(sizes["edp_shard"]):
                    for ep in range(sizes["ep"]):
                        found[ranks.pop(0)] = {
                            "pp": pp,
                            "edp_replicate": replica,
                            "edp_shard": shard,
                            "ep": ep,
                        }
                assert not ranks
            return found
        for (pp,), ranks in self._parts("pp").items():
            replicas = len(ranks) // (sizes["edp_shard"] * sizes["ep"])
            for replicate in range(replicas):
                for shard in range(sizes["edp_shard"]):
                    for ep in range(sizes["ep"]):
                        found[ranks.pop(0)] = {
                            "pp": pp,
                            "edp_replicate": replicate,
                            "edp_shard": shard,
                            "ep": ep,
                        }
            assert not ranks
        return found

    def coordinate(self, rank, view):
        return getattr(self, view)[rank]

    def groups(self, axes, view):
        """Groups along axes of a view: the ranks that agree in all its other axes."""
        others = [axis for axis in next(iter(getattr(self, view).values())) if axis not in axes]
        return tuple(sorted(tuple(ranks) for ranks in self._parts(*others, view=view).values()))
