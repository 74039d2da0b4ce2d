# SPDX-License-Identifier: Apache-2.0
"""Scratch memory that an operator may ask for."""

from __future__ import annotations

from typing import Any

from epifuse.records import dataclass


@dataclass(frozen=True)
class Workspace:
    """Scratch memory given to a run: a tensor, or the address of its first byte."""

    data: Any
    leading_zero_bytes: int = 0
    """How many of the first bytes are zero already."""


@dataclass(frozen=True)
class AllocationRequirement:
    """How much scratch memory a run needs. A run that is given none takes it from torch's allocator."""

    size_bytes: int
    ptr_alignment: int

    @classmethod
    def empty(cls) -> AllocationRequirement:
        """Nothing."""
        return cls(0, 1)
