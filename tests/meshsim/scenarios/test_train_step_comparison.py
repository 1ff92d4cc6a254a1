"""What train_step says when a quantity differs."""

from __future__ import annotations

import math

import pytest
import torch

from meshsim.scenarios.train_step.comparison import Comparison

SAME = Comparison("dp=2,cp=2", tolerance=1e-3)


def test_number_within_the_tolerance() -> None:
    SAME.number("loss", 0, 2.0, 2.001)


@pytest.mark.parametrize("got", [2.1, math.nan, math.inf, -2.0])
def test_number_names_quantity_step_values_and_topology(got: float) -> None:
    with pytest.raises(AssertionError) as caught:
        SAME.number("loss", 2, 2.0, got)
    text = str(caught.value)
    assert text.startswith(f"loss at step 2: expected 2 as in a single process, got {got:.12g}")
    assert text.endswith("on topology dp=2,cp=2")


def test_tensor_within_the_tolerance_of_its_largest_element() -> None:
    SAME.tensor("weight", 0, torch.tensor([1000.0, 0.0]), torch.tensor([1000.0, 0.5]))
    SAME.tensor("weight", 0, torch.empty(0, 3), torch.empty(0, 3))


@pytest.mark.parametrize("wrong", [4.5, math.nan])
def test_tensor_names_the_element(wrong: float) -> None:
    expected = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    got = expected.clone()
    got[1, 1] = wrong
    with pytest.raises(AssertionError, match=r"weight a\[1, 1\] at step 1: expected 4 .*got (4\.5|nan)"):
        SAME.tensor("weight a", 1, expected, got)


def test_tensor_of_another_shape() -> None:
    with pytest.raises(AssertionError, match=r"expected shape \(2,\).*got \(1,\)"):
        SAME.tensor("weight a", 1, torch.ones(2), torch.ones(1))
