"""Comparing with the reference, with a message that says what differs, when, and on which topology."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Comparison:
    topology: str
    tolerance: float
    """Relative to the expected value; for a tensor, to its largest element."""

    def number(self, quantity: str, step: int, expected: float, got: float) -> None:
        if not math.isclose(expected, got, rel_tol=self.tolerance):
            raise AssertionError(
                self._message(quantity, step, f"{expected:.12g}", f"{got:.12g}", expected, got)
            )

    def tensor(self, quantity: str, step: int, expected: torch.Tensor, got: torch.Tensor) -> None:
        """Each element, and the shape."""
        if expected.shape != got.shape:
            raise AssertionError(
                self._message(quantity, step, f"shape {tuple(expected.shape)}", f"{tuple(got.shape)}")
            )
        if expected.numel() == 0:
            return
        expected = expected.to(got.device)
        error = (expected - got).abs()
        if not error.max() <= self.tolerance * expected.abs().max():
            place = int(error.nan_to_num(math.inf).argmax())
            wrong, right = got.flatten()[place].item(), expected.flatten()[place].item()
            index = [int(i) for i in torch.unravel_index(torch.tensor(place), expected.shape)]
            element = f"{quantity}{index}"
            raise AssertionError(self._message(element, step, f"{right:.12g}", f"{wrong:.12g}", right, wrong))

    def _message(
        self, quantity: str, step: int, expected: str, got: str, right: float = 0, wrong: float = 0
    ) -> str:
        off = (
            f" (off by {abs(wrong - right) / abs(right):.2g} of it, allowed {self.tolerance:g})"
            if right
            else ""
        )
        return (
            f"{quantity} at step {step}: expected {expected} as in a single process, got {got}{off}, "
            f"on topology {self.topology}"
        )
