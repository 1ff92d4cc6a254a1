"""Ranks as real processes on this machine, talking over gloo."""

from meshsim.worlds.gloo.world import GlooWorld, warm_up

__all__ = ["GlooWorld", "warm_up"]
