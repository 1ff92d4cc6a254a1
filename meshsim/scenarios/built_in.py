"""The scenarios that come with meshsim. Naming them imports none of them."""

from __future__ import annotations

BUILT_IN: dict[str, tuple[str, str]] = {
    "train_step": (
        "meshsim.scenarios.train_step:train_step",
        "A transformer's training steps equal those of a single process: loss, gradient norm, weights.",
    ),
}
"""Name: (``module:name``, the first line of its docstring)."""
