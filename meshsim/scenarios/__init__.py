"""Scenarios by name: those that come with meshsim, those that a distribution adds, and users' own files.

A scenario is a function of a ``RankContext`` that every rank runs. It may have an attribute ``unsupported``:
called with a ``MeshPlan`` it gives the reason, in one line, why the scenario can't run there, or None. The
run of such a topology is reported as not run, with that reason. Its attribute ``needs`` lists
calls that it can't do without (``"all_reduce float64 SUM"``): on a backend that lacks one it is not run.
"""

from meshsim.scenarios.built_in import BUILT_IN
from meshsim.scenarios.registry import ENTRY_POINT_GROUP, available, describe_all, load

__all__ = ["BUILT_IN", "ENTRY_POINT_GROUP", "available", "describe_all", "load"]
