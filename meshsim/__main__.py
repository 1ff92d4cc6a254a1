"""``python -m meshsim``: the command line."""

from __future__ import annotations

import sys

from meshsim.cli import main

sys.exit(main())
