"""The built-in scenario ``train_step``: start reading in ``scenario``, then ``parallel``, ``model``, ``training``."""

from meshsim.scenarios.train_step.scenario import train_step

__all__ = ["train_step"]
