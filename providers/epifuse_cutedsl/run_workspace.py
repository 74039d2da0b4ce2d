# SPDX-License-Identifier: Apache-2.0
"""``RunWorkspace``: what lies in the workspace of a run, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from epifuse.records import NamedTuple

if TYPE_CHECKING:
    from epifuse_cutedsl.padded_copy import PaddedCopy

ALIGNMENT_BYTES = 256
"""Of each copy in the workspace."""
Copies: TypeAlias = "tuple[PaddedCopy | None, PaddedCopy | None]"
"""Of A and of B; None where the operand is read where it lies."""


class RunWorkspace(NamedTuple):
    """First the reductions' memory, of which ``zero_bytes`` must be zero, then the copies of A and of B."""

    reduction_bytes: int = 0
    zero_bytes: int = 0
    copies: Copies = (None, None)

    @property
    def offsets(self) -> tuple[int, int]:
        """Where the copies of A and of B begin."""
        first = -(-self.reduction_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return first, first + (self.copies[0].bytes if self.copies[0] else 0)

    @property
    def bytes(self) -> int:
        """All of it; 0 where a run needs none."""
        last = self.copies[1].bytes if self.copies[1] else 0
        end = self.offsets[1] + last
        return end if end > self.offsets[0] else self.reduction_bytes
