"""The fake world: every rank a real execution of the scenario, in this process, one at a time."""

from meshsim.worlds.fake.world import FakeWorld

__all__ = ["FakeWorld"]
