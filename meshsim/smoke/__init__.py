"""The smoke run: what an operator starts before a big job, and a laptop can run on gloo.

Preflight, scenario library, bandwidth along every mesh axis, straggling ranks, links between hosts; then one
screen of verdict. ``meshsim smoke`` is ``run_smoke``.
"""

from meshsim.smoke.outcome import SmokeReport, Stage, StageState
from meshsim.smoke.running import run_smoke

__all__ = ["SmokeReport", "Stage", "StageState", "run_smoke"]
