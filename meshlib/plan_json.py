"""Reading a plan from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshlib.dims import ParallelDims
from meshlib.errors import MeshError

if TYPE_CHECKING:
    from meshlib.plan import MeshPlan

_KEYS = ("world_size", "sizes", "order", "ep_scope", "views", "node_size")


def plan_from_json(cls: type[MeshPlan], data: Mapping[str, Any] | str) -> MeshPlan:
    """Build the plan anew from its content, so that nothing unchecked comes in; compare the digest if
    there is one.
    """
    from meshlib.plan import SCHEMA_VERSION

    if isinstance(data, str | bytes):
        try:
            data = json.loads(data)
        except ValueError as error:
            raise MeshError(f"not a plan: the text isn't JSON ({error})") from None
    if not isinstance(data, Mapping):
        raise MeshError(f"not a plan: expected the dictionary of MeshPlan.to_json, got {type(data).__name__}")
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise MeshError(
            f"can't read a plan with schema_version {version!r}; this meshlib reads {SCHEMA_VERSION}"
        )
    missing = [key for key in _KEYS if key not in data]
    if missing:
        raise MeshError(f"not a plan: {', '.join(missing)} missing")
    if not isinstance(data["sizes"], Mapping):
        raise MeshError(
            f"not a plan: sizes must be a dictionary such as {{'dp': 2, 'tp': 4}}, got {data['sizes']!r}"
        )
    plan = cls.build(
        ParallelDims.of({f"{axis}_size": size for axis, size in data["sizes"].items()}),
        data["world_size"],
        order=data["order"],
        ep_scope=data["ep_scope"],
        views=data["views"] or None,
        node_size=data["node_size"],
    )
    if data.get("digest", plan.digest) != plan.digest:
        raise MeshError(
            "this plan's content doesn't match its digest: it was edited; leave the digest out to accept it"
        )
    return plan
