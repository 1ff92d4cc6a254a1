"""The variables that hold a tensor, seen from a call inside."""

from __future__ import annotations

import gc
import sys
import weakref

import torch

from meshsim.worlds.tensor_names import names_of


def names_here(tensor):
    return [name.partition(":")[2] for name in names_of(tensor, sys._getframe(1)) if "test_" in name]


def test_local_variables_all_of_them():
    a = torch.ones(1)
    b = a
    assert names_here(a) == ["a", "b"]
    assert names_here(b[:]) == []


def test_callers_and_helpers():
    def helper(tensor):
        return names_of(tensor, sys._getframe(0))

    a = torch.ones(1)
    assert helper(a)[:2] == ("helper:tensor", "test_callers_and_helpers:a")


def test_keys_of_dictionaries():
    grads = {"w": torch.ones(1), "v": torch.ones(1), 3: torch.ones(1)}
    assert names_here(grads["v"]) == ["grads['v']"]
    assert names_here(grads[3]) == []


def test_parameters_and_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model(torch.ones(2)).sum().backward()
    assert names_here(model[1].weight) == ["model.1.weight"]
    assert names_here(model[0].bias.grad) == ["model.0.bias.grad"]
    w = torch.ones(1, requires_grad=True)
    (w * 2).backward()
    assert names_here(w.grad) == ["w.grad"]


def test_attributes_of_self():
    class Owner:
        def __init__(self):
            self.buffer = torch.ones(1)

        def names(self):
            return names_of(self.buffer, sys._getframe(0))

    assert Owner().names() == ("names:self.buffer",)


def test_looking_keeps_no_tensor_alive():
    tensor = torch.ones(1)
    seen = weakref.ref(tensor)
    names_here(tensor)
    del tensor
    gc.collect()
    assert seen() is None


def test_variables_are_as_before():
    a, b = torch.ones(1), 5
    names_here(a)
    assert b == 5
    assert {"a", "b"} <= set(locals())
