"""The pages that are written from tables in the code, so that they can't say anything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from meshsim.checker.capabilities import capability_table
from meshsim.checker.kinds import kinds_table

_BACKENDS = ("gloo", "nccl", "hccl")


def path_of(name: str) -> Path:
    """Where a page lies."""
    return Path(__file__).with_name(name)


def verdicts() -> str:
    """The page of verdict kinds."""
    return f"""# Verdict kinds

`result.verdict.kind` is one of these; a kind equals its text (`verdict.kind == "deadlock"`).
`verdict.ranks` are the culprits: the odd ones out, or all that take part where nobody is.
`verdict.waiting` are the ranks that merely wait for them.

"fails" means wrong there, "passes" that the backend doesn't notice, "hangs" and "corrupts" what they say.
What gloo passes and another backend doesn't is a hazard: it makes a run fail, too. Warnings don't.

{kinds_table()}
"""


def backends() -> str:
    """The page of what each backend can do."""
    tables = "\n\n".join(capability_table(backend).strip() for backend in _BACKENDS)
    return f"""# What each backend can do

gloo: tried with torch 2.13.0 on CPU. NCCL and HCCL: read in the sources of torch, NCCL and torch_npu; nothing
here has been run on an accelerator. `profile="nccl"` and `profile="hccl"` apply these limits while running
on CPU.

{tables}
"""


PAGES: Mapping[str, Callable[[], str]] = MappingProxyType({"verdicts.md": verdicts, "backends.md": backends})
