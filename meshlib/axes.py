"""Axis names: the base axes of each view, and the names that other frameworks use for the same ranks.

===================  ======================================  ===========================================
name                 ranks                                 who says so
===================  ======================================  ===========================================
``dp_cp``            the FSDP domain: dp x cp              NeMo Automodel, Megatron-LM (``dp-cp``)
``loss``             the same: where the loss is averaged  torchtitan
``batch``            dp: ranks that read different data    torchtitan
``fsdp``             ``fsdp_shard``                        torchtitan
``dp_shard_cp``      ``fsdp_shard``                        torchtitan, NeMo Automodel, accelerate
``dp_shard``         ``fsdp_shard``                        topology text
``dp_replicate``     ``fsdp_replicate``                    torchtitan, NeMo Automodel, accelerate
``edp``              edp_replicate x edp_shard             Megatron-LM (expert data parallel)
``expt_dp``          the same                              Megatron-LM
``efsdp``            ``edp_shard``                         torchtitan
``ep_shard``         ``edp_shard``                         NeMo Automodel
``dp_shard_mod_ep``  ``edp_shard``                       torchtitan (2025)
``mp``               pp x tp                               Megatron-LM (model parallel)
``stage``            dp x cp x tp: the ranks of a pipeline stagemeshlib
``world``            all ranks                             everybody
===================  ======================================  ===========================================

torchtitan and NeMo call the part of the FSDP axis that lies outside of cp ``dp_shard``. Here the FSDP axis
always spans data and context parallel ranks, so that their ``dp_shard_cp`` and ``dp_shard`` are one axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

DENSE_AXES = ("pp", "dp", "cp", "tp")
FSDP_AXES = ("pp", "fsdp_replicate", "fsdp_shard", "tp")
EXPERT_AXES = ("pp", "edp_replicate", "edp_shard", "ep")
BUILT_IN_VIEWS = MappingProxyType({"dense": DENSE_AXES, "fsdp": FSDP_AXES, "expert": EXPERT_AXES})

DERIVED_AXES = MappingProxyType(
    {
        "dp_cp": (("dp", "cp"), ("fsdp_replicate", "fsdp_shard")),
        "loss": (("dp", "cp"), ("fsdp_replicate", "fsdp_shard")),
        "batch": (("dp",),),
        "fsdp": (("fsdp_shard",),),
        "dp_shard_cp": (("fsdp_shard",),),
        "dp_shard": (("fsdp_shard",),),
        "dp_replicate": (("fsdp_replicate",),),
        "edp": (("edp_replicate", "edp_shard"),),
        "expt_dp": (("edp_replicate", "edp_shard"),),
        "efsdp": (("edp_shard",),),
        "ep_shard": (("edp_shard",),),
        "dp_shard_mod_ep": (("edp_shard",),),
        "mp": (("pp", "tp"),),
        "stage": (
            ("dp", "cp", "tp"),
            ("fsdp_replicate", "fsdp_shard", "tp"),
            ("edp_replicate", "edp_shard", "ep"),
        ),
        "world": (DENSE_AXES, FSDP_AXES, EXPERT_AXES),
    }
)
"""Each derived axis as base axes; where several views spell it, all the spellings mean the same ranks."""


def spellings(name: str, views: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The base axes that a name stands for, by view; empty for a name that nobody has."""
    found: dict[str, tuple[str, ...]] = {}
    for view, axes in views.items():
        for base in ((name,), *DERIVED_AXES.get(name, ())):
            if set(base) <= set(axes):
                found[view] = base
                break
    return found


def base_axis(name: str, axes: tuple[str, ...]) -> str | None:
    """The one axis of a view that a name stands for; None where it is none, or several."""
    base = spellings(name, {"": axes}).get("", ())
    return base[0] if len(base) == 1 else None


def places_in(
    names: tuple[str, ...], views: Mapping[str, tuple[str, ...]]
) -> tuple[str, tuple[int, ...]] | None:
    """The first view that has all the names, each base axis once, and the axes' places in it.

    None where no view has them.
    """
    spelled = [spellings(name, views) for name in names]
    for view, axes in views.items():
        parts = [found.get(view) for found in spelled]
        if parts and None not in parts:
            places = sorted(axes.index(axis) for part in parts for axis in part or ())
            if len(set(places)) == len(places):
                return view, tuple(places)
    return None


@lru_cache(maxsize=4096)
def built_in_places(axes: str | tuple[str, ...]) -> tuple[str, tuple[int, ...]] | None:
    """:func:`places_in` the built-in views: the same for every plan, as added views come after them."""
    return places_in((axes,) if isinstance(axes, str) else axes, BUILT_IN_VIEWS)
