# SPDX-License-Identifier: Apache-2.0
"""Tensors with guard bands: what lies around them, and between their rows, is known and looked at afterwards.

An output starts as NaN (integers: as a pattern), so that an element that nobody wrote shows; an operand's surroundings
are NaN, so that a read outside of it shows in the result. The band is as wide as a wide access and a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

PATTERN = 0x5A
"""The byte that integer memory starts as; in int8 it is 90, which no small test value reaches."""
BAND = 96
"""Elements before and after; with the least dtype still six accesses of 16 bytes."""

LAYOUTS: dict[str, Callable[[Sequence[int]], tuple[tuple[int, ...], int]]]
"""Name of a layout -> strides and offset of a tensor of some shape (see ``place``)."""


def _row(shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    return _packed(shape, shape[-1], 1), 0


def _odd(shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    return _packed(shape, shape[-1] + 1 + shape[-1] % 2, 1), 1


def _strided(shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    return _packed(shape, 2 * shape[-1] + 6, 2), 0


def _column(shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    if len(shape) < 2:
        return _row(shape)
    *lead, m, n = shape
    return (*_lead(lead, m * n), 1, m), 0


def _packed(shape: Sequence[int], row: int, element: int) -> tuple[int, ...]:
    if len(shape) < 2:
        return (element,) * len(shape)
    return (*_lead(shape[:-2], shape[-2] * row), row, element)


def _lead(lead: Sequence[int], matrix: int) -> tuple[int, ...]:
    strides: list[int] = []
    for extent in reversed(lead):
        strides.insert(0, matrix)
        matrix *= max(extent, 1)
    return tuple(strides)


LAYOUTS = {"row": _row, "odd": _odd, "strided": _strided, "column": _column}


@dataclass(frozen=True, eq=False)
class Guarded:
    """A tensor ``view`` inside ``memory``, and what the memory held before."""

    view: torch.Tensor
    memory: torch.Tensor

    @cached_property
    def _outside(self) -> torch.Tensor:
        mask = torch.ones(self.memory.shape, dtype=torch.bool, device=self.memory.device)
        mask.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).fill_(False)
        return mask

    def broken(self) -> int | None:
        """Distance in elements of the first changed element outside the view from the view's start; None if none is.

        Negative: before the view. A NaN counts as unchanged where the memory started as NaN.
        """
        changed = _differs(self.memory, _canary(self.memory.dtype)) & self._outside
        if not bool(changed.any()):
            return None
        return int(changed.nonzero()[0].item()) - int(self.view.storage_offset())

    def unwritten(self) -> torch.Tensor:
        """Which elements of the view still hold what they started as (in a float dtype: NaN)."""
        return ~_differs(self.view, _canary(self.view.dtype))


def _canary(dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point:
        return float("nan")
    if dtype == torch.bool:
        return 1
    return int.from_bytes(bytes([PATTERN]) * dtype.itemsize, "little")


def _differs(x: torch.Tensor, canary: float | int) -> torch.Tensor:
    if x.dtype.itemsize == 1 and x.dtype.is_floating_point:
        x = x.to(torch.float32)
    return ~x.isnan() if x.dtype.is_floating_point else x != canary


def blank(shape: Sequence[int], dtype: torch.dtype, layout: str = "row", device: str = "cpu") -> Guarded:
    """An output of ``shape`` in a layout (``row``, ``odd``, ``strided``, ``column``), all poison, and around it too."""
    strides, shift = LAYOUTS[layout](shape)
    reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True) if extent > 1) + 1
    band = BAND + (max(strides, default=1) if len(shape) > 1 else 0)
    band += -band % 64  # so that only the layout decides the alignment
    memory = torch.empty(band + shift + reach + band, dtype=dtype, device=device)
    if dtype.is_floating_point:
        memory.fill_(float("nan"))
    else:
        memory.view(torch.uint8).fill_(PATTERN if dtype != torch.bool else 1)
    return Guarded(memory.as_strided(tuple(shape), strides, band + shift), memory)


def filled(values: torch.Tensor, dtype: torch.dtype, layout: str = "row", device: str = "cpu") -> Guarded:
    """An operand that holds ``values``, in a layout, with poison around it."""
    made = blank(values.shape, dtype, layout, device)
    made.view.copy_(values)
    return made
