"""What rank 0 and the other ranks of a job say to each other, besides the gloo world's words for a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshsim.worlds.cluster.facts import RankFacts, RunFacts


@dataclass(frozen=True)
class Beat:
    """I am here."""


# To rank 0


@dataclass(frozen=True)
class Presented:
    """What a rank is, for one backend."""

    facts: RankFacts


@dataclass(frozen=True)
class Asked:
    """A rank wants to run this."""

    run: int
    facts: RunFacts


@dataclass(frozen=True)
class Journal:
    """A piece of the rank's trace as it grows; the pickled events travel beside it."""

    run: int


@dataclass(frozen=True)
class TornDown:
    """The rank's groups of a run are gone. ``stuck`` says why its program could not be ended."""

    run: int
    stuck: str = ""


# From rank 0


@dataclass(frozen=True)
class Admitted:
    """All ranks fit together: their facts, in rank order."""

    ranks: tuple[RankFacts, ...]
    addresses: tuple[str, ...]
    """Each rank's address as the others can reach it."""


@dataclass(frozen=True)
class Go:
    """All ranks want the same: begin."""

    run: int


@dataclass(frozen=True)
class Refused:
    """Something doesn't fit; every rank raises the same."""

    problems: tuple[str, ...]


@dataclass(frozen=True)
class Finish:
    """Every rank is accounted for: tear the run's groups down, by force where ``abort``."""

    run: int
    abort: bool
    states: tuple[str, ...]


@dataclass(frozen=True)
class Shared:
    """Something that rank 0 made for all; ``error`` where making it failed."""

    value: Any = None
    error: str = ""
