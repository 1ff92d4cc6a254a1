"""``assertEqual`` that knows tensors."""

from __future__ import annotations

import unittest
from collections.abc import Mapping, Sequence
from typing import Any


def _has_tensor(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and any(map(_has_tensor, value))


class TensorEquality(unittest.TestCase):
    """Tensors, and containers of them, are compared with ``torch.testing.assert_close``."""

    def assertEqual(
        self,
        first: Any,
        second: Any,
        msg: Any = None,
        *,
        atol: float | None = None,
        rtol: float | None = None,
        exact_dtype: bool = True,
        exact_device: bool = False,
        equal_nan: bool = True,
    ) -> None:
        """Equal within the tolerances that fit the dtype, or those given."""
        __tracebackhide__ = True
        import torch

        if atol is None and rtol is None and not _has_tensor(first) and not _has_tensor(second):
            super().assertEqual(first, second, msg)  # noqa: PT009 - this is it
            return
        if isinstance(first, torch.Tensor) != isinstance(second, torch.Tensor):
            first, second = torch.as_tensor(first), torch.as_tensor(second)
            exact_dtype = False
        torch.testing.assert_close(
            first,
            second,
            atol=atol,
            rtol=rtol,
            check_dtype=exact_dtype,
            check_device=exact_device,
            equal_nan=equal_nan,
            msg=(lambda text: f"{text}\n{msg}") if msg is not None else None,
        )

    assertEquals = assertEqual

    def assertNotEqual(self, first: Any, second: Any, msg: Any = None, **options: Any) -> None:
        """The contrary of ``assertEqual`` with the same options."""
        try:
            self.assertEqual(first, second, **options)  # noqa: PT009
        except AssertionError:
            return
        raise self.failureException(msg or f"{first!r} == {second!r}")
