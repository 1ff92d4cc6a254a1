"""What the plugin remembers of an item, where more than one of its modules asks for it."""

from __future__ import annotations

from typing import Any

import pytest

REPRESENTATION_KEY = pytest.StashKey[Any]()
"""What an item's report shows in place of the parent's own traceback."""
