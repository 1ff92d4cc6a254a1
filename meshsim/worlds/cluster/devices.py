"""Which accelerator a rank uses: an index into what the process sees, and what that is on the host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceChoice:
    """``index`` counts the visible devices; ``physical`` is the host's own name of the device."""

    index: int
    physical: str


def visible_devices(text: str | None) -> tuple[str, ...] | None:
    """The entries of ``CUDA_VISIBLE_DEVICES`` or its like; None where it isn't set."""
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())


def choose_device(local_rank: int, count: int, visible: str | None, variable: str) -> DeviceChoice | str:
    """The device of a rank that sees ``count`` devices, or why it has none.

    A process that sees one device uses that: its launcher has hidden the others. Else the local rank is the
    index. ``visible`` is the text of ``variable``; its entries are the host's names of the visible devices.
    """
    named = visible_devices(visible)
    said = f"{variable}={visible}" if visible is not None else f"{variable} isn't set"
    if count == 0:
        return f"no device is visible ({said})"
    index = 0 if count == 1 else local_rank
    if index >= count:
        return f"LOCAL_RANK {local_rank} needs {local_rank + 1} devices, and {count} are visible ({said})"
    physical = named[index] if named is not None and index < len(named) else str(index)
    return DeviceChoice(index, physical)
