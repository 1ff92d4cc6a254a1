"""``python -m meshsim.docs`` writes the pages that come from tables."""

from __future__ import annotations

from meshsim.docs.generated import PAGES, path_of

for name, text_of in PAGES.items():
    path_of(name).write_text(text_of(), encoding="utf-8")
