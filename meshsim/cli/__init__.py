"""The command line: ``meshsim run``, ``list``, ``show``, ``matrix`` and ``doctor``."""

from __future__ import annotations

from meshsim.cli.app import main

__all__ = ["main"]
