"""Ranks, shapes and names as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def ranks_text(ranks: Iterable[int]) -> str:
    """``0, 2, 4 to 7``: runs of three and more are joined."""
    parts: list[str] = []
    run: list[int] = []
    for rank in [*ranks, None]:
        if rank is not None and run and rank == run[-1] + 1:
            run.append(rank)
            continue
        if len(run) > 2:
            parts.append(f"{run[0]} to {run[-1]}")
        else:
            parts.extend(map(str, run))
        run = [] if rank is None else [rank]
    return ", ".join(parts)


def rank_list_text(ranks: Sequence[int], most: int = 32) -> str:
    """``[0, 2, 4]``, cut in the middle when it is long."""
    if len(ranks) <= most:
        return str(list(ranks))
    head, tail = ", ".join(map(str, ranks[: most // 2])), ", ".join(map(str, ranks[-2:]))
    return f"[{head}, ... {tail}] ({len(ranks)} ranks)"


def groups_text(groups: Sequence[Sequence[int]], most: int = 16) -> str:
    """``[0, 1] [2, 3]``, cut after ``most`` groups."""
    text = " ".join(rank_list_text(group) for group in groups[:most])
    return text if len(groups) <= most else f"{text} ... ({len(groups)} groups)"


def subject_of_ranks(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 1 to 3``."""
    return f"rank{'s' if len(ranks) != 1 else ''} {ranks_text(ranks)}"


def names_text(names: Iterable[str]) -> str:
    """``dp, cp, tp``."""
    return ", ".join(names)


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that somebody probably meant; ``dp_size`` is meant as ``dp``."""
    from difflib import get_close_matches  # only for error messages

    near = get_close_matches(name.lower().removesuffix("_size"), list(known), 1)
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``: did you mean tp?``, or nothing where no name is near."""
    near = closest_name(name, known)
    return f": did you mean {near}?" if near else ""
