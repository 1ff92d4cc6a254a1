"""The built-in scenario ``train_step``. Read ``scenario`` first, then ``parallel`` and ``model``."""

from meshsim.scenarios.train_step.scenario import train_step

__all__ = ["train_step"]
