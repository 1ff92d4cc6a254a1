from __future__ import annotations

import pytest

from meshsim.docs.generated import PAGES, path_of
from meshsim.verdict import VerdictKind


@pytest.mark.parametrize("name", PAGES)
def test_page_says_what_the_tables_say(name):
    """Run ``python -m meshsim.docs`` after changing a table."""
    assert path_of(name).read_text(encoding="utf-8") == PAGES[name]()


def test_every_kind_has_a_row():
    page = path_of("verdicts.md").read_text(encoding="utf-8")
    missing = [kind.value for kind in VerdictKind if f"| `{kind.value}` |" not in page]
    assert missing == []
